"""A metadata quorum inside the simulator: right about order and guards, and otherwise as unhelpful as a real one may be.

Requests take time. Some are lost on their way, some answers are lost after the change was made, and some changes are made long
after their sender was told `Unknown`. Reads that need not be linearizable are often old, watches have gaps, sessions end early,
a node can be cut off, and the whole quorum can be without a majority. All of it follows from one seeded generator: the same
seed gives the same history.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from braidmq.base.clock import Clock
from braidmq.base.errors import BraidError
from braidmq.cluster.quorum import Compacted, Event, Guard, Op, Reading, TxnResult, Unknown
from braidmq.cluster.quorum_session import LeasedQuorum
from braidmq.cluster.quorum_store import QuorumStore, end_command, grant_command, txn_command

_STATES_KEPT: Final = 32


@dataclass(frozen=True, slots=True)
class QuorumFaults:
    """How often things go wrong, each between 0 and 1, and how long things take."""

    delay_s_max: float = 0.005
    lost_requests: float = 0.0
    lost_answers: float = 0.0
    late_changes: float = 0.0
    """Changes that are made after their sender was told `Unknown`."""
    late_s_max: float = 5.0
    stale_reads: float = 0.0
    watch_gaps: float = 0.0
    """Of the moments at which a watch has something to say."""
    lost_sessions: float = 0.0
    """Of the renewals: the session ends though its node is there."""
    timeout_s: float = 1.0
    """How long a node waits before it says `Unknown`."""


CALM: Final = QuorumFaults()
ROUGH: Final = QuorumFaults(0.02, 0.05, 0.05, 0.05, 3.0, 0.5, 0.1, 0.01, 0.5)


class QuorumService:
    """The quorum that all nodes of a simulated cluster ask."""

    def __init__(self, clock: Clock, rng: random.Random, faults: QuorumFaults = CALM) -> None:
        self.clock = clock
        self.rng = rng
        self.faults = faults
        self.store = QuorumStore()
        self.majority = True
        """Without it nobody is answered, and no session ends."""
        self._cut_off: set[str] = set()
        self._better = asyncio.Event()
        self._states: deque[Reading] = deque(maxlen=_STATES_KEPT)
        self._expiries: dict[int, asyncio.TimerHandle] = {}
        self._loop = asyncio.get_running_loop()

    def driver(self, node: str) -> SimulatedQuorum:
        """The quorum as `node` reaches it."""
        return SimulatedQuorum(self, node)

    def cut_off(self, node: str) -> None:
        self._cut_off.add(node)

    def reconnect(self, node: str) -> None:
        self._cut_off.discard(node)
        self._tell()

    def lose_majority(self) -> None:
        self.majority = False

    def regain_majority(self) -> None:
        self.majority = True
        self._tell()

    def _tell(self) -> None:
        self._better.set()
        self._better = asyncio.Event()

    def reaches(self, node: str) -> bool:
        return self.majority and node not in self._cut_off

    async def until_reached(self, node: str) -> None:
        while not self.reaches(node):
            await self._better.wait()

    def apply(self, command: list[Any]) -> Any:
        self._states.append(self.store.read(""))
        return self.store.apply(command)

    def old_reading(self, prefix: str) -> Reading:
        """What was true some time ago, or still is."""
        reading = self.rng.choice([*self._states, self.store.read("")])
        return Reading(reading.revision, {key: entry for key, entry in reading.entries.items() if key.startswith(prefix)})

    def happens(self, share: float) -> bool:
        return self.rng.random() < share

    def expire_later(self, lease: int, ttl_s: float) -> None:
        self.forget_expiry(lease)
        self._expiries[lease] = self._loop.call_later(ttl_s, partial(self._expire, lease, ttl_s))

    def forget_expiry(self, lease: int) -> None:
        timer = self._expiries.pop(lease, None)
        if timer is not None:
            timer.cancel()

    def _expire(self, lease: int, ttl_s: float) -> None:
        if not self.majority:
            self.expire_later(lease, ttl_s)
            return
        self._expiries.pop(lease, None)
        self.apply(end_command(lease))

    def close(self) -> None:
        for lease in list(self._expiries):
            self.forget_expiry(lease)


class SimulatedQuorum(LeasedQuorum):
    def __init__(self, service: QuorumService, node: str) -> None:
        super().__init__(service.clock)
        self._service = service
        self._node = node

    async def close(self) -> None:
        await self.abandon_sessions()

    async def _delay(self) -> None:
        await asyncio.sleep(self._service.rng.uniform(0, self._service.faults.delay_s_max))

    async def _reached(self) -> None:
        """Take the time of a way; raises when nobody is at its end."""
        service = self._service
        await self._delay()
        if not service.reaches(self._node) or service.happens(service.faults.lost_requests):
            await asyncio.sleep(service.faults.timeout_s)
            raise BraidError("QUORUM_UNAVAILABLE", reason="no answer in time")

    async def _answered(self) -> None:
        service = self._service
        await self._delay()
        if not service.reaches(self._node) or service.happens(service.faults.lost_answers):
            await asyncio.sleep(service.faults.timeout_s)
            raise BraidError("QUORUM_UNAVAILABLE", reason="the answer was lost")

    # --- keys

    async def txn(self, guards: Sequence[Guard], ops: Sequence[Op]) -> TxnResult:
        service = self._service
        command = txn_command(guards, ops)
        try:
            await self._reached()
            if service.happens(service.faults.late_changes):
                asyncio.get_running_loop().call_later(service.rng.uniform(0, service.faults.late_s_max), service.apply, command)
                await asyncio.sleep(service.faults.timeout_s)
                return Unknown("it may come later")
            result: TxnResult = service.apply(command)
            await self._answered()
        except BraidError as fault:
            return Unknown(fault.text)
        return result

    async def read(self, prefix: str, *, linearizable: bool = True) -> Reading:
        service = self._service
        if not linearizable and service.happens(service.faults.stale_reads):
            await self._delay()
            return service.old_reading(prefix)
        await self._reached()
        reading = service.store.read(prefix)
        await self._answered()
        return reading

    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Event]:
        service = self._service
        async for event in service.store.watch(prefix, after_revision):
            await self._delay()
            await service.until_reached(self._node)
            if service.happens(service.faults.watch_gaps):
                yield Compacted(service.store.revision)
                return
            yield event

    # --- leases

    async def grant_lease(self, ttl_s: float) -> int:
        await self._reached()
        lease: int = self._service.apply(grant_command(ttl_s))
        self._service.expire_later(lease, ttl_s)
        await self._answered()
        return lease

    async def renew_lease(self, lease: int) -> bool:
        service = self._service
        await self._reached()
        ttl_s = service.store.leases.get(lease)
        if ttl_s is not None and service.happens(service.faults.lost_sessions):
            service.forget_expiry(lease)
            service.apply(end_command(lease))
            ttl_s = None
        if ttl_s is not None:
            service.expire_later(lease, ttl_s)
        await self._answered()
        return ttl_s is not None

    async def end_lease(self, lease: int) -> None:
        await self._reached()
        self._service.forget_expiry(lease)
        self._service.apply(end_command(lease))
        await self._answered()
