"""A relay between a client and a broker, on real sockets, that can misbehave in the ways a network or an older server does."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable

from braidmq.base.errors import BraidError
from braidmq.wire.flymq import Dialect, Frame, FrameReader, Op, encode_error, encode_frame

Reject = Callable[[int], bool]


class Relay:
    """Passes frames on to `target`. Use as a context manager."""

    def __init__(self, target: str, *, rejects: Reject = lambda op: False) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._rejects = rejects
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._guard = threading.Lock()
        self.seen: list[int] = []
        """Opcodes of all requests that came."""
        self.lost: list[int] = []
        """Opcodes of answers that were lost."""
        self._mute: set[socket.socket] = set()

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def __enter__(self) -> Relay:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
        for pair in self._pairs:
            for end in pair:
                end.close()

    def lose_answers(self) -> None:
        """From now on what comes over the present connections still reaches the broker, but its answers get lost."""
        with self._guard:
            self._mute.update(client for client, _ in self._pairs)

    def cut(self) -> None:
        """Break every connection there is now."""
        with self._guard:
            pairs = list(self._pairs)
        for pair in pairs:
            for end in pair:
                _shut(end)

    def _run(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(self._target, 5)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            with self._guard:
                self._pairs.append((client, broker))
            # None stands for an answer that the broker gives, bytes for one that is given here, so that order is kept.
            owed: deque[bytes | None] = deque()
            writing = threading.Lock()
            self._run(self._forward, client, broker, owed, writing)
            self._run(self._backward, client, broker, owed, writing)

    def _forward(self, client: socket.socket, broker: socket.socket, owed: deque[bytes | None], writing: threading.Lock) -> None:
        def handle(frame: Frame) -> None:
            self.seen.append(frame.op)
            if self._rejects(frame.op):
                owed.append(encode_error(BraidError("UNKNOWN_OPCODE", opcode=frame.op), Dialect.DOCUMENTED))
                with writing:
                    _give_own(client, owed)
            else:
                owed.append(None)
                broker.sendall(encode_frame(frame.op, frame.payload, frame.flags))

        _pump(client, broker, handle)

    def _backward(self, client: socket.socket, broker: socket.socket, owed: deque[bytes | None], writing: threading.Lock) -> None:
        def handle(frame: Frame) -> None:
            with writing:
                owed.popleft()
                if client not in self._mute:
                    client.sendall(encode_frame(frame.op, frame.payload, frame.flags))
                else:
                    self.lost.append(frame.op)
                _give_own(client, owed)

        _pump(broker, client, handle)


def only_documented(op: int) -> bool:
    """What a server rejects that knows only the documented opcodes."""
    own = op in (Op.PRODUCE_BATCH, Op.FETCH_BATCHES, Op.TXN_OFFSETS) or Op.GROUP_JOIN <= op <= Op.ACCOUNT_ADMIN
    return own or Op.DOCUMENT <= op < Op.ERROR


def _give_own(client: socket.socket, owed: deque[bytes | None]) -> None:
    while owed and (own := owed[0]) is not None:
        client.sendall(own)
        owed.popleft()


def _pump(source: socket.socket, target: socket.socket, handle: Callable[[Frame], None]) -> None:
    reader = FrameReader()
    try:
        while data := source.recv(1 << 16):
            for frame in reader.receive(data):
                handle(frame)
    except OSError:
        _shut(source)
    _shut(target)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        # It is gone already, which is what was wanted.
        return
