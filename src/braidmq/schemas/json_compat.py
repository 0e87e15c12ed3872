"""Whether messages of one JSON Schema fit another.

Deciding this for all of JSON Schema is not possible in bounded time, so each keyword has a rule of its own and errs on the
side of refusal, with one exception that is the custom of registries: a field that an open schema did not name may be given a
type later. A field that becomes required is refused, whether it was optional or not there: messages without it exist.
"""

from __future__ import annotations

import json
from typing import Any, Final

from braidmq.base import limits
from braidmq.schemas.json_cost import References
from braidmq.schemas.schema import invalid

_ALL_TYPES: Final = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
_LOWER_BOUNDS: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains")
_UPPER_BOUNDS: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains")
_COUNTERPARTS: Final = {
    "minimum": "exclusiveMinimum", "exclusiveMinimum": "minimum", "maximum": "exclusiveMaximum", "exclusiveMaximum": "maximum",
}  # fmt: skip
_ALIKE: Final = (
    "pattern", "format", "multipleOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies",
    "contains", "patternProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems", "additionalItems",
    "prefixItems", "uniqueItems", "$dynamicRef", "$recursiveRef", "contentEncoding", "contentMediaType",
)  # fmt: skip
"""Keywords the reader may leave out, or have as the writer has them; another value is taken for a narrower one."""
_SILENT: Final = frozenset(
    ("$ref", "allOf", "$defs", "definitions", "$id", "$schema", "title", "description", "examples", "default", "$comment")
)
"""Keywords that are followed, or that judge nothing."""
_NEUTRAL: Final[dict[str, Any]] = {"uniqueItems": False}


