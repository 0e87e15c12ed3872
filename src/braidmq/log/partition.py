"""One partition: a list of segments, what is being added, and how far readers may see.

Faults, and what becomes of them:

* **kill -9** loses nothing that was written; the tail of a batch cut off by it is found by its checksum and removed.
* **Loss of power** loses nothing below the high watermark at level `fsync`; unsynced batches may be torn or missing and are
  removed from the first bad one on. What was never readable is never missed: readers see only up to the watermark.
* **A full disk** fails the waiting requests, takes the partial write back and leaves the partition as it was. It goes on
  when there is space again.
* **A failed sync** makes the partition read-only until a restart: nobody can say what the disk holds, and a second sync
  that succeeds would prove nothing.
* **A flipped bit** is found before the batch is served for the first time, and is an error that names the place.

Batches of a partition with a codec may lie compressed or encrypted. They are put into that form when they are written and out of it
when they are read; in between, everything works on headers. Without a codec none of this costs anything.

Everything here runs on the event loop's thread except `Cold.warm_up` and the syncs of `commit.py`.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import pairwise

from braidmq import hot
from braidmq.base import limits
from braidmq.base.disk import AppendFile, Buffer, Disk
from braidmq.base.errors import BraidError
from braidmq.hot import layout
from braidmq.hot.expiring import has_times_to_live, hiding, living_for, split_times_to_live, with_expiry
from braidmq.log.batch_codec import BatchCodec
from braidmq.log.expiry_cursor import ExpiryCursor
from braidmq.log.level import Level
from braidmq.log.partition_replica import PartitionReplica, WhenVisible
from braidmq.log.producers import ProducerTable
from braidmq.log.segment import LOG_ENDING, Segment


@dataclass(slots=True)
class LogSettings:
    """What a topic may change for its partitions."""

    level: Level = Level.FSYNC
    segment_bytes: int = 256 * limits.MIB
    segment_age_ms: int = 24 * 3600 * 1000
    """0 closes segments by size only."""
    retention_bytes: int = 1_000_000_000
    """0 keeps everything."""
    retention_age_ms: int = 7 * 24 * 3600 * 1000
    """0 keeps everything."""
    ttl_ms: int = 0
    """How long records live that have no time to live of their own; 0 keeps them for ever."""
    compression: str = ""
    """How batches are compressed; empty when they never were, which is one thing less to look at than `none`."""
    gapless: bool = False
    """Whether a loss of power below level `fsync` may take only the end of the log, never a piece before it."""


class _SyncFailed(Exception):
    """A sync failed in the middle of a write: not a full disk, whatever its error number says."""


class PartitionLog(PartitionReplica):
    # Every flush asks for many of these: slots are the fastest way to so many attributes.
    __slots__ = (
        "__weakref__", "_disk", "_names_to_sync", "_now", "_staged", "_tails", "_waiters", "accumulator", "codec", "counted",
        "directory", "failure", "newest_written_s", "partition", "producers", "read_bytes", "read_records", "removed", "settings",
        "topic", "written_bytes",
    )  # fmt: skip

    def __init__(
        self, disk: Disk, directory: str, topic: str, partition: int, settings: LogSettings, codec: BatchCodec | None = None,
        now: Callable[[], int] | None = None,
    ) -> None:
        self._disk = disk
        self._now = now
        """What expiry is measured by. Without it nothing that may expire is served."""
        self.codec = codec
        """None where no batch was ever compressed or encrypted."""
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.settings = settings
        self.segments: list[Segment] = []
        self._bases: list[int] = []
        self.producers = ProducerTable()
        self.expiry_cursor: ExpiryCursor | None = None
        """What is known of records that expire; None where nobody looks for them."""
        self.leader_epoch = 0
        """The epoch that new batches get."""
        self.log_start = 0
        self.log_end = 0
        """Offset after the last written record."""
        self.high_watermark = 0
        self.newest_written_s = 0.0
        """When the write began that brought the newest record which readers see; 0 before there was one."""
        """Offset after the last record that readers may see."""
        self._visible_in: Segment | None = None
        self._visible_to = 0
        self.accumulator = hot.Accumulator(self, 0)
        self._staged: list[tuple[Buffer, int]] = []
        self._staged_bytes = 0
        self.failure: BraidError | None = None
        self._waiters: deque[tuple[int, WhenVisible]] = deque()
        self._tails: dict[object, Callable[[], None]] = {}
        self._names_to_sync: set[str] = set()
        self.removed = False
        self.written_bytes = 0
        """Since it was opened, as `read_records` and `read_bytes`."""
        self.read_records = 0
        self.read_bytes = 0
        self._init_replica()
        self.counted = not topic.startswith("__")
        """Whether what is written here counts as somebody's messages: the broker's own journals do not."""

    # --- recovery hands over what it found

    def adopt(self, segments: list[Segment], next_offset: int) -> None:
        self.segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self.log_start = segments[0].base_offset if segments else next_offset
        self.log_end = self.high_watermark = self.accumulator.next_offset = next_offset
        self.leader_epoch = self.epochs.latest
        if segments:
            self._visible_in, self._visible_to = segments[-1], segments[-1].size

    # --- adding

    def stage_batch(self, data: Buffer, now_ms: int, hidden: Collection[int] = ()) -> tuple[int, int, int, bool]:
        """Take a producer's whole batch into the next write.

        Returns its base offset, number of records, timestamp, and whether it was stored before. Records whose numbers are
        in `hidden` are for nobody; they keep their offsets, and the producer's sequence stays whole in the log. Times to live begin
        now.
        """
        self.check_writable()
        ttls_ms = None
        if has_times_to_live(data):
            data, ttls_ms = split_times_to_live(data)
        stamped: Buffer = hot.stamp_batch(data, self.accumulator.next_offset, self.leader_epoch, now_ms)
        if ttls_ms is not None:
            assert self._now is not None, "a log for producers measures expiry"
            stamped = living_for(stamped, ttls_ms, self._now())
        if hidden:
            stamped = hiding(stamped, hidden)
        head = layout.read_header(stamped)
        known = self.stored_before(head)
        if known is not None:
            return known[0], head.records, known[1], True
        self._take_in(stamped, head, now_ms)
        return head.base_offset, head.records, now_ms, False

    def stored_before(self, head: layout.BatchHeader) -> tuple[int, int] | None:
        """(base offset, timestamp) of a producer's batch that came before, None for a new one; raises when it may not come."""
        if head.producer_id < 0:
            return None
        if head.producer_epoch < 0 or head.base_sequence < 0:
            raise BraidError("INVALID_BATCH", reason="a producer id without epoch and sequence")
        return self.producers.find_duplicate(head.producer_id, head.producer_epoch, head.base_sequence, head.records)

    def stage_work(self, data: Buffer, now_ms: int) -> int:
        """Take a batch of the broker's own work into the next write; returns the offset after it.

        Its producer id is the number of the work and its sequence how many of the work's records came before it, and it has no
        epoch: `producers.work_records` tells after a crash how far the work came.
        """
        self.check_writable()
        stamped = hot.stamp_batch(data, self.accumulator.next_offset, self.leader_epoch, now_ms)
        head = layout.read_header(stamped)
        assert head.producer_id >= 0 > head.producer_epoch, "not a piece of work"
        assert head.base_sequence == self.producers.work_records(head.producer_id), "its records come in order"
        self._take_in(stamped, head, now_ms)
        return head.next_offset

    def _take_in(self, stamped: Buffer, head: layout.BatchHeader, now_ms: int) -> None:
        dated = self._dated(stamped)
        if len(dated) > len(stamped) and len(dated) > limits.RECORD_BYTES_MAX:
            raise BraidError("INVALID_BATCH", reason=f"{len(dated)} bytes with times to live do not fit a frame")
        if head.producer_id >= 0:
            self.producers.record(
                head.producer_id, head.producer_epoch, head.base_sequence, head.records, head.base_offset, now_ms
            )
        accumulator = self.accumulator
        if accumulator.count:
            self._staged_bytes += self._stage(self._dated(accumulator.take(now_ms, self.leader_epoch)), now_ms)
        self._staged_bytes += self._stage(dated, now_ms)
        accumulator.next_offset = head.next_offset

    def _stage(self, batch: Buffer, now_ms: int) -> int:
        self._staged.append((batch, now_ms))
        return len(batch)

    def _dated(self, batch: Buffer) -> Buffer:
        """The batch with the topic's time to live for records that have none of their own."""
        if not self.settings.ttl_ms or self._now is None:
            return batch
        return with_expiry(batch, self._now() + self.settings.ttl_ms)

    def _sealed_rows(self, now_ms: int) -> tuple[list[Buffer], int]:
        sealed, length = self.accumulator.seal(now_ms, self.leader_epoch)
        if not self.settings.ttl_ms:
            return sealed, length
        batch = self._dated(b"".join(sealed))
        return [batch], len(batch)

    @property
    def pending_bytes(self) -> int:
        """Bytes taken in and not yet written."""
        return self._staged_bytes + self.accumulator.rows_bytes

    def check_writable(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.removed:
            raise BraidError("TOPIC_NOT_FOUND", topic=self.topic)
        if self.refusal is not None:
            raise self.refusal

    def write_pending(self, now_ms: int) -> tuple[AppendFile, ...]:
        """Write what came in; returns the files that a sync must cover.

        On failure the partition is as before, the waiting requests have been told, and the error is raised.
        """
        accumulator = self.accumulator
        accumulator.dirty = False
        if self.failure is not None or self.removed or self._given_up is not None:
            error = self.failure or self._given_up or BraidError("TOPIC_NOT_FOUND", topic=self.topic)
            self._given_up = None
            self._take_back()
            self._fail_waiters(error)
            raise error
        if self._replica:
            return self._write_replica(now_ms)
        if not self._staged and self.segments:
            return self._write_rows(now_ms)
        return self._write_batches(now_ms)

    def _write_replica(self, now_ms: int) -> tuple[AppendFile, ...]:
        """What came from the leader."""
        chunks = self._replica
        total = sum(len(chunk.data) for chunk in chunks)
        files: list[AppendFile] = []
        try:
            segment = self._segment_for(total, self.log_end, now_ms, files)
            segment.append_scanned(chunks)
        except (OSError, _SyncFailed) as fault:
            raise self._write_failed(fault) from fault
        self._replica = []
        self._staged_bytes = 0
        for chunk in chunks:
            for epoch, start in chunk.epochs:
                self.epochs.note(epoch, start)
        self.log_end = self.accumulator.next_offset
        self.written_bytes += total
        assert segment.file is not None
        return (*files, segment.file)

    def _write_rows(self, now_ms: int) -> tuple[AppendFile, ...]:
        """The common case: rows of single records, and room for them in the newest segment."""
        accumulator = self.accumulator
        if not accumulator.count:
            return ()
        segment = self.segments[-1]
        encodes = self.codec is not None and self.codec.changes
        if encodes or segment.file is None or not segment.size or self._is_old(segment, now_ms):
            return self._write_batches(now_ms)
        sealed, length = self._sealed_rows(now_ms)
        if segment.size + length > self.settings.segment_bytes:
            del sealed
            return self._write_batches(now_ms)
        try:
            segment.append_batch(sealed, accumulator.next_offset - accumulator.count, length, now_ms)
        except OSError as fault:
            # The traceback holds the list, and rows cannot be taken back while anything refers to them.
            sealed.clear()
            raise self._write_failed(fault) from fault
        del sealed
        accumulator.reset()
        if self.leader_epoch != self.epochs.latest:
            self.epochs.note(self.leader_epoch, self.log_end)
        self.log_end = accumulator.next_offset
        self.written_bytes += length
        return (segment.file,)

    def _write_batches(self, now_ms: int) -> tuple[AppendFile, ...]:
        """Everything else: producers' own batches, the first write, and the start of a new segment."""
        accumulator = self.accumulator
        buffers: list[Buffer] = []
        batches: list[tuple[int, int, int]] = []
        total = 0
        for batch, timestamp in self._staged:
            buffers.append(batch)
            batches.append((layout.read_header(batch).base_offset, len(batch), timestamp))
            total += len(batch)
        if accumulator.count:
            sealed, length = self._sealed_rows(now_ms)
            buffers += sealed
            batches.append((accumulator.next_offset - accumulator.count, length, now_ms))
            total += length
            del sealed
        if not batches:
            return ()
        codec = self.codec
        plain: list[Buffer] = []
        if codec is not None and codec.changes:
            try:
                buffers, batches, total, plain = codec.encode_all(buffers, batches)
            except BraidError as refused:
                buffers.clear()
                self._take_back()
                self._fail_waiters(refused)
                raise
        files: list[AppendFile] = []
        try:
            segment = self._segment_for(total, batches[0][0], now_ms, files)
            segment.append(buffers, batches, total)
        except (OSError, _SyncFailed) as fault:
            buffers.clear()
            raise self._write_failed(fault) from fault
        if codec is not None and plain:
            codec.keep(segment.log_path, segment.size - total, buffers, plain)
        buffers.clear()
        accumulator.reset()
        self._staged.clear()
        self._staged_bytes = 0
        if self.leader_epoch != self.epochs.latest:
            self.epochs.note(self.leader_epoch, self.log_end)
        self.log_end = accumulator.next_offset
        self.written_bytes += total
        if segment.file is not None:
            files.append(segment.file)
        return tuple(files)

    def _segment_for(self, incoming: int, base_offset: int, now_ms: int, files: list[AppendFile]) -> Segment:
        if self.segments:
            active = self.segments[-1]
            if active.size == 0 or (active.size + incoming <= self.settings.segment_bytes and not self._is_old(active, now_ms)):
                return active
            if active.file is not None:
                if self.settings.level >= Level.FSYNC or self.settings.gapless:
                    self._sync_before_next(active.file)
                # At any level it is synced with the batch that follows it; its index may be lost at no cost.
                files.append(active.file)
        else:
            self._disk.make_directory(self.directory, durable=False)
            self.distrust_names()
        segment = Segment(self._disk, self.directory, base_offset, 0)
        segment.open_for_append()
        if self.segments:
            self.segments[-1].seal()
        self.segments.append(segment)
        self._bases.append(base_offset)
        self._names_to_sync.add(self.directory)
        return segment

    def _sync_before_next(self, file: AppendFile) -> None:
        """Sync a segment before the next one begins: were only the later one to survive, the log would have a hole."""
        try:
            file.sync()
            for name in sorted(self.take_names_to_sync() | {self.directory}):
                self._disk.sync_directory(name)
        except OSError as fault:
            raise _SyncFailed(f"sync failed: {fault}") from fault

    def _is_old(self, segment: Segment, now_ms: int) -> bool:
        age_ms = self.settings.segment_age_ms
        return age_ms > 0 and now_ms - segment.first_timestamp >= age_ms

    def distrust_names(self) -> None:
        """Nobody knows whether the way to the partition's files would survive the loss of power: sync it with the next write."""
        topic_directory = self.directory.rpartition("/")[0]
        self._names_to_sync.update((topic_directory.rpartition("/")[0], topic_directory, self.directory))

    def take_names_to_sync(self) -> set[str]:
        """Directories whose new names must be synced before an ack at level `fsync`."""
        names, self._names_to_sync = self._names_to_sync, set()
        return names

    def names_for_checkpoint(self) -> set[str]:
        """The same for a checkpoint. At level `fsync` the next ack may not rely on a sync that is still under way."""
        return self.take_names_to_sync() if self.settings.level < Level.FSYNC else set(self._names_to_sync)

    def _take_back(self) -> None:
        self._replica.clear()
        self._staged.clear()
        self._staged_bytes = 0
        self.accumulator.reset()
        self.accumulator.next_offset = self.log_end
        self.producers.forget_from(self.log_end)

    def _write_failed(self, fault: OSError | _SyncFailed) -> BraidError:
        """Take everything back, tell who waits, and say what happened."""
        self._take_back()
        error = self.fail(str(fault)) if isinstance(fault, _SyncFailed) else self._after_failed_write(fault)
        self._fail_waiters(error)
        return error

    def _after_failed_write(self, fault: OSError) -> BraidError:
        active = self.segments[-1] if self.segments else None
        if active is not None and active.file is not None:
            try:
                active.truncate(active.size)
            except OSError as second:
                return self.fail(f"a partial write could not be taken back: {second}")
        if fault.errno in (errno.ENOSPC, errno.EDQUOT):
            return BraidError("STORAGE_FULL", topic=self.topic, partition=self.partition)
        return self.fail(f"write failed: {fault}")

    def fail(self, reason: str) -> BraidError:
        """Make the partition read-only: what its disk holds is no longer known."""
        self.failure = BraidError("STORAGE_FAILED", topic=self.topic, partition=self.partition, reason=reason)
        self.accumulator.writable = False
        self._fail_waiters(self.failure)
        return self.failure

    # --- visibility

    def advance(self, offset: int, segment: Segment, position: int, written_s: float = 0.0) -> None:
        """Everything up to `offset`, which ends at `position` of `segment`, is durable: let readers see it, or leave that to the
        gate.

        Whoever waits is told by `tell_visible`. `written_s` is when the write of it began, by the clock that only goes on; 0 where
        nobody knows.
        """
        if self.gate is not None:
            self.newest_written_s = written_s
            self._note_flushed(offset, segment, position)
        elif offset > self.high_watermark and self.failure is None:
            self.high_watermark = offset
            self.newest_written_s = written_s
            self._visible_in, self._visible_to = segment, position

    def tell_visible(self) -> None:
        """Tell everyone who waits for what readers see by now."""
        if self.gate is not None:
            self._tell_flushed()
        else:
            self._tell_watermark()

    def _fail_waiters(self, error: BraidError) -> None:
        """Tell everyone who waits for records that were taken back."""
        failed: list[WhenVisible] = []
        for waiters in (self._waiters, self._flush_waiters):
            kept = [waiter for waiter in waiters if waiter[0] <= self.log_end and self.failure is None]
            failed += [waiter[1] for waiter in waiters if not (waiter[0] <= self.log_end and self.failure is None)]
            waiters.clear()
            waiters.extend(kept)
        for callback in failed:
            callback(error)

    def watch_tail(self, key: object, wake: Callable[[], None]) -> None:
        """Call `wake` at every advance of the high watermark until `unwatch_tail`."""
        self._tails[key] = wake

    def unwatch_tail(self, key: object) -> None:
        self._tails.pop(key, None)

    # --- keeping house

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def expired_segments(self, now_ms: int, held_from: int | None = None, held_bytes: int = 0) -> list[Segment]:
        """Closed segments that retention lets go, oldest first.

        What lies at `held_from` and behind it stays, as long as the partition has no more than `held_bytes`.
        """
        settings = self.settings
        expired: list[Segment] = []
        size = self.size_bytes
        excess = size - settings.retention_bytes if settings.retention_bytes else 0
        for segment, following in zip(self.segments, self.segments[1:], strict=False):
            if following.base_offset > self.high_watermark:
                break
            newest_ms = segment.newest_ms
            # A damaged segment may have no timestamp to tell; that does not make it old.
            too_old = settings.retention_age_ms and 0 <= newest_ms < now_ms - settings.retention_age_ms
            if excess < segment.size and not too_old:
                break
            if held_from is not None and following.base_offset > held_from and size <= held_bytes:
                break
            excess -= segment.size
            size -= segment.size
            expired.append(segment)
        return expired

    def segment_of_unknown_age(self) -> Segment | None:
        """The oldest segment, where `expired_segments` would have to read to tell how old it is."""
        asked = len(self.segments) > 1 and self.settings.retention_age_ms and self.failure is None
        return self.segments[0] if asked and not self.segments[0].knows_newest else None

    def roll_if_old(self, now_ms: int) -> bool:
        """Close a segment that has reached its age, so that retention can reach its records in a quiet topic."""
        if not self.segments or self.failure is not None:
            return False
        active = self.segments[-1]
        if active.size == 0 or self.pending_bytes or self.high_watermark != self.log_end:
            return False
        if not self._is_old(active, now_ms):
            return False
        return self._begin_segment(now_ms)

    def let_go_below(self, offset: int, close_from_bytes: int = 1) -> list[Segment]:
        """Forget segments all of whose records lie below `offset`; removing their files is the caller's.

        The newest is closed for it when it has grown to `close_from_bytes`.
        """
        all_below = self.high_watermark == self.log_end <= offset and not self.pending_bytes
        if self.segments and self.segments[-1].size >= close_from_bytes and all_below and self.failure is None:
            self._begin_segment(0)
        reachable = min(offset, self.high_watermark)
        gone = [segment for segment, following in pairwise(self.segments) if following.base_offset <= reachable]
        self.drop_segments(gone)
        return gone

    def _begin_segment(self, now_ms: int) -> bool:
        """Close the newest segment, of which readers see all, and begin an empty one; False when its sync failed."""
        try:
            self._segment_for(self.settings.segment_bytes + 1, self.log_end, now_ms, [])
        except _SyncFailed as fault:
            self.fail(str(fault))
            return False
        self._visible_in, self._visible_to = self.segments[-1], 0
        return True

    def drop_segments(self, expired: list[Segment]) -> None:
        """Forget the oldest segments; removing their files is the caller's."""
        if expired:
            # The name of the segment that stays is where the offsets go on after a loss of power.
            self._disk.sync_directory(self.directory)
        for segment in expired:
            assert segment is self.segments[0] and len(self.segments) > 1
            del self.segments[0], self._bases[0]
            self.log_start = self.segments[0].base_offset
        self.epochs.forget_below(self.log_start)

    def forget_maps(self) -> None:
        """Let go of maps that nobody has read from since the last call: each holds a descriptor."""
        for segment in self.segments:
            segment.forget_idle_map()

    def retire(self) -> None:
        """The topic is deleted: refuse everything from now on. Readers that hold slices keep them; the files are the caller's."""
        self.removed = True
        self.accumulator.writable = False
        self._take_back()
        self.log_start = self.log_end = self.high_watermark = self.flushed_end = 0
        self._fail_waiters(BraidError("TOPIC_NOT_FOUND", topic=self.topic))
        for wake in list(self._tails.values()):
            wake()
        for segment in self.segments:
            if segment.file is not None:
                segment.file.close()
        self.segments, self._bases = [], []
        self._visible_in = None

    def close(self) -> None:
        for segment in self.segments:
            segment.close()

    def durable_place(self) -> tuple[int, int, int] | None:
        """(first offset of the newest readable segment, bytes of it, the offset that follows), for the checkpoint."""
        if self._visible_in is None:
            return None
        return self._visible_in.base_offset, self._visible_to, self.high_watermark

    def unsynced_files(self) -> list[AppendFile]:
        return [segment.file for segment in self.segments if segment.file is not None]


def segment_bases(disk: Disk, directory: str) -> list[int]:
    """First offsets of the segments in a partition's directory, in order."""
    names = (name.removesuffix(LOG_ENDING) for name in disk.list_directory(directory) if name.endswith(LOG_ENDING))
    return sorted(int(name) for name in names if len(name) == 20 and name.isascii() and name.isdigit())
