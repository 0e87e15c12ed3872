"""Who asks, and what every operation does with the answer."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from braidmq.base.disk import Buffer
from braidmq.broker.broker import Broker
from braidmq.broker.topics import Topic
from braidmq.security import accounts
from braidmq.security.audit_events import Result
from braidmq.security.authorizer import Principal
from braidmq.wire import flymq
from braidmq.wire.flymq import Dialect

Answer = list[Buffer]
Outcome = Answer | Awaitable[Answer]


class Caller(Protocol):
    """A connection."""

    broker: Broker
    dialect: Dialect
    principal: Principal
    """Who the connection is logged in as."""

    @property
    def forwarded(self) -> bool:
        """Whether the connection is to another node of the cluster, which had this one run the request."""
        ...

    @property
    def address(self) -> str: ...

    @property
    def ip(self) -> str:
        """The address without the port."""
        ...

    @property
    def reached_at(self) -> str:
        """The broker's address as this client knows it, host and port."""
        ...

    def remember_membership(self, topic_id: int, group: str) -> None:
        """The connection is a member of the group until it closes."""
        ...

    def first_commit(self, group: str) -> bool:
        """Whether the user commits for this group of a topic for the first time on this connection, as far as it remembers."""
        ...

    def logged_in(self, principal: Principal) -> None:
        """The connection is somebody else from now on."""
        ...


def respond(caller: Caller, request: flymq.Request, response: flymq.Response) -> Answer:
    return [flymq.encode_response(request.op, response, caller.dialect)]


def account(caller: Caller) -> accounts.Caller:
    """The connection as accounts know it."""
    return accounts.Caller(caller.principal, caller.ip)


def note(caller: Caller, kind: str, resource: str, action: str, result: Result = "success", **details: str) -> None:
    """Write what the caller did into the audit trail."""
    caller.broker.security.note(kind, caller.principal, caller.ip, resource, action, result, **details)


def partitions_of_new(caller: Caller) -> int | None:
    """Published clients read partition 0 only, so a topic that one of them creates by producing has just that."""
    return 1 if caller.dialect is Dialect.V126 else None


async def auto_created(caller: Caller, name: str) -> Topic:
    """The topic that a producer named, made where it is missing and that is allowed."""
    broker = caller.broker
    known = broker.topics.get(name)
    if known is not None:
        return known
    return await broker.auto_create(name, partitions_of_new(caller), account(caller))
