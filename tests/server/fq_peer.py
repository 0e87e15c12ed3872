"""An fq client for tests: two plain blocking sockets that send what they are told and show what comes back.

It shares the codecs with the server, but nothing of its sessions; where bytes matter tests compare whole frames.
"""

from __future__ import annotations

import itertools
import json
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from embedded_broker import EmbeddedBroker

from braidmq.base.config import Listen
from braidmq.base.disk import Disk
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.wire.fq.auth import Auth, queue_field
from braidmq.wire.fq.commands import (
    AuthAccepted,
    Bind,
    Bound,
    Command,
    ErrorReply,
    Heartbeat,
    Reply,
    ReplyReader,
    Status,
    StatusRequest,
    Unbind,
    Unbound,
    encode_command,
)
from braidmq.wire.fq.messages import Message, MessageReader, encode_message
from braidmq.wire.fq.modes import Mode, encode_opening

PATIENCE_S = 60.0
"""How long to wait for what must come; far longer than it ever takes on a busy machine."""
NODE = bytes((10, 1, 2, 3))
LOCAL = bytes((127, 0, 0, 1))
PAYLOAD_MAX = 1 << 28

_numbers = itertools.count(1)
T = TypeVar("T")


def new_name(prefix: str = "x") -> bytes:
    """A name that no other test of this run uses."""
    return f"{prefix}-{next(_numbers)}".encode()


class FqBroker(EmbeddedBroker):
    """An embedded broker that speaks fq as well, under a known node id."""

    def __init__(
        self, disk: Disk | None = None, data_dir: str = "/data", *, port: int = 0, tls: tuple[Path, Path] | None = None,
        **settings: object,
    ) -> None:
        """`tls` are the files of a certificate and its key, for a second port."""
        if tls is not None:
            settings |= {"tls_cert_file": str(tls[0]), "tls_key_file": str(tls[1])}
        super().__init__(disk or FaultyDisk(), data_dir, **{"durability": "os", "fq_node_id": "10.1.2.3"} | settings)
        own = (Listen("fq", "127.0.0.1", port), *([Listen("fqs", "127.0.0.1", 0)] if tls else []))
        self._config = replace(self._config, listen=(*self._config.listen, *own))

    @property
    def fq(self) -> str:
        return self.server.addresses["fq"]

    @property
    def fqs(self) -> str:
        return self.server.addresses["fqs"]


def eventually(ask: Callable[[], T], expected: T) -> None:
    """Ask until the answer is right; show the last one when it never is."""
    deadline = time.monotonic() + PATIENCE_S
    while (answer := ask()) != expected:
        if time.monotonic() > deadline:
            raise AssertionError(f"it stays at {answer!r}, not {expected!r}")
        time.sleep(0.005)


def connect(address: str, *, tls: ssl.SSLContext | None = None, receive_buffer: int | None = None) -> socket.socket:
    host, _, port = address.rpartition(":")
    raw = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    raw.settimeout(PATIENCE_S)
    try:
        if receive_buffer is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.connect((host, int(port)))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return raw if tls is None else tls.wrap_socket(raw, server_hostname="localhost")
    except BaseException:
        raw.close()
        raise


def closed(raw: socket.socket) -> bytes:
    """What comes until the other side closes; fails when it does not."""
    came = bytearray()
    with raw:
        try:
            while data := raw.recv(65536):
                came += data
        except ConnectionResetError:
            return bytes(came)
    return bytes(came)


