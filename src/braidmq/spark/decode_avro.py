"""Avro, one value in binary form without a header, by columns where the schema is flat.

    int, long bigint    float, double double    boolean boolean    string, enum string    bytes, fixed binary
    record struct    array array    map map    a union of one type and null: that type    other unions: their JSON text
    timestamp-millis, timestamp-micros timestamp    date date    decimal decimal, with more than 38 digits its text

A record of numbers, strings and booleans (each of them possibly a union with null) is decoded by columns: in one compiled pass
while every row is good (`hot.avro_columns`), and otherwise by numpy, one field of all rows after the other: every row has a
position in the bytes, and all positions move together. Other records go through fastavro row by row, each checked first, because
fastavro trusts what it reads. What is wrong with a bad row is said by the same check.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

import numpy as np
import pyarrow as pa

from braidmq import hot
from braidmq.schemas.avro_schema import AvroSchema
from braidmq.spark.decode import ERROR, Decoder, hot_column, no_errors, row_by_row

_FLAT: Final = {
    "int": pa.int64(), "long": pa.int64(), "float": pa.float64(), "double": pa.float64(), "boolean": pa.bool_(),
    "string": pa.string(), "bytes": pa.binary(),
}  # fmt: skip
_LETTERS: Final = {"int": "i", "long": "l", "float": "f", "double": "d", "boolean": "b", "string": "s", "bytes": "s"}
"""What `hot.avro_columns` calls them."""
_LOGICAL: Final = {
    ("long", "timestamp-millis"): pa.timestamp("us", "UTC"), ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("int", "date"): pa.date32(),
}  # fmt: skip
_DIGITS_MAX: Final = 38
"""Of a decimal in Spark; one with more is its text."""


def avro_decoder(definition: bytes) -> Decoder:
    schema = AvroSchema(definition)
    fields = _flat_fields(schema.parsed)
    return FlatAvroDecoder(schema, fields) if fields is not None else AvroDecoder(schema)


def _flat_fields(parsed: Any) -> list[tuple[str, str, int]] | None:
    """Name, type and which branch of a union is null (-1 for none) of every field; None where one is not flat."""
    if not isinstance(parsed, dict) or parsed.get("type") != "record" or not parsed["fields"]:
        return None
    fields = []
    for field in parsed["fields"]:
        kind, null = field["type"], -1
        if isinstance(kind, list):
            if len(kind) != 2 or "null" not in kind:
                return None
            null = kind.index("null")
            kind = kind[1 - null]
        if isinstance(kind, dict) and set(kind) == {"type"}:
            kind = kind["type"]
        if not isinstance(kind, str) or kind not in _FLAT:
            return None
        fields.append((field["name"], kind, null))
    return fields


class FlatAvroDecoder:
    def __init__(self, schema: AvroSchema, fields: list[tuple[str, str, int]]) -> None:
        self._schema = schema
        self._fields = fields
        self.type: pa.StructType = pa.struct([(name, _FLAT[kind]) for name, kind, _ in fields])
        self._kinds = "".join(_LETTERS[kind] for _, kind, _ in fields).encode()
        self._nulls = bytes(null & 255 for _, _, null in fields)

    def __call__(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        if not len(values):
            return pa.array([], self.type), no_errors(0)
        # Without a compiler numpy is the faster way.
        whole = self._whole(values) if hot.IMPLEMENTATION == "compiled" and not values.null_count else None
        if whole is not None:
            return whole, no_errors(len(values))
        walk = _Walk(values)
        columns = [walk.field(kind, null) for _, kind, null in self._fields]
        walk.bad |= walk.at != walk.end
        if values.null_count:
            walk.bad |= values.is_null().to_numpy(zero_copy_only=False)
        bad = np.flatnonzero(walk.bad)
        columns, text_faults = self._checked_text(columns, walk)
        if text_faults:
            bad = np.flatnonzero(walk.bad)
        if not len(bad):
            return pa.StructArray.from_arrays(columns, fields=list(self.type)), no_errors(len(values))
        mask = pa.array(walk.bad)
        data = pa.StructArray.from_arrays(columns, fields=list(self.type), mask=mask)
        errors: list[str | None] = [None] * len(values)
        for row in bad.tolist():
            value = values[row].as_py()
            found = ["there is no value"] if value is None else self._schema.check(value)
            errors[row] = "; ".join(found) or "the value does not fit its schema"
        return data, pa.array(errors, ERROR)

    def _whole(self, values: pa.Array) -> pa.Array | None:
        """All rows at once, or None where one of them is bad."""
        _, ends, data = values.buffers()
        places = np.frombuffer(ends, "<i4")[values.offset : values.offset + len(values) + 1]
        found = hot.avro_columns(self._kinds, self._nulls, places, b"" if data is None else data)
        if found is None:
            return None
        columns = [hot_column(field.type, len(values), *column) for field, column in zip(self.type, found, strict=True)]
        try:
            for column in columns:
                if column.type == pa.string():
                    column.validate(full=True)
        except pa.ArrowInvalid:
            # Some text is not UTF-8.
            return None
        return pa.StructArray.from_arrays(columns, fields=list(self.type))

    def _checked_text(self, columns: list[pa.Array], walk: _Walk) -> tuple[list[pa.Array], bool]:
        """Strings as such; rows in which one is not UTF-8 are bad."""
        checked, faults = [], False
        for column, (_, kind, _null) in zip(columns, self._fields, strict=True):
            if kind == "string":
                try:
                    column = column.cast(pa.string())
                except pa.ArrowInvalid:
                    faults = True
                    for row, text in enumerate(column.to_pylist()):
                        try:
                            (text or b"").decode()
                        except UnicodeDecodeError:
                            walk.bad[row] = True
                    bad = pa.array(walk.bad)
                    column = _without(bad, column).cast(pa.string())
            checked.append(column)
        return checked, faults


def _without(mask: pa.Array, column: pa.Array) -> pa.Array:
    """Bytes, with nulls in some rows."""
    # Slow to import, and good rows do not need it.
    import pyarrow.compute as pc

    return pc.if_else(mask, pa.scalar(None, pa.binary()), column)


class _Walk:
    """All rows of a column, each at its own position."""

    def __init__(self, values: pa.Array) -> None:
        _, ends, data = values.buffers()
        places = np.frombuffer(ends, "<i4")[values.offset : values.offset + len(values) + 1]
        self._data = data
        self._size = data.size if data is not None else 0
        # Ten bytes more, so that a number that is cut off can be read and then seen to be.
        self._octets = np.zeros(self._size + 16, np.uint8)
        if self._size:
            self._octets[: self._size] = np.frombuffer(data, np.uint8)
        self._rows = len(values)
        self.at = places[:-1].astype(np.int64)
        self.end = places[1:].astype(np.int64)
        self.bad = np.zeros(self._rows, bool)

    def field(self, kind: str, null: int) -> pa.Array:
        valid = None
        if null >= 0:
            branch = self._numbers(None)
            self.bad |= (branch != 0) & (branch != 1)
            valid = (branch != null) & ~self.bad
        return getattr(self, f"_{_READERS[kind]}")(valid)

    def _long(self, valid: Any) -> pa.Array:
        return self._column(self._numbers(valid), pa.int64(), valid)

    def _int(self, valid: Any) -> pa.Array:
        numbers = self._numbers(valid)
        self.bad |= (numbers != numbers.astype(np.int32)) & (True if valid is None else valid)
        return self._column(numbers, pa.int64(), valid)

    def _double(self, valid: Any) -> pa.Array:
        return self._column(self._fixed("<f8", 8, valid), pa.float64(), valid)

    def _float(self, valid: Any) -> pa.Array:
        # Bytes of a row that has none here, or of a NaN that signals: no cause for a warning.
        with np.errstate(invalid="ignore"):
            wide = self._fixed("<f4", 4, valid).astype(np.float64)
        return self._column(wide, pa.float64(), valid)

    def _boolean(self, valid: Any) -> pa.Array:
        found = self._fixed("u1", 1, valid)
        # Where there is none, this is the first byte of the next field.
        self.bad |= (found > 1) & (True if valid is None else valid)
        mask = None if valid is None else ~valid
        return pa.array(found == 1, pa.bool_(), mask=mask)

    def _bytes(self, valid: Any) -> pa.Array:
        sizes = self._numbers(valid)
        if valid is not None:
            sizes = np.where(valid, sizes, 0)
        wrong = (sizes < 0) | (sizes > self.end - self.at)
        self.bad |= wrong
        sizes = np.where(self.bad, 0, sizes)
        # Cells in the order of the bytes: the text of a row, then whatever lies before the text of the next one.
        edges = np.empty(2 * self._rows, np.int32)
        edges[0::2] = self.at
        edges[1::2] = self.at + sizes
        if (edges[1:] < edges[:-1]).any():
            # A row that ran past its end: those of its cells are empty, and nothing of them is used.
            edges = np.maximum.accumulate(edges)
        cells = pa.Array.from_buffers(pa.binary(), 2 * self._rows - 1, [None, pa.py_buffer(edges), self._data])
        mask = None if valid is None or valid.all() else pa.array(~valid)
        column = cells.take(pa.array(np.arange(0, 2 * self._rows, 2, dtype=np.int32)))
        self.at += sizes
        return column if mask is None else _without(mask, column)

    def _fixed(self, kind: str, width: int, valid: Any) -> Any:
        here = np.minimum(self.at, self._size)
        found = self._octets[here[:, None] + np.arange(width)].view(kind).ravel()
        step = np.full(self._rows, width) if valid is None else np.where(valid, width, 0)
        self.bad |= self.at + step > self.end
        self.at += np.where(self.bad, 0, step)
        return found

    def _numbers(self, valid: Any) -> Any:
        """A number of one to ten bytes of every row; those that have none here stay where they are."""
        octets, at = self._octets, self.at
        going = ~self.bad if valid is None else valid & ~self.bad
        first = octets[np.minimum(at, self._size)]
        result = (first & 127).astype(np.uint64)
        step = np.ones(self._rows, np.int64)
        more = going & (first > 127)
        shift = 7
        while more.any():
            if shift > 63:
                self.bad |= more
                break
            rows = np.flatnonzero(more)
            byte = octets[np.minimum(at[rows] + step[rows], self._size)]
            if shift == 63:
                self.bad[rows[byte > 1]] = True
            result[rows] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
            step[rows] += 1
            more[rows] = byte > 127
            shift += 7
        step = np.where(going, step, 0)
        self.bad |= at + step > self.end
        self.at = at + np.where(self.bad, 0, step)
        return (result >> np.uint64(1)).astype(np.int64) ^ -(result & np.uint64(1)).astype(np.int64)

    @staticmethod
    def _column(numbers: Any, kind: pa.DataType, valid: Any) -> pa.Array:
        if valid is None or valid.all():
            return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])
        return pa.array(numbers, kind, mask=~valid)


_READERS: Final = {
    "int": "int", "long": "long", "float": "float", "double": "double", "boolean": "boolean", "string": "bytes", "bytes": "bytes",
}  # fmt: skip


class AvroDecoder:
    """Any record, row by row."""

    def __init__(self, schema: AvroSchema) -> None:
        from fastavro import schemaless_reader

        self._schema = schema
        self._read: Callable[..., Any] = schemaless_reader
        shape = _Shape(schema.named)
        kind, self._convert = shape.of(schema.parsed, ())
        self._wrapped = not pa.types.is_struct(kind)
        self.type: pa.StructType = pa.struct([("value", kind)]) if self._wrapped else kind

    def __call__(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        return row_by_row(values, self.type, self._row)

    def _row(self, value: bytes) -> Any:
        faults = self._schema.check(value)
        if faults:
            raise ValueError("; ".join(faults))
        found = self._convert(self._read(BytesIO(value), self._schema.parsed))
        return {"value": found} if self._wrapped else found


Convert = Callable[[Any], Any]


class _Shape:
    """An Avro type as an Arrow type, and how to get from what fastavro makes of it to what Arrow takes."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named

    def of(self, schema: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
        if isinstance(schema, list):
            return self._union(schema, above)
        kind = schema if isinstance(schema, str) else schema["type"]
        if not isinstance(kind, str):
            return self.of(kind, above)
        if kind in self._named:
            return (pa.string(), _text) if kind in above else self.of(self._named[kind], above)
        logical = schema.get("logicalType") if isinstance(schema, dict) else None
        if logical == "decimal":
            precision = schema.get("precision", _DIGITS_MAX)
            return (pa.decimal128(precision, schema.get("scale", 0)), _same) if precision <= _DIGITS_MAX else (pa.string(), _plain)
        if (kind, str(logical)) in _LOGICAL:
            return _LOGICAL[kind, str(logical)], _same
        if logical is not None and kind in _FLAT:
            return pa.string(), _text
        match kind:
            case "record" | "error":
                return self._record(schema, (*above, schema["name"]))
            case "array":
                item, convert = self.of(schema["items"], above)
                return pa.list_(pa.field("element", item)), lambda found: [convert(one) for one in found]
            case "map":
                item, convert = self.of(schema["values"], above)
                return pa.map_(pa.string(), item), lambda found: [(key, convert(one)) for key, one in found.items()]
            case "enum":
                return pa.string(), _same
            case "fixed":
                return pa.binary(), _same
            case "null":
                return pa.string(), lambda found: None
        return _FLAT[kind], _same

    def _union(self, branches: list[Any], above: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
        others = [branch for branch in branches if branch != "null"]
        if len(others) != 1:
            return pa.string(), _text
        kind, convert = self.of(others[0], above)
        return kind, lambda found: None if found is None else convert(found)

    def _record(self, schema: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
        parts = [(field["name"], *self.of(field["type"], above)) for field in schema["fields"]]
        convert = {name: each for name, _, each in parts}
        kind = pa.struct([(name, each) for name, each, _ in parts])
        return kind, lambda found: {name: convert[name](one) for name, one in found.items()}


def _same(found: Any) -> Any:
    return found


def _plain(found: Any) -> str:
    return str(found)


def _text(found: Any) -> str | None:
    return None if found is None else json.dumps(found, default=lambda one: one.hex() if isinstance(one, bytes) else str(one))
