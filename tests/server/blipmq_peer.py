"""A BlipMQ client for tests: a plain blocking socket that sends what it is told and shows what comes back."""

from __future__ import annotations

import itertools
import socket
import ssl
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from embedded_broker import EmbeddedBroker
from flymq_peer import PATIENCE_S

from braidmq.base.config import Config, Listen
from braidmq.base.disk import Disk
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.wire import blipmq
from braidmq.wire.blipmq import (
    Ack,
    AnyMessage,
    Envelope,
    ErrorMessage,
    FrameReader,
    Message,
    Publish,
    Subscribe,
    TooLarge,
    Unsubscribe,
)

_numbers = itertools.count(1)
SILENCE_S = 0.15
"""How long nothing has to come to count as nothing; a broker that owes something sends it much sooner."""


def new_name(prefix: str = "t") -> str:
    """A name that no other test of this run uses."""
    return f"{prefix}/{next(_numbers)}"


class BlipMQBroker(EmbeddedBroker):
    """A broker in the test's own process that speaks BlipMQ, and FlyMQ."""

    def __init__(self, disk: Disk | None = None, data_dir: str = "/data", **settings: Any) -> None:
        listen = (Listen("blipmq", "127.0.0.1", 0), Listen("flymq", "127.0.0.1", 0), *settings.pop("more_listeners", ()))
        super().__init__(disk or FaultyDisk(), data_dir)
        settings = {"durability": "os", "default_partitions": 2} | settings
        self._config = Config(data_dir=data_dir, listen=listen, **settings)

    @property
    def blipmq(self) -> str:
        return self.server.addresses["blipmq"]

    def peer(self, **options: Any) -> BlipMQPeer:
        return BlipMQPeer(self.blipmq, **options)


class BlipMQPeer:
    """One connection that speaks the FlatBuffers framing."""

    def __init__(
        self, address: str, *, timeout_s: float = PATIENCE_S, receive_buffer: int | None = None, tls: ssl.SSLContext | None = None,
        key: str = "",
    ) -> None:
        host, _, port = address.rpartition(":")
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
        self._timeout_s = timeout_s
        self._reader = FrameReader(64 * 1024 * 1024)
        self._received: deque[Envelope] = deque()
        self._sequences = itertools.count(1)
        if key:
            self.send(blipmq.Ping(1), api_key=key)
            assert self.receive().message == Ack("auth")
            assert self.receive().message == blipmq.Pong(1)

    def __enter__(self) -> BlipMQPeer:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Go away as a process that was killed: RST in place of a goodbye."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.socket.close()

    # --- sending

    def send(self, message: AnyMessage, sequence: int | None = None, /, **metadata: str) -> int:
        """Send one frame; an underscore in the name of metadata is one, except `x_...`, which is `x-...`."""
        number = next(self._sequences) if sequence is None else sequence
        pairs = tuple((key.replace("x_", "x-", 1) if key.startswith("x_") else key, value) for key, value in metadata.items())
        self.send_bytes(blipmq.encode(Envelope(message, number, 0, pairs)))
        return number

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ack(self, delivery: Envelope | str, code: int = 0, /, **metadata: str) -> None:
        own = delivery if isinstance(delivery, str) else delivered(delivery).message_id
        self.send(Ack(own or "", code), 0, **metadata)

    # --- receiving

    def receive(self) -> Envelope:
        """The next frame."""
        while not self._received:
            self.read()
        return self._received.popleft()

    def read(self) -> None:
        """Take what the socket has, or wait for it."""
        data = self.socket.recv(1 << 20)
        assert data, "the broker closed the connection"
        self._feed(data)

    def received(self) -> list[Envelope]:
        """The frames that were read and not yet looked at."""
        frames = list(self._received)
        self._received.clear()
        return frames

    def _feed(self, data: bytes) -> None:
        for frame in self._reader.receive(data):
            assert not isinstance(frame, TooLarge)
            self._received.append(blipmq.decode(frame))

    def receive_many(self, count: int) -> list[Envelope]:
        return [self.receive() for _ in range(count)]

    def nothing(self, seconds: float = SILENCE_S) -> None:
        """Nothing comes, and the connection stays."""
        assert not self._received, self._received
        self.socket.settimeout(seconds)
        try:
            data = self.socket.recv(1 << 20)
        except TimeoutError:
            return
        finally:
            self.socket.settimeout(self._timeout_s)
        assert data, "the broker closed the connection"
        self._feed(data)
        raise AssertionError(f"something came: {self._received}")

    def closed(self) -> list[Envelope]:
        """What comes before the broker closes the connection, which it must."""
        while True:
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionError:
                data = b""
            if not data:
                break
            self._feed(data)
        rest = list(self._received)
        self._received.clear()
        return rest

    # --- conversations

    def ask(self, message: AnyMessage, /, **metadata: str) -> Envelope:
        """Send a request; its answer, held to repeat the sequence number."""
        number = self.send(message, None, **metadata)
        answer = self.receive()
        assert answer.sequence == number, (number, answer)
        return answer

    def subscribe(self, topic: str, qos: int = 0, client_id: str | None = None, **metadata: str) -> BlipMQPeer:
        answer = self.ask(Subscribe(topic, qos, client_id), **metadata)
        assert answer.message == Ack(topic), answer
        return self

    def subscribe_quietly(self, topic: str, qos: int, client_id: str) -> None:
        """As `subscribe`, on a connection to which deliveries are under way: they are kept for later."""
        number = self.send(Subscribe(topic, qos, client_id))
        kept: list[Envelope] = []
        while (envelope := self.receive()).sequence != number or isinstance(envelope.message, Message):
            kept.append(envelope)
        assert envelope.message == Ack(topic), envelope
        self._received.extendleft(reversed(kept))

    def unsubscribe(self, topic: str, client_id: str | None = None) -> int:
        answer = self.ask(Unsubscribe(topic, client_id)).message
        assert isinstance(answer, Ack) and answer.message_id == topic
        return answer.error_code

    def publish(self, topic: str, payload: bytes = b"", message_id: str = "", ttl_ms: int = 0, **metadata: str) -> None:
        """Publish: with an id at QoS 1, and wait for the Ack."""
        if not message_id:
            self.send(Publish(topic, payload, 0, ttl_ms), None, **metadata)
            return
        answer = self.ask(Publish(topic, payload, 1, ttl_ms, message_id), **metadata)
        assert answer.message == Ack(message_id), answer

    def refused(self, message: AnyMessage, /, **metadata: str) -> int:
        """The code of the Error that answers a request."""
        answer = self.ask(message, **metadata).message
        assert isinstance(answer, ErrorMessage), answer
        return answer.error_code


def delivered(envelope: Envelope) -> Message:
    assert isinstance(envelope.message, Message), envelope
    return envelope.message


def payloads(envelopes: list[Envelope]) -> list[bytes]:
    return [delivered(envelope).payload for envelope in envelopes]


@contextmanager
def blipmq_broker(**settings: Any) -> Iterator[BlipMQBroker]:
    with BlipMQBroker(**settings) as broker:
        yield broker
