"""The FlatBuffers framing, as a connection speaks it: what each message leads to.

| From a client | when it is done | when it is refused |
|---|---|---|
| Subscribe | Ack, message_id is the filter as sent; deliveries follow | Error 1, 2, 5, 6, 7, 8 |
| Unsubscribe | Ack, message_id is the filter; code 2 if it was not active | Error 1, 5, 6, 8 |
| Publish, QoS 0 | nothing | Error 1, 2, 3, 5, 6, 7, 8 |
| Publish, QoS 1 | Ack with its message_id, when it is as durable as its topic asks | Error 1 to 9, metadata `message_id` |
| Ack | nothing, ever: an id that is not known is passed over | nothing |
| Ping | Pong, timestamp copied | Error 5 |
| Pong, Error | nothing | nothing |
| Message | | Error 8 |
| a type that is not known | | Error 8 |
| what is no frame | | Error 8 or 3, and the connection ends |

An answer repeats the sequence number of its request, and answers leave in the order of their requests. A run of plain Publish
frames goes through the compiled parser, a run of plain Acks through `blipmq_acks.py`; everything else comes through here one by
one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from braidmq import hot
from braidmq.base.errors import BraidError
from braidmq.log.partition import PartitionLog
from braidmq.security.roles import Permission
from braidmq.server.blipmq_acks import parse_acks
from braidmq.server.blipmq_outlet import FlatOutlet, Outlet
from braidmq.server.blipmq_publishing import Incoming, Publishing
from braidmq.server.blipmq_queue import NACK
from braidmq.server.blipmq_records import COMPRESSIONS
from braidmq.server.blipmq_subscriber import SharedGroup, Subscriber, Wanted
from braidmq.wire import blipmq
from braidmq.wire.blipmq import (
    Ack,
    Envelope,
    ErrorCode,
    ErrorMessage,
    Ping,
    Pong,
    Publish,
    Subscribe,
    TooLarge,
    Unsubscribe,
    WireFault,
)
from braidmq.wire.blipmq.topics import SHARE_PREFIX

if TYPE_CHECKING:
    from braidmq.server.blipmq_session import BlipMQSession

_KEEPALIVE_S_MAX: Final = 3600
_EXPIRY_S_MAX: Final = 100 * 365 * 24 * 3600


class FlatConversation:
    def __init__(self, session: BlipMQSession) -> None:
        self._session = session
        self._service = session.service
        self._publishing = Publishing(session)
        self._skip = 0
        """Bytes of a frame that is too large, yet to be read past."""
        self._later: Awaitable[Sequence[bytes]] | None = None
        """What a login has to wait for, besides itself."""
        self._ended: Callable[[], None] | None = None
        """Called at the end of the frame that is being performed, where that is measured."""

    # --- frames

    def take(self, data: memoryview, position: int, stop: int) -> int:
        session, service = self._session, self._service
        commit, steady = session.broker.commit, session.broker.steady
        out = session.out
        if out is None:
            out = session.out = hot.ByteBuffer()
        unanswered = 0
        while position < stop:
            if self._skip:
                step = min(self._skip, stop - position)
                self._skip -= step
                position += step
                continue
            start = position
            position, count, status = hot.parse_publish(
                data, start, stop, session.routes(), session.lane, service.payload_max, steady.now_ms(), service.now_ticks(),
                commit.dirty, out,
            )  # fmt: skip
            if count:
                unanswered += count
                session.last_frame_at = session.listener.now
                if session.metered:
                    session.charge(position - start, count)
            if status == hot.NEED_MORE:
                break
            if status == hot.FULL:
                session.send_run(unanswered)
                unanswered = 0
                commit.flush()
                continue
            start = position
            position = self._take_acks(data, start, stop)
            if position == start:
                session.send_run(unanswered)
                unanswered = 0
                position = self._take_frame(data, start, stop)
                if position == start:
                    break
            if session.metered:
                session.charge(position - start, 1)
            if session.blocked:
                break
        session.send_run(unanswered)
        return position

    def _take_acks(self, data: memoryview, position: int, stop: int) -> int:
        session = self._session
        if not session.known:
            return position
        position, ids = parse_acks(data, position, stop)
        if ids:
            ended = session.measured("ack")
            session.last_frame_at = session.listener.now
            session.acked(ids)
            ended()
        return position

    def _take_frame(self, data: memoryview, position: int, stop: int) -> int:
        """Run the one frame at `position`; returns where the next begins, or `position` when it cannot run yet."""
        if stop - position < blipmq.LENGTH_BYTES:
            return position
        session = self._session
        try:
            size = blipmq.body_length(data, position, self._service.frame_max)
        except TooLarge as fault:
            session.last_frame_at = session.listener.now
            session.refuse(self._refusal(fault, 0))
            self._skip = fault.frame_bytes - min(fault.frame_bytes, stop - position)
            return min(stop, position + fault.frame_bytes)
        except WireFault as fault:
            self._end(fault)
            return stop
        end = position + blipmq.LENGTH_BYTES + size
        if end > stop:
            return position
        try:
            envelope = blipmq.decode(data[position + blipmq.LENGTH_BYTES : end])
        except WireFault as fault:
            session.last_frame_at = session.listener.now
            if fault.closes:
                self._end(fault)
                return stop
            session.refuse(self._refusal(fault, fault.sequence, fault.subject))
            return end
        session.last_frame_at = session.listener.now
        return end if self._run(envelope) else position

    def awaits_more(self, held: bytearray) -> bool:
        if self._skip or len(held) < blipmq.LENGTH_BYTES:
            return False
        try:
            return len(held) < blipmq.LENGTH_BYTES + blipmq.body_length(held, 0, self._service.frame_max)
        except WireFault:
            # A wrong length is for `take` to refuse, at once.
            return False

    # --- answers

    def _frame(self, message: Ack | Pong, sequence: int) -> bytes:
        return blipmq.encode(Envelope(message, sequence, self._service.now_ticks()))

    def _refusal(self, fault: Exception, sequence: int, subject: str | None = None) -> bytes:
        error = self._session.plain_error(fault)
        return blipmq.encode(blipmq.error_envelope(error, sequence, self._service.now_ticks(), subject))

    def error(self, error: BraidError) -> bytes:
        return self._refusal(error, 0)

    def failed_run(self, answers: bytes, failures: Mapping[PartitionLog, BraidError]) -> bytes:
        """An Ack does not say which partition its message went to: none of the run is acknowledged, and publishers repeat it."""
        error = next(iter(failures.values()))
        frames = blipmq.FrameReader(self._service.frame_max).receive(answers)
        parts = []
        for frame in frames:
            assert not isinstance(frame, TooLarge), "an Ack of ours"
            envelope = blipmq.decode(frame)
            assert isinstance(envelope.message, Ack), "runs are answered with Acks"
            parts.append(self._refusal(error, envelope.sequence, envelope.message.message_id))
        return b"".join(parts)

    def _end(self, fault: WireFault) -> None:
        """Say what was wrong and close: nothing that follows can be trusted."""
        self._session.refuse(self._refusal(fault, fault.sequence, fault.subject))
        self._session.close_when_idle()

    # --- one frame

    def _run(self, envelope: Envelope) -> bool:
        """Do what a frame says; False when it has to wait until earlier answers are out."""
        session, login = self._session, self._service.login
        key = None
        if not session.known or (login.possible and not session.credential):
            key = self._key_in(envelope)
            if key is None and not session.known:
                session.refuse(self._refusal(BraidError("AUTHENTICATION_REQUIRED"), envelope.sequence, _subject(envelope)))
                if session.refuse_stranger():
                    session.close_when_idle()
                return True
        try:
            if key is not None:
                if session.must_wait():
                    return False
                session.run(self._log_in(key, envelope), self._error_for(envelope), session.measured("login"))
                return True
            return self._measured(envelope)
        except Exception as fault:
            session.refuse(self._error_for(envelope)(fault))
            return True

    def _measured(self, envelope: Envelope) -> bool:
        """Perform, and count how long what was answered at once took; what takes longer is counted at its end."""
        operation = _OPERATIONS.get(type(envelope.message))
        if operation is None:
            return self._perform(envelope)
        ended = self._ended = self._session.measured(operation)
        try:
            done = self._perform(envelope)
        except Exception:
            ended()
            raise
        finally:
            self._ended = None
        if done and not self._session.running:
            ended()
        return done

    def _perform(self, envelope: Envelope) -> bool:
        self._read_options(envelope)
        blipmq.check_request(envelope, self._service.payload_max)
        return _HANDLERS[type(envelope.message)](self, envelope, envelope.message)

    def _error_for(self, envelope: Envelope) -> Callable[[Exception], bytes]:
        return lambda fault: self._refusal(fault, envelope.sequence, _subject(envelope))

    def _read_options(self, envelope: Envelope) -> None:
        """What any frame may say about the connection."""
        for name, value in envelope.metadata:
            if name == blipmq.META_KEEPALIVE:
                self._session.keepalive_s = _number(name, value, 1, _KEEPALIVE_S_MAX)
            elif name == blipmq.META_BROKER_ID:
                self._session.is_link = True

    # --- logging in

    def _key_in(self, envelope: Envelope) -> bytes | None:
        message = envelope.message
        if isinstance(message, Publish) and message.topic == blipmq.AUTH_TOPIC:
            return message.payload
        key = envelope.meta(blipmq.META_API_KEY)
        return None if key is None else key.encode()

    async def _log_in(self, key: bytes, envelope: Envelope) -> Sequence[bytes]:
        session, message = self._session, envelope.message
        try:
            session.logged_in(await self._service.login.log_in(key, session.ip))
        except BraidError:
            session.close_when_idle()
            raise
        confirmed = isinstance(message, Ping | Ack) or (isinstance(message, Publish) and not message.qos)
        if confirmed:
            session.write([self._frame(Ack(blipmq.ACK_OF_LOGIN), envelope.sequence)])
        # Nothing is due, so it runs at once; what takes longer goes on where this ends.
        self._later = None
        self._perform(envelope)
        later, self._later = self._later, None
        return [] if later is None else await later

    # --- publishing

    def _publish(self, envelope: Envelope, message: Publish) -> bool:
        session = self._session
        if message.topic == blipmq.AUTH_TOPIC:
            # A key, and the connection is open already.
            if message.qos:
                session.answer(self._frame(Ack(message.message_id or ""), envelope.sequence))
            return True
        own = message.message_id or ""
        answer = self._frame(Ack(own), envelope.sequence) if message.qos else b""
        incoming = Incoming(
            message.topic, message.payload, message.qos, message.ttl_ms, own, envelope.metadata, answer, self._error_for(envelope)
        )
        self._publishing.check(incoming)
        if self._publishing.take(incoming):
            return True
        return self._start(lambda: self._publishing.take_later(incoming), envelope)

    def _start(self, operation: Callable[[], Awaitable[Sequence[bytes]]], envelope: Envelope) -> bool:
        """Run something that takes time, when every earlier answer is out."""
        session = self._session
        if session.running:
            # Part of a login, which waits for it.
            self._later = operation()
            return True
        if session.must_wait():
            return False
        session.run(operation(), self._error_for(envelope), self._ended)
        return True

    # --- subscribing

    def _subscribe(self, envelope: Envelope, message: Subscribe) -> bool:
        session, service = self._session, self._service
        if session.must_wait():
            return False
        if session.listener.stopping:
            raise BraidError("SHUTTING_DOWN")
        wanted = self._wanted(envelope, message)
        if not wanted.filter.wild:
            name = service.stored(wanted.filter.pattern)
            session.authorize(Permission.READ, name, "subscribe")
            if service.config.blipmq_strict_topics and session.broker.topics.get(name) is None:
                raise BraidError("TOPIC_NOT_FOUND", topic=wanted.filter.pattern)
        client_id = message.client_id or ""
        name = wanted.text if wanted.filter.group is not None else client_id
        ack = self._frame(Ack(message.topic), envelope.sequence)
        if client_id.startswith(SHARE_PREFIX):
            raise BraidError("INVALID_MESSAGE", reason=f"a client_id does not begin with {SHARE_PREFIX}")
        if (client_id and wanted.qos) or service.durables.has(name):
            expiry_s = envelope.meta(blipmq.META_DURABLE_EXPIRY)
            kept_s = service.config.blipmq_durable_expiry_s
            if expiry_s is not None:
                kept_s = _number(blipmq.META_DURABLE_EXPIRY, expiry_s, 1, _EXPIRY_S_MAX)
            return self._start(lambda: self._subscribe_durably(wanted, client_id, kept_s, ack), envelope)
        if not service.knows(wanted.filter, session.principal):
            begin = lambda: self._begin(name, wanted, ack)  # noqa: E731
            return self._start(lambda: service.begin(wanted.filter, session.principal, begin), envelope)
        self._begin(name, wanted, ack)
        return True

    def _begin(self, name: str, wanted: Wanted, ack: bytes) -> None:
        """Serve a filter for as long as the connection lasts."""
        subscriber = self._subscriber(name, wanted)
        try:
            subscriber.want(wanted, self._service.from_now)
            self._session.answer(ack)
        finally:
            subscriber.open(self._session)

    def _subscriber(self, name: str, wanted: Wanted) -> Subscriber:
        """The subscriber of this connection that a filter is for; it holds back what it would deliver."""
        session, service = self._session, self._service
        if wanted.filter.group is None:
            subscriber = session.subscribers.get(name)
            if subscriber is None:
                subscriber = session.subscribers[name] = Subscriber(service, name)
                subscriber.hold(session)
                subscriber.attach(session)
        else:
            group = service.shared.get(name)
            if group is None:
                group = service.shared[name] = SharedGroup(service, name)
            group.hold(session)
            group.join(session, wanted.qos)
            subscriber = session.subscribers[name] = group
        subscriber.hold(session)
        return subscriber

    async def _subscribe_durably(self, wanted: Wanted, client_id: str, expiry_s: float, ack: bytes) -> Sequence[bytes]:
        session = self._session
        subscriber = await self._service.durables.subscribe(session, wanted, client_id, expiry_s)
        session.write([ack])
        subscriber.open(session)
        return []

    def _wanted(self, envelope: Envelope, message: Subscribe) -> Wanted:
        expression = envelope.meta(blipmq.META_FILTER)
        content = None if expression is None else blipmq.parse_expression(expression)
        named = (envelope.meta(blipmq.META_ACCEPT_COMPRESSION) or "").split(",")
        accepts = frozenset(name.strip() for name in named) & frozenset(COMPRESSIONS)
        return Wanted(blipmq.parse_filter(message.topic), message.qos, content, accepts)

    def _unsubscribe(self, envelope: Envelope, message: Unsubscribe) -> bool:
        session, service = self._session, self._service
        if session.must_wait():
            return False
        text, client_id = message.topic, message.client_id or ""
        name = text if blipmq.parse_filter(text).group is not None else client_id
        if service.durables.has(name):
            return self._start(lambda: self._unsubscribe_durably(text, client_id, envelope.sequence), envelope)
        session.answer(self._unsubscribed(text, self._take_away(name, text), envelope.sequence))
        return True

    def _take_away(self, name: str, text: str) -> bool:
        """Take a filter from a subscriber that ends with this connection; whether it was there."""
        session = self._session
        subscriber = session.subscribers.get(name)
        if subscriber is None or subscriber.group:
            return False
        if isinstance(subscriber, SharedGroup):
            self._service.leave_shared(subscriber, session)
            del session.subscribers[name]
            return True
        was = subscriber.unwant(text) is not None
        if not subscriber.filters:
            subscriber.close()
            del session.subscribers[name]
        return was

    def _unsubscribed(self, text: str, was: bool, sequence: int) -> bytes:
        return self._frame(Ack(text, ErrorCode.NONE if was else ErrorCode.TOPIC_NOT_FOUND), sequence)

    async def _unsubscribe_durably(self, text: str, client_id: str, sequence: int) -> Sequence[bytes]:
        was = await self._service.durables.unsubscribe(self._session, text, client_id)
        return [self._unsubscribed(text, self._take_away(client_id, text) or was, sequence)]

    # --- settling, and the rest

    def _ack(self, envelope: Envelope, message: Ack) -> bool:
        window = self._session.window
        own = message.message_id.encode()
        entry = window.find(own)
        if entry is None or message.error_code == ErrorCode.NONE:
            delivery = envelope.meta(blipmq.META_DELIVERY)
            if entry is None or delivery is None or delivery == str(entry[1].sequence_base + entry[2]):
                self._session.acked([own])
            else:
                window.copy_answered(own)
            return True
        queue, feed, offset = entry
        if message.error_code == NACK:
            window.refused(own)
        else:
            window.take(own)
        queue.refused(feed, offset, message.error_code)
        self._session.settled({queue: None})
        return True

    def _ping(self, envelope: Envelope, message: Ping) -> bool:
        # A broker at the other end is told which one this is, so that neither sends the other what came from there.
        named = ((blipmq.META_BROKER_ID, self._service.broker_id),) if self._session.is_link else ()
        pong = Envelope(Pong(message.timestamp), envelope.sequence, self._service.now_ticks(), named)
        self._session.answer(blipmq.encode(pong))
        return True

    def _pong(self, envelope: Envelope, message: Pong) -> bool:
        return True

    def _error(self, envelope: Envelope, message: ErrorMessage) -> bool:
        self._session.listener.logger.info("%s says: %s", self._session.address, message)
        return True

    # --- deliveries

    def outlet(self, qos: int) -> Outlet:
        return FlatOutlet(self._session, qos)

    def writable(self) -> None:
        """Whoever delivers is told by the connection."""


_HANDLERS: Final[dict[type, Callable[[FlatConversation, Envelope, Any], bool]]] = {
    Subscribe: FlatConversation._subscribe,
    Unsubscribe: FlatConversation._unsubscribe,
    Publish: FlatConversation._publish,
    Ack: FlatConversation._ack,
    Ping: FlatConversation._ping,
    Pong: FlatConversation._pong,
    ErrorMessage: FlatConversation._error,
}
"""By the kind of message; a Message was refused before."""
_OPERATIONS: Final[dict[type, str]] = {Subscribe: "subscribe", Unsubscribe: "unsubscribe", Ack: "ack", Ping: "ping"}
"""What is measured here. A Publish is measured until it is durable, where it is taken in."""


def _subject(envelope: Envelope) -> str | None:
    """What an Error names, so that a client need not remember sequence numbers."""
    match envelope.message:
        case Publish(message_id=message_id):
            return message_id
        case Subscribe(topic=topic) | Unsubscribe(topic=topic):
            return topic
    return None


def _number(name: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and least <= int(text) <= most):
        raise BraidError("INVALID_MESSAGE", reason=f"{name} is a whole number from {least} to {most}")
    return int(text)
