"""Whole batches in plain Python: their checksum, their shape, building, stamping and decoding them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.hot import layout

Buffer = bytes | bytearray | memoryview

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C of `data`, continuing from `value`."""
    return _checksum()(data, value)


@cache
def _checksum() -> Callable[[Buffer, int], int]:
    """The package is loaded when it is needed: the compiled part does without."""
    import crc32c as package

    function: Callable[[Buffer, int], int] = package.crc32c
    return function


def fnv1a(key: bytes) -> int:
    """FNV-1a, 32 bits: the hash that gives a key its partition in every FlyMQ client."""
    h = 0x811C9DC5
    for byte in key:
        h = (h ^ byte) * 0x01000193 & 0xFFFFFFFF
    return h


def column_bytes(values: Sequence[int] | np.ndarray[Any, Any], kind: str) -> bytes:
    packed = np.array(values, kind).tobytes()
    return packed + bytes(layout.padded(len(packed)) - len(packed))


def assemble(
    flags: int, count: int, columns: list[bytes], rows: Buffer, attrs: bytes, *, base_offset: int = 0, leader_epoch: int = 0,
    timestamp: int = 0, producer_id: int = -1, base_sequence: int = -1, producer_epoch: int = -1,
) -> tuple[list[Buffer], int]:
    rows_at = layout.HEADER_BYTES + sum(map(len, columns))
    attrs_at = rows_at + len(rows)
    length = layout.padded(attrs_at + len(attrs))
    if length > limits.BATCH_BYTES_MAX:
        raise BraidError("INVALID_BATCH", reason=f"{length} bytes are over the limit of {limits.BATCH_BYTES_MAX}")
    tail = attrs + bytes(length - attrs_at - len(attrs))

    def header(checksum: int) -> bytes:
        return layout.HEADER.pack(
            layout.MAGIC, length, checksum, layout.VERSION, layout.CHECKSUM_CRC32C, flags, base_offset, count, leader_epoch,
            timestamp, timestamp, producer_id, base_sequence, producer_epoch, 0, 0, 0, rows_at, attrs_at, length,
        )

    head = b"".join([header(0), *columns])
    checksum = crc32c(tail, crc32c(rows, crc32c(memoryview(head)[layout.CHECKSUM_FROM :])))
    head = header(checksum) + head[layout.HEADER_BYTES :]
    return ([head, rows, tail] if tail else [head, rows]), length


def shape_fault(data: Buffer, position: int, stop: int) -> str:
    """Why the header at `position` cannot be believed, or "". Everything later code needs for its bounds is checked."""
    if stop - position < layout.HEADER_BYTES:
        return "header cut short"
    head = layout.read_header(data, position)
    if head.magic != layout.MAGIC:
        return "no batch here"
    if not layout.HEADER_BYTES <= head.length <= limits.BATCH_BYTES_MAX or head.length & 7:
        return "impossible length"
    if head.length > stop - position:
        return "batch cut short"
    if head.version != layout.VERSION:
        return "unknown version"
    if head.checksum_kind != layout.CHECKSUM_CRC32C:
        return "unknown checksum kind"
    if head.flags & ~layout.FLAGS_KNOWN:
        return "unknown flags"
    if not 0 < head.records <= limits.BATCH_RECORDS_MAX:
        return "impossible record count"
    if head.base_offset > layout.OFFSET_MAX:
        return "impossible offset"
    # A gap has nothing behind its header, however many offsets it stands for.
    columns = 0 if head.flags & layout.FLAG_CONTROL else layout.columns_bytes(head.records, head.flags)
    if head.rows_at != layout.HEADER_BYTES + columns:
        return "columns do not fit the record count"
    if head.attrs_at < head.rows_at or head.plain_length < head.attrs_at:
        return "rows do not fit the batch"
    if not head.flags & layout.FLAGS_OPAQUE and head.plain_length != head.length:
        return "rows do not fit the batch"
    return ""


def checksum_ok(data: memoryview, position: int, head: layout.BatchHeader) -> bool:
    return crc32c(data[position + layout.CHECKSUM_FROM : position + head.length]) == head.checksum


