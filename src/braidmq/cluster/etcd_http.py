"""HTTP/1.1 to one endpoint of etcd's JSON gateway: as much of it as the gateway speaks, and no more.

Connections are kept and used again, as many as there are requests at a time. What matters to a caller is whether a request that
failed may have been heard: `NotSent` says that it was not, `Broken` that nobody knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from braidmq.base import limits

_HEAD_BYTES_MAX: Final = 64 * limits.KIB
_IDLE_CONNECTIONS_MAX: Final = 64
_KEEPALIVE_S: Final = 5


class NotSent(Exception):
    """The request did not reach the endpoint."""


class Broken(Exception):
    """The request may have reached the endpoint, and no whole answer came back."""


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._left: int | None = None
        """Bytes of the answer's body, None where it comes in chunks."""
        self.reusable = True

    @property
    def stale(self) -> bool:
        return self._writer.is_closing() or self._reader.at_eof()

    def close(self) -> None:
        # Nothing is waited for: a peer that hangs would keep us.
        self._writer.transport.abort()

    async def send(self, request: bytes) -> int:
        """Returns the status of the answer; its body is read next."""
        self._writer.write(request)
        await self._writer.drain()
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        protocol, _, rest = head[0].partition(" ")
        status = rest[:3]
        if not protocol.startswith("HTTP/1.") or not status.isdigit():
            raise Broken(f"it does not speak HTTP: {head[0][:80]!r}")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        chunked = fields.get("transfer-encoding", "").lower() == "chunked"
        length = fields.get("content-length", "0")
        if not chunked and not length.isdigit():
            raise Broken(f"an answer of {length[:80]!r} bytes")
        self._left = None if chunked else int(length)
        self.reusable = fields.get("connection", "").lower() != "close"
        return int(status)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        if self._left is not None:
            _check_size(self._left)
            if self._left:
                yield await self._reader.readexactly(self._left)
            return
        while True:
            line = (await self._reader.readuntil(b"\r\n")).split(b";")[0].strip()
            try:
                size = int(line, 16)
            except ValueError:
                raise Broken(f"a piece of {line[:80]!r} bytes") from None
            _check_size(size)
            if not size:
                # Errors have trailers, and whatever is left of them would be taken for the next answer.
                while await self._reader.readuntil(b"\r\n") != b"\r\n":
                    continue
                return
            yield (await self._reader.readexactly(size + 2))[:-2]


def _check_size(size: int) -> None:
    if not 0 <= size <= limits.QUORUM_ANSWER_BYTES_MAX:
        raise Broken(f"an answer of {size} bytes, more than {limits.QUORUM_ANSWER_BYTES_MAX}")


class Endpoint:
    """One member of etcd, by its URL."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        self.url = url
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._authority = parts.netloc
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._idle: list[_Connection] = []

    async def post(self, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> tuple[int, bytes]:
        """Status and body of the answer. Raises NotSent or Broken."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(timeout_s):
                    connection, status = await self._asked(path, body, headers, stack)
                    answer = bytearray()
                    async for piece in connection.pieces():
                        answer += piece
                        _check_size(len(answer))
            except (OSError, EOFError, asyncio.LimitOverrunError) as fault:
                raise Broken(_reason(fault)) from fault
            stack.pop_all()
        if connection.reusable and len(self._idle) < _IDLE_CONNECTIONS_MAX:
            self._idle.append(connection)
        else:
            connection.close()
        return status, bytes(answer)

    async def stream(
        self, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float, silence_s: float
    ) -> AsyncIterator[tuple[int, bytes]]:
        """Status and the next piece of an answer that need not end. Raises NotSent, or Broken after `silence_s` without a piece."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(timeout_s):
                    connection, status = await self._asked(path, body, headers, stack)
                pieces = connection.pieces()
                while True:
                    async with asyncio.timeout(silence_s):
                        piece = await anext(pieces, None)
                    if piece is None:
                        return
                    yield status, piece
            except (OSError, EOFError, asyncio.LimitOverrunError) as fault:
                raise Broken(_reason(fault)) from fault

    async def _asked(
        self, path: str, body: bytes, headers: Mapping[str, str], stack: contextlib.AsyncExitStack
    ) -> tuple[_Connection, int]:
        connection = await self._connection()
        stack.callback(connection.close)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST {path} HTTP/1.1\r\nHost: {self._authority}\r\nContent-Length: {len(body)}\r\n{lines}\r\n"
        return connection, await connection.send(head.encode("latin-1") + body)

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.stale:
                return connection
            connection.close()
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=_HEAD_BYTES_MAX)
        except (OSError, TimeoutError) as fault:
            raise NotSent(_reason(fault)) from fault
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
        return _Connection(reader, writer)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def _reason(fault: Exception) -> str:
    if isinstance(fault, TimeoutError):
        return "it took too long"
    if isinstance(fault, asyncio.IncompleteReadError):
        return "the connection was closed"
    return getattr(fault, "strerror", None) or str(fault) or type(fault).__name__
