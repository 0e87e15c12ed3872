"""Reading a partition: rows and whole batches from an offset on, as slices of the log.

Nothing is served that was not checked: the batches of a window are verified before a walk over them adds to an answer.
Readers see what lies below the high watermark. A range that is not in memory is handed back as `Cold`, for the caller to
warm up off the loop; damage is an error that names the place, unless there is something to return before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from braidmq import hot
from braidmq.base import limits
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.hot import layout
from braidmq.hot.expiring import extended_gap, living
from braidmq.log.batch_codec import BatchCodec, plain_run_end
from braidmq.log.opaque_walk import Walk, walk_opaque
from braidmq.log.segment import Segment

_WINDOW_BYTES_MIN: Final = 64 * limits.KIB
_ROW_BYTES_LIKELY: Final = 256


@dataclass(slots=True)
class Rows:
    """Rows of one read: slices ready for the wire, their size, how many, and where to go on."""

    slices: list[Buffer]
    size: int
    count: int
    next_offset: int


@dataclass(slots=True)
class Batches:
    """Whole batches of one read."""

    slices: list[Buffer]
    size: int
    next_offset: int


@dataclass(slots=True)
class Cold:
    """A read that would wait for the disk, or decode a large batch: `warm_up` off the loop, then read again."""

    segment: Segment
    position: int
    stop: int
    decode: Callable[[], None] | None = None
    resume_at: int = -1
    """Where to go on when the read had passed over many expired records; -1 for where it began."""

    def warm_up(self) -> None:
        self.segment.warm_up(self.position, self.stop)
        if self.decode is not None:
            self.decode()


class PartitionReads:
    """What of a partition reading needs; `PartitionLog` keeps it."""

    __slots__ = ()

    _now: Callable[[], int] | None
    """What expiry is measured by. Without it nothing that may expire is served."""
    codec: BatchCodec | None
    """None where no batch was ever compressed or encrypted."""
    topic: str
    partition: int
    segments: list[Segment]
    _bases: list[int]
    log_start: int
    log_end: int
    """Offset after the last written record."""
    high_watermark: int
    """Offset after the last record that readers may see."""
    _visible_in: Segment | None
    _visible_to: int

    def readable_bytes(self, segment: Segment) -> int:
        """How many bytes of `segment` lie below the high watermark."""
        visible = self._visible_in
        if visible is None or segment.base_offset > visible.base_offset:
            return 0
        return self._visible_to if segment is visible else segment.size

    def read_rows(self, offset: int, records_max: int, bytes_max: int, *, warmed: bool = False) -> Rows | Cold:
        """Rows from `offset` (at least `log_start`) on, without touching single records."""
        result = Rows([], 0, 0, offset)
        passed = 0

        def walk(view: memoryview, start: int) -> tuple[int, int]:
            nonlocal passed
            slices, size, count, next_offset, end, status = hot.collect_rows(
                view, start, len(view), result.next_offset, records_max - result.count, bytes_max - result.size, self._now
            )
            if result.count and size > bytes_max - result.size:
                # Only the first row of an answer may be larger than asked for.
                return start, hot.LIMITED
            result.slices += slices
            result.size += size
            result.count += count
            if not result.count and next_offset > offset:
                passed += end - start
                if passed > limits.EXPIRED_SCAN_BYTES_MAX:
                    status = hot.LIMITED
            result.next_offset = next_offset
            return end, status

        likely_bytes = max(_WINDOW_BYTES_MIN, min(bytes_max, records_max * _ROW_BYTES_LIKELY))
        cold = self._walk(result, likely_bytes, walk, warmed)
        if result.count or (cold is None and passed <= limits.EXPIRED_SCAN_BYTES_MAX):
            return result
        if cold is None:
            cold = Cold(self.segments[-1], 0, 0)
        if result.next_offset > offset:
            cold.resume_at = result.next_offset
        return cold

    def read_batches(self, offset: int, bytes_max: int, *, warmed: bool = False, raw: bool = False) -> Batches | Cold:
        """Whole batches from the one with `offset` on, neither compressed nor encrypted; at least one, however large.

        A batch of which some records are expired comes without them (`braidmq.hot.expiring`), unless `raw` is asked for.
        """
        result = Batches([], 0, offset)
        passed = 0
        now = None if raw else self._now
        look_at_bytes = -1 if self.codec is None else bytes_max + limits.INDEX_INTERVAL_BYTES

        def walk(view: memoryview, start: int) -> tuple[int, int]:
            nonlocal passed
            stop = len(view)
            if look_at_bytes >= 0:
                stop = plain_run_end(view, start, look_at_bytes)
                if stop == start < len(view):
                    return start, hot.SPECIAL
            while True:
                first, end, next_offset, status = hot.span_batches(
                    view, start, stop, result.next_offset, bytes_max - result.size, now
                )
                if result.size and end - first > bytes_max - result.size:
                    # Only the first batch of an answer may be larger than asked for.
                    return start, hot.LIMITED
                if end > first:
                    result.slices.append(view[first:end])
                    result.size += end - first
                    result.next_offset = next_offset
                if status != hot.EXPIRED:
                    return end, status
                if result.size > bytes_max or passed > limits.EXPIRED_SCAN_BYTES_MAX:
                    return end, hot.LIMITED
                start = end + layout.read_header(view, end).length
                passed += start - end
                self._add_living(result, view[end:start])
                if start >= stop:
                    return start, hot.COLLECTED

        cold = self._walk(result, bytes_max + limits.INDEX_INTERVAL_BYTES, walk, warmed)
        return result if cold is None or result.size else cold

    def read_stored(self, offset: int, bytes_max: int, *, warmed: bool = False) -> Batches | Cold:
        """Whole batches from the one that begins at `offset` on, the bytes that lie on the disk; at least one, however large.

        For other replicas: also what readers do not see yet.
        """
        result = Batches([], 0, offset)

        def walk(view: memoryview, start: int) -> tuple[int, int]:
            first, end, next_offset, status = hot.span_batches(view, start, len(view), result.next_offset, bytes_max - result.size)
            if result.size and end - first > bytes_max - result.size:
                return start, hot.LIMITED
            if end > first:
                result.slices.append(view[first:end])
                result.size += end - first
                result.next_offset = next_offset
            return end, status

        cold = self._walk(result, bytes_max + limits.INDEX_INTERVAL_BYTES, walk, warmed, stored=True)
        return result if cold is None or result.size else cold

    def _add_living(self, result: Batches, batch: memoryview) -> None:
        """Add what lives of a batch of which some records are expired."""
        assert self._now is not None
        for part in living(batch, self._now()):
            joined = extended_gap(result.slices[-1], part) if result.slices else None
            if joined is not None:
                result.slices[-1] = joined
            else:
                result.slices.append(part)
                result.size += len(part)
        result.next_offset = layout.read_header(batch).next_offset

    def _walk(self, result: Rows | Batches, likely_bytes: int, walk: Walk, warmed: bool, *, stored: bool = False) -> Cold | None:
        """Lead `walk` over the readable batches from `result.next_offset` on until it has enough.

        `walk(view, start)` adds to `result` from undamaged batches and returns where it stopped and why. A range that is
        not in memory ends the walk and is returned; damage ends it, and is raised when there is nothing to return before it. With
        `stored` all that was written is readable.
        """
        if result.next_offset >= (self.log_end if stored else self.high_watermark) or not self.segments:
            return None
        if result.next_offset < self.log_start:
            # Retention may have moved on while a cold range was brought in.
            raise BraidError(
                "OFFSET_OUT_OF_RANGE", offset=result.next_offset, topic=self.topic, partition=self.partition,
                oldest=self.log_start, newest=self.high_watermark,
            )
        number = bisect_right(self._bases, result.next_offset) - 1
        first = self.segments[number]
        if not warmed and not first.can_find(result.next_offset):
            return Cold(first, 0, 0, partial(first.prepare, result.next_offset, likely_bytes))
        position = first.position_of(result.next_offset)
        while number < len(self.segments):
            segment = self.segments[number]
            stop = segment.size if stored else self.readable_bytes(segment)
            while position < stop:
                likely = min(stop, position + likely_bytes)
                if not warmed and segment.is_cold(position, likely):
                    return Cold(segment, position, likely)
                limit = likely
                while True:
                    # A copied window may cut the first batch off; only with all of the segment in view is that damage.
                    view, start = segment.window(position, limit, stop)
                    good = segment.verified_end(view, start, position, start + limit - position)
                    end, status = walk(view[:good], start)
                    if end > start or status in (hot.LIMITED, hot.SPECIAL) or limit == stop:
                        break
                    limit = _wider(view, start, position, limit, stop)
                if status == hot.SPECIAL and self.codec is not None:
                    place = position + end - start
                    end, status, decode = walk_opaque(
                        result, self.codec, segment.log_path, view[:good], end, place, likely_bytes, walk, warmed
                    )
                    if decode is not None:
                        return Cold(segment, position, position, decode)
                if status == hot.LIMITED:
                    return None
                if end == start:
                    if result.size:
                        return None
                    raise self._unreadable(segment, position, stop, status, result.next_offset)
                position += end - start
            number += 1
            position = 0
            if number < len(self.segments) and result.next_offset < self.segments[number].base_offset:
                if result.size:
                    return None
                missing = f"offsets {result.next_offset} to {self.segments[number].base_offset - 1} are missing"
                raise segment.damage(segment.size, missing, result.next_offset)
        return None

    def _unreadable(self, segment: Segment, position: int, stop: int, status: int, offset: int) -> BraidError:
        if status == hot.SPECIAL:
            feature = "compression, encryption or expiry"
            return BraidError("FORMAT_UNSUPPORTED", path=segment.log_path, position=position, feature=feature)
        view, start = segment.window(position, stop, stop)
        _, reason = hot.verify_batches(view, start, len(view))
        return segment.damage(position, reason or "rows do not fit the batch", offset)


def _wider(view: memoryview, start: int, position: int, limit: int, stop: int) -> int:
    """How far a window has to reach to hold the batch at its beginning: as its header says, or else to the end."""
    if len(view) - start < layout.HEADER_BYTES:
        return stop
    end = position + layout.read_header(view, start).length
    return end if limit < end < stop else stop
