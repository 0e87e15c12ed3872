"""Finds a server that answers: the bootstrap addresses in turn, from the one that worked last, with pauses between rounds.

In a cluster the addresses of its other nodes are learned as they are heard of, so that whichever was named first may go.

With a user in the settings every connection logs in before anything else is sent on it. A refused login is no reason to try
another server: they share their users, and a wrong password would only be guessed more often.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.client._backend import asyncio as backend
from braidmq.client.addresses import Address
from braidmq.client.backoff import Backoff
from braidmq.client.faults import login_error
from braidmq.client.settings import ClientSettings
from braidmq.client.tls import client_context
from braidmq.client.tracing import log
from braidmq.wire.flymq import Auth, Authenticated

from .connection import Connection, decode, encode

SERVERS_MAX: Final = 64
"""So many addresses are tried in a round, those that were learned included."""


class Dialer:
    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._servers = settings.servers
        self._preferred = 0
        self._context: ssl.SSLContext | None = None
        if settings.wants_tls or any(server.tls for server in self._servers):
            self._context = settings.ssl_context or client_context(
                settings.tls_ca_file, settings.tls_cert_file, settings.tls_key_file
            )
        first = self._servers[0].tls
        self.speaks_tls = settings.wants_tls if first is None else first
        """Whether TLS is spoken to nodes that are learned of: as to the first that was named."""
        self.without_batches: set[Address] = set()
        """Servers known to take only the documented opcodes."""
        self._warned = False

    def learn(self, servers: Iterable[Address]) -> None:
        """Other nodes of the same cluster, to be tried when those that are known do not answer."""
        known = {server.place for server in self._servers}
        new = [server for server in servers if server.place not in known]
        if new:
            self._servers = (*self._servers, *new)[:SERVERS_MAX]

    def avoid(self, server: Address) -> None:
        """Let the next connection be to another server, where there is one."""
        if self._servers[self._preferred].place == server.place:
            self._preferred = (self._preferred + 1) % len(self._servers)

    def backoff(self) -> Backoff:
        return Backoff(self._settings.backoff_first_s, self._settings.backoff_most_s)

    async def dial(self, timeout_s: float, stop: backend.Signal | None = None) -> Connection:
        """A new connection, logged in. Raises UNREACHABLE when none could be made in the time, or once `stop` is set."""
        deadline_s = time.monotonic() + timeout_s
        backoff = self.backoff()
        pause = stop or backend.Signal()
        while True:
            reasons: list[str] = []
            distrusted = 0
            servers = self._servers
            for index in range(len(servers)):
                number = (self._preferred + index) % len(servers)
                server = servers[number]
                left_s = deadline_s - time.monotonic()
                try:
                    connection = await self._connect(server, min(self._settings.connect_timeout_s, max(0.01, left_s)))
                except BraidError as fault:
                    if fault.code not in ("CONNECTION_LOST", "TIMED_OUT"):
                        raise
                    reasons.append(f"{server}: {fault.text}")
                except TimeoutError:
                    reasons.append(f"{server}: no answer in time")
                except OSError as fault:
                    reasons.append(f"{server}: {fault}")
                    distrusted += isinstance(fault, ssl.SSLCertVerificationError)
                else:
                    self._preferred = number
                    return connection
            delay_s = min(backoff.next(), deadline_s - time.monotonic())
            log.debug("no server answers (%s)", "; ".join(reasons))
            # A certificate does not become trustworthy by asking again.
            if delay_s <= 0 or distrusted == len(servers) or await pause.wait(delay_s):
                raise BraidError("UNREACHABLE", servers=", ".join(map(str, servers)), reason="; ".join(reasons))

    async def dial_to(self, server: Address, timeout_s: float) -> Connection:
        """A new connection to this one and no other, logged in. Raises UNREACHABLE at once when it does not answer."""
        try:
            return await self._connect(server, min(self._settings.connect_timeout_s, max(0.01, timeout_s)))
        except BraidError as fault:
            if fault.code not in ("CONNECTION_LOST", "TIMED_OUT"):
                raise
            reason = fault.text
        except TimeoutError:
            reason = "no answer in time"
        except OSError as fault:
            reason = str(fault)
        raise BraidError("UNREACHABLE", servers=server, reason=reason)

    async def _connect(self, server: Address, timeout_s: float) -> Connection:
        tls = self._settings.wants_tls if server.tls is None else server.tls
        name = self._settings.tls_server_name or server.host
        stream = await backend.Stream.connect(server.host, server.port, self._context if tls else None, name, timeout_s)
        log.debug("connected to %s%s", server, " with TLS" if tls else "")
        connection = Connection(stream, server, tls)
        if self._settings.username is not None:
            try:
                await self._log_in(connection, self._settings.username, self._settings.password or "", timeout_s)
            except BaseException:
                await connection.close()
                raise
        return connection

    async def _log_in(self, connection: Connection, user: str, password: str, timeout_s: float) -> None:
        if not connection.tls and not self._warned and not _is_local(connection.server.host):
            self._warned = True
            log.warning("the password goes to %s in the clear; use TLS", connection.server)
        request = Auth(user, password)
        answer = decode(request.op, (await connection.call([encode(request)], timeout_s))[0])
        if not isinstance(answer, Authenticated):
            raise BraidError("UNEXPECTED_REPLY", reason=f"{type(answer).__name__} to a login")
        if not answer.success:
            raise login_error(answer.error)


def _is_local(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
