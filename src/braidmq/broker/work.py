"""Doing what was decided, once: the one way staged records get into partitions.

The steps of a piece of work, and what a crash in each of them leaves:

1. Its records are staged. A crash leaves staged records that nobody refers to.
2. Its decision is written to the journal (`work_table.py`). A crash before it is durable leaves nothing to do; after it, all
   of it.
3. Its records are written to their partitions, in one flush, so that readers see all of them at once. Each batch carries the
   number of the work and how many of its records came before. A crash leaves some of them; the next start finds out how many
   from the batches themselves and writes the rest, before the first client is let in.
4. `done` is written to the journal. A crash before it is durable makes the next start look again, and find nothing missing.

What a full or failed disk stops in step 3 is tried again after a second, then less and less often. Then, and only then,
readers may see a part of the work first. Decisions and staged records are synced whatever the broker's level is, so that a
loss of power never leaves a part of the work in topics that promise more than the broker does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.delayed_moving import move_survivors
from braidmq.broker.group_offsets import GroupOffsets
from braidmq.broker.journal import Journal
from braidmq.broker.staging import SEGMENT_BYTES, Staged, Staging
from braidmq.broker.topics import Topic
from braidmq.broker.work_table import DELAYED, STAGES, STAGING, Work, WorkTable
from braidmq.hot import layout
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings, PartitionLog

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

_NUMBERS_AT_ONCE: Final = 10_000
_BATCH_RECORDS_MAX: Final = 10_000
_BATCH_BYTES_TARGET: Final = 4 * limits.MIB
_RETRY_SECONDS: Final = 1.0
_RETRY_SECONDS_MAX: Final = 60.0

logger = logging.getLogger("braidmq.work")


class Draft:
    """Records staged for one decision, which may be made when all of them are durable."""

    def __init__(self, staging: Staging, number: int) -> None:
        self._staging = staging
        self.number = number
        self.fault: BraidError | None = None
        """Why one of them could not be written. There can be no decision then."""
        self._unwritten = 0
        self._waiting: asyncio.Future[None] | None = None

    def add(self, key: bytes | None, value: bytes, attrs: bytes = b"") -> int:
        """Stage a record; returns its ref."""
        ref = self._staging.add(self.number, key, value, attrs)
        self._unwritten += 1
        # Each one is watched for itself: refs of records that were taken back from a full disk are given to others.
        self._staging.log.when_visible(ref + 1, self._told)
        return ref

    def _told(self, error: BraidError | None) -> None:
        self._unwritten -= 1
        self.fault = self.fault or error
        if not self._unwritten and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def written(self) -> None:
        """Wait until all of them are durable; raises when one cannot be."""
        while self._unwritten:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        if self.fault is not None:
            raise self.fault


class WorkEngine:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.table = WorkTable()
        self.journal: Journal
        self.staging: Staging
        """Records of transactions and dead letters on their way."""
        self.delayed: Staging
        """Records of delayed messages. Apart, because those stay for hours and would hold up everybody else's segments."""
        self.stages: Staging
        """Whole batches of staged writes, which are large and stay until their writer publishes them."""
        self._next = 1
        self._reserving: asyncio.Task[None] | None = None
        self._held: dict[int, int] = {}
        """Number to where in `staging` its records begin."""
        self._running: dict[int, asyncio.Task[None]] = {}
        self._retries: dict[int, tuple[float, float]] = {}
        """Number to when it is tried again, and how long was waited for that."""

    # --- start and stop

    def open(self, settings: LogSettings, *, alone: bool = True) -> None:
        """Find what was decided; in a cluster only what the snapshot says of it. Blocks: call it off the loop."""
        broker = self._broker
        staged = LogSettings(settings.level, SEGMENT_BYTES, retention_bytes=0, retention_age_ms=0)
        after = broker.settings.journal_snapshot_commands
        self.journal = Journal(broker.disk, broker.store.internal("work", settings), broker.commit, self.table, after)
        self.staging = Staging(broker.store.internal("staging", staged), broker.commit, broker.warm)
        self.delayed = Staging(broker.store.internal("delayed", staged), broker.commit, broker.warm)
        self.stages = Staging(broker.store.internal("stages", staged), broker.commit, broker.warm)
        self.journal.replay() if alone else self.journal.load()

    async def start(self, *, wait: bool = True) -> None:
        """Finish what was decided before the last end, as far as the disk allows; `tick` does it where nobody is to wait for
        others."""
        self._next = self.table.reserved
        for work in list(self.table.work.values()):
            self._hold(work)
            if wait:
                await self._try(work)
        for log in self._broker.store.open_partitions():
            for number in log.producers.work_numbers():
                if number not in self.table.work:
                    log.producers.forget_work(number)

    async def tick(self) -> None:
        """Try again what could not be done, and let go of what nobody needs."""
        now_s = self._broker.clock.monotonic()
        for work in list(self.table.work.values()):
            if work.number not in self._running and self._retries.get(work.number, (0.0, 0.0))[0] <= now_s:
                await self._try(work)
        try:
            await move_survivors(self._broker)
        except BraidError as error:
            logger.error("delayed messages could not be staged anew: %s", error)
        segments = self.staging.release(min(self._held.values(), default=self.staging.log.log_end))
        waiting = [ref for ref in (self.table.delayed.lowest_ref, *self._refs_of(DELAYED)) if ref is not None]
        segments += self.delayed.release(min(waiting, default=self.delayed.log.log_end))
        kept = [ref for ref in (self._broker.stages.lowest_ref(), *self._refs_of(STAGES)) if ref is not None]
        segments += self.stages.release(min(kept, default=self.stages.log.log_end))
        for segment in segments:
            await self._broker.beside(segment.remove)

    def _refs_of(self, source: str) -> Iterable[int]:
        """What decisions that are not carried out yet need of a log."""
        decided = [work for work in self.table.work.values() if work.source == source]
        return (ref for work in decided for target in work.targets for ref in target.refs)

    async def stop(self) -> None:
        """Wait for what is being done."""
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def resign(self) -> None:
        """Another broker carries out what is decided."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._held.clear()
        self._retries.clear()

    def applied(self, command: list[Any], outcome: Any) -> None:
        """A command of the journal was applied. What is done need not be told from what is not any more, wherever its records
        lie."""
        if command[0] == "done" and outcome is not None:
            for target in outcome.targets:
                log = self._broker.store.opened(target.topic_id, target.partition)
                if log is not None:
                    log.producers.forget_work(outcome.number)

    # --- numbers

    async def number(self) -> int:
        """A number that was never used before and never will be again.

        Between taking it and the caller's next wait nothing else runs, so numbers and what is staged under them come in one order.
        """
        while self._next >= self.table.reserved:
            if self._reserving is None:
                self._reserving = asyncio.create_task(self._reserve())
            await asyncio.shield(self._reserving)
        number = self._next
        self._next += 1
        return number

    async def _reserve(self) -> None:
        try:
            await self.journal.submit(["reserve", self.table.reserved + _NUMBERS_AT_ONCE])
        finally:
            self._reserving = None

    # --- staging for a decision

    async def draft(self) -> Draft:
        """Begin to stage records for a decision. They are kept until `let_go`, or until the work is done."""
        draft = Draft(self.staging, await self.number())
        self._held[draft.number] = self.staging.log.accumulator.next_offset
        return draft

    def let_go(self, number: int) -> None:
        """There will be no decision."""
        self._held.pop(number, None)

    def _hold(self, work: Work) -> None:
        if work.source == STAGING and work.targets:
            self._held[work.number] = min(ref for target in work.targets for ref in target.refs)

    # --- deciding and doing

    async def decide(self, command: list[Any]) -> Work | None:
        """Make a decision durable; None when it came too late. The records it names must be durable already."""
        work: Work | None = await self.journal.submit(command)
        return work

    async def do(self, work: Work, staged: dict[int, Staged] | None = None) -> None:
        """Carry out a decision; returns when all of it is as durable as its topics promise and known to be done.

        Whoever waits for it may go away; the work goes on. `staged` are its records, where the caller has them.
        """
        task = self._running.get(work.number)
        if task is None:
            task = self._running[work.number] = asyncio.create_task(self._do(work, staged))
            task.add_done_callback(lambda ended: self._ended(work.number, ended))
        await asyncio.shield(task)

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self._running[number]
        if task.cancelled() or task.exception() is None:
            self._retries.pop(number, None)
            return
        # Whoever asked learns of it, if it still waits; `tick` tries again, less and less often.
        _, delay_s = self._retries.get(number, (0.0, _RETRY_SECONDS / 2))
        delay_s = min(2 * delay_s, _RETRY_SECONDS_MAX)
        self._retries[number] = (self._broker.clock.monotonic() + delay_s, delay_s)

    async def _try(self, work: Work) -> None:
        try:
            await self.do(work)
        except BraidError as error:
            logger.error("work %d is decided, but cannot be done yet: %s", work.number, error)

    async def _do(self, work: Work, staged: dict[int, Staged] | None) -> None:
        if work.number not in self.table.work:
            return
        places = self._places(work)
        if staged is None and work.source != STAGES:
            staged = await self._read(work)
        parts: list[tuple[PartitionLog, list[bytes]]] = []
        away: list[tuple[Topic, int, list[bytes]]] = []
        peers = self._broker.peers
        for topic, partition, refs in places:
            elsewhere = self._broker.led_elsewhere(topic, partition)
            log = self._broker.log_of(topic, partition)
            done = log.producers.work_records(work.number)
            if elsewhere and peers is not None:
                done = await peers.work_done(topic, partition, work.number)
            batches = await (
                self._whole_batches(work, done, refs) if staged is None else self._batches(work.number, done, refs, staged)
            )
            if elsewhere:
                away.append((topic, partition, batches))
            else:
                parts.append((log, batches))
        await asyncio.gather(self._write(work, parts), *(peers.write_work(*part) for part in away if peers is not None))
        await self.journal.submit(["done", work.number])
        self.let_go(work.number)

    async def _read(self, work: Work) -> dict[int, Staged]:
        source = self.staging if work.source == STAGING else self.delayed
        refs = [ref for target in work.targets for ref in target.refs]
        found = await source.read(refs)
        staged = {ref: record for ref, record in found.items() if record.number == work.owners.get(ref, work.number)}
        if len(staged) < len(refs):
            logger.error("work %d: %d of %d staged records are lost", work.number, len(refs) - len(staged), len(refs))
        return staged

    def _places(self, work: Work) -> list[tuple[Topic, int, list[int]]]:
        places = []
        for target in work.targets:
            topic = self._broker.topics.by_id(target.topic_id)
            if topic is None:
                logger.info("work %d: the topic of %d records was deleted", work.number, len(target.refs))
            else:
                places.append((topic, target.partition, target.refs))
        return places

    async def _batches(self, number: int, done: int, refs: list[int], staged: dict[int, Staged]) -> list[bytes]:
        """What of the work is missing in a partition that has `done` records of it, as batches."""
        records = [staged[ref] for ref in refs if ref in staged]
        at = done
        batches = []
        while at < len(records):
            size, end = 0, at
            most = min(len(records), at + _BATCH_RECORDS_MAX)
            while end < most and (end == at or size + records[end].size <= _BATCH_BYTES_TARGET):
                size += records[end].size
                end += 1
            run = records[at:end]
            keys, values = [record.key for record in run], [record.value for record in run]
            batches.append(hot.encode_batch(keys, values, [record.attrs for record in run], number, -1, at))
            at = end
            # A large transaction must not hold up the loop while it is put together.
            await asyncio.sleep(0)
        return batches

    async def _whole_batches(self, work: Work, done: int, refs: list[int]) -> list[bytes]:
        """What of a staged write is missing in a partition: its batches, with the number of the work in them."""
        at = 0
        batches = []
        for ref in refs:
            staged = (await self.stages.read([ref])).get(ref)
            if staged is None or staged.number != work.owners.get(ref):
                logger.error("work %d: a staged batch at %d is lost", work.number, ref)
                continue
            if at >= done:
                batches.append(numbered(staged.value, work.number, at))
            at += layout.read_header(staged.value).records
        return batches

    async def _write(self, work: Work, parts: list[tuple[PartitionLog, list[bytes]]]) -> None:
        """Write everything so that readers see it at one moment: in one flush, and what needs no sync when the rest is synced."""
        if work.number not in self.table.work:
            # Another coordinator did it meanwhile, and what partitions knew of it is forgotten.
            return
        commit = self._broker.commit
        waiting: list[asyncio.Future[Any]] = []

        def stage(chosen: list[tuple[PartitionLog, list[bytes]]]) -> None:
            for log, batches in chosen:
                waiting.append(self._staged(log, batches))

        synced = [part for part in parts if part[0].settings.level >= Level.FSYNC]
        written = [part for part in parts if part[0].settings.level < Level.FSYNC]
        if work.offsets:
            waiting.append(self._broker.post_offsets(GroupOffsets.commit_many(map(tuple, work.offsets), work.number)))
        stage(synced)
        if synced and written:
            seen = asyncio.get_running_loop().create_future()

            def follow() -> None:
                stage(written)
                commit.flush()
                seen.set_result(None)

            commit.when_seen(follow)
            commit.flush()
            await seen
        else:
            stage(written)
            commit.flush()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        for log, _ in parts:
            if log.removed and self._broker.topics.get(log.topic) is not None:
                # Others have the partition by now. It is their leader who has to write this.
                raise BraidError("LEADER_MOVED", topic=log.topic, partition=log.partition)
        for outcome in outcomes:
            # A topic that was deleted meanwhile took the records along; that is no failure of the work.
            if isinstance(outcome, BaseException) and not (isinstance(outcome, BraidError) and outcome.code == "TOPIC_NOT_FOUND"):
                raise outcome

    def _staged(self, log: PartitionLog, batches: list[bytes]) -> asyncio.Future[Any]:
        """Give batches to their partition; the future is done when they are durable, or failed."""
        told = asyncio.get_running_loop().create_future()
        settle = _settling(told)
        if not batches:
            # It is all there, but a leader that was lost may not have brought it to every replica.
            log.when_visible(log.accumulator.next_offset, settle)
            return told
        try:
            batches.reverse()
            while batches:
                # One by one out of the list: a large write is not to be in memory twice.
                end = log.stage_work(batches.pop(), self._broker.commit.now_ms())
                self._broker.commit.touch(log)
        except BraidError as error:
            settle(error)
        else:
            log.when_visible(end, settle)
        return told

    async def forget_topic(self, topic_id: int) -> None:
        await self._broker.submit("work", ["forget_topic", topic_id])


def numbered(batch: bytes, number: int, records_before: int) -> bytes:
    """A whole batch as a piece of work: with the number of the work, and how many of its records came before."""
    head = layout.read_header(batch)._replace(producer_id=number, producer_epoch=-1, base_sequence=records_before)
    body = memoryview(batch)[layout.HEADER_BYTES :]
    checksum = hot.crc32c(body, hot.crc32c(layout.HEADER.pack(*head)[layout.CHECKSUM_FROM :]))
    return b"".join((layout.HEADER.pack(*head._replace(checksum=checksum)), body))


def _settling(future: asyncio.Future[Any]) -> Callable[[BraidError | None], None]:
    def settle(error: BraidError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return settle
