"""Sessions and terms, made of guarded writes and leases: the same for every driver, so that the simulator runs what users run.

A generation is a counter of its own, guarded, so it grows whatever happens to sessions. A new session of a broker replaces the one
before at once: a broker that was killed and started again need not wait for the old one to expire. The process that is replaced
finds out by watching its own key.

A session is lost when the quorum says so, not when the quorum is silent: while no majority answers, leases do not run out on
it either, and brokers that all came back with new generations would only make the work after an outage larger. `alive` is the
careful answer meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from braidmq.base.clock import Clock
from braidmq.base.errors import BraidError
from braidmq.cluster.quorum import (
    GENERATIONS,
    ROLES,
    SESSIONS,
    Changed,
    Conflict,
    Delete,
    Entry,
    Event,
    Guard,
    Ok,
    Op,
    Put,
    Reading,
    Session,
    SessionRecord,
    TxnResult,
    Unknown,
)

_RENEWALS_PER_TTL: Final = 3
_RETRY_SHARE: Final = 0.1
"""Of a renewal's interval: how soon it is tried again after a failure."""
_CONFLICTS_MAX: Final = 100
"""A key that changes before each of so many tries is written by a program that is not ours."""

logger = logging.getLogger("braidmq.quorum")


class LeasedQuorum(ABC):
    """What sessions and terms need of a driver, and the sessions and terms themselves."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._sessions: set[LeasedSession] = set()

    # --- what a driver supplies

    @abstractmethod
    async def txn(self, guards: Sequence[Guard], ops: Sequence[Op]) -> TxnResult: ...

    @abstractmethod
    async def read(self, prefix: str, *, linearizable: bool = True) -> Reading: ...

    @abstractmethod
    def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Event]: ...

    @abstractmethod
    async def grant_lease(self, ttl_s: float) -> int:
        """Raises QUORUM_UNAVAILABLE."""

    @abstractmethod
    async def renew_lease(self, lease: int) -> bool:
        """Whether the lease stands; False means that it is over for good. Raises QUORUM_UNAVAILABLE when nobody says."""

    @abstractmethod
    async def end_lease(self, lease: int) -> None:
        """Raises QUORUM_UNAVAILABLE; no error when it is over already."""

    # --- what it gets

    async def session(self, broker: str, ttl_s: float, about: bytes = b"") -> Session:
        granted_at = self.clock.monotonic()
        lease = await self.grant_lease(ttl_s)
        counter = GENERATIONS + broker
        for _ in range(_CONFLICTS_MAX):
            entry = (await self.read(counter)).entries.get(counter)
            generation = 1 if entry is None else int(entry.value) + 1
            record = SessionRecord(generation, about)
            result = await self.txn(
                [Guard(counter, 0 if entry is None else entry.revision)],
                [Put(counter, b"%d" % generation), Put(SESSIONS + broker, record.encode(), lease)],
            )
            if isinstance(result, Ok):
                session = LeasedSession(self, broker, record, lease, ttl_s, result.revision, granted_at)
                self._sessions.add(session)
                session.start()
                return session
            # Unknown: should it have happened, the next try has a generation after it, and should it happen yet, its guard fails.
        raise BraidError("QUORUM_UNAVAILABLE", reason=f"a session of {broker} could not be opened")

    async def campaign(self, role: str, session: Session) -> Term:
        key = ROLES + role
        mine = b"%d\n%b" % (session.generation, session.broker.encode())
        while True:
            reading = await self.read(key)
            entry = reading.entries.get(key)
            if entry is not None and entry.value == mine:
                return Term(self, role, entry.revision)
            generation, _, holder = entry.value.partition(b"\n") if entry is not None else (b"0", b"", b"")
            if entry is None or (holder == session.broker.encode() and int(generation) < session.generation):
                guards = [Guard(key, 0 if entry is None else entry.revision), session.guard]
                result = await self.txn(guards, [Put(key, mine, session.lease)])
                if isinstance(result, Ok):
                    return Term(self, role, result.revision)
                if not isinstance(result, Conflict):
                    continue
                if result.entries.get(session.guard.key) is None:
                    raise BraidError("QUORUM_UNAVAILABLE", reason=f"the session of {session.broker} is over")
                continue
            await self._until_changed(key, reading.revision, session)

    async def _until_changed(self, key: str, after_revision: int, session: Session) -> None:
        async def changed() -> None:
            async for event in self.watch(key, after_revision):
                if not isinstance(event, Changed) or event.key == key:
                    return

        waiting = asyncio.create_task(changed())
        losing = asyncio.create_task(session.lost())
        try:
            await asyncio.wait([waiting, losing], return_when=asyncio.FIRST_COMPLETED)
            if losing.done():
                raise BraidError("QUORUM_UNAVAILABLE", reason=f"the session of {session.broker} is over: {losing.result()}")
            await waiting
        finally:
            await ended(waiting, losing)

    def session_ended(self, session: LeasedSession) -> None:
        self._sessions.discard(session)

    async def abandon_sessions(self) -> None:
        """Keep no session alive any longer, as if this process had died; they end by their time to live."""
        for session in sorted(self._sessions, key=lambda session: session.lease):
            await session.abandon()


class LeasedSession:
    def __init__(
        self, quorum: LeasedQuorum, broker: str, record: SessionRecord, lease: int, ttl_s: float, revision: int, granted_at: float
    ) -> None:
        self._quorum = quorum
        self.broker = broker
        self.generation = record.generation
        self.lease = lease
        self._about = record.about
        self._ttl_s = ttl_s
        self._revision = revision
        self._confirmed_at = granted_at
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._telling = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._renew()), asyncio.create_task(self._watch())]

    @property
    def _key(self) -> str:
        return SESSIONS + self.broker

    @property
    def alive(self) -> bool:
        return not self._over.done() and self._quorum.clock.monotonic() - self._confirmed_at < self._ttl_s

    @property
    def guard(self) -> Guard:
        return Guard(self._key, self._revision)

    async def lost(self) -> str:
        return await asyncio.shield(self._over)

    def _lose(self, why: str) -> None:
        if not self._over.done():
            logger.warning("the session of %s, generation %d, is over: %s", self.broker, self.generation, why)
            self._over.set_result(why)
            self._quorum.session_ended(self)

    # --- keeping it

    async def _renew(self) -> None:
        interval_s = self._ttl_s / _RENEWALS_PER_TTL
        pause_s = interval_s
        while not self._over.done():
            await asyncio.sleep(pause_s)
            asked_at = self._quorum.clock.monotonic()
            try:
                stands = await self._quorum.renew_lease(self.lease)
            except BraidError as fault:
                logger.info("the session of %s was not renewed: %s", self.broker, fault)
                pause_s = interval_s * _RETRY_SHARE
                continue
            if not stands:
                self._lose("it expired")
                return
            self._confirmed_at = asked_at
            pause_s = interval_s

    async def _watch(self) -> None:
        """Notice that another process has the broker's name, or that somebody ended the session."""
        after = self._revision
        while not self._over.done():
            async for event in self._quorum.watch(self._key, after):
                if not isinstance(event, Changed):
                    break
                if event.key == self._key:
                    self._look(event.entry)
            try:
                reading = await self._quorum.read(self._key)
            except BraidError as fault:
                logger.info("the session of %s could not be read: %s", self.broker, fault)
                await asyncio.sleep(self._ttl_s / _RENEWALS_PER_TTL)
                continue
            after = reading.revision
            self._look(reading.entries.get(self._key))

    def _look(self, entry: Entry | None) -> None:
        if entry is None:
            self._lose("it expired")
            return
        found = SessionRecord.decode(entry.value).generation
        if found > self.generation:
            self._lose(f"another process is {self.broker} now, generation {found}")

    # --- what it says

    async def tell(self, about: bytes) -> None:
        async with self._telling:
            record = SessionRecord(self.generation, about).encode()
            for _ in range(_CONFLICTS_MAX):
                result = await self._quorum.txn([self.guard], [Put(self._key, record, self.lease)])
                if isinstance(result, Ok):
                    self._revision = result.revision
                    self._about = about
                    return
                entry = (await self._quorum.read(self._key)).entries.get(self._key)
                self._look(entry)
                if self._over.done() or entry is None:
                    break
                # An unknown outcome that happened after all, or an older one of ours that came late.
                self._revision = entry.revision
                if entry.value == record:
                    self._about = about
                    return
            raise BraidError("QUORUM_UNAVAILABLE", reason=f"the session of {self.broker} is over")

    # --- its end

    async def abandon(self) -> None:
        await ended(*self._tasks)
        self._tasks = []
        self._quorum.session_ended(self)

    async def close(self) -> None:
        await self.abandon()
        if not self._over.done():
            self._over.set_result("it was closed")
            try:
                await self._quorum.end_lease(self.lease)
            except BraidError as fault:
                logger.info("the session of %s ends by itself: %s", self.broker, fault)


class Term:
    def __init__(self, quorum: LeasedQuorum, role: str, revision: int) -> None:
        self._quorum = quorum
        self.role = role
        self.number = revision

    @property
    def guard(self) -> Guard:
        return Guard(ROLES + self.role, self.number)

    async def resign(self) -> None:
        for _ in range(_CONFLICTS_MAX):
            result = await self._quorum.txn([self.guard], [Delete(self.guard.key)])
            if not isinstance(result, Unknown):
                return
        raise BraidError("QUORUM_UNAVAILABLE", reason=f"whether {self.role} was resigned is unknown")


async def ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and wait until they are over."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await _outcome(task)


async def _outcome(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is not None:
        logger.error("a task of a session failed", exc_info=task.exception())


