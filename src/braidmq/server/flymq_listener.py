"""A FlyMQ port: accepts connections, counts them, closes the silent ones, and stops in time."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import Final

from braidmq.base import limits
from braidmq.base.config_listen import Listen
from braidmq.base.config_settings import TlsIdentity
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.server.flymq_session import FlyMQSession
from braidmq.wire import flymq
from braidmq.wire.flymq import Dialect

_SWEEPS_PER_TIMEOUT: Final = 10
_KEEPALIVE_S: Final = 30

logger = logging.getLogger("braidmq.flymq")


class ConnectionCount:
    """Connections of all listeners together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0


class FlyMQListener:
    def __init__(
        self, broker: Broker, listen: Listen, count: ConnectionCount, idle_timeout_s: float, tls: ssl.SSLContext | None,
        tls_identity: TlsIdentity = "none",
    ) -> None:
        self.broker = broker
        self._listen = listen
        self._count = count
        self._idle_timeout_s = idle_timeout_s
        self._tls = tls
        self.tls_identity = tls_identity
        """Which name of a client's certificate is its user."""
        self.detects_dialect = listen.dialect == "auto"
        self.first_dialect = Dialect.V126 if listen.dialect == "v126" else Dialect.DOCUMENTED
        self.sessions: set[FlyMQSession] = set()
        self.stopping = False
        self.now = 0.0
        """Loop time of the last sweep: fine enough for a time-out, and free to read for every frame."""
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._stopped: asyncio.Future[None] | None = None

    async def start(self) -> str:
        """Listen; returns the address."""
        self._server = await self._loop.create_server(
            lambda: FlyMQSession(self), self._listen.host, self._listen.port, ssl=self._tls, backlog=limits.LISTEN_BACKLOG,
        )
        self._sweep()
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    # --- what sessions report

    def connected(self, session: FlyMQSession, transport: asyncio.Transport) -> None:
        count = self._count
        count.open += 1
        self.sessions.add(session)
        session.last_frame_at = self.now
        if count.open > count.most:
            logger.warning("refused %s: %d connections are open", session.address, count.most)
            transport.write(flymq.encode_error(BraidError("CONNECTION_LIMIT", limit=count.most), session.dialect))
            session.close_when_idle()
            return
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)

    def disconnected(self, session: FlyMQSession) -> None:
        self._count.open -= 1
        self.sessions.discard(session)
        if self._stopped is not None and not self.sessions and not self._stopped.done():
            self._stopped.set_result(None)

    # --- silent connections

    def _sweep(self) -> None:
        self.now = self._loop.time()
        interval = 1.0
        if self._idle_timeout_s > 0:
            interval = min(1.0, self._idle_timeout_s / _SWEEPS_PER_TIMEOUT)
            oldest = self.now - self._idle_timeout_s
            for session in [s for s in self.sessions if s.last_frame_at < oldest and s.idle and not s.slowed]:
                if not session.closing:
                    logger.info("closing %s: silent for %g s", session.address, self._idle_timeout_s)
                    session.close_when_idle()
                elif session.last_frame_at < oldest - self._idle_timeout_s:
                    # It does not take its last answers either, and would keep them for ever.
                    session.abort()
        self._sweeper = self._loop.call_later(interval, self._sweep)

    # --- stopping

    def stop_accepting(self) -> None:
        self.stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for session in list(self.sessions):
            session.close_when_idle()

    async def stopped(self, timeout_s: float) -> None:
        """Wait for running requests, then close what is left."""
        if self.sessions:
            self._stopped = self._loop.create_future()
            await asyncio.wait([self._stopped], timeout=timeout_s)
        for session in list(self.sessions):
            session.abort()
