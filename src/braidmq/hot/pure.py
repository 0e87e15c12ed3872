"""What the hot loops do, in plain Python: the description of the compiled twin, and its stand-in without a compiler.

Nothing here trusts a length it read. Three results say why a loop stopped; their names are in `braidmq.hot`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import crc32c as _crc32c
import numpy as np

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.hot import layout

Buffer = bytes | bytearray | memoryview

NEED_MORE: Final = 0
OTHER_FRAME: Final = 1
FULL: Final = 2
COLLECTED: Final = 0
SPECIAL: Final = 1
DAMAGED: Final = 2
LIMITED: Final = 3

_FLAGS_SPECIAL: Final = layout.FLAGS_OPAQUE | layout.FLAG_EXPIRY | layout.FLAG_CONTROL
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_PRODUCE_HEAD = struct.Struct(">IIH")
_META = struct.Struct(">iQqiI")
_INDEX_ENTRY = struct.Struct("<QQq")
_SMALL_SLICE: Final = 4096


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C of `data`, continuing from `value`."""
    result: int = _crc32c.crc32c(data, value)
    return result


def fnv1a(key: bytes) -> int:
    """FNV-1a, 32 bits: the hash that gives a key its partition in every FlyMQ client."""
    h = 0x811C9DC5
    for byte in key:
        h = (h ^ byte) * 0x01000193 & 0xFFFFFFFF
    return h


class ByteBuffer:
    """Bytes that grow at the end; what a session's answers are written into.

    `level` is the highest durability level among the routes that wrote here, `frames` how many answers there are.
    """

    __slots__ = ("data", "frames", "level")

    def __init__(self) -> None:
        self.data = bytearray()
        self.level = 0
        self.frames = 0

    def __len__(self) -> int:
        return len(self.data)

    def take(self) -> bytes:
        """What was written, leaving the buffer empty."""
        taken = bytes(self.data)
        self.data.clear()
        self.level = self.frames = 0
        return taken


class Accumulator:
    """Rows of one partition on their way into a batch.

    `owner` is whoever writes the batch, `dirty` whether that owner knows of it, `writable` whether the parser may add
    rows; `next_offset` is the offset the next row gets.
    """

    __slots__ = ("_attrs", "_attrs_at", "_expiry", "_keys", "_positions", "_rows", "_values", "count", "dirty", "next_offset",
                 "owner", "writable")

    def __init__(self, owner: Any, next_offset: int) -> None:
        self.owner = owner
        self.next_offset = next_offset
        self.dirty = False
        self.writable = True
        self.reset()

    @property
    def rows_bytes(self) -> int:
        return len(self._rows)

    def append(self, key: bytes | None, value: Buffer, expiry: int = 0, attrs: bytes | None = None) -> int:
        """Add one record and return its offset. `attrs` is a whole attrs block."""
        offset = self.next_offset
        key = key or b""
        self._positions.append(len(self._rows))
        self._keys.append(len(key))
        self._values.append(len(value))
        self._rows += _U32.pack(len(key)) + key + _U32.pack(len(value))
        self._rows += value
        self._rows += _U64.pack(offset)
        if expiry:
            self._expiry[self.count] = expiry
        if attrs:
            self._attrs_at[self.count] = len(self._attrs)
            self._attrs += attrs
        self.count += 1
        self.next_offset = offset + 1
        return offset

    def seal(self, timestamp: int, leader_epoch: int) -> tuple[list[Buffer], int]:
        """The batch as buffers to write, in order, and its length. They are valid until `reset`."""
        n = self.count
        flags = (layout.FLAG_EXPIRY if self._expiry else 0) | (layout.FLAG_ATTRS if self._attrs_at else 0)
        columns = [_column(self._positions, "<u4"), _column(self._keys, "<u4"), _column(self._values, "<u4")]
        if self._expiry:
            columns.append(_column([self._expiry.get(i, 0) for i in range(n)], "<i8"))
        if self._attrs_at:
            columns.append(_column([self._attrs_at.get(i, layout.NO_ATTRS) for i in range(n)], "<u4"))
        return _assemble(
            flags, n, columns, self._rows, bytes(self._attrs), base_offset=self.next_offset - n, leader_epoch=leader_epoch,
            timestamp=timestamp,
        )

    def take(self, timestamp: int, leader_epoch: int) -> bytes:
        """The batch as one piece of bytes, leaving the accumulator empty."""
        sealed = b"".join(self.seal(timestamp, leader_epoch)[0])
        self.reset()
        return sealed

    def reset(self) -> None:
        """Forget the rows; `next_offset` stays."""
        self.count = 0
        self._rows = bytearray()
        self._positions: list[int] = []
        self._keys: list[int] = []
        self._values: list[int] = []
        self._expiry: dict[int, int] = {}
        self._attrs_at: dict[int, int] = {}
        self._attrs = bytearray()


