"""The way from the HTTP thread to the broker's loop, and the only one.

The broker's state has one owner, its loop, and needs no locks because of that. The HTTP thread hands a function over, the loop runs
it among its other work, and the answer comes back. So many may be on their way at a time; more wait on this side, where waiting
costs the broker nothing. Whoever takes too long is given up, and what ran for it on the loop is cancelled.

What is handed over must be quick, or pause now and then as `broker/pace.py` does, and has to answer with values of its own:
nothing that the loop goes on changing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from typing import TypeVar

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.server.app import BrokerServer

T = TypeVar("T")


class Gate:
    def __init__(
        self,
        server: BrokerServer,
        loop: asyncio.AbstractEventLoop,
        *,
        at_once_max: int = limits.GATE_CALLS_AT_ONCE_MAX,
        timeout_s: float = limits.GATE_SECONDS_MAX,
    ) -> None:
        self._server = server
        self._loop = loop
        self._slots = asyncio.Semaphore(at_once_max)
        self._timeout_s = timeout_s

    async def ask(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run `function` on the broker's loop.

        NOT_READY before recovery is done and after the stop began, TIMED_OUT when it takes too long.
        """
        try:
            async with asyncio.timeout(self._timeout_s), self._slots:
                self._check_ready()
                return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._run(function), self._loop))
        except TimeoutError:
            raise BraidError("TIMED_OUT", what="the broker's answer", seconds=self._timeout_s) from None

    async def turn(self) -> None:
        """Return once the loop has turned, whatever state the broker is in."""
        turned: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(turned.set_result, None)
        await asyncio.wrap_future(turned)

    async def look(self, function: Callable[[], T]) -> T:
        """The same for a function that answers at once."""

        async def looking() -> T:
            return function()

        return await self.ask(looking)

    async def _run(self, function: Callable[[], Awaitable[T]]) -> T:
        self._check_ready()
        return await function()

    def _check_ready(self) -> None:
        state = self._server.state
        if state != "ready":
            raise BraidError("NOT_READY", state=state)
