"""JSON by a JSON Schema: the properties it names become fields.

    integer bigint    number double    string string    boolean boolean    array array    object struct
    object with only additionalProperties: map        anything else, and what refers to itself: its JSON text

A property that is missing or null is null. Others than those named are left out.

A batch of objects of numbers, strings and booleans is decoded in one compiled pass (`hot.json_columns`) while nothing in it is
doubtful. Other batches go through Arrow's own reader of JSON as one text, which is some times as fast as Spark's `from_json`. It
says of a whole text only that something in it is wrong, so a batch with a bad row in it is halved until the bad rows are among
few, and those are looked at one by one (msgspec). Where the two might disagree (text before or after an object, `NaN`, bytes that
are not UTF-8) the rows go the long way. All say the same of a row that they can speak of.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from braidmq import hot
from braidmq.base.limits import SCHEMA_DEPTH_MAX, SCHEMA_MESSAGE_BYTES_MAX
from braidmq.schemas.json_depth import json_depth
from braidmq.schemas.json_schema import parse_document
from braidmq.spark.decode import hot_column, no_errors, row_by_row

_FEW: Final = 64
_INT64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_SCALARS: Final[dict[str, tuple[pa.DataType, Any]]] = {
    "integer": (pa.int64(), _INT64),
    "number": (pa.float64(), float),
    "string": (pa.string(), str),
    "boolean": (pa.bool_(), bool),
}
_LETTERS: Final = {pa.int64(): "l", pa.float64(): "d", pa.string(): "s", pa.bool_(): "b"}
"""What `hot.json_columns` calls them."""
_BRACES: Final = (ord("{"), ord("}"))


class JsonDecoder:
    def __init__(self, definition: bytes) -> None:
        document = parse_document(definition, msgspec.json.Decoder().decode)
        shape = _Shape(document)
        kind, model, _ = shape.of(document, ())
        self._wrapped = not pa.types.is_struct(kind)
        self.type: pa.StructType = pa.struct([("value", kind)]) if self._wrapped else kind
        self._plain = shape.plain and not self._wrapped and self.type.num_fields > 0
        self._decode = msgspec.json.Decoder(model).decode
        self._doubles = shape.doubles
        self._flat = self._plain and all(field.type in _LETTERS for field in self.type)
        self._kinds = "".join(_LETTERS[field.type] for field in self.type).encode() if self._flat else b""
        self._names = [field.name.encode() for field in self.type]

    def __call__(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        if not len(values):
            return pa.array([], self.type), no_errors(0)
        # Without a compiler Arrow's reader is the faster way.
        whole = self._compiled(values) if self._flat and hot.IMPLEMENTATION == "compiled" and not values.null_count else None
        return (whole, no_errors(len(values))) if whole is not None else self._long_way(values)

    def _long_way(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        whole = self._whole(values) if self._plain else None
        if whole is not None:
            return whole, no_errors(len(values))
        if len(values) <= _FEW or not self._plain:
            return row_by_row(values, self.type, self._row)
        middle = len(values) // 2
        parts = [self(values[:middle]), self(values[middle:])]
        return pa.concat_arrays([part[0] for part in parts]), pa.concat_arrays([part[1] for part in parts])

    def _compiled(self, values: pa.Array) -> pa.Array | None:
        """All rows in one pass, or None where one of them is doubtful."""
        _, ends, data = values.buffers()
        places = np.frombuffer(ends, "<i4")[values.offset : values.offset + len(values) + 1]
        found = hot.json_columns(self._kinds, self._names, places, b"" if data is None else data)
        if found is None:
            return None
        columns = [hot_column(field.type, len(values), *column) for field, column in zip(self.type, found, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=list(self.type))

    def _whole(self, values: pa.Array) -> pa.Array | None:
        """All rows at once, or None where one of them has to be looked at."""
        # Slow to import, and flat schemas seldom need them.
        import pyarrow.compute as pc
        import pyarrow.json as pj

        if values.null_count:
            return None
        _, ends, data = values.buffers()
        places = np.frombuffer(ends, "<i4")[values.offset : values.offset + len(values) + 1]
        if (places[1:] <= places[:-1]).any():
            return None
        octets = np.frombuffer(data, np.uint8)
        # Each value is one object and nothing around it: then as many objects as values means one each.
        if (octets[places[:-1]] != _BRACES[0]).any() or (octets[places[1:] - 1] != _BRACES[1]).any():
            return None
        text = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values), b"\n")
        parsing = pj.ParseOptions(explicit_schema=pa.schema(list(self.type)), unexpected_field_behavior="ignore")
        try:
            text.cast(pa.string())
            buffer = text[0].as_buffer()
            reading = pj.ReadOptions(use_threads=False, block_size=max(1 << 20, buffer.size + 1))
            table = pj.read_json(pa.BufferReader(buffer), reading, parsing)
        except pa.ArrowInvalid:
            return None
        if table.num_rows != len(values):
            return None
        found = table.to_struct_array().combine_chunks() if table.num_columns else pa.nulls(len(values), self.type)
        if found.type != self.type or (self._doubles and _has_nan(found)):
            return None
        return found

    def _row(self, value: bytes) -> Any:
        if len(value) > SCHEMA_MESSAGE_BYTES_MAX:
            raise ValueError(f"{len(value)} bytes are more than {SCHEMA_MESSAGE_BYTES_MAX}")
        if json_depth(value) > SCHEMA_DEPTH_MAX:
            raise ValueError(f"nested deeper than {SCHEMA_DEPTH_MAX} levels")
        try:
            found = _plain(self._decode(value))
        except msgspec.MsgspecError as fault:
            raise ValueError(str(fault)) from None
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if self._wrapped:
            return {"value": found}
        if found is None:
            raise ValueError("Expected `object`, got `null`")
        return found


class _Shape:
    """What a schema describes, as an Arrow type and as a type of msgspec."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self.plain = True
        """Whether Arrow's reader knows all of it."""
        self.doubles = False
        self._made = 0

    def of(self, schema: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Any, bool]:
        """Arrow type, type of msgspec, and whether it is text of JSON."""
        schema, above = self._resolved(schema, above)
        name = self._type_name(schema)
        if name == "array" and isinstance(schema.get("items"), dict):
            kind, model, _ = self.of(schema["items"], above)
            return pa.list_(pa.field("element", kind)), list[model | None] | None, False  # type: ignore[valid-type]
        if name == "object" and schema.get("properties"):
            return self._object(schema["properties"], above)
        if name == "object" and isinstance(schema.get("additionalProperties"), dict):
            self.plain = False
            kind, model, _ = self.of(schema["additionalProperties"], above)
            return pa.map_(pa.string(), kind), dict[str, model | None] | None, False  # type: ignore[valid-type]
        if name in _SCALARS:
            self.doubles = self.doubles or name == "number"
            kind, model = _SCALARS[name]
            return kind, model | None, False
        self.plain = False
        return pa.string(), msgspec.Raw, True

    def _object(self, properties: dict[str, Any], above: tuple[str, ...]) -> tuple[pa.DataType, Any, bool]:
        fields, members = [], []
        for number, (name, schema) in enumerate(properties.items()):
            kind, model, raw = self.of(schema, above)
            fields.append(pa.field(name, kind))
            members.append((f"f{number}", model, msgspec.Raw(b"null") if raw else None))
        self._made += 1
        names = {f"f{number}": name for number, name in enumerate(properties)}
        struct = msgspec.defstruct(f"Object{self._made}", members, rename=names, gc=False)
        return pa.struct(fields), struct | None, False

    def _resolved(self, schema: Any, above: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The schema a reference leads to, within the document; nothing where it leads nowhere or back to itself."""
        while isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
            reference = schema["$ref"]
            if reference in above or not reference.startswith("#"):
                return {}, above
            above = (*above, reference)
            schema = self._document
            for part in reference[1:].strip("/").split("/") if len(reference) > 1 else ():
                part = part.replace("~1", "/").replace("~0", "~")
                schema = schema.get(part) if isinstance(schema, dict) else None
        return (schema if isinstance(schema, dict) else {}), above

    def _type_name(self, schema: dict[str, Any]) -> str:
        found = schema.get("type")
        if isinstance(found, list):
            names = [name for name in found if name != "null"]
            return names[0] if len(names) == 1 else ""
        if isinstance(found, str):
            return found
        if "properties" in schema:
            return "object"
        choices = schema.get("enum")
        if isinstance(choices, list) and choices and all(isinstance(choice, str) for choice in choices):
            return "string"
        return ""


def _plain(value: Any) -> Any:
    """What msgspec made, as Arrow takes it."""
    if isinstance(value, msgspec.Struct):
        names = value.__struct_encode_fields__
        return {name: _plain(getattr(value, field)) for name, field in zip(names, value.__struct_fields__, strict=True)}
    if isinstance(value, msgspec.Raw):
        text = bytes(value)
        return None if text == b"null" else text.decode()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return [(key, _plain(item)) for key, item in value.items()]
    return value


def _has_nan(column: pa.Array) -> bool:
    """Whether there is a number that JSON cannot write, anywhere."""
    if pa.types.is_struct(column.type):
        return any(_has_nan(column.field(number)) for number in range(column.type.num_fields))
    if pa.types.is_list(column.type):
        return _has_nan(column.values)
    if not pa.types.is_floating(column.type):
        return False
    return not np.isfinite(column.drop_null().to_numpy()).all()
