"""Shared groups: each message goes to one member, and none is lost with a member."""

from __future__ import annotations

import selectors
from collections.abc import Iterator

import pytest
from blipmq_peer import BlipMQBroker, BlipMQPeer, delivered, new_name, payloads
from flymq_peer import until

from braidmq.base.disk_faulty import FaultyDisk
from braidmq.wire import blipmq
from braidmq.wire.blipmq import Envelope, Publish


@pytest.fixture(scope="module")
def broker() -> Iterator[BlipMQBroker]:
    with BlipMQBroker(blipmq_drain_timeout_s=0.1, blipmq_ack_timeout_ms=400) as running:
        yield running


def _numbers(numbers: range) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def _until_taken(peers: list[BlipMQPeer], count: int) -> list[list[bytes]]:
    """What each of some peers receives and acknowledges, until `count` messages came."""
    taken: list[list[bytes]] = [[] for _ in peers]

    def take(index: int) -> None:
        for envelope in peers[index].received():
            taken[index].append(delivered(envelope).payload)
            if delivered(envelope).qos:
                peers[index].ack(envelope)

    with selectors.DefaultSelector() as selector:
        for index, peer in enumerate(peers):
            selector.register(peer.socket, selectors.EVENT_READ, index)
            take(index)
        while sum(map(len, taken)) < count:
            ready = selector.select(10)
            assert ready, f"nothing more came after {sum(map(len, taken))} of {count}"
            for key, _ in ready:
                peers[key.data].read()
                take(key.data)
    return taken


@pytest.mark.parametrize("qos", [0, 1])
def test_members_take_turns_and_nothing_comes_twice(broker: BlipMQBroker, qos: int) -> None:
    topic = new_name()
    members = [broker.peer() for _ in range(3)]
    try:
        for member in members:
            member.subscribe(f"$share/group/{topic}", qos)
        with broker.peer() as alone, broker.peer() as publisher:
            alone.subscribe(topic, 0)
            frames = [blipmq.encode(Envelope(Publish(topic, b"%d" % n, 1, 0, f"m{n}"), n)) for n in range(300)]
            publisher.send_bytes(b"".join(frames))
            taken = _until_taken(members, 300)
            assert sorted(payload for share in taken for payload in share) == sorted(_numbers(range(300)))
            assert all(len(share) >= 20 for share in taken), "everybody has a share"
            assert payloads(alone.receive_many(300)) == _numbers(range(300)), "who does not share gets everything"
        for member in members:
            member.nothing(0.03)
    finally:
        for member in members:
            member.close()


def test_groups_of_other_names_or_filters_are_other_groups(broker: BlipMQBroker) -> None:
    topic = new_name("groups")
    with broker.peer() as one, broker.peer() as two, broker.peer() as three, broker.peer() as publisher:
        one.subscribe(f"$share/a/{topic}")
        two.subscribe(f"$share/b/{topic}")
        three.subscribe("$share/a/groups/#")
        publisher.publish(topic, b"x", "m")
        for peer in (one, two, three):
            assert payloads([peer.receive()]) == [b"x"]


def test_what_a_member_leaves_behind_goes_to_the_others(broker: BlipMQBroker) -> None:
    topic = new_name()
    with broker.peer() as gone, broker.peer() as stays, broker.peer() as publisher:
        gone.subscribe(f"$share/g/{topic}", 1)
        for number in range(5):
            publisher.publish(topic, b"%d" % number, f"m{number}")
        assert payloads(gone.receive_many(5)) == _numbers(range(5))
        stays.subscribe(f"$share/g/{topic}", 1)
        gone.reset()
        again = stays.receive_many(5)
        assert payloads(again) == _numbers(range(5)) and {each.meta("attempt") for each in again} == {"2"}
        for each in again:
            stays.ack(each)
        assert stays.unsubscribe(f"$share/g/{topic}") == 0
        assert stays.unsubscribe(f"$share/g/{topic}") == 2
        publisher.publish(topic, b"for nobody", "n")
        stays.nothing(0.05)


def test_a_member_that_takes_nothing_does_not_hold_up_the_others(broker: BlipMQBroker) -> None:
    topic = new_name()
    with broker.peer() as lazy, broker.peer() as busy, broker.peer() as publisher:
        lazy.subscribe(f"$share/g/{topic}", 1)
        busy.subscribe(f"$share/g/{topic}", 1)
        count = 2000
        for at in range(0, count, 100):
            frames = [blipmq.encode(Envelope(Publish(topic, b"%d" % n, 1, 0, f"m{n}"), n)) for n in range(at, at + 100)]
            publisher.send_bytes(b"".join(frames))
            publisher.receive_many(100)
        (taken,) = _until_taken([busy], count - 1024)
        assert len(set(taken)) == len(taken)
        lazy.reset()
        (rest,) = _until_taken([busy], count - len(taken))
        assert sorted(set(taken) | set(rest)) == sorted(_numbers(range(count)))


def test_a_group_with_a_durable_member_waits_for_it_across_a_restart() -> None:
    disk, topic = FaultyDisk(seed=4), new_name()
    text = f"$share/workers/{topic}"
    with BlipMQBroker(disk, blipmq_drain_timeout_s=0.1) as broker, broker.peer() as publisher:
        with broker.peer() as one, broker.peer() as two:
            one.subscribe(text, 1, "worker-1")
            two.subscribe(text, 1, "worker-2")
            publisher.publish(topic, b"0", "m0")
            _until_taken([one, two], 1)
        until(lambda: not _members(broker, text), "both are gone")
        for number in range(1, 6):
            publisher.publish(topic, b"%d" % number, f"m{number}")
    with BlipMQBroker(disk, blipmq_drain_timeout_s=0.1) as broker, broker.peer() as publisher:
        publisher.publish(topic, b"6", "m6")
        with broker.peer() as one:
            one.subscribe(text, 1, "worker-1")
            (taken,) = _until_taken([one], 6)
            assert sorted(taken) == _numbers(range(1, 7))
            one.nothing(0.05)
            assert one.unsubscribe(text, "worker-1") == 0
            assert broker.server.broker.push.subscribers.get(text) is not None, "another member may come back"
            assert one.unsubscribe(text, "worker-2") == 0
            assert broker.server.broker.push.subscribers.get(text) is None
            assert one.unsubscribe(text, "worker-2") == 2


def _members(broker: BlipMQBroker, text: str) -> int:
    async def count() -> int:
        infos = broker.server.broker.coordinator.each_group()
        return sum(len(info.members) for info in infos if info.group == f"blipmq:{text}")

    return broker.run(count)
