"""Rows of a DataFrame to batches of the broker's format, by columns.

A row goes to the partition that its column `partition` names, else to the one of its key (as every producer of BraidMQ chooses it),
else to whichever this task is filling at the moment. Rows of one task with the same key keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.client.cipher import ValueCipher
from braidmq.client.sync import Client
from braidmq.log.attrs import TAG_HEADER, encode_attrs
from braidmq.spark.options import Options

PACK_BYTES: Final = 2 * limits.MIB
"""About how many bytes go into one batch."""

_TYPES: Final = {
    "topic": ("string",), "partition": ("int", "bigint", "smallint", "tinyint"), "key": ("binary", "string"),
    "value": ("binary", "string"), "headers": ("array<struct<key:string,value:binary>>",),
}  # fmt: skip


Cells = tuple[Any, Any]
"""A column of bytes: where each cell ends, and all of them."""


class Packed(NamedTuple):
    topic: str
    partition: int
    batch: bytes
    records: int


class Packing:
    def __init__(self, options: Options, client: Client) -> None:
        self._topic: str | None = options.get("topic")
        self._client = client
        self._partitions: dict[str, int] = {}
        key = options.get("encryptionKey")
        self._cipher = ValueCipher(key) if key else None
        context = TaskContext.get()
        self._keyless = context.partitionId() if context is not None else 0

    @staticmethod
    def check(options: Options, schema: StructType) -> None:
        """Refuse columns that cannot be written, before a task does."""
        names = schema.fieldNames()
        for field in schema.fields:
            allowed = _TYPES.get(field.name)
            if allowed is None:
                reason = f"the column {field.name} cannot be written; columns are {', '.join(_TYPES)}"
                raise BraidError("INVALID_ARGUMENT", reason=reason)
            if field.dataType.simpleString() not in allowed:
                reason = f"the column {field.name} is {field.dataType.simpleString()}, not {' or '.join(allowed)}"
                raise BraidError("INVALID_ARGUMENT", reason=reason)
        if "value" not in names:
            raise BraidError("INVALID_ARGUMENT", reason="there is no column `value`")
        if "topic" not in names and not options.has("topic"):
            raise BraidError("INVALID_ARGUMENT", reason="there is neither a column nor an option `topic`")

    def pack_all(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[Packed]:
        """All rows. Small batches of Spark are put together first: what the broker handles is batches, not rows."""
        waiting: list[pa.RecordBatch] = []
        size = 0
        for batch in iterator:
            if not batch.num_rows:
                continue
            waiting.append(batch)
            size += batch.nbytes
            if size >= PACK_BYTES:
                yield from self._add(waiting)
                waiting, size = [], 0
        if waiting:
            yield from self._add(waiting)

    def _add(self, batches: list[pa.RecordBatch]) -> Iterator[Packed]:
        batch = batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        columns = {name: batch.column(name) for name in batch.schema.names}
        for topic, rows in self._by_topic(columns, batch.num_rows):
            yield from self._pack(topic, rows, columns)

    def _by_topic(self, columns: dict[str, pa.Array], count: int) -> Iterator[tuple[str, Any]]:
        everything = np.arange(count, dtype="<i4")
        if "topic" not in columns:
            assert self._topic is not None
            yield self._topic, everything
            return
        codes = columns["topic"].dictionary_encode()
        numbers = codes.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        for code, name in [(-1, self._topic), *enumerate(codes.dictionary.to_pylist())]:
            rows = everything[numbers == code]
            if len(rows):
                if not name:
                    raise BraidError("INVALID_ARGUMENT", reason="a row has no topic, and there is no option `topic`")
                yield name, rows

    def _pack(self, topic: str, rows: Any, columns: dict[str, pa.Array]) -> Iterator[Packed]:
        values = _cells(self._encrypted(columns["value"]))
        keys: Cells | None = _cells(columns["key"]) if "key" in columns else None
        attrs: Cells | None = (
            _attrs(columns["headers"]) if "headers" in columns else _cells(columns["attrs"]) if "attrs" in columns else None
        )
        key_ends, key_data = keys or (None, None)
        attr_ends, attr_data = attrs or (None, None)
        sizes = _sizes(values) + (0 if keys is None else _sizes(keys)) + (0 if attrs is None else _sizes(attrs))
        for partition, chosen in self._by_partition(topic, rows, keys, columns.get("partition")):
            for piece in _pieces(chosen, sizes[chosen]):
                packed = hot.encode_columns(piece, key_ends, key_data, *values, attr_ends, attr_data)
                yield Packed(topic, partition, packed, len(piece))

    def _encrypted(self, values: pa.Array) -> pa.Array:
        if self._cipher is None:
            return values
        plain = values.cast(pa.binary()).fill_null(b"").to_pylist()
        return pa.array([self._cipher.encrypt(value) for value in plain], pa.binary())

    def _by_partition(self, topic: str, rows: Any, keys: Any, asked: pa.Array | None) -> Iterator[tuple[int, Any]]:
        count = self._count(topic)
        chosen = np.full(len(rows), -1, "<i8")
        if keys is not None:
            hashes = np.frombuffer(hot.hash_cells(*keys), "<u4")[rows]
            chosen = np.where(_sizes(keys)[rows] > 0, hashes.astype("<i8") % count, chosen)
        if asked is not None:
            wanted = asked.fill_null(-1).to_numpy(zero_copy_only=False).astype("<i8")[rows]
            wrong = wanted[wanted >= count]
            if len(wrong):
                raise BraidError("PARTITION_NOT_FOUND", partition=int(wrong[0]))
            chosen = np.where(wanted >= 0, wanted, chosen)
        # What may go anywhere goes to one partition a batch, the next one to the next.
        chosen[chosen < 0] = self._keyless % count
        self._keyless += 1
        for partition in np.unique(chosen).tolist():
            yield partition, rows[chosen == partition]

    def _count(self, topic: str) -> int:
        count = self._partitions.get(topic)
        if count is None:
            count = self._partitions[topic] = self._client.partitions_for_writing(topic)
        return count


def _cells(column: pa.Array) -> tuple[Any, Any]:
    """Ends and bytes of a column of strings or bytes; what is null is empty."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        column = column.cast(pa.binary())
    if column.null_count:
        column = column.fill_null(b"" if pa.types.is_binary(column.type) else "")
    _, ends, data = column.buffers()
    places = np.frombuffer(ends, "<i4")[column.offset : column.offset + len(column) + 1] if ends is not None else np.zeros(1, "<i4")
    return places, data if data is not None else b""


