"""What a BlipMQ client holds between the program and the socket. No I/O, no waiting, no clock.

A publish with QoS 1 stays in the `Outbox` until the broker has acknowledged or refused it. When a connection is lost, everything
that is not settled goes to the front again, in its order and with its message_id, so the broker gets it at least once; one with
QoS 0 is forgotten as soon as a socket has taken it.

An acknowledgement of a delivery names only the message_id on the connection that delivered it, where no two deliveries with one
id are open at a time. On a later connection it names the delivery's sequence number too: it then settles that delivery or none.

Every method is called with `mutex` held.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, Generic, Protocol, TypeVar

from braidmq.base.errors import ERRORS, BraidError
from braidmq.client.faults import ServerError
from braidmq.wire.blipmq import META_DELIVERY, Ack, Envelope, ErrorCode, ErrorMessage, Metadata, encode

ITEM_BYTES: Final = 64
"""What keeping a message costs besides its bytes."""

_CODES: Final[dict[int, str]] = {
    ErrorCode.INVALID_TOPIC: "INVALID_TOPIC",
    ErrorCode.TOPIC_NOT_FOUND: "TOPIC_NOT_FOUND",
    ErrorCode.MESSAGE_TOO_LARGE: "RECORD_TOO_LARGE",
    ErrorCode.QUEUE_FULL: "QUEUE_FULL",
    ErrorCode.AUTHENTICATION_FAILED: "INVALID_CREDENTIALS",
    ErrorCode.AUTHORIZATION_FAILED: "UNAUTHORIZED",
    ErrorCode.PROTOCOL_ERROR: "INVALID_MESSAGE",
    ErrorCode.TTL_EXPIRED: "TTL_EXPIRED",
}
"""What a code of the protocol means where the broker is not ours and says no more than that."""


def refusal(message: ErrorMessage) -> ServerError:
    """The error of the table that an Error frame stands for, with the broker's own sentence."""
    details = message.details or ""
    code, separator, sentence = details.partition(": ")
    if separator and code in ERRORS and ERRORS[code].blipmq == message.error_code:
        return ServerError(code, sentence)
    text = ": ".join(part for part in (message.message, message.details) if part)
    return ServerError(_CODES.get(message.error_code, "SERVER_ERROR"), text or f"error {message.error_code}")


class Publication(Protocol):
    """A publish on its way."""

    frame: bytes
    sequence: int
    acknowledged: bool
    """Whether the broker answers it: QoS 1."""

    def settle(self, fault: BraidError | None) -> None:
        """The broker has taken it, or it never will."""


P = TypeVar("P", bound=Publication)


class Settlement:
    """What becomes of a delivery."""

    __slots__ = ("code", "link", "message_id", "sequence")

    def __init__(self, message_id: str, code: int, sequence: int, link: int) -> None:
        self.message_id = message_id
        self.code = code
        self.sequence = sequence
        self.link = link
        """The number of the connection that the delivery came over."""

    def encode(self, link: int, sequence: int) -> bytes:
        metadata: Metadata = () if link == self.link else ((META_DELIVERY, str(self.sequence)),)
        return encode(Envelope(Ack(self.message_id, self.code), sequence, 0, metadata))


