"""Reading from replicas: a client that asks for it reads from its own rack, sees the same, and is never left with a copy that
stands still."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from braidmq.base.errors import BraidError
from braidmq.broker.topics import Topic
from braidmq.client import Client, connect
from braidmq.client import replicas as client_replicas
from braidmq.client._async import fetcher as client_fetcher
from braidmq.client._async.asking import expect
from braidmq.client._async.connection import encode
from braidmq.client.addresses import parse_address
from braidmq.cluster.quorum import MetaQuorum
from braidmq.cluster.replication.replication import Replication
from braidmq.cluster.replication.settings import ReplicationSettings
from braidmq.wire import flymq
from tests.cluster.three_nodes import Nodes

PATIENCE_S = 60.0
PARTITIONS = 6


def _run(work: object) -> None:
    asyncio.run(asyncio.wait_for(work, 120))  # type: ignore[arg-type]


async def _topic(nodes: Nodes, client: Client, partitions: int = PARTITIONS) -> Topic:
    """A topic that all three nodes have in sync."""
    await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 3 for name in nodes.servers))
    await client.create_topic("orders", partitions)
    topic = nodes.servers["a"].broker.topic("orders")
    await _in_sync(nodes, topic)
    return topic


async def _in_sync(nodes: Nodes, topic: Topic) -> None:
    def reached() -> bool:
        return all(
            len(nodes.node(name).partition_info(topic.id, number).isr) == 3
            and (nodes.node(name).leads(topic.id, number) or nodes.node(name).replication.is_fresh((topic.id, number)))
            for name in nodes.servers for number in range(topic.partitions)
        )  # fmt: skip

    await nodes.until(reached)


async def _produce(client: Client, first: int, stop: int) -> None:
    async with client.producer(linger_ms=1) as producer:
        for number in range(first, stop):
            await producer.send("orders", b"%d" % number, key=b"%d" % number)


def _read_at(nodes: Nodes, name: str) -> int:
    """How many records of the topic clients read from a node."""
    broker = nodes.servers[name].broker
    topic = broker.topic("orders")
    return sum(broker.log_of(topic, number).read_records for number in range(topic.partitions))


def _values(stop: int) -> Counter[bytes]:
    return Counter(b"%d" % number for number in range(stop))


async def _fetch_at(nodes: Nodes, name: str, offset: int, *, wait_ms: int = 0, from_replica: bool = True) -> flymq.FetchedBatches:
    """What one node, and no other, says to a fetch of partition 0."""
    async with connect(nodes.address(name)) as client:
        request = flymq.FetchBatches("orders", 0, offset, 1 << 20, 1, wait_ms, from_replica)
        pool = client._asker._pools.at(parse_address(nodes.address(name)))
        return expect(request, (await pool.call([encode(request)], PATIENCE_S, again=True))[0], flymq.FetchedBatches)


async def _refused(nodes: Nodes, name: str, offset: int = 0, **how: object) -> None:
    """A node sends a reader to the leader."""
    with pytest.raises(BraidError) as refusal:
        await _fetch_at(nodes, name, offset, **how)  # type: ignore[arg-type]
    assert refusal.value.code == "NOT_LEADER"
    assert nodes.address(nodes.leader("orders")) in refusal.value.text


async def _until_refused(nodes: Nodes, name: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await _fetch_at(nodes, name, 0)
            except BraidError as refusal:
                assert refusal.code == "NOT_LEADER"
                return
            await asyncio.sleep(0.05)


def _stop_following(nodes: Nodes, name: str) -> None:
    """Let a node hear nothing more from leaders, as if the way there were cut; others hear it all the same."""
    replication = cast("Replication", nodes.node(name).replication)
    for follower in replication._followers.values():
        follower.stop()


def test_a_client_reads_from_its_own_rack(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path, follower_reads=True) as nodes, connect(nodes.address("a")) as client:
            await _topic(nodes, client)
            await _produce(client, 0, 300)
            async with (
                connect(nodes.address("a"), read_from="nearest", rack="rack-b") as near,
                near.consumer("orders") as consumer,
            ):
                values: Counter[bytes] = Counter()
                while sum(values.values()) < 300:
                    values.update(record.value for record in await consumer.poll(timeout_s=PATIENCE_S))
                # What is produced while somebody waits at a replica comes as well.
                await _produce(client, 300, 600)
                while sum(values.values()) < 600:
                    values.update(record.value for record in await consumer.poll(timeout_s=PATIENCE_S))
            assert values == _values(600)
            assert {name: _read_at(nodes, name) for name in "abc"} == {"a": 0, "b": 600, "c": 0}

    _run(work())


def test_without_a_rack_readers_are_spread(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path, follower_reads=True) as nodes, connect(nodes.address("a")) as client:
            await _topic(nodes, client, 24)
            await _produce(client, 0, 480)
            async with client.consumer("orders", read_from="nearest") as consumer:
                values: Counter[bytes] = Counter()
                while sum(values.values()) < 480:
                    values.update(record.value for record in await consumer.poll(timeout_s=PATIENCE_S))
            assert values == _values(480)
            assert all(_read_at(nodes, name) for name in "abc")

    _run(work())


@pytest.mark.parametrize(
    ("allowed", "read_from", "rack"),
    [(False, "nearest", "rack-b"), (True, "leader", "rack-b"), (True, "nearest", "elsewhere")],
)
def test_others_read_from_leaders(tmp_path: Path, allowed: bool, read_from: str, rack: str) -> None:
    """Where nodes do not allow it, a client does not ask for it, or there is none in its rack."""

    async def work() -> None:
        async with Nodes(tmp_path, follower_reads=allowed) as nodes, connect(nodes.address("a")) as client:
            topic = await _topic(nodes, client)
            await _produce(client, 0, 300)
            async with (
                connect(nodes.address("a"), read_from=read_from, rack=rack) as near,  # type: ignore[arg-type]
                near.consumer("orders") as consumer,
            ):
                got = 0
                while got < 300:
                    got += len(await consumer.poll(timeout_s=PATIENCE_S))
            for name in nodes.servers:
                broker = nodes.servers[name].broker
                for number in range(PARTITIONS):
                    assert nodes.node(name).leads(topic.id, number) == bool(broker.log_of(topic, number).read_records)
            follower = next(name for name in "abc" if name != nodes.leader("orders"))
            await _refused(nodes, follower, from_replica=False)
            if not allowed:
                await _refused(nodes, follower)

    _run(work())


def test_what_is_not_committed_is_not_seen_and_is_no_error(tmp_path: Path) -> None:
    """One replica in sync lacks a record, another one has it: readers of that see nothing of it yet."""

    async def work() -> None:
        nodes = Nodes(tmp_path, follower_reads=True)
        # So long the one that lacks it counts as in sync.
        nodes.replication = ReplicationSettings(lag_s=PATIENCE_S)
        async with nodes, connect(nodes.address("a")) as client:
            topic = await _topic(nodes, client, 1)
            await client.produce("orders", b"seen", partition=0)
            leader = nodes.leader("orders")
            follower, mute = (name for name in "abc" if name != leader)
            # Of this partition alone, so that all else in the cluster goes on.
            cast("Replication", nodes.node(mute).replication)._unfollow((topic.id, 0))
            unseen = asyncio.create_task(client.produce("orders", b"unseen", partition=0))
            copy = nodes.servers[follower].broker.log_of(topic, 0)
            await nodes.until(lambda: copy.log_end == 2)
            assert copy.high_watermark == 1
            assert len((await _fetch_at(nodes, follower, 0)).batches) > 0
            for offset in (1, 2):
                answer = await _fetch_at(nodes, follower, offset, wait_ms=50)
                assert (len(answer.batches), answer.high_watermark) == (0, 1)
            # Nobody here knows whether there is such an offset; the leader does.
            await _refused(nodes, follower, 3)
            assert not unseen.done()
            unseen.cancel()
            await asyncio.gather(unseen, return_exceptions=True)

    _run(work())


def test_a_copy_that_stands_still_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica does not hear its leaders any more: it sends readers away, and a consumer goes on elsewhere."""
    monkeypatch.setattr(client_replicas, "SET_ASIDE_SECONDS", 0.5)

    async def work() -> None:
        async with (
            Nodes(tmp_path, follower_reads=True) as nodes,
            connect(nodes.address("a")) as client,
            connect(nodes.address("a"), read_from="nearest", rack="rack-b") as near,
        ):
            topic = await _topic(nodes, client)
            await _produce(client, 0, 300)
            async with near.consumer("orders") as consumer:
                values: Counter[bytes] = Counter()
                while sum(values.values()) < 300:
                    values.update(record.value for record in await consumer.poll(timeout_s=PATIENCE_S))
                before = _read_at(nodes, "b")
                assert before == 300
                _stop_following(nodes, "b")
                led = [number for number in range(PARTITIONS) if nodes.node("b").leads(topic.id, number)]
                await nodes.until(
                    lambda: not any(
                        nodes.node("b").serves_readers(topic.id, number) for number in range(PARTITIONS) if number not in led
                    )
                )
                await _produce(client, 300, 600)
                while sum(values.values()) < 600:
                    values.update(record.value for record in await consumer.poll(timeout_s=PATIENCE_S))
            assert values == _values(600)

    _run(work())


