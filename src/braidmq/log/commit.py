"""Group commit: one write a partition and one sync for everybody, in every turn of the event loop.

Requests of one turn add rows to accumulators and join the turn's `Cycle`. When the turn ends, each touched partition writes
one batch; those at level `fsync` are handed to a syncer, and while it works the next turns gather the next cycles. A
cycle that needs no sync ends with its writes.

Whoever joined is told once, on the loop's thread, with the cycle's failures: a partition that could not write or sync names
itself and its error there; all others are fine.

At level `quorum` whoever joined waits longer, until readers see all that it brought: the gates of its partitions decide when.
It waits for the partitions that it touched and for no others, so one that is slow to replicate holds up only those who wrote to it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from braidmq import hot
from braidmq.base import limits
from braidmq.base.clock import Clock
from braidmq.base.disk import AppendFile, Disk
from braidmq.base.errors import BraidError
from braidmq.base.figures import Figures
from braidmq.base.tracing import Tracing
from braidmq.log.level import Level
from braidmq.log.partition import PartitionLog
from braidmq.log.segment import Segment

_MANY_PARTITIONS: Final = 16

Post = Callable[[Callable[[], None]], object]
"""Runs a function soon on the loop's thread."""


class Cycle:
    """What one turn of the loop wrote."""

    __slots__ = (
        "after_sync", "after_write", "append", "before_told", "began_s", "causes", "closed", "done_s", "failures", "files",
        "joined_s", "names", "synced", "written",
    )  # fmt: skip

    def __init__(self) -> None:
        self.after_write: list[Callable[[Outcome], None]] = []
        self.after_sync: list[Callable[[Outcome], None]] = []
        self.before_told: list[Callable[[], None]] = []
        """Called when readers see what was synced, before anyone is told so."""
        self.written: list[PartitionLog] = []
        """Partitions that wait for no sync."""
        self.synced: list[tuple[PartitionLog, int, Segment, int, tuple[AppendFile, ...]]] = []
        """Partitions that wait for the sync: where their log ended in this cycle, and in which files."""
        self.closed: list[tuple[PartitionLog, tuple[AppendFile, ...]]] = []
        """Partitions below level `fsync` that closed a segment, and its files."""
        self.files: set[AppendFile] = set()
        self.names: set[str] = set()
        self.failures: dict[PartitionLog, BraidError] = {}
        self.joined_s = 0.0
        """When the first one joined."""
        self.began_s = 0.0
        """When its writes began."""
        self.done_s = 0.0
        """When what those wait for who are told now was done."""
        self.causes: list[Any] = []
        """What it is for, where somebody traces."""
        self.append: Any = None
        """Its writes, as somebody who traces knows them."""


class Outcome(Protocol):
    """What whoever joined a cycle is told."""

    @property
    def failures(self) -> Mapping[PartitionLog, BraidError]: ...

    @property
    def joined_s(self) -> float: ...

    @property
    def done_s(self) -> float: ...


class _Quorum:
    """Somebody who waits for the sync of a cycle and for the gates of some partitions."""

    __slots__ = ("callback", "clock", "done_s", "failures", "joined_s", "waiting")

    def __init__(self, callback: Callable[[Outcome], None], waiting: int, clock: Clock) -> None:
        self.callback = callback
        self.waiting = waiting
        self.clock = clock
        self.joined_s = clock.monotonic()
        self.done_s = 0.0
        self.failures: dict[PartitionLog, BraidError] = {}

    def synced(self, cycle: Outcome) -> None:
        self.failures = {**self.failures, **cycle.failures}
        self._one_less()

    def seen(self, partition: PartitionLog, error: BraidError | None) -> None:
        if error is not None:
            self.failures[partition] = error
        self._one_less()

    def _one_less(self) -> None:
        self.waiting -= 1
        if not self.waiting:
            self.done_s = self.clock.monotonic()
            self.callback(self)


class SyncJob:
    """Files and directories to sync, and what became of it."""

    __slots__ = ("done", "failed", "files", "names")

    def __init__(self, files: set[AppendFile], names: set[str], done: Callable[[SyncJob], None] = lambda _: None) -> None:
        self.files = files
        self.names = names
        self.done = done
        self.failed: dict[AppendFile, OSError] = {}

    def run(self, disk: Disk) -> None:
        """Sync everything; a failure is noted for each file it may concern."""
        try:
            if len(self.files) + len(self.names) <= limits.SYNC_FILES_ONE_BY_ONE_MAX or not self._sync_together(disk):
                self._sync_each()
            for name in sorted(self.names):
                try:
                    disk.sync_directory(name)
                except FileNotFoundError:
                    # A topic was deleted under the sync; the names of all others are still to be synced.
                    continue
        except OSError as fault:
            self.failed = dict.fromkeys(self.files, fault)

    def _sync_together(self, disk: Disk) -> bool:
        """Sync many files the cheapest way; False when one of them is gone and each has to be asked."""
        try:
            disk.sync_files(self.files)
        except FileNotFoundError:
            return False
        return True

    def _sync_each(self) -> None:
        for file in self.files:
            try:
                file.sync()
            except FileNotFoundError:
                # Retention or the deletion of a topic took it: what is gone needs no sync.
                continue
            except OSError as fault:
                self.failed[file] = fault


