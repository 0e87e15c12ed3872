"""The columns of a record, and how whole batches become them without a look at single records.

Fetched batches go through `hot.gather_columns`, which lays keys, values and attributes out as Arrow has them; what is left to do
here is to give those buffers a type. Only what was asked for is made: a query over `value` alone copies no keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from braidmq import hot
from braidmq.base.errors import BraidError
from braidmq.client.cipher import ValueCipher
from braidmq.log.attrs import TAG_HEADER, decode_attrs

HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

COLUMNS: Final = (
    ("topic", pa.string(), "string"),
    ("partition", pa.int32(), "int"),
    ("offset", pa.int64(), "bigint"),
    ("timestamp", pa.timestamp("us", "UTC"), "timestamp"),
    ("key", pa.binary(), "binary"),
    ("value", pa.binary(), "binary"),
    ("headers", HEADERS, "array<struct<key:string,value:binary>>"),
)
"""Names of what every record has, with their types in Arrow and in Spark."""

ROWS_AT_ONCE_MAX: Final = 65_536
"""Most rows of one Arrow batch: enough to make a batch cheap, few enough that the JVM holds little."""

RowFilter = Callable[[pa.RecordBatch], pa.Array]
"""Which rows of a batch are wanted."""

Decode = Callable[[pa.Array], tuple[pa.Array, pa.Array]]
"""From values to (data, error)."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """What some batches hold, as buffers."""

    rows: int
    next_offset: int
    offsets: bytes
    stamps: bytes
    key_ends: bytes
    keys: bytes
    value_ends: bytes
    values: bytes
    block_ends: bytes
    blocks: bytes


class Shaping:
    """Makes Arrow batches of one schema."""

    def __init__(
        self, schema: pa.Schema, cipher: ValueCipher | None = None, decode: Decode | None = None,
        row_filter: RowFilter | None = None,
    ) -> None:
        self._schema = schema
        names = set(schema.names)
        known = {name for name, _, _ in COLUMNS} | ({"data", "error"} if decode is not None else set())
        for name in names - known:
            reason = f"there is no column {name}; there are {', '.join(sorted(known))}"
            more = "" if decode else ", and with the option `schema` also data, error"
            raise BraidError("INVALID_ARGUMENT", reason=reason + more)
        self._cipher = cipher
        self._decode = decode
        self._row_filter = row_filter
        self.with_keys = "key" in names
        self._with_data = bool(names & {"data", "error"})
        self.with_values = "value" in names or self._with_data
        self.with_headers = "headers" in names

    def batches(self, topic: str, partition: int, data: bytes, start: int, end: int) -> tuple[list[pa.RecordBatch], int]:
        """Arrow batches of the records from `start` to before `end`, and the offset to go on from."""
        found = Gathered(*hot.gather_columns(data, start, end, self.with_keys, self.with_values, self.with_headers))
        if not found.rows:
            return [], found.next_offset
        whole = pa.RecordBatch.from_arrays(list(self._arrays(topic, partition, found)), schema=self._schema)
        if self._row_filter is not None:
            whole = whole.filter(self._row_filter(whole))
        return list(sliced(whole)), found.next_offset

    def _arrays(self, topic: str, partition: int, found: Gathered) -> Iterator[pa.Array]:
        rows = found.rows
        values = self._values(topic, partition, found) if self.with_values else None
        decoded, errors = self._decode(values) if self._decode is not None and self._with_data else (None, None)
        for field in self._schema:
            match field.name:
                case "topic":
                    column = topics_of(topic, rows)
                case "partition":
                    column = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(np.full(rows, partition, "<i4"))])
                case "offset":
                    column = pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(found.offsets)])
                case "timestamp":
                    micros = np.frombuffer(found.stamps, "<i8") * 1000
                    column = pa.Array.from_buffers(pa.timestamp("us", "UTC"), rows, [None, pa.py_buffer(micros)])
                case "key":
                    column = keys_of(rows, found.key_ends, found.keys)
                case "value":
                    column = values
                case "headers":
                    column = headers_of(rows, found.block_ends, found.blocks)
                case "data":
                    column = decoded
                case _:
                    column = errors
            yield column if column.type == field.type else column.cast(field.type)

    def _values(self, topic: str, partition: int, found: Gathered) -> pa.Array:
        values = pa.Array.from_buffers(pa.binary(), found.rows, [None, pa.py_buffer(found.value_ends), pa.py_buffer(found.values)])
        if self._cipher is None:
            return values
        # Every value has a nonce of its own, so here there is a loop, and only here.
        decrypt, offsets = self._cipher.decrypt, np.frombuffer(found.offsets, "<i8").tolist()
        plain = [decrypt(value, topic, partition, offset) for value, offset in zip(values.to_pylist(), offsets, strict=True)]
        return pa.array(plain, pa.binary())


def sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for at in range(0, batch.num_rows, ROWS_AT_ONCE_MAX):
        yield batch.slice(at, ROWS_AT_ONCE_MAX)


def topics_of(topic: str, rows: int) -> pa.Array:
    # Not by `pa.scalar`: whatever makes Arrow look at a Python value makes it import pandas, which takes half a second of every
    # new worker.
    name = topic.encode()
    ends: Any = np.arange(rows + 1, dtype="<i4") * np.int32(len(name))
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(name * rows)])


def keys_of(rows: int, ends: bytes, data: bytes) -> pa.Array:
    """Keys; a record without one has null."""
    places = np.frombuffer(ends, "<i4")
    has = places[1:] != places[:-1]
    nulls = rows - int(np.count_nonzero(has))
    valid = pa.py_buffer(np.packbits(has, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(pa.binary(), rows, [valid, pa.py_buffer(ends), pa.py_buffer(data)], nulls)


def headers_of(rows: int, ends: bytes, blocks: bytes) -> pa.Array:
    """Headers in their order, which may repeat; a record without any has an empty list."""
    if not ends:
        return pa.Array.from_buffers(
            HEADERS, rows, [None, pa.py_buffer(bytes(4 * (rows + 1)))], children=[pa.nulls(0, HEADERS.value_type)]
        )
    places = np.frombuffer(ends, "<i4").tolist()
    names: list[str] = []
    values: list[bytes] = []
    counts = np.zeros(rows + 1, "<i4")
    for row in np.flatnonzero(np.diff(np.frombuffer(ends, "<i4"))).tolist():
        for tag, data in decode_attrs(blocks[places[row] : places[row + 1]]):
            if tag != TAG_HEADER:
                continue
            size = int.from_bytes(data[:2], "little") if len(data) >= 2 else len(data)
            if size > len(data) - 2:
                raise BraidError("INVALID_BATCH", reason="a header name runs past its attribute")
            names.append(data[2 : 2 + size].decode(errors="replace"))
            values.append(data[2 + size :])
            counts[row + 1] += 1
    columns = [pa.array(names, pa.string()), pa.array(values, pa.binary())]
    pairs = pa.StructArray.from_arrays(columns, fields=list(HEADERS.value_type))
    lists: Any = np.cumsum(counts, dtype="<i4")
    return pa.Array.from_buffers(HEADERS, rows, [None, pa.py_buffer(lists)], children=[pairs])
