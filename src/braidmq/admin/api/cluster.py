"""The cluster as FlyMQ's API shows it, whichever node is asked. A broker that runs alone leads everything."""

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
from braidmq.cluster.overview import Lags

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
    elr: Annotated[list[str], "may lead when nobody in sync is left"] = field(default_factory=list)
    target: Annotated[list[str], "where it is on its way to"] = field(default_factory=list)
    lag: Annotated[dict[str, int], "records that each replica lacks, as the leader says"] = field(default_factory=dict)


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
    elr: list[str]
    target: list[str]
    lag: dict[str, int]


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


@dataclass(frozen=True, slots=True)
class Steered:
    """What was done."""

    success: bool
    message: str
    moves: list[Move]


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
    uptime = _duration(call.broker.clock.monotonic() - call.server.started_s)
    leader = next((node.id for node in nodes if node.is_leader), "")
    cluster = call.server.clustering
    state = None if cluster is None else cluster.node.journals.state
    term = _EPOCH if state is None else state.epoch
    index = 0 if cluster is None else max(cluster.node.applied().values(), default=0)
    name = CLUSTER if cluster is None else cluster.node.cluster_id
    return ClusterRow(name, braidmq.__version__, len(nodes), leader, term, index, len(names), total, rate, uptime, nodes)


def list_nodes(call: Call[Nothing, Nothing]) -> list[NodeRow]:
    """The brokers of the cluster."""
    server = call.server
    clock = call.broker.clock
    uptime_s = clock.monotonic() - server.started_s
    now_ms = clock.now_ms()
    if server.clustering is not None:
        rows = []
        for node in server.clustering.node.nodes():
            # How long another node runs is not known here.
            here = node.name == _node(call)
            rows.append(
                NodeRow(
                    node.name, node.client_address, node.cluster_address, node.status, "leader" if node.coordinates else "follower",
                    node.coordinates, rfc3339(now_ms) if node.status == "alive" else "", _duration(uptime_s) if here else "",
                    rfc3339(now_ms - round(uptime_s * 1000)) if here else "",
                )
            )  # fmt: skip
        return rows
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
    lags = await _lags(call)
    for topic in _topics(call):
        await pace.step(topic.partitions)
        places = [_place(call, topic, number, lags) for number in range(topic.partitions)]
        topics.append(TopicPlaces(topic.name, places))
    return ClusterMetadata(CLUSTER if call.broker.peers is None else call.broker.peers.cluster_id, topics)


async def list_assignments(call: Call[TopicQuery, Nothing]) -> Assignments:
    """Who has which partition, as one list."""
    found = []
    pace = Pace()
    lags = await _lags(call)
    for topic in _topics(call):
        for number in range(topic.partitions):
            await pace.step()
            place = _place(call, topic, number, lags)
            found.append(
                Assignment(
                    topic.name, number, place.leader_id, place.leader_addr, place.replicas, place.isr, place.epoch, place.state,
                    place.elr, place.target, place.lag,
                )
            )
    return Assignments(found, len(found))


async def reassign_partition(call: Call[Nothing, NewLeader]) -> Reassigned:
    """Let another broker lead a partition, or others have it. A broker that runs alone keeps it."""
    topic = call.broker.topic(call.path["topic"])
    text = call.path["partition"]
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not 0 <= number < topic.partitions:
        raise BraidError("PARTITION_NOT_FOUND", partition=text[:100])
    peers = call.broker.peers
    if peers is not None:
        leader = call.body.new_leader
        replicas = [leader, *(name for name in call.body.new_replicas if name != leader)]
        if call.body.new_replicas:
            done = await peers.steer("reassign", [topic.name, str(number), *replicas])
        else:
            done = await peers.steer("lead", [topic.name, str(number), leader])
        call.note("config.change", f"{topic.name}/{number}", "cluster reassign", nodes=", ".join(replicas))
        return Reassigned(True, done["message"], topic.name, number, leader)
    if call.body.new_leader != _node(call):
        raise BraidError("INVALID_ARGUMENT", reason=f"{call.body.new_leader!r} is no broker of this cluster")
    return Reassigned(True, "it leads already", topic.name, number, _node(call))


