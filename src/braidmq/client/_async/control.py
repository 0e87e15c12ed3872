"""The requests of a consumer that fetch nothing: on a connection of its own, replaced when it breaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from braidmq.base.errors import BraidError
from braidmq.client._backend import asyncio as backend
from braidmq.client.faults import passes
from braidmq.client.settings import ClientSettings
from braidmq.wire import flymq

from .connection import Connection, answers, encode
from .dialer import Dialer
from .pool import MOMENT_S


class Control:
    def __init__(
        self, dialer: Dialer, settings: ClientSettings, stop: backend.Signal, greeting: Callable[[], Sequence[flymq.Request]]
    ) -> None:
        self._dialer = dialer
        self._settings = settings
        self._stop = stop
        self._greeting = greeting
        """What a connection that replaces another says first: which group it belongs to."""
        self._connection: Connection | None = None
        self._lock = backend.Lock()
        self._closed = False

    async def ask(self, requests: Sequence[flymq.Request]) -> list[flymq.Response]:
        """The answers; raises the first error among them. Asked again when the connection breaks, or a cluster has a setback."""
        return await self._ask(requests, apart=False)

    async def ask_apart(self, requests: Sequence[flymq.Request]) -> list[flymq.Response]:
        """The same on a connection that is closed afterwards: for requests that would make it a member of a group."""
        return await self._ask(requests, apart=True) if requests else []

    async def _ask(self, requests: Sequence[flymq.Request], *, apart: bool) -> list[flymq.Response]:
        deadline_s = time.monotonic() + self._settings.timeout_s
        frames = [encode(request) for request in requests]
        backoff = self._dialer.backoff()
        while True:
            connection: Connection | None = None
            try:
                left_s = max(MOMENT_S, deadline_s - time.monotonic())
                connection = await (self._dialer.dial(left_s, self._stop) if apart else self._connect(deadline_s))
                return answers(requests, await connection.call(frames, max(MOMENT_S, deadline_s - time.monotonic())))
            except BraidError as fault:
                pause_s = min(backoff.next(), deadline_s - time.monotonic())
                if (fault.code != "CONNECTION_LOST" and not passes(fault)) or self._closed or pause_s <= 0:
                    raise
            finally:
                if apart and connection is not None:
                    await connection.close()
            await backend.sleep(pause_s)

    async def _connect(self, deadline_s: float) -> Connection:
        async with self._lock:
            connection = self._connection
            if connection is not None:
                if connection.usable():
                    return connection
                await connection.close()
            self._connection = None
            connection = await self._dialer.dial(max(MOMENT_S, deadline_s - time.monotonic()), self._stop)
            greeting = [encode(request) for request in self._greeting()]
            if greeting:
                await connection.call(greeting, max(MOMENT_S, deadline_s - time.monotonic()))
            self._connection = connection
            return connection

    async def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            await self._connection.close()
