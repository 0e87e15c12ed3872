"""HTTP as fq's port speaks it: enough of it to publish a message, to ask for figures and to get a file.

Requests have a head of bounded size and a body with its length said in front. A body in chunks is no body: the request is answered,
then the connection is closed, since nothing says where the next request begins. A body over the limit is refused before it is
read. Answers have the words that the published broker uses, `404 OK` included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Final
from urllib.parse import parse_qsl, unquote_to_bytes

from braidmq.base.errors import BraidError
from braidmq.base.limits import FQ_HTTP_HEAD_BYTES_MAX, FQ_HTTP_HEADERS_MAX, FQ_NAME_BYTES_MAX
from braidmq.wire.shape import shape

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
NOT_FOUND: Final = b"HTTP/1.0 404 OK\r\nConnection: close\r\nContent-Type: text/html\r\n\r\n"
WEB_SENDER: Final = b"_web"
"""Sender of a message whose publisher did not give one."""

_REQUEST_LINE: Final = re.compile(rb"([A-Z]+) ([!-~]+) HTTP/1\.([01])")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")
_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_CONTENT_TYPES: Final = {
    "js": "text/javascript", "json": "application/json", "css": "text/css", "jpg": "image/jpeg", "jpeg": "image/jpeg",
    "gif": "image/gif", "png": "image/png", "html": "text/html", "htm": "text/html",
}  # fmt: skip


@shape
class HttpRequest:
    """One request, with its body."""

    method: str
    path: str
    """Without the query, percent signs resolved. Bytes that are not UTF-8 are replaced, so that they name nothing."""
    query: Mapping[str, str]
    """Of a repeated name the last."""
    headers: Mapping[str, bytes]
    """By lower-case name; of a repeated one the first."""
    body: bytes | None
    """None when no length was given."""
    keep_alive: bool
    """Whether another request may follow on this connection."""
    says_keep_alive: bool = field(default=False)
    """Whether the client asked for that aloud, and so looks for the answer to say it too."""


@shape
class Submission:
    """A message that came by HTTP."""

    exchange: bytes
    route: bytes
    sender: bytes
    payload: bytes


@shape
class _Head:
    method: str
    target: str
    headers: dict[str, bytes]
    length: int | None
    keep_alive: bool
    says_keep_alive: bool
    expects: bool


class HttpReader:
    """Cuts a byte stream into requests.

    `receive` returns what the bytes complete: requests, and in front of a request whose client waits for leave to send its
    body, `CONTINUE`, which is to be written to it at once. A fault raises MALFORMED_HTTP or FRAME_TOO_LARGE; requests in front of
    it are returned first, `failure` is set, and the next call raises. Behind a request without `keep_alive` nothing is read.
    """

    __slots__ = ("_body_max", "_ended", "_head", "_partial", "failure")

    def __init__(self, body_max: int) -> None:
        self._body_max = body_max
        self._partial = bytearray()
        self._head: _Head | None = None
        self._ended = False
        self.failure: BraidError | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes held of a request that is not complete."""
        return len(self._partial)

    def receive(self, data: bytes | bytearray | memoryview) -> list[HttpRequest | bytes]:
        if self.failure is not None:
            raise self.failure
        found: list[HttpRequest | bytes] = []
        if self._ended:
            return found
        self._partial += data
        try:
            while not self._ended and self._step(found):
                continue
        except BraidError as fault:
            self.failure = fault
            self._partial = bytearray()
            if not found:
                raise
        return found

    def _step(self, found: list[HttpRequest | bytes]) -> bool:
        if self._head is None:
            self._head = self._read_head()
            if self._head is None:
                return False
            if self._head.expects:
                found.append(CONTINUE)
        head = self._head
        length = head.length or 0
        if len(self._partial) < length:
            return False
        body = bytes(self._partial[:length]) if head.length is not None else None
        del self._partial[:length]
        self._head = None
        self._ended = not head.keep_alive
        if self._ended:
            self._partial = bytearray()
        path, _, query = head.target.partition("?")
        pairs = dict(parse_qsl(query, keep_blank_values=True, errors="replace"))
        plain = unquote_to_bytes(path).decode("utf-8", "replace")
        found.append(HttpRequest(head.method, plain, pairs, head.headers, body, head.keep_alive, head.says_keep_alive))
        return True

    def _read_head(self) -> _Head | None:
        partial = self._partial
        # Empty lines in front of a request are allowed, and cost nothing.
        blank = len(partial) - len(partial.lstrip(b"\r\n"))
        del partial[:blank]
        end = _HEAD_END.search(partial, 0, FQ_HTTP_HEAD_BYTES_MAX + 4)
        if end is None or end.start() > FQ_HTTP_HEAD_BYTES_MAX:
            if len(partial) > FQ_HTTP_HEAD_BYTES_MAX:
                raise BraidError("MALFORMED_HTTP", reason=f"a head of more than {FQ_HTTP_HEAD_BYTES_MAX} bytes")
            return None
        lines = bytes(partial[: end.start()]).split(b"\n")
        head = _parse_head([line.removesuffix(b"\r") for line in lines])
        if head.length is not None and head.length > self._body_max:
            raise BraidError("FRAME_TOO_LARGE", size=head.length, limit=self._body_max)
        del partial[: end.end()]
        return head


