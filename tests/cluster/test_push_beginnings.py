"""Where subscribers and queues begin on a node that has no replica: with what comes from now on, or they are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from pathlib import Path

import pytest
from test_push_away import _PORTS, _hear, _send, _take, _topic
from three_nodes import PATIENCE_S, Nodes

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.push import Chunk, Feed, hub
from braidmq.broker.push.chunk import PushRecord
from braidmq.client import blipmq, connect, fq
from braidmq.log.partition_reads import Batches


async def _refused(work: Awaitable[object]) -> str:
    """The code that something is refused with."""
    with pytest.raises(BraidError) as refused:
        async with asyncio.timeout(PATIENCE_S):
            await work
    return refused.value.code


def test_nobody_begins_where_no_leader_says_where_that_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal, however long it takes, and never all that was ever written."""
    monkeypatch.setattr(hub, "_GUEST_S", 0.1)

    async def work() -> None:
        async with Nodes(tmp_path, listen=_PORTS) as nodes:
            leader, other = await _topic(nodes, "work")
            await _send(nodes, leader, range(10))
            await nodes.stop(leader)
            async with (
                blipmq.connect(nodes.port(other, "blipmq"), timeout_s=PATIENCE_S) as subscriber,
                fq.connect(nodes.port(other, "fq"), queue="brief", queue_type="mem:public,drop,transient") as queue,
            ):
                monkeypatch.setattr(hub, "_FIND_OUT_S", 0.5)
                refusals = await asyncio.gather(_refused(subscriber.subscribe("work", qos=0)), _refused(queue.bind("work")))
                assert refusals == ["NODE_UNREACHABLE", "BIND_REFUSED"]
                # Whoever waits long enough begins behind what was there, when there is a leader again.
                monkeypatch.setattr(hub, "_FIND_OUT_S", PATIENCE_S)
                waiting = asyncio.gather(subscriber.subscribe("work", qos=0), queue.bind("work"))
                await nodes.start(leader)
                async with asyncio.timeout(PATIENCE_S):
                    await waiting
                await _send(nodes, leader, range(10, 20))
                assert await _hear(subscriber, 10) == list(range(10, 20))
                assert await _take(queue, 10) == list(range(10, 20))

    asyncio.run(work())


def _living(read: object) -> list[PushRecord]:
    """The records of a read from the beginning that are not expired."""
    assert isinstance(read, Batches)
    return Chunk(0, read.next_offset, read.slices, read.size, 0).records()


def _in_sync(nodes: Nodes, name: str) -> set[str]:
    """Who has the journals, as a node knows it."""
    state = nodes.node(name).journals.state
    assert state is not None
    return set(state.isr)