def _sizes(cells: tuple[Any, Any]) -> Any:
    return np.diff(cells[0]).astype("<i8")


def _pieces(rows: Any, sizes: Any) -> Iterator[Any]:
    """Rows in runs of about PACK_BYTES, each of at least one row."""
    ends = np.cumsum(sizes + 16)
    at = 0
    while at < len(rows):
        base = int(ends[at - 1]) if at else 0
        stop = max(at + 1, int(np.searchsorted(ends, base + PACK_BYTES, side="right")))
        stop = min(stop, at + limits.BATCH_RECORDS_MAX)
        yield np.ascontiguousarray(rows[at:stop], dtype="<i4")
        at = stop


def _attrs(headers: pa.Array) -> tuple[Any, Any] | None:
    """Attribute blocks of a column of headers; None where no row has any."""
    # Slow to import, and readers load this module too.
    import pyarrow.compute as pc

    if not pc.any(pc.greater(pc.list_value_length(headers), 0)).as_py():
        return None
    blocks = [encode_attrs(_header(**pair) for pair in row) if row else b"" for row in headers.to_pylist()]
    return _cells(pa.array(blocks, pa.binary()))


def _header(key: str | None, value: bytes | None) -> tuple[int, bytes]:
    name = (key or "").encode()
    if len(name) > 0xFFFF:
        raise BraidError("INVALID_ARGUMENT", reason="a header name is longer than 65535 bytes")
    return TAG_HEADER, len(name).to_bytes(2, "little") + name + (value or b"")
