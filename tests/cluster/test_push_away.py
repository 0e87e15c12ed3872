"""BlipMQ and fq on a node that has no replica: everything comes in and goes out there as anywhere else."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from three_nodes import PATIENCE_S, Nodes

from braidmq.base import limits
from braidmq.base.config import Listen
from braidmq.client import blipmq, connect, fq

_PORTS = (Listen("flymq", "127.0.0.1", 0), Listen("blipmq", "127.0.0.1", 0), Listen("fq", "127.0.0.1", 0))


async def _topic(nodes: Nodes, name: str) -> tuple[str, str]:
    """Make a topic of one partition with one replica; the node that has it, and one that does not."""
    await nodes.until(lambda: all(len(nodes.node(each).table.live()) == 3 for each in nodes.servers))
    other = nodes.coordinator()
    leader = next(each for each in nodes.servers if each != other)
    async with connect(nodes.address(leader)) as client:
        await client.create_topic(name, 1)
    await nodes.node(leader).steer("reassign", [name, "0", leader])
    await nodes.until(lambda: all(_replicas(nodes, each, name) == (leader,) for each in nodes.servers))
    return leader, other


def _replicas(nodes: Nodes, node: str, topic: str) -> tuple[str, ...]:
    """The replicas of a topic's first partition, as a node knows them."""
    found = nodes.servers[node].broker.topics.get(topic)
    state = None if found is None else nodes.node(node).table.state((found.id, 0))
    return () if state is None else state.replicas


async def _submit(address: str, exchange: str, payload: bytes) -> dict[str, int]:
    """What fq's HTTP port answers to a message."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    headers = {"X-Fq-User": "u", "X-Fq-Exchange": exchange, "X-Fq-Route": "r.a", "Content-Length": str(len(payload))}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"POST /submit HTTP/1.0\r\n{head}\r\n".encode() + payload)
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    writer.close()
    found = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert isinstance(found, dict)
    return found


def test_what_is_submitted_by_http_to_any_node_is_stored(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path, listen=_PORTS) as nodes:
            leader, other = await _topic(nodes, "work")
            async with fq.connect(nodes.port(leader, "fq"), queue="jobs", queue_type="disk:public,drop,permanent") as client:
                await client.bind("work", "prefix:r.")
                await nodes.until(lambda: nodes.servers[other].broker.fq.table.get(b"jobs") is not None)
                answer = await _submit(nodes.port(other, "fq"), "work", b"one")
                assert answer == {"routed": 1, "dropped": 0, "no_route": 0, "no_exchange": 0}
                async with asyncio.timeout(PATIENCE_S):
                    (message,) = await client.poll(timeout_s=PATIENCE_S)
                assert message.payload == b"one"
            # Nothing is bound there: it is stored all the same.
            await _topic(nodes, "bare")
            assert (await _submit(nodes.port(other, "fq"), "bare", b"two"))["no_exchange"] == 1
            async with connect(nodes.address(other)) as reader, reader.consumer("bare", start="earliest") as consumer:
                assert [record.value for record in await consumer.poll(timeout_s=PATIENCE_S)] == [b"two"]

    asyncio.run(work())


@pytest.mark.parametrize("protocol", ["fq", "blipmq"])
def test_publishers_wait_while_the_leader_is_away(tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that does not answer costs publishers through other nodes time, and the node no memory."""
    assert limits.AWAY_LANE_BYTES_MAX <= limits.AWAY_BYTES_MAX
    monkeypatch.setattr(limits, "AWAY_LANE_BYTES_MAX", 256 * limits.KIB)
    payload, count = b"x" * 10_000, 2000

    async def publish(address: str) -> None:
        if protocol == "fq":
            async with fq.connect(address) as client:
                for number in range(count):
                    await client.publish("work", b"r", b"%06d" % number + payload)
                await client.flush(confirm=True)
        else:
            async with blipmq.connect(address) as client:
                for number in range(count):
                    await client.publish("work", b"%06d" % number + payload, qos=0)
                # Behind them all.
                await client.publish("work", b"last", qos=1)

    async def work() -> None:
        async with Nodes(tmp_path, listen=_PORTS) as nodes:
            leader, other = await _topic(nodes, "work")
            broker = nodes.servers[other].broker
            await nodes.stop(leader)
            publishing = asyncio.create_task(publish(nodes.port(other, protocol)))
            topic = broker.topics.get("work")
            assert topic is not None
            peak = 0

            async def watch() -> None:
                nonlocal peak
                while not publishing.done():
                    peak = max(peak, broker.away.waiting_bytes)
                    await asyncio.sleep(0.001)

            watching = asyncio.create_task(watch())
            await nodes.until(lambda: broker.away.is_full(topic, 0))
            await nodes.start(leader)
            async with asyncio.timeout(PATIENCE_S):
                await publishing
            await watching
            # One more piece of what was received may have been taken in.
            assert limits.AWAY_LANE_BYTES_MAX <= peak < 3 * limits.AWAY_LANE_BYTES_MAX
            wanted = count + (protocol == "blipmq")
            async with connect(nodes.address(leader)) as client, client.consumer("work", start="earliest") as consumer:
                found: list[bytes] = []
                async with asyncio.timeout(PATIENCE_S):
                    while len(found) < wanted:
                        found += [bytes(record.value[:6]) for record in await consumer.poll()]
            assert found[:count] == [b"%06d" % number for number in range(count)]
            assert not broker.away.waiting_bytes

    asyncio.run(work())


