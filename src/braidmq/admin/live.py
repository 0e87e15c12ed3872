"""Server-sent events: live tails and live figures.

A stream is a step that is run on the broker's loop again and again, with pauses, and tells what is new. Nothing waits on the loop
for a browser, a slow one only gets its events later, and a step asks anew whether the caller may still see them. Streams are few,
by a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import StreamingResponse

from braidmq.admin.problem import problem
from braidmq.admin.shapes import plain
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.base.json_pieces import json_pieces

if TYPE_CHECKING:
    from braidmq.admin.site import Site

_SIGN_OF_LIFE_SECONDS: Final = 15.0
MEDIA: Final = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    data: Any
    """A shape."""


@dataclass(frozen=True, slots=True)
class LiveStream:
    step: Callable[[], Awaitable[list[Event]]]
    """Runs on the broker's loop; tells what is new since the last one."""
    every_s: float


class LiveStreams:
    """Those that are open, of all callers together."""

    def __init__(self, most: int = limits.LIVE_STREAMS_MAX) -> None:
        self._most = most
        self._open = 0

    def response(self, site: Site, stream: LiveStream, request_id: str) -> StreamingResponse:
        if self._open >= self._most:
            raise BraidError("LIVE_LIMIT", limit=self._most)
        self._open += 1
        return _LiveResponse(self._events(site, stream, request_id), self._closed)

    def _closed(self) -> None:
        self._open -= 1

    async def _events(self, site: Site, stream: LiveStream, request_id: str) -> AsyncIterator[str]:
        quiet_s = 0.0
        yield ": here\n\n"
        while not site.stopping.is_set():
            try:
                events = await site.gate.ask(stream.step)
            except BraidError as fault:
                yield _text(Event("problem", problem(fault, request_id)))
                return
            for event in events:
                yield _text(event)
            quiet_s = 0.0 if events else quiet_s + stream.every_s
            if quiet_s >= _SIGN_OF_LIFE_SECONDS:
                quiet_s = 0.0
                yield ": still here\n\n"
            await _pause(site.stopping, stream.every_s)


async def _pause(stopping: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        return


class _LiveResponse(StreamingResponse):
    """Knows its end, however it comes."""

    def __init__(self, events: AsyncIterator[str], closed: Callable[[], None]) -> None:
        super().__init__(events, media_type=MEDIA, headers={"X-Accel-Buffering": "no"})
        self._closed = closed

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._closed()


def _text(event: Event) -> str:
    return f"event: {event.name}\ndata: {''.join(json_pieces(plain(event.data)))}\n\n"