def encode_batch(
    keys: Sequence[bytes | None], values: Sequence[Buffer], attrs: Sequence[bytes] | None = None, producer_id: int = -1,
    producer_epoch: int = -1, base_sequence: int = -1,
) -> bytes:
    """A batch for PRODUCE_BATCH: offsets count from 0, the broker stamps the rest."""
    n = len(values)
    if not 0 < n <= limits.BATCH_RECORDS_MAX or len(keys) != n or (attrs is not None and len(attrs) != n):
        raise BraidError("INVALID_BATCH", reason="impossible record count")
    if not (-1 <= producer_id < 1 << 63 and -1 <= producer_epoch <= 0x7FFF and -1 <= base_sequence <= 0x7FFFFFFF):
        raise BraidError("INVALID_BATCH", reason="impossible producer id, epoch or sequence")
    rows = bytearray()
    positions: list[int] = []
    for i in range(n):
        key = keys[i] or b""
        positions.append(len(rows))
        rows += _U32.pack(len(key)) + key + _U32.pack(len(values[i]))
        rows += values[i]
        rows += _U64.pack(i)
    columns = [
        column_bytes(positions, "<u4"),
        column_bytes([len(key or b"") for key in keys], "<u4"),
        column_bytes([len(value) for value in values], "<u4"),
    ]
    flags = 0
    extra = b"".join(attrs) if attrs is not None else b""
    if attrs is not None and extra:
        flags = layout.FLAG_ATTRS
        at = 0
        attrs_at = []
        for block in attrs:
            attrs_at.append(at if block else layout.NO_ATTRS)
            at += len(block)
        columns.append(column_bytes(attrs_at, "<u4"))
    buffers, _ = assemble(
        flags, n, columns, rows, extra, producer_id=producer_id, base_sequence=base_sequence, producer_epoch=producer_epoch
    )
    return b"".join(buffers)


def stamp_batch(data: Buffer, base_offset: int, leader_epoch: int, timestamp: int) -> bytearray:
    """Check a producer's batch through and through, and give it its place in the log.

    Rows, columns and attrs must agree with each other, because readers are later served slices of them unseen.
    """
    result = bytearray(data)
    view = memoryview(result)
    fault = shape_fault(view, 0, len(view))
    if fault:
        raise BraidError("INVALID_BATCH", reason=fault)
    head = layout.read_header(view)
    if head.length != len(view):
        raise BraidError("INVALID_BATCH", reason="more than one batch")
    if head.flags & ~layout.FLAG_ATTRS:
        raise BraidError("INVALID_BATCH", reason=f"flags {head.flags:#06x} are not for producers")
    if not checksum_ok(view, 0, head):
        raise BraidError("INVALID_BATCH", reason="checksum mismatch")
    n = head.records
    column = layout.padded(4 * n)
    base = layout.HEADER_BYTES
    positions = np.frombuffer(view, "<u4", n, base).astype(np.int64)
    keys = np.frombuffer(view, "<u4", n, base + column).astype(np.int64)
    values = np.frombuffer(view, "<u4", n, base + 2 * column).astype(np.int64)
    sizes = keys + values + layout.ROW_OVERHEAD_BYTES
    ends = np.cumsum(sizes)
    rows_size = head.attrs_at - head.rows_at
    wrong = np.flatnonzero((positions != ends - sizes) | (ends > rows_size))
    octets = np.frombuffer(view, np.uint8)
    within = int(wrong[0]) if len(wrong) else n
    at = positions[:within] + head.rows_at
    differs = (_be32(octets, at) != keys[:within]) | (_be32(octets, at + 4 + keys[:within]) != values[:within])
    wrong = np.append(np.flatnonzero(differs), wrong[:1])
    if len(wrong):
        raise BraidError("INVALID_BATCH", reason=f"row {wrong[0]} does not fit its columns")
    if int(ends[-1]) != rows_size:
        raise BraidError("INVALID_BATCH", reason="rows do not fit the batch")
    if head.flags & layout.FLAG_ATTRS:
        _check_attrs(octets, np.frombuffer(view, "<u4", n, base + 3 * column), head)
    offsets = (np.arange(n, dtype=np.uint64) + np.uint64(base_offset)).astype(">u8").view(np.uint8).reshape(n, 8)
    octets[(at + 8 + keys + values)[:, None] + np.arange(8)] = offsets
    fields = head._replace(base_offset=base_offset, leader_epoch=leader_epoch, base_timestamp=timestamp, max_timestamp=timestamp)
    layout.HEADER.pack_into(result, 0, *fields)
    layout.HEADER.pack_into(result, 0, *fields._replace(checksum=crc32c(view[layout.CHECKSUM_FROM :])))
    return result