def _parse_head(lines: list[bytes]) -> _Head:
    first = _REQUEST_LINE.fullmatch(lines[0])
    if first is None:
        raise BraidError("MALFORMED_HTTP", reason="no request line")
    if len(lines) - 1 > FQ_HTTP_HEADERS_MAX:
        raise BraidError("MALFORMED_HTTP", reason=f"more than {FQ_HTTP_HEADERS_MAX} headers")
    headers: dict[str, bytes] = {}
    lengths: set[bytes] = set()
    for line in lines[1:]:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise BraidError("MALFORMED_HTTP", reason="a line that is no header")
        name = header[1].decode().lower()
        headers.setdefault(name, header[2])
        if name == "content-length":
            lengths.add(header[2])
    chunked = "transfer-encoding" in headers
    length: int | None = None
    if lengths and not chunked:
        if len(lengths) > 1 or not _LENGTH.fullmatch(headers["content-length"]):
            raise BraidError("MALFORMED_HTTP", reason="no length in Content-Length")
        length = int(headers["content-length"])
    said = {word.strip().lower() for word in headers.get("connection", b"").split(b",")}
    newer = first[3] == b"1"
    keeps = not chunked and b"close" not in said and (newer or b"keep-alive" in said)
    expects = newer and length is not None and headers.get("expect", b"").lower() == b"100-continue"
    return _Head(first[1].decode(), first[2].decode(), headers, length, keeps, keeps and b"keep-alive" in said, expects)


def read_submission(request: HttpRequest) -> Submission:
    """The message of a request to `/submit`; SUBMIT_REFUSED has the words for the answer."""
    headers = request.headers
    exchange, route = headers.get("x-fq-exchange"), headers.get("x-fq-route")
    sender = headers.get("x-fq-sender") or headers.get("x-fq-user") or WEB_SENDER
    if request.body is None:
        raise BraidError("SUBMIT_REFUSED", reason="no message")
    if route is None:
        raise BraidError("SUBMIT_REFUSED", reason="missing route")
    if exchange is None:
        raise BraidError("SUBMIT_REFUSED", reason="missing exchange")
    for what, value in (("route", route), ("exchange", exchange), ("sender", sender)):
        if len(value) > FQ_NAME_BYTES_MAX:
            raise BraidError("SUBMIT_REFUSED", reason=f"{what} too long")
    return Submission(exchange, route, sender, request.body)


# --- answers


def _answer(status: str, headers: list[tuple[str, str]], body: bytes, request: HttpRequest | None) -> bytes:
    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
    sent = b"" if request is not None and request.method == "HEAD" else body
    return f"HTTP/1.0 {status}\r\n{head}\r\n".encode() + sent


def _measured(body: bytes, kind: str, request: HttpRequest | None) -> list[tuple[str, str]]:
    headers = [("Content-Length", str(len(body))), ("Content-Type", kind)]
    if request is not None and request.says_keep_alive:
        headers.append(("Connection", "keep-alive"))
    return headers


def submit_reply(request: HttpRequest | None, routed: int, dropped: int, no_route: int, no_exchange: int) -> bytes:
    """A message was taken; the counts say what became of it."""
    counts = {"routed": routed, "dropped": dropped, "no_route": no_route, "no_exchange": no_exchange}
    body = json.dumps(counts, separators=(",", ":")).encode() + b"\n"
    return _answer("200 OK", _measured(body, "application/json", request), body, request)


def submit_refusal(request: HttpRequest | None, text: str) -> bytes:
    """A message was not taken."""
    body = b'{ "error": ' + json.dumps(text).encode() + b" }\n"
    return _answer("500 ERROR", _measured(body, "application/json", request), body, request)


def json_reply(request: HttpRequest | None, document: object) -> bytes:
    """A JSON document; the connection is closed behind it."""
    headers = [("Connection", "close"), ("Content-Type", "application/json")]
    return _answer("200 OK", headers, json.dumps(document).encode(), request)


def file_reply(request: HttpRequest | None, name: str, content: bytes) -> bytes:
    """A file, of the type that its name tells."""
    suffix = name.rpartition(".")[2].lower() if "." in name else ""
    kind = _CONTENT_TYPES.get(suffix, "application/octet-stream")
    return _answer("200 OK", _measured(content, kind, request), content, request)


def fault_reply(error: BraidError) -> bytes:
    """For a request that could not be read; the connection is closed behind it."""
    body = b'{ "error": ' + json.dumps(error.text).encode() + b" }\n"
    words = "Request Entity Too Large" if error.spec.http == 413 else "Bad Request"
    headers = [("Connection", "close"), ("Content-Length", str(len(body))), ("Content-Type", "application/json")]
    return _answer(f"{error.spec.http} {words}", headers, body, None)
