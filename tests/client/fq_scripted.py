"""A small fq server on real sockets, one thread a connection, that does as it is told: refuse, break off, be silent, not read."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

from braidmq.base.errors import BraidError
from braidmq.wire.fq.auth import Auth
from braidmq.wire.fq.commands import (
    REFUSED,
    STATUS_KEYS,
    AuthAccepted,
    Bind,
    Bound,
    Command,
    CommandReader,
    ErrorReply,
    Heartbeat,
    HeartbeatRequest,
    Reply,
    StatusRequest,
    Unbind,
    Unbound,
    encode_reply,
    encode_status,
)
from braidmq.wire.fq.messages import Message, MessageReader, encode_message
from braidmq.wire.fq.modes import Mode, read_opening
from braidmq.wire.fq.program import Program, parse_program

OWN, HOST = bytes((10, 254, 254, 1)), bytes((127, 0, 0, 1))


class _Client:
    """One client: its command connection, and its data connection when there is one."""

    def __init__(self, command: socket.socket, user: bytes) -> None:
        self.command = command
        self.user = user
        self.data: socket.socket | None = None
        self.bindings: dict[int, tuple[bytes, Program]] = {}
        self.messages_in = 0


class FqPeer:
    """Use as a context manager."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        self._guard = threading.RLock()
        self._changed = threading.Condition(self._guard)
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._clients: dict[bytes, _Client] = {}
        self._route_ids = 0
        self._ended = False
        self.commands: list[Command] = []
        """All commands that came, of all clients."""
        self.received: list[Message] = []
        """All messages that came."""
        self.data_ends = 0
        """Data connections whose client said that nothing more comes."""
        self.refusal: bytes | None = None
        """What the next clients are told in place of a key."""
        self.closed_exchanges: set[bytes] = set()
        """Exchanges that nobody may bind."""
        self.reading = threading.Event()
        """While it is not set nothing is read from data connections."""
        self.reading.set()
        self.answering = threading.Event()
        """While it is not set no command is answered."""
        self.answering.set()

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"{host}:{port}"

    def __enter__(self) -> FqPeer:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self.reading.set()
        self.answering.set()
        self.cut()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
        self._listener.close()
        for end in self._sockets:
            end.close()

    # --- what tests do with it

    def wait_for(self, holds: Callable[[FqPeer], bool], timeout_s: float = 10) -> None:
        """Wait until something is so; it is looked at again whenever anything came."""
        with self._changed:
            assert self._changed.wait_for(lambda: holds(self), timeout_s), "it did not happen"

    def cut(self) -> None:
        """Break every connection there is now."""
        with self._guard:
            for end in self._sockets:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue

    def forget_ids(self) -> None:
        """As a broker does that is started again: route ids are given out anew."""
        with self._guard:
            self._route_ids += 100

    def tell(self, raw: bytes) -> None:
        """Send something on every command connection."""
        with self._guard:
            for client in list(self._clients.values()):
                client.command.sendall(raw)

    def deliver(self, raw: bytes) -> None:
        """Send something on every data connection."""
        for client in list(self._clients.values()):
            if client.data is not None:
                client.data.sendall(raw)

    def counted(self, kind: type[Command]) -> int:
        return sum(isinstance(command, kind) for command in self.commands)

    # --- serving

    def _run(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._ended:
            try:
                end, _ = self._listener.accept()
            except TimeoutError:
                continue
            end.settimeout(None)
            with self._guard:
                self._sockets.append(end)
            self._run(lambda end=end: self._serve(end))  # type: ignore[misc]

    def _serve(self, end: socket.socket) -> None:
        try:
            seen = b""
            while (opening := read_opening(seen)) is None:
                data = end.recv(65536)
                if not data:
                    return
                seen += data
            if opening.mode is Mode.COMMAND:
                self._serve_commands(end, seen[opening.size :])
            elif opening.mode is Mode.DATA and opening.key in self._clients:
                self._serve_data(end, seen[opening.size :], self._clients[opening.key])
        except OSError:
            return
        finally:
            with self._guard:
                end.close()
                self._sockets.remove(end)

    def _serve_commands(self, end: socket.socket, data: bytes) -> None:
        reader = CommandReader()
        client: _Client | None = None
        key = os.urandom(127)
        while True:
            for command in reader.receive(data):
                self.answering.wait()
                if isinstance(command, Auth):
                    if self.refusal is not None:
                        end.sendall(encode_reply(ErrorReply(self.refusal)))
                        return
                    client = self._clients[key] = _Client(end, command.user)
                    answer = encode_reply(AuthAccepted(key)) + encode_reply(Heartbeat())
                else:
                    assert client is not None
                    answer = self._answer(client, command)
                with self._changed:
                    self.commands.append(command)
                    end.sendall(answer)
                    self._changed.notify_all()
            data = end.recv(65536)
            if not data:
                self._clients.pop(key, None)
                return

    def _answer(self, client: _Client, command: Command) -> bytes:
        reply: Reply
        match command:
            case Bind():
                try:
                    program = parse_program(command.program)
                except BraidError:
                    program = None
                if program is None or command.exchange in self.closed_exchanges:
                    reply = Bound(REFUSED)
                else:
                    with self._guard:
                        self._route_ids += 1
                        client.bindings[self._route_ids] = command.exchange, program
                        reply = Bound(self._route_ids)
            case Unbind():
                with self._guard:
                    known = client.bindings.pop(command.route_id, None)
                reply = Unbound(REFUSED if known is None else command.route_id)
            case StatusRequest():
                return encode_status((key, client.messages_in if key == "msgs_in" else 0) for key in STATUS_KEYS)
            case HeartbeatRequest():
                reply = Heartbeat()
            case _:
                return b""
        return encode_reply(reply)

    def _serve_data(self, end: socket.socket, data: bytes, client: _Client) -> None:
        client.data = end
        reader = MessageReader(full=False, payload_max=1 << 20)
        while True:
            messages = reader.receive(data)
            with self._changed:
                self.received += messages
                client.messages_in += len(messages)
                self._changed.notify_all()
            with self._guard:
                # The thread of the commands may bind more meanwhile.
                bindings = list(client.bindings.values())
            for message in messages:
                matching = (
                    program.matches(message.route, message.payload)
                    for exchange, program in bindings
                    if exchange == message.exchange
                )
                if any(matching):
                    full = Message(message.exchange, message.route, message.message_id, message.payload, client.user, (OWN, HOST))
                    end.sendall(encode_message(full, full=True))
            self.reading.wait()
            data = end.recv(65536)
            if not data:
                with self._changed:
                    self.data_ends += 1
                    self._changed.notify_all()
                return
