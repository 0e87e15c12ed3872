"""What goes into the admin API and comes out of it, as dataclasses: read, checked, written and described from their annotations.

A field is what its type says: text, numbers, booleans, a `Literal`, lists, dicts with text keys, other shapes. `Annotated` adds
what a reader has to know and what a value may be: `Annotated[int, Bounds(1, 100), "how many"]`. One declaration therefore is the
check, the JSON and the schema in the OpenAPI document, and they cannot differ.

A field that may be None is left out of the JSON where it is, and may be left out of a request.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union

from braidmq.base.errors import BraidError

T = TypeVar("T")
Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the most of a number, or of the characters of a text or the items of a list."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a text has to look like, from its first character to its last."""

    regex: str


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a shape, taken apart."""

    name: str
    type: Any
    """Without `Annotated` and without None."""
    optional: bool
    """Whether it may be None."""
    required: bool
    default: Any
    notes: tuple[Any, ...]

    @property
    def doc(self) -> str:
        return next((note for note in self.notes if isinstance(note, str)), "")


def fields_of(shape: Any) -> tuple[Field, ...]:
    """The fields of a shape, in order."""
    found: tuple[Field, ...] = _fields_of(shape)
    return found


@cache
def _fields_of(shape: type) -> tuple[Field, ...]:
    hints = typing.get_type_hints(shape, include_extras=True)
    return tuple(_field(declared, hints[declared.name]) for declared in dataclasses.fields(shape))


def _field(declared: dataclasses.Field[Any], hint: Any) -> Field:
    type_, notes = _unwrapped(hint)
    type_, optional = _without_none(type_)
    inner, more = _unwrapped(type_)
    default = declared.default
    if declared.default_factory is not dataclasses.MISSING:
        default = declared.default_factory()
    required = default is dataclasses.MISSING
    return Field(declared.name, inner, optional, required, None if required else default, (*notes, *more))


def _unwrapped(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    if typing.get_origin(hint) is typing.Annotated:
        base, *notes = typing.get_args(hint)
        return base, tuple(notes)
    return hint, ()


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in (Union, types.UnionType):
        rest = [part for part in typing.get_args(hint) if part is not type(None)]
        if len(rest) == 1:
            return rest[0], True
    return hint, False


# --- out


def plain(value: Any) -> Any:
    """What `json.dumps` takes, made of shapes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {}
        for field in fields_of(type(value)):
            part = getattr(value, field.name)
            if part is not None or not field.optional:
                found[field.name] = plain(part)
        return found
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return value


def plain_items(values: Any) -> Iterator[Any]:
    """The same for a long list, an item at a time."""
    return map(plain, values)


# --- in


def read_query(shape: type[T], given: Mapping[str, str]) -> T:
    """The query of a request; INVALID_ARGUMENT says which parameter is wrong, and how."""
    return _read_object(shape, given, "the query", _from_text)


def read_body(shape: type[T], document: Any) -> T:
    """The body of a request."""
    if not isinstance(document, dict):
        raise _wrong("the body", "has to be an object")
    return _read_object(shape, document, "the body", _from_json)


def _read_object(shape: type[T], given: Mapping[str, Any], where: str, read: Any) -> T:
    fields = {field.name: field for field in fields_of(shape)}
    for name in given:
        if name not in fields:
            raise _wrong(where, f"has no `{name[:100]}`; there is {', '.join(fields) or 'nothing'}")
    values = {}
    for name, field in fields.items():
        if name not in given or (given[name] is None and field.optional):
            if field.required:
                raise _wrong(where, f"needs `{name}`")
            continue
        values[name] = _checked(field.notes, read(field.type, given[name], name), name)
    return shape(**values)


def _wrong(name: str, reason: str) -> BraidError:
    return BraidError("INVALID_ARGUMENT", reason=f"{name} {reason}")


_TRUE_FALSE = {"true": True, "false": False}
_INTEGER = re.compile(r"-?[0-9]{1,19}")


def _from_text(type_: Any, text: str, name: str) -> Any:
    if type_ is str or typing.get_origin(type_) is Literal:
        return _from_json(type_, text, name)
    if type_ is bool:
        if text not in _TRUE_FALSE:
            raise _wrong(f"`{name}`", "is true or false")
        return _TRUE_FALSE[text]
    if type_ is int:
        if not _INTEGER.fullmatch(text):
            raise _wrong(f"`{name}`", "is not a whole number")
        return int(text)
    if typing.get_origin(type_) is list:
        return [_from_text(typing.get_args(type_)[0], part, name) for part in text.split(",") if part]
    raise AssertionError(f"a query cannot hold {type_}")


