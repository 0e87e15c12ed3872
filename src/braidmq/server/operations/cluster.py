"""The cluster as clients see it: this broker alone, which leads everything and has nobody to join."""

from __future__ import annotations

from typing import Final

from braidmq.base.errors import BraidError
from braidmq.broker.topics import Topic
from braidmq.server.operations.calling import Answer, Caller, respond
from braidmq.wire import flymq

_CLUSTER: Final = "standalone"
_EPOCH: Final = 1


def cluster_join(caller: Caller, request: flymq.ClusterJoin) -> Answer:
    raise _alone()


def cluster_leave(caller: Caller, request: flymq.ClusterLeave) -> Answer:
    raise _alone()


def _alone() -> BraidError:
    # To say yes and do nothing would let an operator believe that there are copies.
    return BraidError("INVALID_ARGUMENT", reason="this broker runs alone, it is in no cluster")


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
