"""Expired records become letters once, whatever ends the broker, and a start looks only at what is new."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from work_bench import all_values, crash_points, fates, run_broker, settings_of

from braidmq.base.clock import ManualClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.broker.broker import Broker
from braidmq.broker.expired_letters import ExpiredLetters
from braidmq.log import expiry_cursor
from braidmq.log.expiry_cursor import ExpiryCursor
from braidmq.log.level import Level
from braidmq.log.partition import PartitionLog


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Offsets from which somebody read on."""
    seen: list[int] = []
    look = ExpiredLetters._look

    async def noting(self: ExpiredLetters, log: PartitionLog, cursor: ExpiryCursor) -> None:
        seen.append(cursor.offset)
        await look(self, log, cursor)

    monkeypatch.setattr(ExpiredLetters, "_look", noting)
    return seen


async def fill(broker: Broker, first: int, count: int, **ttl: int) -> None:
    for number in range(first, first + count):
        await broker.append(broker.topic("a"), 0, b"", b"%d" % number, ttl_ms=ttl.get("ttl_ms", 1000 * (1 + number % 7)))


def moved(broker: Broker, seconds: float) -> None:
    assert isinstance(broker.clock, ManualClock)
    broker.clock.advance(seconds)


@pytest.mark.parametrize("orderly", [True, False])
def test_a_start_looks_only_at_what_is_new(orderly: bool, looks: list[int]) -> None:
    disk, clock = FaultyDisk(), ManualClock()

    async def script(broker: Broker) -> None:
        await broker.create_topic("a", 1, {"dlq_expired": "true"})
        await fill(broker, 0, 50)
        moved(broker, 3)
        assert await broker.expired_letters.sweep() == 22
        await broker.checkpoint()
        if not orderly:
            await fill(broker, 50, 5)

    run_broker(script, disk, clock=clock, stop=orderly)
    assert looks == [0]

    async def afterwards(broker: Broker) -> None:
        looks.clear()
        assert await broker.expired_letters.sweep() == 0
        assert looks == ([] if orderly else [50]), "nothing is read that was looked at before"
        moved(broker, 10)
        assert await broker.expired_letters.sweep() == (28 if orderly else 33)
        await fill(broker, 60, 1)
        moved(broker, 10)
        assert await broker.expired_letters.sweep() == 1 and await broker.expired_letters.sweep() == 0

    run_broker(afterwards, disk if orderly else disk.crash(), clock=clock)

    async def at_last(broker: Broker) -> None:
        assert await broker.expired_letters.sweep() == 0
        found = Counter(all_values(broker, "a.dlq"))
        assert sum(found.values()) == len(found) == (51 if orderly else 56), "each of them once"

    if orderly:
        run_broker(at_last, disk, clock=clock)


class Expiring:
    """Records that expire while others come, with checkpoints before, between and after."""

    def __init__(self) -> None:
        self.produced: set[bytes] = set()

    async def __call__(self, broker: Broker) -> None:
        await broker.create_topic("a", 1, {"dlq_expired": "true"})
        for turn in range(3):
            for number in range(2):
                value = b"%d-%d" % (turn, number)
                await broker.append(broker.topic("a"), 0, b"", value, ttl_ms=1500 - 500 * number)
                self.produced.add(value)
            moved(broker, 0.6 if turn < 2 else 5)
            # Whatever a checkpoint says while letters are made must not be ahead of them.
            await asyncio.gather(broker.expired_letters.sweep(), broker.checkpoint())
            await broker.checkpoint()

    async def check(self, broker: Broker) -> None:
        moved(broker, 10)
        await broker.expired_letters.sweep()
        found = Counter(all_values(broker, "a.dlq"))
        assert all(count == 1 for count in found.values()), f"a letter each: {found}"
        assert set(found) >= self.produced, "and none is missing"
        if broker.topics.get("a") is not None:
            await broker.append(broker.topic("a"), 0, b"", b"more", ttl_ms=1)
            moved(broker, 1)
            await broker.expired_letters.sweep()
            assert all_values(broker, "a.dlq")[-1] == b"more"


def examine(rounds: Callable[[int, int], int], level: Level = Level.FSYNC) -> int:
    scripts: list[Expiring] = []

    def script() -> Expiring:
        scripts.append(Expiring())
        return scripts[-1]

    outcomes = 0
    settings = settings_of(level)
    for disk, clock, _ in crash_points(script, settings=settings, step=rounds(5, 1)):
        for found in fates(disk, rounds(1, 6)) if level is Level.FSYNC else [disk.crash(power=False)]:
            run_broker(scripts[-1].check, found, clock=clock, settings=settings)
            outcomes += 1
    return outcomes


@pytest.mark.parametrize("level", [Level.FSYNC, Level.OS])
def test_a_crash_at_any_step(level: Level, rounds: Callable[[int, int], int]) -> None:
    assert examine(rounds, level) > 30