class DataSocket:
    """A data connection."""

    def __init__(self, raw: socket.socket, full: bool) -> None:
        self.socket = raw
        self._full = full
        self._reader = MessageReader(True, PAYLOAD_MAX)
        self._came: list[Message] = []

    def publish(self, exchange: bytes, route: bytes, *payloads: bytes, message_id: bytes = bytes(16)) -> None:
        frames = [encode_message(Message(exchange, route, message_id, payload), False) for payload in payloads]
        self.socket.sendall(b"".join(frames))

    def relay(self, *messages: Message) -> None:
        """Publish as brokers do, with sender and hops."""
        self.socket.sendall(b"".join(encode_message(message, True) for message in messages))

    def receive(self, count: int) -> list[Message]:
        """So many messages, and no more than that."""
        while len(self._came) < count:
            data = self.socket.recv(1 << 20)
            assert data, f"closed after {len(self._came)} messages"
            self._came += self._reader.receive(data)
        taken, self._came = self._came[:count], self._came[count:]
        return taken

    def payloads(self, count: int) -> list[bytes]:
        return [message.payload for message in self.receive(count)]

    def payloads_until_closed(self) -> list[bytes]:
        """Of everything that comes until the other side closes."""
        came = [*self._came, *self._reader.receive(closed(self.socket))]
        return [message.payload for message in came]

    def close(self) -> None:
        self.socket.close()


class FqPeer:
    """One client: its command connection, and data connections for as long as it wants them."""

    def __init__(
        self, address: str, queue: bytes | None = None, kind: str = "mem:public", *, user: bytes = b"alice", password: bytes = b"",
        tls: ssl.SSLContext | None = None, authenticate: bool = True,
    ) -> None:
        self.address = address
        self.queue = new_name("q") if queue is None else queue
        self._tls = tls
        self.socket = connect(address, tls=tls)
        self._reader = ReplyReader()
        self._replies: list[Reply] = []
        self._opened: list[DataSocket] = []
        self.key = b""
        self.socket.sendall(encode_opening(Mode.COMMAND))
        if authenticate:
            self.send(Auth(user, queue_field(self.queue, kind), password))
            accepted = self.reply(AuthAccepted)
            self.key = accepted.key
            assert self.reply(Heartbeat) == Heartbeat(), "a heartbeat right behind it"

    def __enter__(self) -> FqPeer:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()
        for data in self._opened:
            data.close()

    # --- commands

    def send(self, *commands: Command) -> None:
        self.socket.sendall(b"".join(map(encode_command, commands)))

    def next_reply(self) -> Reply:
        while not self._replies:
            data = self.socket.recv(65536)
            assert data, "closed"
            self._replies += self._reader.receive(data)
        return self._replies.pop(0)

    def reply(self, kind: type[T]) -> T:
        """The next reply, which has to be of that kind."""
        found = self.next_reply()
        assert isinstance(found, kind), found
        return found

    def refused(self) -> str:
        """The text of the error that ends the connection."""
        text = self.reply(ErrorReply).text.decode()
        assert closed(self.socket) == b""
        return text

    def bind(self, exchange: bytes, program: bytes = b"prefix:", flags: int = 0) -> int:
        self.send(Bind(flags, exchange, program))
        return self.reply(Bound).route_id

    def unbind(self, route_id: int, exchange: bytes) -> int:
        self.send(Unbind(route_id, exchange))
        return self.reply(Unbound).route_id

    def status(self) -> dict[str, int]:
        self.send(StatusRequest())
        return dict(self.reply(Status).counters)

    def figures(self, *names: str) -> tuple[int, ...]:
        """Some figures; -1 for what is not there, since a data connection may not have been noticed yet."""
        status = self.status()
        return tuple(status.get(name, -1) for name in names)

    # --- data

    def data(self, mode: Mode = Mode.DATA, node: bytes = b"", *, receive_buffer: int | None = None) -> DataSocket:
        raw = connect(self.address, tls=self._tls, receive_buffer=receive_buffer)
        raw.sendall(encode_opening(mode, self.key, node))
        opened = DataSocket(raw, mode is not Mode.DATA)
        self._opened.append(opened)
        return opened


def request(address: str, method: str, target: str, headers: dict[str, str] | None = None, body: bytes | None = None) -> bytes:
    """One HTTP request on a connection of its own; everything that comes back."""
    lines = [f"{method} {target} HTTP/1.0", *(f"{name}: {value}" for name, value in (headers or {}).items())]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    with connect(address) as raw:
        raw.sendall("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        return closed(raw)


def stats(address: str) -> Any:
    """The document at `/stats.json`."""
    head, _, body = request(address, "GET", "/stats.json").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\n"), head
    return json.loads(body)
