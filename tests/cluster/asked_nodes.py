"""What tests ask single nodes of a cluster: by FlyMQ, by the admin API, and of a topic that the coordinator has no replica of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, cast

from three_nodes import Nodes
from web_client import WebClient

from braidmq.admin.service import WebService
from braidmq.base.config_listen import HttpListen
from braidmq.base.disk import Buffer
from braidmq.broker.topics import Topic
from braidmq.client import Client, connect
from braidmq.client._async.asking import expect
from braidmq.client._async.connection import encode
from braidmq.client.addresses import parse_address
from braidmq.cluster.transport import ClusterOp
from braidmq.cluster.transport_tcp import TcpTransport
from braidmq.wire import flymq

ANSWER_S: Final = 60.0
WITH_API: Final[dict[str, Any]] = {
    "admin_listen": HttpListen("http", "127.0.0.1", 0), "metrics_enabled": False, "health_enabled": False,
}  # fmt: skip
"""Settings of nodes for `opened`."""


@contextlib.asynccontextmanager
async def opened(nodes: Nodes, name: str) -> AsyncIterator[WebClient]:
    """The admin API of a node."""
    service = WebService(nodes.servers[name])
    yield WebClient(service.start()["admin"])
    await service.stop()


async def said(nodes: Nodes, name: str, request: flymq.Request, kind: type[object]) -> Any:
    """What one node, and no other, answers, once."""
    async with connect(nodes.address(name)) as client:
        pool = client._asker._pools.at(parse_address(nodes.address(name)))
        return expect(request, (await pool.call([encode(request)], ANSWER_S, again=False))[0], kind)


async def away(nodes: Nodes, client: Client, name: str, partitions: int) -> Topic:
    """A new topic whose replicas are on the two nodes that do not coordinate."""
    await nodes.until(lambda: all(len(nodes.node(node).table.live()) == 3 for node in nodes.servers))
    coordinator = nodes.coordinator()
    others = "".join(node for node in "abc" if node != coordinator)
    await client.create_topic(name, partitions)
    topic = nodes.servers[coordinator].broker.topic(name)
    for number in range(partitions):
        await client.cluster.reassign(name, number, (others, others[::-1])[number % 2])

    def placed() -> bool:
        known = [nodes.node(node).partition_info(topic.id, number) for node in "abc" for number in range(partitions)]
        return all(set(part.replicas) == set(others) and part.leader in others and not part.target for part in known)

    await nodes.until(placed)
    return topic


def leads_everywhere(nodes: Nodes, topic: Topic, partition: int, leader: str) -> bool:
    """Whether every node has it so; also while one of them knows no leader."""
    return all(nodes.node(name).partition_info(topic.id, partition).leader == leader for name in "abc")


async def behind(nodes: Nodes, client: Client, name: str) -> str:
    """Two records in the one partition of a topic, of which the replica of the coordinator, whose name comes back, lacks one."""
    coordinator = nodes.coordinator()
    leader = next(node for node in "abc" if node != coordinator)
    topic = nodes.servers[coordinator].broker.topic(name)
    await client.cluster.lead(name, 0, leader)
    await nodes.until(lambda: leads_everywhere(nodes, topic, 0, leader))
    transport = cast("TcpTransport", nodes.node(leader).transport)
    answer = transport._handlers[ClusterOp.REPLICA_FETCH]

    async def silent(node: str, payload: memoryview) -> Sequence[Buffer]:
        if node == coordinator:
            await asyncio.Event().wait()
        return await answer(node, payload)

    await client.produce(name, b"first")
    transport.serve(ClusterOp.REPLICA_FETCH, silent)
    # Once nobody waits for that replica any more.
    await client.produce(name, b"second")
    assert nodes.servers[coordinator].broker.log_of(topic, 0).high_watermark < 2
    return coordinator