class _Reader:
    """Reads one partition from its beginning."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.position = 0
        self.values: list[bytes] = []
        self.faults: list[str] = []
        feed.attach(self)

    def wake(self, feed: Feed) -> None:
        while (chunk := feed.read(self.position, self)) is not None:
            self.values += [record.value for record in chunk.records()]
            self.position = chunk.next_offset

    def feed_closed(self, feed: Feed) -> None: ...

    def feed_failed(self, feed: Feed, error: BraidError) -> None:
        self.faults.append(error.code)


def test_what_was_read_ahead_and_expired_is_not_delivered(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path, listen=_PORTS) as nodes:
            leader, other = await _topic(nodes, "work")
            push, topic = nodes.servers[other].broker.push, nodes.servers[other].broker.topic("work")
            await push.find_out([topic])
            feed = push.live_feed(topic.id, 0)
            assert feed is not None
            async with blipmq.connect(nodes.port(leader, "blipmq")) as publisher:
                await publisher.publish("work", b"soon gone", qos=1, ttl_ms=100)
                # It comes along with the end that it moved, and nobody takes it.
                await nodes.until(lambda: feed.tail == 1)
                log = nodes.servers[leader].broker.log_of(topic, 0)
                await nodes.until(lambda: not _living(log.read_batches(0, 1000)))
                await publisher.publish("work", b"stays", qos=1)
            reader = _Reader(feed)
            reader.wake(feed)
            await nodes.until(lambda: reader.position == 2)
            assert reader.values == [b"stays"] and not reader.faults
            feed.detach(reader)

    asyncio.run(work())


def test_who_comes_to_a_place_that_its_leader_cannot_read_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path, listen=_PORTS) as nodes:
            leader, other = await _topic(nodes, "work")
            push, topic = nodes.servers[other].broker.push, nodes.servers[other].broker.topic("work")
            await push.find_out([topic])
            feed = push.live_feed(topic.id, 0)
            assert feed is not None
            reader = _Reader(feed)

            async def damaged(*_: object, **__: object) -> Batches:
                raise BraidError("CORRUPT_LOG", path="00.log", position=0, offset=0, reason="a damaged place")

            nodes.servers[leader].broker.read_whole = damaged  # type: ignore[method-assign]
            await _send(nodes, leader, range(1))
            await nodes.until(lambda: bool(reader.faults))
            assert reader.faults == ["CORRUPT_LOG"] and feed.tail == 1
            feed.detach(reader)

    asyncio.run(work())


def test_what_two_clients_bind_while_nobody_leads_is_bound_once_and_to_a_queue_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_GUEST_S", 0.1)
    monkeypatch.setattr(hub, "_FIND_OUT_S", PATIENCE_S)
    monkeypatch.setattr(limits, "FQ_QUEUE_BINDINGS_MAX", 1)

    async def work() -> None:
        async with Nodes(tmp_path, listen=_PORTS) as nodes:
            leader, other = await _topic(nodes, "work")
            port, queues = nodes.port(other, "fq"), nodes.servers[other].broker.fq
            await nodes.stop(leader)
            shared = partial(fq.connect, port, queue="shared", queue_type="mem:public,drop,transient", timeout_s=PATIENCE_S)
            async with (
                shared() as first, shared() as second, shared() as third,
                fq.connect(port, queue="moved", queue_type="disk:public,drop,permanent", timeout_s=PATIENCE_S) as fourth,
            ):  # fmt: skip
                bound = asyncio.gather(first.bind("work"), second.bind("work"))
                push, topic = nodes.servers[other].broker.push, nodes.servers[other].broker.topic("work")
                await nodes.until(lambda: sum(push._guests.values()) == 2)
                too_many = asyncio.create_task(_refused(third.bind("work", "exact:r")))
                late = asyncio.create_task(fourth.bind("work"))
                await nodes.until(lambda: sum(push._guests.values()) == 4)
                # As when another node takes it, because this one seemed to be away.
                moved = queues.get(b"moved")
                queues.end("fq:moved")
                await nodes.start(leader)
                async with asyncio.timeout(PATIENCE_S):
                    routes = {binding.route_id for binding in await bound}
                    assert await too_many == "BIND_REFUSED"
                    # Its client is sent away, comes again, and binds what is there by then.
                    await late
                queue = queues.get(b"shared")
                assert queue is not None and set(queue.bindings) == routes and len(routes) == 1
                feed = push.live_feed(topic.id, 0)
                assert moved is not None and feed is not None and moved not in feed.readers and not moved.cursors

    asyncio.run(work())


def test_what_goes_on_where_it_was_waits_for_no_leader_and_what_is_refused_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_GUEST_S", 0.1)

    async def work() -> None:
        async with Nodes(tmp_path, listen=_PORTS) as nodes:
            away, here = await _topic(nodes, "work")
            there = next(name for name in nodes.servers if name not in (away, here))
            async with connect(nodes.address(here)) as client:
                await client.create_topic("alive", 1)
            kept = partial(fq.connect, queue="kept", queue_type="disk:public,drop,permanent", timeout_s=PATIENCE_S)
            async with (
                blipmq.connect(nodes.port(there, "blipmq"), client_id="keeper") as keeper,
                kept(nodes.port(there, "fq")) as queue,
            ):  # fmt: skip
                await keeper.subscribe("#", qos=1)
                await queue.bind("work", flags=fq.FLAGS_PERMANENT)
                await queue.bind("alive", flags=fq.FLAGS_PERMANENT)
            # One that they have no position of yet.
            await _topic(nodes, "late")
            await _send(nodes, away, range(1), "late")
            await nodes.stop(away)
            await nodes.until(lambda: _in_sync(nodes, here) == {here, there})
            monkeypatch.setattr(hub, "_FIND_OUT_S", 0.3)
            async with (
                blipmq.connect(nodes.port(here, "blipmq"), client_id="keeper", timeout_s=PATIENCE_S) as keeper,
                blipmq.connect(nodes.port(here, "blipmq"), client_id="newcomer", timeout_s=PATIENCE_S) as newcomer,
                kept(nodes.port(here, "fq")) as queue,
            ):  # fmt: skip
                await keeper.subscribe("#", qos=1)
                await _send(nodes, here, range(1, 2), "alive")
                assert await _hear(keeper, 1) == [1]
                assert await _take(queue, 1) == [1]
                assert await _refused(newcomer.subscribe("work", qos=1)) == "NODE_UNREACHABLE"
                assert nodes.servers[here].broker.push.subscribers.get("newcomer") is None
                # What it has already, it keeps.
                await newcomer.subscribe("alive", qos=1)
                assert await _refused(newcomer.subscribe("work", qos=1)) == "NODE_UNREACHABLE"
                durable = nodes.servers[here].broker.push.subscribers.get("newcomer")
                assert durable is not None and list(durable.filters) == ["alive"]
                await nodes.start(away)
                assert await _hear(keeper, 1) == [0]
                await _send(nodes, away, range(2, 3), "work")
                assert await _hear(keeper, 1) == [2]
                assert await _take(queue, 1) == [2]

    asyncio.run(work())
