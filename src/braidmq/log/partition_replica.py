"""A partition as one of several replicas: who may write, what came from the leader, what is cut off, and how far readers see.

On one machine nothing here takes part: `gate` is None, what is durable is visible. In a cluster each log has a gate. It is told
when something was written, which the other replicas lack, and when that is durable here; how far readers see is decided by it
(`advance_to`), for that depends on the others.

* The **leader** writes batches with its epoch. Losing the lead, or the replicas that it needs, fails everybody who waits for
  records that readers do not see yet: whether these survive is not known here.
* A **follower** takes batches as the leader stored them (`stage_replica`): the same bytes, compressed or encrypted as they are.
  Its own are the index, the table of producers and the table of epochs, so it can lead at any moment.
* What a follower has and the leader has not is **cut off** (`Truncation`). A file that somebody may have mapped never shrinks:
  what stays is copied, synced, and takes the old name in one step. A crash at any point leaves the log whole, cut or not. What
  readers saw is never cut off, at least not at level `fsync` and above: that would be the loss of an acknowledged record, and is
  refused.

A replica that starts does not know how far readers saw, only that it was at least up to its last checkpoint. Checkpoints speak of
no more than that, so a cut never makes one untrue.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from braidmq import hot
from braidmq.base import limits
from braidmq.base.disk import Buffer, Disk
from braidmq.base.errors import BraidError
from braidmq.hot import layout
from braidmq.log.epochs import EpochTable, epochs_between
from braidmq.log.expiry_cursor import ExpiryCursor
from braidmq.log.index import SparseIndex
from braidmq.log.level import Level
from braidmq.log.partition_reads import PartitionReads
from braidmq.log.producers import ProducerTable
from braidmq.log.segment import ScannedBatches, Segment

if TYPE_CHECKING:
    from braidmq.log.partition import LogSettings, PartitionLog

WhenVisible = Callable[[BraidError | None], None]

_MARKS_MAX: Final = 1024
"""Places of flushes that are remembered until readers see them; a place that is forgotten is found by the index."""


_LOOK_BACK_BYTES: Final = 256 * limits.MIB
"""How far before a cut producers are looked for of which nothing else is remembered."""


class Gate(Protocol):
    """Who decides how far readers of a replicated partition see."""

    def written(self, log: PartitionLog) -> None:
        """There is something that the other replicas lack."""

    def flushed(self, log: PartitionLog) -> None:
        """Up to `log.flushed_end` it is as durable here as its level promises."""


class ClosedGate:
    """The gate of a replica whose part in the cluster is not known yet: nothing more becomes visible."""

    def written(self, log: PartitionLog) -> None:
        pass

    def flushed(self, log: PartitionLog) -> None:
        pass


CLOSED_GATE: Final = ClosedGate()


class PartitionReplica(PartitionReads):
    """What of a partition replication needs; `PartitionLog` keeps it."""

    __slots__ = (
        "_bases", "_flush_waiters", "_given_up", "_marks", "_replica", "_staged_bytes", "_visible_in", "_visible_to", "epochs",
        "expiry_cursor", "flushed_end", "gate", "high_watermark", "in_line", "leader_epoch", "log_end", "log_start", "refusal",
        "segments",
    )  # fmt: skip

    _disk: Disk
    settings: LogSettings
    directory: str
    producers: ProducerTable
    expiry_cursor: ExpiryCursor | None
    accumulator: hot.Accumulator
    failure: BraidError | None
    removed: bool
    leader_epoch: int
    _staged_bytes: int
    _waiters: deque[tuple[int, WhenVisible]]
    _tails: dict[object, Callable[[], None]]

    gate: Gate | None
    epochs: EpochTable
    refusal: BraidError | None
    """What writers are told while this replica may not take anything in."""
    in_line: bool
    """Whether earlier records wait to be appended first, so that the parser may not append its own; `broker/away.py` has them."""
    flushed_end: int
    """With a gate: the offset after the last record that is as durable here as the level promises."""
    _marks: deque[tuple[int, Segment, int]]
    """Where flushes ended that readers do not see yet: offset, segment, position."""
    _replica: list[ScannedBatches]
    _given_up: BraidError | None
    """Why records that were taken in will not be written, until the turn's commit has been told."""
    _flush_waiters: deque[tuple[int, WhenVisible]]

    def _init_replica(self) -> None:
        self.gate = self.refusal = self._given_up = None
        self.in_line = False
        self.epochs = EpochTable()
        self.flushed_end = 0
        self._marks = deque()
        self._replica = []
        self._flush_waiters = deque()

    def fail(self, reason: str) -> BraidError:
        raise NotImplementedError

    def _take_back(self) -> None:
        raise NotImplementedError

    def _fail_waiters(self, error: BraidError) -> None:
        raise NotImplementedError

    # --- roles

    def keep_gate(self, gate: Gate, watermark: int) -> None:
        """Let `gate` decide from now on what readers see; they see up to `watermark`, as far as the log goes."""
        self.gate = gate
        self.flushed_end = self.log_end
        self.high_watermark = max(self.log_start, min(watermark, self.log_end))
        if self.segments:
            self._visible_in, self._visible_to = self._place_of(self.high_watermark)

    def lead(self, epoch: int) -> None:
        """Take records in, in the name of `epoch`."""
        assert epoch >= self.epochs.latest, "a leader's epoch is the newest"
        if epoch != self.leader_epoch or self.refusal is not None:
            self._give_up(BraidError("LEADER_MOVED", topic=self.topic, partition=self.partition), self.log_end)
        self.leader_epoch = epoch
        self.accept()

    def follow(self, epoch: int, refusal: BraidError) -> None:
        """Take nothing in but what the leader of `epoch` stored. Writers are told `refusal`."""
        self.leader_epoch = max(epoch, self.leader_epoch)
        self.refuse(refusal, BraidError("LEADER_MOVED", topic=self.topic, partition=self.partition))

    def refuse(self, refusal: BraidError, waiting: BraidError) -> None:
        """Take nothing in for now. Those who wait for records that readers do not see yet are told `waiting`."""
        self.refusal = refusal
        self.accumulator.writable = False
        self._give_up(waiting, self.high_watermark)

    def accept(self) -> None:
        """Take records in again."""
        self.refusal = None
        self._let_parser_append()

    def keep_in_line(self, in_line: bool) -> None:
        """Have the parser leave everything to the general way, or no longer."""
        self.in_line = in_line
        self._let_parser_append()

    def _let_parser_append(self) -> None:
        takes = self.failure is None and self.refusal is None and not self.removed
        self.accumulator.writable = takes and not self.in_line

    def _give_up(self, error: BraidError, waiting_above: int) -> None:
        """Forget what was not written yet, and fail everybody who waits for what lies behind `waiting_above`."""
        if self.accumulator.dirty:
            self._given_up = error
        self._take_back()
        failed: list[WhenVisible] = []
        for waiters in (self._waiters, self._flush_waiters):
            kept = [waiter for waiter in waiters if waiter[0] <= waiting_above]
            failed += [callback for end, callback in waiters if end > waiting_above]
            waiters.clear()
            waiters.extend(kept)
        for callback in failed:
            callback(error)

    # --- what comes from the leader

    def stage_replica(self, data: Buffer) -> int:
        """Take the leader's batches, as it stored them, into the next write; returns the offset after them.

        They must be whole and undamaged, continue the log, and be of no earlier epoch than what is there.
        """
        if self.failure is not None:
            raise self.failure
        if self.removed:
            raise BraidError("TOPIC_NOT_FOUND", topic=self.topic)
        assert not self._pending_rows, "a follower takes nothing else in"
        expected = self.accumulator.next_offset
        view = memoryview(data)
        end, next_offset, reason, entries, first_ms, max_ms, producers, _ = hot.scan_batches(
            view, 0, len(view), expected, limits.INDEX_INTERVAL_BYTES
        )
        if reason or not view:
            raise BraidError("INVALID_BATCH", reason=f"at byte {end} of what continues offset {expected}: {reason or 'nothing'}")
        latest = self._replica[-1].epochs[-1][0] if self._replica and self._replica[-1].epochs else self.epochs.latest
        epochs = epochs_between(view, 0, end, SparseIndex(entries).positions_before(end), latest)
        if epochs and (epochs[0][0] < latest or epochs[-1][0] > self.leader_epoch):
            reason = f"a batch of epoch {epochs[-1][0]} behind {latest}, where epoch {self.leader_epoch} leads"
            raise BraidError("INVALID_BATCH", reason=reason)
        for row in producers:
            self.producers.record(*row)
        self._staged_bytes += len(view)
        self._replica.append(ScannedBatches(data, next_offset, entries, first_ms, max_ms, epochs))
        self.accumulator.next_offset = next_offset
        return next_offset

    @property
    def _pending_rows(self) -> int:
        return self.accumulator.count

    # --- what readers see

    def _note_flushed(self, offset: int, segment: Segment, position: int) -> None:
        """A flush is as durable as it has to be. One of bytes that were cut off meanwhile says nothing."""
        number = bisect_right(self._bases, segment.base_offset) - 1
        if number < 0 or self.segments[number] is not segment or position > segment.size or self.failure is not None:
            return
        if offset > self.flushed_end:
            self.flushed_end = offset
            self._marks.append((offset, segment, position))
            if len(self._marks) > _MARKS_MAX:
                self._marks.popleft()

    def _tell_flushed(self) -> None:
        waiters = self._flush_waiters
        while waiters and waiters[0][0] <= self.flushed_end and self.failure is None:
            waiters.popleft()[1](None)
        if self.gate is not None:
            self.gate.flushed(self)  # type: ignore[arg-type]

    def advance_to(self, offset: int) -> None:
        """Let readers see up to `offset`, the end of a batch, as far as it is durable here; tell who waits for it."""
        offset = min(offset, self.flushed_end)
        if offset <= self.high_watermark or self.failure is not None or self.removed:
            return
        self._visible_in, self._visible_to = self._place_of(offset)
        self.high_watermark = offset
        self._tell_watermark()

    def _tell_watermark(self) -> None:
        waiters = self._waiters
        while waiters and waiters[0][0] <= self.high_watermark and self.failure is None:
            waiters.popleft()[1](None)
        if self._tails:
            for wake in list(self._tails.values()):
                wake()

    def when_durable(self, end_offset: int, callback: WhenVisible) -> None:
        """Call back once everything below `end_offset` is as durable as its level promises, or when it never will be."""
        if self.gate is None or self.settings.level >= Level.QUORUM:
            self.when_visible(end_offset, callback)
        elif self.failure is not None:
            callback(self.failure)
        elif end_offset <= self.flushed_end:
            callback(None)
        else:
            self._flush_waiters.append((end_offset, callback))

    def when_visible(self, end_offset: int, callback: WhenVisible) -> None:
        """Call back once everything below `end_offset` is durable and readable, or when it never will be."""
        if self.failure is not None:
            callback(self.failure)
        elif end_offset <= self.high_watermark:
            callback(None)
        elif self.refusal is not None:
            callback(self.refusal)
        else:
            self._waiters.append((end_offset, callback))

    @property
    def reach(self) -> int:
        """The highest offset that a reader may ask for. A replica may have to find out yet how far others saw already."""
        return self.high_watermark if self.gate is None else self.log_end

    def _place_of(self, offset: int) -> tuple[Segment, int]:
        """The segment and position where the batch ends that `offset` follows; where none does, of the one it lies in."""
        if offset >= self.log_end:
            self._marks.clear()
            return self.segments[-1], self.segments[-1].size
        marks = self._marks
        while marks and marks[0][0] < offset:
            marks.popleft()
        if marks and marks[0][0] == offset:
            _, segment, position = marks.popleft()
            return segment, position
        segment = self.segments[max(0, bisect_right(self._bases, offset - 1) - 1)]
        position = segment.position_of(offset - 1) if offset > segment.base_offset else 0
        while position < segment.size:
            view, start = segment.window(position, position + layout.HEADER_BYTES, position + layout.HEADER_BYTES)
            head = layout.read_header(view, start)
            if head.next_offset > offset:
                break
            position += head.length
        return segment, position

    # --- cutting off

    def truncate(self, offset: int) -> None:
        """Cut off everything from `offset` on. Blocks; `Truncation` does the same beside the loop."""
        cut = Truncation(self, offset)
        cut.copy()
        cut.finish()

    def reset(self, offset: int) -> None:
        """Forget all records and go on, empty, at `offset`: the leader has nothing any more of what would continue this log."""
        self._take_back()
        try:
            # The newest first, so that what a crash leaves is the beginning of the log and no hole in it.
            for segment in reversed(self.segments):
                segment.remove()
        except OSError as fault:
            raise self.fail(f"the log could not be emptied: {fault}") from fault
        if self.codec is not None:
            for segment in self.segments:
                self.codec.forget(segment.log_path)
        self.segments, self._bases = [], []
        self._visible_in, self._visible_to = None, 0
        self._marks.clear()
        self.producers.clear()
        self.epochs.clear()
        if self.expiry_cursor is not None:
            self.expiry_cursor = ExpiryCursor(offset)
        self.log_start = self.log_end = self.high_watermark = self.flushed_end = self.accumulator.next_offset = offset
        for wake in list(self._tails.values()):
            wake()

    def offset_at_cut(self, offset: int) -> tuple[int, int, int]:
        """(number of the segment, position in it, offset) of the last batch boundary that is not behind `offset`."""
        number = max(0, bisect_right(self._bases, offset) - 1)
        segment = self.segments[number]
        if offset >= self.log_end:
            return number, segment.size, self.log_end
        position, end = segment.position_of(offset), segment.base_offset
        while position < segment.size:
            view, start = segment.window(position, position + layout.HEADER_BYTES, position + layout.HEADER_BYTES)
            head = layout.read_header(view, start)
            end = head.base_offset
            if head.next_offset > offset:
                break
            position, end = position + head.length, head.next_offset
        return number, position, end


