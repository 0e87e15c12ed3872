"""A FlyMQ client for tests: a plain blocking socket that sends what it is told and shows what comes back.

It shares the codec with the server, but nothing of its sessions; where bytes matter tests compare whole frames.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from braidmq import hot
from braidmq.wire import flymq
from braidmq.wire.flymq import Dialect

DOCUMENTED, V126 = Dialect.DOCUMENTED, Dialect.V126
PATIENCE_S = 60.0
"""How long to wait for what must come; far longer than it ever takes on a busy machine."""

LISTENERS = (
    "--listen", "flymq://127.0.0.1:0",
    "--listen", "flymq://127.0.0.1:0?dialect=documented",
    "--listen", "flymq://127.0.0.1:0?dialect=v126",
)
NAMES = {"auto": "flymq", "documented": "flymq-2", "v126": "flymq-3"}
"""What the ready file calls the listener of each dialect."""

_numbers = itertools.count(1)
T = TypeVar("T")


def new_topic(prefix: str = "t") -> str:
    """A name that no other test of this run uses."""
    return f"{prefix}-{next(_numbers)}"


class Peer:
    """One connection."""

    def __init__(
        self, address: str, dialect: Dialect = DOCUMENTED, *, timeout_s: float = PATIENCE_S, tls: ssl.SSLContext | None = None,
        receive_buffer: int | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        self.dialect = dialect
        raw = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        raw.settimeout(timeout_s)
        try:
            if receive_buffer is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            raw.connect((host, int(port)))
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket: socket.socket = raw if tls is None else tls.wrap_socket(raw, server_hostname="localhost")
        except BaseException:
            raw.close()
            raise
        self._received = bytearray()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Go away as a process that was killed: RST in place of a goodbye."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.socket.close()

    # --- bytes

    def send(self, data: bytes | memoryview) -> None:
        self.socket.sendall(data)

    def receive_frame(self) -> bytes:
        """The next whole frame."""
        self._fill(8)
        size = 8 + int.from_bytes(self._received[4:8], "big")
        self._fill(size)
        frame = bytes(self._received[:size])
        del self._received[:size]
        return frame

    def receive_frames(self, count: int) -> list[bytes]:
        return [self.receive_frame() for _ in range(count)]

    def _fill(self, size: int) -> None:
        while len(self._received) < size:
            data = self.socket.recv(max(65536, size - len(self._received)))
            if not data:
                raise ConnectionError(f"closed by the broker after {len(self._received)} of {size} bytes")
            self._received += data

    def rest(self) -> bytes:
        """Everything up to the end of the connection, which must come."""
        with contextlib.suppress(ConnectionResetError):
            while data := self.socket.recv(1 << 20):
                self._received += data
        return bytes(self._received)

    # --- requests

    def encode(self, request: flymq.Request) -> bytes:
        return flymq.encode_request(request, self.dialect)

    def decode(self, request_op: int, frame: bytes) -> flymq.Response:
        assert frame[:2] == b"\xaf\x01" and frame[3] == 1
        return flymq.decode_response(request_op, frame[2], frame[8:], self.dialect)

    def ask(self, request: flymq.Request) -> Any:
        self.send(self.encode(request))
        return self.decode(request.op, self.receive_frame())

    def ask_all(self, *requests: flymq.Request) -> list[Any]:
        """All requests in one write, then all answers."""
        self.send(b"".join(map(self.encode, requests)))
        return [self.decode(request.op, self.receive_frame()) for request in requests]

    # --- what tests do all the time

    def create(self, topic: str, partitions: int = 1, **properties: str) -> str:
        assert self.ask(flymq.CreateTopic(topic, partitions, properties)) == flymq.Ok()
        return topic

    def produce(self, topic: str, *values: bytes, key: bytes = b"", partition: int = 0) -> list[flymq.RecordMetadata]:
        replies = self.ask_all(*(flymq.Produce(topic, key, value, partition) for value in values))
        assert all(isinstance(reply, flymq.RecordMetadata) for reply in replies), replies
        return replies

    def fetch_all(self, topic: str, partition: int = 0, offset: int = 0) -> list[flymq.FetchedItem]:
        """Every record from `offset` on."""
        items: list[flymq.FetchedItem] = []
        while True:
            reply = self.ask(flymq.Fetch(topic, partition, offset, 10_000))
            assert isinstance(reply, flymq.Fetched), reply
            if not reply.items:
                return items
            items += reply.items
            offset = reply.next_offset


def batch(*values: bytes, producer: int = -1, epoch: int = -1, sequence: int = -1, keys: list[bytes | None] | None = None) -> bytes:
    """A batch for PRODUCE_BATCH."""
    return hot.encode_batch(keys or [None] * len(values), list(values), None, producer, epoch, sequence)


def records_of(batches: bytes, from_offset: int = 0) -> list[tuple[int, bytes | None, bytes]]:
    """(offset, key, value) of every record in `batches`."""
    found, _ = hot.decode_records(batches, from_offset, 1 << 30, lambda offset, _time, key, value, _attrs: (offset, key, value))
    return found


def untimed(response: Any) -> Any:
    """The response with its timestamp set to 0."""
    return replace(response, timestamp=0) if hasattr(response, "timestamp") else response


def until(condition: Callable[[], T], what: str, seconds: float = PATIENCE_S) -> T:
    """Wait for `condition` to hold and return what it gave."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.005)
    return found


def rss_bytes(pid: int) -> int:
    """Resident memory of a process that belongs to it alone: pages of mapped files are the kernel's to take back."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not tell the memory of a process")


def open_sockets(pid: int) -> int:
    """How many sockets a process has open."""
    count = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        # One may be closed between being listed and being looked at.
        with contextlib.suppress(FileNotFoundError):
            count += str(descriptor.readlink()).startswith("socket:")
    return count
