"""One question, one answer, over the shared connections of a client: what every administrative method is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from braidmq.base.errors import BraidError
from braidmq.client.settings import ClientSettings
from braidmq.wire import flymq

from .connection import decode, encode
from .pool import Pool

T = TypeVar("T")


class Asker:
    def __init__(self, pool: Pool, settings: ClientSettings) -> None:
        self.settings = settings
        self._pool = pool

    async def ask(
        self, request: flymq.Request, kind: type[T], *, again: bool = True, timeout_s: float | None = None, alone: bool = False
    ) -> T:
        """The answer, which has to be a `kind`. `again` repeats the question when the connection breaks: for those that may be."""
        frames = await self._pool.call([encode(request)], timeout_s or self.settings.timeout_s, again=again, alone=alone)
        return expect(request, frames[0], kind)

    async def ask_all(self, requests: Sequence[flymq.Request], kind: type[T]) -> list[T]:
        """The answers to many questions that may be repeated, asked at once; raises the first error among them."""
        if not requests:
            return []
        frames = await self._pool.call([encode(request) for request in requests], self.settings.timeout_s, again=True)
        return [expect(request, frame, kind) for request, frame in zip(requests, frames, strict=True)]


def expect(request: flymq.Request, frame: flymq.Frame, kind: type[T]) -> T:
    """The answer in a frame; raises what the server says is wrong, or that it is no `kind`."""
    answer = decode(request.op, frame, cast(Any, kind))
    if not isinstance(answer, kind):
        raise BraidError("UNEXPECTED_REPLY", reason=f"{type(answer).__name__} where {kind.__name__} was expected")
    return answer