def _be32(octets: np.ndarray[Any, Any], at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return octets[at[:, None] + np.arange(4)].view(">u4").ravel().astype(np.int64)


def _check_attrs(octets: np.ndarray[Any, Any], column: np.ndarray[Any, Any], head: layout.BatchHeader) -> None:
    size = head.length - head.attrs_at
    for i, at in enumerate(column.tolist()):
        if at == layout.NO_ATTRS:
            continue
        start = head.attrs_at + at
        if at + 4 > size or at + 4 + int.from_bytes(octets[start : start + 4].tobytes(), "little") > size:
            raise BraidError("INVALID_BATCH", reason=f"attributes of record {i} lie outside the batch")


Make = Callable[[int, int, bytes | None, bytes, bytes], Any]


def decode_records(data: Buffer, from_offset: int, limit: int, make: Make) -> tuple[list[Any], int]:
    """Records of whole batches, from `from_offset` on and at most `limit`.

    `make(offset, timestamp, key, value, attrs)` builds each one. Returns them and the offset to go on from. A gap has no records;
    the offset moves past it.
    """
    view = memoryview(data)
    stop = len(view)
    position = 0
    records: list[Any] = []
    next_offset = from_offset
    while position < stop:
        fault = shape_fault(view, position, stop)
        if fault:
            raise BraidError("INVALID_BATCH", reason=fault)
        head = layout.read_header(view, position)
        if not checksum_ok(view, position, head):
            raise BraidError("INVALID_BATCH", reason="checksum mismatch")
        if head.flags & layout.FLAGS_OPAQUE:
            raise BraidError("INVALID_BATCH", reason="compressed or encrypted batches are for the broker")
        if head.flags & layout.FLAG_CONTROL:
            next_offset = max(next_offset, head.next_offset)
            position += head.length
            continue
        body = bytes(view[position : position + head.length])
        at = head.rows_at
        column = layout.padded(4 * head.records)
        stamps = layout.HEADER_BYTES + 3 * column
        for i in range(head.records):
            left = head.attrs_at - at
            key_size = _U32.unpack_from(body, at)[0] if left >= 16 else left
            if key_size > left - 16:
                raise BraidError("INVALID_BATCH", reason="a row runs past its batch")
            value_at = at + 4 + key_size
            value_size = _U32.unpack_from(body, value_at)[0]
            if value_size > left - 16 - key_size:
                raise BraidError("INVALID_BATCH", reason="a row runs past its batch")
            offset = head.base_offset + i
            if offset >= from_offset:
                if len(records) >= limit:
                    return records, next_offset
                timestamp = head.base_timestamp
                if head.flags & layout.FLAG_TIMESTAMPS:
                    timestamp = int.from_bytes(body[stamps + 8 * i : stamps + 8 * i + 8], "little", signed=True)
                key = body[at + 4 : value_at] or None
                value = body[value_at + 4 : value_at + 4 + value_size]
                records.append(make(offset, timestamp, key, value, _attrs_block(body, head, column, i)))
                next_offset = offset + 1
            at = value_at + 12 + value_size
        next_offset = max(next_offset, head.next_offset)
        position += head.length
    return records, next_offset


def _attrs_block(body: bytes, head: layout.BatchHeader, column: int, index: int) -> bytes:
    if not head.flags & layout.FLAG_ATTRS:
        return b""
    entry = head.rows_at - column + 4 * index
    at = int.from_bytes(body[entry : entry + 4], "little")
    if at == layout.NO_ATTRS:
        return b""
    start = head.attrs_at + at
    size = head.length - head.attrs_at
    if at + 4 > size:
        raise BraidError("INVALID_BATCH", reason="attributes lie outside the batch")
    end = at + 4 + int.from_bytes(body[start : start + 4], "little")
    if end > size:
        raise BraidError("INVALID_BATCH", reason="attributes lie outside the batch")
    return body[start : head.attrs_at + end]
