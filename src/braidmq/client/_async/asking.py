"""One question, one answer, over the shared connections of a client: what every administrative method is made of."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, TypeVar, cast

from braidmq.base.errors import BraidError
from braidmq.client._backend import asyncio as backend
from braidmq.client.addresses import Address
from braidmq.client.faults import leader_address, nothing_done, passes
from braidmq.client.settings import ClientSettings
from braidmq.wire import flymq

from .connection import decode, encode
from .leaders import Leaders
from .pool import MOMENT_S, Pools

T = TypeVar("T")

LED: Final = (flymq.Produce, flymq.ProduceBatch, flymq.Consume, flymq.Fetch, flymq.FetchBatches, flymq.SeekToTimestamp)
"""Requests that the leader of a partition answers."""
PASSING_SECONDS_MAX: Final = 0.5
"""Longest pause while a cluster finds another leader."""


class Asker:
    """Asks any server, or in a cluster the leader of the partition that a request names, and follows it when it moves."""

    def __init__(self, pools: Pools, leaders: Leaders, settings: ClientSettings) -> None:
        self.settings = settings
        self._pools = pools
        self.leaders = leaders

    async def ask(
        self, request: flymq.Request, kind: type[T], *, again: bool = True, timeout_s: float | None = None, alone: bool = False
    ) -> T:
        """The answer, which has to be a `kind`. `again` repeats the question when the connection breaks: for those that may be."""
        limit_s = timeout_s or self.settings.timeout_s
        server = self._leader(request)
        try:
            frames = await self._pools.at(server).call([encode(request)], limit_s, again=again, alone=alone)
            return expect(request, frames[0], kind)
        except BraidError as fault:
            if not self._may_repeat(fault, server, again):
                raise
            setback = fault
        return await self._ask_elsewhere(request, kind, server, setback, again, alone, time.monotonic() + limit_s)

    async def _ask_elsewhere(
        self, request: flymq.Request, kind: type[T], server: Address | None, setback: BraidError, again: bool, alone: bool,
        deadline_s: float,
    ) -> T:
        """Ask whoever leads now, until somebody does: a node that is lost costs a pause."""
        backoff = self._pools.backoff()
        while True:
            known = await self._find_leader(request, server, setback, deadline_s)
            pause_s = min(backoff.next(), PASSING_SECONDS_MAX, deadline_s - time.monotonic())
            if pause_s <= 0:
                raise setback
            if known is None or known == server:
                await backend.sleep(pause_s)
            server = known
            try:
                left_s = max(MOMENT_S, deadline_s - time.monotonic())
                frames = await self._pools.at(server).call([encode(request)], left_s, again=again, alone=alone)
                return expect(request, frames[0], kind)
            except BraidError as fault:
                if not self._may_repeat(fault, server, again):
                    raise
                setback = fault

    def _may_repeat(self, fault: BraidError, server: Address | None, again: bool) -> bool:
        if server is not None and fault.code == "UNREACHABLE":
            # Nothing was sent to it, and another one may lead.
            return True
        if server is not None and again and fault.code == "CONNECTION_LOST":
            return True
        return nothing_done(fault) or (again and passes(fault))

    def _leader(self, request: flymq.Request) -> Address | None:
        if self.leaders.clustered and isinstance(request, LED):
            return self.leaders.of(request.topic, request.partition)
        return None

    async def _find_leader(
        self, request: flymq.Request, server: Address | None, fault: BraidError, deadline_s: float
    ) -> Address | None:
        """Whom to ask next; None for anybody."""
        leaders = self.leaders
        if not isinstance(request, LED) or request.partition < 0:
            return leaders.address(leader_address(fault))
        if fault.code == "NOT_LEADER":
            told = leaders.told(request.topic, request.partition, fault)
            if told is not None and told != server:
                return told
        elif server is not None:
            leaders.forget(server)
        await leaders.refresh([request.topic], max(MOMENT_S, deadline_s - time.monotonic()))
        return leaders.of(request.topic, request.partition)

    async def ask_all(self, requests: Sequence[flymq.Request], kind: type[T]) -> list[T]:
        """The answers to many questions that may be repeated, asked at once; raises the first error among them."""
        if not requests:
            return []
        if self.leaders.clustered:
            return [await self.ask(request, kind) for request in requests]
        frames = await self._pools.any.call([encode(request) for request in requests], self.settings.timeout_s, again=True)
        return [await self._expect_or_ask(request, frame, kind) for request, frame in zip(requests, frames, strict=True)]

    async def _expect_or_ask(self, request: flymq.Request, frame: flymq.Frame, kind: type[T]) -> T:
        """A node of a cluster that this client took for a broker alone may answer that it has to be asked elsewhere, or again."""
        try:
            return expect(request, frame, kind)
        except BraidError as fault:
            if not self._may_repeat(fault, None, True):
                raise
        return await self.ask(request, kind)


def expect(request: flymq.Request, frame: flymq.Frame, kind: type[T]) -> T:
    """The answer in a frame; raises what the server says is wrong, or that it is no `kind`."""
    answer = decode(request.op, frame, cast(Any, kind))
    if not isinstance(answer, kind):
        raise BraidError("UNEXPECTED_REPLY", reason=f"{type(answer).__name__} where {kind.__name__} was expected")
    return answer
