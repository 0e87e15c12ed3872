"""A crash inside each step of each two-step operation: commit, delayed delivery, dead letters on their way in and out.

Each script runs until every operation of the disk in turn was its last, once as a kill and twice as a loss of power. What the
next start finds must be one of the few states that the operation may leave, and everything that was acknowledged. The canaries at
the end take a protection away, and the same checks must fail.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from work_bench import all_values, crash_points, crashes, fates, run_broker, settings_of, values_in

from braidmq.base.clock import ManualClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.broker.broker import Broker
from braidmq.broker.work import WorkEngine
from braidmq.log.level import Level
from braidmq.log.producers import ProducerTable

# --- transactions


class Commit:
    """Three transactions over two topics, one of them aborted, one with an offset."""

    offsets = True
    """Whether group offsets are as durable as the records."""

    def __init__(self) -> None:
        self.acked: set[str] = set()

    async def __call__(self, broker: Broker) -> None:
        await broker.create_topic("a", 2)
        await broker.create_topic("b", 1)
        for name in ("x", "y", "z"):
            transaction = await broker.transactions.begin(self, name="producer" if name == "z" else "")
            for number in range(4):
                key, value = b"" if number % 2 else b"key", b"%s%d" % (name.encode(), number)
                await broker.transactions.produce(transaction.id, "a", key, value)
            await broker.transactions.produce(transaction.id, "b", b"", b"%sb" % name.encode())
            broker.transactions.add_offsets(transaction.id, "group", [("b", 0, ord(name))])
            if name == "y":
                await broker.transactions.abort(transaction.id)
            else:
                await broker.transactions.commit(transaction.id)
                self.acked.add(name)

    async def check(self, broker: Broker) -> None:
        found = Counter(value[:1].decode() for topic in ("a", "b") for value in all_values(broker, topic))
        assert all(count == 5 for count in found.values()), f"all or nothing, and once: {found}"
        assert set(found) <= {"x", "z"}, "what was not committed is never seen"
        assert set(found) >= self.acked, "what was committed stays"
        assert "z" not in found or "x" in found, "in the order of the commits"
        if broker.topics.get("b") is not None and self.offsets:
            committed = broker.groups.committed(broker.topic("b").id, "group", 0)
            assert committed == (ord("z") if "z" in found else ord("x") if "x" in found else None), "offsets go with the records"
        assert not broker.work.table.work, "everything that was decided is done before clients come"
        assert not any(log.producers.work_numbers() for log in broker.store.open_partitions())
        before = {topic: all_values(broker, topic) for topic in ("a", "b")}
        again = await broker.transactions.begin(None)
        await broker.transactions.produce(again.id, "b", b"", b"again")
        await broker.transactions.commit(again.id)
        assert all_values(broker, "b") == [*before["b"], b"again"] and all_values(broker, "a") == before["a"]


# --- delayed messages


class Delay:
    """Three messages of which one is cancelled; the others become due and are delivered."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        self.cancelling = self.cancelled = False

    async def __call__(self, broker: Broker) -> None:
        clock = broker.clock
        assert isinstance(clock, ManualClock)
        ids = {}
        for value in (b"one", b"two", b"three"):
            ids[value] = (await broker.delayed.produce("later", b"", value, 1000)).id
            self.sent.add(value)
        self.cancelling = True
        await broker.delayed.cancel(ids[b"two"])
        self.cancelled = True
        clock.advance(1.0)
        await broker.delayed.deliver_due()
        assert Counter(all_values(broker, "later")) == Counter([b"one", b"three"])
        await broker.delayed.produce("later", b"key", b"four", 500)
        self.sent.add(b"four")

    async def check(self, broker: Broker) -> None:
        clock = broker.clock
        assert isinstance(clock, ManualClock)
        clock.advance(1.0)
        await broker.delayed.deliver_due()
        found = Counter(all_values(broker, "later"))
        assert all(count == 1 for count in found.values()), f"delivered once: {found}"
        assert set(found) >= self.sent - ({b"two"} if self.cancelling else set()), "nothing that was accepted is lost"
        assert not (self.cancelled and b"two" in found), "what was cancelled never comes"
        assert len(broker.delayed) == 0 and not broker.work.table.work


