"""BlipMQ subscribers and fq queues that outlive their clients, on three nodes: each is served by one node at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from three_nodes import PATIENCE_S, Nodes

from braidmq.base.config import Listen
from braidmq.base.errors import BraidError
from braidmq.broker.group_offsets import NOBODY, GroupOffsets
from braidmq.client import blipmq, fq

_PORTS = (Listen("flymq", "127.0.0.1", 0), Listen("blipmq", "127.0.0.1", 0), Listen("fq", "127.0.0.1", 0))


def test_subscribers_and_queues_move_between_nodes(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path, listen=_PORTS) as nodes:
            await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 3 for name in "abc"))
            await _a_durable_subscriber_goes_on_where_its_client_comes(nodes)
            await _a_queue_is_served_by_one_node(nodes)
            await _what_a_node_served_is_served_when_it_is_gone(nodes)

    asyncio.run(work())


def _port(nodes: Nodes, name: str, protocol: str) -> str:
    return nodes.servers[name].addresses[protocol]


def _server(nodes: Nodes, group: str) -> str:
    return nodes.servers[next(iter(nodes.servers))].broker.groups.server(group).node


async def _publish(nodes: Nodes, name: str, numbers: range) -> None:
    async with blipmq.connect(_port(nodes, name, "blipmq")) as client:
        for number in numbers:
            await client.publish("news", b"%d" % number, qos=1)


async def _read(client: blipmq.BlipMQClient, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            message = await anext(client)
            await message.ack()
            found.append(int(message.payload))
    return found


async def _a_durable_subscriber_goes_on_where_its_client_comes(nodes: Nodes) -> None:
    start = 0
    for name in "abca":
        async with blipmq.connect(_port(nodes, name, "blipmq"), client_id="reader") as client:
            await client.subscribe("news", qos=1)
            await nodes.until(lambda name=name: _server(nodes, "blipmq:reader") == name)  # type: ignore[misc]
            if start:
                # What came while nobody was connected.
                assert await _read(client, 10) == list(range(start - 10, start))
            # Whichever node a message came in by, it is here, and in order.
            for other in "abc":
                await _publish(nodes, other, range(start, start + 10))
                assert await _read(client, 10) == list(range(start, start + 10))
                start += 10
        await _publish(nodes, "b", range(start, start + 10))
        start += 10
    assert sum(name in nodes.servers and _lives(nodes, name, "reader") for name in "abc") == 1


def _lives(nodes: Nodes, name: str, client_id: str) -> bool:
    from braidmq.server.blipmq_service import open_service

    service = open_service(nodes.servers[name].broker)
    return service is not None and service.durables.find(client_id) is not None


async def _a_queue_is_served_by_one_node(nodes: Nodes) -> None:
    kind = "disk:public,drop,permanent"
    async with fq.connect(_port(nodes, "a", "fq"), queue="jobs", queue_type=kind) as first:
        await first.bind("work")
        assert _server(nodes, "fq:jobs") == "a"
        # A second client elsewhere would get everything once more; it is told where the queue is.
        with pytest.raises(BraidError, match="leader_id=a"):
            async with fq.connect(_port(nodes, "b", "fq"), queue="jobs", queue_type=kind, timeout_s=1):
                pass
        await _send_jobs(nodes, "b", range(20))
        assert await _take_jobs(first, range(20)) == Counter(range(20))
    await nodes.until(lambda: nodes.servers["a"].broker.fq.idle("fq:jobs"))
    await _send_jobs(nodes, "c", range(20, 40))
    async with fq.connect(_port(nodes, "b", "fq"), queue="jobs", queue_type=kind) as second:
        assert _server(nodes, "fq:jobs") == "b"
        assert nodes.servers["a"].broker.fq.get(b"jobs") is None
        # Nothing was lost with the first node: what was bound there holds here, also for what comes only now.
        await _send_jobs(nodes, "c", range(40, 60))
        await _take_jobs(second, range(20, 60))


async def _send_jobs(nodes: Nodes, name: str, numbers: range) -> None:
    async with fq.connect(_port(nodes, name, "fq")) as client:
        for number in numbers:
            await client.publish("work", b"job", b"%d" % number)
        await client.flush(confirm=True)


async def _take_jobs(client: fq.FqClient, wanted: range) -> Counter[int]:
    """What a client gets until it has all that is wanted."""
    found: Counter[int] = Counter()
    async with asyncio.timeout(PATIENCE_S):
        while not found.keys() >= set(wanted):
            found.update(int(message.payload) for message in await client.poll(timeout_s=0.2))
    return found


async def _what_a_node_served_is_served_when_it_is_gone(nodes: Nodes) -> None:
    gone = _server(nodes, "fq:jobs")
    await nodes.stop(gone)
    await nodes.until(lambda: _server(nodes, "fq:jobs") not in ("", gone) and _server(nodes, "blipmq:reader") not in ("", gone))
    # A binding that is not permanent goes with the node that is lost, wherever it was made.
    queues = nodes.servers[_server(nodes, "fq:jobs")].broker.fq
    await nodes.until(lambda: (queue := queues.get(b"jobs")) is not None and not queue.bindings)


def test_a_server_that_was_replaced_moves_nothing() -> None:
    offsets = GroupOffsets()
    given: list[tuple[str, bool]] = []
    offsets.on_served = lambda _group, server, given_away: given.append((server.node, given_away))
    first = offsets.apply(offsets.serve("g", "a", NOBODY.term))
    offsets.apply(offsets.commit_served([(1, "g", 0, 5)], {"g": first.term}))
    # Of two that saw the same term one gets it.
    second = offsets.apply(offsets.serve("g", "b", first.term))
    assert second.node == "b" and offsets.apply(offsets.serve("g", "c", first.term)) == second
    offsets.apply(offsets.commit_served([(1, "g", 0, 9)], {"g": first.term}))
    assert offsets.committed(1, "g", 0) == 5
    offsets.apply(offsets.commit_served([(1, "g", 0, 7)], {"g": second.term}))
    assert offsets.committed(1, "g", 0) == 7
    offsets.apply(offsets.unserve("g", first.term))
    assert offsets.apply(offsets.give("g", "c", first.term)) == second
    third = offsets.apply(offsets.give("g", "c", second.term))
    offsets.apply(offsets.unserve("g", third.term))
    assert given == [("a", False), ("b", False), ("c", True), ("", False)]
    # A term is never given out twice, over snapshots neither.
    again = GroupOffsets()
    again.restore({**offsets.snapshot(), "groups": []})
    assert again.apply(again.serve("g", "a", NOBODY.term)).term > third.term