def list_leaders(call: Call[Nothing, Nothing]) -> Leaders:
    """How many partitions each broker leads."""
    cluster = call.server.clustering
    if cluster is not None:
        spread = dict.fromkeys((node.name for node in cluster.node.nodes() if node.status != "dead"), 0)
        for _, state in cluster.table.items():
            if state.leader:
                spread[state.leader] = spread.get(state.leader, 0) + 1
        most, least = max(spread.values(), default=0), min(spread.values(), default=0)
        return Leaders(spread, sum(spread.values()), len(spread), most, least, most - least <= 1)
    count = sum(topic.partitions for topic in call.broker.topics.all())
    return Leaders({_node(call): count}, count, 1, count, count, True)


async def rebalance(call: Call[Nothing, Nothing]) -> Rebalanced:
    """Spread leaders evenly. With one broker they are."""
    peers = call.broker.peers
    if peers is not None:
        done = await peers.steer("rebalance", [])
        call.note("config.change", peers.cluster_id, "cluster rebalance")
        return Rebalanced(True, done["message"], [Move(**move) for move in done["moves"]], done["old_leaders"], done["new_leaders"])
    leaders = list_leaders(call).distribution
    return Rebalanced(True, "one broker leads everything: nothing to move", [], leaders, leaders)


async def decommission_node(call: Call[Nothing, Nothing]) -> Steered:
    """Empty a broker: what it has goes to others, and nothing new is placed on it."""
    return await _steer_node(call, "decommission")


async def recommission_node(call: Call[Nothing, Nothing]) -> Steered:
    """Let a broker that was being emptied have partitions again."""
    return await _steer_node(call, "recommission")


async def _steer_node(call: Call[Nothing, Nothing], action: str) -> Steered:
    peers, name = call.broker.peers, call.path["node"]
    if peers is None:
        raise BraidError("INVALID_ARGUMENT", reason="this broker runs alone")
    done = await peers.steer(action, [name])
    call.note("config.change", name, f"cluster {action}")
    return Steered(True, done["message"], [Move(**move) for move in done["moves"]])


async def _lags(call: Call[TopicQuery, Nothing]) -> Lags:
    """How far behind replicas are, as their leaders say."""
    cluster = call.server.clustering
    if cluster is None:
        return {}
    topic = call.broker.topics.get(call.query.topic) if call.query.topic else None
    return await cluster.node.overview.lags(None if topic is None else topic.id)


def _topics(call: Call[TopicQuery, Nothing]) -> list[Topic]:
    wanted = call.query.topic
    if wanted:
        found = call.broker.topic(wanted)
        return [found] if call.visible([wanted]) else []
    return [topic for topic in map(call.broker.topics.get, call.visible(call.broker.topic_names())) if topic is not None]


def _place(call: Call[TopicQuery, Nothing], topic: Topic, number: int, lags: Lags) -> PartitionPlace:
    node, peers = _node(call), call.broker.peers
    if peers is not None:
        info = peers.partition_info(topic.id, number)
        return PartitionPlace(
            number, info.leader, info.address, info.epoch, info.state, list(info.replicas), list(info.isr), list(info.elr),
            list(info.target), lags.get((topic.id, number), {}),
        )  # fmt: skip
    log = call.broker.store.opened(topic.id, number)
    state = "online" if log is None or log.failure is None else "read-only"
    return PartitionPlace(number, node, call.server.addresses.get("flymq", ""), _EPOCH, state, [node], [node])


def _node(call: Call[Nothing, Nothing] | Call[TopicQuery, Nothing] | Call[Nothing, NewLeader]) -> str:
    return call.broker.security.settings.node_id


def _duration(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}h{minutes}m{whole % 60}s"
