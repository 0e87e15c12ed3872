"""The cluster as FlyMQ's API shows it: this broker alone, which leads everything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

import braidmq
from braidmq.admin.call import Call, Nothing
from braidmq.admin.looking import open_logs
from braidmq.admin.times import rfc3339
from braidmq.base.errors import BraidError
from braidmq.broker.pace import Pace
from braidmq.broker.topics import Topic

CLUSTER: Final = "standalone"
_EPOCH: Final = 1


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A broker."""

    id: str
    address: str
    cluster_addr: str
    state: str
    raft_state: str
    is_leader: bool
    last_seen: str
    uptime: Annotated[str, "as 3h2m1s"]
    joined_at: str


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """The cluster."""

    cluster_id: str
    version: str
    node_count: int
    leader_id: str
    raft_term: int
    raft_commit_index: int
    topic_count: int
    total_messages: int
    message_rate: Annotated[float, "records a second that came in lately"]
    uptime: str
    nodes: list[NodeRow]


@dataclass(frozen=True, slots=True)
class TopicQuery:
    """Which topic."""

    topic: Annotated[str, "empty for all that the caller may read"] = ""


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """Who has a partition."""

    partition: int
    leader_id: str
    leader_addr: str
    epoch: int
    state: str
    replicas: list[str]
    isr: list[str]


@dataclass(frozen=True, slots=True)
class TopicPlaces:
    """Who has the partitions of a topic."""

    topic: str
    partitions: list[PartitionPlace]


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """Who has which partition."""

    cluster_id: str
    topics: list[TopicPlaces]


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who has a partition."""

    topic: str
    partition: int
    leader: str
    leader_addr: str
    replicas: list[str]
    isr: list[str]
    epoch: int
    state: str


@dataclass(frozen=True, slots=True)
class Assignments:
    """Who has which partition."""

    assignments: list[Assignment]
    count: int


@dataclass(frozen=True, slots=True)
class NewLeader:
    """Who is to lead a partition."""

    new_leader: str
    new_replicas: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reassigned:
    """Who leads a partition now."""

    success: bool
    message: str
    topic: str
    partition: int
    new_leader: str


@dataclass(frozen=True, slots=True)
class Leaders:
    """How leaders are spread."""

    distribution: dict[str, int]
    total_leaders: int
    node_count: int
    max_per_node: int
    min_per_node: int
    balanced: bool


@dataclass(frozen=True, slots=True)
class Move:
    """A partition that goes to another broker."""

    topic: str
    partition: int
    from_node: str
    to_node: str


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """What was moved."""

    success: bool
    message: str
    moves: list[Move]
    old_leaders: dict[str, int]
    new_leaders: dict[str, int]


async def get_cluster(call: Call[Nothing, Nothing]) -> ClusterRow:
    """The cluster, with totals of the topics that the caller may read."""
    names = call.visible(call.broker.topic_names())
    total = 0
    pace = Pace()
    for topic in map(call.broker.topics.get, names):
        if topic is not None:
            logs = await open_logs(call.broker, topic, pace)
            total += sum(log.high_watermark - log.log_start for log in logs if log is not None)
    nodes = list_nodes(call)
    rate = call.server.broker.figures.records_per_s(call.broker.clock.monotonic())
    return ClusterRow(
        CLUSTER, braidmq.__version__, 1, nodes[0].id, _EPOCH, 0, len(names), total, rate, nodes[0].uptime, nodes
    )


def list_nodes(call: Call[Nothing, Nothing]) -> list[NodeRow]:
    """The brokers of the cluster."""
    server = call.server
    clock = call.broker.clock
    uptime_s = clock.monotonic() - server.started_s
    now_ms = clock.now_ms()
    return [
        NodeRow(
            _node(call), server.addresses.get("flymq", ""), "", "alive", CLUSTER, True, rfc3339(now_ms), _duration(uptime_s),
            rfc3339(now_ms - round(uptime_s * 1000)),
        )
    ]  # fmt: skip


def list_members(call: Call[Nothing, Nothing]) -> list[NodeRow]:
    """The brokers of the cluster, under the name that FlyMQ's command line asks for."""
    return list_nodes(call)


async def get_cluster_metadata(call: Call[TopicQuery, Nothing]) -> ClusterMetadata:
    """Who has which partition."""
    topics = []
    pace = Pace()
    for topic in _topics(call):
        await pace.step(topic.partitions)
        places = [_place(call, topic, number) for number in range(topic.partitions)]
        topics.append(TopicPlaces(topic.name, places))
    return ClusterMetadata(CLUSTER, topics)


async def list_assignments(call: Call[TopicQuery, Nothing]) -> Assignments:
    """Who has which partition, as one list."""
    found = []
    pace = Pace()
    for topic in _topics(call):
        for number in range(topic.partitions):
            await pace.step()
            place = _place(call, topic, number)
            found.append(
                Assignment(
                    topic.name, number, place.leader_id, place.leader_addr, place.replicas, place.isr, place.epoch, place.state
                )
            )
    return Assignments(found, len(found))


def reassign_partition(call: Call[Nothing, NewLeader]) -> Reassigned:
    """Give a partition to another broker. Here there is one, so it can only stay where it is."""
    topic = call.broker.topic(call.path["topic"])
    text = call.path["partition"]
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not 0 <= number < topic.partitions:
        raise BraidError("PARTITION_NOT_FOUND", partition=text[:100])
    if call.body.new_leader != _node(call):
        raise BraidError("INVALID_ARGUMENT", reason=f"{call.body.new_leader!r} is no broker of this cluster")
    return Reassigned(True, "it leads already", topic.name, number, _node(call))


def list_leaders(call: Call[Nothing, Nothing]) -> Leaders:
    """How many partitions each broker leads."""
    count = sum(topic.partitions for topic in call.broker.topics.all())
    return Leaders({_node(call): count}, count, 1, count, count, True)


def rebalance(call: Call[Nothing, Nothing]) -> Rebalanced:
    """Spread leaders evenly. With one broker they are."""
    leaders = list_leaders(call).distribution
    return Rebalanced(True, "one broker leads everything: nothing to move", [], leaders, leaders)


def _topics(call: Call[TopicQuery, Nothing]) -> list[Topic]:
    wanted = call.query.topic
    if wanted:
        found = call.broker.topic(wanted)
        return [found] if call.visible([wanted]) else []
    return [topic for topic in map(call.broker.topics.get, call.visible(call.broker.topic_names())) if topic is not None]


def _place(call: Call[TopicQuery, Nothing], topic: Topic, number: int) -> PartitionPlace:
    node = _node(call)
    log = call.broker.store.opened(topic.id, number)
    state = "online" if log is None or log.failure is None else "read-only"
    return PartitionPlace(number, node, call.server.addresses.get("flymq", ""), _EPOCH, state, [node], [node])


def _node(call: Call[Nothing, Nothing] | Call[TopicQuery, Nothing] | Call[Nothing, NewLeader]) -> str:
    return call.broker.security.settings.node_id


def _duration(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}h{minutes}m{whole % 60}s"