class Truncation:
    """A cut: `copy` beside the loop, then `finish` on it. Nothing may be appended between the two."""

    def __init__(self, log: PartitionReplica, offset: int) -> None:
        self._log = log
        log._take_back()
        self._number, self._position, self.end = 0, 0, log.log_end
        if log.segments:
            self._number, self._position, self.end = log.offset_at_cut(max(offset, log.log_start))
        if self.end < log.high_watermark and log.settings.level >= Level.FSYNC:
            raise BraidError(
                "REPLICA_DIVERGED", topic=log.topic, partition=log.partition, offset=self.end, watermark=log.high_watermark
            )
        self.needed = bool(log.segments) and self.end < log.log_end
        self._forgotten = log.producers.only_from(self.end) if self.needed else set()
        self._remembered: list[tuple[int, int, int, int, int, int]] = []

    @property
    def _path(self) -> str:
        return self._log.segments[self._number].path + ".cut"

    def copy(self) -> None:
        """Copy what stays of the segment that is cut; blocks, and changes nothing yet."""
        if not self.needed:
            return
        segment = self._log.segments[self._number]
        segment.write_prefix(self._position, self._path)
        left, looked_at = set(self._forgotten), 0
        # What is known of these producers is cut off; what they wrote before may still be sent again.
        for older in reversed(self._log.segments[: self._number + 1]):
            if not left or looked_at > _LOOK_BACK_BYTES:
                break
            size = self._position if older is segment else older.size
            if size:
                view = self._log._disk.map_file(older.log_path, size).view
                rows = [row for row in hot.scan_batches(view, 0, size, -1, limits.INDEX_INTERVAL_BYTES)[6] if row[0] in left]
                self._remembered[:0] = rows
                left -= {row[0] for row in rows}
                looked_at += size

    def finish(self) -> None:
        """Let the copy take the place of what it was made from, durably."""
        if not self.needed:
            return
        log, disk = self._log, self._log._disk
        old = log.segments[self._number]
        try:
            # The newest first, each for good: a log with a hole would be worse than one that is too long.
            for segment in reversed(log.segments[self._number + 1 :]):
                segment.remove()
            if old.file is not None:
                old.file.close()
            disk.remove_file(old.index_path)
            disk.rename(self._path, old.log_path)
            disk.sync_directory(log.directory)
        except OSError as fault:
            raise log.fail(f"the log could not be cut at offset {self.end}: {fault}") from fault
        if log.codec is not None:
            for segment in log.segments[self._number :]:
                log.codec.forget(segment.log_path)
        cut = Segment(disk, log.directory, old.base_offset, self._position)
        seen = log._visible_in
        if seen is not None and seen.base_offset >= old.base_offset:
            log._visible_in, log._visible_to = cut, min(log._visible_to, self._position) if seen is old else self._position
        log.segments[self._number :] = [cut]
        log._bases[self._number + 1 :] = []
        log._marks = deque(mark for mark in log._marks if mark[0] <= self.end and mark[1] is not old)
        log.log_end = log.flushed_end = log.accumulator.next_offset = self.end
        log.high_watermark = min(log.high_watermark, self.end)
        log.producers.forget_from(self.end)
        for row in self._remembered:
            log.producers.record(*row)
        log.epochs.forget_from(self.end)