def _from_json(type_: Any, value: Any, name: str) -> Any:
    origin = typing.get_origin(type_)
    if type_ is Any:
        return value
    if origin is Literal:
        if value not in typing.get_args(type_) or isinstance(value, bool):
            raise _wrong(f"`{name}`", f"is not one of {', '.join(map(str, typing.get_args(type_)))}")
        return value
    if dataclasses.is_dataclass(type_):
        if not isinstance(value, dict):
            raise _wrong(f"`{name}`", "is not an object")
        return _read_object(typing.cast(type, type_), value, f"`{name}`", _from_json)
    if origin is list:
        inner, notes = _unwrapped(typing.get_args(type_)[0])
        if not isinstance(value, list):
            raise _wrong(f"`{name}`", "is not a list")
        return [_checked(notes, _from_json(inner, item, name), name) for item in value]
    if origin is dict:
        inner, notes = _unwrapped(typing.get_args(type_)[1])
        if not isinstance(value, dict):
            raise _wrong(f"`{name}`", "is not an object")
        return {key: _checked(notes, _from_json(inner, part, f"{name}.{key}"), name) for key, part in value.items()}
    if type_ is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type_ is int and isinstance(value, float) and value.is_integer():
        # JSON knows one kind of number, and 1.0 is 1 there.
        return int(value)
    if not isinstance(value, type_) or (isinstance(value, bool) and type_ is not bool):
        raise _wrong(f"`{name}`", f"is not {_WORDS[type_]}")
    if type_ is str:
        _check_text(value, name)
    return value


_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _check_text(value: str, name: str) -> None:
    if any(0xD800 <= ord(character) < 0xE000 for character in value):
        raise _wrong(f"`{name}`", "holds half a character, which no UTF-8 has")


def _checked(notes: tuple[Any, ...], value: Any, name: str) -> Any:
    for note in notes:
        if isinstance(note, Bounds):
            size = len(value) if isinstance(value, (str, list, dict)) else value
            if not note.least <= size <= note.most:
                what = "" if isinstance(value, (int, float)) else " long" if isinstance(value, str) else " items"
                raise _wrong(f"`{name}`", f"is {size}{what}, not {note.least} to {note.most}")
        elif isinstance(note, Pattern) and not re.fullmatch(note.regex, value):
            raise _wrong(f"`{name}`", f"does not look like {note.regex}")
    return value


# --- described


class SchemaBook:
    """The schemas of a document; shapes get an entry each, and are referred to."""

    def __init__(self) -> None:
        self.shapes: dict[str, Schema] = {}

    def of(self, hint: Any) -> Schema:
        """The schema of a type, as JSON Schema 2020-12 has it."""
        type_, notes = _unwrapped(hint)
        type_, optional = _without_none(type_)
        type_, more = _unwrapped(type_)
        found = self._of_plain(type_)
        _describe(found, (*notes, *more))
        if optional:
            found = {"anyOf": [found, {"type": "null"}]}
        return found

    def of_field(self, field: Field) -> Schema:
        found = self._of_plain(field.type)
        _describe(found, field.notes)
        if not field.required and field.default is not None and field.default != []:
            found["default"] = field.default
        return found

    def _of_plain(self, type_: Any) -> Schema:
        origin = typing.get_origin(type_)
        if type_ is Any:
            return {}
        if origin is Literal:
            values = list(typing.get_args(type_))
            return {"type": "string" if isinstance(values[0], str) else "integer", "enum": values}
        if origin in (list, tuple):
            return {"type": "array", "items": self.of(typing.get_args(type_)[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(typing.get_args(type_)[1])}
        if dataclasses.is_dataclass(type_):
            return {"$ref": f"#/components/schemas/{self._named(typing.cast(type, type_))}"}
        return dict(_SIMPLE[type_])

    def _named(self, shape: type) -> str:
        name = shape.__name__
        if name not in self.shapes:
            self.shapes[name] = {}
            properties = {}
            for field in fields_of(shape):
                schema = self.of_field(field)
                properties[field.name] = {"anyOf": [schema, {"type": "null"}]} if field.optional else schema
            required = [field.name for field in fields_of(shape) if field.required and not field.optional]
            schema = {"type": "object", "description": (shape.__doc__ or "").strip(), "properties": properties}
            if required:
                schema["required"] = required
            schema["additionalProperties"] = False
            self.shapes[name] = schema
        return name


_SIMPLE: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
}


def _describe(schema: Schema, notes: tuple[Any, ...]) -> None:
    for note in notes:
        if isinstance(note, str):
            schema["description"] = note
        elif isinstance(note, Pattern):
            schema["pattern"] = f"^(?:{note.regex})$"
        elif isinstance(note, Bounds):
            kind = schema.get("type")
            what = {"string": "Length", "array": "Items", "object": "Properties"}.get(str(kind), "imum")
            schema[f"min{what}"], schema[f"max{what}"] = note.least, note.most
