"""How many replicas there are, and where: topics that were made while nodes were away, nodes that are emptied and forgotten, and
what of it those who look are told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from three_nodes import Nodes

from braidmq.base.errors import BraidError
from braidmq.cli.cluster import findings
from braidmq.client import connect
from braidmq.cluster.partition_state import LogKey, PartitionState


async def three(nodes: Nodes) -> None:
    await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 3 for name in nodes.servers))


def states(nodes: Nodes, name: str = "a") -> list[PartitionState]:
    return [state for _, state in nodes.node(name).table.items()]


def all_on(nodes: Nodes, names: str) -> bool:
    found = states(nodes, nodes.coordinator())
    return bool(found) and all(set(state.replicas) == set(state.isr) == set(names) for state in found)


def key_of(nodes: Nodes, topic: str, partition: int = 0) -> LogKey:
    return nodes.servers[nodes.coordinator()].broker.topic(topic).id, partition


async def wrong(nodes: Nodes, name: str = "a") -> list[str]:
    return findings(await nodes.node(name).document())


def test_a_topic_made_while_a_node_is_away_gets_it_as_a_replica(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path) as nodes:
            await three(nodes)
            await nodes.stop("c")
            async with connect(nodes.address("a")) as client:
                await client.create_topic("orders", 4)
                await client.produce("orders", b"one", partition=0)
            for state in states(nodes):
                assert set(state.replicas) == {"a", "b", "c"} and set(state.isr) == {"a", "b"} and state.replicas[-1] == "c"
            assert any("replicas that are behind" in text for text in await wrong(nodes))
            await nodes.start("c")
            await nodes.until(lambda: all_on(nodes, "abc"))
            assert nodes.node("a").table.min_insync(key_of(nodes, "orders")[0]) == 2

    asyncio.run(work())


def test_a_topic_made_before_the_others_came_gets_them(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path, "a") as nodes:
            async with connect(nodes.address("a")) as client:
                await client.create_topic("orders", 3)
                await client.produce("orders", b"one", partition=0)
                table = nodes.node("a").table
                topic = key_of(nodes, "orders")[0]
                assert (table.min_insync(topic), table.min_insync_wanted(topic)) == (1, 2)
                await asyncio.gather(nodes.start("b"), nodes.start("c"))
                await nodes.until(lambda: all_on(nodes, "abc"))
                await nodes.until(lambda: all(nodes.node(name).table.min_insync(topic) == 2 for name in "abc"))
                assert await client.produce("orders", b"two", partition=0)
            await nodes.until(lambda: nodes.node("a").journals.state is not None and len(nodes.node("a").journals.state.isr) == 3)
            assert await wrong(nodes) == []
            assert nodes.node("a").overview.figures().under_replicated == 0
            document = await nodes.node("a").document()
            document["partitions"][1]["replicas"] = document["partitions"][1]["isr"] = ["a", "b"]
            assert findings(document) == ["1 partitions with fewer replicas than they are to have: orders/1"]

    asyncio.run(work())


def test_a_topic_can_need_fewer_replicas_than_it_did(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path) as nodes:
            await three(nodes)
            async with connect(nodes.address("a")) as client:
                await client.create_topic("orders", 2)
                with pytest.raises(BraidError, match="there are 3 nodes"):
                    await client.cluster.require("orders", replicas=4)
                with pytest.raises(BraidError, match="of 3 replicas no 4 can be in sync"):
                    await client.cluster.require("orders", min_insync=4)
                await client.cluster.require("orders", min_insync=3)
                topic = key_of(nodes, "orders")[0]
                await nodes.until(lambda: nodes.node("a").table.min_insync(topic) == 3)
                await nodes.stop("c")
                for partition in range(2):
                    state = nodes.node("a").table.state((topic, partition))
                    assert state is not None and (set(state.isr), state.elr) == ({"a", "b"}, ("c",))
                log = nodes.servers[nodes.leader("orders")].broker.store.opened(topic, 0)
                assert log is not None
                with pytest.raises(BraidError, match="NOT_ENOUGH_REPLICAS"):
                    log.check_writable()
                await client.cluster.require("orders", min_insync=2)
                assert await client.produce("orders", b"one", partition=0)
                for partition in range(2):
                    state = nodes.node("a").table.state((topic, partition))
                    assert state is not None and state.elr == (), "c lacks what was acknowledged without it"

    asyncio.run(work())


def test_whoever_moves_something_is_told_the_truth(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path) as nodes:
            await three(nodes)
            async with connect(nodes.address("a")) as client:
                await client.create_topic("orders", 1)
            await nodes.until(lambda: all_on(nodes, "abc"))
            node, key = nodes.node(nodes.coordinator()), key_of(nodes, "orders")
            leader = nodes.leader("orders")
            one, two = (name for name in "abc" if name != leader)
            before = node.table.elections
            # All are made from one state, so at most the first of them changes anything at once.
            await asyncio.gather(
                node.coordinator.lead(key, one), node.coordinator.lead(key, two), node.coordinator.moving.reassign(key, [two, one])
            )
            assert node.table.elections >= before + 2, "both led, one after the other"
            await nodes.until(lambda: all_on(nodes, two + one) and nodes.leader("orders") == two)
            with pytest.raises(BraidError, match="not here or not in sync"):
                await node.coordinator.lead(key, leader)

    asyncio.run(work())


def test_a_node_is_emptied_until_nothing_is_left_and_then_forgotten(tmp_path: Path) -> None:
    async def work() -> None:
        nodes = Nodes(tmp_path, "abcd")
        nodes.node_settings = {"forget_s": 0.0}
        async with nodes:
            await nodes.until(lambda: len(nodes.node("a").table.live()) == 4)
            name = nodes.coordinator()
            others = "".join(other for other in "abcd" if other != name)
            async with connect([nodes.address(other) for other in others]) as client:
                await client.create_topic("orders", 8)
                for partition in range(8):
                    await client.produce("orders", b"one", partition=partition)
                # As if whoever was asked to empty it had been lost right after.
                await nodes.node(name).broker.submit_metadata("replicas", ["retire", name, True])
                with pytest.raises(BraidError, match="is being emptied"):
                    await client.cluster.reassign("orders", 0, [name])
                await nodes.until(lambda: name not in {row for state in states(nodes, others[0]) for row in state.replicas})
                await nodes.until(lambda: not nodes.node(name).coordinates)
                journals = nodes.node(others[0]).journals
                await nodes.until(lambda: journals.state is not None and name not in journals.state.replicas)
                assert await client.cluster.progress() == []
                assert all_on(nodes, others), "each of the others has all of it"
                assert nodes.forgotten == [], "it is here"
                await nodes.stop(name)
                await nodes.until(lambda: name not in nodes.node(others[0]).table.brokers)
                assert set(nodes.forgotten) == {name}
                for partition in range(8):
                    assert len((await client.fetch("orders", partition, 0)).records) == 1
            await nodes.until(lambda: len(journals.state.isr) == 3 if journals.state else False)
            assert await wrong(nodes, others[0]) == []

    asyncio.run(work())


def test_a_lost_node_is_forgotten_and_too_few_are_no_reason_to_lose_copies(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path) as nodes:
            await three(nodes)
            async with connect([nodes.address("a"), nodes.address("b")]) as client:
                await client.create_topic("orders", 3)
                with pytest.raises(BraidError, match="c is here"):
                    await client.cluster.forget("c")
                await nodes.stop("c")
                answer = await client.cluster.steer("forget", "c")
                assert answer["moving"] == 3 and "3 partitions will have fewer replicas" in answer["message"]
                await nodes.until(lambda: "c" not in nodes.node("a").table.brokers)
                assert "c" in nodes.forgotten and all_on(nodes, "ab")
                with pytest.raises(BraidError, match="orders needs 2 replicas in sync"):
                    await client.cluster.decommission("b")
                await nodes.until(lambda: len(nodes.node("a").journals.state.isr) == 2)  # type: ignore[union-attr]
                assert await wrong(nodes) == []

    asyncio.run(work())


def test_journals_with_too_few_replicas_are_no_secret(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path) as nodes:
            await three(nodes)
            journals = nodes.node("a").journals
            await nodes.until(lambda: journals.state is not None and len(journals.state.isr) == 3)
            assert await wrong(nodes) == []
            await nodes.stop("c")
            await nodes.until(lambda: journals.state is not None and len(journals.state.isr) == 2)
            assert "the broker's own journals have a replica that is behind: c" in await wrong(nodes)
            assert nodes.node("a").trouble == "", "everything can change"
            await nodes.stop("b")
            await nodes.until(lambda: journals.state is not None and journals.state.isr == ("a",))
            assert "the journals have 1 of the 2 replicas in sync that they need: a" in nodes.node("a").trouble
            figures = nodes.node("a").overview.figures()
            assert (figures.journals_replicas, figures.journals_isr, figures.journals_min_insync) == (3, 1, 2)

    asyncio.run(work())


def test_leaders_are_spread_by_themselves_where_that_is_asked_for(tmp_path: Path) -> None:
    async def work() -> None:
        nodes = Nodes(tmp_path)
        nodes.node_settings = {"rebalance_interval_s": 0.1}
        async with nodes:
            await three(nodes)
            async with connect(nodes.address("a")) as client:
                # More than one look of the coordinator moves.
                await client.create_topic("orders", 60)
                await nodes.until(lambda: all_on(nodes, "abc"))
                coordinator = nodes.coordinator()
                other = next(name for name in "abc" if name != coordinator)
                await nodes.node(other).step_down()

                def most() -> int:
                    leaders = [state.leader for state in states(nodes, coordinator)]
                    return max(map(leaders.count, "abc"))

                await nodes.until(lambda: most() <= 24)

    asyncio.run(work())
