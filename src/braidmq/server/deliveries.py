"""Whom this node pushes to, and whom the whole cluster does: BlipMQ's subscribers and fq's queues, as rows of a list.

Each node has rows for what it serves itself. Other nodes ask it for them (`cluster/node_lists.py`), so a list holds those of all
nodes, each with the node that serves it, and says which nodes are missing. A broker that runs alone has all rows itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar

from braidmq.broker.broker import Broker
from braidmq.broker.fq_queue import FqQueue
from braidmq.broker.push.subscription import Counters, Subscription
from braidmq.server.blipmq_service import open_service
from braidmq.server.blipmq_subscriber import SharedGroup, Subscriber

if TYPE_CHECKING:
    from braidmq.server.app import BrokerServer

T = TypeVar("T", "SubscriptionRow", "QueueRow")

START: Final = ("", "")
"""What lies before all rows."""


@dataclass(frozen=True, slots=True)
class DeliveryCounts:
    """What became of records on their way to somebody."""

    delivered: int
    delivered_bytes: int
    dropped: Annotated[int, "because too many were pending"]
    redelivered: int
    lost: Annotated[int, "because retention was faster"]


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """Somebody whom records are pushed to."""

    id: str
    protocol: str
    kind: Annotated[str, "session, durable, shared or queue"]
    name: str
    filters: Annotated[list[str], "topics and patterns, or exchanges and route programs"]
    connections: list[str]
    pending: Annotated[int, "records that are chosen and not delivered"]
    in_flight: Annotated[int, "delivered and not acknowledged"]
    capacity: Annotated[int, "pending records at which `overflow` applies"]
    overflow: str
    counts: DeliveryCounts
    node: Annotated[str, "that serves it"]


@dataclass(frozen=True, slots=True)
class QueueClient:
    """A client of a queue."""

    user: str
    address: str


@dataclass(frozen=True, slots=True)
class QueueBinding:
    """What chooses for a queue."""

    exchange: str
    program: str
    permanent: bool
    invocations: int


@dataclass(frozen=True, slots=True)
class QueueRow:
    """An fq queue."""

    name: str
    type: str
    policy: str
    private: bool
    permanent: bool
    backlog: int
    backlog_limit: int
    bindings: list[QueueBinding]
    clients: list[QueueClient]
    counts: DeliveryCounts
    node: Annotated[str, "that serves it"]


@dataclass(frozen=True, slots=True)
class MissingNode:
    """A node whose rows are not in a list."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A list of the whole cluster, or a part of it."""

    rows: list[T]
    """In the order of `place_of`."""
    missing: list[MissingNode]


def place_of(row: SubscriptionRow | QueueRow) -> tuple[str, str]:
    """Where a row stands in its list."""
    return row.id if isinstance(row, SubscriptionRow) else row.name, row.node


def register(server: BrokerServer) -> None:
    """Let other nodes ask for what this one has."""
    broker = server.broker

    def listed(make: Callable[[Broker], list[T]]) -> Callable[[Sequence[str], int], list[Any]]:
        return lambda after, limit: [asdict(row) for row in _part(make(broker), tuple(after), limit)]

    broker.lists["subscriptions"] = listed(_own_subscriptions)
    broker.lists["queues"] = listed(_own_queues)


async def subscriptions(broker: Broker, after: tuple[str, str] = START, limit: int = 10_000) -> Listing[SubscriptionRow]:
    """The first `limit` behind `after` of everybody whom records are pushed to."""
    return await _listing(broker, "subscriptions", _own_subscriptions(broker), _subscription_of, after, limit)


async def queues(broker: Broker, after: tuple[str, str] = START, limit: int = 10_000) -> Listing[QueueRow]:
    """The same of fq's queues."""
    return await _listing(broker, "queues", _own_queues(broker), _queue_of, after, limit)


async def _listing(
    broker: Broker, name: str, own: list[T], read: Callable[[dict[str, Any]], T], after: tuple[str, str], limit: int
) -> Listing[T]:
    if broker.peers is None:
        return Listing(_part(own, after, limit), [])
    others, missing = await broker.peers.lists_of_others(name, after, limit)
    for node, documents in others.items():
        try:
            own += [read(document) for document in documents]
        except (KeyError, TypeError) as fault:
            # A node of another version.
            missing[node] = f"its rows are not understood here: {fault}"
    return Listing(_part(own, after, limit), [MissingNode(node, missing[node]) for node in sorted(missing)])


