"""The cluster as clients see it: this broker alone, which leads everything and has nobody to join."""

from __future__ import annotations

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
_USUAL_PORT: Final = 9093

logger = logging.getLogger(__name__)


def cluster_join(caller: Caller, request: flymq.ClusterJoin) -> Answer:
    """Published programs take anything but OK for a broken server, so that is the answer. Nothing is joined: the trail and the log
    say so, and CLUSTER_STATUS goes on telling that this broker is alone."""
    try:
        host, port = split_address(request.peer, _USUAL_PORT)
    except ValueError as fault:
        raise BraidError("INVALID_ARGUMENT", reason=f"peer: {fault}") from fault
    if host == ANY_HOST or port == 0:
        raise BraidError("INVALID_ARGUMENT", reason=f"peer `{request.peer}` names no other broker")
    note(caller, "cluster.join", request.peer, "join", "failure", reason=_ALONE)
    logger.warning("%s: asked to join the cluster of %s: %s, nothing was joined", caller.address, request.peer, _ALONE)
    return respond(caller, request, flymq.Ok())


def cluster_leave(caller: Caller, request: flymq.ClusterLeave) -> Answer:
    """A broker that is in no cluster has left it already."""
    note(caller, "cluster.leave", caller.broker.security.settings.node_id, "leave", reason=_ALONE)
    return respond(caller, request, flymq.Ok())


def cluster_status(caller: Caller, request: flymq.ClusterStatus) -> Answer:
    node = caller.broker.security.settings.node_id
    nodes = (flymq.ClusterNode(node, caller.reached_at, "", "alive", True),)
    return respond(caller, request, flymq.ClusterState(_CLUSTER, node, node, _CLUSTER, nodes))


def cluster_metadata(caller: Caller, request: flymq.ClusterMetadata) -> Answer:
    """One topic, or all that the caller may read."""
    broker = caller.broker
    names = [request.topic] if request.topic else broker.security.authorizer.visible(caller.principal, broker.topic_names())
    topics = tuple(_described(caller, broker.topic(name)) for name in names)
    return respond(caller, request, flymq.ClusterTopics(_CLUSTER, topics))


def _described(caller: Caller, topic: Topic) -> flymq.ClusterTopic:
    node = caller.broker.security.settings.node_id
    partitions = (
        flymq.ClusterPartition(number, node, caller.reached_at, _EPOCH, "online", (node,), (node,))
        for number in range(topic.partitions)
    )
    return flymq.ClusterTopic(topic.name, tuple(partitions))