class Syncer(Protocol):
    def submit(self, job: SyncJob) -> None: ...

    def close(self) -> None: ...


class ThreadSyncer:
    """Syncs in a thread of its own. Jobs that pile up during one sync share the next."""

    def __init__(self, disk: Disk, post: Post, clock: Clock | None = None, took: Callable[[float], None] | None = None) -> None:
        """With a `clock`, `took` is told how long each sync took, in the thread."""
        self._disk = disk
        self._post = post
        self._clock = clock
        self._took = took
        self._jobs: queue.SimpleQueue[SyncJob | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="braid-sync", daemon=True)
        self._thread.start()

    def submit(self, job: SyncJob) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        """Finish what was submitted, then end."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            jobs: list[SyncJob] = []
            job = self._jobs.get()
            while job is not None:
                jobs.append(job)
                if self._jobs.empty():
                    break
                job = self._jobs.get()
            if jobs:
                self._sync(jobs)
            if job is None:
                return

    def _sync(self, jobs: list[SyncJob]) -> None:
        together = SyncJob(set().union(*(job.files for job in jobs)), set().union(*(job.names for job in jobs)))
        if self._clock is None or self._took is None:
            together.run(self._disk)
        else:
            began_s = self._clock.monotonic()
            together.run(self._disk)
            self._took(self._clock.monotonic() - began_s)

        def finish() -> None:
            for job in jobs:
                job.failed = {file: fault for file, fault in together.failed.items() if file in job.files}
                job.done(job)

        self._post(finish)


class InlineSyncer:
    """Syncs at once, on the caller's thread: for simulated time and for tools."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def submit(self, job: SyncJob) -> None:
        job.run(self._disk)
        job.done(job)

    def close(self) -> None:
        pass


