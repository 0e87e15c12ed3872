"""A client of fq: two connections that are one.

The command connection makes it a client of its queue and gives it a key. With the key it opens a data connection, which publishes
and receives. When the command connection closes the client leaves its queue at once, but the key stays good for a moment and what
the data connection brings until then is still taken: programs close both as soon as they have written, and the ends may arrive in
any order. A lost data connection can be opened again with the same key.

    command connection      data connection         the client
    open                    none                    is attached, its queue fills
    open                    open                    publishes and receives
    closed, for a moment    any                     publishes
    closed                  is closed               is gone
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from braidmq.base import limits
from braidmq.broker.fq_queue import FqQueue
from braidmq.security.authorizer import Principal
from braidmq.wire.fq.messages import NO_SENDER

if TYPE_CHECKING:
    from braidmq.server.fq_data import DataStream
    from braidmq.server.fq_session import FqSession

class FqClient:
    def __init__(self, user: bytes, principal: Principal, address: str, lane: int) -> None:
        self.sender = user or NO_SENDER
        self.principal = principal
        self.address = address
        self.lane = lane
        """Decides about the partitions that it writes to."""
        self.queue: FqQueue | None = None
        """None once it has left."""
        self.data: DataStream | None = None
        self.command: FqSession | None = None

    def dismiss(self) -> None:
        """Its queue is served by another node: both connections end."""
        self.queue = None
        for session in (self.command, None if self.data is None else self.data.session):
            if session is not None:
                session.close_when_idle()


class Clients:
    """Who has which key, for all connections of a port."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._by_key: dict[bytes, FqClient] = {}
        self._leaving: dict[FqClient, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: bytes) -> FqClient | None:
        return self._by_key.get(key)

    def add(self, client: FqClient) -> bytes:
        """Let a client in; returns its key."""
        key = secrets.token_bytes(limits.FQ_KEY_BYTES_MAX)
        self._by_key[key] = client
        return key

    def leave(self, key: bytes) -> None:
        """The command connection is gone; in a moment the rest goes too."""
        client = self._by_key[key]
        loop = asyncio.get_running_loop()
        self._leaving[client] = loop.call_later(self._grace_s, self._forget, key)

    def _forget(self, key: bytes) -> None:
        client = self._by_key[key]
        if client.data is not None and client.data.session.blocked:
            # It has sent what a queue has no room for yet. That counts as published, however long it takes.
            self.leave(key)
            return
        del self._by_key[key], self._leaving[client]
        if client.data is not None:
            client.data.session.close_when_idle()

    def close(self) -> None:
        """Nobody is served any more."""
        for timer in self._leaving.values():
            timer.cancel()
        self._leaving.clear()
        self._by_key.clear()
