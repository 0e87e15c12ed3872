"""Producing in plain Python: rows on their way into a batch, and the parser that puts them there."""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

from braidmq.base import limits
from braidmq.hot import layout
from braidmq.hot.pure_batch import Buffer, assemble, column_bytes, fnv1a

NEED_MORE: Final = 0
OTHER_FRAME: Final = 1
FULL: Final = 2

_PLAIN_PRODUCE: Final = b"\xaf\x01\x01\x01"
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_PRODUCE_HEAD = struct.Struct(">IIH")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_SIZES = struct.Struct(">iI")
_ROW_BYTES_MAX: Final = limits.RECORD_BYTES_MAX + 8


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

    __slots__ = (
        "attrs", "attrs_at", "count", "dirty", "expiry", "key_sizes", "next_offset", "owner", "pieces", "rows_bytes", "value_sizes",
        "writable",
    )  # fmt: skip

    def __init__(self, owner: Any, next_offset: int) -> None:
        self.owner = owner
        self.next_offset = next_offset
        self.dirty = False
        self.writable = True
        self.reset()

    def append(self, key: bytes | None, value: Buffer, expiry: int = 0, attrs: bytes | None = None) -> int:
        """Add one record and return its offset. `attrs` is a whole attrs block."""
        offset = self.next_offset
        key = key or b""
        self.key_sizes.append(len(key))
        self.value_sizes.append(len(value))
        self.pieces += (_U32.pack(len(key)), key, _U32.pack(len(value)), bytes(value), _U64.pack(offset))
        self.rows_bytes += layout.ROW_OVERHEAD_BYTES + len(key) + len(value)
        if expiry:
            self.expiry[self.count] = expiry
        if attrs:
            self.attrs_at[self.count] = len(self.attrs)
            self.attrs += attrs
        self.count += 1
        self.next_offset = offset + 1
        return offset

    def seal(self, timestamp: int, leader_epoch: int) -> tuple[list[Buffer], int]:
        """The batch as buffers to write, in order, and its length. They are valid until `reset`."""
        n = self.count
        flags = (layout.FLAG_EXPIRY if self.expiry else 0) | (layout.FLAG_ATTRS if self.attrs_at else 0)
        keys = np.array(self.key_sizes, "<u4")
        values = np.array(self.value_sizes, "<u4")
        sizes = keys + values + np.uint32(layout.ROW_OVERHEAD_BYTES)
        positions = np.cumsum(sizes, dtype="<u4") - sizes
        columns = [column_bytes(positions, "<u4"), column_bytes(keys, "<u4"), column_bytes(values, "<u4")]
        if self.expiry:
            columns.append(column_bytes([self.expiry.get(i, 0) for i in range(n)], "<i8"))
        if self.attrs_at:
            columns.append(column_bytes([self.attrs_at.get(i, layout.NO_ATTRS) for i in range(n)], "<u4"))
        return assemble(
            flags, n, columns, b"".join(self.pieces), bytes(self.attrs), base_offset=self.next_offset - n,
            leader_epoch=leader_epoch, timestamp=timestamp,
        )

    def take(self, timestamp: int, leader_epoch: int) -> bytes:
        """The batch as one piece of bytes, leaving the accumulator empty."""
        sealed = b"".join(self.seal(timestamp, leader_epoch)[0])
        self.reset()
        return sealed

    def reset(self) -> None:
        """Forget the rows; `next_offset` stays."""
        self.count = 0
        self.rows_bytes = 0
        self.pieces: list[bytes] = []
        self.key_sizes: list[int] = []
        self.value_sizes: list[int] = []
        self.expiry: dict[int, int] = {}
        self.attrs_at: dict[int, int] = {}
        self.attrs = bytearray()


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
    view = memoryview(buffer)[start:stop]
    if len(view) >= 8 and bytes(view[:4]) != _PLAIN_PRODUCE:
        return start, 0, OTHER_FRAME
    # Slices of bytes are cheaper than slices of a view, so one copy of the run pays for itself.
    data = bytes(view)
    end = len(data)
    position = count = 0
    status = NEED_MORE
    route: Route | None = None
    name = b""
    answers: list[bytes] = []
    stamp = _I64.pack(now_ms)
    while end - position >= 8:
        if data[position : position + 4] != _PLAIN_PRODUCE:
            status = OTHER_FRAME
            break
        (length,) = _U32.unpack_from(data, position + 4)
        frame_end = position + 8 + length
        if frame_end > end:
            status = OTHER_FRAME if length > limits.FRAME_PAYLOAD_BYTES_MAX else NEED_MORE
            break
        status = OTHER_FRAME
        if length < 14:
            break
        key_at = position + 10 + (data[position + 8] << 8 | data[position + 9])
        if key_at + 12 > frame_end:
            break
        (key_size,) = _U32.unpack_from(data, key_at)
        value_at = key_at + 4 + key_size
        if value_at + 8 > frame_end:
            break
        (value_size,) = _U32.unpack_from(data, value_at)
        row_end = frame_end - 4
        if value_at + 4 + value_size != row_end or row_end - key_at > _ROW_BYTES_MAX:
            break
        frame_name = data[position + 10 : key_at]
        if route is None or frame_name != name:
            route = routes.get(frame_name)
            if route is None:
                break
            name = frame_name
            accumulators = route.accumulators
            partitions = len(accumulators)
            answer_head = _PRODUCE_HEAD.pack(0xAF010101, 30 + len(name), len(name)) + name
            if route.level > out.level:
                out.level = route.level
        (partition,) = _I32.unpack_from(data, row_end)
        in_turn = False
        if partition < 0:
            if partitions == 1:
                partition = 0
            elif key_size:
                partition = fnv1a(data[key_at + 4 : value_at]) % partitions
            else:
                partition = route.counter % partitions
                in_turn = True
        elif partition >= partitions:
            break
        accumulator = accumulators[partition]
        if not accumulator.writable:
            break
        row_bytes = row_end - key_at
        if accumulator.count and (
            accumulator.rows_bytes + row_bytes > limits.FLUSH_BYTES_TARGET or accumulator.count >= limits.BATCH_RECORDS_MAX
        ):
            status = FULL
            break
        if in_turn:
            route.counter += 1
        if not accumulator.dirty:
            accumulator.dirty = True
            dirty.append(accumulator)
        offset = _U64.pack(accumulator.next_offset)
        accumulator.pieces += (data[key_at:row_end], offset)
        accumulator.key_sizes.append(key_size)
        accumulator.value_sizes.append(value_size)
        accumulator.rows_bytes += row_bytes + 8
        accumulator.count += 1
        accumulator.next_offset += 1
        answers += (answer_head, _U32.pack(partition), offset, stamp, _SIZES.pack(key_size or -1, value_size))
        count += 1
        position = frame_end
        status = NEED_MORE
    out.data += b"".join(answers)
    out.frames += count
    return start + position, count, status
