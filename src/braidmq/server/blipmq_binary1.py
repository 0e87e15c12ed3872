"""The binary framing of today's published clients, which ask for each message: "binary 1".

| Request | Answer, with the correlation id of the request |
|---|---|
| HELLO of version 1 | ACK 0; NACK 426 for another version, NACK 400 for a second one |
| AUTH | ACK 0; NACK 401 for a wrong key, NACK 400 for a second one or before HELLO |
| anything else before AUTH, where keys are asked for | NACK 401 |
| SUBSCRIBE | ACK with the number of the new subscription |
| PUBLISH | nothing when it is stored, at either QoS; a NACK otherwise |
| POLL | one PUBLISH if a message waits, with its tag (QoS 1) or the POLL's id (QoS 0); else nothing |
| ACK | nothing; NACK 404 for a tag or a subscription that is not this connection's |
| PING | PONG |
| PONG, NACK | nothing |
| what is no frame | the connection ends, without a word |

A subscription is a subscriber of its own that delivers when it is polled and ends with the connection; everything else about it
is as in the other framings, so messages go from one to the other. A QoS 1 message has no id here and is given one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import braidmq.wire.blipmq.binary1 as binary1
from braidmq.base.errors import BraidError
from braidmq.broker.push import Chunk, Feed, PushRecord
from braidmq.broker.push.window import Window
from braidmq.security.roles import Permission
from braidmq.server.blipmq_conversation import OlderConversation
from braidmq.server.blipmq_outlet import Outlet
from braidmq.server.blipmq_publishing import Incoming
from braidmq.server.blipmq_records import Frames, by_offset, describe, expanded
from braidmq.server.blipmq_subscriber import Subscriber, Wanted
from braidmq.wire import blipmq
from braidmq.wire.blipmq import Malformed, Refused
from braidmq.wire.blipmq.binary1 import Frame, Nack

if TYPE_CHECKING:
    from braidmq.server.blipmq_session import BlipMQSession

_TAG_BYTES: Final = 8


class PullOutlet:
    """A subscription of this framing: it takes one message for each POLL."""

    __slots__ = ("_qos", "_session", "_tags", "open", "polls", "window")

    def __init__(self, session: BlipMQSession, qos: int) -> None:
        self._session = session
        self._qos = qos
        self._tags = count(1)
        self.window = Window(session.listener.config.blipmq_max_inflight)
        self.open = True
        self.polls: deque[int] = deque()
        """Correlation ids of POLLs that are not answered yet."""

    @property
    def address(self) -> str:
        return self._session.address

    def ready(self) -> bool:
        return bool(self.polls) and self._session.writable

    def room(self, qos: int) -> int:
        return min(len(self.polls), self.window.room) if qos else len(self.polls)

    def accept(self, compressions: frozenset[str]) -> None:
        """This framing has no compressed payloads."""

    def encode(self, feed: Feed, topic: str, chunk: Chunk, stop: int, wanted: bytes | None) -> Frames:
        frames: list[bytes] = []
        offsets: list[int] = []
        ids: list[bytes] = []
        for offset, record in by_offset(chunk).items():
            if offset >= stop:
                break
            if wanted is None or wanted[offset - chunk.first]:
                own, frame = self.encode_again(feed, topic, record, 1, 0)
                frames.append(frame)
                if own:
                    offsets.append(offset)
                    ids.append(own)
        return Frames(b"".join(frames), len(frames), stop, offsets, ids)

    def encode_again(self, feed: Feed, topic: str, record: PushRecord, attempt: int, now_ms: int) -> tuple[bytes, bytes]:
        described = describe(record, feed.sequence_base + record.offset)
        payload = expanded(record.value, described.compression, self._session.service.payload_max)
        qos = min(described.qos, self._qos)
        poll = self.polls.popleft()
        tag = next(self._tags) if qos else poll
        frame = binary1.encode(Frame(binary1.Publish(topic, payload, qos), tag))
        return tag.to_bytes(_TAG_BYTES) if qos else b"", frame

    def push(self, frames: bytes) -> None:
        self._session.push((frames,))


class Binary1Conversation(OlderConversation):
    def __init__(self, session: BlipMQSession) -> None:
        super().__init__(session)
        self._greeted = False
        self._authenticated = False
        self._subscriptions: dict[int, tuple[Subscriber, PullOutlet]] = {}
        self._polled: dict[int, None] = {}
        """Subscriptions with POLLs to be answered: many are answered together."""
        self._making: PullOutlet | None = None

    def measure(self, data: bytearray | memoryview, position: int) -> int:
        return binary1.body_length(data, position)

    def outlet(self, qos: int) -> Outlet:
        self._making = PullOutlet(self.session, qos)
        return self._making

    # --- answers

    def error(self, error: BraidError) -> bytes:
        return binary1.encode(Frame(binary1.nack(error)))

    def _answer(self, message: binary1.Message, correlation: int) -> bool:
        self.session.answer(binary1.encode(Frame(message, correlation)))
        return True

    def _refuse(self, error: BraidError, correlation: int) -> bool:
        self.session.refuse(binary1.encode(Frame(binary1.nack(error), correlation)))
        return True

    def _nack(self, code: int, text: str, correlation: int) -> bool:
        self.session.refuse(binary1.encode(Frame(Nack(code, text), correlation)))
        return True

    # --- frames

    def run(self, body: memoryview) -> bool:
        try:
            frame = binary1.decode(body)
        except Refused as fault:
            return self._refuse(fault, fault.sequence)
        message = frame.message
        if isinstance(message, binary1.Poll):
            return self._gated(frame, self._poll)
        # What was asked before is answered before.
        self._answer_polls()
        match message:
            case binary1.Hello():
                return self._hello(message, frame.correlation)
            case binary1.Auth():
                return self._auth(message, frame.correlation)
            case _:
                return self._gated(frame, _HANDLERS[type(message)].__get__(self))

    def _gated(self, frame: Frame, handler: Callable[[Any, int], bool]) -> bool:
        """Run a handler for who may ask."""
        if not self.session.known:
            self._nack(binary1.NACK_UNAUTHENTICATED, "unauthenticated", frame.correlation)
            return True
        operation = _OPERATIONS.get(type(frame.message))
        try:
            if operation is None:
                return handler(frame.message, frame.correlation)
            return self.timed(operation, lambda: handler(frame.message, frame.correlation))
        except Malformed:
            raise
        except Exception as fault:
            return self._refuse(self.session.plain_error(fault), frame.correlation)

    def _hello(self, message: binary1.Hello, correlation: int) -> bool:
        if self._greeted:
            return self._nack(binary1.NACK_BAD_REQUEST, "HELLO already performed", correlation)
        if message.version != binary1.VERSION:
            return self._nack(binary1.NACK_VERSION, "unsupported protocol version", correlation)
        self._greeted = True
        return self._answer(binary1.Ack(), correlation)

    def _auth(self, message: binary1.Auth, correlation: int) -> bool:
        if not self._greeted or self._authenticated:
            text = "already authenticated" if self._greeted else "HELLO not performed"
            return self._nack(binary1.NACK_BAD_REQUEST, text, correlation)
        if not self.service.login.possible:
            self._authenticated = True
            return self._answer(binary1.Ack(), correlation)
        return self.start(
            lambda: self._log_in(message.key, correlation), lambda fault: self._refused_frame(fault, correlation),
            self.session.measured("login"),
        )  # fmt: skip

    async def _log_in(self, key: bytes, correlation: int) -> Sequence[bytes]:
        self.session.logged_in(await self.service.login.log_in(key, self.session.ip))
        self._authenticated = True
        return [binary1.encode(Frame(binary1.Ack(), correlation))]

    def _refused_frame(self, error: BraidError, correlation: int) -> bytes:
        return binary1.encode(Frame(binary1.nack(error), correlation))

    # --- messages

    def _publish(self, message: binary1.Publish, correlation: int) -> bool:
        if not message.topic:
            return self._nack(binary1.NACK_BAD_REQUEST, "empty topic", correlation)
        own = f"b1-{self.session.lane}-{correlation}" if message.qos else ""
        request = blipmq.Publish(message.topic, message.payload, message.qos, 0, own or None)
        if message.qos > blipmq.AT_LEAST_ONCE:
            return self._nack(binary1.NACK_BAD_REQUEST, "invalid QoS value", correlation)
        blipmq.check_request(blipmq.Envelope(request, correlation), self.service.payload_max)

        def refuse(error: Exception) -> bytes:
            fault = self.session.plain_error(error)
            nack = binary1.nack(fault)
            if message.qos and fault.code.startswith("STORAGE"):
                nack = Nack(nack.code, f"durable publish failed: {fault.text}")
            return binary1.encode(Frame(nack, correlation))

        return self.publish(Incoming(message.topic, message.payload, message.qos, 0, own, (), b"", refuse))

    def _subscribe(self, message: binary1.Subscribe, correlation: int) -> bool:
        session, service = self.session, self.service
        if session.must_wait():
            return False
        if not message.topic:
            return self._nack(binary1.NACK_BAD_REQUEST, "empty topic", correlation)
        if message.qos > blipmq.AT_LEAST_ONCE:
            return self._nack(binary1.NACK_BAD_REQUEST, "invalid QoS value", correlation)
        if session.listener.stopping:
            raise BraidError("SHUTTING_DOWN")
        wanted = Wanted(blipmq.parse_filter(message.topic), message.qos)
        if not wanted.filter.wild:
            session.authorize(Permission.READ, service.stored(wanted.filter.pattern), "subscribe")
        if service.knows(wanted.filter, session.principal):
            self._begin(wanted, correlation)
        else:
            refusal = lambda fault: binary1.encode(Frame(binary1.nack(session.plain_error(fault)), correlation))  # noqa: E731
            session.run(service.begin(wanted.filter, session.principal, lambda: self._begin(wanted, correlation)), refusal)
        return True

    def _begin(self, wanted: Wanted, correlation: int) -> None:
        session, service = self.session, self.service
        number = next(service.subscription_numbers)
        name = f"binary1:{number}"
        subscriber = session.subscribers[name] = Subscriber(service, name)
        subscriber.attach(session)
        outlet = subscriber.make_outlet(wanted.qos)
        assert isinstance(outlet, PullOutlet)
        subscriber.want(wanted, service.from_now)
        self._subscriptions[number] = (subscriber, outlet)
        self._answer(binary1.Ack(number), correlation)

    def _poll(self, message: binary1.Poll, correlation: int) -> bool:
        if not message.subscription:
            return self._nack(binary1.NACK_BAD_REQUEST, "subscription_id must be non-zero", correlation)
        known = self._subscriptions.get(message.subscription)
        if known is not None:
            known[1].polls.append(correlation)
            self._polled[message.subscription] = None
        return True

    def after(self) -> None:
        self._answer_polls()

    def _answer_polls(self) -> None:
        polled, self._polled = self._polled, {}
        if not polled:
            return
        ended = self.session.measured("poll")
        for number in polled:
            self._serve(*self._subscriptions[number])
        ended()

    def _serve(self, subscriber: Subscriber, outlet: PullOutlet) -> None:
        served = subscriber.queue or subscriber.stream
        if served is not None:
            served.catch_up()
        subscriber.deliver()
        waiting = served is not None and bool(served.pending) and outlet.window.room > 0
        if self.session.writable and not waiting:
            # Nothing is there for them: such POLLs are not answered, now or later.
            outlet.polls.clear()

    def writable(self) -> None:
        for subscriber, outlet in self._subscriptions.values():
            if outlet.polls:
                self._serve(subscriber, outlet)

    def _ack(self, message: binary1.Ack, correlation: int) -> bool:
        if not message.subscription:
            return self._nack(binary1.NACK_BAD_REQUEST, "subscription_id must be non-zero", correlation)
        known = self._subscriptions.get(message.subscription)
        entry = None if known is None else known[1].window.take(correlation.to_bytes(_TAG_BYTES))
        if entry is None:
            return self._nack(binary1.NACK_NOT_FOUND, "unknown subscription or delivery tag", correlation)
        owner, feed, offset = entry
        owner.acked(feed, (offset,))
        self.session.settled({owner: None})
        return True

    def _ping(self, message: binary1.Ping, correlation: int) -> bool:
        return self._answer(binary1.Pong(), correlation)

    def _nothing(self, message: binary1.Pong | Nack, correlation: int) -> bool:
        return True


_HANDLERS: Final[dict[type, Callable[[Binary1Conversation, Any, int], bool]]] = {
    binary1.Publish: Binary1Conversation._publish,
    binary1.Subscribe: Binary1Conversation._subscribe,
    binary1.Ack: Binary1Conversation._ack,
    binary1.Ping: Binary1Conversation._ping,
    binary1.Pong: Binary1Conversation._nothing,
    Nack: Binary1Conversation._nothing,
}
"""By the kind of message, of those that need HELLO and AUTH first; POLL is taken apart before."""
_OPERATIONS: Final[dict[type, str]] = {binary1.Subscribe: "subscribe", binary1.Ack: "ack", binary1.Ping: "ping"}
"""What is measured here. A PUBLISH is measured until it is durable, where it is taken in; POLLs that came together, once."""
