"""A node that missed more of the journals than is kept gets the state instead and comes back by itself, with all records of topics
that it had."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from etcd_bench import needs_etcd
from node_processes import NodeProcess, Place, Processes, until
from three_nodes import Nodes

from braidmq.admin.health import _check_state
from braidmq.base import limits
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.topics import Topic
from braidmq.client import connect
from braidmq.cluster.replication.replication import Replication
from braidmq.cluster.transport import ClusterOp
from braidmq.log.partition import PartitionLog

FEW: dict[str, Any] = {"journal_snapshot_commands": 3, "journal_segment_bytes": 400, "checkpoint_interval_s": 3600.0}


async def three(nodes: Nodes) -> Topic:
    """A topic on three nodes, with a record that every node has; `a` coordinates."""
    await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 3 for name in "abc"))
    broker = nodes.servers["a"].broker
    topic = await broker.create_topic("kept", 1)
    await broker.commit_offset("kept", "readers", 0, 1)
    await nodes.until(lambda: in_sync(nodes, topic))
    leader = nodes.servers[nodes.leader("kept")].broker
    await leader.append(topic, 0, b"", b"from before")
    await nodes.until(lambda: all(log_of(nodes, name).high_watermark == 1 for name in "abc"))
    return topic


def in_sync(nodes: Nodes, topic: Topic) -> bool:
    """Whether all nodes have the topic, and all journals."""
    node = nodes.node(nodes.coordinator())
    state, journals = node.table.state((topic.id, 0)), node.journals.state
    return state is not None and journals is not None and len(state.isr) == len(journals.isr) == 3


def log_of(nodes: Nodes, name: str) -> PartitionLog:
    broker = nodes.servers[name].broker
    return broker.log_of(broker.topic("kept"), 0)


async def many(broker: Broker, which: Sequence[str] = ("metadata", "offsets")) -> None:
    """Commands enough that those before them are not kept any more, in a journal of a coordinator."""
    before = {name: broker.journals[name].log.log_end for name in which}
    number = 0
    while any(broker.journals[name].log.log_start <= before[name] for name in which):
        number += 1
        if "metadata" in which:
            await broker.configure_topic("kept", {"retention_bytes": str(1_000_000 + number)})
        await broker.commit_offset("kept", "readers", 0, number)
        await broker.checkpoint()
        assert number < 100


async def same_state(nodes: Nodes, topic: Topic) -> None:
    """Every node knows what the cluster decided, and has the record."""
    await nodes.until(lambda: in_sync(nodes, topic))
    coordinator = nodes.servers[nodes.coordinator()].broker
    await coordinator.commit_offset("kept", "readers", 0, 77)
    for name in "abc":
        broker = nodes.servers[name].broker
        await nodes.until(lambda: nodes.node(name).applied() == nodes.node(nodes.coordinator()).applied())  # noqa: B023
        assert broker.groups.committed(topic.id, "readers", 0) == 77
        assert broker.topic("kept").properties == coordinator.topic("kept").properties
        log = log_of(nodes, name)
        assert (log.log_start, log.high_watermark) == (0, 1), "what it had of the topic is there"
        assert nodes.node(name).trouble == ""


@pytest.mark.parametrize("which", [("metadata", "offsets"), ("offsets",)])
def test_a_node_that_was_away_too_long_comes_back_by_itself(tmp_path: Path, which: tuple[str, ...]) -> None:
    async def work() -> None:
        nodes = Nodes(tmp_path)
        nodes.engine = FEW
        async with nodes:
            topic = await three(nodes)
            away = next(name for name in "cb" if name != nodes.coordinator())
            await nodes.stop(away)
            await many(nodes.servers[nodes.coordinator()].broker, which)
            before = stored(tmp_path / away)
            await nodes.start(away)
            await same_state(nodes, topic)
            assert before and stored(tmp_path / away).items() >= before.items()

    asyncio.run(work())


def stored(data_dir: Path) -> dict[str, int]:
    """The files of topics and what they were made as: whoever writes them anew makes others."""
    return {str(path): path.stat().st_ino for path in (data_dir / "topics").rglob("*.log")}


def test_a_node_that_runs_and_heard_nothing_for_too_long_begins_anew(tmp_path: Path) -> None:
    """It serves meanwhile, and says what it lacks; whoever waits there for a command is told to try again."""

    async def work() -> None:
        nodes = Nodes(tmp_path)
        nodes.engine = FEW
        async with nodes:
            topic = await three(nodes)
            away = next(name for name in "cb" if name != nodes.coordinator())
            before, node = nodes.servers[away], nodes.node(away)
            coordinates = nodes.node(nodes.coordinator())
            coordinator, replication = coordinates.broker, coordinates.replication
            assert isinstance(replication, Replication)

            async def refused(name: str, payload: memoryview) -> Sequence[Buffer]:
                if name == away:
                    raise BraidError("NOT_READY", state="cut off")
                return await replication._fetch_asked(name, payload)

            coordinates.transport.serve(ClusterOp.REPLICA_FETCH, refused)
            commit = asyncio.create_task(before.broker.commit_offset("kept", "readers", 0, 5))
            await nodes.until(lambda: coordinator.groups.committed(topic.id, "readers", 0) == 5)
            await many(coordinator)
            seen: list[str] = []
            say = node.transfer._say
            node.transfer._say = lambda text: (say(text), seen.append(node.trouble))[0]  # type: ignore[method-assign]
            coordinates.transport.serve(ClusterOp.REPLICA_FETCH, replication._fetch_asked)
            with pytest.raises(BraidError, match="COORDINATOR_MOVED"):
                await commit
            await nodes.until(lambda: nodes.servers.get(away) not in (None, before) and nodes.servers[away].state == "ready")
            assert any("gets the state of metadata from" in text for text in seen)
            await same_state(nodes, topic)

    asyncio.run(work())


def test_a_state_that_cannot_be_had_is_asked_for_again_and_health_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        nodes = Nodes(tmp_path)
        nodes.engine = FEW
        async with nodes:
            topic = await three(nodes)
            away = next(name for name in "cb" if name != nodes.coordinator())
            await nodes.stop(away)
            coordinator = nodes.node(nodes.coordinator())
            await many(coordinator.broker)
            answer, asked = coordinator.transfer._asked, asyncio.Event()

            async def refused(name: str, payload: memoryview) -> Sequence[Buffer]:
                asked.set()
                raise BraidError("SERVER_ERROR", message="the disk cannot be read")

            coordinator.transport.serve(ClusterOp.JOURNAL_SNAPSHOT, refused)
            coming = asyncio.create_task(nodes.start(away))
            async with asyncio.timeout(20):
                await asked.wait()

            def health() -> str:
                return _check_state(SimpleNamespace(server=nodes.servers[away])).message or ""  # type: ignore[arg-type]

            await nodes.until(lambda: "cannot get the state of" in health())
            assert "the disk cannot be read" in health()
            coordinator.transport.serve(ClusterOp.JOURNAL_SNAPSHOT, answer)
            await coming
            await same_state(nodes, topic)

    asyncio.run(work())


def test_a_state_larger_than_a_frame_travels_in_pieces_beside_the_loop(tmp_path: Path) -> None:
    async def work() -> None:
        nodes = Nodes(tmp_path)
        nodes.engine = FEW
        async with nodes:
            topic = await three(nodes)
            away = next(name for name in "cb" if name != nodes.coordinator())
            await nodes.stop(away)
            coordinator = nodes.node(nodes.coordinator())
            # Offsets under names that are as long as they come.
            group = "g" * 30_000
            for number in range(1200):
                coordinator.broker.groups.apply(["commit", topic.id, f"{number}{group}", 0, number])
            await many(coordinator.broker, ("offsets",))
            found = coordinator.broker.journals["offsets"].newest_snapshot()
            assert found is not None and len(found[1]) > limits.FRAME_PAYLOAD_BYTES_MAX
            pieces: list[int] = []
            answer = coordinator.transfer._asked

            async def counted(name: str, payload: memoryview) -> Sequence[Buffer]:
                parts = await answer(name, payload)
                pieces.append(sum(map(len, parts)))
                return parts

            coordinator.transport.serve(ClusterOp.JOURNAL_SNAPSHOT, counted)
            threads: set[int] = set()
            read = coordinator.broker.journals["offsets"].newest_snapshot

            def reading() -> tuple[int, bytes] | None:
                threads.add(threading.get_ident())
                return read()

            coordinator.broker.journals["offsets"].newest_snapshot = reading  # type: ignore[method-assign]
            await nodes.start(away)
            await nodes.until(lambda: in_sync(nodes, topic))
            assert nodes.servers[away].broker.groups.committed(topic.id, f"1199{group}", 0) == 1199
            assert len(pieces) > 8 and max(pieces) < 5 * limits.MIB
            assert threads and threading.get_ident() not in threads, "the loop of the coordinator does not wait for the disk"

    asyncio.run(work())


@needs_etcd
def test_processes_come_back_by_themselves(tmp_path: Path) -> None:
    """One that was killed, and one that stood still: of each the same process goes on, with another state."""
    few = Place(through=(sys.executable, str(Path(__file__).with_name("small_journals.py"))))

    async def commit(address: str, times: int) -> None:
        async with connect(address) as client:
            await client.create_topic("kept", 1)
            await client.produce("kept", b"once more")
            for number in range(times):
                await client.commit("kept", "readers", 0, number)
                # Each checkpoint lets go of what the snapshot before it replaces.
                await asyncio.sleep(0.02)

    def knows(node: NodeProcess, offset: int, records: int) -> bool:
        async def ask() -> bool:
            async with connect(node.address) as client, client.consumer("kept", start="earliest") as consumer:
                found = 0
                while found < records:
                    found += len(await consumer.poll())
                return await client.committed("kept", "readers", 0) == offset

        try:
            return asyncio.run(asyncio.wait_for(ask(), 10.0))
        except (BraidError, OSError, TimeoutError):
            return False

    with Processes(tmp_path, places=dict.fromkeys("abc", few)) as nodes:
        one, other = nodes.nodes["c"], nodes.nodes["b"]
        asyncio.run(commit(other.address, 5))
        one.kill()
        asyncio.run(commit(other.address, 60))
        one.start()
        one.wait_ready()
        until(lambda: "__offsets/0 begins anew" in one.log())
        until(lambda: knows(one, 59, 2))

        assert one.process is not None
        running = one.process.pid
        one.signal(signal.SIGSTOP)
        asyncio.run(commit(other.address, 70))
        times = one.log().count("this node begins anew")
        one.signal(signal.SIGCONT)
        until(lambda: one.log().count("this node begins anew") > times)
        one.wait_ready()
        until(lambda: knows(one, 69, 3))
        assert one.process.poll() is None and one.process.pid == running
