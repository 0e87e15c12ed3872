"""A partition with fewer replicas in sync than its topic needs: clients are told so, and it goes on when one is back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from three_nodes import PATIENCE_S, Nodes

from braidmq.base.errors import BraidError
from braidmq.client import connect

TOPIC = "pairs"


def test_a_partition_with_too_few_in_sync_takes_nothing_until_one_is_back(tmp_path: Path) -> None:
    asyncio.run(_too_few(tmp_path))


async def _too_few(directory: Path) -> None:
    nodes = Nodes(directory)
    # Of two replicas, two have to be in sync. So the loss of one node stops what it has a part in, and nothing else.
    nodes.node_settings["replication_factor"] = 2
    async with nodes:
        await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 3 for name in "abc"))
        await nodes.until(lambda: len(nodes.node("a").journals.state.isr) == 2)  # type: ignore[union-attr]
        state = nodes.node("a").journals.state
        assert state is not None
        (lost,) = set("abc") - set(state.replicas)
        watching = state.leader
        rest = [nodes.address(name) for name in "abc" if name != lost]
        async with connect(rest) as client:
            await client.create_topic(TOPIC, 3)
            topic = nodes.servers[watching].broker.topics.get(TOPIC)
            assert topic is not None
            table = nodes.node(watching).table
            placed = {partition: table.state((topic.id, partition)) for partition in range(3)}
            (whole,) = (number for number, found in placed.items() if found is not None and lost not in found.replicas)
            short = [number for number in placed if number != whole]
            for partition in range(3):
                await client.produce(TOPIC, b"before", partition=partition)
            await nodes.stop(lost)
            await nodes.until(lambda: all(len(table.state((topic.id, number)).isr) == 1 for number in short))  # type: ignore[union-attr]

            async with connect(rest, timeout_s=1.0) as hasty:
                for partition in short:
                    with pytest.raises(BraidError) as refused:
                        await hasty.produce(TOPIC, b"refused", partition=partition)
                    assert refused.value.code == "NOT_ENOUGH_REPLICAS", refused.value
                    assert "1 replicas in sync and needs 2" in str(refused.value)
                    fetched = await hasty.fetch(TOPIC, partition, 0)
                    assert [record.value for record in fetched.records] == [b"before"], "reading goes on"
                await hasty.produce(TOPIC, b"meanwhile", partition=whole)

            async with client.producer() as producer:
                waiting = [await producer.send(TOPIC, b"patient", partition=partition) for partition in short]
                assert not any(delivery.done() for delivery in waiting)
                await nodes.start(lost)
                async with asyncio.timeout(PATIENCE_S):
                    for delivery in waiting:
                        await delivery
            for partition in short:
                await client.produce(TOPIC, b"after", partition=partition)
                values = [record.value for record in (await client.fetch(TOPIC, partition, 0)).records]
                assert values.count(b"refused") <= 1, "nobody knows whether it is stored, but not twice"
                assert [value for value in values if value != b"refused"] == [b"before", b"patient", b"after"]
