"""An fq port: its clients, and the links to other brokers.

A connection has some seconds to say what it is; after that silence is no fault, since consumers have nothing to say.
"""

from __future__ import annotations

import itertools
import ssl
from typing import Final

from braidmq.base import limits
from braidmq.base.config_listen import Listen
from braidmq.base.config_settings import Config
from braidmq.broker.broker import Broker
from braidmq.server.fq_client import Clients
from braidmq.server.fq_command import CommandStream
from braidmq.server.fq_data import DataStream
from braidmq.server.fq_http import HttpStream
from braidmq.server.fq_session import FqSession, Stream, logger
from braidmq.server.fq_upstream import Upstreams
from braidmq.server.listener import ConnectionCount, Listener
from braidmq.wire.fq.modes import Mode, Opening

_LANES: Final = itertools.count()
"""Publishers of all ports are spread over the partitions."""


class FqListener(Listener[FqSession]):
    logger = logger

    def __init__(
        self, broker: Broker, listen: Listen, count: ConnectionCount, config: Config, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(broker, listen, count, config, tls)
        self.node = config.fq_node
        """This broker's name among fq brokers."""
        self._upstreams: Upstreams | None = None
        self.clients = Clients(config.fq_key_grace_s)
        self.handshake_s = limits.FQ_HANDSHAKE_SECONDS_MAX
        self.sweep_within(self.handshake_s)

    async def start(self) -> str:
        config = self.config
        first = self.broker.fq.open(self.node, config.fq_consumers_max)
        address = await super().start()
        if first:
            # However many ports there are, each link is made once.
            lane, most = self.next_lane(), config.fq_payload_bytes_max
            self._upstreams = Upstreams(self.broker, config.fq_upstreams, self.node, lane, most, config.tls_ca_file)
        return address

    def next_lane(self) -> int:
        """For a publisher: the number that decides about its partitions."""
        return next(_LANES)

    def make_session(self) -> FqSession:
        return FqSession(self)

    def stream_for(self, session: FqSession, opening: Opening) -> Stream | None:
        """What a connection that began like this does; None where it is closed without a word."""
        match opening.mode:
            case Mode.COMMAND:
                return CommandStream(session)
            case Mode.HTTP if self.config.fq_http:
                return HttpStream(session)
            case Mode.DATA | Mode.PEER | Mode.OLD_PEER:
                client = self.clients.get(opening.key)
                if client is not None and client.data is None:
                    return DataStream(session, client, opening)
                logger.info("%s: %s", session.address, "an unknown key" if client is None else "a second data connection")
            case other:
                logger.info("%s: %s is not served here", session.address, other.value)
        return None

    def sweep(self) -> None:
        late = self.now - self.handshake_s
        for session in [s for s in self.sessions if s.since < late and not s.established]:
            logger.info("closing %s: it did not say in time what it wants", session.address)
            session.abort()

    def stop_accepting(self) -> None:
        super().stop_accepting()
        self.clients.close()

    async def drain(self, timeout_s: float) -> None:
        if self._upstreams is not None:
            await self._upstreams.stop()
        await super().drain(timeout_s)
