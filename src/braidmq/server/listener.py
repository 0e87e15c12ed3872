"""A port: accepts connections, counts them, closes the silent ones, and stops in time.

A protocol is a subclass that makes the sessions (`make_session`) and knows which of them are silent for too long (`sweep`). One
that owes its clients more than answers when the broker stops waits for that in `drain`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from abc import ABC, abstractmethod
from typing import ClassVar, Final, Generic, TypeVar

from braidmq.base import limits
from braidmq.base.config_listen import Listen
from braidmq.base.config_settings import Config
from braidmq.base.errors import BraidError
from braidmq.base.figures import INTAKE, Histogram
from braidmq.broker.broker import Broker
from braidmq.server.session import Session

_KEEPALIVE_S: Final = 30
_SWEEPS_PER_TIMEOUT: Final = 10
_SWEEP_S_MAX: Final = 1.0
_LATE_SWEEPS_MAX: Final = 2
"""Sweeping intervals that one sweep may count for, however late it comes."""

S = TypeVar("S", bound=Session)


class ConnectionCount:
    """Connections of all listeners together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0


class Listener(ABC, Generic[S]):
    logger: ClassVar[logging.Logger]
    """Where a protocol's lines go."""

    def __init__(
        self, broker: Broker, listen: Listen, count: ConnectionCount, config: Config, tls: ssl.SSLContext | None
    ) -> None:
        self.broker = broker
        self.config = config
        self._listen = listen
        self._count = count
        self._tls = tls
        self.tls_identity = config.tls_identity
        """Which name of a client's certificate is its user."""
        self.scheme = listen.scheme
        self.received_bytes = self.sent_bytes = self.accepted = 0
        """Since the port was opened, of connections that are gone, too."""
        intake = INTAKE[listen.protocol]
        self.unanswered_s, self.produced_s = self.measure(intake[0]), self.measure(intake[-1])
        """How long records without and with an answer waited for the disk; those that wait together count once."""
        self.sessions: set[S] = set()
        # One for each port, not for the process: brokers in different threads would overwrite what the other one has received.
        self.received: Final = memoryview(bytearray(limits.RECEIVE_BUFFER_BYTES))
        """What every plain connection receives into."""
        self.stopping = False
        self.now = 0.0
        """Seconds for which the broker was there to listen, as of the last sweep: fine enough for a time-out, and free to read
        for every frame. While the broker itself is held up it stands nearly still, so that nobody is blamed for a silence in
        which nothing was read."""
        self._swept_at = 0.0
        """Loop time of the last sweep."""
        self.sweep_interval_s = _SWEEP_S_MAX
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._stopped: asyncio.Future[None] | None = None

    @property
    def protocol(self) -> str:
        return self._listen.protocol

    def measure(self, operation: str) -> Histogram:
        """Where the latency of an operation is counted."""
        return self.broker.figures.request(self._listen.protocol, operation)

    @property
    def encrypted(self) -> bool:
        return self._tls is not None

    # --- what a protocol supplies

    @abstractmethod
    def make_session(self) -> S:
        """The protocol's side of a new connection."""

    @abstractmethod
    def sweep(self) -> None:
        """Close the connections that are silent for too long. Called every `sweep_interval_s`, with `now` set anew."""

    async def drain(self, timeout_s: float) -> None:
        """Wait until every connection is closed, which its session does as soon as it owes nothing (`Session.leave`)."""
        if self.sessions:
            self._stopped = self._loop.create_future()
            await asyncio.wait([self._stopped], timeout=timeout_s)

    # --- accepting

    async def start(self) -> str:
        """Listen; returns the address."""
        self._server = await self._loop.create_server(
            self.make_session, self._listen.host, self._listen.port, ssl=self._tls, backlog=limits.LISTEN_BACKLOG
        )
        self._swept_at = self._loop.time()
        self._sweep()
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def connected(self, session: S) -> None:
        """A session has its connection."""
        count = self._count
        count.open += 1
        self.accepted += 1
        self.sessions.add(session)
        session.last_frame_at = self.now
        if count.open > count.most:
            self.logger.warning("refused %s: %d connections are open", session.address, count.most)
            session.write([session.error_bytes(BraidError("CONNECTION_LIMIT", limit=count.most))])
            session.close_when_idle()
            return
        raw = session.transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)

    def disconnected(self, session: S) -> None:
        """A session has lost its connection."""
        self._count.open -= 1
        self.sessions.discard(session)
        if self._stopped is not None and not self.sessions and not self._stopped.done():
            self._stopped.set_result(None)

    # --- silent connections

    def sweep_within(self, timeout_s: float) -> None:
        """Sweep often enough to notice a silence of `timeout_s` in time."""
        if timeout_s > 0:
            self.sweep_interval_s = min(self.sweep_interval_s, timeout_s / _SWEEPS_PER_TIMEOUT)

    def _sweep(self) -> None:
        swept_at, self._swept_at = self._swept_at, self._loop.time()
        self.now += min(self._swept_at - swept_at, _LATE_SWEEPS_MAX * self.sweep_interval_s)
        self.sweep()
        self._sweeper = self._loop.call_later(self.sweep_interval_s, self._sweep)

    def close_silent(self, timeout_s: float) -> None:
        """Close the connections on which nothing is under way and nothing came for so long."""
        oldest = self.now - timeout_s
        for session in [s for s in self.sessions if s.last_frame_at < oldest and s.idle and not s.slowed]:
            if not session.closing:
                self.logger.info("closing %s: silent for %g s", session.address, timeout_s)
                session.close_when_idle()
            elif session.last_frame_at < oldest - timeout_s:
                # It does not take its last answers either, and would keep them for ever.
                session.abort()

    # --- stopping

    def stop_accepting(self) -> None:
        self.stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for session in list(self.sessions):
            session.leave()

    async def stopped(self, timeout_s: float) -> None:
        """Wait for what is under way, then close what is left."""
        await self.drain(timeout_s)
        for session in list(self.sessions):
            session.abort()