async def _send(nodes: Nodes, name: str, numbers: range, topic: str = "work") -> None:
    async with blipmq.connect(nodes.port(name, "blipmq")) as client:
        for number in numbers:
            await client.publish(topic, b"%d" % number, qos=1)


async def _hear(client: blipmq.BlipMQClient, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            message = await anext(client)
            await message.ack()
            found.append(int(message.payload))
    return found


async def _take(client: fq.FqClient, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += [int(message.payload) for message in await client.poll(timeout_s=PATIENCE_S)]
    return found


def test_whoever_is_on_a_node_without_a_replica_gets_everything(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path, listen=_PORTS) as nodes:
            leader, other = await _topic(nodes, "work")
            await _send(nodes, leader, range(10))
            async with (
                blipmq.connect(nodes.port(other, "blipmq")) as fleeting,
                blipmq.connect(nodes.port(other, "blipmq"), client_id="keeper") as lasting,
                fq.connect(nodes.port(other, "fq"), queue="kept", queue_type="disk:public,drop,permanent") as kept,
                fq.connect(nodes.port(other, "fq"), queue="brief", queue_type="mem:public,drop,transient") as brief,
            ):
                # None of them gets what was there before it came.
                await fleeting.subscribe("work", qos=0)
                await lasting.subscribe("work", qos=1)
                await kept.bind("work")
                await brief.bind("work")
                await _send(nodes, leader, range(10, 20))
                await _send(nodes, other, range(20, 30))
                for wanted in (_hear(fleeting, 20), _hear(lasting, 20), _take(kept, 20), _take(brief, 20)):
                    assert await wanted == list(range(10, 30))
            # Those that last go on where they were.
            await nodes.until(lambda: nodes.servers[other].broker.fq.idle("fq:kept"))
            await _send(nodes, leader, range(30, 40))
            async with (
                blipmq.connect(nodes.port(other, "blipmq"), client_id="keeper") as lasting,
                fq.connect(nodes.port(other, "fq"), queue="kept", queue_type="disk:public,drop,permanent") as kept,
            ):
                await lasting.subscribe("work", qos=1)
                assert await _hear(lasting, 10) == list(range(30, 40))
                assert await _take(kept, 10) == list(range(30, 40))

    asyncio.run(work())


def test_much_is_read_from_another_node_in_order(tmp_path: Path) -> None:
    """More than is kept of it here, and faster than it is read."""
    size, count = 20_000, 600
    assert size * count > 4 * limits.AWAY_READ_BYTES_MAX

    async def work() -> None:
        async with Nodes(tmp_path, listen=_PORTS) as nodes:
            leader, other = await _topic(nodes, "work")
            async with blipmq.connect(nodes.port(other, "blipmq"), client_id="keeper") as client:
                await client.subscribe("work", qos=1)
                async with connect(nodes.address(leader)) as writer, writer.producer() as producer:
                    for number in range(count):
                        await producer.send("work", b"%d" % number + b" " * size)
                assert await _hear(client, count) == list(range(count))

    asyncio.run(work())


def _all_know(nodes: Nodes, topic: str, leader: str) -> bool:
    """Whether every node knows who leads a topic's first partition."""
    number = nodes.servers["a"].broker.topic(topic).id
    return all(nodes.node(name).partition_info(number, 0).leader == leader for name in nodes.servers)


def test_subscribers_go_on_when_the_replica_of_their_node_moves_away_and_comes_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path, listen=_PORTS) as nodes:
            here, there = await _topic(nodes, "work")
            async with (
                blipmq.connect(nodes.port(here, "blipmq")) as fleeting,
                fq.connect(nodes.port(here, "fq"), queue="kept", queue_type="disk:public,drop,permanent") as kept,
            ):
                await fleeting.subscribe("work", qos=0)
                await kept.bind("work")
                start = 0
                for target in (there, here, there):
                    await _send(nodes, here, range(start, start + 10))
                    await nodes.node(here).steer("reassign", ["work", "0", target])
                    # A node that does not know it yet would take what is published, and could not say what became of it.
                    await nodes.until(lambda target=target: _all_know(nodes, "work", target))  # type: ignore[misc]
                    await _send(nodes, here, range(start + 10, start + 20))
                    assert await _hear(fleeting, 20) == list(range(start, start + 20))
                    assert await _take(kept, 20) == list(range(start, start + 20))
                    start += 20

    asyncio.run(work())


def test_subscribers_go_on_when_the_node_they_read_from_comes_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path, listen=_PORTS) as nodes:
            leader, other = await _topic(nodes, "work")
            async with blipmq.connect(nodes.port(other, "blipmq"), client_id="keeper") as client:
                await client.subscribe("work", qos=1)
                await _send(nodes, leader, range(10))
                assert await _hear(client, 10) == list(range(10))
                await nodes.stop(leader)
                await nodes.start(leader)
                await _send(nodes, leader, range(10, 20))
                assert await _hear(client, 10) == list(range(10, 20))
            # Deleted on one node, it ends everywhere.
            topic = nodes.servers[other].broker.topics.get("work")
            assert topic is not None
            async with connect(nodes.address(leader)) as admin:
                await admin.delete_topic("work")
            await nodes.until(lambda: not nodes.servers[other].broker.push.has_readers(topic))

    asyncio.run(work())
