"""Brokers that are linked: what is wanted travels, once, with its attributes, and acknowledged when it is safe."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from blipmq_peer import BlipMQBroker, delivered, new_name, payloads
from flymq_peer import until

from braidmq.base import limits
from braidmq.base.config_keys import parse_api_key
from braidmq.base.config_links import FederationLink
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.server.blipmq_federation import Origins
from braidmq.wire import blipmq


def _link(broker: BlipMQBroker, key: str = "") -> FederationLink:
    host, _, port = broker.blipmq.rpartition(":")
    return FederationLink(host, int(port), api_key=key)


def _broker(name: str, *links: FederationLink, **settings: object) -> BlipMQBroker:
    return BlipMQBroker(node_id=name, blipmq_federation=links, blipmq_drain_timeout_s=0.1, blipmq_ack_timeout_ms=300, **settings)


def _followed(there: BlipMQBroker, here: str, *patterns: str) -> None:
    """Wait until a broker has subscribed elsewhere to what its clients want."""

    def filters() -> set[str]:
        known = there.server.broker.push.subscribers.get(f"$fed/{here}")
        return set() if known is None else set(known.filters)

    until(lambda: filters() == set(patterns), f"{here} subscribes to {patterns}")


@pytest.fixture
def pair() -> Iterator[tuple[BlipMQBroker, BlipMQBroker]]:
    """Two brokers; the first has a link to the second."""
    with _broker("far") as far, _broker("near", _link(far)) as near:
        yield near, far


def test_what_is_wanted_here_comes_from_there(pair: tuple[BlipMQBroker, BlipMQBroker]) -> None:
    near, far = pair
    wanted, other = new_name("fed"), new_name("other")
    with near.peer() as subscriber, far.peer() as publisher:
        subscriber.subscribe("fed/#", 1)
        subscriber.subscribe("$DLQ/#", 1)
        subscriber.subscribe("$share/g/fed/+", 0)
        _followed(far, "near", "fed/#", "fed/+")
        publisher.publish(other, b"not wanted", "m0")
        publisher.publish(wanted, b"payload", "m1", 60_000, x_user="kept")
        publisher.publish(wanted, b"zero")
        got = [subscriber.receive() for _ in range(4)]
        for each in got:
            if delivered(each).qos:
                subscriber.ack(each)
        first = next(each for each in got if delivered(each).qos)
        assert (delivered(first).topic, delivered(first).payload, delivered(first).message_id) == (wanted, b"payload", "m1")
        assert first.metadata == (("x-user", "kept"),), "where it came from is for brokers"
        assert sorted(payloads(got)) == sorted([b"payload", b"payload", b"zero", b"zero"]), "to the subscriber, and to the group"
        subscriber.nothing(0.05)
        # Nobody wants it any more.
        subscriber.unsubscribe("fed/#")
        subscriber.unsubscribe("$share/g/fed/+")
        _followed(far, "near")


def test_a_message_carries_where_it_began_and_the_way_it_took() -> None:
    with ExitStack() as stack:
        c = stack.enter_context(_broker("c"))
        b = stack.enter_context(_broker("b", _link(c)))
        a = stack.enter_context(_broker("a", _link(b)))
        topic = new_name("chain")
        end = stack.enter_context(a.peer())
        end.subscribe(topic, 1)
        _followed(b, "a", topic)
        _followed(c, "b", topic)
        with c.peer() as publisher, a.peer() as broker_like:
            broker_like.send(blipmq.Ping(), 1, broker_id="watcher")
            assert broker_like.receive().meta("broker_id") == "a"
            broker_like.subscribe(topic, 1)
            publisher.publish(topic, b"far away", "m", 60_000)
            seen = broker_like.receive()
            origin, via, ttl = (seen.meta(name) for name in ("origin", "via", "ttl_ms"))
            assert origin is not None and origin.startswith("c:") and via == "c,b,a"
            assert ttl is not None and 50_000 < int(ttl) <= 60_000
            assert payloads([end.receive()]) == [b"far away"]


def test_brokers_that_are_linked_both_ways_do_not_send_messages_round() -> None:
    with ExitStack() as stack:
        one = stack.enter_context(_broker("one"))
        two = stack.enter_context(_broker("two", _link(one)))
        # The second way can only be opened when both ports are known.
        three = stack.enter_context(_broker("three", _link(one), _link(two)))
        topic = new_name("ring")
        peers = [stack.enter_context(broker.peer()) for broker in (one, two, three)]
        for peer in peers:
            peer.subscribe(topic, 1)
        _followed(one, "two", topic)
        _followed(one, "three", topic)
        _followed(two, "three", topic)
        with one.peer() as publisher:
            publisher.publish(topic, b"from one", "m1")
        for peer in peers:
            delivery = peer.receive()
            assert payloads([delivery]) == [b"from one"]
            peer.ack(delivery)
        for peer in peers:
            peer.nothing(0.1)


@pytest.mark.parametrize(
    ("origin", "via", "taken"),
    [
        ("x:1", "x", True),
        ("x:2", "x,near", False),
        ("near:3", "x", False),
        ("x:4", ",".join(f"b{number}" for number in range(limits.FEDERATION_HOPS_MAX - 1)), True),
        ("x:5", ",".join(f"b{number}" for number in range(limits.FEDERATION_HOPS_MAX)), False),
        ("x:1", "y", False),
    ],
)
def test_what_was_here_or_came_too_far_is_not_taken(origin: str, via: str, taken: bool) -> None:
    """A broker at the other end that is not ours."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        link = FederationLink("127.0.0.1", server.getsockname()[1])
        with _broker("near", link) as near, near.peer() as subscriber:
            subscriber.subscribe("fed/x", 1)
            connection, _ = server.accept()
            with connection:
                connection.settimeout(20)
                reader = blipmq.FrameReader()
                received: list[blipmq.Envelope] = []

                def receive() -> blipmq.Envelope:
                    while not received:
                        received.extend(blipmq.decode(frame) for frame in reader.receive(connection.recv(65536)))  # type: ignore[arg-type]
                    return received.pop(0)

                hello = receive()
                assert hello.message == blipmq.Ping() and hello.meta("broker_id") == "near"
                connection.sendall(blipmq.encode(blipmq.Envelope(blipmq.Pong(), hello.sequence)))
                asked = receive()
                assert asked.message == blipmq.Subscribe("fed/x", 1, "$fed/near")
                connection.sendall(blipmq.encode(blipmq.Envelope(blipmq.Ack("fed/x"), asked.sequence)))
                message = blipmq.Message("fed/x", b"known", "m0", 1, 1)
                connection.sendall(blipmq.encode(blipmq.Envelope(message, 1, 1, (("origin", "x:1"), ("via", "z")))))
                assert receive().message == blipmq.Ack("m0")
                if origin == "x:1" and taken:
                    origin = "x:100"
                message = blipmq.Message("fed/x", b"new", "m1", 1, 1)
                connection.sendall(blipmq.encode(blipmq.Envelope(message, 2, 1, (("origin", origin), ("via", via)))))
                assert receive().message == blipmq.Ack("m1"), "what is not wanted is acknowledged all the same"
                assert payloads([subscriber.receive()]) == [b"known"]
                subscriber.ack("m0")
                if taken:
                    assert payloads([subscriber.receive()]) == [b"new"]
                    subscriber.ack("m1")
                else:
                    subscriber.nothing()


