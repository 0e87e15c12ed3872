"""Subscribers with a client_id: what they missed, across disconnects, stops and crashes; who takes over; and when they end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from blipmq_peer import BlipMQBroker, BlipMQPeer, delivered, new_name, payloads
from flymq_peer import until

from braidmq.base.disk_faulty import FaultyDisk
from braidmq.server.blipmq_service import service_of
from braidmq.wire import blipmq
from braidmq.wire.blipmq import Ack, Envelope, Publish, Subscribe


@pytest.fixture(scope="module")
def broker() -> Iterator[BlipMQBroker]:
    with BlipMQBroker(blipmq_ack_timeout_ms=300, blipmq_drain_timeout_s=0.1) as running:
        yield running


@pytest.fixture
def publisher(broker: BlipMQBroker) -> Iterator[BlipMQPeer]:
    with broker.peer() as connected:
        yield connected


def _publish(peer: BlipMQPeer, topic: str, numbers: range) -> None:
    for number in numbers:
        peer.publish(topic, b"%d" % number, f"m{number}")


def _take(peer: BlipMQPeer, count: int) -> list[bytes]:
    """Receive and acknowledge."""
    got = []
    for _ in range(count):
        delivery = peer.receive()
        peer.ack(delivery)
        got.append(delivered(delivery).payload)
    return got


def _numbers(numbers: range) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def _subscriber(broker: BlipMQBroker, name: str) -> Any:
    table = broker.server.broker.push.subscribers
    return table.get(name)


def test_what_came_meanwhile_is_delivered_first_after_the_ack(broker: BlipMQBroker, publisher: BlipMQPeer) -> None:
    topic, name = new_name(), new_name("client")
    with broker.peer() as peer:
        peer.subscribe(topic, 1, name)
        _publish(publisher, topic, range(3))
        assert _take(peer, 3) == _numbers(range(3))
    _publish(publisher, topic, range(3, 8))
    with broker.peer() as peer:
        peer.send(Subscribe(topic, 1, name), 7)
        answer = peer.receive()
        assert (answer.message, answer.sequence) == (Ack(topic), 7)
        assert _take(peer, 5) == _numbers(range(3, 8))
        _publish(publisher, topic, range(8, 10))
        assert _take(peer, 2) == _numbers(range(8, 10))
        peer.nothing()


def test_what_was_under_way_comes_again_in_order_with_its_attempt(broker: BlipMQBroker, publisher: BlipMQPeer) -> None:
    topic, name = new_name(), new_name("client")
    with broker.peer() as peer:
        peer.subscribe(topic, 1, name)
        _publish(publisher, topic, range(5))
        got = peer.receive_many(5)
        peer.ack(got[1])
        peer.ack(got[3])
        until(lambda: broker.run(lambda: _inflight(broker, name)) == 3, "not yet")
        peer.reset()
    until(lambda: broker.run(lambda: _connected(broker, name)) == 0, "not yet")
    _publish(publisher, topic, range(5, 7))
    with broker.peer() as peer:
        peer.subscribe(topic, 1, name)
        again = peer.receive_many(5)
        assert payloads(again) == [b"0", b"2", b"4", b"5", b"6"]
        assert [each.meta("attempt") for each in again] == ["2", "2", "2", None, None]
        assert [each.sequence for each in again[:3]] == [got[index].sequence for index in (0, 2, 4)]
        for each in again:
            peer.ack(each)


async def _inflight(broker: BlipMQBroker, name: str) -> int:
    subscriber = service_of(broker.server.broker, broker.server.config).durables.find(name)
    assert subscriber is not None and subscriber.queue is not None
    return subscriber.queue.inflight.count


async def _connected(broker: BlipMQBroker, name: str) -> int:
    subscriber = service_of(broker.server.broker, broker.server.config).durables.find(name)
    assert subscriber is not None
    return len(subscriber.sessions)


def test_a_broker_that_stops_forgets_nothing() -> None:
    disk = FaultyDisk(seed=5)
    topics = [new_name("a"), new_name("a")]
    settings: dict[str, Any] = {"durability": "fsync", "blipmq_drain_timeout_s": 0.1}
    with BlipMQBroker(disk, **settings) as broker, broker.peer() as publisher:
        with broker.peer() as one, broker.peer() as two:
            one.subscribe(topics[0], 1, "exact")
            two.subscribe("a/#", 1, "pattern", filter='not payload = "skipped"')
            _publish(publisher, topics[0], range(4))
            assert payloads(one.receive_many(4)) == _numbers(range(4))
            assert _take(two, 4) == _numbers(range(4))
        _publish(publisher, topics[0], range(4, 6))
        publisher.publish(topics[0], b"skipped", "s")
        _publish(publisher, topics[1], range(6, 8))
    with BlipMQBroker(disk, **settings) as broker, broker.peer() as publisher:
        publisher.publish("a/later", b"later", "l")
        with broker.peer() as peer:
            peer.subscribe("a/#", 1, "pattern")
            # Each topic in its order; which comes first depends on which is in memory first.
            got = _take(peer, 5)
            assert sorted(got) == [*_numbers(range(4, 8)), b"later"]
            assert got.index(b"4") < got.index(b"5") and got.index(b"6") < got.index(b"7")
            peer.nothing(0.05)
        with broker.peer() as peer:
            peer.subscribe("unrelated", 1, "exact")
            assert _take(peer, 7) == [*_numbers(range(6)), b"skipped"]
            peer.nothing(0.05)
            assert peer.unsubscribe(topics[0], "exact") == 0 and peer.unsubscribe("unrelated", "exact") == 0
        assert _subscriber(broker, "exact") is None and _subscriber(broker, "pattern") is not None


def test_the_connection_that_subscribed_last_has_the_backlog(broker: BlipMQBroker, publisher: BlipMQPeer) -> None:
    topic, name = new_name(), new_name("client")
    with broker.peer() as older, broker.peer() as newer:
        older.subscribe(topic, 1, name)
        older.subscribe(f"{topic}/zero", 0, name)
        _publish(publisher, topic, range(2))
        got = older.receive_many(2)
        newer.subscribe(topic, 1, name)
        again = newer.receive_many(2)
        assert payloads(again) == _numbers(range(2)) and [each.meta("attempt") for each in again] == ["2", "2"]
        older.ack(got[0])
        for each in again:
            newer.ack(each)
        # Both see what comes from now on.
        _publish(publisher, topic, range(2, 4))
        publisher.publish(f"{topic}/zero", b"zero")
        assert sorted(_take(older, 3)) == [b"2", b"3", b"zero"]
        assert _take(newer, 2) == _numbers(range(2, 4))
        newer.nothing(0.05)
        # Who goes away as the older one leaves nothing behind.
        older.reset()
        _publish(publisher, topic, range(4, 5))
        assert _take(newer, 1) == [b"4"]
        newer.reset()
    _publish(publisher, topic, range(5, 6))
    with broker.peer() as back:
        back.subscribe(topic, 1, name)
        assert _take(back, 1) == [b"5"]


def test_an_unsubscribe_takes_the_filter_and_the_last_one_the_state(broker: BlipMQBroker, publisher: BlipMQPeer) -> None:
    one, two, name = new_name(), new_name(), new_name("client")
    with broker.peer() as peer:
        peer.subscribe(one, 1, name)
        peer.subscribe(two, 1, name)
    _publish(publisher, one, range(2))
    _publish(publisher, two, range(2, 4))
    with broker.peer() as peer:
        # Without subscribing, as somebody else's connection would tidy up.
        assert peer.unsubscribe(one, name) == 0
        assert peer.unsubscribe(one, name) == 2
        peer.subscribe(two, 1, name)
        assert _take(peer, 2) == _numbers(range(2, 4))
        assert peer.unsubscribe(two, name) == 0
        assert _subscriber(broker, name) is None
        _publish(publisher, two, range(4, 5))
        peer.nothing()
        peer.subscribe(one, 1, name)
        peer.nothing()
        _publish(publisher, one, range(5, 6))
        assert _take(peer, 1) == [b"5"], "a new beginning is from now on"
        groups = broker.run(lambda: _groups(broker))
        assert [(topic, members) for topic, group, members in groups if group == f"blipmq:{name}"] == [(one, 1)]
        assert peer.unsubscribe(one, name) == 0


async def _groups(broker: BlipMQBroker) -> list[tuple[str, str, int]]:
    return [(info.topic, info.group, len(info.members)) for info in broker.server.broker.coordinator.each_group()]


def test_filters_at_qos_0_are_not_kept(broker: BlipMQBroker, publisher: BlipMQPeer) -> None:
    kept, lost, name = new_name(), new_name(), new_name("client")
    with broker.peer() as peer:
        peer.subscribe(lost, 0, name)
        peer.subscribe(kept, 1, name)
        publisher.publish(lost, b"here")
        assert payloads([peer.receive()]) == [b"here"]
    _publish(publisher, kept, range(1))
    publisher.publish(lost, b"away", "m")
    with broker.peer() as peer:
        peer.subscribe("something else", 0, name)
        assert _take(peer, 1) == [b"0"], "any Subscribe with the client_id brings the backlog"
        peer.nothing()
        # Asking for less takes the durable part away.
        peer.subscribe(kept, 0, name)
        assert _subscriber(broker, name) is None
        publisher.publish(kept, b"lower", "n")
        assert delivered(peer.receive()).qos == 0


def test_a_client_that_stays_away_is_forgotten(broker: BlipMQBroker, publisher: BlipMQPeer) -> None:
    topic, name = new_name(), new_name("client")
    with broker.peer() as peer:
        peer.subscribe(topic, 1, name, durable_expiry_s="1")
    assert _subscriber(broker, name) is not None
    _publish(publisher, topic, range(1))
    began = time.monotonic()
    until(lambda: _subscriber(broker, name) is None, "not yet")
    assert time.monotonic() - began > 0.7
    until(lambda: all(group != f"blipmq:{name}" for _, group, _ in broker.run(lambda: _groups(broker))), "not yet")
    with broker.peer() as peer:
        peer.subscribe(topic, 1, name, durable_expiry_s="1")
        peer.nothing()
        # Who is there does not expire.
        time.sleep(1.1)
        _publish(publisher, topic, range(1, 2))
        assert _take(peer, 1) == [b"1"]
        peer.unsubscribe(topic, name)


def test_what_is_too_much_for_who_is_away_becomes_dead_letters_the_oldest_first() -> None:
    with BlipMQBroker(blipmq_durable_capacity=20, blipmq_drain_timeout_s=0.1, default_partitions=1) as broker:
        topic = new_name()
        with broker.peer() as peer, broker.peer() as publisher:
            peer.subscribe(topic, 1, "away")
            peer.reset()
            until(lambda: broker.run(lambda: _connected(broker, "away")) == 0, "not yet")
            _publish(publisher, topic, range(50))
            with broker.peer() as letters:
                letters.subscribe(f"$DLQ/{topic}", 1)
                found = []
                while len(found) < 30:
                    found.append(letters.receive())
                    letters.ack(found[-1])
                assert payloads(found) == _numbers(range(30))
                assert {(each.meta("dlq_reason"), each.meta("dlq_code")) for each in found} == {("overflow", "4")}
            with broker.peer() as back:
                back.subscribe(topic, 1, "away")
                assert _take(back, 20) == _numbers(range(30, 50)), "publishers were never refused, and nothing is missing"
                back.nothing()


def test_a_burst_for_a_client_that_comes_late_is_all_there() -> None:
    """Every acknowledged message is delivered or is a dead letter."""
    with BlipMQBroker(blipmq_durable_capacity=5000, blipmq_drain_timeout_s=0.1, durability="fsync") as broker:
        topic, count = new_name(), 8000
        with broker.peer() as publisher:
            with broker.peer() as peer:
                peer.subscribe(topic, 1, "late")
            frames = [blipmq.encode(Envelope(Publish(topic, b"%d" % n, 1, 0, f"m{n}"), n)) for n in range(1, count + 1)]
            publisher.send_bytes(b"".join(frames))
            answers = publisher.receive_many(count)
            assert all(isinstance(answer.message, Ack) for answer in answers)
        with broker.peer() as peer, broker.peer() as letters:
            letters.subscribe(f"$DLQ/{topic}", 0)
            buried = payloads(letters.receive_many(count - 5000))
            peer.subscribe(topic, 1, "late")
            got = _take(peer, 5000)
            assert got == [b"%d" % n for n in range(count - 5000 + 1, count + 1)]
            assert buried == [b"%d" % n for n in range(1, count - 5000 + 1)]


def test_cycles_of_connecting_leave_nothing_behind(broker: BlipMQBroker) -> None:
    async def counts() -> tuple[int, int, int]:
        hub = broker.server.broker.push
        service = service_of(broker.server.broker, broker.server.config)
        return len(hub._feeds), len(hub._patterns) + len(hub._by_name), len(service.durables)

    topic = new_name()
    with broker.peer() as publisher:
        publisher.publish(topic, b"x", "m")
    before = broker.run(counts)
    for number in range(150):
        with broker.peer() as peer:
            peer.subscribe(topic, number % 2)
            peer.subscribe("#", 0)
            peer.subscribe("$share/g/" + topic, 1)
            if number % 10 == 0:
                peer.subscribe(topic, 1, "cycle")
                peer.unsubscribe(topic, "cycle")
    until(lambda: broker.run(counts) == before, "not yet")