class _LostQuorum:
    """What a node sees of a quorum that it does not reach."""

    async def read(self, prefix: str, *, linearizable: bool = True) -> object:
        raise BraidError("QUORUM_UNAVAILABLE", reason="cut off")


def test_without_the_quorum_a_replica_is_not_read(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path, follower_reads=True) as nodes, connect(nodes.address("a")) as client:
            await _topic(nodes, client, 1)
            await client.produce("orders", b"seen", partition=0)
            leader = nodes.leader("orders")
            follower = next(name for name in "abc" if name != leader)
            assert len((await _fetch_at(nodes, follower, 0)).batches) > 0
            node = nodes.node(follower)
            kept, node.quorum = node.quorum, cast("MetaQuorum", _LostQuorum())
            await _until_refused(nodes, follower)
            # The leader serves as ever.
            assert len((await _fetch_at(nodes, leader, 0)).batches) > 0
            node.quorum = kept
            await nodes.until(lambda: node.serves_readers(nodes.servers["a"].broker.topic("orders").id, 0))
            assert len((await _fetch_at(nodes, follower, 0)).batches) > 0

    _run(work())


def test_the_replica_that_is_read_may_go_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_replicas, "SET_ASIDE_SECONDS", 0.5)
    monkeypatch.setattr(client_fetcher, "RECONSIDER_SECONDS", 0.5)

    async def work() -> None:
        async with (
            Nodes(tmp_path, follower_reads=True) as nodes,
            connect(f"{nodes.address('a')},{nodes.address('c')}") as client,
            connect(nodes.address("b"), read_from="nearest", rack="rack-b") as near,
        ):
            topic = await _topic(nodes, client)
            values: Counter[bytes] = Counter()
            async with near.consumer("orders") as consumer:

                async def read(count: int) -> None:
                    while sum(values.values()) < count:
                        values.update(record.value for record in await consumer.poll(timeout_s=PATIENCE_S))

                await _produce(client, 0, 300)
                await read(300)
                assert _read_at(nodes, "b") == 300
                await nodes.stop("b")
                await _produce(client, 300, 600)
                await read(600)
                await nodes.start("b")
                await _in_sync(nodes, topic)
                stop = 600
                async with asyncio.timeout(PATIENCE_S):
                    while not _read_at(nodes, "b"):
                        await _produce(client, stop, stop + 60)
                        stop += 60
                        await read(stop)
            assert values == _values(stop)

    _run(work())
