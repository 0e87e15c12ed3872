"""The cluster as clients see it, 50 to 53, and our own TOPIC_CONFIG, CLUSTER_MAP and CLUSTER_STEER.

CLUSTER_METADATA is not in the documents: only published clients ask for it, to learn how many partitions a topic has.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from braidmq.wire.flymq.answers import OK
from braidmq.wire.flymq.layout import (
    BOOL,
    BYTES,
    PAIR,
    STR,
    TRAILING_STR,
    U32,
    U64,
    Extended,
    Layout,
    Many,
    OnlyV126,
    WireType,
    asked,
)
from braidmq.wire.flymq.opcodes import Op
from braidmq.wire.shape import shape


@shape
class ClusterJoin:
    op: ClassVar[Op] = Op.CLUSTER_JOIN
    peer: str


@shape
class ClusterLeave:
    op: ClassVar[Op] = Op.CLUSTER_LEAVE


@shape
class ClusterStatus:
    op: ClassVar[Op] = Op.CLUSTER_STATUS


@shape
class ClusterMetadata:
    op: ClassVar[Op] = Op.CLUSTER_METADATA
    topic: str = ""
    """Empty means all."""


@shape
class ClusterMap:
    """The same as CLUSTER_METADATA, for those who speak the documented dialect."""

    op: ClassVar[Op] = Op.CLUSTER_MAP
    topic: str = ""
    """Empty means all."""
    readers: bool = False
    """Whether the answer is to say which nodes serve readers from their replicas, too."""


@shape
class ClusterSteer:
    """Have leaders or partitions moved."""

    op: ClassVar[Op] = Op.CLUSTER_STEER
    verb: str
    """`rebalance`, `lead`, `reassign`, `decommission`, `recommission`, or `progress`, which moves nothing."""
    words: tuple[str, ...] = ()


@shape
class TopicConfig:
    """Set some properties of a topic; with none given, only read them."""

    op: ClassVar[Op] = Op.TOPIC_CONFIG
    topic: str
    properties: tuple[tuple[str, str], ...] = ()


ClusterRequest = ClusterJoin | ClusterLeave | ClusterStatus | ClusterMetadata | ClusterMap | ClusterSteer | TopicConfig


@shape
class ClusterNode:
    id: str
    client_address: str
    cluster_address: str
    status: str
    leader: bool


@shape
class ClusterState:
    cluster: str
    node: str
    leader: str
    role: str
    nodes: tuple[ClusterNode, ...]


@shape
class ClusterPartition:
    partition: int
    leader: str
    leader_address: str
    """Clients connect to it."""
    epoch: int
    state: str
    replicas: tuple[str, ...]
    in_sync: tuple[str, ...]


@shape
class ClusterTopic:
    topic: str
    partitions: tuple[ClusterPartition, ...]


@shape
class ReplicaReader:
    """A node that is there, and lets readers read from its replicas in sync."""

    node: str
    client_address: str
    rack: str


@shape
class ClusterTopics:
    cluster: str
    topics: tuple[ClusterTopic, ...]
    readers: tuple[ReplicaReader, ...] = ()
    """Only in answers to CLUSTER_MAP, where they were asked for."""


@shape
class TopicProperties:
    """All properties of a topic after the request."""

    properties: tuple[tuple[str, str], ...]


@shape
class Steered:
    """What became of it."""

    document: bytes
    """JSON."""


ClusterResponse = ClusterState | ClusterTopics | Steered | TopicProperties

_NODE: Final = Layout(ClusterNode, id=STR, client_address=STR, cluster_address=STR, status=STR, leader=BOOL)
_PARTITION: Final = Layout(
    ClusterPartition,
    partition=U32,
    leader=STR,
    leader_address=STR,
    epoch=U64,
    state=STR,
    replicas=Many(STR),
    in_sync=Many(STR),
)

_DESCRIBED: Final = Many(Layout(ClusterTopic, topic=STR, partitions=Many(_PARTITION)))
_READERS: Final = Many(Layout(ReplicaReader, node=STR, client_address=STR, rack=STR))

REQUESTS: Final[dict[int, WireType[Any]]] = {
    Op.CLUSTER_JOIN: Layout(ClusterJoin, peer=STR),
    Op.CLUSTER_LEAVE: Layout(ClusterLeave),
    Op.CLUSTER_STATUS: Layout(ClusterStatus),
    Op.CLUSTER_METADATA: OnlyV126(Layout(ClusterMetadata, topic=TRAILING_STR)),
    Op.CLUSTER_MAP: Extended(ClusterMap, {"readers": BOOL}, topic=STR),
    Op.CLUSTER_STEER: Layout(ClusterSteer, verb=STR, words=Many(STR)),
    Op.TOPIC_CONFIG: Layout(TopicConfig, topic=STR, properties=asked(PAIR)),
}

RESPONSES: Final[dict[int, WireType[Any]]] = {
    Op.CLUSTER_JOIN: OK,
    Op.CLUSTER_LEAVE: OK,
    Op.CLUSTER_STATUS: Layout(ClusterState, cluster=STR, node=STR, leader=STR, role=STR, nodes=Many(_NODE)),
    Op.CLUSTER_METADATA: Layout(ClusterTopics, cluster=STR, topics=_DESCRIBED),
    Op.CLUSTER_MAP: Extended(ClusterTopics, {"readers": _READERS}, cluster=STR, topics=_DESCRIBED),
    Op.CLUSTER_STEER: Layout(Steered, document=BYTES),
    Op.TOPIC_CONFIG: Layout(TopicProperties, properties=Many(PAIR)),
}