def test_what_comes_while_the_link_is_down_waits() -> None:
    topic = new_name("fed")
    with _broker("far") as far:
        with _broker("near", _link(far)) as near, near.peer() as subscriber:
            subscriber.subscribe(topic, 1, "durable")
            _followed(far, "near", topic)
        with far.peer() as publisher:
            for number in range(5):
                publisher.publish(topic, b"%d" % number, f"m{number}")
        with _broker("near", _link(far)) as near, near.peer() as subscriber:
            subscriber.subscribe(topic, 1)
            for number in range(5):
                delivery = subscriber.receive()
                assert payloads([delivery]) == [b"%d" % number]
                subscriber.ack(delivery)


def test_a_message_is_acknowledged_over_there_only_when_it_is_safe_here() -> None:
    disk, topic = FaultyDisk(seed=2), new_name("fed")
    with (
        _broker("far") as far,
        _broker("near", _link(far), disk=disk, default_partitions=1) as near,
        near.peer() as subscriber,
        far.peer() as publisher,
    ):
        subscriber.subscribe(topic, 1)
        _followed(far, "near", topic)
        publisher.publish(topic, b"first", "m0")
        assert payloads([subscriber.receive()]) == [b"first"]
        subscriber.ack("m0")
        disk.fail("write", path="/data/topics/1/0/00000000000000000000.log", code=errno.ENOSPC)
        publisher.publish(topic, b"second", "m1")
        # It was refused for now, and comes again.
        assert payloads([subscriber.receive()]) == [b"second"]
        subscriber.ack("m1")


def test_a_link_shows_its_key() -> None:
    topic = new_name("fed")
    with (
        _broker("far", blipmq_api_keys=(parse_api_key("link=secret"),)) as far,
        _broker("near", _link(far, "secret")) as near,
        near.peer() as subscriber,
        far.peer(key="secret") as publisher,
    ):
        subscriber.subscribe(topic, 1)
        _followed(far, "near", topic)
        publisher.publish(topic, b"x", "m")
        assert payloads([subscriber.receive()]) == [b"x"]
        subscriber.ack("m")


def test_origins_are_remembered_up_to_a_limit() -> None:
    origins = Origins(limits.FEDERATION_ORIGINS_REMEMBERED)
    assert all(origins.is_new(f"b:{number}") for number in range(limits.FEDERATION_ORIGINS_REMEMBERED))
    assert not origins.is_new("b:0")
    assert origins.is_new("one more") and origins.is_new("b:0"), "the oldest is forgotten"
    origins.forget("one more")
    assert origins.is_new("one more")