def _column(values: Sequence[int], kind: str) -> bytes:
    packed = np.array(values, kind).tobytes()
    return packed + bytes(layout.padded(len(packed)) - len(packed))


def _assemble(
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


class Route:
    """A topic as the parser sees it: its partitions' accumulators, its durability level, its round-robin counter."""

    __slots__ = ("accumulators", "counter", "level", "topic")

    def __init__(self, topic: bytes, accumulators: list[Accumulator], level: int) -> None:
        self.topic = topic
        self.accumulators = accumulators
        self.level = level
        self.counter = 0


class RouteTable:
    """Topic name to route."""

    __slots__ = ("_routes",)

    def __init__(self) -> None:
        self._routes: dict[bytes, Route] = {}

    def __len__(self) -> int:
        return len(self._routes)

    def get(self, topic: bytes) -> Route | None:
        return self._routes.get(topic)

    def add(self, route: Route) -> None:
        self._routes[route.topic] = route

    def remove(self, topic: bytes) -> None:
        self._routes.pop(topic, None)

    def clear(self) -> None:
        self._routes.clear()


def parse_produce(
    buffer: Buffer, start: int, stop: int, routes: RouteTable, now_ms: int, dirty: list[Accumulator], out: ByteBuffer
) -> tuple[int, int, int]:
    """Turn a run of plain PRODUCE frames into rows and answers.

    Takes whole frames from `buffer[start:stop]` as long as they are plain (flags 1, exact length) and their topic has a
    route; adds each record to its partition's accumulator (those not yet `dirty` are marked and appended to `dirty`) and
    its answer to `out`. Returns where it stopped, how many records it took, and why it stopped.
    """
    position = start
    count = 0
    known = routes._routes
    replies = out.data
    data = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
    stop = min(stop, len(data))
    status = NEED_MORE
    while stop - position >= 8:
        if stop - position < 10:
            status = NEED_MORE if _U32.unpack_from(data, position)[0] == 0xAF010101 else OTHER_FRAME
            if status == NEED_MORE and _U32.unpack_from(data, position + 4)[0] < 14:
                status = OTHER_FRAME
            break
        magic, length, name_size = _PRODUCE_HEAD.unpack_from(data, position)
        if magic != 0xAF010101:
            status = OTHER_FRAME
            break
        frame_end = position + 8 + length
        if frame_end > stop:
            status = OTHER_FRAME if length > limits.FRAME_PAYLOAD_BYTES_MAX else NEED_MORE
            break
        status = OTHER_FRAME
        if length < name_size + 14:
            break
        key_at = position + 10 + name_size
        key_size = _U32.unpack_from(data, key_at)[0]
        if key_size + 12 > frame_end - key_at:
            break
        value_at = key_at + 4 + key_size
        value_size = _U32.unpack_from(data, value_at)[0]
        if value_size + 8 != frame_end - value_at:
            break
        row_end = frame_end - 4
        if row_end - key_at > limits.RECORD_BYTES_MAX + 8:
            break
        name = bytes(data[position + 10 : key_at])
        route = known.get(name)
        if route is None:
            break
        if route.level > out.level:
            out.level = route.level
        partition = int.from_bytes(data[row_end:frame_end], "big", signed=True)
        partitions = len(route.accumulators)
        turned = False
        if partition < 0:
            if partitions == 1:
                partition = 0
            elif key_size:
                partition = fnv1a(bytes(data[key_at + 4 : value_at])) % partitions
            else:
                partition = route.counter % partitions
                route.counter += 1
                turned = True
        elif partition >= partitions:
            break
        accumulator = route.accumulators[partition]
        if not accumulator.writable:
            break
        rows = accumulator._rows
        at = len(rows)
        if accumulator.count and (
            at + row_end - key_at > limits.FLUSH_BYTES_TARGET or accumulator.count >= limits.BATCH_RECORDS_MAX
        ):
            status = FULL
            if turned:
                route.counter -= 1
            break
        if not accumulator.dirty:
            accumulator.dirty = True
            dirty.append(accumulator)
        offset = accumulator.next_offset
        accumulator._positions.append(at)
        accumulator._keys.append(key_size)
        accumulator._values.append(value_size)
        rows += data[key_at:row_end]
        rows += _U64.pack(offset)
        accumulator.count += 1
        accumulator.next_offset = offset + 1
        replies += _PRODUCE_HEAD.pack(0xAF010101, 30 + name_size, name_size)
        replies += name
        replies += _META.pack(partition, offset, now_ms, key_size or -1, value_size)
        count += 1
        position = frame_end
        status = NEED_MORE
    out.frames += count
    return position, count, status


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
    if head.rows_at != layout.HEADER_BYTES + layout.columns_bytes(head.records, head.flags):
        return "columns do not fit the record count"
    if head.attrs_at < head.rows_at or head.plain_length < head.attrs_at:
        return "rows do not fit the batch"
    if not head.flags & layout.FLAGS_OPAQUE and head.plain_length != head.length:
        return "rows do not fit the batch"
    return ""


def _checksum_ok(data: memoryview, position: int, head: layout.BatchHeader) -> bool:
    return crc32c(data[position + layout.CHECKSUM_FROM : position + head.length]) == head.checksum


Producers = list[tuple[int, int, int, int, int, int]]


def scan_batches(
    buffer: Buffer, start: int, stop: int, next_offset: int, index_interval: int
) -> tuple[int, int, str, bytes, int, int, Producers, int]:
    """Walk and check batches, as recovery does.

    Stops at the first batch that is damaged or (with `next_offset` not negative) does not continue the offsets. Returns
    where it stopped, the next offset, why it stopped ("" at the end), the index entries, the first and the highest
    timestamp (-1 without batches), what idempotent producers wrote, and the number of batches.
    """
    data = memoryview(buffer)
    stop = min(stop, len(data))
    position, indexed = start, start - index_interval
    index = bytearray()
    producers: Producers = []
    first_timestamp = max_timestamp = -1
    batches = 0
    reason = ""
    while position < stop:
        reason = shape_fault(data, position, stop)
        if reason:
            break
        head = layout.read_header(data, position)
        if not _checksum_ok(data, position, head):
            reason = "checksum mismatch"
            break
        if 0 <= next_offset != head.base_offset:
            reason = f"offset {head.base_offset} where {next_offset} comes next"
            break
        max_timestamp = max(max_timestamp, head.max_timestamp)
        if first_timestamp < 0:
            first_timestamp = head.base_timestamp
        if position - indexed >= index_interval:
            index += _INDEX_ENTRY.pack(head.base_offset, position, max_timestamp)
            indexed = position
        if head.producer_id >= 0:
            producers.append(
                (head.producer_id, head.producer_epoch, head.base_sequence, head.records, head.base_offset, head.max_timestamp)
            )
        next_offset = head.next_offset
        batches += 1
        position += head.length
    return position, next_offset, reason, bytes(index), first_timestamp, max_timestamp, producers, batches


def verify_batches(buffer: Buffer, start: int, stop: int) -> tuple[int, str]:
    """Check every batch; returns where the first bad one begins (or the end) and why ("" when all is well)."""
    data = memoryview(buffer)
    stop = min(stop, len(data))
    position = start
    while position < stop:
        reason = shape_fault(data, position, stop)
        if reason:
            return position, reason
        head = layout.read_header(data, position)
        if not _checksum_ok(data, position, head):
            return position, "checksum mismatch"
        position += head.length
    return position, ""


def _row_start(data: memoryview, position: int, head: layout.BatchHeader, index: int) -> int:
    if index >= head.records:
        return head.attrs_at
    at = int.from_bytes(data[position + layout.HEADER_BYTES + 4 * index : position + layout.HEADER_BYTES + 4 * index + 4], "little")
    return head.rows_at + at if at <= head.attrs_at - head.rows_at else -1


def _rows_within(data: memoryview, position: int, head: layout.BatchHeader, first: int, most: int, bytes_max: int) -> int:
    start = _row_start(data, position, head, first)
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        at = _row_start(data, position, head, first + middle)
        if at < 0 or at - start > bytes_max:
            high = middle - 1
        else:
            low = middle
    return low


def collect_rows(
    buffer: Buffer, start: int, stop: int, offset: int, records_max: int, bytes_max: int
) -> tuple[list[Buffer], int, int, int, int, int]:
    """Rows from `offset` on, as slices of `buffer` (small ones joined), without touching single records.

    At least one row is taken however large it is. Returns the slices, their size, the number of records, the next offset,
    the end of the last batch looked at, and why it stopped.
    """
    data = memoryview(buffer)
    stop = min(stop, len(data))
    position = start
    slices: list[Buffer] = []
    small = bytearray()
    taken = count = 0
    next_offset = offset
    status = COLLECTED
    while position < stop and count < records_max:
        if shape_fault(data, position, stop):
            status = DAMAGED
            break
        head = layout.read_header(data, position)
        if head.next_offset <= next_offset:
            position += head.length
            continue
        if head.flags & _FLAGS_SPECIAL:
            status = SPECIAL
            break
        first = max(0, next_offset - head.base_offset)
        here = min(head.records - first, records_max - count)
        row_from = _row_start(data, position, head, first)
        if taken + _row_start(data, position, head, first + here) - row_from > bytes_max:
            here = _rows_within(data, position, head, first, here, bytes_max - taken)
            if here == 0:
                if count:
                    status = LIMITED
                    break
                here = 1
        row_to = _row_start(data, position, head, first + here)
        if row_from < 0 or row_to < row_from:
            status = DAMAGED
            break
        rows = data[position + row_from : position + row_to]
        if len(rows) <= _SMALL_SLICE:
            small += rows
        else:
            if small:
                slices.append(bytes(small))
                small.clear()
            slices.append(rows)
        taken += len(rows)
        count += here
        next_offset = head.base_offset + first + here
        position += head.length
        if first + here < head.records:
            status = LIMITED
            break
    if count >= records_max:
        status = LIMITED
    if small:
        slices.append(bytes(small))
    return slices, taken, count, next_offset, position, status


def reorder_rows(slices: Sequence[Buffer], size: int) -> bytes:
    """Rows as FETCH items of the `v126` dialect: the offset moves from the end of each row to its start."""
    out = bytearray()
    for part in slices:
        data = memoryview(part)
        at = 0
        while at < len(data):
            left = len(data) - at
            key_size = _U32.unpack_from(data, at)[0] if left >= 16 else left
            if key_size > left - 16:
                raise BraidError("INVALID_BATCH", reason="a row runs past its batch")
            value_size = _U32.unpack_from(data, at + 4 + key_size)[0]
            if value_size > left - 16 - key_size:
                raise BraidError("INVALID_BATCH", reason="a row runs past its batch")
            body = 8 + key_size + value_size
            out += data[at + body : at + body + 8]
            out += data[at : at + body]
            at += body + 8
    if len(out) != size:
        raise BraidError("INVALID_BATCH", reason="rows are larger than announced" if len(out) > size else "rows are smaller than announced")
    return bytes(out)


def span_batches(buffer: Buffer, start: int, stop: int, offset: int, bytes_max: int) -> tuple[int, int, int, int]:
    """The whole batches that hold `offset` and what follows, up to `bytes_max` but at least one.

    Returns where they begin and end, the next offset after them, and why the walk stopped.
    """
    data = memoryview(buffer)
    stop = min(stop, len(data))
    position, first = start, -1
    next_offset = offset
    status = COLLECTED
    while position < stop:
        if shape_fault(data, position, stop):
            status = DAMAGED
            break
        head = layout.read_header(data, position)
        if first < 0 and head.next_offset > offset:
            first = position
        if first >= 0:
            if position > first and position + head.length - first > bytes_max:
                status = LIMITED
                break
            next_offset = head.next_offset
        position += head.length
    return (position if first < 0 else first), position, next_offset, status


def encode_batch(
    keys: Sequence[bytes | None], values: Sequence[Buffer], attrs: Sequence[bytes] | None = None, producer_id: int = -1,
    producer_epoch: int = -1, base_sequence: int = -1,
) -> bytes:
    """A batch for PRODUCE_BATCH: offsets count from 0, the broker stamps the rest."""
    n = len(values)
    if not 0 < n <= limits.BATCH_RECORDS_MAX or len(keys) != n or (attrs is not None and len(attrs) != n):
        raise BraidError("INVALID_BATCH", reason="impossible record count")
    rows = bytearray()
    positions: list[int] = []
    for i in range(n):
        key = keys[i] or b""
        positions.append(len(rows))
        rows += _U32.pack(len(key)) + key + _U32.pack(len(values[i]))
        rows += values[i]
        rows += _U64.pack(i)
    columns = [_column(positions, "<u4"), _column([len(key or b"") for key in keys], "<u4"), _column([len(v) for v in values], "<u4")]
    flags = 0
    extra = b"".join(attrs) if attrs is not None else b""
    if attrs is not None and extra:
        flags = layout.FLAG_ATTRS
        at = 0
        attrs_at = []
        for block in attrs:
            attrs_at.append(at if block else layout.NO_ATTRS)
            at += len(block)
        columns.append(_column(attrs_at, "<u4"))
    buffers, _ = _assemble(
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
    if not _checksum_ok(view, 0, head):
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
    if not len(wrong):
        at = positions + head.rows_at
        wrong = np.flatnonzero((_be32(octets, at) != keys) | (_be32(octets, at + 4 + keys) != values))
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

    `make(offset, timestamp, key, value, attrs)` builds each one. Returns them and the offset to go on from.
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
        if not _checksum_ok(view, position, head):
            raise BraidError("INVALID_BATCH", reason="checksum mismatch")
        if head.flags & layout.FLAGS_OPAQUE:
            raise BraidError("INVALID_BATCH", reason="compressed or encrypted batches are for the broker")
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
                records.append(make(offset, timestamp, body[at + 4 : value_at] or None, body[value_at + 4 : value_at + 4 + value_size],
                                    _attrs_block(body, head, column, i)))
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
