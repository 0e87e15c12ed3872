"""A command connection: who the client is, what is bound to its queue, how it fares, and whether it lives.

Commands run one after the other and are answered in their order, each answer in one write. Whatever may take time (a password, a
journal) holds up the next command of this client and nothing else. A heartbeat may stand between two answers, never inside one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.broker.fq_queue import FqQueue
from braidmq.security.authorizer import ANONYMOUS, Principal
from braidmq.security.roles import Permission
from braidmq.server.fq_client import FqClient
from braidmq.server.fq_session import FqSession, Stream, logger
from braidmq.wire.fq.auth import Auth, QueueDetail, name_queue
from braidmq.wire.fq.commands import (
    REFUSED,
    STATUS_KEYS,
    AuthAccepted,
    Bind,
    Bound,
    Command,
    CommandReader,
    Heartbeat,
    HeartbeatRequest,
    StatusRequest,
    Unbind,
    Unbound,
    encode_error,
    encode_reply,
    encode_status,
)
from braidmq.wire.fq.messages import NO_SENDER
from braidmq.wire.fq.naming import exchange_topic

_HEARTBEAT: Final = encode_reply(Heartbeat())
_UNHEARD_MAX: Final = 3
"""Heartbeats in a row without a byte in between after which a client is given up."""
_BEAT_S_MIN: Final = 0.01
"""Nobody needs heartbeats more often."""


class CommandStream(Stream):
    __slots__ = ("_beat", "_interval_s", "_key", "_reader", "_unheard", "client")

    def __init__(self, session: FqSession) -> None:
        super().__init__(session)
        self._reader = CommandReader()
        self.client: FqClient | None = None
        self._key = b""
        self._interval_s = 0.0
        self._beat: asyncio.TimerHandle | None = None
        self._unheard = 0
        """Heartbeats sent since the client was last heard. They are counted rather than seconds: a broker that was held up for
        long has sent one, and reads what came meanwhile before the next."""

    @property
    def established(self) -> bool:
        return self.client is not None

    # --- commands

    def take(self, data: memoryview, position: int, stop: int) -> int:
        session = self.session
        self._unheard = 0
        while position < stop and not session.blocked:
            try:
                found = self._reader.first(data[position:stop])
            except BraidError as fault:
                self._refuse(fault)
                return stop
            if found is None:
                break
            command, size = found
            position += size
            if session.metered:
                session.charge(size, 1)
            if command is not None:
                self._run(command)
        return position

    def _refuse(self, fault: BraidError) -> None:
        """The peer broke the protocol."""
        logger.info("%s: %s", self.session.address, fault)
        if fault.code != "MALFORMED_FQ":
            self.session.answer(encode_error(fault))
        self.session.close_when_idle()

    def _run(self, command: Command) -> None:
        session = self.session
        match command:
            case Auth():
                session.run(self._authenticate(command), self._not_let_in, session.measured("auth"))
            case HeartbeatRequest():
                self._set_interval(command.interval_ms / 1000)
            case Bind():
                session.run(self._bind(command), self._not_bound, session.measured("bind"))
            case Unbind():
                session.run(self._unbind(command), self._not_unbound, session.measured("unbind"))
            case StatusRequest():
                ended = session.measured("status")
                session.answer(encode_status(self._status()))
                ended()

    # --- authentication

    async def _authenticate(self, auth: Auth) -> list[bytes]:
        session = self.session
        detail = auth.detail
        if b"backlog=" not in auth.queue:
            detail = dataclasses.replace(detail, backlog=session.listener.config.fq_backlog)
        detail = name_queue(detail, str(uuid.uuid4()))
        principal = await self._principal(auth)
        await session.broker.fq.take(detail)
        self._check_rights(principal, detail)
        # On a broker with logins nobody bears a name without the password.
        named = not session.broker.security.authorizer.enabled or not principal.anonymous
        client = FqClient(auth.user if named else NO_SENDER, principal, session.address, session.listener.next_lane())
        client.command = session
        client.queue = await session.broker.fq.attach(detail, client)
        self.client = client
        self._key = session.listener.clients.add(client)
        return [encode_reply(AuthAccepted(self._key)) + _HEARTBEAT]

    async def _principal(self, auth: Auth) -> Principal:
        session = self.session
        security = session.broker.security
        authorizer = security.authorizer
        if not authorizer.enabled or not session.principal.anonymous:
            # Everybody is welcome, or a certificate has told who it is.
            return session.principal
        if authorizer.allow_anonymous and not auth.password:
            return ANONYMOUS
        user, password = (raw.decode("utf-8", "replace") for raw in (auth.user, auth.password))
        principal = await security.accounts.authenticate(user, password, session.ip)
        session.logged_in(principal)
        return principal

    def _check_rights(self, principal: Principal, detail: QueueDetail) -> None:
        """Whoever joins a queue gets what is bound to it, and needs the right to read that."""
        session = self.session
        queue = session.broker.fq.get(detail.name)
        for exchange in [] if queue is None else dict.fromkeys(b.exchange for b in queue.bindings.values()):
            self._check_right(principal, exchange)

    def _check_right(self, principal: Principal, exchange: bytes) -> None:
        session = self.session
        security = session.broker.security
        topic = exchange_topic(exchange)
        refused = security.authorizer.decide(principal, Permission.READ, topic)
        if refused is not None:
            security.note("access.denied", principal, session.ip, topic, "bind", "denied", reason=refused.text)
            raise refused

    def _not_let_in(self, fault: Exception) -> bytes:
        error = self.session.plain_error(fault)
        logger.info("%s: %s", self.session.address, error)
        self.session.close_when_idle()
        return encode_error(error)

    # --- bindings

    @property
    def _queue(self) -> FqQueue:
        assert self.client is not None and self.client.queue is not None, "the first command is AUTH"
        return self.client.queue

    async def _bind(self, bind: Bind) -> list[bytes]:
        assert self.client is not None
        self._check_right(self.client.principal, bind.exchange)
        fq = self.session.broker.fq
        route_id = await fq.bind(self._queue, bind.exchange, bind.program, peer=bind.peer, permanent=bind.permanent)
        return [encode_reply(Bound(route_id))]

    def _not_bound(self, fault: Exception) -> bytes:
        error = self.session.plain_error(fault)
        logger.info("%s: bind refused: %s", self.session.address, error)
        return encode_reply(Bound(REFUSED))

    async def _unbind(self, unbind: Unbind) -> list[bytes]:
        done = await self.session.broker.fq.unbind(self._queue, unbind.route_id, unbind.exchange)
        return [encode_reply(Unbound(unbind.route_id if done else REFUSED))]

    def _not_unbound(self, fault: Exception) -> bytes:
        logger.error("%s: unbind failed: %s", self.session.address, self.session.plain_error(fault))
        return encode_reply(Unbound(REFUSED))

    # --- figures

    def _status(self) -> list[tuple[str, int]]:
        assert self.client is not None
        counters = self._queue.counters
        values = [(STATUS_KEYS[0], counters.dropped + counters.lost)]
        data = self.client.data
        if data is not None:
            values += [(key, getattr(data.intake.tally, key)) for key in STATUS_KEYS[1:]]
        return values

    # --- heartbeats

    def _set_interval(self, interval_s: float) -> None:
        self._stop_beating()
        self._interval_s = interval_s
        if interval_s:
            self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        """Send one, unless the client was silent for too many."""
        self._beat = None
        if not self.session.idle:
            # What it asked for last keeps it waiting, and its bytes unread.
            self._unheard = 0
        if self._unheard >= _UNHEARD_MAX:
            self._give_up()
            return
        self._unheard += 1
        if self.session.writable:
            self.session.push([_HEARTBEAT])
        loop = asyncio.get_running_loop()
        self._beat = loop.call_later(max(self._interval_s, _BEAT_S_MIN), self._send_heartbeat)

    def _give_up(self) -> None:
        fault = BraidError("CLIENT_SILENT")
        logger.info("%s: %s", self.session.address, fault)
        self.session.answer(encode_error(fault))
        self.session.close_when_idle()

    def _stop_beating(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    # --- the end

    def lost(self) -> None:
        self._stop_beating()
        client = self.client
        if client is None or client.queue is None:
            return
        queue, client.queue = client.queue, None
        if client.data is not None:
            client.data.stop_receiving()
        self.session.broker.fq.leave(queue, client)
        if not self.session.listener.stopping:
            self.session.listener.clients.leave(self._key)