class GroupCommit:
    """Gathers what a turn of the loop adds, and commits it."""

    def __init__(self, clock: Clock, syncer: Syncer, call_soon: Post, figures: Figures | None = None) -> None:
        self._clock = clock
        self._syncer = syncer
        self._call_soon = call_soon
        self.dirty: list[hot.Accumulator] = []
        """Accumulators with new rows; `hot.parse_produce` appends to it."""
        self._cycle = Cycle()
        self._scheduled = False
        self._extended = False
        self._alone = False
        self._turn_ms = 0
        self.syncs_running = 0
        self._counted: dict[hot.Accumulator, int] = {}
        """How far replicated partitions are spoken for, by those who joined this turn and those who wait for themselves."""
        self.figures = figures or Figures()
        self.tracing: Tracing | None = None
        self.on_failure: Callable[[PartitionLog, BraidError], None] | None = None

    def now_ms(self) -> int:
        """The time of this turn: records of one batch and their answers carry the same."""
        if not self.dirty:
            self._turn_ms = self._clock.now_ms()
        return self._turn_ms

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._end_of_turn)

    def _end_of_turn(self) -> None:
        if len(self.dirty) >= _MANY_PARTITIONS and not self._extended:
            # Each partition costs a write; one more turn makes these writes larger when more is on its way.
            self._extended = True
            self._call_soon(self._end_of_turn)
            return
        self._extended = False
        self._scheduled = False
        self.flush()

    def touch(self, partition: PartitionLog) -> None:
        """Say that `partition` has something to write."""
        accumulator = partition.accumulator
        if not accumulator.dirty:
            self.now_ms()
            accumulator.dirty = True
            self.dirty.append(accumulator)
        if partition.gate is not None:
            self._counted[accumulator] = accumulator.next_offset
        self._schedule()

    def join(self, level: Level, callback: Callable[[Outcome], None]) -> None:
        """Be told when this turn's cycle has reached `level`.

        At level `quorum` that is when readers see what was added since the last one joined.
        """
        if level >= Level.QUORUM:
            callback = self._with_gates(callback)
        cycle = self._cycle
        if not cycle.joined_s:
            cycle.joined_s = self._clock.monotonic()
        (cycle.after_sync if level >= Level.FSYNC else cycle.after_write).append(callback)
        if self._alone and not self._scheduled and len(self.dirty) == 1:
            # Only one asked in the last turn, so nobody is likely to join this one: waiting for its end would gain nothing.
            self._flush(cycle.joined_s)
        else:
            self._schedule()

    def _with_gates(self, callback: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
        """A callback for the sync that calls `callback` when the gates of what was added are passed too."""
        counted = self._counted
        touched: list[PartitionLog] = []
        for accumulator in self.dirty:
            partition: PartitionLog = accumulator.owner
            if partition.gate is None or partition.settings.level < Level.QUORUM:
                continue
            if counted.get(accumulator) != accumulator.next_offset:
                counted[accumulator] = accumulator.next_offset
                touched.append(partition)
        if not touched:
            return callback
        quorum = _Quorum(callback, 1 + len(touched), self._clock)
        for partition in touched:
            partition.when_visible(partition.accumulator.next_offset, partial(quorum.seen, partition))
        return quorum.synced

    def cause(self, context: Any) -> None:
        """Something that this turn's cycle is for, for whoever traces."""
        self._cycle.causes.append(context)

    def when_seen(self, callback: Callable[[], None]) -> None:
        """Call back at the moment readers see what this turn's cycle syncs, before anyone is told of it."""
        self._cycle.before_told.append(callback)

    def flush(self) -> None:
        """Write everything that came in, and start the sync it needs."""
        self._flush(self._clock.monotonic())

    def _flush(self, began_s: float) -> None:
        now_ms = self.now_ms()
        cycle, self._cycle = self._cycle, Cycle()
        self._alone = len(cycle.after_write) + len(cycle.after_sync) <= 1
        dirty = self.dirty[:]
        self.dirty.clear()
        if self._counted:
            self._counted.clear()
        figures = self.figures
        records_before = figures.records
        traced: list[tuple[PartitionLog, int, int]] | None = None if self.tracing is None else []
        for accumulator in dirty:
            partition: PartitionLog = accumulator.owner
            end_before, bytes_before = partition.log_end, partition.written_bytes
            try:
                files = partition.write_pending(now_ms)
            except BraidError as error:
                cycle.failures[partition] = error
                if self.on_failure is not None:
                    self.on_failure(partition, error)
                continue
            if not files:
                continue
            if traced is not None:
                traced.append((partition, end_before, partition.log_end))
            if partition.gate is not None:
                partition.gate.written(partition)
            if partition.counted:
                figures.records += partition.log_end - end_before
                figures.written_bytes += partition.written_bytes - bytes_before
                figures.batch_records.observe(partition.log_end - end_before)
            segment = partition.segments[-1]
            if partition.settings.level >= Level.FSYNC:
                cycle.synced.append((partition, partition.log_end, segment, segment.size, files))
                cycle.files.update(files)
                cycle.names |= partition.take_names_to_sync()
                continue
            partition.advance(partition.log_end, segment, segment.size, began_s)
            cycle.written.append(partition)
            if len(files) > 1:
                # A closed segment is synced at every level, so that recovery need not look behind its last checkpoint.
                cycle.files.update(files[:-1])
                cycle.closed.append((partition, files[:-1]))
        cycle.done_s = began_s
        if dirty:
            cycle.began_s = began_s
            cycle.done_s = self._clock.monotonic()
            took_s = cycle.done_s - began_s
            figures.append_s.observe(took_s)
            if not cycle.files:
                figures.commit_s.observe(took_s)
            if self.tracing is not None and traced is not None:
                cycle.append = self.tracing.append(took_s, figures.records - records_before, traced, cycle.causes)
        # Nobody is told before all of them are visible: what was written together is seen together.
        for partition in cycle.written:
            partition.tell_visible()
        for callback in cycle.after_write:
            callback(cycle)
        if cycle.files:
            self.syncs_running += 1
            self._syncer.submit(SyncJob(cycle.files, cycle.names, lambda job: self._synced(cycle, job)))
        else:
            for before_told in cycle.before_told:
                before_told()
            for callback in cycle.after_sync:
                callback(cycle)

    def _synced(self, cycle: Cycle, job: SyncJob) -> None:
        self.syncs_running -= 1
        visible: list[PartitionLog] = []
        for partition, end, segment, position, files in cycle.synced:
            if partition.removed:
                cycle.failures[partition] = BraidError("TOPIC_NOT_FOUND", topic=partition.topic)
                continue
            fault = next((job.failed[file] for file in files if file in job.failed), None)
            if fault is None and partition.failure is None:
                partition.advance(end, segment, position, cycle.began_s)
                visible.append(partition)
                continue
            error = partition.failure or partition.fail(f"sync failed: {fault}")
            cycle.failures[partition] = error
            if self.on_failure is not None:
                self.on_failure(partition, error)
        for partition, files in cycle.closed:
            fault = next((job.failed[file] for file in files if file in job.failed), None)
            if fault is not None and partition.failure is None:
                error = partition.fail(f"sync failed: {fault}")
                if self.on_failure is not None:
                    self.on_failure(partition, error)
        for before_told in cycle.before_told:
            before_told()
        # Only now, so that what was synced together is seen together, whoever is told first.
        for partition in visible:
            partition.tell_visible()
        cycle.done_s = self._clock.monotonic()
        took_s = cycle.done_s - cycle.began_s
        self.figures.commit_s.observe(took_s)
        if self.tracing is not None:
            self.tracing.fsync(took_s, len(job.files), cycle.append)
        for callback in cycle.after_sync:
            callback(cycle)

    def close(self) -> None:
        """End the syncer after what was flushed so far. Blocks."""
        self._syncer.close()
