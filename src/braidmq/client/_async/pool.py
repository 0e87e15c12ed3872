"""Connections for single requests, shared by all callers of a client.

A request takes an idle connection, opens another while there are fewer than the pool may have, and otherwise joins the
least busy one, where its answer comes after those before it. A request that the server may hold on to (a long poll) gets
a connection to itself, so that nobody waits behind it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.client._backend import asyncio as backend
from braidmq.client.addresses import Address
from braidmq.client.backoff import Backoff
from braidmq.wire.flymq import Frame

from .connection import Connection
from .dialer import Dialer

MOMENT_S: Final = 0.001
"""The least time a step gets when the whole has run out of it, so that the step itself says what took too long."""

REFUSALS_MAX: Final = 3
"""So often in a row a server may break off a TLS session at once, which a restart explains, before it is taken at its word."""


class Pool:
    def __init__(self, dialer: Dialer, size: int, server: Address | None = None) -> None:
        self._dialer = dialer
        self._server = server
        """The only one to connect to; None where any will do."""
        self._size = size
        self._mutex = backend.Mutex()
        self._idle: list[Connection] = []
        self._busy: dict[Connection, int] = {}
        """Connections in use, with the number of their users."""
        self._alone: set[Connection] = set()
        """Those of them whose user shares with nobody."""
        self._opening = 0
        self._closed = False

    async def call(self, frames: Sequence[bytes], timeout_s: float, *, again: bool, alone: bool = False) -> list[Frame]:
        """Send requests, return their answers. With `again` a lost connection is replaced and the requests repeated."""
        deadline_s = time.monotonic() + timeout_s
        backoff = self._dialer.backoff()
        refusals = 0
        while True:
            connection = await self._acquire(max(MOMENT_S, deadline_s - time.monotonic()), alone)
            try:
                return await connection.call(frames, max(MOMENT_S, deadline_s - time.monotonic()))
            except BraidError as fault:
                refusals = refusals + 1 if connection.refused else 0
                hopeless = fault.code != "CONNECTION_LOST" or refusals == REFUSALS_MAX or self._closed
                pause_s = min(backoff.next(), deadline_s - time.monotonic())
                if hopeless or not again or pause_s <= 0:
                    raise
            finally:
                await self._release(connection)
            await backend.sleep(pause_s)

    async def server(self, timeout_s: float) -> Connection:
        """A connection of the pool, opened if there is none: the proof that a server answers."""
        connection = await self._acquire(timeout_s, False)
        await self._release(connection)
        return connection

    async def _acquire(self, timeout_s: float, alone: bool) -> Connection:
        stale: list[Connection] = []
        found: Connection | None = None
        with self._mutex:
            if self._closed:
                raise BraidError("CLIENT_CLOSED", what="client")
            while self._idle and found is None:
                candidate = self._idle.pop()
                if candidate.usable():
                    found = candidate
                else:
                    stale.append(candidate)
            if found is None and not alone and len(self._busy) + self._opening >= self._size:
                shareable = [connection for connection in self._busy if connection not in self._alone and not connection.broken]
                found = min(shareable, key=lambda connection: connection.load, default=None)
            if found is None:
                self._opening += 1
            else:
                self._enter(found, alone)
        for connection in stale:
            await connection.close()
        if found is not None:
            return found
        try:
            connection = await self._dial(timeout_s)
        finally:
            with self._mutex:
                self._opening -= 1
        with self._mutex:
            self._enter(connection, alone)
        return connection

    async def _dial(self, timeout_s: float) -> Connection:
        if self._server is None:
            return await self._dialer.dial(timeout_s)
        return await self._dialer.dial_to(self._server, timeout_s)

    def _enter(self, connection: Connection, alone: bool) -> None:
        self._busy[connection] = self._busy.get(connection, 0) + 1
        if alone:
            self._alone.add(connection)

    async def _release(self, connection: Connection) -> None:
        with self._mutex:
            users = self._busy[connection] - 1
            if users:
                self._busy[connection] = users
                return
            del self._busy[connection]
            self._alone.discard(connection)
            keep = not connection.broken and not self._closed and len(self._idle) < self._size
            if keep:
                self._idle.append(connection)
        if not keep:
            await connection.close()

    async def close(self) -> None:
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for connection in busy:
            connection.abort()
        for connection in idle:
            await connection.close()


class Pools:
    """The shared connections of a client: to any server, and in a cluster to each node that leads something."""

    def __init__(self, dialer: Dialer, size: int) -> None:
        self.any = Pool(dialer, size)
        self._dialer = dialer
        self._size = size
        self._mutex = backend.Mutex()
        self._nodes: dict[Address, Pool] = {}

    def at(self, server: Address | None) -> Pool:
        """Connections to one node; to any where none is named."""
        if server is None:
            return self.any
        with self._mutex:
            pool = self._nodes.get(server)
            if pool is None:
                pool = self._nodes[server] = Pool(self._dialer, self._size, server)
            return pool

    def backoff(self) -> Backoff:
        return self._dialer.backoff()

    async def close(self) -> None:
        with self._mutex:
            nodes = list(self._nodes.values())
        for pool in (self.any, *nodes):
            await pool.close()
