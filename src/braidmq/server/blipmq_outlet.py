"""Where deliveries go: one connection's side of a subscription, whichever framing it speaks.

A subscription decides what goes out and in which order; an outlet knows whether its connection can take it, how records are
written there, and which deliveries the connection has not settled (`window`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from braidmq.broker.push import Chunk, Feed, PushRecord
from braidmq.broker.push.window import Window
from braidmq.server.blipmq_records import Form, Frames, encode_record, encode_run

if TYPE_CHECKING:
    from braidmq.server.blipmq_session import BlipMQSession


class Outlet(Protocol):
    window: Window
    open: bool
    """Whether the Ack of the subscription is out: before it nothing is delivered."""

    @property
    def address(self) -> str:
        """Of the other end."""

    def ready(self) -> bool:
        """Whether the connection takes deliveries."""

    def room(self, qos: int) -> int:
        """How many may go out at a QoS; at QoS 1 they have to be acknowledged."""

    def accept(self, compressions: frozenset[str]) -> None:
        """Say which compressions of payloads are understood."""

    def encode(self, feed: Feed, topic: str, chunk: Chunk, stop: int, wanted: bytes | None) -> Frames:
        """Records of a chunk before `stop`."""

    def encode_again(self, feed: Feed, topic: str, record: PushRecord, attempt: int, now_ms: int) -> tuple[bytes, bytes]:
        """One record once more: its id, and the frame."""

    def push(self, frames: bytes) -> None:
        """Send."""


class FlatOutlet:
    """A connection that speaks FlatBuffers and takes whatever there is."""

    __slots__ = ("_form", "_qos", "_session", "open", "window")

    def __init__(self, session: BlipMQSession, qos: int) -> None:
        self._session = session
        self._qos = qos
        self.window = session.window
        self.open = True
        self._form: Form
        self.accept(frozenset())

    @property
    def address(self) -> str:
        return self._session.address

    def ready(self) -> bool:
        return self.open and self._session.writable

    def room(self, qos: int) -> int:
        return self.window.room if qos else self._session.service.batch_records

    def accept(self, compressions: frozenset[str]) -> None:
        self._form = self._session.service.form(self._qos, compressions, self._session.is_link)

    def encode(self, feed: Feed, topic: str, chunk: Chunk, stop: int, wanted: bytes | None) -> Frames:
        form = self._form
        if form.qos_max and stop < chunk.next_offset:
            # Cut to the room of one connection's window: of no use to others.
            return encode_run(feed, topic, chunk, stop, wanted, form)
        return chunk.made((form, stop, wanted), lambda whole: encode_run(feed, topic, whole, stop, wanted, form))

    def encode_again(self, feed: Feed, topic: str, record: PushRecord, attempt: int, now_ms: int) -> tuple[bytes, bytes]:
        return encode_record(feed, topic, record, self._form, attempt=attempt, now_ms=now_ms)

    def push(self, frames: bytes) -> None:
        self._session.push((frames,))