def _part(rows: list[T], after: tuple[str, ...], limit: int) -> list[T]:
    return sorted((row for row in rows if place_of(row) > after), key=place_of)[:limit]


def _subscription_of(document: dict[str, Any]) -> SubscriptionRow:
    return SubscriptionRow(**document | {"counts": DeliveryCounts(**document["counts"])})


def _queue_of(document: dict[str, Any]) -> QueueRow:
    parts = {
        "bindings": [QueueBinding(**each) for each in document["bindings"]],
        "clients": [QueueClient(**each) for each in document["clients"]],
        "counts": DeliveryCounts(**document["counts"]),
    }
    return QueueRow(**document | parts)


# --- what this node has


def subscribers(broker: Broker) -> list[Subscriber]:
    """BlipMQ's, with those of clients that are away."""
    service = open_service(broker)
    return [] if service is None else service.subscribers


def parts_of(subscriber: Subscriber) -> list[Subscription]:
    """What of a subscriber delivers: at QoS 0, and at QoS 1."""
    return [part for part in (subscriber.stream, subscriber.queue) if part is not None]


def _own_subscriptions(broker: Broker) -> list[SubscriptionRow]:
    node = broker.security.settings.node_id
    rows = [_subscriber(number, subscriber, node) for number, subscriber in enumerate(subscribers(broker))]
    return rows + [_queue_subscription(queue, node) for queue in broker.fq.all()]


def _own_queues(broker: Broker) -> list[QueueRow]:
    return [_queue(queue, broker.security.settings.node_id) for queue in broker.fq.all()]


def added(counters: list[Counters]) -> DeliveryCounts:
    return DeliveryCounts(
        sum(each.delivered for each in counters), sum(each.delivered_bytes for each in counters),
        sum(each.dropped for each in counters), sum(each.redelivered for each in counters), sum(each.lost for each in counters),
    )  # fmt: skip


def _subscriber(number: int, subscriber: Subscriber, node: str) -> SubscriptionRow:
    parts = parts_of(subscriber)
    kind = "durable" if subscriber.group else "shared" if isinstance(subscriber, SharedGroup) else "session"
    name = subscriber.name or "".join(session.address for session in subscriber.sessions)
    queue = subscriber.queue
    return SubscriptionRow(
        f"blipmq-{name or number}", "blipmq", kind, subscriber.name, sorted(subscriber.filters),
        sorted(session.address for session in subscriber.sessions), sum(part.pending.count for part in parts),
        0 if queue is None else queue.inflight.count, max((part.capacity for part in parts), default=0),
        parts[0].overflow.value if parts else "", added([part.counters for part in parts]), node,
    )  # fmt: skip


def _queue_subscription(queue: FqQueue, node: str) -> SubscriptionRow:
    name = text_of(queue.detail.name)
    filters = sorted(f"{text_of(each.exchange)} {text_of(each.program.text)}" for each in queue.bindings.values())
    return SubscriptionRow(
        f"fq-{name}", "fq", "queue", name, filters, sorted(member.address for member in queue.members), queue.backlog, 0,
        queue.detail.backlog, queue.overflow.value, added([queue.counters]), node,
    )  # fmt: skip


def _queue(queue: FqQueue, node: str) -> QueueRow:
    detail = queue.detail
    bindings = [
        QueueBinding(text_of(each.exchange), text_of(each.program.text), each.permanent, each.invocations)
        for each in queue.bindings.values()
    ]
    clients = [QueueClient(text_of(getattr(member, "sender", b"")), member.address) for member in queue.members]
    return QueueRow(
        text_of(detail.name), detail.kind, detail.policy, detail.private, queue.permanent, queue.backlog, detail.backlog, bindings,
        clients, added([queue.counters]), node,
    )  # fmt: skip


def text_of(raw: bytes) -> str:
    """A name of fq, which may be any bytes."""
    return raw.decode("utf-8", "backslashreplace")