def test_a_cursor_ahead_of_the_letters_loses_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: a piece that moves on before its letters are decided."""
    expired = ExpiredLetters._expired

    async def hasty(self: ExpiredLetters, log: PartitionLog, start: int, end: int, now_ms: int) -> Any:
        found, following = await expired(self, log, start, end, now_ms)
        assert log.expiry_cursor is not None
        log.expiry_cursor.settle(start, following)
        await self._broker.checkpoint()
        return found, following

    monkeypatch.setattr(ExpiredLetters, "_expired", hasty)
    with pytest.raises(AssertionError, match="none is missing"):
        examine(lambda short, _: short)


def test_a_record_that_expires_before_it_is_written_is_no_exception() -> None:
    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1, {"dlq_expired": "true"})
        await broker.append(topic, 0, b"", b"first", ttl_ms=3000)
        moved(broker, 2)
        broker.stage(topic, 0, b"", b"second", ttl_ms=1)
        moved(broker, 1)
        # The first expires later than the second, which nobody can read yet.
        assert await broker.expired_letters.sweep() == 2
        assert sorted(all_values(broker, "a.dlq")) == [b"first", b"second"]

    run_broker(script)


def test_a_disk_that_is_full_keeps_nobody_waiting() -> None:
    disk = FaultyDisk()

    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1, {"dlq_expired": "true"})
        await broker.append(topic, 0, b"", b"first", ttl_ms=1000)
        moved(broker, 1)
        disk.fail("write", path=broker.log_of(topic, 0).segments[-1].log_path, code=28)
        broker.stage(topic, 0, b"", b"never", ttl_ms=1)
        assert await broker.expired_letters.sweep() == 1
        broker.log_of(topic, 0).fail("a sync failed")
        await broker.expired_letters.sweep()
        assert all_values(broker, "a.dlq") == [b"first"]

    run_broker(script, disk, stop=False)


def test_the_clock_never_begins_behind_what_expired() -> None:
    """Only the journal knows how late it was: the file with the time is from the start of the last run."""
    disk, clock = FaultyDisk(), ManualClock()

    async def script(broker: Broker) -> None:
        await broker.create_topic("a", 1, {"dlq_expired": "true"})
        await fill(broker, 0, 1, ttl_ms=50_000)
        moved(broker, 50)
        assert await broker.expired_letters.sweep() == 1

    run_broker(script, disk, clock=clock, stop=False)
    clock.reboot()
    clock.jump(-3600)

    async def afterwards(broker: Broker) -> None:
        await fill(broker, 1, 1, ttl_ms=10)
        moved(broker, 1)
        assert await broker.expired_letters.sweep() == 1, "nothing expires behind the mark"

    run_broker(afterwards, disk.crash(), clock=clock)


def test_what_retention_took_is_forgotten() -> None:
    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1, {"dlq_expired": "true", "segment_bytes": "4096", "retention_bytes": "4096"})
        log = broker.log_of(topic, 0)
        for number in range(20):
            await broker.append(topic, 0, b"", b"%d" % number + bytes(1500), ttl_ms=10**12)
            await broker.expired_letters.sweep()
            await broker.apply_retention()
        assert log.expiry_cursor is not None and log.log_start > 0
        assert len(log.expiry_cursor) <= 1 and log.expiry_cursor.dump()[1][0][1] > log.log_start

    run_broker(script)


def test_a_cursor_that_is_ahead_of_its_log_begins_anew() -> None:
    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1, {"dlq_expired": "true"})
        await broker.append(topic, 0, b"", b"v", ttl_ms=1)
        broker.log_of(topic, 0).expiry_cursor = ExpiryCursor(100)
        moved(broker, 1)
        assert await broker.expired_letters.sweep() == 1

    run_broker(script)


def test_a_cursor_knows_what_a_list_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry_cursor, "PIECE_BYTES", 100)
    rng = random.Random(5)
    cursor = ExpiryCursor()
    model: list[tuple[int, int]] = []
    """(offset, expiry) of what is yet to expire."""
    offset, now = 0, 0
    for _ in range(3000):
        match rng.randrange(4):
            case 0 | 1:
                count = rng.randint(1, 4)
                expiring = [(offset + n, now + rng.randint(1, 500)) for n in range(count) if rng.random() < 0.7]
                first = min((expiry for _, expiry in expiring), default=None)
                cursor.look(offset, offset + count, first, rng.randint(10, 70))
                model += expiring
                offset += count
            case 2:
                now += rng.randint(0, 60)
                found = cursor.due(now)
                assert cursor.due(now) == found, "they stay until they are settled"
                covered = [entry for entry in model if any(start <= entry[0] < end for start, end in found)]
                assert [entry for entry in model if entry[1] <= now] == [entry for entry in covered if entry[1] <= now]
                for start, end in found:
                    left = [expiry for at, expiry in model if start <= at < end and expiry > now]
                    cursor.settle(start, min(left, default=None))
                model = [entry for entry in model if entry[1] > now]
            case _:
                cursor = ExpiryCursor.load(cursor.dump())
                assert cursor.offset == offset
                if rng.random() < 0.1:
                    cursor.forget_below(offset)
                    model = []
                    assert len(cursor) == 0
    assert len(cursor) < 200