class JsonReading:
    """One comparison: does what fits `writer` fit `reader`?"""

    def __init__(self, reader: dict[str, Any], writer: dict[str, Any]) -> None:
        self._reader = reader
        self._writer = writer
        self._reader_references = References(reader)
        self._writer_references = References(writer)
        self._seen: dict[tuple[str, str], None] = {}
        """Pairs that read, or are taken to until the one they are part of is decided; in the order they were met."""
        self._steps = 0

    def faults(self) -> list[str]:
        try:
            return self._compare(self._reader, self._writer, "")[: limits.SCHEMA_ERRORS_MAX]
        except RecursionError as error:
            raise invalid("json", "references nest too deeply to be compared") from error

    def _compare(self, reader: Any, writer: Any, path: str) -> list[str]:
        self._steps += 1
        if self._steps > limits.SCHEMA_EVALUATIONS_MAX:
            raise invalid("json", "too complex to be compared with another version")
        reader = _flat(reader, self._reader_references)
        writer = _flat(writer, self._writer_references)
        pair = _key(reader), _key(writer)
        if pair in self._seen:
            return []
        met = len(self._seen)
        self._seen[pair] = None
        where = path or "$"
        if "reject" in writer:
            return []
        if "reject" in reader:
            return [f"{where} is no longer allowed"]
        faults = self._branches(reader, writer, path)
        if not faults:
            faults = [
                *_types(reader, writer, where), *_values(reader, writer, where), *_bounds(reader, writer, where),
                *_alike(reader, writer, where), *self._fields(reader, writer, path), *self._items(reader, writer, path),
            ]  # fmt: skip
        if faults:
            # What was taken to read because this pair was taken to must be looked at again.
            while len(self._seen) > met:
                self._seen.popitem()
        return faults

    def _branches(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        for keyword in ("anyOf", "oneOf"):
            allowed = reader.get(keyword)
            if not isinstance(allowed, list) or _key(allowed) == _key(writer.get(keyword)):
                continue
            written = next((writer[word] for word in ("anyOf", "oneOf") if isinstance(writer.get(word), list)), None)
            shared = {name: value for name, value in writer.items() if name not in ("anyOf", "oneOf")}
            for number, branch in enumerate([shared] if written is None else written):
                if all(self._compare(choice, branch, path) for choice in allowed):
                    which = "it" if written is None else f"branch {number} of the writer"
                    return [f"no branch of {keyword} at {path or '$'} accepts {which}"]
        return []

    def _fields(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        known, old = _object(reader.get("properties")), _object(writer.get("properties"))
        faults = []
        there = set(writer.get("required", ()))
        for name in reader.get("required", ()):
            if name not in there:
                faults.append(f"field {_join(path, name)} is required but messages of the other schema need not have it")
        closed = reader.get("additionalProperties", True)
        for name, child in old.items():
            if name in known:
                faults += self._compare(known[name], child, _join(path, name))
            elif closed is False and "patternProperties" not in reader and child is not False:
                faults.append(f"field {_join(path, name)} is not allowed")
            elif isinstance(closed, dict):
                faults += self._compare(closed, child, _join(path, name))
        if closed is not True:
            extra = writer.get("additionalProperties", True)
            if closed is False and extra is not False:
                faults.append(f"further fields at {path or '$'} are no longer allowed")
            elif isinstance(closed, dict) and extra is not False:
                faults += self._compare(closed, extra, _join(path, "*"))
        return faults

    def _items(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        items = reader.get("items", True)
        if isinstance(items, list) or isinstance(writer.get("items"), list):
            same = _key(items) == _key(writer.get("items", True)) or items is True
            return [] if same else [f"items at {path or '$'} changed"]
        return self._compare(items, writer.get("items", True), f"{path}[]") if items is not True and items != {} else []


def _flat(schema: Any, references: References) -> dict[str, Any]:
    """A schema without `$ref` and `allOf`: what they name is merged in. True is empty; False is `reject`."""
    flat: dict[str, Any] = {}
    pending, done = [schema], set()
    while pending:
        part = pending.pop()
        if part is False:
            return {"reject": True}
        if not isinstance(part, dict) or id(part) in done:
            continue
        done.add(id(part))
        if isinstance(part.get("$ref"), str):
            pending.append(references.follow(part, part["$ref"]))
        if isinstance(part.get("allOf"), list):
            pending.extend(reversed(part["allOf"]))
        for keyword, value in part.items():
            if keyword in _SILENT:
                continue
            flat[keyword] = _merged(keyword, flat[keyword], value) if keyword in flat else value
    return flat


def _merged(keyword: str, one: Any, other: Any) -> Any:
    if keyword == "required" and isinstance(one, list):
        return [*one, *(name for name in other if name not in one)]
    if keyword == "properties" and isinstance(one, dict):
        return {**one, **{name: {"allOf": [one[name], value]} if name in one else value for name, value in other.items()}}
    if keyword == "type":
        return sorted(_type_set(one) & _type_set(other))
    if keyword in _LOWER_BOUNDS:
        return max(one, other)
    if keyword in _UPPER_BOUNDS:
        return min(one, other)
    return one if _key(one) == _key(other) else {"all": [one, other]}


def _type_set(declared: Any) -> frozenset[str]:
    if declared is None:
        return _ALL_TYPES
    names = {declared} if isinstance(declared, str) else set(declared)
    return frozenset(names | {"integer"} if "number" in names else names)


def _types(reader: dict[str, Any], writer: dict[str, Any], where: str) -> list[str]:
    allowed, written = _type_set(reader.get("type")), _type_set(writer.get("type"))
    if "type" not in writer and isinstance(writer.get("enum", writer.get("const")), (list, str, int, float)):
        # The values of the enumeration are compared themselves.
        return []
    if written <= allowed:
        return []
    return [f"type of {where} changed: {_show(written)} does not fit {_show(allowed)}"]


def _show(types: frozenset[str]) -> str:
    if types == _ALL_TYPES:
        return "any type"
    return " or ".join(sorted(types - {"integer"} if "number" in types else types))


def _values(reader: dict[str, Any], writer: dict[str, Any], where: str) -> list[str]:
    allowed, written = _enumerated(reader), _enumerated(writer)
    if allowed is None:
        types = _type_set(reader.get("type"))
        odd = [value for value in written or () if "type" not in writer and _type_of(value) not in types]
        return [f"value {json.dumps(odd[0])} of {where} does not fit {_show(types)}"] if odd else []
    if written is None:
        return [f"values of {where} are now limited to an enumeration"]
    known = {_key(value) for value in allowed}
    gone = [json.dumps(value) for value in written if _key(value) not in known]
    return [f"{where} no longer allows {', '.join(gone[:5])}"] if gone else []


def _type_of(value: Any) -> str:
    kinds = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    return "integer" if isinstance(value, float) and value.is_integer() else kinds.get(type(value), "null")


def _enumerated(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _bounds(reader: dict[str, Any], writer: dict[str, Any], where: str) -> list[str]:
    faults = []
    for keyword in (*_LOWER_BOUNDS, *_UPPER_BOUNDS):
        bound, old = reader.get(keyword), writer.get(keyword)
        if bound is None or (keyword.startswith("min") and keyword != "minimum" and bound == 0):
            continue
        tighter = old is None or (bound > old if keyword in _LOWER_BOUNDS else bound < old)
        if tighter and not _implied(keyword, bound, writer):
            faults.append(f"{keyword} of {where} is now {bound}" + ("" if old is None else f", was {old}"))
    return faults


def _implied(keyword: str, bound: Any, writer: dict[str, Any]) -> bool:
    """Whether the writer keeps the bound although it does not say so: values that are listed, or bound the other way."""
    stricter = writer.get(_COUNTERPARTS.get(keyword, ""))
    if isinstance(stricter, (int, float)) and not isinstance(stricter, bool):
        past = stricter > bound if "inimum" in keyword else stricter < bound
        return past or (stricter == bound and not keyword.startswith("exclusive"))
    listed = _enumerated(writer)
    if listed is None or keyword not in _COUNTERPARTS:
        return False
    numbers = [value for value in listed if isinstance(value, (int, float)) and not isinstance(value, bool)]
    tests = {"minimum": min, "exclusiveMinimum": min, "maximum": max, "exclusiveMaximum": max}
    if not numbers:
        return True
    edge = tests[keyword](numbers)
    inside: bool = edge > bound if "inimum" in keyword else edge < bound
    return inside or (edge == bound and not keyword.startswith("exclusive"))


def _alike(reader: dict[str, Any], writer: dict[str, Any], where: str) -> list[str]:
    faults = []
    for keyword in _ALIKE:
        value = reader.get(keyword, _NEUTRAL.get(keyword))
        if value == _NEUTRAL.get(keyword) or _key(value) == _key(writer.get(keyword)):
            continue
        faults.append(f"{keyword} of {where} " + ("changed" if keyword in writer else "is new"))
    return faults


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
