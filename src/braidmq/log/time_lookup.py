"""Time to offset and back, through the sparse time index of each segment.

The wall clock may jump, so timestamps of a log need not rise. What is asked for is exact all the same: the smallest offset
whose timestamp is at least the given one. An index holds the highest timestamp so far, which never falls, so it can be
bisected; then at most one index interval of batch headers and one batch are looked at. Segments whose newest record is too
old are passed over, one comparison each.

Reads that would wait for the disk are handed back as something to `warm_up` off the loop, as for every other read. Every batch
that has a say in the answer is checked first; damage is an error that names the place, never another offset.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from braidmq import hot
from braidmq.base import limits
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.hot import layout
from braidmq.log.partition import PartitionLog
from braidmq.log.partition_reads import Cold
from braidmq.log.segment import Segment

_WINDOW_BYTES: Final = limits.INDEX_INTERVAL_BYTES + layout.HEADER_BYTES
"""A batch begins less than one interval behind the index entry before it."""


@dataclass(slots=True)
class ColdIndexes:
    """Indexes of segments that are not at hand: `warm_up` off the loop, then look again."""

    segments: list[Segment]

    def warm_up(self) -> None:
        for segment in self.segments:
            segment.prepare_index()


def offset_for_time(log: PartitionLog, timestamp: int, *, warmed: bool = False) -> int | Cold | ColdIndexes:
    """The smallest readable offset whose timestamp is at least `timestamp`; the end of the log when there is none."""
    if not warmed:
        cold = [segment for segment in log.segments if not segment.has_index]
        if cold:
            return ColdIndexes(cold)
    for segment in log.segments:
        stop = log.readable_bytes(segment)
        # The index of the newest segment knows batches that nobody may see yet; `stop` ends the walk before them.
        if segment.index.max_timestamp < timestamp or stop == 0:
            continue
        position = too_old = segment.index.position_of_time(timestamp)
        while position < stop:
            head = _header_at(segment, position, stop, warmed)
            if isinstance(head, Cold):
                return head
            # Of the batch at an index entry the index says that it is too old; of all others only they themselves do.
            if position > too_old or position == 0 or head.max_timestamp >= timestamp:
                found = _first_in_batch(log, segment, position, head, timestamp, warmed)
                if found is not None:
                    return found
            position += head.length
    return log.high_watermark


def timestamp_at(log: PartitionLog, offset: int, *, warmed: bool = False) -> tuple[int, int] | Cold | ColdIndexes:
    """The timestamp of the record with `offset`, which must be readable, and the first offset that may have another.

    It is a figure to show, so the header is believed without the checksum of a batch that may be megabytes long. In a batch
    that is compressed or encrypted every record counts as being as old as the first.
    """
    number = bisect_right(log.segments, offset, key=_base_offset) - 1
    segment = log.segments[number]
    if not (warmed or segment.can_find(offset)):
        return ColdIndexes([segment])
    stop = log.readable_bytes(segment)
    position = segment.position_of(offset)
    likely = min(stop, position + _WINDOW_BYTES)
    if not warmed and segment.is_cold(position, likely):
        return Cold(segment, position, likely)
    view, start = segment.window(position, likely, stop)
    first, end, _, _ = hot.span_batches(view, start, len(view), offset, 1)
    # Where the segment is not mapped, the batch may begin in the window and end behind it: then header by header.
    head = layout.read_header(view, first) if end > first else None
    position += first - start
    while head is None:
        if position >= stop:
            raise segment.damage(position, "a record is missing", offset)
        header = _header_at(segment, position, stop, warmed)
        if isinstance(header, Cold):
            return header
        if header.next_offset > offset:
            head = header
        else:
            position += header.length
    if not head.flags & layout.FLAG_TIMESTAMPS or head.flags & layout.FLAGS_OPAQUE or offset < head.base_offset:
        return head.base_timestamp, head.next_offset
    at = position + _timestamps_at(head) + 8 * (offset - head.base_offset)
    if not warmed and segment.is_cold(at, at + 8):
        return Cold(segment, at, at + 8)
    view, start = segment.window(at, at + 8, stop)
    return int.from_bytes(view[start : start + 8], "little", signed=True), offset + 1


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _timestamps_at(head: layout.BatchHeader) -> int:
    """Where the timestamps of a batch that has them begin, from its start."""
    return layout.HEADER_BYTES + 3 * layout.padded(4 * head.records)


def _header_at(segment: Segment, position: int, stop: int, warmed: bool) -> layout.BatchHeader | Cold:
    likely = min(stop, position + _WINDOW_BYTES)
    if not warmed and segment.is_cold(position, likely):
        return Cold(segment, position, likely)
    if stop - position < layout.HEADER_BYTES:
        raise segment.damage(position, "header cut short")
    view, start = segment.window(position, position + layout.HEADER_BYTES, stop)
    head = layout.read_header(view, start)
    if head.magic != layout.MAGIC or not layout.HEADER_BYTES <= head.length <= stop - position or head.records == 0:
        raise segment.damage(position, "no batch here", "unknown")
    return head


def _first_in_batch(
    log: PartitionLog, segment: Segment, position: int, head: layout.BatchHeader, timestamp: int, warmed: bool
) -> int | Cold | None:
    """The first offset of the batch that is new enough, after a check of the batch; None when none is."""
    end = position + head.length
    if not warmed and segment.is_cold(position, end):
        return Cold(segment, position, end)
    view, start = segment.window(position, end, end)
    if segment.verified_end(view, start, position, start + 1) < start + head.length:
        raise segment.damage(position, "checksum mismatch", head.base_offset)
    if head.max_timestamp < timestamp:
        return None
    if not head.flags & layout.FLAG_TIMESTAMPS:
        return head.base_offset
    batch: Buffer = view[start:]
    if head.flags & layout.FLAGS_OPAQUE:
        codec, path = log.codec, segment.log_path
        if codec is None:
            raise BraidError("FORMAT_UNSUPPORTED", path=path, position=position, feature="compression or encryption")
        if not warmed and codec.known(path, position) is None:
            return Cold(segment, position, end, partial(codec.decode_ahead, view[start:], path, position, 1))
        batch = codec.decoded(view[start:], path, position)
    stamps = np.frombuffer(batch, "<i8", head.records, _timestamps_at(head))
    fitting = np.flatnonzero(stamps >= timestamp)
    return head.base_offset + int(fitting[0]) if len(fitting) else None
