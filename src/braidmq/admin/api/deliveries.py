"""Whom the broker pushes to, and who is connected: BlipMQ's subscribers, fq's queues, and every connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from braidmq.admin.call import Call, Nothing, PageQuery
from braidmq.admin.looking import parts_of, subscribers
from braidmq.base.errors import BraidError
from braidmq.broker.fq_queue import FqQueue
from braidmq.broker.pace import Pace
from braidmq.broker.push.subscription import Counters
from braidmq.server.app import BrokerServer
from braidmq.server.blipmq_session import BlipMQSession
from braidmq.server.blipmq_subscriber import SharedGroup, Subscriber
from braidmq.server.fq_data import DataStream
from braidmq.server.fq_session import FqSession
from braidmq.server.listener import Listener
from braidmq.server.session import Session

T = TypeVar("T")

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


@dataclass(frozen=True, slots=True)
class SubscriptionPage:
    """Subscriptions, by id."""

    items: list[SubscriptionRow]
    next_cursor: str | None = None


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


@dataclass(frozen=True, slots=True)
class QueuePage:
    """Queues, by name."""

    items: list[QueueRow]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class ConnectionRow:
    """A connection."""

    id: str
    protocol: str
    address: str
    listener: str
    user: str
    tls: bool
    idle_ms: int
    unsent_bytes: Annotated[int, "what it was sent and has not taken"]
    slowed: Annotated[bool, "whether it waits for the quota of its user"]
    subscriptions: int
    counts: DeliveryCounts


@dataclass(frozen=True, slots=True)
class ConnectionPage:
    """Connections, by id."""

    total: int
    items: list[ConnectionRow]
    next_cursor: str | None = None


async def list_subscriptions(call: Call[PageQuery, Nothing]) -> SubscriptionPage:
    """Everybody whom records are pushed to, of every protocol, with what is pending, dropped and redelivered."""
    rows = [_subscriber(number, subscriber) for number, subscriber in enumerate(subscribers(call.server))]
    rows += [_queue_subscription(queue) for queue in call.broker.fq.all()]
    return SubscriptionPage(*_page(call, rows, lambda row: row.id))


async def list_queues(call: Call[PageQuery, Nothing]) -> QueuePage:
    """fq's queues."""
    return QueuePage(*_page(call, [_queue(queue) for queue in call.broker.fq.all()], lambda row: row.name))


async def list_connections(call: Call[PageQuery, Nothing]) -> ConnectionPage:
    """Every connection of every protocol."""
    open_now = sorted(connections(call.server), key=lambda pair: connection_id(*pair))
    shown, cursor = call.page(open_now, lambda pair: connection_id(*pair), call.query)
    pace = Pace()
    rows = []
    for listener, session in shown:
        await pace.step()
        rows.append(_connection(listener, session))
    return ConnectionPage(len(open_now), rows, cursor)


def close_connection(call: Call[Nothing, Nothing]) -> None:
    """Close a connection. What it was promised stays; most clients come back."""
    wanted = call.path["id"]
    for listener, session in connections(call.server):
        if connection_id(listener, session) == wanted:
            call.note("config.change", wanted, "close connection")
            session.abort()
            return
    raise BraidError("CONNECTION_NOT_FOUND", id=wanted)


def _page(call: Call[PageQuery, Nothing], rows: list[T], key: Callable[[T], str]) -> tuple[list[T], str | None]:
    """Of some rows, in the order of `key`, the part that was asked for."""
    return call.page(sorted(rows, key=key), key, call.query)


# --- finding


def connections(server: BrokerServer) -> Iterator[tuple[Listener[Any], Session]]:
    for listener in server.listeners:
        for session in list(listener.sessions):
            yield listener, session


def connection_id(listener: Listener[Any], session: Session) -> str:
    return f"{listener.scheme}-{session.address}"


# --- rows


def added(counters: list[Counters]) -> DeliveryCounts:
    return DeliveryCounts(
        sum(each.delivered for each in counters), sum(each.delivered_bytes for each in counters),
        sum(each.dropped for each in counters), sum(each.redelivered for each in counters), sum(each.lost for each in counters),
    )  # fmt: skip


def _subscriber(number: int, subscriber: Subscriber) -> SubscriptionRow:
    parts = parts_of(subscriber)
    kind = "durable" if subscriber.group else "shared" if isinstance(subscriber, SharedGroup) else "session"
    name = subscriber.name or "".join(session.address for session in subscriber.sessions)
    queue = subscriber.queue
    return SubscriptionRow(
        f"blipmq-{name or number}", "blipmq", kind, subscriber.name, sorted(subscriber.filters),
        sorted(session.address for session in subscriber.sessions), sum(part.pending.count for part in parts),
        0 if queue is None else queue.inflight.count, max((part.capacity for part in parts), default=0),
        parts[0].overflow.value if parts else "", added([part.counters for part in parts]),
    )  # fmt: skip


def _queue_subscription(queue: FqQueue) -> SubscriptionRow:
    name = text_of(queue.detail.name)
    filters = sorted(f"{text_of(each.exchange)} {text_of(each.program.text)}" for each in queue.bindings.values())
    return SubscriptionRow(
        f"fq-{name}", "fq", "queue", name, filters, sorted(member.address for member in queue.members), queue.backlog, 0,
        queue.detail.backlog, queue.overflow.value, added([queue.counters]),
    )  # fmt: skip


def _queue(queue: FqQueue) -> QueueRow:
    detail = queue.detail
    bindings = [
        QueueBinding(text_of(each.exchange), text_of(each.program.text), each.permanent, each.invocations)
        for each in queue.bindings.values()
    ]
    clients = [QueueClient(text_of(getattr(member, "sender", b"")), member.address) for member in queue.members]
    return QueueRow(
        text_of(detail.name), detail.kind, detail.policy, detail.private, queue.permanent, queue.backlog, detail.backlog, bindings,
        clients, added([queue.counters]),
    )  # fmt: skip


def _connection(listener: Listener[Any], session: Session) -> ConnectionRow:
    counters: list[Counters] = []
    held = 0
    user = session.principal.name
    if isinstance(session, BlipMQSession):
        held = len(session.subscribers)
        counters = [part.counters for subscriber in session.subscribers.values() for part in parts_of(subscriber)]
    elif isinstance(session, FqSession) and isinstance(session.stream, DataStream):
        client = session.stream.client
        user = user or text_of(client.sender)
        held = 1 if client.queue is not None else 0
        counters = [] if client.queue is None else [client.queue.counters]
    return ConnectionRow(
        connection_id(listener, session), listener.protocol, session.address, session.reached_at, user,
        listener.scheme.endswith("s"), max(0, round((listener.now - session.last_frame_at) * 1000)), session.unsent, session.slowed,
        held, added(counters),
    )  # fmt: skip


def text_of(raw: bytes) -> str:
    """A name of fq, which may be any bytes."""
    return raw.decode("utf-8", "backslashreplace")
