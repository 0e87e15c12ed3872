"""Staged writes: many connections prepare a batch of a writer, one request publishes it, once.

A transaction (`transactions.py`) belongs to one connection and ends with it. What Spark writes comes from many executors, outlives
each of them and the broker too, and is decided by a driver that may die at any moment and ask again after its restart. So here
everything is known by names: writer, epoch, task, attempt (`stage_table.py`).

    task     stages whole batches; each is acknowledged when it would survive the loss of power
    driver   publishes the epoch, and says which attempts count: one decision, with the offsets of a group in it. All records
             become visible at one moment (`work.py`). Asked again, the answer is the same and nothing happens
    anybody  may give up an epoch that was not published; for one that was, giving up changes nothing
    nobody   comes back: after `stage_timeout` what was staged is void

A topic's schema is checked while a batch is staged, so that a task hears of it; records that become dead letters are staged with
the others and appear, or do not, with them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.admission import is_open
from braidmq.broker.features import BROKER
from braidmq.broker.names import check_group, check_topic
from braidmq.broker.stage_table import Epoch
from braidmq.broker.topics import Topic
from braidmq.broker.work import Draft
from braidmq.hot import layout
from braidmq.security.accounts import Caller

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

logger = logging.getLogger("braidmq.stages")


@dataclass(frozen=True, slots=True)
class StageState:
    published: bool
    stages: int
    batches: int
    size_bytes: int


class Stages:
    def __init__(self, broker: Broker, timeout_s: float) -> None:
        self._broker = broker
        self._timeout_s = timeout_s
        self._arriving: dict[int, int] = {}
        """Number to where its records begin: staged, but not in the table yet."""
        self._plans: dict[str, tuple[str, list[tuple[str, int, int]]]] = {}
        """Group to who planned, and where the group will be."""

    @property
    def _table(self) -> Any:
        return self._broker.work.table.stages

    def epoch(self, writer: str, epoch: int) -> Epoch | None:
        found: Epoch | None = self._table.epochs.get((writer, epoch))
        return found

    def epochs(self) -> list[tuple[str, int, Epoch]]:
        return [(writer, epoch, found) for (writer, epoch), found in self._table.epochs.items()]

    def status(self, writer: str, epoch: int) -> StageState:
        found = self.epoch(writer, epoch)
        published = self._table.is_published(writer, epoch)
        if found is None:
            return StageState(published, 0, 0, 0)
        return StageState(published, len(found.attempts), found.batches, found.size)

    # --- staging

    async def stage(
        self, writer: str, epoch: int, task: int, attempt: int, sequence: int, topic_name: str, partition: int,
        batch: bytes | memoryview, *, user: str = "", by: Caller = BROKER,
    ) -> StageState:  # fmt: skip
        """Stage the batch that follows `sequence` others of an attempt; durable when this returns. Coming again changes nothing."""
        check_writer(writer, epoch)
        table = self._table
        if table.is_published(writer, epoch) or table.known(writer, epoch, task, attempt) > sequence:
            return self.status(writer, epoch)
        self._check_room(writer, epoch, task, attempt, sequence, len(batch))
        check_topic(topic_name)
        topic = await self._broker.auto_create(topic_name, by=by)
        if not 0 <= partition < topic.partitions:
            raise BraidError("PARTITION_NOT_FOUND", partition=partition)
        # What is staged has to be what can be written later: a batch that is not whole ends here.
        whole = bytes(hot.stamp_batch(batch, 0, 0, 0))
        if layout.read_header(whole).producer_id >= 0:
            raise BraidError("INVALID_BATCH", reason="a staged batch has no producer of its own")
        parts = [(topic, partition, whole)] if is_open(topic) else await self._checked(topic, partition, whole)
        await self._keep(writer, epoch, task, attempt, sequence, user, parts)
        return self.status(writer, epoch)

    async def _checked(self, topic: Topic, partition: int, batch: bytes) -> list[tuple[Topic, int, bytes]]:
        """The batch without the records that do not fit, and those as dead letters; raises where the topic refuses them."""
        kept, letters = await self._broker.admission.divide_batch(topic, partition, batch)
        parts = [(topic, partition, kept)] if kept else []
        if letters:
            dead = await self._broker.dead_letters.topic_for(topic.name)
            parts.append((dead, partition % dead.partitions, letters))
        return parts

    async def _keep(
        self, writer: str, epoch: int, task: int, attempt: int, sequence: int, user: str, parts: Sequence[tuple[Topic, int, bytes]]
    ) -> None:
        work = self._broker.work
        draft = Draft(work.stages, await work.number())
        self._arriving[draft.number] = work.stages.log.accumulator.next_offset
        try:
            rows = [
                [draft.add(None, batch), topic.id, partition, layout.read_header(batch).records, len(batch)]
                for topic, partition, batch in parts
            ]
            await draft.written()
            await work.journal.submit(
                ["stage", draft.number, writer, epoch, task, attempt, sequence, user, self._broker.clock.now_ms(), rows]
            )
        finally:
            del self._arriving[draft.number]

    def _check_room(self, writer: str, epoch: int, task: int, attempt: int, sequence: int, size: int) -> None:
        table = self._table
        found = self.epoch(writer, epoch)
        staged = table.known(writer, epoch, task, attempt)
        if sequence != staged:
            # What came before it is void by now, or never came.
            raise BraidError("STAGE_NOT_FOUND", writer=writer, epoch=epoch, task=task, found=staged, wanted=sequence)
        if found is not None and found.batches >= limits.STAGE_BATCHES_MAX:
            raise BraidError("STAGE_LIMIT", what=f"epoch {epoch} of {writer}", limit=limits.STAGE_BATCHES_MAX, things="batches")
        if (0 if found is None else found.size_with(task, attempt)) + size > limits.STAGE_EPOCH_BYTES_MAX:
            raise BraidError("STAGE_LIMIT", what=f"epoch {epoch} of {writer}", limit=limits.STAGE_EPOCH_BYTES_MAX, things="bytes")
        if table.size + size > limits.STAGES_BYTES_MAX:
            raise BraidError("STAGE_LIMIT", what="the broker", limit=limits.STAGES_BYTES_MAX, things="staged bytes")

    # --- deciding

    async def publish(
        self, writer: str, epoch: int, tasks: Sequence[tuple[int, int, int]], group: str = "",
        offsets: Sequence[tuple[str, int, int]] = (),
    ) -> bool:  # fmt: skip
        """Publish an epoch: of each of `tasks` (task, attempt, batches) what it staged, and `offsets` of a group (topic, partition,
        offset). Returns when readers see it; False says that it had been published before.
        """
        check_writer(writer, epoch)
        work, table = self._broker.work, self._table
        if not table.is_published(writer, epoch):
            if len({task for task, _, _ in tasks}) != len(tasks):
                # The limit of an epoch counts one of them, because one is all that a task needs.
                raise BraidError("INVALID_ARGUMENT", reason="of each task one attempt counts, and here is one that has two")
            self._check_topics(writer, epoch, tasks)
            rows = self._offset_rows(group, offsets)
            number = await work.number()
            decided = await work.decide(["publish", number, writer, epoch, [list(task) for task in tasks], rows])
            if decided is not None:
                await work.do(decided)
                return True
        last, number = table.published[writer]
        unfinished = work.table.work.get(number) if last == epoch else None
        if unfinished is not None:
            await work.do(unfinished)
        return False

    def _check_topics(self, writer: str, epoch: int, tasks: Sequence[tuple[int, int, int]]) -> None:
        # What attempts staged that do not count is void anyway: it may be for a topic that was there in an earlier run.
        found = self.epoch(writer, epoch)
        chosen = {(task, attempt) for task, attempt, _ in tasks}
        for row in found.rows(chosen) if found is not None else ():
            if self._broker.topics.by_id(row.topic_id) is None:
                raise BraidError("TOPIC_NOT_FOUND", topic=f"one that {writer} staged records for, which was deleted since")

    def _offset_rows(self, group: str, offsets: Sequence[tuple[str, int, int]]) -> list[list[Any]]:
        if not offsets:
            return []
        check_group(group)
        if len(offsets) > limits.GROUP_COMMIT_OFFSETS_MAX:
            reason = f"{len(offsets)} offsets at once are more than {limits.GROUP_COMMIT_OFFSETS_MAX}"
            raise BraidError("INVALID_ARGUMENT", reason=reason)
        return [list(self._broker.coordinator.row(topic, group, partition, offset)) for topic, partition, offset in offsets]

    def plan(self, group: str, user: str, offsets: Sequence[tuple[str, int, int]]) -> None:
        """Remember where a group will be when its epoch is published. A restart forgets it; the group follows a little later."""
        self._offset_rows(group, offsets)
        self._plans.pop(group, None)
        self._plans[group] = (user, list(offsets))
        if len(self._plans) > limits.STAGE_PLANS_REMEMBERED:
            del self._plans[next(iter(self._plans))]

    def planned(self, group: str, user: str) -> list[tuple[str, int, int]]:
        """What the same user planned for a group, as far as its topics are still there."""
        planner, offsets = self._plans.get(group, ("", []))
        return [place for place in offsets if planner == user and self._broker.topics.get(place[0]) is not None]

    async def abort(self, writer: str, epoch: int) -> bool:
        """Give up an epoch; False, and nothing happens, when it was published."""
        check_writer(writer, epoch)
        if self._table.is_published(writer, epoch):
            return False
        if self.epoch(writer, epoch) is not None:
            await self._broker.work.journal.submit(["unstage", writer, epoch])
        return not self._table.is_published(writer, epoch)

    # --- keeping house

    async def collect(self) -> None:
        """Let go of what nobody came back for."""
        before_ms = self._broker.clock.now_ms() - round(1000 * self._timeout_s)
        for writer, epoch, found in self.epochs():
            if found.touched_ms <= before_ms:
                logger.warning("epoch %d of writer %s: void", epoch, writer)
                await self._broker.work.journal.submit(["unstage", writer, epoch])

    def lowest_ref(self) -> int | None:
        """Where the first staged record lies that is still needed."""
        found = [*self._arriving.values()]
        lowest = self._table.lowest_ref()
        return min(found if lowest is None else [*found, lowest], default=None)


def check_writer(writer: str, epoch: int) -> None:
    size = len(writer.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= limits.STAGE_WRITER_BYTES_MAX:
        raise BraidError("INVALID_ARGUMENT", reason=f"a writer's name of {size} bytes is not 1 to {limits.STAGE_WRITER_BYTES_MAX}")
    if epoch < 0:
        raise BraidError("INVALID_ARGUMENT", reason=f"there is no epoch {epoch}")
