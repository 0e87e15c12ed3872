"""HTTP on an fq port: messages in by `/submit`, figures by `/stats.json`, checkpoints, and the files of a web page.

Where clients have to log in, HTTP clients do so with name and password (Basic). A message is accepted when it is durable and every
queue has looked at it, so the answer says what became of it. Whoever asks for figures or moves queues administers the broker.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import itertools
import json
import os
import secrets
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.fq_checkpoints import add_checkpoint, remove_checkpoint, reset_to_checkpoint
from braidmq.security.authorizer import ANONYMOUS, Principal
from braidmq.security.roles import Permission
from braidmq.server.fq_intake import Incoming, Intake
from braidmq.server.fq_session import FqSession, Stream, logger
from braidmq.server.fq_stats import stats_document
from braidmq.wire.fq.http import (
    NOT_FOUND,
    HttpReader,
    HttpRequest,
    fault_reply,
    file_reply,
    json_reply,
    read_submission,
    submit_refusal,
    submit_reply,
)
from braidmq.wire.fq.messages import encode_tail
from braidmq.wire.fq.naming import exchange_topic

_NUMBERS: Final = itertools.count(1)
_SIGN_OF_LIFE_BYTES: Final = 64 * limits.KIB
"""A request that brings so much since the last look is on its way, however long it takes."""
_INDEX: Final = "index.html"

CHECKPOINTS: Final[dict[str, Callable[[Broker, HttpRequest], Awaitable[None]]]] = {
    "/add_checkpoint": lambda broker, request: add_checkpoint(
        broker, _asked(request, "qname").encode(), _asked(request, "cpname"), _asked(request, "chkptid")
    ),
    "/remove_checkpoint": lambda broker, request: remove_checkpoint(
        broker, _asked(request, "qname").encode(), _asked(request, "cpname")
    ),
    "/reset_to_checkpoint": lambda broker, request: reset_to_checkpoint(
        broker, _asked(request, "qname").encode(), _asked(request, "cpname")
    ),
}


class HttpStream(Stream):
    __slots__ = ("_came", "_intake", "_known", "_principal", "_reader")

    def __init__(self, session: FqSession) -> None:
        super().__init__(session)
        self._reader = HttpReader(session.listener.config.fq_payload_bytes_max)
        self._came = 0
        self._known = b""
        """The credentials that were checked last."""
        self._principal = session.principal
        self._intake: Intake | None = None

    @property
    def established(self) -> bool:
        """While nothing is asked, the connection is one that has to say something in time."""
        return not self.session.idle

    def error_bytes(self, error: BraidError) -> bytes:
        return fault_reply(error)

    def take(self, data: memoryview, position: int, stop: int) -> int:
        session = self.session
        self._came += stop - position
        if self._came >= _SIGN_OF_LIFE_BYTES:
            self._came, session.since = 0, session.listener.now
        if session.metered:
            session.charge(stop - position, 0)
        try:
            found = self._reader.receive(data[position:stop])
        except BraidError as fault:
            self._end(fault)
            return stop
        requests = [item for item in found if isinstance(item, HttpRequest)]
        if requests:
            session.run(self._serve(requests))
        for item in found:
            if isinstance(item, bytes):
                session.write([item])
        return stop

    def _end(self, fault: BraidError) -> None:
        logger.info("%s: %s", self.session.address, fault)
        self.session.answer(fault_reply(fault))
        self.session.close_when_idle()

    async def _serve(self, requests: list[HttpRequest]) -> list[bytes]:
        session = self.session
        for request in requests:
            if session.metered:
                session.charge(0, 1)
            ended = session.measured("submit" if request.path == "/submit" else "http")
            try:
                answer, ends = await self._answer(request)
            except BraidError as error:
                answer, ends = _refusal(error), True
            session.write([answer])
            ended()
            if ends or not request.keep_alive:
                session.close_when_idle()
                return []
        session.since = session.listener.now
        if self._reader.failure is not None:
            self._end(self._reader.failure)
        return []

    async def _answer(self, request: HttpRequest) -> tuple[bytes, bool]:
        """What to answer, and whether the connection ends with it."""
        if request.path == "/submit" and request.method in ("POST", "PUT"):
            return await self._submit(request), False
        broker = self.session.broker
        if request.path == "/stats.json":
            await self._administers(request)
            return json_reply(request, stats_document(broker)), True
        if request.path in CHECKPOINTS:
            await self._administers(request)
            try:
                await CHECKPOINTS[request.path](broker, request)
            except BraidError as error:
                return json_reply(request, {"status": "error", "message": error.text}), True
            return json_reply(request, {"status": "success", "message": ""}), True
        content = await self._file(request.path)
        if content is None:
            return NOT_FOUND, True
        return file_reply(request, request.path if request.path != "/" else _INDEX, content), False

    # --- messages

    async def _submit(self, request: HttpRequest) -> bytes:
        session = self.session
        try:
            submission = read_submission(request)
        except BraidError as error:
            return submit_refusal(request, error.text)
        principal = await self._who(request)
        self._check(principal, Permission.WRITE, exchange_topic(submission.exchange))
        if self._intake is None or self._intake.principal != principal:
            self._intake = Intake(session.broker, principal, session.ip, session.listener.next_lane())
        number = next(_NUMBERS) & 0xFFFFFFFF
        message = Incoming(
            submission.exchange, submission.route, number.to_bytes(4, "little") + _id_tail(), submission.payload,
            encode_tail(submission.sender, (session.listener.node, session.hop)),
        )  # fmt: skip
        traced = None if session.broker.commit.tracing is None else session.traced_produce()
        code = "INTERNAL"
        try:
            claim = await self._intake.submit(message)
            code = "" if claim.error is None else claim.error.code
        except BraidError as error:
            code = error.code
            raise
        finally:
            if traced is not None:
                traced.end(code, records=1)
        if claim.error is not None:
            return submit_refusal(request, claim.error.text)
        return submit_reply(request, claim.routed, claim.dropped, claim.no_route, 0 if claim.known else 1)

    # --- rights

    async def _who(self, request: HttpRequest) -> Principal:
        """Who asks: a user with a password, the one of a certificate, or nobody in particular."""
        session = self.session
        security = session.broker.security
        given = request.headers.get("authorization", b"")
        if not security.authorizer.enabled or not given:
            return session.principal
        if given != self._known:
            user, password = _basic(given)
            self._principal = ANONYMOUS
            self._principal = await security.accounts.authenticate(user, password, session.ip)
            self._known = given
        return self._principal

    async def _administers(self, request: HttpRequest) -> None:
        if self.session.broker.security.authorizer.enabled:
            self._check(await self._who(request), Permission.ADMIN, None)

    def _check(self, principal: Principal, permission: Permission, topic: str | None) -> None:
        security = self.session.broker.security
        refused = security.authorizer.decide(principal, permission, topic)
        if refused is not None:
            resource = topic or "fq"
            security.note("access.denied", principal, self.session.ip, resource, "http", "denied", reason=refused.text)
            raise refused

    # --- files

    async def _file(self, path: str) -> bytes | None:
        root = self.session.listener.config.fq_web_root
        if root is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(None, _read_below, root, path)


@cache
def _id_tail() -> bytes:
    """Tells the ids of this process from those of the one before. Made at need, so that processes forked from one differ too."""
    return secrets.token_bytes(12)


def _read_below(root: str, path: str) -> bytes | None:
    """The content of a file below `root`; None where there is none, or where the path leads elsewhere."""
    root = os.path.realpath(root)
    place = os.path.realpath(os.path.join(root, path.strip("/") or _INDEX)) if "\0" not in path else root
    if not place.startswith(root + os.sep) or not os.path.isfile(place):
        return None
    if os.path.getsize(place) > limits.FQ_WEB_FILE_BYTES_MAX:
        return None
    try:
        with open(place, "rb") as file:
            return file.read()
    except OSError as fault:
        logger.warning("%s cannot be read: %s", place, fault)
        return None


def _asked(request: HttpRequest, name: str) -> str:
    value = request.query.get(name)
    if not value:
        raise BraidError("INVALID_ARGUMENT", reason=f"{name} is missing")
    return value


def _basic(header: bytes) -> tuple[str, str]:
    """Name and password of an `Authorization` header."""
    scheme, _, encoded = header.partition(b" ")
    try:
        user, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise BraidError("INVALID_CREDENTIALS") from None
    if scheme.lower() != b"basic":
        raise BraidError("INVALID_CREDENTIALS")
    return user, password


def _refusal(error: BraidError) -> bytes:
    """The client may not, or has to log in first."""
    status = error.spec.http
    words = {401: "Unauthorized", 403: "Forbidden"}.get(status, "Error")
    body = b'{ "error": ' + json.dumps(error.text).encode() + b" }\n"
    ask = b'WWW-Authenticate: Basic realm="fq"\r\n' if status == 401 else b""
    head = f"HTTP/1.0 {status} {words}\r\nConnection: close\r\nContent-Length: {len(body)}\r\nContent-Type: application/json\r\n"
    return head.encode() + ask + b"\r\n" + body
