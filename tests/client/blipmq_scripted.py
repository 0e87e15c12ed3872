"""A small BlipMQ broker on real sockets, one thread a connection, that does as it is told: refuse, withhold, break off."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from braidmq.base.errors import BraidError
from braidmq.wire.blipmq import (
    AT_LEAST_ONCE,
    META_ATTEMPT,
    META_COMPRESSION,
    META_DELIVERY,
    Ack,
    AnyMessage,
    Envelope,
    ErrorCode,
    FrameReader,
    Message,
    Metadata,
    Ping,
    Pong,
    Publish,
    Subscribe,
    TooLarge,
    TopicFilter,
    Unsubscribe,
    decode,
    encode,
    error_envelope,
    parse_filter,
)

PATIENCE_S = 60.0


class _Connection:
    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.sending = threading.Lock()
        self.admitted = False
        self.silent = False
        self.filters: dict[str, tuple[TopicFilter, Subscribe]] = {}

    def send(self, message: AnyMessage, sequence: int, metadata: Metadata = ()) -> None:
        self.send_raw(encode(Envelope(message, sequence, 0, metadata)))

    def send_raw(self, data: bytes) -> None:
        with self.sending:
            if self.silent:
                return
            try:
                self.end.sendall(data)
            except OSError:
                # The client is gone; its thread hears of it too.
                self.silent = True


class BlipMQPeer:
    """Use as a context manager. Deliveries with QoS 1 that were not settled come again to whoever subscribes with a client_id."""

    def __init__(self, api_key: str = "") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        self._guard = threading.RLock()
        self._changed = threading.Condition(self._guard)
        self._connections: list[_Connection] = []
        self._threads: list[threading.Thread] = []
        self._ended = False
        self.api_key = api_key
        self.seen: list[Envelope] = []
        """Everything that clients sent, in order."""
        self.stored: list[Publish] = []
        self.open: dict[int, tuple[Message, int]] = {}
        """Deliveries that were not settled: the message and how often it was delivered."""
        self.settled: list[tuple[str, int, str | None]] = []
        """message_id, code and the named delivery of each Ack that came."""
        self.refuse: Callable[[AnyMessage], BraidError | None] = lambda message: None
        self.acknowledging = True
        self.connects = 0
        self._sequence = 0

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def __enter__(self) -> BlipMQPeer:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self.cut()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        self._listener.close()
        for connection in self._connections:
            connection.end.close()

    def _run(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something that a client does has happened."""
        with self._changed:
            assert self._changed.wait_for(holds, PATIENCE_S), "it did not happen"

    def sent(self, kind: type[AnyMessage]) -> list[Envelope]:
        with self._guard:
            return [envelope for envelope in self.seen if isinstance(envelope.message, kind)]

    def cut(self) -> None:
        """Break every connection there is now."""
        with self._guard:
            ends = [connection.end for connection in self._connections]
        for end in ends:
            _shut(end)

    def fall_silent(self) -> None:
        """Nothing more is said on the connections there are now."""
        with self._guard:
            for connection in self._connections:
                connection.silent = True

    def say(self, data: bytes) -> None:
        """Send these bytes to everybody."""
        with self._guard:
            for connection in self._connections:
                connection.send_raw(data)

    # --- connections

    def _accept(self) -> None:
        while not self._ended:
            try:
                end, _ = self._listener.accept()
            except TimeoutError:
                continue
            end.settimeout(None)
            connection = _Connection(end)
            with self._changed:
                self._connections.append(connection)
                self.connects += 1
                self._changed.notify_all()
            self._run(self._serve, connection)

    def _serve(self, connection: _Connection) -> None:
        reader = FrameReader()
        try:
            while data := connection.end.recv(1 << 16):
                for frame in reader.receive(data):
                    assert not isinstance(frame, TooLarge)
                    with self._changed:
                        self._handle(connection, decode(frame))
                        self._changed.notify_all()
        except OSError:
            # The client is gone, or was cut off.
            connection.silent = True
        _shut(connection.end)
        with self._guard:
            connection.filters.clear()

    def _handle(self, connection: _Connection, envelope: Envelope) -> None:
        self.seen.append(envelope)
        message, sequence = envelope.message, envelope.sequence
        fault = self.refuse(message)
        if self.api_key and not connection.admitted:
            if envelope.meta("api_key") == self.api_key:
                connection.admitted = True
                connection.send(Ack("auth"), sequence)
            else:
                fault = BraidError("INVALID_CREDENTIALS")
        if fault is not None:
            connection.send_raw(encode(error_envelope(fault, sequence)))
            return
        match message:
            case Ping(timestamp):
                connection.send(Pong(timestamp), sequence)
            case Subscribe(topic, _, client_id):
                connection.filters[topic] = parse_filter(topic), message
                connection.send(Ack(topic), sequence)
                if client_id:
                    self._redeliver(connection)
            case Unsubscribe(topic):
                known = connection.filters.pop(topic, None)
                connection.send(Ack(topic, ErrorCode.NONE if known else ErrorCode.TOPIC_NOT_FOUND), sequence)
            case Publish():
                self._publish(connection, envelope, message)
            case Ack(message_id, code):
                delivery = envelope.meta(META_DELIVERY)
                self.settled.append((message_id, code, delivery))
                for number, (kept, _) in list(self.open.items()):
                    if kept.message_id == message_id and delivery in (None, str(number)):
                        del self.open[number]
                        break

    def _publish(self, connection: _Connection, envelope: Envelope, publish: Publish) -> None:
        self.stored.append(publish)
        if publish.qos and self.acknowledging:
            connection.send(Ack(publish.message_id or ""), envelope.sequence)
        metadata = envelope.user_metadata
        name = envelope.meta(META_COMPRESSION)
        if name is not None:
            metadata = (*metadata, (META_COMPRESSION, name))
        self.deliver(publish.topic, publish.payload, publish.qos, publish.message_id, metadata)

    def deliver(self, topic: str, payload: bytes, qos: int, message_id: str | None, metadata: Metadata = ()) -> None:
        """Send a message to everybody who wants it."""
        with self._guard:
            self._sequence += 1
            for connection in self._connections:
                for found, subscribe in connection.filters.values():
                    if found.matches(topic):
                        message = Message(topic, payload, message_id, 1_700_000_000, min(qos, subscribe.qos))
                        if message.qos == AT_LEAST_ONCE:
                            self.open[self._sequence] = message, 1
                        connection.send(message, self._sequence, metadata)
                        break

    def _redeliver(self, connection: _Connection) -> None:
        for number, (message, attempts) in list(self.open.items()):
            self.open[number] = message, attempts + 1
            connection.send(message, number, ((META_ATTEMPT, str(attempts + 1)),))


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        # It is gone already, which is what was wanted.
        return
