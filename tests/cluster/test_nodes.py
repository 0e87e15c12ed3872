"""Three nodes as one broker, in one process: topics, records, groups, whichever node is asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from three_nodes import PATIENCE_S, Nodes

from braidmq.client import connect
from braidmq.cluster.replication.fetching import FetchRequest
from braidmq.cluster.replication.settings import ReplicationSettings


def test_three_nodes_are_one_broker(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path) as nodes:
            await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 3 for name in "abc"))
            await _topics_made_anywhere_are_everywhere(nodes)
            await _records_sent_anywhere_are_read_anywhere(nodes)
            await _a_group_shares_over_nodes(nodes)
            await _what_the_coordinator_does_may_be_asked_of_anybody(nodes)
            await _a_leader_that_stops_costs_a_pause(nodes)

    asyncio.run(work())


async def _topics_made_anywhere_are_everywhere(nodes: Nodes) -> None:
    for name in "abc":
        async with connect(nodes.address(name)) as client:
            await client.create_topic(f"from-{name}", 3)
            # Whoever made it finds it on the same node at once.
            assert f"from-{name}" in await client.list_topics()
    for name in "abc":
        await nodes.until(lambda name=name: len(nodes.servers[name].broker.topics) == 3)  # type: ignore[misc]
    states = dict(nodes.node("a").table.items())
    assert {state.leader for state in states.values()} == {"a", "b", "c"}


async def _records_sent_anywhere_are_read_anywhere(nodes: Nodes) -> None:
    for name in "abc":
        async with connect(nodes.address(name)) as client:
            async with client.producer() as producer:
                for number in range(30):
                    await producer.send("from-a", b"%s-%d" % (name.encode(), number), key=b"%d" % number)
            await client.produce("from-a", b"single", key=name.encode())
            await client.produce("from-a", b"keyless")
    for name in "abc":
        async with connect(nodes.address(name)) as client, client.consumer("from-a", start="earliest") as consumer:
            found: Counter[bytes] = Counter()
            async with asyncio.timeout(PATIENCE_S):
                while sum(found.values()) < 96:
                    found.update(record.value for record in await consumer.poll())
            assert found[b"single"] == 3 and found[b"keyless"] == 3
            assert sum(found.values()) == 96


async def _a_group_shares_over_nodes(nodes: Nodes) -> None:
    async with connect(nodes.address("a")) as one, connect(nodes.address("b")) as two:
        async with one.consumer("from-a", group="g", start="committed") as first, two.consumer(
            "from-a", group="g", start="committed"
        ) as second:
            found: Counter[bytes] = Counter()
            async with asyncio.timeout(PATIENCE_S):
                while sum(found.values()) < 96:
                    for consumer in (first, second):
                        found.update(record.value for record in await consumer.poll(timeout_s=0.2))
            await first.commit()
            await second.commit()
        async with connect(nodes.address("c")) as three:
            committed = [await three.committed("from-a", "g", number) for number in range(3)]
            assert sum(committed) == 96


async def _a_leader_that_stops_costs_a_pause(nodes: Nodes) -> None:
    gone = nodes.coordinator()
    addresses = [nodes.address(name) for name in "abc"]
    async with connect(addresses) as client, client.producer() as producer:
        deliveries = []
        for number in range(200):
            deliveries.append(await producer.send("from-b", b"%d" % number, key=b"%d" % number))
            if number == 100:
                await producer.flush()
                await nodes.stop(gone)
        await producer.flush()
        for delivery in deliveries:
            await delivery
        values: list[bytes] = []
        async with client.consumer("from-b", start="earliest") as consumer, asyncio.timeout(PATIENCE_S):
            while len(values) < 200:
                values += [record.value for record in await consumer.poll()]
        assert sorted(values) == sorted(b"%d" % number for number in range(200))


async def _what_the_coordinator_does_may_be_asked_of_anybody(nodes: Nodes) -> None:
    for name in "abc":
        topic = f"all-from-{name}"
        async with connect(nodes.address(name)) as client:
            await client.create_topic(topic, 3)
            async with client.transaction() as transaction:
                for number in range(9):
                    await transaction.produce(topic, b"in %d" % number, partition=number % 3)
            await client.produce(topic, b"late", delay_ms=50)
            await client.produce(topic, b"passing", ttl_ms=60_000, partition=None)
            await client.schema.put(f"{topic}-schema", b'{"type": "object"}')
            await client.schema.bind(topic, f"{topic}-schema", "dead-letter")
            await client.produce(topic, b"no object")
            values: list[bytes] = []
            async with client.consumer(topic, start="earliest") as consumer, asyncio.timeout(PATIENCE_S):
                while len(values) < 11:
                    values += [record.value for record in await consumer.poll()]
            assert sorted(values) == sorted([b"in %d" % number for number in range(9)] + [b"late", b"passing"])
            assert len(await client.dlq.ls(topic)) == 1


def test_a_node_whose_log_begins_too_late_gets_the_state(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path, "ab") as nodes:
            await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 2 for name in "ab"))
            coordinator = nodes.coordinator()
            broker = nodes.servers[coordinator].broker
            await broker.create_topic("before", 3)
            journal = broker.journals["metadata"]
            journal.save_snapshot()
            await broker.create_topic("between", 1)
            journal.save_snapshot()
            log = journal.log
            await nodes.until(lambda: log.high_watermark == log.log_end)
            # As if it had grown long: what the snapshots replace is let go.
            for segment in log.let_go_below(log.high_watermark):
                segment.remove()
            assert log.log_start > 0
            await nodes.start("c")
            assert {topic.name for topic in nodes.servers["c"].broker.topics.all()} == {"before", "between"}
            await broker.create_topic("after", 1)
            await nodes.until(lambda: nodes.servers["c"].broker.topics.get("after") is not None)
            await nodes.stop("c")
            await nodes.start("c")
            assert nodes.servers["c"].broker.topics.get("between") is not None

    asyncio.run(work())


def test_a_fetch_tells_of_few_partitions_and_the_next_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    encode = FetchRequest.encode

    def counted(request: FetchRequest) -> bytes:
        told.append(len(request.places))
        return encode(request)

    monkeypatch.setattr(FetchRequest, "encode", counted)

    async def work() -> None:
        nodes = Nodes(tmp_path)
        nodes.replication = ReplicationSettings(lag_s=1.0, fetch_places=4)
        async with nodes:
            await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 3 for name in "abc"))
            async with connect(nodes.address("a")) as client:
                await client.create_topic("many", 60)
                async with client.producer() as producer:
                    for partition in range(60):
                        await producer.send("many", b"%d" % partition, partition=partition)
                await nodes.stop("c")
                await nodes.start("c")
                await nodes.until(lambda: all(len(state.isr) == 3 for _, state in nodes.node("a").table.items()))
            logs = [nodes.servers["c"].broker.store.opened(1, partition) for partition in range(60)]
            assert all(log is not None and log.log_end == 1 for log in logs)

    asyncio.run(work())
    assert max(told) == 4
