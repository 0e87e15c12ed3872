"""Consumer groups on a bench: journals and logs on a given disk, a clock that tests move, and no threads.

Syncs run at once on the test's own event loop. `crashed` gives the bench that the next process would find.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from braidmq.base.clock import ManualClock
from braidmq.base.disk_faulty import FaultyDisk, SimulatedCrash
from braidmq.broker.group_offsets import GroupOffsets
from braidmq.broker.groups import GroupCoordinator
from braidmq.broker.journal import Journal
from braidmq.broker.store import LogStore
from braidmq.broker.topics import Topic, TopicTable
from braidmq.log.commit import GroupCommit, InlineSyncer
from braidmq.log.partition import LogSettings, PartitionLog

T = TypeVar("T")
_TURNS = 40
"""More turns of the loop than any operation takes when the disk answers at once."""


class GroupBench:
    def __init__(self, disk: FaultyDisk | None = None, clock: ManualClock | None = None, **settings: Any) -> None:
        self.disk = disk if disk is not None else FaultyDisk()
        self.clock = clock or ManualClock()
        self.loop = asyncio.new_event_loop()
        self._crashes: list[BaseException] = []
        self.loop.set_exception_handler(self._note)
        self.commit = GroupCommit(self.clock, InlineSyncer(self.disk), self.loop.call_soon)
        self.store = LogStore(self.disk, "/data")
        self.topics = TopicTable()
        self.offsets = GroupOffsets()
        self.coordinator = GroupCoordinator(
            self.offsets, self.topics, self.log, self.clock, self._submit_offsets, self._at_once, **settings
        )
        self._metadata: Journal
        self._journal: Journal

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._crashes.append(context["exception"])
        self.loop.stop()

    def start(self) -> GroupBench:
        """Recover; a crash of the disk may come in the middle."""
        self.store.open()
        self._metadata = Journal(self.disk, self.store.internal("metadata", LogSettings()), self.commit, self.topics)
        self._journal = Journal(self.disk, self.store.internal("offsets", LogSettings()), self.commit, self.offsets)
        self._metadata.replay()
        self._journal.replay()
        self.offsets.keep_topics(lambda topic_id: self.topics.by_id(topic_id) is not None)
        return self

    async def _submit_offsets(self, command: list[Any]) -> Any:
        return await self._journal.submit(command)

    @staticmethod
    async def _at_once(action: Callable[[], None]) -> None:
        action()

    # --- running

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run to the end; a simulated crash on the way is raised."""
        task = self.loop.create_task(coroutine)
        self.turns(task)
        assert task.done(), "it waits for something that nobody does"
        return task.result()

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start something that may have to wait for others."""
        task = self.loop.create_task(coroutine)
        self.turns(task)
        return task

    def turns(self, task: asyncio.Task[Any] | None = None) -> None:
        """Let the loop turn until everything that can happen has happened."""

        async def idle() -> None:
            for _ in range(_TURNS):
                await asyncio.sleep(0)

        waiting = self.loop.create_task(idle())
        try:
            self.loop.run_until_complete(waiting)
        except RuntimeError:
            # The exception handler has stopped the loop.
            assert self._crashes
        if self._crashes:
            for running in asyncio.all_tasks(self.loop):
                running.cancel()
            raise self._crashes.pop(0)
        if task is not None and task.done() and isinstance(task.exception(), SimulatedCrash):
            raise SimulatedCrash from task.exception()

    def close(self) -> None:
        if self.loop.is_closed():
            return
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def crashed(self, seed: int | None = None, *, power: bool = True) -> GroupBench:
        """The files in the hands of the next process."""
        self.close()
        return GroupBench(self.disk.crash(seed, power=power), self.clock).start()

    def snapshot(self) -> None:
        self._journal.save_snapshot()
        self._metadata.save_snapshot()

    # --- topics and records

    def log(self, topic: Topic, partition: int) -> PartitionLog:
        return self.store.partition(topic.id, topic.name, partition, LogSettings())

    def create(self, name: str, partitions: int = 1) -> Topic:
        topic: Topic = self.run(self._metadata.submit(self.topics.create(name, partitions, self.clock.now_ms(), {})))
        self.coordinator.topic_changed(name)
        return topic

    def delete(self, name: str) -> None:
        async def deleting() -> None:
            gone: Topic = await self._metadata.submit(self.topics.delete(name))
            self.store.retire_topic(gone.id, gone.partitions)
            self.store.remove_topic_files(gone.id)
            self.coordinator.topic_removed(gone)
            await self._journal.submit(self.offsets.forget_topic(gone.id))

        self.run(deleting())

    def produce(self, name: str, partition: int, *values: bytes) -> None:
        """One batch, now."""
        topic = self.topics.get(name)
        assert topic is not None
        log = self.log(topic, partition)
        for value in values:
            log.accumulator.append(None, value)
        self.commit.touch(log)
        self.turns()

    def committed(self) -> dict[tuple[str, str, int], int]:
        """Every committed offset by topic, group and partition."""
        groups = list(self.coordinator.each_group())
        return {(info.topic, info.group, partition): offset for info in groups for partition, offset in info.offsets}
