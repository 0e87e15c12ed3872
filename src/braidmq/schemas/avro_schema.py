"""Avro: definitions are parsed by fastavro, messages are one value in binary form without a header, used to the last byte."""

from __future__ import annotations

import io
import json
from typing import Any, Final

from braidmq.base import limits
from braidmq.schemas.avro_compat import AvroReading
from braidmq.schemas.avro_wire import compile_steps, walk
from braidmq.schemas.json_depth import json_depth
from braidmq.schemas.schema import Schema, fingerprint_of, invalid, unavailable


class AvroSchema:
    kind: Final = "avro"

    __slots__ = ("_step", "definition", "fingerprint", "named", "parsed")

    def __init__(self, definition: bytes) -> None:
        try:
            from fastavro.schema import SchemaParseException, UnknownType, parse_schema, to_parsing_canonical_form
        except ImportError as missing:
            raise unavailable(self.kind, missing) from missing
        self.definition = definition
        document = _document(definition)
        self.named: dict[str, Any] = {}
        try:
            _check_shape(document)
            self.parsed = parse_schema(document, named_schemas=self.named)
            _check_unions(self.parsed)
            _check_ends(self.parsed, self.named)
            self._step = compile_steps(self.parsed, self.named)
            # Defaults and aliases are not in the canonical form, but decide what a reader can read.
            meaning = json.dumps(_meaning(self.parsed), sort_keys=True, separators=(",", ":"))
            canonical = f"{to_parsing_canonical_form(self.parsed)}\n{meaning}"
        except UnknownType as error:
            raise invalid(self.kind, f"unknown type {error}") from error
        except RecursionError as error:
            raise invalid(self.kind, "types nest too deeply") from error
        except (SchemaParseException, ValueError, TypeError, LookupError, AttributeError) as error:
            raise invalid(self.kind, f"{type(error).__name__}: {error}") from error
        self.fingerprint = fingerprint_of(self.kind, canonical.encode("utf-8", "surrogatepass"))

    def check(self, value: bytes) -> list[str]:
        if len(value) > limits.SCHEMA_MESSAGE_BYTES_MAX:
            return [f"invalid Avro message: {len(value)} bytes are more than {limits.SCHEMA_MESSAGE_BYTES_MAX}"]
        fault = walk(self._step, value)
        return [f"invalid Avro message: {fault}"] if fault else []

    def decode(self, value: bytes) -> Any:
        from fastavro import schemaless_reader

        return schemaless_reader(io.BytesIO(value), self.parsed, None)

    def reads(self, writer: Schema) -> list[str]:
        assert isinstance(writer, AvroSchema)
        return AvroReading(self.named, writer.named).faults(self.parsed, writer.parsed)


def _document(definition: bytes) -> Any:
    if json_depth(definition) > limits.SCHEMA_DEPTH_MAX:
        raise invalid("avro", f"nested deeper than {limits.SCHEMA_DEPTH_MAX} levels")
    try:
        text = definition.decode()
    except UnicodeDecodeError as error:
        raise invalid("avro", f"not UTF-8: {error}") from error
    if text.strip().isidentifier():
        return text.strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid("avro", f"not JSON: {error}") from error


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    found = schema if isinstance(schema, str) else schema["type"]
    return found if isinstance(found, str) else _kind(found)


def _below(schema: Any) -> list[Any]:
    """The types that a parsed type is made of."""
    if isinstance(schema, list):
        return schema
    if isinstance(schema, str):
        return []
    if not isinstance(schema["type"], str):
        return [schema["type"]]
    return [schema[key] for key in ("items", "values") if key in schema] + [field["type"] for field in schema.get("fields", ())]


def _check_shape(document: Any) -> None:
    """What the parser lets pass although no message could be read or written with it."""
    pending = [document]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending.extend(part)
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if kind in ("record", "error"):
            names = [field["name"] for field in part["fields"]]
            if len(set(names)) < len(names):
                raise invalid("avro", f"record {part['name']} has a field twice")
            pending.extend(field["type"] for field in part["fields"])
        elif kind == "enum":
            if not part["symbols"] or len(set(part["symbols"])) < len(part["symbols"]):
                raise invalid("avro", f"enum {part['name']} has no symbols, or one twice")
        elif kind == "fixed":
            if type(part["size"]) is not int or part["size"] < 0:
                raise invalid("avro", f"fixed {part['name']} has a size of {part['size']!r}")
        else:
            pending.extend(part[key] for key in ("type", "items", "values") if key in part)


def _check_unions(schema: Any) -> None:
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            names = [branch if isinstance(branch, str) else branch.get("name", _kind(branch)) for branch in part]
            if len(set(names)) < len(names):
                raise invalid("avro", f"a union has a type more than once: {', '.join(names[:20])}")
            if any(isinstance(branch, list) for branch in part):
                raise invalid("avro", "a union is directly in a union")
        pending.extend(_below(part))


def _check_ends(schema: Any, named: dict[str, Any]) -> None:
    """Refuse a record that holds itself in every message: no message of that type has an end."""
    finished: set[str] = set()

    def enter(part: Any, open_names: tuple[str, ...]) -> None:
        if _kind(part) in ("union", "array", "map"):
            return
        name = part if isinstance(part, str) else part.get("name", "")
        if name in open_names:
            raise invalid("avro", f"record {name} always holds itself")
        if name not in named or name in finished:
            return
        for child in _below(named[name]):
            enter(child, (*open_names, name))
        finished.add(name)

    enter(schema, ())
    for name in named:
        enter(name, ())


def _meaning(schema: Any) -> Any:
    """What a reader goes by and the canonical form leaves out."""
    if isinstance(schema, list):
        return [_meaning(branch) for branch in schema]
    if isinstance(schema, str):
        return None
    if not isinstance(schema["type"], str):
        return _meaning(schema["type"])
    own = [schema.get("aliases"), schema.get("default"), schema.get("logicalType"), schema.get("precision"), schema.get("scale")]
    fields = [["default" in field, field.get("default"), field.get("aliases")] for field in schema.get("fields", ())]
    below = [_meaning(part) for part in _below(schema)]
    return [own, fields, below] if below or any(own) else None