# --- dead letters


class Letters:
    """Two records fail for good, one of them is replayed, then the other with everything."""

    def __init__(self) -> None:
        self.buried: list[bytes] = []
        self.replayed: list[bytes] = []
        self.produced = 0

    async def __call__(self, broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        for value in (b"one", b"two"):
            await broker.append(topic, 0, b"", value)
            self.produced += 1
        for offset, value in enumerate((b"one", b"two")):
            for attempt in range(3):
                failed = await broker.dead_letters.fail("a", 0, offset, "group", "processing_error", "boom")
                assert failed.attempts == attempt + 1
            assert failed.dead_lettered
            self.buried.append(value)
        (letter, _) = await broker.dead_letters.letters("a")
        await broker.dead_letters.replay_id("a", letter.id)
        self.replayed.append(letter.value)
        assert await broker.dead_letters.replay_matching("a") == 1
        self.replayed.append(b"two")

    async def check(self, broker: Broker) -> None:
        if broker.topics.get("a") is None:
            return
        here = Counter(values_in(broker, "a"))
        listed = Counter(letter.value for letter in await broker.dead_letters.letters("a"))
        stored = Counter(all_values(broker, "a.dlq"))
        for value in (b"one", b"two")[: self.produced]:
            assert stored[value] <= 1, "a letter is made once"
            assert listed[value] + here[value] - 1 == stored[value], "a letter is in the list, or it was replayed, once"
            if value in self.buried:
                assert stored[value] == 1
            if value in self.replayed:
                assert here[value] == 2
        # A consumer that did not hear how its call ended makes it again.
        for offset, value in enumerate((b"one", b"two")[: self.produced]):
            while not (await broker.dead_letters.fail("a", 0, offset, "group", "processing_error", "boom")).dead_lettered:
                pass
            assert Counter(all_values(broker, "a.dlq"))[value] == 1


class Expire:
    """Three records expire and become letters."""

    def __init__(self) -> None:
        self.produced = 0

    async def __call__(self, broker: Broker) -> None:
        clock = broker.clock
        assert isinstance(clock, ManualClock)
        topic = await broker.create_topic("a", 1, {"dlq_expired": "true"})
        for number in range(3):
            await broker.append(topic, 0, b"", b"%d" % number, ttl_ms=1000 - 10 * number)
            self.produced += 1
        clock.advance(2)
        assert await broker.expired_letters.sweep() == 3
        assert await broker.expired_letters.sweep() == 0

    async def check(self, broker: Broker) -> None:
        clock = broker.clock
        assert isinstance(clock, ManualClock)
        clock.advance(2)
        await broker.expired_letters.sweep()
        found = Counter(all_values(broker, "a.dlq"))
        assert all(count == 1 for count in found.values())
        assert set(found) >= {b"%d" % number for number in range(self.produced)}


Operation = type[Commit] | type[Delay] | type[Letters] | type[Expire]
OPERATIONS: list[Operation] = [Commit, Delay, Letters, Expire]


async def repair(broker: Broker) -> None:
    """What a start does by itself, and what it is asked to do next."""
    await broker.delayed.deliver_due()
    await broker.expired_letters.sweep()


def examine(operation: Operation, rounds: int, step: int = 1, start: int = 0) -> int:
    """Crash an operation everywhere and look at every outcome; returns how many there were."""
    scripts: list[Commit | Delay | Letters | Expire] = []

    def script() -> Commit | Delay | Letters | Expire:
        scripts.append(operation())
        return scripts[-1]

    outcomes = 0
    for disk, clock, _ in crash_points(script, step=step, start=start):
        for found in fates(disk, rounds):
            run_broker(scripts[-1].check, found, clock=clock)
            outcomes += 1
    return outcomes


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_crash_at_any_step_leaves_all_or_nothing(operation: Operation, rounds: Callable[[int, int], int]) -> None:
    assert examine(operation, rounds(1, 8), step=rounds(3, 1)) > 30


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_second_crash_while_the_first_is_repaired(operation: Operation, rounds: Callable[[int, int], int]) -> None:
    scripts: list[Commit | Delay | Letters | Expire] = []

    def script() -> Commit | Delay | Letters | Expire:
        scripts.append(operation())
        return scripts[-1]

    for disk, clock, point in crash_points(script, step=rounds(17, 1), start=3):
        found = disk.crash(point, power=point % 2 == 0)
        for again in range(point % 3, 40, rounds(5, 1)):
            second = found.crash(again, power=False)
            second.crash_after(again)
            if not crashes(repair, second, clock):
                break
            run_broker(scripts[-1].check, second.crash(again, power=again % 2 == 0), clock=clock)


def test_a_loss_of_power_when_topics_promise_more_than_the_broker(rounds: Callable[[int, int], int]) -> None:
    """Group offsets have the broker's own level, so they may be lost; the records of a transaction stay together."""

    class Synced(Commit):
        offsets = False

        async def __call__(self, broker: Broker) -> None:
            await broker.create_topic("a", 2, {"durability": "fsync"})
            await broker.create_topic("b", 1, {"durability": "fsync"})
            await super().__call__(broker)

    scripts: list[Commit] = []

    def script() -> Commit:
        scripts.append(Synced())
        return scripts[-1]

    settings = settings_of(Level.OS)
    for disk, clock, _ in crash_points(script, settings=settings, step=rounds(3, 1)):
        for found in fates(disk, rounds(1, 8)):
            run_broker(scripts[-1].check, found, clock=clock, settings=settings)


def test_a_kill_at_any_step_when_topics_differ_in_what_they_promise(rounds: Callable[[int, int], int]) -> None:
    """At level `os` nothing waits for a sync, so the steps fall together; a kill must leave the same states."""

    class Mixed(Commit):
        async def __call__(self, broker: Broker) -> None:
            await broker.create_topic("b", 1, {"durability": "os"})
            await super().__call__(broker)

    scripts: list[Commit] = []

    def script() -> Commit:
        scripts.append(Mixed())
        return scripts[-1]

    for level in (Level.OS, Level.FSYNC):
        for disk, clock, _ in crash_points(script, settings=settings_of(level), step=rounds(5, 1)):
            run_broker(scripts[-1].check, disk.crash(power=False), clock=clock, settings=settings_of(level))


# --- canaries


@pytest.mark.parametrize("operation", [Commit, Delay, Letters])
def test_without_knowing_what_is_there_records_come_twice(operation: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerTable, "work_records", lambda *_: 0)
    with pytest.raises(AssertionError):
        examine(operation, 1)


@pytest.mark.parametrize("operation", [Commit, Delay, Letters])
def test_without_rolling_forward_records_are_lost(operation: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: WorkEngine, *, wait: bool = True) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(WorkEngine, "start", nothing)
    monkeypatch.setattr(WorkEngine, "tick", nothing)
    with pytest.raises(AssertionError):
        examine(operation, 1)


def test_done_before_it_is_done_loses_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the last two steps matters."""
    do = WorkEngine._do

    async def hasty(self: WorkEngine, work: object, staged: object) -> None:
        self.journal.post(["done", work.number])  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        self.table.work[work.number] = work  # type: ignore[attr-defined, assignment]
        await do(self, work, staged)  # type: ignore[arg-type]

    monkeypatch.setattr(WorkEngine, "_do", hasty)
    with pytest.raises(AssertionError):
        examine(Commit, 2)


def test_a_disk_that_never_dies_is_noticed() -> None:
    assert not crashes(Commit(), FaultyDisk(), ManualClock())
