"""Walking stored batches in plain Python: checking them and finding the rows a reader asked for."""

from __future__ import annotations

import struct
import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from braidmq.base.errors import BraidError
from braidmq.hot import layout
from braidmq.hot.expiring import expired, expiry_column
from braidmq.hot.pure_batch import Buffer, checksum_ok, shape_fault

COLLECTED: Final = 0
SPECIAL: Final = 1
DAMAGED: Final = 2
LIMITED: Final = 3
EXPIRED: Final = 4

_FLAGS_SPECIAL: Final = layout.FLAGS_OPAQUE | layout.FLAG_CONTROL
_U32 = struct.Struct(">I")
_INDEX_ENTRY = struct.Struct("<QQq")
_SMALL_SLICE: Final = 4096

Producers = list[tuple[int, int, int, int, int, int]]
Now = Callable[[], int]


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
        if not checksum_ok(data, position, head):
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


def verify_batches(buffer: Buffer, start: int, stop: int, until: int = sys.maxsize) -> tuple[int, str]:
    """Check every batch that begins before `until`; returns where the first bad one begins, or where it ended, and why.

    The reason is empty when all is well.
    """
    data = memoryview(buffer)
    stop = min(stop, len(data))
    position = start
    while position < min(stop, until):
        reason = shape_fault(data, position, stop)
        if reason:
            return position, reason
        head = layout.read_header(data, position)
        if not checksum_ok(data, position, head):
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


class _Living:
    """Where the living records of one batch begin and end."""

    def __init__(self, data: memoryview, position: int, head: layout.BatchHeader, now_ms: int) -> None:
        self.position = position
        self._records = head.records
        self._gone = expired(expiry_column(data, head, position), now_ms)
        self._edges: list[int] = (np.flatnonzero(self._gone[1:] != self._gone[:-1]) + 1).tolist()

    def run_from(self, index: int) -> tuple[int, int]:
        """The first run of living records at `index` or later, as its first and the one after its last."""
        first = self._edge_after(index) if self._gone[index] else index
        return first, self._edge_after(first)

    def _edge_after(self, index: int) -> int:
        at = bisect_right(self._edges, index)
        return self._edges[at] if at < len(self._edges) else self._records


def collect_rows(
    buffer: Buffer, start: int, stop: int, offset: int, records_max: int, bytes_max: int, now: Now | None = None
) -> tuple[list[Buffer], int, int, int, int, int]:
    """Rows from `offset` on, as slices of `buffer` (small ones joined), without touching single records.

    At least one row is taken however large it is. Expired rows are passed over; `now` is asked for the time at most once, and only
    when there is a row that may expire. Without it such rows end the walk. Returns the slices, their size, the number of
    records, the next offset, the end of the last batch looked at, and why it stopped.
    """
    data = memoryview(buffer)
    stop = min(stop, len(data))
    position = start
    slices: list[Buffer] = []
    small = bytearray()
    taken = count = 0
    next_offset = offset
    status = COLLECTED
    now_ms: int | None = None
    living: _Living | None = None
    while position < stop and count < records_max:
        if shape_fault(data, position, stop):
            status = DAMAGED
            break
        head = layout.read_header(data, position)
        if head.next_offset <= next_offset:
            position += head.length
            continue
        expiring = bool(head.flags & layout.FLAG_EXPIRY)
        if head.flags & _FLAGS_SPECIAL or (expiring and now is None):
            status = SPECIAL
            break
        first, last = max(0, next_offset - head.base_offset), head.records
        if expiring:
            if living is None or living.position != position:
                if now_ms is None:
                    assert now is not None
                    now_ms = now()
                living = _Living(data, position, head, now_ms)
            first, last = living.run_from(first)
            next_offset = head.base_offset + first
            if first == head.records:
                position += head.length
                continue
        here = min(last - first, records_max - count)
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
        if first + here < last:
            position += head.length
            status = LIMITED
            break
        if last == head.records:
            position += head.length
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
            if len(out) + body + 8 > size:
                raise BraidError("INVALID_BATCH", reason="rows are larger than announced")
            out += data[at + body : at + body + 8]
            out += data[at : at + body]
            at += body + 8
    if len(out) != size:
        raise BraidError("INVALID_BATCH", reason="rows are smaller than announced")
    return bytes(out)


def span_batches(
    buffer: Buffer, start: int, stop: int, offset: int, bytes_max: int, now: Now | None = None
) -> tuple[int, int, int, int]:
    """The whole batches that hold `offset` and what follows, up to `bytes_max` but at least one.

    With `now` it stops before a batch of which some record is expired. Returns where they begin and end, the next offset after
    them, and why the walk stopped.
    """
    data = memoryview(buffer)
    stop = min(stop, len(data))
    position, first = start, -1
    next_offset = offset
    status = COLLECTED
    now_ms: int | None = None
    while position < stop:
        if shape_fault(data, position, stop):
            status = DAMAGED
            break
        head = layout.read_header(data, position)
        if first < 0 and head.next_offset > offset:
            first = position
        if first >= 0:
            if head.flags & layout.FLAG_EXPIRY and now is not None and not head.flags & _FLAGS_SPECIAL:
                if now_ms is None:
                    now_ms = now()
                if expired(expiry_column(data, head, position), now_ms).any():
                    status = EXPIRED
                    break
            if position > first and position + head.length - first > bytes_max:
                status = LIMITED
                break
            next_offset = head.next_offset
        position += head.length
    return (position if first < 0 else first), position, next_offset, status
