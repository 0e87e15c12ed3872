"""The whole broker under crashes: topics, records, deletions, group offsets, snapshots and checkpoints at every step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import broker_bench
import pytest
from broker_bench import DATA, crashing, run_broker, values_of

from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.settings import BrokerSettings
from braidmq.log.level import Level


def settings_of(level: Level = Level.FSYNC) -> BrokerSettings:
    """Snapshots and journal segments of a few commands, so that a short script meets their ends."""
    return replace(broker_bench.settings_of(level), journal_snapshot_commands=2, journal_segment_bytes=300)


class Facts:
    """What a client was told, and what it asked for last: only that may be either way."""

    def __init__(self) -> None:
        self.topics: dict[str, tuple[int, int]] = {}
        self.records: dict[str, list[bytes]] = {}
        self.offsets: dict[tuple[str, str], int] = {}
        self.deleted: set[str] = set()
        self.pending: tuple[str, object] | None = None

    async def create(self, broker: Broker, name: str, partitions: int) -> None:
        self.pending = ("create", name)
        topic = await broker.create_topic(name, partitions)
        self.topics[name] = (topic.id, topic.partitions)
        self.records[name] = []
        self.deleted.discard(name)
        self.pending = None

    async def produce(self, broker: Broker, name: str, value: bytes) -> None:
        self.pending = ("produce", (name, value))
        await broker.append(broker.topic(name), 0, b"", value)
        self.records[name].append(value)
        self.pending = None

    async def commit(self, broker: Broker, name: str, group: str, offset: int) -> None:
        self.pending = ("commit", (name, group, offset))
        await broker.commit_offset(name, group, 0, offset)
        self.offsets[name, group] = offset
        self.pending = None

    async def delete(self, broker: Broker, name: str) -> None:
        self.pending = ("delete", name)
        assert await broker.delete_topic(name)
        self.forget(name)
        self.pending = None

    def forget(self, name: str) -> None:
        del self.topics[name], self.records[name]
        self.deleted.add(name)
        self.offsets = {key: offset for key, offset in self.offsets.items() if key[0] != name}

    def adopt(self, broker: Broker) -> None:
        """From here on, what was found after the crash is what is true."""
        self.pending = None
        self.topics = {topic.name: (topic.id, topic.partitions) for topic in broker.topics.all()}
        self.records = {name: values_of(broker, name) for name in self.topics}
        for name, group in self.offsets:
            self.offsets[name, group] = broker.groups.committed(broker.topic(name).id, group, 0) or 0

    async def check(self, broker: Broker) -> None:
        kind, what = self.pending or ("", "")
        if kind == "delete" and broker.topics.get(str(what)) is None:
            self.forget(str(what))
        for name, identity in self.topics.items():
            topic = broker.topics.get(name)
            assert topic is not None and (topic.id, topic.partitions) == identity, f"{name} is not as it was"
            found = values_of(broker, name)
            allowed = [self.records[name]]
            if kind == "produce" and what[0] == name:  # type: ignore[index]
                allowed.append([*self.records[name], what[1]])  # type: ignore[index]
            assert found in allowed, f"{name} holds {len(found)} records, not {len(self.records[name])}"
        names = set(broker.topic_names())
        assert names - set(self.topics) <= ({str(what)} if kind == "create" else set())
        for (name, group), offset in self.offsets.items():
            committed = broker.groups.committed(broker.topic(name).id, group, 0)
            assert committed == offset or (kind == "commit" and (name, group, committed) == what)
        directories = {name for name in broker.disk.list_directory(f"{DATA}/topics")}
        assert directories <= {str(broker.topic(name).id) for name in names}, "nothing of a deleted topic is left"


def script(facts: Facts) -> Callable[[Broker], object]:
    async def work(broker: Broker) -> None:
        await facts.create(broker, "alpha", 3)
        for number in range(3):
            await facts.produce(broker, "alpha", b"%d" % number * 900)
        await facts.commit(broker, "alpha", "readers", 2)
        await facts.create(broker, "beta/ü", 1)
        await facts.produce(broker, "beta/ü", b"b" * 500)
        await broker.checkpoint()
        await facts.delete(broker, "alpha")
        await facts.create(broker, "gamma", 2)
        for number in range(3):
            await facts.produce(broker, "gamma", b"%d" % number * 1300)
        await facts.create(broker, "alpha", 1)
        await facts.produce(broker, "alpha", b"a new life")
        await facts.commit(broker, "gamma", "readers", 1)
        await facts.commit(broker, "gamma", "readers", 3)
        await broker.checkpoint()
        await facts.produce(broker, "gamma", b"last")

    return work


@pytest.mark.parametrize("stop", [False, True])
def test_a_crash_at_any_step_leaves_what_clients_were_told(stop: bool, rounds: Callable[[int, int], int]) -> None:
    settings = settings_of()
    whole = FaultyDisk(1)
    assert not crashing(script(Facts()), whole, settings, stop=stop)  # type: ignore[arg-type]
    assert whole.operations > 100
    points = range(0, whole.operations, rounds(5, 1))
    for point in points:
        disk = FaultyDisk(1)
        disk.crash_after(point)
        facts = Facts()
        assert crashing(script(facts), disk, settings, stop=stop)  # type: ignore[arg-type]
        for fate in range(rounds(1, 6)):
            after = disk.crash(point + fate)
            again = copy.deepcopy(facts)

            async def check_and_go_on(broker: Broker, facts: Facts = again) -> None:
                await facts.check(broker)
                facts.adopt(broker)
                await facts.create(broker, "delta", 1)
                for name in list(facts.topics):
                    await facts.produce(broker, name, b"after " + name.encode())

            run_broker(check_and_go_on, after, settings, stop=fate % 2 == 0)
            run_broker(again.check, after.crash(fate), settings)


def test_the_death_of_the_process_at_any_step_loses_nothing_at_level_os(rounds: Callable[[int, int], int]) -> None:
    settings = settings_of(Level.OS)
    whole = FaultyDisk(2)
    assert not crashing(script(Facts()), whole, settings, stop=True)  # type: ignore[arg-type]
    for point in range(0, whole.operations, rounds(7, 1)):
        disk = FaultyDisk(2)
        disk.crash_after(point)
        facts = Facts()
        assert crashing(script(facts), disk, settings, stop=True)  # type: ignore[arg-type]
        run_broker(facts.check, disk.crash(power=False), settings)


def test_topics_are_durable_at_every_level(rounds: Callable[[int, int], int]) -> None:
    """At level `os` records may go with the power; topics and their ids may not, and the broker starts all the same."""
    settings = settings_of(Level.OS)
    whole = FaultyDisk(3)
    assert not crashing(script(Facts()), whole, settings, stop=False)  # type: ignore[arg-type]
    for point in range(0, whole.operations, rounds(7, 1)):
        disk = FaultyDisk(3)
        disk.crash_after(point)
        facts = Facts()
        assert crashing(script(facts), disk, settings, stop=False)  # type: ignore[arg-type]

        async def check(broker: Broker, facts: Facts = facts) -> None:
            kind, what = facts.pending or ("", "")
            for name, identity in facts.topics.items():
                topic = broker.topics.get(name)
                if topic is None:
                    assert (kind, what) == ("delete", name)
                else:
                    assert (topic.id, topic.partitions) == identity

        for fate in range(rounds(2, 6)):
            run_broker(check, disk.crash(fate), settings)


def test_a_lying_sync_is_caught() -> None:
    """The canary: on a disk that lies, the check of this file finds the loss."""
    disk = FaultyDisk(4)
    disk.lying_syncs = True
    facts = Facts()
    assert not crashing(script(facts), disk, settings_of(), stop=False)  # type: ignore[arg-type]
    losses = 0
    for fate in range(8):
        try:
            run_broker(facts.check, disk.crash(fate), settings_of())
        except (AssertionError, BraidError):
            losses += 1
    assert losses