class Outbox(Generic[P]):
    """Publishes and acknowledgements on their way to the broker."""

    def __init__(self, buffer_bytes: int) -> None:
        self.mutex = threading.Lock()
        self.buffer_bytes = buffer_bytes
        self._waiting: deque[P] = deque()
        self._sent: dict[int, P] = {}
        """Publishes that a socket has taken and nobody has acknowledged, in their order."""
        self._settlements: deque[Settlement] = deque()
        self._size = 0
        self._handed = 0
        """Frames handed out and not done with."""
        self._sequence = 0
        self.waiting_bytes = 0
        """Bytes that no socket has taken."""
        self.owed = 0
        """Publishes that the broker has to answer yet, sent or not."""

    @property
    def full(self) -> bool:
        return self._size >= self.buffer_bytes

    @property
    def unsettled(self) -> int:
        """Publishes and acknowledgements whose fate is open."""
        return len(self._waiting) + len(self._sent) + len(self._settlements) + self._handed

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def add(self, publication: P) -> None:
        self._waiting.append(publication)
        self._size += len(publication.frame) + ITEM_BYTES
        self.waiting_bytes += len(publication.frame)
        self.owed += publication.acknowledged

    def acknowledge(self, settlement: Settlement) -> None:
        self._settlements.append(settlement)

    def take(self, bytes_target: int, link: int) -> list[bytes]:
        """The next frames for a connection, up to about so many bytes; `done` says that the socket has them."""
        taken: list[bytes] = []
        size = 0
        while self._settlements and size < bytes_target:
            taken.append(self._settlements.popleft().encode(link, self.next_sequence()))
            size += len(taken[-1])
        while self._waiting and size < bytes_target:
            publication = self._waiting.popleft()
            taken.append(publication.frame)
            size += len(publication.frame)
            self.waiting_bytes -= len(publication.frame)
            if publication.acknowledged:
                self._sent[publication.sequence] = publication
            else:
                self._size -= len(publication.frame) + ITEM_BYTES
        self._handed += len(taken)
        return taken

    def done(self, count: int) -> None:
        """So many frames that were taken are the socket's now, or lost."""
        self._handed -= count

    def settle(self, sequence: int, fault: BraidError | None) -> bool:
        """The broker's answer to a publish; False when there is none of that number."""
        publication = self._sent.pop(sequence, None)
        if publication is None:
            return False
        self._let_go(publication, fault)
        return True

    def give_up(self, publication: P, fault: BraidError) -> None:
        """Nobody waits for this one any more; it is not sent again."""
        if self._sent.pop(publication.sequence, None) is None:
            if publication not in self._waiting:
                return
            self._waiting.remove(publication)
            self.waiting_bytes -= len(publication.frame)
        self._let_go(publication, fault)

    def _let_go(self, publication: P, fault: BraidError | None) -> None:
        self._size -= len(publication.frame) + ITEM_BYTES
        self.owed -= publication.acknowledged
        publication.settle(fault)

    def begin_again(self) -> None:
        """A connection was lost: what it took and nobody acknowledged is sent again, first and in order."""
        self.waiting_bytes += sum(len(publication.frame) for publication in self._sent.values())
        self._waiting.extendleft(reversed(self._sent.values()))
        self._sent.clear()

    def fail(self, fault: BraidError) -> None:
        """There will be no other connection."""
        for publication in (*self._sent.values(), *self._waiting):
            publication.settle(fault)
        self._sent.clear()
        self._waiting.clear()
        self._settlements.clear()
        self._size = self.waiting_bytes = self.owed = 0


class Received(Protocol):
    """A message on its way to the program."""

    payload: bytes


M = TypeVar("M", bound=Received)


class Inbox(Generic[M]):
    """Messages on their way to the program."""

    def __init__(self, prefetch_bytes: int) -> None:
        self.mutex = threading.Lock()
        self.prefetch_bytes = prefetch_bytes
        self.fault: BraidError | None = None
        """Why nothing more comes; the program hears it behind the last message."""
        self._messages: deque[M] = deque()
        self._size = 0

    @property
    def full(self) -> bool:
        return self._size >= self.prefetch_bytes

    def add(self, message: M) -> None:
        self._messages.append(message)
        self._size += len(message.payload) + ITEM_BYTES

    def take(self, most: int) -> list[M]:
        """The oldest messages, at most so many. Raises the fault when there are none left in front of it."""
        taken: list[M] = []
        while self._messages and len(taken) < most:
            message = self._messages.popleft()
            self._size -= len(message.payload) + ITEM_BYTES
            taken.append(message)
        if not taken and self.fault is not None:
            raise self.fault
        return taken
