"""A BlipMQ port: closes who is silent or takes nothing, and stops only when everybody was given what is owed."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Final

from braidmq.base.config_listen import Listen
from braidmq.base.config_settings import Config
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.server.blipmq_service import service_of
from braidmq.server.blipmq_session import BlipMQSession
from braidmq.server.listener import ConnectionCount, Listener

_FLUSH_S_MAX: Final = 2.0
"""How long a connection that ends may take for its last bytes."""


class BlipMQListener(Listener[BlipMQSession]):
    logger = logging.getLogger("braidmq.blipmq")

    def __init__(
        self, broker: Broker, listen: Listen, count: ConnectionCount, config: Config, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(broker, listen, count, config, tls)
        self.service = service_of(broker, config)
        self.loop_time = asyncio.get_running_loop().time
        for timeout_s in (2 * config.blipmq_keepalive_s, config.blipmq_write_stall_s, config.blipmq_auth_timeout_s):
            self.sweep_within(timeout_s)

    async def start(self) -> str:
        self.service.started()
        return await super().start()

    def make_session(self) -> BlipMQSession:
        return BlipMQSession(self)

    def sweep(self) -> None:
        for session in list(self.sessions):
            if session.closing:
                self._end_of(session)
            elif not self._stalled(session):
                self._silent(session)

    def _end_of(self, session: BlipMQSession) -> None:
        session.closing_since = session.closing_since or self.now
        if self.now - session.closing_since > _FLUSH_S_MAX:
            session.abort()

    def _stalled(self, session: BlipMQSession) -> bool:
        """Close a connection that takes nothing of what it is sent."""
        unsent, before = session.unsent, session.unsent_before
        if not before or unsent < before:
            session.stalled_since = self.now
        session.unsent_before = unsent
        if unsent and self.now - session.stalled_since > self.config.blipmq_write_stall_s:
            self.logger.info("closing %s: it takes nothing of %d bytes", session.address, unsent)
            session.abort()
            return True
        return False

    def _silent(self, session: BlipMQSession) -> None:
        silent_s = self.now - session.last_frame_at
        if not session.known and session.idle and self.now - session.since > self.config.blipmq_auth_timeout_s:
            self.logger.info("closing %s: it did not log in", session.address)
            session.close_when_idle()
        elif session.keepalive_s and silent_s > 2 * session.keepalive_s and session.idle and not session.blocked:
            self.logger.info("closing %s: silent for %g s", session.address, silent_s)
            session.answer(session.error_bytes(BraidError("KEEPALIVE_TIMEOUT", seconds=2 * session.keepalive_s)))
            session.close_when_idle()

    async def stopped(self, timeout_s: float) -> None:
        await super().stopped(self.config.blipmq_drain_timeout_s)
        await self.service.stopped()
