"""The BlipMQ client: publish to topics, subscribe to patterns, read and settle what comes.

| QoS | `publish` returns when | what is lost |
|---|---|---|
| 0 | the message is on its way | what was in flight when a connection broke |
| 1 | the broker has taken responsibility for it | nothing; it may arrive twice |

The client keeps itself connected. After reconnecting it subscribes again, sends publishes with QoS 1 again that nobody
acknowledged, and the iteration goes on. It ends when the client is closed, or with an error that trying again would not change.

A delivery with QoS 1 is settled by `ack`, `retry` or `reject`; until then the broker delivers it again, here or, for a client
with a `client_id`, after the next connect.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Final, Unpack

from braidmq.base import compression as compressions
from braidmq.base.errors import BraidError
from braidmq.base.limits import KIB, RECORD_BYTES_MAX
from braidmq.client._backend import asyncio as backend
from braidmq.client.backoff import Backoff
from braidmq.client.blipmq_buffers import Inbox, Outbox, Settlement
from braidmq.client.blipmq_settings import BlipMQArguments, BlipMQSettings, blipmq_settings
from braidmq.client.tracing import log
from braidmq.wire.blipmq import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    META_ACCEPT_COMPRESSION,
    META_COMPRESSION,
    META_DURABLE_EXPIRY,
    META_FILTER,
    Ack,
    AnyMessage,
    Envelope,
    ErrorCode,
    Message,
    Metadata,
    Ping,
    Pong,
    Publish,
    Subscribe,
    Unsubscribe,
    check_request,
    encode,
    parse_expression,
)

from .blipmq_link import SEND_BYTES_TARGET, Link, R
from .blipmq_messages import Publication, ReceivedMessage, Subscription

JOIN_SECONDS_MAX: Final = 5.0
"""How long `close` waits for the background tasks, which end at once unless something is wrong."""
YIELD_BYTES: Final = 64 * KIB
"""Published bytes that no socket has taken, past which publishing gives way to sending."""


def connect(
    address: str = "127.0.0.1:7878", *, api_key: str = "", client_id: str = "", **arguments: Unpack[BlipMQArguments]
) -> BlipMQClient:
    """A client of the broker at `address` (several with commas), to be used as a context manager.

    With a `client_id` its subscriptions with QoS 1 are durable: what comes while it is away is kept for it.
    """
    return BlipMQClient(blipmq_settings(address, api_key, client_id, arguments))


class BlipMQClient:
    """One client. Many tasks may publish, subscribe and settle; one at a time may read."""

    def __init__(self, settings: BlipMQSettings) -> None:
        self.settings = settings
        self.closed = False
        self.reconnects = 0
        """How often a lost connection was replaced."""
        self.refused = 0
        """How many publishes with QoS 0 the broker refused; it says so, and nobody waits for it."""
        self._outbox: Outbox[Publication] = Outbox(settings.buffer_bytes)
        self._inbox: Inbox[ReceivedMessage] = Inbox(settings.prefetch_bytes)
        self._subscriptions: dict[str, Subscription] = {}
        self._mutex = backend.Mutex()
        self._link: Link | None = None
        self._links = 0
        self._running: backend.Task | None = None
        self._reader: backend.Task | None = None
        self._ids = os.urandom(6).hex()
        self._unseen: BraidError | None = None
        """A refusal that nobody waited for."""
        self._stop = backend.Signal()
        self._waiting: list[backend.Signal] = []
        """Those who wait for the outbox to move; guarded like it."""
        self._arrived = backend.Signal()
        self._linked = backend.Signal()
        self._read: list[ReceivedMessage] = []
        """Messages taken from the inbox and not handed out, the next one last."""

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        return tuple(self._subscriptions.values())

    # --- beginning and end

    async def open(self) -> BlipMQClient:
        """Connect and log in. Raises UNREACHABLE, or what the broker has against this client."""
        if self._running is None:
            self._link = await self._dial(time.monotonic() + self.settings.timeout_s)
            self._linked.set()
            self._running = backend.spawn(self._run, "braid-blipmq")
        return self

    async def close(self) -> None:
        """Get out what was published and settled, wait for what is owed, and end.

        Raises TIMED_OUT when that takes too long; then the outcome of the rest is unknown. Subscriptions of a client with a
        `client_id` stay.
        """
        if self.closed:
            return
        with self._outbox.mutex:
            self.closed = True
        self._moved()
        deadline_s = time.monotonic() + self.settings.close_timeout_s
        left = 0
        if self._running is not None:
            await self._settled_by(deadline_s)
            with self._outbox.mutex:
                left = self._outbox.unsettled
            if not left:
                await self._all_read(deadline_s)
            self._stop.set()
            link = self._link
            if link is not None:
                link.fail("it was closed on this side")
            await self._running.join(JOIN_SECONDS_MAX)
        with self._outbox.mutex:
            self._outbox.fail(BraidError("CLIENT_CLOSED", what="BlipMQ client"))
        self._moved()
        self._arrived.set()
        self._linked.set()
        if left:
            raise BraidError("TIMED_OUT", what=f"getting out the last {left} messages", seconds=self.settings.close_timeout_s)

    async def _all_read(self, deadline_s: float) -> None:
        """Wait until the broker has read everything: it answers in order, and so a Pong comes behind all that was sent."""
        link = self._link
        if link is not None and link.fault is None:
            try:
                await link.ask(Ping(), Pong, deadline_s - time.monotonic())
            except BraidError as fault:
                log.warning("%s; acknowledgements and messages with QoS 0 may be lost", fault)

    async def __aenter__(self) -> BlipMQClient:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # --- staying connected

    async def _run(self) -> None:
        link = self._link
        while link is not None:
            await self._serve(link)
            if self._stop.is_set():
                return
            log.warning("%s; connecting again", link.fault)
            with self._outbox.mutex:
                self._outbox.begin_again()
            self._link = link = await self._redial()
            if link is not None:
                self.reconnects += 1
                link.room.set()
                self._linked.set()
                if link.fault is not None:
                    self._linked.clear()

    async def _serve(self, link: Link) -> None:
        """Use a connection until it breaks; its reader runs already."""
        await link.send_all(self)
        await link.close()
        if self._reader is not None:
            await self._reader.join(JOIN_SECONDS_MAX)

    async def _redial(self) -> Link | None:
        """A new connection, however long it takes; None at the end, or when it is no use to try on."""
        backoff = Backoff(self.settings.backoff_first_s, self.settings.backoff_most_s)
        while not await self._stop.wait(backoff.next()):
            try:
                return await self._dial(time.monotonic() + self.settings.connect_timeout_s)
            except BraidError as fault:
                if not fault.retriable:
                    self._give_up(fault)
                    return None
                log.debug("%s", fault)
        return None

    def _give_up(self, fault: BraidError) -> None:
        with self._outbox.mutex, self._inbox.mutex:
            self._inbox.fault = fault
            self._outbox.fail(fault)
        self._moved()
        self._arrived.set()
        self._linked.set()

    async def _dial(self, deadline_s: float) -> Link:
        """The first server that takes this client. Raises UNREACHABLE when none answers in time."""
        backoff = Backoff(self.settings.backoff_first_s, self.settings.backoff_most_s)
        while True:
            reasons: list[str] = []
            for server in self.settings.servers:
                try:
                    self._links += 1
                    link = await Link.dial(self.settings, server, self._links, self._next_sequence, self._linked.clear)
                except TimeoutError:
                    reasons.append(f"{server}: no answer in time")
                except OSError as fault:
                    reasons.append(f"{server}: {fault}")
                else:
                    refused = await self._begin(link)
                    if refused is None:
                        return link
                    reasons.append(f"{server}: {refused.text}")
            delay_s = min(backoff.next(), deadline_s - time.monotonic())
            if delay_s <= 0 or await self._stop.wait(delay_s):
                raise BraidError(
                    "UNREACHABLE", servers=", ".join(map(str, self.settings.servers)), reason="; ".join(reasons)
                )

    async def _begin(self, link: Link) -> BraidError | None:
        """Log in and subscribe over a new connection; why it is no use, if another may be. Raises what no other would change."""
        reader = self._reader = backend.spawn(lambda: link.receive_all(self), "braid-blipmq-receive")
        try:
            with self._mutex:
                wanted = [(self._subscribe(each), each.metadata) for each in self._subscriptions.values()]
            await link.log_in(wanted, time.monotonic() + self.settings.connect_timeout_s)
        except BraidError as fault:
            await link.close()
            await reader.join(JOIN_SECONDS_MAX)
            if not fault.retriable:
                raise
            return fault
        except BaseException:
            await link.close()
            await reader.join(JOIN_SECONDS_MAX)
            raise
        return None

    async def _current(self, deadline_s: float) -> Link:
        """The connection that is there, or will be in time."""
        while True:
            self._check_open()
            link = self._link
            if link is not None and link.fault is None:
                return link
            if not await self._linked.wait(deadline_s - time.monotonic()):
                raise BraidError("TIMED_OUT", what="reconnecting", seconds=self.settings.timeout_s)

    def _check_open(self) -> None:
        if self.closed:
            raise BraidError("CLIENT_CLOSED", what="BlipMQ client")
        if self._running is None:
            raise BraidError("INVALID_ARGUMENT", reason="the BlipMQ client is not open; use it in a `with` block")
        if self._inbox.fault is not None:
            raise self._inbox.fault

    # --- subscribing

    async def subscribe(
        self,
        pattern: str,
        qos: int = AT_MOST_ONCE,
        *,
        filter: str | None = None,
        accept_compression: Sequence[str] = (),
        durable_expiry_s: int | None = None,
    ) -> Subscription:
        """Be sent what is published to topics that match `pattern`, from now on, when this returns.

        `+` stands for one level, `#` at the end for all below; `$share/<group>/<pattern>` shares the messages within a group, and
        `$DLQ/<topic>` has the dead letters of a topic. `filter` is an expression over the message, evaluated by the broker.
        Compressed payloads are expanded by the broker, except those of the kinds in `accept_compression`, which are here.
        """
        pairs: list[tuple[str, str]] = []
        if filter is not None:
            parse_expression(filter)
            pairs.append((META_FILTER, filter))
        if accept_compression:
            for name in accept_compression:
                compressions.require(_compression(name))
            pairs.append((META_ACCEPT_COMPRESSION, ",".join(accept_compression)))
        if durable_expiry_s is not None:
            pairs.append((META_DURABLE_EXPIRY, str(durable_expiry_s)))
        subscription = Subscription(pattern, qos, tuple(pairs))
        request = self._subscribe(subscription)
        check_request(Envelope(request))
        await self._ask(request, Ack, subscription.metadata)
        with self._mutex:
            self._subscriptions[pattern] = subscription
        return subscription

    async def unsubscribe(self, subscription: Subscription | str) -> bool:
        """Take a subscription back; False when the broker did not know it. For a durable one its backlog goes too."""
        pattern = subscription if isinstance(subscription, str) else subscription.pattern
        request = Unsubscribe(pattern, self.settings.client_id or None)
        check_request(Envelope(request))
        with self._mutex:
            self._subscriptions.pop(pattern, None)
        answer = await self._ask(request, Ack)
        return answer.error_code != ErrorCode.TOPIC_NOT_FOUND

    def _subscribe(self, subscription: Subscription) -> Subscribe:
        return Subscribe(subscription.pattern, subscription.qos, self.settings.client_id or None)

    async def _ask(self, message: AnyMessage, kind: type[R], metadata: Metadata = ()) -> R:
        """Ask until somebody answers: a request that is made twice does no harm."""
        deadline_s = time.monotonic() + self.settings.timeout_s
        while True:
            link = await self._current(deadline_s)
            try:
                return await link.ask(message, kind, deadline_s - time.monotonic(), metadata)
            except BraidError as fault:
                if fault.code != "CONNECTION_LOST" or time.monotonic() >= deadline_s:
                    raise

    # --- publishing

    async def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = AT_MOST_ONCE,
        *,
        ttl_ms: int = 0,
        message_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        compression: str | None = None,
    ) -> None:
        """Publish a message; with QoS 1, return when the broker has taken responsibility for it.

        Raises what the broker has against it. After TIMED_OUT it is not sent again, and nobody knows whether it was stored. Several
        publishes may be under way at a time; `send` is the way to have many without a task for each.
        """
        publication = await self.send(
            topic, payload, qos, ttl_ms=ttl_ms, message_id=message_id, metadata=metadata, compression=compression
        )
        if not await publication.wait(self.settings.timeout_s):
            fault = BraidError("TIMED_OUT", what="the acknowledgement of a message", seconds=self.settings.timeout_s)
            with self._outbox.mutex:
                self._outbox.give_up(publication, fault)
            self._moved()
        await publication.result()

    async def send(
        self,
        topic: str,
        payload: bytes,
        qos: int = AT_LEAST_ONCE,
        *,
        ttl_ms: int = 0,
        message_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        compression: str | None = None,
    ) -> Publication:
        """Take a message to be published, and return its outcome-to-be. It waits while `buffer_bytes` are under way.

        `metadata` are names that begin with `x-`, which travel with the message. `compression` is `gzip` or `lz4`. Messages leave
        in the order of these calls.
        """
        pairs: list[tuple[str, str]] = list(metadata.items()) if metadata else []
        for name, _ in pairs:
            if not name.startswith("x-"):
                raise BraidError("INVALID_ARGUMENT", reason=f"metadata of users begins with x-, and `{name}` does not")
        if compression is not None:
            payload = compressions.compress(_compression(compression), payload)
            pairs.append((META_COMPRESSION, compression))
        sequence = self._next_sequence()
        if message_id is None and qos == AT_LEAST_ONCE:
            message_id = f"{self._ids}-{sequence}"
        envelope = Envelope(Publish(topic, payload, qos, ttl_ms, message_id), sequence, 0, tuple(pairs))
        check_request(envelope, self.settings.payload_bytes_max)
        publication = Publication(encode(envelope), sequence, message_id, qos == AT_LEAST_ONCE)
        deadline_s = 0.0
        while True:
            with self._outbox.mutex:
                self._check_open()
                if not self._outbox.full:
                    self._outbox.add(publication)
                    break
                moved = self._wait_in_line()
            deadline_s = deadline_s or time.monotonic() + self.settings.timeout_s
            if not await moved.wait(deadline_s - time.monotonic()):
                raise BraidError("TIMED_OUT", what="waiting for room in the client's buffer", seconds=self.settings.timeout_s)
        self._wake_sender()
        if self._outbox.waiting_bytes > YIELD_BYTES:
            # Whoever publishes without a pause lets the sender have its turn.
            await backend.checkpoint()
        return publication

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything is sent and acknowledged. Raises TIMED_OUT, and a refusal of a QoS 0 publish that nobody saw."""
        limit_s = self.settings.timeout_s if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + limit_s
        self._check_open()
        if not await self._settled_by(deadline_s):
            self._check_open()
            raise BraidError("TIMED_OUT", what="flushing the client", seconds=limit_s)
        await self._all_read(deadline_s)
        fault, self._unseen = self._unseen, None
        if fault is not None:
            raise fault

    async def settle(self, settlement: Settlement) -> None:
        """Tell the broker what became of a delivery; deliveries do it themselves."""
        with self._outbox.mutex:
            if self._inbox.fault is None and not self._stop.is_set():
                self._outbox.acknowledge(settlement)
        self._wake_sender()

    def _wake_sender(self) -> None:
        link = self._link
        if link is not None:
            link.wanted.set()
            # A reader that stands still, because nobody takes messages, has to read the acknowledgement.
            link.room.set()

    def _wait_in_line(self) -> backend.Signal:
        """A signal for when the outbox moves; asked for in the same breath as whether to wait, so that none is missed."""
        signal = backend.Signal()
        self._waiting.append(signal)
        return signal

    def _moved(self) -> None:
        if self._waiting:
            with self._outbox.mutex:
                waiting, self._waiting = self._waiting, []
            for signal in waiting:
                signal.set()

    async def _settled_by(self, deadline_s: float) -> bool:
        """Whether everything is settled in time; False at once when there is nobody left to do it."""
        while True:
            with self._outbox.mutex:
                if not self._outbox.unsettled:
                    return True
                if self._inbox.fault is not None:
                    return False
                moved = self._wait_in_line()
            if not await moved.wait(deadline_s - time.monotonic()):
                return False

    # --- what the link asks and tells

    def _next_sequence(self) -> int:
        with self._outbox.mutex:
            return self._outbox.next_sequence()

    def next_frames(self, link: Link) -> list[bytes]:
        with self._outbox.mutex:
            return self._outbox.take(SEND_BYTES_TARGET, link.number)

    def frames_done(self, count: int) -> None:
        with self._outbox.mutex:
            self._outbox.done(count)
        self._moved()

    def answered(self, sequence: int, fault: BraidError | None) -> None:
        with self._outbox.mutex:
            known = self._outbox.settle(sequence, fault)
        if known:
            self._moved()
        elif fault is not None:
            self.refused += sequence > 0
            self._unseen = self._unseen or fault
            log.warning("the broker says: %s", fault)

    def delivered(self, link: Link, envelope: Envelope, message: Message) -> None:
        payload = message.payload
        name = envelope.meta(META_COMPRESSION)
        if name is not None:
            try:
                payload = compressions.decompress(_compression(name), payload, RECORD_BYTES_MAX)
            except compressions.CompressionFault as fault:
                raise BraidError("UNEXPECTED_REPLY", reason=f"a {name} payload that is damaged: {fault}") from None
        received = ReceivedMessage(self, link.number, envelope, message, payload)
        with self._inbox.mutex:
            self._inbox.add(received)
        self._arrived.set()

    async def wait_for_room(self, link: Link, timeout_s: float) -> None:
        """Stand still while the program takes nothing, unless somebody waits for an answer on the same connection."""
        while True:
            link.room.clear()
            if not self._inbox.full or self._outbox.owed or link.awaits or link.fault is not None:
                return
            await link.room.wait(timeout_s)
            await link.ping()

    # --- reading

    async def poll(self, max_messages: int = 500, timeout_s: float | None = None) -> list[ReceivedMessage]:
        """Messages as soon as there are some; none when none came in time, or the client was closed."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        if self._read:
            taken = self._read[-max_messages:][::-1]
            del self._read[-max_messages:]
            return taken
        while True:
            self._arrived.clear()
            with self._inbox.mutex:
                found = self._inbox.take(max_messages)
            link = self._link
            if link is not None:
                link.room.set()
            if found or self.closed:
                # Whoever reads without a pause lets the others have their turn.
                await backend.checkpoint()
                return found
            self._check_open()
            if not await self._arrived.wait(None if deadline_s is None else deadline_s - time.monotonic()):
                return []

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self

    async def __anext__(self) -> ReceivedMessage:
        if not self._read:
            self._read = (await self.poll())[::-1]
            if not self._read:
                raise StopAsyncIteration
        return self._read.pop()


def _compression(name: str) -> int:
    """The number of a compression that BlipMQ knows."""
    if name not in ("gzip", "lz4"):
        raise BraidError("UNSUPPORTED_COMPRESSION", name=name)
    return compressions.IDS[name]
