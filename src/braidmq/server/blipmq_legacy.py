"""The framing of the first published releases, where it is switched on: publish and subscribe at QoS 0, and nothing else.

| Command | Answer |
|---|---|
| PUB | nothing |
| SUB | SubAck; messages follow |
| UNSUB | nothing |
| QUIT | the connection ends |

It has no errors: what is refused is dropped, and what is no frame ends the connection. It has no keys: where they are asked for,
it is not served. A Message does not say which topic it is of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import braidmq.wire.blipmq.legacy as legacy
from braidmq.base.errors import BraidError
from braidmq.broker.push import Chunk, Feed, PushRecord
from braidmq.security.roles import Permission
from braidmq.server.blipmq_conversation import OlderConversation
from braidmq.server.blipmq_outlet import Outlet
from braidmq.server.blipmq_publishing import Incoming
from braidmq.server.blipmq_records import Form, Frames, by_offset, describe, expanded
from braidmq.server.blipmq_subscriber import Subscriber, Wanted
from braidmq.wire import blipmq
from braidmq.wire.blipmq import Malformed
from braidmq.wire.blipmq.legacy import Action, Command

if TYPE_CHECKING:
    from braidmq.server.blipmq_session import BlipMQSession


class LegacyOutlet:
    """A connection that speaks this framing."""

    __slots__ = ("_form", "_session", "open", "window")

    def __init__(self, session: BlipMQSession) -> None:
        self._session = session
        self._form = session.service.form(0, frozenset(), False)
        self.window = session.window
        self.open = True

    @property
    def address(self) -> str:
        return self._session.address

    def ready(self) -> bool:
        return self.open and self._session.writable

    def room(self, qos: int) -> int:
        return self._session.service.batch_records

    def accept(self, compressions: frozenset[str]) -> None:
        """This framing has no compressed payloads."""

    def encode(self, feed: Feed, topic: str, chunk: Chunk, stop: int, wanted: bytes | None) -> Frames:
        form = self._form
        return chunk.made(("legacy", stop, wanted), lambda whole: _encode(feed, whole, stop, wanted, form))

    def encode_again(self, feed: Feed, topic: str, record: PushRecord, attempt: int, now_ms: int) -> tuple[bytes, bytes]:
        return b"", _frame(feed, record, self._form)

    def push(self, frames: bytes) -> None:
        self._session.push((frames,))


def _encode(feed: Feed, chunk: Chunk, stop: int, wanted: bytes | None, form: Form) -> Frames:
    frames = [
        _frame(feed, record, form)
        for offset, record in by_offset(chunk).items()
        if offset < stop and (wanted is None or wanted[offset - chunk.first])
    ]
    return Frames(b"".join(frames), len(frames), stop)


def _frame(feed: Feed, record: PushRecord, form: Form) -> bytes:
    sequence = feed.sequence_base + record.offset
    described = describe(record, sequence)
    payload = expanded(record.value, described.compression, form.payload_max)
    return legacy.encode_reply(legacy.Message(sequence, payload, described.timestamp_ms))


class LegacyConversation(OlderConversation):
    def measure(self, data: bytearray | memoryview, position: int) -> int:
        size = int.from_bytes(data[position : position + 4])
        if not 8 <= size <= self.service.frame_max:
            raise Malformed("FRAME_TOO_LARGE", size=size, limit=self.service.frame_max)
        return size

    def outlet(self, qos: int) -> Outlet:
        return LegacyOutlet(self.session)

    def error(self, error: BraidError) -> bytes:
        return b""

    def after(self) -> None:
        """Nothing is put off here."""

    def writable(self) -> None:
        """Whoever delivers is told by the connection."""

    def run(self, body: memoryview) -> bool:
        session = self.session
        command = legacy.decode_command(body)
        if not session.known or command.action == Action.QUIT:
            session.close_when_idle()
            return True
        try:
            match command.action:
                case Action.PUB:
                    return self._publish(command)
                case Action.SUB:
                    return self.timed("subscribe", lambda: self._subscribe(command))
            return self.timed("unsubscribe", lambda: self._unsubscribe(command))
        except Exception as fault:
            session.listener.logger.info("%s: %s", session.address, session.plain_error(fault))
            return True

    def _publish(self, command: Command) -> bool:
        request = blipmq.Publish(command.topic, command.payload, blipmq.AT_MOST_ONCE, command.ttl_ms)
        blipmq.check_request(blipmq.Envelope(request), self.service.payload_max)
        return self.publish(Incoming(command.topic, command.payload, 0, command.ttl_ms, "", (), b"", lambda _: b""))

    def _subscribe(self, command: Command) -> bool:
        session = self.session
        if session.must_wait():
            return False
        if session.listener.stopping:
            raise BraidError("SHUTTING_DOWN")
        wanted = Wanted(blipmq.parse_filter(command.topic), blipmq.AT_MOST_ONCE)
        if not wanted.filter.wild:
            session.authorize(Permission.READ, self.service.stored(wanted.filter.pattern), "subscribe")
        if self.service.knows(wanted.filter, session.principal):
            self._begin(command, wanted)
        else:
            session.run(self.service.begin(wanted.filter, session.principal, lambda: self._begin(command, wanted)))
        return True

    def _begin(self, command: Command, wanted: Wanted) -> None:
        session = self.session
        subscriber = session.subscribers.get("")
        if subscriber is None:
            subscriber = session.subscribers[""] = Subscriber(self.service)
            subscriber.attach(session)
        subscriber.hold(session)
        subscriber.want(wanted, self.service.from_now)
        session.answer(legacy.encode_reply(legacy.SubAck(command.topic)))
        subscriber.open(session)

    def _unsubscribe(self, command: Command) -> bool:
        if self.session.must_wait():
            return False
        subscriber = self.session.subscribers.get("")
        if subscriber is not None:
            subscriber.unwant(command.topic)
        return True
