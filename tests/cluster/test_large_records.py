"""A record of the largest size that is legal is replicated like any other, and holds nobody up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from three_nodes import Nodes

from braidmq.base import limits
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.cluster.journals import INTERNAL, is_journal
from braidmq.cluster.replication.replication import Replication
from braidmq.cluster.replication.settings import ReplicationSettings
from braidmq.cluster.transport import ClusterOp


def _placed_with(nodes: Nodes, partitions: int, topic: str) -> dict[str, list[int]]:
    led: dict[str, list[int]] = {}
    for partition in range(partitions):
        led.setdefault(nodes.leader(topic, partition), []).append(partition)
    return led


def test_the_largest_record_reaches_every_replica_at_once_and_on_catch_up(tmp_path: Path) -> None:
    largest = os.urandom(limits.RECORD_BYTES_MAX)

    async def work() -> None:
        nodes = Nodes(tmp_path)
        # Nobody leaves the isr for being slow: what is acknowledged is on all three.
        nodes.replication = ReplicationSettings(lag_s=8.0)
        async with nodes:
            await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 3 for name in "abc"))
            broker = nodes.servers["a"].broker
            topic = await broker.create_topic("t", 6)
            await nodes.until(lambda: all(len(state.isr) == 3 for _, state in nodes.node("a").table.items()))
            mine = _placed_with(nodes, 6, "t")["a"]
            # In one turn, so that one fetch finds both: they do not fit one frame.
            with pytest.raises(BraidError, match="RECORD_TOO_LARGE"):
                broker.stage(topic, mine[1], b"", largest + b"x")
            async with asyncio.timeout(30):
                small = broker.append(topic, mine[0], b"", b"s" * 1_200_000)
                await asyncio.gather(small, broker.append(topic, mine[1], b"", largest))
                await nodes.until(lambda: _states(nodes)[topic.id, mine[1]] == 3)

            # A node that was away lacks both of the same leader, and several of that size.
            await nodes.stop("c")
            async with asyncio.timeout(30):
                for partition in mine:
                    await broker.append(topic, partition, b"", b"s" * 1_200_000)
                    await broker.append(topic, partition, b"", largest)
            await nodes.start("c")
            await nodes.until(lambda: all(found == 3 for found in _states(nodes).values()))
            log = nodes.servers["c"].broker.log_of(topic, mine[1])
            assert log.log_end == broker.log_of(topic, mine[1]).log_end
            async with asyncio.timeout(10):
                await broker.append(topic, mine[0], b"", b"and on")

    asyncio.run(work())


def _states(nodes: Nodes) -> dict[tuple[int, int], int]:
    return {key: len(state.isr) for key, state in nodes.node("a").table.items()}


def test_what_does_not_fit_goes_first_next_time_and_nobody_takes_it_for_said(tmp_path: Path) -> None:
    """Others that always have something would keep it out for ever."""

    async def work() -> None:
        async with Nodes(tmp_path) as nodes:
            await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 3 for name in "abc"))
            broker = nodes.servers["a"].broker
            topic = await broker.create_topic("t", 6)
            small, large = _placed_with(nodes, 6, "t")["a"]
            replication = nodes.node("a").replication
            assert isinstance(replication, Replication)
            await nodes.until(lambda: "b" in replication._sessions)
            session = replication._sessions["b"]
            await nodes.until(lambda: {(topic.id, small), (topic.id, large)} <= set(session.places))
            await nodes.stop("b")
            async with asyncio.timeout(30):
                await broker.append(topic, small, b"", b"s" * 900_000)
                await broker.append(topic, large, b"", bytes(limits.RECORD_BYTES_MAX))
            session.news = dict.fromkeys([(topic.id, small), (topic.id, large)])
            said = await replication._gathered(session, 8 * limits.MIB)
            assert [(part.key[1], bool(part.size)) for part in said] == [(small, True), (large, False)]
            session.tell((topic.id, small))
            said = await replication._gathered(session, 8 * limits.MIB)
            assert [part.key[1] for part in said if part.size] == [large]
            assert (topic.id, small) in session.news, "it is told the next time"

    asyncio.run(work())


def test_commands_go_before_everything_and_are_not_throttled(tmp_path: Path) -> None:
    async def work() -> None:
        nodes = Nodes(tmp_path, "ab", replication_factor=1)
        # So little that nothing which is throttled arrives while anybody waits for it.
        nodes.replication = ReplicationSettings(lag_s=1.0, catch_up_bytes_per_s=1)
        async with nodes:
            broker = nodes.servers[nodes.coordinator()].broker
            for number in range(100):
                await broker.create_topic(f"topic-{number}", 1)
            await nodes.start("c")
            assert len(nodes.servers["c"].broker.topics) == 100, "it knows all of them, a second after it came"
            await broker.create_topic("one-more", 1)
            await nodes.until(lambda: len(nodes.servers["c"].broker.topics) == 101)
            replication = nodes.node(nodes.coordinator()).replication
            assert isinstance(replication, Replication)
            session = replication._sessions["c"]
            session.news = dict.fromkeys([(1, 0), (0, 3), (0, 1)])
            assert replication._in_order(session)[0] == (0, 1)
            assert [name for number, name in enumerate(INTERNAL) if is_journal((0, number))] == ["metadata", "offsets", "work"]

    asyncio.run(work())


def test_a_command_that_no_frame_holds_is_refused_and_nothing_waits_behind_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path, "ab") as nodes:
            await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 2 for name in "ab"))
            broker = nodes.servers[nodes.coordinator()].broker
            with pytest.raises(BraidError, match="RECORD_TOO_LARGE"):
                await broker.submit("offsets", ["commit", 1, "g" * limits.RECORD_BYTES_MAX, 0, 1])
            await broker.create_topic("t", 1)
            await broker.commit_offset("t", "readers", 0, 0)

    asyncio.run(work())


def test_an_answer_that_takes_longer_than_answers_do_is_waited_for(tmp_path: Path) -> None:
    """As the largest record does on a slow network: it would take as long each time that it is asked for."""

    async def work() -> None:
        nodes = Nodes(tmp_path, "ab")
        nodes.replication = ReplicationSettings(lag_s=4.0, answer_s=0.2)
        async with nodes:
            await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 2 for name in "ab"))
            coordinator = nodes.node(nodes.coordinator())
            replication = coordinator.replication
            assert isinstance(replication, Replication)
            fetch, answered = replication._fetch_asked, 0

            async def slowly(node: str, payload: memoryview) -> Sequence[Buffer]:
                nonlocal answered
                parts = await fetch(node, payload)
                await asyncio.sleep(0.7)
                answered += 1
                return parts

            coordinator.transport.serve(ClusterOp.REPLICA_FETCH, slowly)
            async with asyncio.timeout(30):
                await coordinator.broker.create_topic("t", 1)
            assert answered

    asyncio.run(work())
