"""A FlyMQ port: which dialect its connections begin with, and when one is silent for too long."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from braidmq.base.config_listen import Listen
from braidmq.base.config_settings import Config
from braidmq.base.figures import Histogram
from braidmq.broker.broker import Broker
from braidmq.server.flymq_session import FlyMQSession, logger
from braidmq.server.listener import ConnectionCount, Listener
from braidmq.wire.flymq import Dialect, Op

if TYPE_CHECKING:
    from braidmq.server.forwarding import Forwarding

_NAMED: Final = frozenset(map(int, Op))


class FlyMQListener(Listener[FlyMQSession]):
    logger = logger

    def __init__(
        self, broker: Broker, listen: Listen, count: ConnectionCount, config: Config, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(broker, listen, count, config, tls)
        self.detects_dialect = listen.dialect == "auto"
        self.first_dialect = Dialect.V126 if listen.dialect == "v126" else Dialect.DOCUMENTED
        self.sweep_within(config.idle_timeout_s)
        self.forwarding: Forwarding | None = None
        """How requests get to another node of the cluster; None for a broker that runs alone."""
        self._latencies: dict[int, Histogram] = {}

    def latency(self, op: int) -> Histogram:
        """Where the latency of an operation is counted. What nobody knows counts together: a stranger makes up any number."""
        found = self._latencies.get(op)
        if found is None:
            name = Op(op).name.lower() if op in _NAMED else "unknown"
            found = self._latencies[op] = self.broker.figures.request("flymq", name)
        return found

    def make_session(self) -> FlyMQSession:
        return FlyMQSession(self)

    def sweep(self) -> None:
        if self.config.idle_timeout_s > 0:
            self.close_silent(self.config.idle_timeout_s)
