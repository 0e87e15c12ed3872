"""Calls of etcd's JSON gateway: several endpoints, a login, and what an error means.

A request that surely was not carried out is tried at the next endpoint, as long as there is time. One that may have been
carried out is tried again only when doing it twice is the same as doing it once; otherwise the caller gets `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from braidmq.base import limits
from braidmq.base.clock import Clock
from braidmq.base.errors import BraidError
from braidmq.cluster.etcd_http import Broken, Endpoint, NotSent

_PAUSE_S: Final = 0.05
"""Between two rounds through the endpoints."""
_LOGIN_AGAIN: Final = ("invalid auth token", "user name is empty", "revision of auth store is old")
_NOT_DONE: Final = ("not supported for learner", "too many requests", "not capable", "no leader")
"""Etcd says so before it looks at a request."""
NOT_FOUND: Final = 5
OUT_OF_RANGE: Final = 11
_TRY_AGAIN: Final = {1, 2, 4, 10, 13, 14}
"""Codes of gRPC that say nothing about what became of a request."""


class OutcomeUnknown(Exception):
    """The request was carried out, or was not, or will be."""


class Refused(Exception):
    """Etcd understood the request, and did not carry it out."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class EtcdClient:
    def __init__(
        self, endpoints: Sequence[str], clock: Clock, tls: ssl.SSLContext | None = None, user: str = "", password: str = "",
        timeout_s: float = 3.0,
    ) -> None:
        assert endpoints, "etcd is somewhere"
        self._clock = clock
        self._tls = tls
        self._endpoints = [Endpoint(url, tls) for url in endpoints]
        self._current = 0
        self._user = user
        self._password = password
        self._token = ""
        self._login = asyncio.Lock()
        self.timeout_s = timeout_s

    @property
    def endpoints(self) -> list[str]:
        return [endpoint.url for endpoint in self._endpoints]

    def use_endpoints(self, urls: Sequence[str]) -> None:
        """Ask these from now on, the first of them first. Connections to those that stay are kept."""
        known = {endpoint.url: endpoint for endpoint in self._endpoints}
        self._endpoints = [known.pop(url) if url in known else Endpoint(url, self._tls) for url in dict.fromkeys(urls)]
        self._current = 0
        for endpoint in known.values():
            endpoint.close()

    def close(self) -> None:
        for endpoint in self._endpoints:
            endpoint.close()

    # --- calls

    async def call(self, path: str, body: dict[str, Any], *, repeatable: bool, timeout_s: float | None = None) -> dict[str, Any]:
        """The answer. Raises OutcomeUnknown where it is not `repeatable`, Refused, or QUORUM_UNAVAILABLE."""
        deadline = self._clock.monotonic() + (timeout_s or self.timeout_s)
        reason = "there was no time to ask"
        data = json.dumps(body).encode()
        rounds = 0
        while (left_s := deadline - self._clock.monotonic()) > 0:
            rounds += 1
            endpoint = self._endpoints[self._current % len(self._endpoints)]
            # One endpoint that hangs must leave time for another, where another may be asked.
            patience_s = min(left_s, max(left_s / len(self._endpoints), 0.2)) if repeatable else left_s
            try:
                token = self._token
                status, answer = await endpoint.post(path, data, self._headers(), patience_s)
            except NotSent as fault:
                reason = f"{endpoint.url}: {fault}"
            except Broken as fault:
                reason = f"{endpoint.url}: {fault}"
                if not repeatable:
                    self._current += 1
                    raise OutcomeUnknown(reason) from None
            else:
                if status == 200:
                    return _parsed(answer.splitlines()[0] if answer else b"{}")
                code, message = _fault(answer, status)
                reason = f"{endpoint.url}: {message}"
                if self._user and any(text in message for text in _LOGIN_AGAIN):
                    await self._log_in(token, left_s)
                    continue
                if not any(text in message for text in _NOT_DONE):
                    if code not in _TRY_AGAIN:
                        raise Refused(code, message)
                    if not repeatable:
                        self._current += 1
                        raise OutcomeUnknown(reason)
            self._current += 1
            if rounds % len(self._endpoints) == 0:
                await asyncio.sleep(_PAUSE_S)
        raise BraidError("QUORUM_UNAVAILABLE", reason=reason)

    async def versions(self) -> dict[str, str]:
        """What each endpoint runs, by its URL; those that do not answer are left out."""
        found = {}
        for endpoint in self._endpoints:
            try:
                status, answer = await endpoint.post("/v3/maintenance/status", b"{}", self._headers(), self.timeout_s)
            except (NotSent, Broken):
                continue
            version = _parsed(answer).get("version") if status == 200 else None
            if isinstance(version, str):
                found[endpoint.url] = version
        return found

    async def stream(self, path: str, body: dict[str, Any], silence_s: float) -> AsyncIterator[dict[str, Any]]:
        """Answers one by one, from one endpoint. Raises Refused, or QUORUM_UNAVAILABLE when it breaks or is silent for too long."""
        endpoint = self._endpoints[self._current % len(self._endpoints)]
        token = self._token
        line = bytearray()
        try:
            pieces = endpoint.stream(path, json.dumps(body).encode(), self._headers(), self.timeout_s, silence_s)
            async for status, piece in pieces:
                line += piece
                if len(line) > limits.QUORUM_ANSWER_BYTES_MAX:
                    raise Broken("an answer without an end")
                while (end := line.find(b"\n")) >= 0:
                    answer = _parsed(bytes(line[:end]))
                    del line[: end + 1]
                    if status != 200 or "error" in answer:
                        await self._refused(answer, status, token)
                    yield answer
            raise Broken("it ended")
        except (NotSent, Broken) as fault:
            self._current += 1
            raise BraidError("QUORUM_UNAVAILABLE", reason=f"{endpoint.url}: {fault}") from None

    async def _refused(self, answer: dict[str, Any], status: int, token: str) -> None:
        code, message = _fault(json.dumps(answer).encode(), status)
        if self._user and any(text in message for text in _LOGIN_AGAIN):
            await self._log_in(token, self.timeout_s)
            raise NotSent("the login had run out")
        if code in _TRY_AGAIN or any(text in message for text in _NOT_DONE):
            raise Broken(message)
        raise Refused(code, message)

    # --- who we are

    def _headers(self) -> dict[str, str]:
        # A member that has lost the majority has to say so, rather than let a watch wait for ever.
        headers = {"Content-Type": "application/json", "Grpc-Metadata-hasleader": "true"}
        if self._token:
            headers["Authorization"] = self._token
        return headers

    async def _log_in(self, stale: str, timeout_s: float) -> None:
        async with self._login:
            if self._token != stale:
                return
            self._token = ""
            body = json.dumps({"name": self._user, "password": self._password}).encode()
            endpoint = self._endpoints[self._current % len(self._endpoints)]
            try:
                status, answer = await endpoint.post("/v3/auth/authenticate", body, self._headers(), timeout_s)
            except (NotSent, Broken) as fault:
                raise BraidError("QUORUM_UNAVAILABLE", reason=f"{endpoint.url}: {fault}") from None
            if status != 200:
                raise BraidError("QUORUM_UNAVAILABLE", reason=f"{endpoint.url}: {_fault(answer, status)[1]}")
            self._token = str(_parsed(answer).get("token", ""))


def _parsed(answer: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(answer)
    except ValueError:
        raise BraidError("QUORUM_UNAVAILABLE", reason=f"etcd answered {answer[:80]!r}") from None
    if not isinstance(parsed, dict):
        raise BraidError("QUORUM_UNAVAILABLE", reason=f"etcd answered {answer[:80]!r}")
    return parsed


def _fault(answer: bytes, status: int) -> tuple[int, str]:
    """Code of gRPC and message of an error; it is told in slightly different forms."""
    try:
        parsed = json.loads(answer)
    except ValueError:
        parsed = {}
    if isinstance(parsed, dict) and isinstance(parsed.get("error"), dict):
        parsed = parsed["error"]
    if not isinstance(parsed, dict):
        parsed = {}
    code = parsed.get("code", parsed.get("grpc_code", 2))
    message = parsed.get("message") or parsed.get("error") or f"HTTP status {status}"
    return (code if isinstance(code, int) else 2), str(message)
