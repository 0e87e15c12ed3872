"""A subscription over a real broker, with a receiver that takes now some and now nothing: nothing comes twice or out of order, and
whatever does not come is counted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from braidmq.base import limits
from braidmq.base.clock import SystemClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker, BrokerSettings
from braidmq.broker.push import Chunk, Feed, Overflow, PushRecord, Subscription
from braidmq.broker.topics import Topic
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings

_TURNS = 20


class Taker(Subscription):
    """Takes as many records as it has credit for."""

    def __init__(self, broker: Broker, capacity: int, overflow: Overflow, even_only: bool = False) -> None:
        super().__init__(broker.push, capacity, overflow)
        self.credit = 0
        self.taken: list[tuple[str, int, int]] = []
        self.filtered = even_only
        self.failures: list[str] = []

    def ready(self) -> bool:
        return self.credit > 0

    def send(self, feed: Feed, chunk: Chunk, stop: int, wanted: bytes | None) -> int:
        for record in chunk.records():
            if record.offset >= stop:
                break
            if wanted is not None and not wanted[record.offset - chunk.first]:
                continue
            if not self.credit:
                return record.offset
            self.credit -= 1
            self.counters.delivered += 1
            self.taken.append((feed.topic.name, feed.partition, record.offset))
        return stop

    def select(self, feed: Feed, chunk: Chunk) -> tuple[bytes | None, int]:
        return chunk.mask("even", _is_even)

    def failed(self, feed: Feed, error: BraidError) -> None:
        self.failures.append(error.code)

    def give(self, credit: int) -> None:
        self.credit += credit
        self.deliver()


def _is_even(record: PushRecord) -> bool:
    return int(record.value) % 2 == 0


def from_the_tail(feed: Feed) -> int:
    return feed.tail


def running(body: Callable[[Broker], Coroutine[Any, Any, None]], disk: FaultyDisk | None = None, **settings: Any) -> None:
    async def conversation() -> None:
        defaults = LogSettings(Level.OS, **settings)
        broker = Broker(BrokerSettings("/data", defaults, default_partitions=2), disk or FaultyDisk(), SystemClock())
        await broker.start()
        await body(broker)
        await broker.stop()

    asyncio.run(conversation())


async def publish(broker: Broker, topic: Topic, numbers: range, partition: int = -1) -> None:
    for number in numbers:
        broker.stage(topic, partition, b"", b"%d" % number)
    await settled()


async def settled() -> None:
    """Let commits and wake-ups of this turn happen."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def check_order(taken: list[tuple[str, int, int]]) -> None:
    places: dict[tuple[str, int], int] = {}
    for name, partition, offset in taken:
        assert offset > places.get((name, partition), -1), "each once, in the order of its partition"
        places[name, partition] = offset


@pytest.mark.parametrize("even_only", [False, True])
@pytest.mark.parametrize("overflow", Overflow)
@pytest.mark.parametrize("seed", range(4))
def test_what_is_published_is_delivered_or_counted(overflow: Overflow, even_only: bool, seed: int) -> None:
    async def body(broker: Broker) -> None:
        chance = random.Random(seed)
        topics = [await broker.create_topic(name, 2) for name in ("a", "b")]
        taker = Taker(broker, 50, overflow, even_only)
        for topic in topics:
            taker.add_topic(topic, from_the_tail)
        published = 0
        for _ in range(60):
            topic = chance.choice(topics)
            count = chance.choice((1, 3, 40, 90))
            await publish(broker, topic, range(published, published + count))
            published += count
            if chance.random() < 0.6:
                taker.give(chance.choice((1, 10, 40)))
            await settled()
            if overflow in (Overflow.DROP_NEW, Overflow.DROP_OLDEST):
                assert taker.pending.count <= 50
            blocked, full = broker.push.is_blocked(topic.id), broker.push.is_full(topic.id)
            assert not blocked or overflow is Overflow.BLOCK
            assert not full or overflow is Overflow.WAIT
        taker.give(published)
        for _ in range(20):
            await settled()
        check_order(taker.taken)
        wanted = (published + 1) // 2 if even_only else published
        assert taker.counters.delivered + taker.counters.dropped == wanted
        if overflow in (Overflow.WAIT, Overflow.BLOCK):
            assert taker.counters.dropped == 0
        else:
            assert taker.counters.dropped > 0, "the test is about that"
        assert not broker.push.holds_up and not taker.pending
        assert all(taker.settled(feed) == feed.tail for feed in taker.cursors)
        taker.close()

    running(body)


