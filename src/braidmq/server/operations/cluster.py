"""The cluster as clients see it: its nodes, who leads what, and joining and leaving. A broker that runs alone leads everything."""

from __future__ import annotations

import json
import logging
from typing import Final

from braidmq.base.config_listen import ANY_HOST, split_address
from braidmq.base.errors import BraidError
from braidmq.broker.topics import Topic
from braidmq.server.operations.calling import Answer, Caller, note, respond
from braidmq.wire import flymq

_CLUSTER: Final = "standalone"
_EPOCH: Final = 1
_ALONE: Final = "this broker runs alone"
_MEMBER: Final = "this broker is a node already: a broker joins when it starts, by `join`"
_USUAL_PORT: Final = 9093

logger = logging.getLogger(__name__)


def cluster_join(caller: Caller, request: flymq.ClusterJoin) -> Answer:
    """Published programs take anything but OK for a broken server, so that is the answer. Nothing is joined: the trail and the log
    say so, and CLUSTER_STATUS goes on telling who belongs to what. To join means to begin with the others' data, so it is a
    start."""
    try:
        host, port = split_address(request.peer, _USUAL_PORT)
    except ValueError as fault:
        raise BraidError("INVALID_ARGUMENT", reason=f"peer: {fault}") from fault
    if host == ANY_HOST or port == 0:
        raise BraidError("INVALID_ARGUMENT", reason=f"peer `{request.peer}` names no other broker")
    why = _ALONE if caller.broker.peers is None else _MEMBER
    note(caller, "cluster.join", request.peer, "join", "failure", reason=why)
    logger.warning("%s: asked to join the cluster of %s: %s, nothing was joined", caller.address, request.peer, why)
    return respond(caller, request, flymq.Ok())


async def cluster_leave(caller: Caller, request: flymq.ClusterLeave) -> Answer:
    """A broker that is in no cluster has left it already; another one has others lead what it leads, and goes on as a replica."""
    peers = caller.broker.peers
    node = caller.broker.security.settings.node_id
    if peers is None:
        note(caller, "cluster.leave", node, "leave", reason=_ALONE)
    else:
        await peers.step_down()
        note(caller, "cluster.leave", node, "leave")
    return respond(caller, request, flymq.Ok())


def cluster_status(caller: Caller, request: flymq.ClusterStatus) -> Answer:
    node = caller.broker.security.settings.node_id
    peers = caller.broker.peers
    if peers is None:
        nodes = (flymq.ClusterNode(node, caller.reached_at, "", "alive", True),)
        return respond(caller, request, flymq.ClusterState(_CLUSTER, node, node, _CLUSTER, nodes))
    found = peers.nodes()
    rows = tuple(flymq.ClusterNode(row.name, row.client_address, row.cluster_address, row.status, row.coordinates) for row in found)
    leader = next((row.name for row in found if row.coordinates), "")
    role = "leader" if leader == node else "follower"
    return respond(caller, request, flymq.ClusterState(peers.cluster_id, node, leader, role, rows))


async def cluster_steer(caller: Caller, request: flymq.ClusterSteer) -> Answer:
    """Move leaders or partitions. It runs where the cluster is coordinated."""
    peers = caller.broker.peers
    if peers is None:
        raise BraidError("INVALID_ARGUMENT", reason=f"{_ALONE}: there is nothing to move")
    outcome = await peers.steer(request.verb, list(request.words))
    if request.verb != "progress":
        note(caller, "config.change", " ".join(request.words) or "cluster", f"cluster {request.verb}")
    return respond(caller, request, flymq.Steered(json.dumps(outcome).encode()))


def cluster_metadata(caller: Caller, request: flymq.ClusterMetadata | flymq.ClusterMap) -> Answer:
    """One topic, or all that the caller may read."""
    broker = caller.broker
    names = [request.topic] if request.topic else broker.security.authorizer.visible(caller.principal, broker.topic_names())
    topics = tuple(_described(caller, broker.topic(name)) for name in names)
    peers = broker.peers
    if peers is None:
        return respond(caller, request, flymq.ClusterTopics(_CLUSTER, topics))
    asked = isinstance(request, flymq.ClusterMap) and request.readers
    readers = (flymq.ReplicaReader(row.name, row.client_address, row.about.get("rack", "")) for row in peers.readers() if asked)
    return respond(caller, request, flymq.ClusterTopics(peers.cluster_id, topics, tuple(readers)))


def _described(caller: Caller, topic: Topic) -> flymq.ClusterTopic:
    peers = caller.broker.peers
    numbers = range(topic.partitions)
    if peers is not None:
        found = [(number, peers.partition_info(topic.id, number)) for number in numbers]
        rows = (
            flymq.ClusterPartition(number, info.leader, info.address, info.epoch, info.state, info.replicas, info.isr)
            for number, info in found
        )
        return flymq.ClusterTopic(topic.name, tuple(rows))
    node = caller.broker.security.settings.node_id
    partitions = (
        flymq.ClusterPartition(number, node, caller.reached_at, _EPOCH, "online", (node,), (node,)) for number in numbers
    )
    return flymq.ClusterTopic(topic.name, tuple(partitions))
