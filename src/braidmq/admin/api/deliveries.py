"""Whom the broker pushes to, and who is connected: BlipMQ's subscribers, fq's queues, and every connection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from braidmq.admin.call import Call, Nothing, PageQuery, read_cursor
from braidmq.base.errors import BraidError
from braidmq.broker.pace import Pace
from braidmq.broker.push.subscription import Counters
from braidmq.server.app import BrokerServer
from braidmq.server.blipmq_session import BlipMQSession
from braidmq.server.deliveries import (
    START,
    DeliveryCounts,
    MissingNode,
    QueueRow,
    SubscriptionRow,
    added,
    parts_of,
    place_of,
    queues,
    subscriptions,
    text_of,
)
from braidmq.server.fq_data import DataStream
from braidmq.server.fq_session import FqSession
from braidmq.server.listener import Listener
from braidmq.server.session import Session


@dataclass(frozen=True, slots=True)
class SubscriptionPage:
    """Subscriptions of all nodes, by id."""

    items: list[SubscriptionRow]
    next_cursor: str | None = None
    missing: Annotated[list[MissingNode], "nodes that did not say what they serve"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class QueuePage:
    """Queues of all nodes, by name."""

    items: list[QueueRow]
    next_cursor: str | None = None
    missing: Annotated[list[MissingNode], "nodes that did not say what they serve"] = field(default_factory=list)


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
    """Everybody whom records are pushed to, of every protocol and on every node, with what is pending, dropped and redelivered."""
    listing = await subscriptions(call.broker, _after(call), call.query.limit + 1)
    return SubscriptionPage(*call.page(listing.rows, place_of, call.query), listing.missing)


async def list_queues(call: Call[PageQuery, Nothing]) -> QueuePage:
    """fq's queues, on every node."""
    listing = await queues(call.broker, _after(call), call.query.limit + 1)
    return QueuePage(*call.page(listing.rows, place_of, call.query), listing.missing)


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


def _after(call: Call[PageQuery, Nothing]) -> tuple[str, str]:
    """The place behind which a page begins."""
    if not call.query.cursor:
        return START
    match read_cursor(call.query.cursor):
        case (str(name), str(node)):
            return name, node
        case _:
            raise BraidError("INVALID_ARGUMENT", reason="`cursor` is none of this list")


# --- finding


def connections(server: BrokerServer) -> Iterator[tuple[Listener[Any], Session]]:
    for listener in server.listeners:
        for session in list(listener.sessions):
            yield listener, session


def connection_id(listener: Listener[Any], session: Session) -> str:
    return f"{listener.scheme}-{session.address}"


# --- rows


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
