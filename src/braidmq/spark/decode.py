"""Values to columns by a schema of the registry: whole columns in, whole columns out.

A decoder takes a column of values and returns two columns: `data`, a struct of what the schema describes, and `error`, null for a
row that could be decoded and otherwise what is wrong with it; its `data` is null then. Nothing is dropped, nothing is guessed.

Decoding looks at types only. Whether a value keeps to the other rules of its schema (required fields of JSON, patterns, ranges) is
for the broker to say when a topic is bound to the schema, or for a step that validates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from braidmq.schemas.schema import canonical_kind

ERROR: Final = pa.string()


class Decoder(Protocol):
    """From values to (data, error)."""

    @property
    def type(self) -> pa.StructType:
        """What `data` is."""
        ...

    def __call__(self, values: pa.Array) -> tuple[pa.Array, pa.Array]: ...


def decoder_of(kind: str, definition: bytes) -> Decoder:
    """The decoder for a definition of the registry. It is slow to make and meant to be kept."""
    match canonical_kind(kind):
        case "json":
            from braidmq.spark.decode_json import JsonDecoder

            return JsonDecoder(definition)
        case "avro":
            from braidmq.spark.decode_avro import avro_decoder

            return avro_decoder(definition)
        case _:
            from braidmq.spark.decode_proto import ProtobufDecoder

            return ProtobufDecoder(definition)


@dataclass(frozen=True, slots=True)
class Decoding:
    """A version of a schema, as it was when the query was planned. It can be pickled; a decoder cannot."""

    name: str
    kind: str
    version: int
    definition: bytes

    def decoder(self) -> Decoder:
        """The decoder; a process makes it once."""
        decoder = _made.get(self)
        if decoder is None:
            if len(_made) >= _MADE_MAX:
                del _made[next(iter(_made))]
            decoder = _made[self] = decoder_of(self.kind, self.definition)
        return decoder


_MADE_MAX: Final = 32
_made: dict[Decoding, Decoder] = {}


def no_errors(rows: int) -> pa.Array:
    return pa.nulls(rows, ERROR)


def hot_column(kind: pa.DataType, rows: int, valid: bytes, ends: bytes, cells: bytes) -> pa.Array:
    """A column as `hot.avro_columns` and `hot.json_columns` return it."""
    there = np.frombuffer(valid, np.uint8)
    nulls = len(there) - int(np.count_nonzero(there))
    mask = pa.py_buffer(np.packbits(there, bitorder="little")) if nulls else None
    if ends:
        return pa.Array.from_buffers(kind, rows, [mask, pa.py_buffer(ends), pa.py_buffer(cells)], nulls)
    if pa.types.is_boolean(kind):
        cells = np.packbits(np.frombuffer(cells, np.uint8), bitorder="little").tobytes()
    return pa.Array.from_buffers(kind, rows, [mask, pa.py_buffer(cells)], nulls)


UNFIT: Final = (ValueError, ArithmeticError, TypeError)
"""What conversions raise about a value that a type cannot hold: Arrow's and Python's own. OverflowError is an ArithmeticError."""


def row_by_row(values: pa.Array, kind: pa.DataType, decode: Callable[[bytes], object]) -> tuple[pa.Array, pa.Array]:
    """The long way: `decode` returns a row as Python values, or raises one of `UNFIT`."""
    rows: list[object] = []
    errors: dict[int, str] = {}
    for number, value in enumerate(values.to_pylist()):
        row = None
        if value is None:
            errors[number] = "there is no value"
        else:
            try:
                row = decode(value)
            except UNFIT as fault:
                errors[number] = str(fault) or type(fault).__name__
        rows.append(row)
    return fitted(rows, errors, lambda some: pa.array(some, kind))


def fitted(rows: list[Any], errors: dict[int, str], column: Callable[[list[Any]], pa.Array]) -> tuple[pa.Array, pa.Array]:
    """Rows as a column, with their errors. Where a row holds something that its type cannot (a time in the year 300,000, a
    decimal of too many digits), that row is an error, and the others are not."""
    try:
        data = column(rows)
    except UNFIT:
        for number, row in enumerate(rows):
            try:
                column([row])
            except UNFIT as fault:
                rows[number] = None
                errors[number] = str(fault) or type(fault).__name__
        data = column(rows)
    if not errors:
        return data, no_errors(len(rows))
    return data, pa.array([errors.get(number) for number in range(len(rows))], ERROR)
