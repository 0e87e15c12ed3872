"""Staged writes: published at one moment and once, whatever dies in between."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from work_bench import all_values, crash_points, expect, fates, records_in, run_broker, settings_of, values_in

from braidmq import hot
from braidmq.base import limits
from braidmq.base.clock import ManualClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.work import WorkEngine
from braidmq.broker.work_table import Work
from braidmq.log.attrs import encode_headers


def batch(*values: bytes, key: bytes | None = None, attrs: bytes = b"") -> bytes:
    return hot.encode_batch([key] * len(values), list(values), [attrs] * len(values) if attrs else None)


def test_an_epoch_is_invisible_until_it_is_published_and_only_the_chosen_attempts_count() -> None:
    async def script(broker: Broker) -> None:
        await broker.create_topic("out", 2)
        stages = broker.stages
        headers = encode_headers({"h": b"1"})
        await stages.stage("query", 0, 1, 70, 0, "out", 0, batch(b"b0", b"b1"))
        await stages.stage("query", 0, 0, 50, 0, "out", 0, batch(b"lost"))
        await stages.stage("query", 0, 0, 60, 0, "out", 0, batch(b"a0", key=b"k", attrs=headers))
        state = await stages.stage("query", 0, 0, 60, 1, "out", 1, batch(b"a1"))
        assert (state.published, state.stages, state.batches) == (False, 3, 4)
        assert state == await stages.stage("query", 0, 0, 60, 1, "out", 1, batch(b"other")), "the same place again"
        assert all_values(broker, "out") == []
        assert await stages.publish("query", 0, [(1, 70, 1), (0, 60, 2)], "group", [("out", 0, 9)])
        assert values_in(broker, "out", 0) == [b"a0", b"b0", b"b1"], "in the order of the tasks"
        assert values_in(broker, "out", 1) == [b"a1"]
        assert records_in(broker, "out", 0)[0][1:] == (b"k", b"a0", headers)
        assert broker.groups.committed(broker.topic("out").id, "group", 0) == 9
        assert not await stages.publish("query", 0, [(5, 5, 5)]), "once, and then whatever is asked"
        assert not await stages.abort("query", 0), "too late"
        late = await stages.stage("query", 0, 3, 1, 0, "out", 0, batch(b"late"))
        assert late.published and late.batches == 0
        assert all_values(broker, "out") == [b"a0", b"b0", b"b1", b"a1"] and stages.status("query", 0).published
        assert broker.stages.epochs() == [] and broker.work.table.stages.size == 0
        assert await stages.publish("query", 3, []), "an epoch may be empty, and some may be missing"
        assert stages.status("query", 2).published

    run_broker(script)


def test_what_is_given_up_or_was_never_staged_cannot_be_published() -> None:
    async def script(broker: Broker) -> None:
        stages = broker.stages
        await stages.stage("w", 4, 0, 1, 0, "out", 0, batch(b"v"))
        with expect("STAGE_NOT_FOUND"):
            await stages.stage("w", 4, 0, 1, 2, "out", 0, batch(b"v"))
        with expect("STAGE_NOT_FOUND"):
            await stages.publish("w", 4, [(0, 1, 2)])
        assert await stages.abort("w", 4) and await stages.abort("w", 4)
        with expect("STAGE_NOT_FOUND"):
            await stages.publish("w", 4, [(0, 1, 1)])
        assert not stages.status("w", 4).published and all_values(broker, "out") == []
        await stages.stage("w", 4, 0, 2, 0, "gone", 0, batch(b"v"))
        await broker.delete_topic("gone")
        with expect("TOPIC_NOT_FOUND"):
            await stages.publish("w", 4, [(0, 2, 1)])
        for wrong in (b"", b"no batch", batch(b"v")[:-8], hot.encode_batch([None], [b"v"], None, 7, 0, 0)):
            with expect("INVALID_BATCH"):
                await stages.stage("w", 5, 0, 1, 0, "out", 0, wrong)
        with expect("PARTITION_NOT_FOUND"):
            await stages.stage("w", 5, 0, 1, 0, "out", 99, batch(b"v"))
        with expect("INVALID_ARGUMENT"):
            await stages.stage("w", -1, 0, 1, 0, "out", 0, batch(b"v"))

    run_broker(script)


def test_what_nobody_publishes_is_void_after_a_time_and_its_files_go() -> None:
    disk, clock = FaultyDisk(), ManualClock()
    settings = settings_of(stage_timeout_s=60.0)

    async def stage(broker: Broker) -> None:
        for number in range(3):
            await broker.stages.stage("orphan", 0, 0, 1, number, "out", 0, batch(bytes(1 << 20)))

    run_broker(stage, disk, clock=clock, settings=settings)

    async def collect(broker: Broker) -> None:
        clock.advance(59.0)
        await broker.stages.collect()
        assert len(broker.stages.epochs()) == 1, "it survives a restart"
        clock.advance(2.0)
        await broker.stages.collect()
        await broker.work.tick()
        assert broker.stages.epochs() == []
        assert broker.work.stages.log.size_bytes == 0 and broker.work.table.stages.size == 0

    run_broker(collect, disk, clock=clock, settings=settings)


def test_a_schema_is_checked_while_a_batch_is_staged() -> None:
    async def script(broker: Broker) -> None:
        await broker.schemas.register("order", "json", b'{"type": "object", "required": ["id"]}')
        await broker.create_topic("strict", 1, {"schema": "order"})
        await broker.create_topic("kind", 1, {"schema": "order", "schema_rule": "dead-letter"})
        with expect("SCHEMA_VALIDATION_FAILED"):
            await broker.stages.stage("w", 0, 0, 1, 0, "strict", 0, batch(b'{"id": 1}', b"{}"))
        await broker.stages.stage("w", 0, 0, 1, 0, "kind", 0, batch(b'{"id": 1}', b"{}", b'{"id": 2}'))
        await broker.stages.stage("w", 0, 0, 1, 1, "kind", 0, batch(b"nothing fits"))
        assert await broker.dead_letters.letters("kind") == [], "letters appear with the rest"
        await broker.stages.publish("w", 0, [(0, 1, 2)])
        assert values_in(broker, "kind") == [b'{"id": 1}', b'{"id": 2}']
        letters = await broker.dead_letters.letters("kind")
        assert [letter.value for letter in letters] == [b"{}", b"nothing fits"]

    run_broker(script)


def test_limits_of_what_is_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(batch(b"v"))
    monkeypatch.setattr(limits, "STAGE_EPOCH_BYTES_MAX", 3 * size)
    monkeypatch.setattr(limits, "STAGES_BYTES_MAX", 4 * size)
    monkeypatch.setattr(limits, "STAGE_BATCHES_MAX", 3)
    monkeypatch.setattr(limits, "STAGE_WRITERS_REMEMBERED", 2)
    monkeypatch.setattr(limits, "STAGE_PLANS_REMEMBERED", 2)

    async def script(broker: Broker) -> None:
        stages = broker.stages
        for number in range(3):
            await stages.stage("w", 0, number, 1, 0, "out", 0, batch(b"v"))
        with pytest.raises(BraidError, match=f"{limits.STAGE_BATCHES_MAX} batches"):
            await stages.stage("w", 0, 9, 1, 0, "out", 0, batch(b"v"))
        with pytest.raises(BraidError, match=f"{limits.STAGES_BYTES_MAX} staged bytes"):
            await stages.stage("x", 0, 0, 1, 0, "out", 0, batch(b"v" * 1000)[: 2 * size])
        monkeypatch.setattr(limits, "STAGE_BATCHES_MAX", 9)
        with pytest.raises(BraidError, match=f"{limits.STAGE_EPOCH_BYTES_MAX} bytes"):
            await stages.stage("w", 0, 9, 1, 0, "out", 0, batch(b"v"))
        with expect("INVALID_ARGUMENT"):
            await stages.publish("w", 0, [(0, 1, 1), (0, 2, 1)])
        with expect("INVALID_ARGUMENT"):
            await stages.stage("w" * (limits.STAGE_WRITER_BYTES_MAX + 1), 0, 0, 1, 0, "out", 0, batch(b"v"))
        with expect("INVALID_ARGUMENT"):
            await stages.publish("", 0, [])
        for writer in ("a", "b", "c"):
            await stages.publish(writer, 7, [])
        assert [stages.status(writer, 7).published for writer in ("a", "b", "c")] == [False, True, True]
        assert len(broker.work.table.stages.published) == limits.STAGE_WRITERS_REMEMBERED
        for group in ("a", "b", "c"):
            stages.plan(group, "me", [("out", 0, 1)])
        assert [len(stages.planned(group, "me")) for group in ("a", "b", "c")] == [0, 1, 1]
        assert len(stages._plans) == limits.STAGE_PLANS_REMEMBERED
        assert stages.planned("c", "you") == [], "of others it is none of their business"

    run_broker(script)


def test_what_dead_attempts_staged_does_not_count_against_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(batch(b"v"))
    monkeypatch.setattr(limits, "STAGE_EPOCH_BYTES_MAX", 3 * size)
    disk = FaultyDisk()

    async def script(broker: Broker) -> None:
        for attempt in range(5):
            # Each attempt of a driver that is killed again and again stages two batches in one task and one in another.
            for task, sequence in ((0, 0), (0, 1), (1, 0)):
                await broker.stages.stage("w", 0, task, attempt, sequence, "out", 0, batch(b"%d" % attempt))
        with pytest.raises(BraidError, match=f"{limits.STAGE_EPOCH_BYTES_MAX} bytes"):
            await broker.stages.stage("w", 0, 1, 4, 1, "out", 0, batch(b"v"))

    async def after_a_restart(broker: Broker) -> None:
        with pytest.raises(BraidError, match=f"{limits.STAGE_EPOCH_BYTES_MAX} bytes"):
            await broker.stages.stage("w", 0, 2, 4, 0, "out", 0, batch(b"v"))
        await broker.stages.publish("w", 0, [(0, 4, 2), (1, 4, 1)])
        assert all_values(broker, "out") == [b"4"] * 3

    run_broker(script, disk)
    run_broker(after_a_restart, disk)


def test_publishing_twice_at_once_happens_once() -> None:
    async def script(broker: Broker) -> None:
        await broker.stages.stage("w", 0, 0, 1, 0, "out", 0, batch(b"one"))
        await broker.stages.stage("w", 0, 0, 2, 0, "out", 0, batch(b"two"))
        first, second = await asyncio.gather(
            broker.stages.publish("w", 0, [(0, 1, 1)]), broker.stages.publish("w", 0, [(0, 2, 1)])
        )
        assert (first, second) == (True, False)
        assert all_values(broker, "out") == [b"one"]

    run_broker(script, threads=True)


# --- crashes


class Epochs:
    """Two epochs of a writer over two topics, with attempts that do not count; the second is published with an offset."""

    def __init__(self) -> None:
        self.staged: set[int] = set()
        self.published: set[int] = set()

    async def __call__(self, broker: Broker) -> None:
        await broker.create_topic("a", 2)
        await broker.create_topic("b", 1)
        await self.write(broker, attempt=1)

    async def write(self, broker: Broker, attempt: int) -> None:
        for epoch in range(2):
            for task in range(2):
                await broker.stages.stage("w", epoch, task, attempt + 100, 0, "a", 0, batch(b"never"))
                for number in range(2):
                    values = [b"%d.%d.%d.%d" % (epoch, task, number, row) for row in range(3)]
                    topic, partition = ("a", number) if task == 0 else ("b", 0)
                    await broker.stages.stage("w", epoch, task, attempt, number, topic, partition, batch(*values))
            self.staged.add(epoch)
            await broker.stages.publish("w", epoch, [(0, attempt, 2), (1, attempt, 2)], "group", [("a", 0, epoch + 1)])
            self.published.add(epoch)

    async def check(self, broker: Broker) -> None:
        found = Counter(value[:1] for topic in ("a", "b") for value in all_values(broker, topic))
        assert all(count == 12 for count in found.values()), f"all or nothing, and once: {found}"
        assert set(found) >= {b"%d" % epoch for epoch in self.published}, "what was published stays"
        assert set(found) <= {b"%d" % epoch for epoch in self.staged}, "what was not published is never seen"
        if broker.topics.get("a") is not None:
            committed = broker.groups.committed(broker.topic("a").id, "group", 0)
            assert committed == (len(found) or None), "offsets go with the records"
        assert not broker.work.table.work
        # The driver comes back and does everything again, as it has to.
        await broker.create_topic("a", 2)
        await broker.create_topic("b", 1)
        await Epochs().write(broker, attempt=2)
        values = Counter(value for topic in ("a", "b") for value in all_values(broker, topic))
        assert len(values) == 24 and set(values.values()) == {1}, values
        assert broker.stages.epochs() == []


def test_a_crash_at_any_operation_of_the_disk_leaves_every_row_once() -> None:
    scripts: list[Epochs] = []

    def make() -> Epochs:
        scripts.append(Epochs())
        return scripts[-1]

    for disk, clock, _ in crash_points(make, step=7):
        for fate in fates(disk, 1):
            run_broker(scripts[-1].check, fate, clock=clock)


def test_canary_without_what_the_log_knows_of_the_work_rows_come_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above has to see it when recovery does not ask how far the work came."""
    original = WorkEngine._whole_batches

    async def forgetful(self: WorkEngine, work: Work, done: int, refs: list[int]) -> list[bytes]:
        for log in self._broker.store.open_partitions():
            log.producers.forget_work(work.number)
        return await original(self, work, 0, refs)

    monkeypatch.setattr(WorkEngine, "_whole_batches", forgetful)
    with pytest.raises(AssertionError):
        test_a_crash_at_any_operation_of_the_disk_leaves_every_row_once()


def test_canary_without_the_memory_of_published_epochs_rows_come_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidmq.broker.stage_table.StageTable.is_published", lambda self, writer, epoch: False)
    with pytest.raises(AssertionError):
        test_a_crash_at_any_operation_of_the_disk_leaves_every_row_once()
