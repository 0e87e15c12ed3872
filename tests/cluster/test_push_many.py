"""Many partitions of another node, pushed to a subscriber here: few questions wait for them, and little of them is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from test_push_away import _PORTS, _hear, _replicas, _topic
from three_nodes import PATIENCE_S, Nodes

from braidmq.base import limits
from braidmq.broker.peers import PartitionReading
from braidmq.broker.push.distant_log import DistantLog
from braidmq.client import blipmq, connect

_PARTITIONS = 60


def test_many_partitions_wait_in_few_questions_and_within_few_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AWAY_QUESTIONS_MAX", 2)
    monkeypatch.setattr(limits, "AWAY_QUESTION_PARTITIONS_MAX", 2)
    monkeypatch.setattr(limits, "AWAY_READS_BYTES_MAX", 100_000)

    async def work() -> None:
        async with Nodes(tmp_path, listen=_PORTS) as nodes:
            leader, other = await _topic(nodes, "first")
            async with connect(nodes.address(leader)) as client:
                await client.create_topic("work", _PARTITIONS)
            for partition in range(_PARTITIONS):
                await nodes.node(leader).steer("reassign", ["work", str(partition), leader])
            broker = nodes.servers[other].broker
            topic = broker.topic("work")
            await nodes.until(lambda: _replicas(nodes, other, "work") == (leader,) and not _held(nodes, other, topic.id))
            sizes = []
            node = nodes.node(other)
            come = node.come

            async def counted(name: str, rows: Sequence[tuple[int, int, int, int]], wait_s: float) -> list[PartitionReading | None]:
                sizes.append(len(rows))
                return await come(name, rows, wait_s)

            node.come = counted
            async with (
                blipmq.connect(nodes.port(other, "blipmq"), client_id="keeper") as keeper, connect(nodes.address(leader)) as writer,
            ):  # fmt: skip
                await keeper.subscribe("work", qos=1)
                reads = broker.push.distant
                assert reads is not None
                most = 0
                for number in range(3 * _PARTITIONS):
                    await writer.produce("work", b"%d" % number + b" " * 5000, partition=number % _PARTITIONS)
                    most = max(most, reads.waiting[leader])
                    assert reads.kept_bytes <= limits.AWAY_READS_BYTES_MAX
                assert sorted(await _hear(keeper, 3 * _PARTITIONS)) == list(range(3 * _PARTITIONS))
                assert 0 < most <= limits.AWAY_QUESTIONS_MAX
                assert 1 < max(sizes) <= 10 * limits.AWAY_QUESTION_PARTITIONS_MAX
                # Nothing waits behind all that: what the nodes have to say to each other is said at once.
                async with asyncio.timeout(PATIENCE_S):
                    await broker.create_topic("more", 1)
            logs = [feed.log for feed in broker.push._feeds.values() if isinstance(feed.log, DistantLog)]
            assert sum(piece.batches.size for log in logs for piece in log._pieces.values()) == reads.kept_bytes

    asyncio.run(work())


def _held(nodes: Nodes, name: str, topic_id: int) -> bool:
    return any(nodes.node(name).holds(topic_id, partition) for partition in range(_PARTITIONS))
