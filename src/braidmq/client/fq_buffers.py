"""What an fq client holds between the program and the sockets. No I/O, no waiting, no clock.

Both buffers are bounded by bytes. Published messages wait in `Outgoing` while there is no connection, or while the broker does not
read (a `block` queue that is full); received ones wait in `Incoming` until the program takes them.

Every method is called with `mutex` held.
"""

from __future__ import annotations

import threading
from collections import deque

from braidmq.base.errors import BraidError
from braidmq.wire.fq.messages import Message


class Binding:
    """A route program that decides which messages of an exchange the queue gets. It is made again after reconnecting."""

    __slots__ = ("exchange", "flags", "program", "route_id")

    def __init__(self, exchange: bytes, program: bytes, flags: int) -> None:
        self.exchange = exchange
        self.program = program
        self.flags = flags
        self.route_id = 0
        """The broker's number for it; another one after reconnecting."""

    def __repr__(self) -> str:
        return f"Binding({self.exchange!r}, {self.program!r}, route_id={self.route_id})"


class Outgoing:
    """Frames on their way to the broker."""

    __slots__ = ("_frames", "_size", "_taken", "buffer_bytes", "mutex")

    def __init__(self, buffer_bytes: int) -> None:
        self.mutex = threading.Lock()
        self.buffer_bytes = buffer_bytes
        self._frames: deque[bytes] = deque()
        self._size = 0
        self._taken = 0
        """Frames handed out and not done with."""

    def __len__(self) -> int:
        """Frames that the socket has not taken yet."""
        return len(self._frames) + self._taken

    @property
    def full(self) -> bool:
        return self._size >= self.buffer_bytes

    def add(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._size += len(frame)

    def take(self, bytes_target: int) -> list[bytes]:
        """The oldest frames, up to about so many bytes; `done` says what became of them."""
        taken: list[bytes] = []
        size = 0
        while self._frames and size < bytes_target:
            frame = self._frames.popleft()
            size += len(frame)
            taken.append(frame)
        self._size -= size
        self._taken += len(taken)
        return taken

    def done(self, count: int) -> None:
        """So many frames that were taken are the socket's now, or lost."""
        self._taken -= count


class Incoming:
    """Messages on their way to the program."""

    __slots__ = ("_messages", "_size", "fault", "mutex", "prefetch_bytes")

    def __init__(self, prefetch_bytes: int) -> None:
        self.mutex = threading.Lock()
        self.prefetch_bytes = prefetch_bytes
        self.fault: BraidError | None = None
        """Why nothing more comes; the program hears it behind the last message."""
        self._messages: deque[Message] = deque()
        self._size = 0

    @property
    def full(self) -> bool:
        return self._size >= self.prefetch_bytes

    def add(self, messages: list[Message]) -> None:
        self._messages.extend(messages)
        self._size += sum(len(message.payload) + 64 for message in messages)

    def take(self, most: int) -> list[Message]:
        """The oldest messages, at most so many. Raises the fault when there are none left in front of it."""
        taken: list[Message] = []
        while self._messages and len(taken) < most:
            message = self._messages.popleft()
            self._size -= len(message.payload) + 64
            taken.append(message)
        if not taken and self.fault is not None:
            raise self.fault
        return taken
