"""A member of a group: joins, lives by heartbeats, and notices when the group divides its partitions anew.

One task has a connection to itself, because the broker holds a join until the group has settled, and everything behind it
would wait. The application's own steps happen in the application's turn, so the two meet in three places:

    recalled   set here: the share is to be given up. The consumer commits what was processed, forgets its partitions, and calls
               `release`; only then is the next join sent. A void share (fenced, or forgotten by the broker) waits for nobody
    share      set here: the newest share. The consumer takes it with `take` when it comes back for records
    release    called by the consumer, see above

What this survives: a lost connection (the member comes back under its id), a restart of the broker or another coordinator of its
cluster (it joins as a new one), and an application that is slow to come back: the others go on without it, and it joins again when
it notices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from braidmq.base.errors import BraidError
from braidmq.base.limits import REBALANCE_SECONDS_MAX
from braidmq.client._backend import asyncio as backend
from braidmq.client.faults import lost_membership, passes
from braidmq.client.settings import ClientSettings
from braidmq.client.tracing import log
from braidmq.wire import flymq

from .asking import expect
from .connection import Connection, encode
from .dialer import Dialer

T = TypeVar("T")

HEARTBEAT_SECONDS_MAX: Final = 1.0
"""It is also how late a member notices that the group divides anew, and how long the others wait for it."""
HEARTBEATS_A_SESSION: Final = 3
LEAVE_SECONDS_MAX: Final = 2.0
"""How long saying goodbye may take; without it the others wait for the session to end."""


class Membership:
    def __init__(
        self,
        dialer: Dialer,
        settings: ClientSettings,
        group: str,
        topics: Sequence[str],
        tell: Callable[[BraidError | None], None],
    ) -> None:
        self.recalled = False
        self._dialer = dialer
        self._settings = settings
        self._group = group
        self._topics = tuple(topics)
        self._tell = tell
        """Wakes the application; with a fault it hears of that too."""
        self._member = ""
        self._generation = 0
        self._share: flymq.GroupAssignment | None = None
        self._released = False
        self._void = False
        self._heartbeat_s = min(HEARTBEAT_SECONDS_MAX, settings.session_timeout_s / HEARTBEATS_A_SESSION)
        self._wake = backend.Signal()
        self._stop = backend.Signal()
        self._connection: Connection | None = None
        self._task: backend.Task | None = None

    # --- for the consumer

    async def join(self) -> flymq.GroupAssignment:
        """The first share. Raises UNKNOWN_OPCODE with a server that divides nothing."""
        share = await self._first_share()
        self._share = None
        self._task = backend.spawn(self._run, "braidmq group member")
        return share

    async def _first_share(self) -> flymq.GroupAssignment:
        deadline_s = time.monotonic() + self._settings.timeout_s
        backoff = self._dialer.backoff()
        while True:
            try:
                return await self._join()
            except BraidError as fault:
                pause_s = min(backoff.next(), deadline_s - time.monotonic())
                passing = fault.code == "CONNECTION_LOST" or passes(fault) or lost_membership(fault)
                if not passing or pause_s <= 0:
                    raise
            await self._disconnect()
            await backend.sleep(pause_s)

    def take(self) -> flymq.GroupAssignment | None:
        """The share that a new division brought, once."""
        share, self._share = self._share, None
        if share is not None:
            self.recalled = False
        return share

    def release(self) -> None:
        """The consumer has given its partitions up."""
        self._released = True
        self._wake.set()

    def lost(self, generation: int) -> None:
        """The broker refused something of this generation: its share is void."""
        if generation == self._generation:
            self._void = True
            self.recalled = True
            self._wake.set()
            self._tell(None)

    async def leave(self, join_seconds_max: float) -> None:
        """End the membership, so that the others get its partitions at once."""
        self._stop.set()
        self._wake.set()
        waiting = self._connection if self._released or self._void else None
        if waiting is not None:
            # A join that waits for the others is taken back by closing its connection.
            waiting.abort()
        if self._task is not None:
            await self._task.join(join_seconds_max)
        try:
            connection = self._connection
            if connection is not None and not connection.broken and self._member:
                await connection.call([encode(flymq.GroupLeave(self._group, self._member))], LEAVE_SECONDS_MAX)
        except BraidError as fault:
            log.info("member %s of group %s left without a word: %s", self._member, self._group, fault)
        await self._disconnect()

    # --- in the background

    async def _run(self) -> None:
        try:
            await self._live()
        except Exception as fault:
            # A bug of ours must not leave the application reading partitions that are no longer its own.
            self._tell(BraidError("INTERNAL", reason=repr(fault)))
            raise

    async def _live(self) -> None:
        backoff = self._dialer.backoff()
        while not self._stop.is_set():
            await self._wake.wait(self._heartbeat_s)
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                if self.recalled and (self._released or self._void):
                    await self._join()
                    self._tell(None)
                else:
                    await self._beat()
                backoff.reset()
            except BraidError as fault:
                if self._stop.is_set():
                    return
                if fault.code in ("CONNECTION_LOST", "TIMED_OUT"):
                    log.info("member %s of group %s lost its connection and comes back: %s", self._member, self._group, fault)
                    await self._disconnect()
                elif passes(fault):
                    log.info("member %s of group %s waits for a coordinator: %s", self._member, self._group, fault)
                elif not lost_membership(fault):
                    # The application hears of it, and it is tried again.
                    self._tell(fault)
                await self._stop.wait(backoff.next())
                self._wake.set()

    async def _beat(self) -> None:
        request = flymq.GroupHeartbeat(self._group, self._member, self._generation)
        try:
            # An answer that takes longer than a session is none.
            timeout_s = min(self._settings.timeout_s, self._settings.session_timeout_s)
            answer = await self._ask(request, flymq.HeartbeatReply, timeout_s)
        except BraidError as fault:
            if not lost_membership(fault):
                raise
            log.info("group %s goes on without this member, which joins again: %s", self._group, fault)
            self._void = True
            self._wake.set()
        else:
            if not answer.rebalance:
                return
        if not self.recalled:
            self._released = False
            self.recalled = True
            self._tell(None)

    async def _join(self) -> flymq.GroupAssignment:
        request = flymq.GroupJoin(
            self._group, self._member, self._topics, self._settings.assignment, round(self._settings.session_timeout_s * 1000)
        )
        # The broker answers when the others have come, or when it waits for them no longer.
        share = await self._ask(request, flymq.GroupAssignment, self._settings.timeout_s + REBALANCE_SECONDS_MAX)
        self._member, self._generation = share.member, share.generation
        self._released = self._void = False
        self._share = share
        return share

    async def _ask(self, request: flymq.Request, kind: type[T], timeout_s: float) -> T:
        connection = self._connection
        if connection is None or connection.broken:
            connection = self._connection = await self._dialer.dial(self._settings.timeout_s, self._stop)
        return expect(request, (await connection.call([encode(request)], timeout_s))[0], kind)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
