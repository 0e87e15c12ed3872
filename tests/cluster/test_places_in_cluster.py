"""Where topics begin and end, for those who plan a read by it: any node says what the leaders have, or nothing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import cast

import pytest

from braidmq.base.errors import BraidError
from braidmq.broker.topics import Topic
from braidmq.client import Client, connect
from braidmq.client._async.asking import expect
from braidmq.client._async.connection import encode
from braidmq.client.addresses import parse_address
from braidmq.cluster.replication.replication import Replication
from braidmq.cluster.replication.settings import ReplicationSettings
from braidmq.wire import flymq
from tests.cluster.three_nodes import Nodes

PATIENCE_S = 60.0
PARTITIONS = 6


def _run(work: object) -> None:
    asyncio.run(asyncio.wait_for(work, 120))  # type: ignore[arg-type]


async def _topic(nodes: Nodes, client: Client, partitions: int = PARTITIONS) -> Topic:
    await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 3 for name in nodes.servers))
    await client.create_topic("orders", partitions)
    return nodes.servers[nodes.coordinator()].broker.topic("orders")


async def _said(nodes: Nodes, name: str, request: flymq.Request, kind: type[object]) -> object:
    """What one node, and no other, answers, once."""
    async with connect(nodes.address(name)) as client:
        pool = client._asker._pools.at(parse_address(nodes.address(name)))
        return expect(request, (await pool.call([encode(request)], PATIENCE_S, again=False))[0], kind)


async def _ends(nodes: Nodes, name: str) -> list[tuple[int, int]]:
    found = await _said(nodes, name, flymq.TopicPlaces(("orders", "unheard-of")), flymq.Places)
    (topic,) = cast("flymq.Places", found).topics
    assert all(place.size_bytes > 0 for place in topic.partitions if place.newest)
    return [(place.oldest, place.newest) for place in topic.partitions]


def test_every_node_says_what_leaders_have_with_a_replica_or_without(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path) as nodes, connect(nodes.address("a")) as client:
            topic = await _topic(nodes, client)
            for number in range(PARTITIONS):
                await client.cluster.reassign("orders", number, ("ab", "bc", "ca")[number % 3])

            def placed() -> bool:
                known = [nodes.node(name).partition_info(topic.id, n) for name in nodes.servers for n in range(PARTITIONS)]
                return all(len(part.replicas) == 2 and part.leader in part.replicas and not part.target for part in known)

            await nodes.until(placed)
            for number in range(60):
                at = await client.produce("orders", b"%d" % number, partition=number % PARTITIONS)
                if number == 29:
                    middle_ms = at.timestamp + 1
                    while time.time() * 1000 < middle_ms:  # noqa: ASYNC110 (a clock tells nobody)
                        await asyncio.sleep(0.001)
            without = {
                name: [n for n in range(PARTITIONS) if name not in nodes.node(name).partition_info(topic.id, n).replicas]
                for name in nodes.servers
            }
            assert all(without.values()), "each node lacks some"
            for name in nodes.servers:
                assert await _ends(nodes, name) == [(0, 10)] * PARTITIONS
            # To begin at a time is a part of planning, too. The coordinator lacks some of the partitions.
            async with connect(nodes.address("b")) as other:
                assert await other.offsets_since("orders", range(PARTITIONS), middle_ms) == [5] * PARTITIONS
                assert await other.offsets_since("orders", range(PARTITIONS), at.timestamp + 60_000) == [10] * PARTITIONS

    _run(work())


def test_a_replica_that_hears_nothing_knows_the_end_all_the_same(tmp_path: Path) -> None:
    async def work() -> None:
        nodes = Nodes(tmp_path)
        nodes.replication = ReplicationSettings(lag_s=1.0)
        async with nodes, connect(nodes.address("a")) as client:
            topic = await _topic(nodes, client, 1)
            await client.produce("orders", b"first")
            leader = nodes.leader("orders")
            mute = next(name for name in "abc" if name not in (leader, nodes.coordinator()))
            cast("Replication", nodes.node(mute).replication)._unfollow((topic.id, 0))
            await client.produce("orders", b"second")
            assert nodes.servers[mute].broker.log_of(topic, 0).high_watermark < 2
            assert await _ends(nodes, mute) == [(0, 2)]

    _run(work())


def test_a_leader_that_has_just_begun_says_nothing_before_it_knows(tmp_path: Path) -> None:
    """Readers may have seen more under the leader before."""

    async def work() -> None:
        nodes = Nodes(tmp_path)
        # So long replicas count as in sync that are not heard.
        nodes.replication = ReplicationSettings(lag_s=PATIENCE_S)
        async with nodes, connect(nodes.address("a")) as client:
            topic = await _topic(nodes, client, 1)
            await client.produce("orders", b"first")
            leader = nodes.leader("orders")
            key, node = (topic.id, 0), nodes.node(leader)
            for name in (name for name in "abc" if name != leader):
                cast("Replication", nodes.node(name).replication)._unfollow(key)
            unseen = asyncio.create_task(client.produce("orders", b"unseen"))
            log = nodes.servers[leader].broker.log_of(topic, 0)
            await nodes.until(lambda: log.log_end == 2)
            led = cast("Replication", node.replication)._led[key]
            # As it is for one that was elected now: it has a record of which it does not know who saw it.
            led.epoch_start = log.log_end
            for name in "abc":
                with pytest.raises(BraidError) as refusal:
                    await _ends(nodes, name)
                assert refusal.value.code == "NOT_LEADER" and "has not heard its replicas" in refusal.value.text
            unseen.cancel()
            await asyncio.gather(unseen, return_exceptions=True)

    _run(work())
