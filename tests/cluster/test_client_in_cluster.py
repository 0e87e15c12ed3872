"""Our client and three nodes: it goes to leaders directly, and the loss of a node costs its users a pause, not an error."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from braidmq.client import connect
from tests.cluster.three_nodes import Nodes

PATIENCE_S = 60.0


async def _ready(nodes: Nodes) -> None:
    await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 3 for name in nodes.servers))


def _leaders(nodes: Nodes, topic: str) -> list[str]:
    """Who leads each partition, as a node that is there knows it."""
    name = next(iter(nodes.servers))
    found = nodes.servers[name].broker.topic(topic)
    return [nodes.node(name).partition_info(found.id, number).leader for number in range(found.partitions)]


def _sessions(nodes: Nodes, name: str) -> int:
    return sum(1 for _ in nodes.servers[name].sessions())


def test_records_go_to_their_leaders_and_come_from_them(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path) as nodes:
            await _ready(nodes)
            async with connect(nodes.address("a")) as client:
                await client.create_topic("orders", 6)
                assert set(_leaders(nodes, "orders")) == {"a", "b", "c"}
                async with client.producer() as producer:
                    sent = [await producer.send("orders", b"%d" % number, key=b"%d" % number) for number in range(300)]
                    await producer.flush()
                    places = [await one for one in sent]
                assert len({(place.partition, place.offset) for place in places}) == 300
                single = await client.produce("orders", b"one", partition=4)
                assert (await client.consume("orders", 4, single.offset)).value == b"one"
                assert (await client.fetch("orders", 4, single.offset)).records[0].value == b"one"
                async with client.consumer("orders") as consumer:
                    values = Counter()
                    while sum(values.values()) < 301:
                        values.update(record.value for record in await consumer.poll(timeout_s=PATIENCE_S))
                assert values == Counter([b"%d" % number for number in range(300)] + [b"one"])

    asyncio.run(asyncio.wait_for(work(), 120))


@pytest.mark.parametrize("victim", ["coordinator", "follower"])
def test_a_lost_node_costs_a_pause(tmp_path: Path, victim: str) -> None:
    """A producer and a member of a group go on while the node that both began with is taken away."""

    async def work() -> None:
        async with Nodes(tmp_path) as nodes:
            await _ready(nodes)
            first = nodes.coordinator() if victim == "coordinator" else next(n for n in "abc" if n != nodes.coordinator())
            async with connect(nodes.address(first)) as client:
                await client.create_topic("orders", 6)
                got: list[bytes] = []
                enough = asyncio.Event()

                async def read() -> None:
                    async with client.consumer("orders", group="billing", start="earliest") as consumer:
                        while len(set(got)) < 900:
                            got.extend(record.value for record in await consumer.poll(timeout_s=0.5))
                            if len(got) >= 100:
                                enough.set()

                reading = asyncio.create_task(read())
                async with client.producer(linger_ms=1) as producer:
                    for number in range(300):
                        await producer.send("orders", b"%d" % number, key=b"%d" % number)
                    await enough.wait()
                    for number in range(300, 600):
                        await producer.send("orders", b"%d" % number, key=b"%d" % number)
                    await nodes.stop(first)
                    for number in range(600, 900):
                        await producer.send("orders", b"%d" % number, key=b"%d" % number)
                    await producer.flush()
                    assert first not in _leaders(nodes, "orders")
                await reading
                stored = Counter()
                for partition in range(6):
                    offset = 0
                    while found := (await client.fetch("orders", partition, offset)).records:
                        stored.update(record.value for record in found)
                        offset = found[-1].offset + 1
                # Each record is stored once, and read at least once.
                assert stored == Counter(b"%d" % number for number in range(900))
                assert set(got) == set(stored)

    asyncio.run(asyncio.wait_for(work(), 120))


def test_a_producer_that_is_closed_finds_the_new_leaders(tmp_path: Path) -> None:
    """What is still to be sent when a producer is closed goes to whoever leads then, and not only to whoever did."""

    async def work() -> None:
        async with Nodes(tmp_path) as nodes:
            await _ready(nodes)
            async with connect(",".join(nodes.address(name) for name in "abc")) as client:
                await client.create_topic("orders", 6)
                for partition in range(6):
                    await client.produce("orders", b"before", partition=partition)
                lost = _leaders(nodes, "orders")[0]
                await nodes.stop(lost)
                async with asyncio.timeout(PATIENCE_S), client.producer(linger_ms=1000) as producer:
                    sent = [await producer.send("orders", b"after", partition=partition) for partition in range(6)]
                assert [(await one).offset for one in sent] == [1] * 6

    asyncio.run(asyncio.wait_for(work(), 120))