def test_the_oldest_go_or_the_newest() -> None:
    async def body(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        keeps_new, keeps_old = Taker(broker, 10, Overflow.DROP_OLDEST), Taker(broker, 10, Overflow.DROP_NEW)
        for taker in (keeps_new, keeps_old):
            taker.add_topic(topic, from_the_tail)
        for first in range(0, 30, 5):
            await publish(broker, topic, range(first, first + 5))
        for taker in (keeps_new, keeps_old):
            taker.give(100)
        assert [offset for _, _, offset in keeps_new.taken] == list(range(20, 30))
        assert [offset for _, _, offset in keeps_old.taken] == list(range(10))

    running(body)


def test_readers_at_the_same_place_share_what_was_made_of_it() -> None:
    made: list[int] = []

    class Sharing(Taker):
        def send(self, feed: Feed, chunk: Chunk, stop: int, wanted: bytes | None) -> int:
            chunk.made("frames", lambda whole: made.append(whole.first) or b"frames")
            return stop

    async def body(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        takers = [Sharing(broker, 1000, Overflow.WAIT) for _ in range(50)]
        for taker in takers:
            taker.add_topic(topic, from_the_tail)
            taker.credit = 1
        for first in range(0, 30, 10):
            await publish(broker, topic, range(first, first + 10))
        assert made == [0, 10, 20]

    running(body)


def test_a_reader_that_fails_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Taker):
        def send(self, feed: Feed, chunk: Chunk, stop: int, wanted: bytes | None) -> int:
            raise ZeroDivisionError

    async def body(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        takers = [Broken(broker, 100, Overflow.WAIT), Taker(broker, 100, Overflow.WAIT)]
        for taker in takers:
            taker.credit = 10
            taker.add_topic(topic, from_the_tail)
        await publish(broker, topic, range(3))
        assert [len(taker.taken) for taker in takers] == [0, 3]
        assert "a reader failed" in caplog.text

    running(body)


def test_a_topic_that_is_deleted_is_forgotten_and_holds_up_nobody() -> None:
    async def body(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        taker = Taker(broker, 5, Overflow.WAIT)
        taker.add_topic(topic, from_the_tail)
        for first in range(0, 30, 10):
            await publish(broker, topic, range(first, first + 10))
        assert broker.push.is_full(topic.id)
        await broker.delete_topic("t")
        await settled()
        assert not taker.cursors and not taker.pending and not broker.push.holds_up
        assert broker.push.live_feed(topic.id, 0) is None

    running(body)


def test_what_retention_takes_is_counted_as_lost() -> None:
    async def body(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1, {"retention_bytes": "1", "segment_bytes": str(limits.SEGMENT_BYTES_MIN)})
        taker = Taker(broker, 10_000_000, Overflow.WAIT)
        taker.add_topic(topic, from_the_tail)
        value, count = b"7" * (limits.SEGMENT_BYTES_MIN // 3), 20
        for _ in range(count):
            broker.stage(topic, 0, b"", value)
            await settled()
        await broker.apply_retention()
        log = broker.log_of(topic, 0)
        assert log.log_start > 0
        taker.give(count)
        await settled()
        assert taker.counters.lost == log.log_start
        assert [offset for _, _, offset in taker.taken] == list(range(log.log_start, count))

    running(body)


def test_what_is_not_in_memory_is_brought_in_and_delivered() -> None:
    async def body(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        await publish(broker, topic, range(100))
        taker = Taker(broker, 1000, Overflow.WAIT)
        taker.credit = 1000
        taker.add_topic(topic, lambda feed: feed.start)
        for _ in range(1000):
            if len(taker.taken) == 100:
                break
            await asyncio.sleep(0.005)
        assert [offset for _, _, offset in taker.taken] == list(range(100))

    running(body, FaultyDisk(resident=False))


@pytest.mark.parametrize("restarted", [True, False])
def test_a_damaged_place_ends_that_partition_for_its_readers_and_no_other(restarted: bool) -> None:
    disk = FaultyDisk(seed=1)

    async def fill(broker: Broker) -> Topic:
        topic = await broker.create_topic("t", 2)
        await publish(broker, topic, range(10), 0)
        await publish(broker, topic, range(10), 1)
        return topic

    async def body(broker: Broker) -> None:
        topic = broker.topic("t") if restarted else await fill(broker)
        taker = Taker(broker, 1000, Overflow.WAIT)
        taker.add_topic(topic, lambda feed: feed.start)
        disk.flip_bit(f"/data/topics/{topic.id}/0/00000000000000000000.log", 150)
        taker.give(100)
        await settled()
        # What this process wrote was not read back when it was found to be sound.
        assert taker.failures == ["CORRUPT_LOG" if restarted else "INVALID_BATCH"]
        assert [partition for _, partition, _ in taker.taken] == [1] * 10
        damaged = broker.push.feed(topic, 0)
        assert taker.settled(damaged) == 0, "what cannot be read does not count as delivered"

    async def first(broker: Broker) -> None:
        await fill(broker)

    if restarted:
        running(first, disk)
    running(body, disk)


def test_topics_that_come_are_told_to_who_wants_them() -> None:
    class Told:
        def __init__(self) -> None:
            self.names: list[str] = []

        def topic_created(self, topic: Topic) -> None:
            self.names.append(topic.name)

    async def body(broker: Broker) -> None:
        by_name, by_pattern = Told(), Told()
        broker.push.watch(by_name, ("a", "b"))
        broker.push.watch(by_pattern, None)
        for name in ("a", "x", "b"):
            await broker.create_topic(name, 1)
        broker.push.unwatch(by_name, ("b",))
        broker.push.unwatch(by_pattern)
        await broker.delete_topic("a")
        for name in ("a", "c"):
            await broker.create_topic(name, 1)
        assert (by_name.names, by_pattern.names) == (["a", "b", "a"], ["a", "x", "b"])

    running(body)


def test_wake_ups_are_apart_unless_there_is_much_or_nothing_came_before() -> None:
    class Counting(Taker):
        wakes = 0
        woken = asyncio.Event()

        def wake(self, feed: Feed) -> None:
            self.wakes += 1
            super().wake(feed)
            if self.wakes == 5:
                self.woken.set()

    async def body(broker: Broker) -> None:
        broker.push.flush_interval_s, broker.push.flush_records = 0.2, 5
        topic = await broker.create_topic("t", 1)
        taker = Counting(broker, 1000, Overflow.WAIT)
        taker.credit = 1000
        taker.add_topic(topic, from_the_tail)
        for number in range(4):
            await publish(broker, topic, range(number, number + 1))
            assert taker.wakes == number + 1, "a lone record does not wait, nor do a few"
        await publish(broker, topic, range(4, 6))
        await publish(broker, topic, range(6, 8))
        assert taker.wakes == 4, "one wake-up is on its way already"
        await asyncio.wait_for(taker.woken.wait(), 10)
        for number in range(8, 12):
            await publish(broker, topic, range(number, number + 1))
        before = taker.wakes
        await publish(broker, topic, range(12, 18))
        assert taker.wakes == before + 1, "enough for a batch does not wait"
        assert len(taker.taken) == 18

    running(body)
