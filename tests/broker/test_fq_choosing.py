"""How queues choose, hold and lose: bindings over ranges of the log, claims of publishers, and catching up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import pytest
from broker_bench import run_broker

from braidmq.base import limits
from braidmq.broker.broker import Broker
from braidmq.broker.fq_exchanges import Claim, Exchanges, Tally
from braidmq.broker.fq_queue import FqQueue
from braidmq.broker.machines import TOPICS
from braidmq.broker.push import Feed, Overflow, Span
from braidmq.broker.topics import Topic
from braidmq.log.partition_replica import CLOSED_GATE
from braidmq.server.fq_intake import Incoming, Intake
from braidmq.wire.fq.auth import QueueDetail
from braidmq.wire.fq.messages import MessageReader, encode_tail


class Client:
    """A member and consumer in one, that takes what it is given for as long as it wants."""

    def __init__(self) -> None:
        self.address = "127.0.0.1:1"
        self.writable = True
        self.unsent = 0
        self.skip_node: bytes | None = None
        self.allowed = True
        self._reader = MessageReader(True, 1 << 20)
        self.payloads: list[bytes] = []

    def may_read(self, topic: Topic) -> bool:
        return self.allowed

    def deliver(self, frames: bytes, count: int) -> None:
        came = self._reader.receive(frames)
        assert len(came) == count
        self.payloads += [message.payload for message in came]


async def settled(broker: Broker) -> None:
    """Let everything that was staged become visible, and everybody look."""
    broker.commit.flush()
    for _ in range(8):
        await asyncio.sleep(0)


async def opened(broker: Broker, detail: QueueDetail, *programs: bytes) -> tuple[FqQueue, Client]:
    broker.fq.open(bytes((1, 2, 3, 4)), 16)
    client = Client()
    queue = await broker.fq.attach(detail, client)
    for program in programs:
        await broker.fq.bind(queue, b"ex", program, peer=False, permanent=None)
    return queue, client


async def put(broker: Broker, topic: Topic, payloads: Iterable[bytes], route: bytes = b"r") -> None:
    for payload in payloads:
        broker.stage(topic, 0, route, payload)
    await settled(broker)


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


# --- ranges


def test_a_binding_holds_for_what_comes_after_it_and_before_its_end() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("ex", 1)
        await put(broker, topic, numbered(0, 1))
        queue, client = await opened(broker, QueueDetail(b"q", backlog=-1, private=False))
        first = await broker.fq.bind(queue, b"ex", b'prefix: payload_contains("2")', peer=False, permanent=None)
        await put(broker, topic, numbered(2, 3))
        second = await broker.fq.bind(queue, b"ex", b"prefix:", peer=False, permanent=None)
        await put(broker, topic, numbered(4, 12))
        assert await broker.fq.unbind(queue, second, b"ex")
        await put(broker, topic, numbered(5, 20))
        assert await broker.fq.unbind(queue, first, b"ex")
        await put(broker, topic, numbered(22))
        queue.add_consumer(client)
        assert client.payloads == numbered(2, 4, 12, 20)
        assert queue.cursors == {}, "nothing is bound, and nothing is left"

    run_broker(work)


@pytest.mark.parametrize("given", [True, False])
def test_a_transient_binding_holds_when_its_queue_moves_and_ends_when_its_node_is_lost(given: bool) -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("ex", 1)
        detail = QueueDetail(b"q", "disk", private=False, permanent=True)
        queue, client = await opened(broker, detail, b"prefix:")
        broker.fq.leave(queue, client)
        await put(broker, topic, numbered(0, 1))
        # A replica may not know yet that readers saw everything it has.
        log = broker.log_of(topic, 0)
        log.gate = CLOSED_GATE
        await put(broker, topic, numbered(2, 3))
        assert log.high_watermark == 2
        broker.fq.end(queue.group)
        await broker.fq.begin(queue.group, given=given)
        log.advance_to(4)
        log.gate = None
        await put(broker, topic, numbered(4, 5))
        queue = await broker.fq.attach(detail, client)
        queue.add_consumer(client)
        await settled(broker)
        assert client.payloads == numbered(*range(6 if given else 4))

    run_broker(work)


@pytest.mark.parametrize("policy", ["drop", "block"])
def test_a_queue_that_has_not_looked_yet_chooses_by_what_was_bound_then(policy: str) -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("ex", 1)
        detail = QueueDetail(b"q", policy=policy, backlog=2 if policy == "block" else -1, private=False)
        queue, client = await opened(broker, detail, b'prefix:"a"')
        for number in range(6):
            await put(broker, topic, numbered(number), b"ab"[number % 2 : number % 2 + 1])
        # With `block` it stopped looking at its backlog; a bind now is not about what lies there.
        await broker.fq.bind(queue, b"ex", b"prefix:", peer=False, permanent=None)
        await put(broker, topic, numbered(6, 7), b"b")
        queue.add_consumer(client)
        await settled(broker)
        assert client.payloads == numbered(0, 2, 4, 6, 7)

    run_broker(work)


def test_a_retention_that_passes_a_queue_by_is_counted() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("ex", 1)
        queue, client = await opened(broker, QueueDetail(b"q"), b"prefix:")
        await put(broker, topic, numbered(*range(10)))
        log = broker.log_of(topic, 0)
        gone = log.let_go_below(10)
        assert gone
        queue.add_consumer(client)
        assert client.payloads == [] and queue.counters.lost == 10 and queue.backlog == 0

    run_broker(work)


def test_a_topic_is_read_by_those_that_wait_for_it_before_the_first_message() -> None:
    async def work(broker: Broker) -> None:
        queue, client = await opened(broker, QueueDetail(b"q"), b"prefix:")
        # Whoever waits for it learns of it with the change of the table itself, whoever made that.
        topic: Topic = await broker.submit_metadata(TOPICS, broker.topics.create("ex", 2, 0, {}))
        assert queue.has_topic(topic.id)
        intake = Intake(broker, None, "127.0.0.1", 1)
        assert intake.find(b"ex") is topic and queue.has_topic(topic.id)
        intake.offer(Incoming(b"ex", b"r", bytes(16), b"first", encode_tail(b"s", (bytes(4),))), topic)
        await settled(broker)
        assert intake.tally.routed == 1
        broker.push.topic_created(topic)
        queue.add_consumer(client)
        assert client.payloads == [b"first"]

    run_broker(work)


# --- rights and consumers


def test_what_nobody_may_read_is_dropped_and_holds_up_nothing() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("ex", 1)
        queue, client = await opened(broker, QueueDetail(b"q", private=False), b"prefix:")
        client.allowed = False
        queue.add_consumer(client)
        await put(broker, topic, numbered(1, 2))
        assert (client.payloads, queue.counters.dropped) == ([], 2)
        other = Client()
        other.writable = False
        queue.add_consumer(other)
        await put(broker, topic, numbered(3))
        assert queue.backlog == 1, "one who may is there, and busy"
        other.writable = True
        queue.passed_on(other)
        assert other.payloads == numbered(3)

    run_broker(work)


def test_what_a_connection_had_not_passed_on_comes_again_from_disk_queues_only() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("ex", 1)
        for kind, again in (("disk", numbered(1, 2)), ("mem", [])):
            queue, client = await opened(broker, QueueDetail(kind.encode(), kind, private=False), b"prefix:")
            client.unsent = 100
            queue.add_consumer(client)
            await put(broker, topic, numbered(1, 2))
            assert client.payloads == numbered(1, 2)
            feed = next(iter(queue.cursors))
            assert queue.settled(feed) == (feed.tail - 2 if again else feed.tail)
            second = Client()
            queue.add_consumer(second)
            queue.remove_consumer(client)
            assert second.payloads == again
            third = Client()
            third.unsent = 1
            queue.remove_consumer(second)
            queue.add_consumer(third)
            await put(broker, topic, numbered(3))
            queue.passed_on(third)
            queue.remove_consumer(third)
            assert queue.backlog == 0 and queue.settled(feed) == feed.tail
            queue.close()

    run_broker(work)


# --- catching up


def test_a_queue_that_catches_up_looks_a_little_ahead_and_drops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.FQ_LOOK_AHEAD_RECORDS > 5
    monkeypatch.setattr(limits, "FQ_LOOK_AHEAD_RECORDS", 5)

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("ex", 1)
        detail = QueueDetail(b"q", "disk", backlog=8, private=False)
        queue, client = await opened(broker, detail, b"prefix:r")
        for number in range(8):
            await put(broker, topic, numbered(number))
        feed = next(iter(queue.cursors))
        queue.move({feed: 0})
        assert queue.catching_up and queue.pending.count == 5 and queue.backlog == 8
        for number in range(8, 20):
            await put(broker, topic, numbered(number))
        assert queue.counters.dropped == 0 and not broker.push.is_full(topic.id)
        queue.add_consumer(client)
        await settled(broker)
        assert client.payloads == numbered(*range(20))
        assert not queue.catching_up and queue.overflow is Overflow.DROP_NEW and queue.capacity == 8
        client.writable = False
        for number in range(20, 30):
            await put(broker, topic, numbered(number))
        assert (queue.pending.count, queue.counters.dropped) == (8, 2)

    run_broker(work)


def test_a_filter_with_much_to_pass_over_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.PUSH_LOOK_BYTES_MAX > limits.PUSH_CHUNK_BYTES
    monkeypatch.setattr(limits, "PUSH_LOOK_BYTES_MAX", 1)

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("ex", 1)
        queue, client = await opened(broker, QueueDetail(b"q", "disk", private=False), b"exact:wanted")
        queue.add_consumer(client)
        for _ in range(5):
            broker.stage(topic, 0, b"other", bytes(limits.PUSH_CHUNK_BYTES))
            await settled(broker)
        await put(broker, topic, [b"here"], b"wanted")
        feed = next(iter(queue.cursors))
        queue.move({feed: 0})
        assert queue.cursors[feed] < feed.tail, "not all at once"
        for _ in range(20):
            await asyncio.sleep(0)
        assert queue.cursors[feed] == feed.tail and client.payloads == [b"here"] * 2

    run_broker(work)


# --- claims


class Looker:
    """A queue as claims see it."""

    def __init__(self, feed: Feed) -> None:
        self.cursors = {feed: 0}
        self.catching_up = False


def figures(tally: Tally) -> tuple[int, int, int, int]:
    return tally.no_exchange, tally.no_route, tally.routed, tally.dropped


def claims(check: Callable[[Exchanges, Feed], None]) -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("ex", 1)
        check(Exchanges(), broker.push.feed(topic, 0))

    run_broker(work)


def test_a_claim_is_settled_when_every_queue_has_looked() -> None:
    def check(exchanges: Exchanges, feed: Feed) -> None:
        exchange = exchanges.bound(b"ex")
        one, two = Looker(feed), Looker(feed)
        exchange.queues |= {one: None, two: None}  # type: ignore[dict-item]
        first, second = Tally(), Tally()
        told: list[Claim] = []
        exchanges.published(b"ex", feed, 0, 4, 40, first, told.append)
        exchanges.published(b"ex", feed, 4, 2, 20, second)
        exchanges.chosen(Span(feed, 0, 6, 3, b"\1\0\1\0\1\0"))
        one.cursors[feed] = 6
        exchanges.looked(feed)
        assert not told and figures(first) == (0, 0, 0, 0)
        exchanges.chosen(Span(feed, 0, 6, 3, b"\1\0\0\1\0\1"))
        exchanges.dropped(Span(feed, 3, 6, 2, b"\1\0\1"))
        two.cursors[feed] = 6
        exchanges.looked(feed)
        assert figures(first) == (0, 1, 4, 1) and figures(second) == (0, 0, 2, 1)
        assert (told[0].routed, told[0].no_route, told[0].dropped) == (4, 1, 1)
        assert (exchange.figures.messages, exchange.figures.octets, exchange.figures.routed) == (6, 60, 6)

    claims(check)


def test_a_queue_that_catches_up_is_not_waited_for() -> None:
    def check(exchanges: Exchanges, feed: Feed) -> None:
        late = Looker(feed)
        late.catching_up = True
        exchanges.bound(b"ex").queues[late] = None  # type: ignore[index]
        tally = Tally()
        exchanges.published(b"ex", feed, 0, 3, 0, tally)
        exchanges.looked(feed)
        assert figures(tally) == (0, 0, 3, 0)

    claims(check)


def test_records_that_could_not_be_written_reached_nobody() -> None:
    def check(exchanges: Exchanges, feed: Feed) -> None:
        queue = Looker(feed)
        exchanges.bound(b"ex").queues[queue] = None  # type: ignore[index]
        tally = Tally()
        exchanges.published(b"ex", feed, 0, 3, 0, tally)
        exchanges.failed(feed.log)
        assert figures(tally) == (0, 3, 0, 0)

    claims(check)


def test_claims_and_exchanges_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.FQ_CLAIMS_MAX > 2
    monkeypatch.setattr(limits, "FQ_CLAIMS_MAX", 2)

    def check(_: Exchanges, feed: Feed) -> None:
        exchanges = Exchanges(exchanges_max=2)
        queue = Looker(feed)
        exchanges.bound(b"ex").queues[queue] = None  # type: ignore[index]
        tally = Tally()
        for number in range(5):
            exchanges.published(b"ex", feed, number, 1, 0, tally)
        assert figures(tally) == (0, 3, 0, 0)
        for name in (b"a", b"b", b"c"):
            exchanges.bound(name)
        assert [exchange.name for exchange in exchanges.all()] == [b"c", b"ex"], "one that is bound is never forgotten"
        assert Exchanges()._exchanges_max == limits.FQ_EXCHANGES_MAX

    claims(check)
