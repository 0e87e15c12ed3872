"""Links to other BlipMQ brokers: this one subscribes there to what its own clients want, and takes that into its own log.

A link is an ordinary connection that this broker opens. It subscribes at QoS 1 with the client_id `$fed/<node_id>`, so that what
comes while the link is down waits there, and acknowledges a message only when it is as durable here as its topic asks. It follows
the filters of everybody who is subscribed here, except those of the broker at its other end.

Nothing goes round in circles: a message carries where it began (`origin`) and every broker it came through (`via`). One that has
been here, or through eight brokers, is not taken, nor is one whose origin came before, by whichever link. Topics of the broker
itself (`$...`) do not travel.

A link that breaks is made again, for ever, with pauses that grow to five seconds.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from braidmq.base import limits
from braidmq.base.config_links import FederationLink
from braidmq.base.errors import BraidError
from braidmq.broker.admission import is_open
from braidmq.broker.topics import Topic
from braidmq.server.blipmq_records import publish_attrs
from braidmq.wire import blipmq
from braidmq.wire.blipmq import (
    Ack,
    AnyMessage,
    Envelope,
    ErrorMessage,
    Message,
    Metadata,
    Ping,
    Pong,
    Subscribe,
    TooLarge,
    Unsubscribe,
)

if TYPE_CHECKING:
    from braidmq.server.blipmq_service import BlipMQService

CLIENT_PREFIX: Final = "$fed/"
_READ_BYTES: Final = 256 * 1024
_CONNECT_S_MAX: Final = 10.0
_PING_S: Final = 20.0
_PAUSE_S_MIN: Final = 0.05
_PAUSE_S_MAX: Final = 5.0
_AGAIN: Final = 7
"""The code of an Ack that asks for another attempt."""


class _LinkBroken(Exception):
    """The other side is gone, or said something that it should not."""


class Origins:
    """Where messages began that were taken lately."""

    def __init__(self, remembered_max: int = limits.FEDERATION_ORIGINS_REMEMBERED) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()
        self._remembered_max = remembered_max

    def is_new(self, origin: str) -> bool:
        """Whether nothing with this origin came before; it is known from then on."""
        if origin in self._known:
            return False
        self._known[origin] = None
        if len(self._known) > self._remembered_max:
            self._known.popitem(last=False)
        return True

    def forget(self, origin: str) -> None:
        """It was not taken after all, and may come again."""
        self._known.pop(origin, None)


class Federation:
    """All links of a broker."""

    def __init__(self, service: BlipMQService) -> None:
        self._service = service
        self.origins = Origins()
        self._links = [Link(service, self, row) for row in service.config.blipmq_federation]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(link.run()) for link in self._links]

    def filters_changed(self) -> None:
        """Somebody here wants something else."""
        for link in self._links:
            link.filters_changed()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []


class Link:
    """One connection to another broker."""

    def __init__(self, service: BlipMQService, federation: Federation, to: FederationLink) -> None:
        self._service = service
        self._federation = federation
        self._to = to
        self._own_id = service.broker_id
        self._client_id = CLIENT_PREFIX + self._own_id
        self._lane = next(service.numbers)
        self._writer: asyncio.StreamWriter | None = None
        self._other_id = ""
        self._subscribed: set[str] = set()
        self._changed = False
        self._up = False
        """Whether the other broker has answered."""
        self._sequence = 0

    def __str__(self) -> str:
        return f"{self._to.host}:{self._to.port}"

    # --- the connection

    async def run(self) -> None:
        """Keep the link up until it is cancelled."""
        pause_s = _PAUSE_S_MIN
        loop = asyncio.get_running_loop()
        while True:
            since = loop.time()
            try:
                await self._connect()
            except (OSError, TimeoutError, BraidError, _LinkBroken) as fault:
                self._service.logger.warning("link to %s: %s", self, fault)
            if loop.time() - since > _PAUSE_S_MAX:
                pause_s = _PAUSE_S_MIN
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _connect(self) -> None:
        tls = self._context() if self._to.tls else None
        name = self._to.host if tls is not None else None
        # Not `wait_for`, which may forget that it was cancelled (Python 3.11): the link would never end.
        async with asyncio.timeout(_CONNECT_S_MAX):
            reader, writer = await asyncio.open_connection(self._to.host, self._to.port, ssl=tls, server_hostname=name)
        self._writer = writer
        self._subscribed.clear()
        pinger = asyncio.create_task(self._ping())
        try:
            key: Metadata = ((blipmq.META_API_KEY, self._to.api_key),) if self._to.api_key else ()
            self._send(Ping(), (*key, (blipmq.META_BROKER_ID, self._own_id)))
            frames = blipmq.FrameReader(self._service.frame_max)
            while True:
                data = await reader.read(_READ_BYTES)
                if not data:
                    raise _LinkBroken("closed by the other side")
                for frame in frames.receive(data):
                    if isinstance(frame, TooLarge):
                        raise _LinkBroken(str(frame))
                    await self._take(blipmq.decode(frame))
        finally:
            pinger.cancel()
            self._writer, self._up = None, False
            writer.close()

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self._service.config.tls_ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(_PING_S)
            self._send(Ping())

    def _send(self, message: AnyMessage, metadata: Metadata = ()) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._sequence += 1
            self._writer.write(blipmq.encode(Envelope(message, self._sequence, self._service.now_ticks(), metadata)))

    # --- what is wanted

    def filters_changed(self) -> None:
        """Look at the filters again, once for all changes of a turn."""
        if not self._changed:
            self._changed = True
            asyncio.get_running_loop().call_soon(self._follow)

    def _follow(self) -> None:
        """Subscribe at the other broker to what is wanted here, and to nothing else."""
        self._changed = False
        if not self._up:
            return
        wanted = self._service.patterns(but_not_of=CLIENT_PREFIX + self._other_id)
        for pattern in sorted(wanted - self._subscribed):
            self._send(Subscribe(pattern, blipmq.AT_LEAST_ONCE, self._client_id))
        for pattern in sorted(self._subscribed - wanted):
            self._send(Unsubscribe(pattern, self._client_id))
        self._subscribed = wanted

    # --- what comes

    async def _take(self, envelope: Envelope) -> None:
        match envelope.message:
            case Message():
                await self._deliver(envelope, envelope.message)
            case Pong():
                if not self._up:
                    self._up = True
                    self._other_id = envelope.meta(blipmq.META_BROKER_ID) or ""
                    self._service.logger.info("link to %s is up: %s", self, self._other_id or "it does not say who it is")
                    self._follow()
            case ErrorMessage() as error:
                self._service.logger.error("link to %s: %s", self, error.details or error.message)

    async def _deliver(self, envelope: Envelope, message: Message) -> None:
        """Take a message into the log, unless it was here before."""
        origin = envelope.meta(blipmq.META_ORIGIN) or f"{self._other_id or self}:{envelope.sequence}"
        via = envelope.meta(blipmq.META_VIA) or self._other_id
        brokers = via.split(",") if via else []
        seen = self._own_id in brokers or origin.rpartition(":")[0] == self._own_id or len(brokers) >= limits.FEDERATION_HOPS_MAX
        if seen or blipmq.is_reserved(message.topic) or not self._federation.origins.is_new(origin):
            self._settle(message)
            return
        try:
            await self._store(envelope, message, origin, via)
        except BraidError as fault:
            self._federation.origins.forget(origin)
            self._service.logger.error("link to %s: a message of %s is not taken: %s", self, message.topic, fault)
            # What may succeed later comes again; the rest becomes a dead letter over there.
            self._settle(message, _AGAIN if fault.spec.retriable else fault.spec.blipmq)

    async def _store(self, envelope: Envelope, message: Message, origin: str, via: str) -> None:
        broker = self._service.broker
        topic = await broker.auto_create(message.topic)
        if message.qos and broker.push.is_full(topic.id):
            raise BraidError("QUEUE_FULL", reason=f"a subscriber of {topic.name} is behind")
        ttl_text = envelope.meta(blipmq.META_TTL) or "0"
        ttl_ms = int(ttl_text) if ttl_text.isascii() and ttl_text.isdigit() and len(ttl_text) < 18 else 0
        attrs = publish_attrs(message.qos, message.message_id or "", envelope.metadata, (origin, via))
        partition = self._lane % topic.partitions
        if not is_open(topic) and not broker.admission.fits_at_once(topic, message.payload):
            await broker.admission.produce(topic, partition, b"", message.payload, ttl_ms=ttl_ms, attrs=attrs)
            self._settle(message)
            return
        staged = broker.stage(topic, partition, b"", message.payload, ttl_ms=ttl_ms, attrs=attrs)
        staged.when_durable(lambda error: self._stored(topic, message, origin, error))

    def _stored(self, topic: Topic, message: Message, origin: str, error: BraidError | None) -> None:
        if error is not None:
            self._federation.origins.forget(origin)
            self._service.logger.error("link to %s: a message of %s is not stored: %s", self, topic.name, error)
        self._settle(message, 0 if error is None else _AGAIN)

    def _settle(self, message: Message, code: int = 0) -> None:
        if message.qos and message.message_id:
            self._send(Ack(message.message_id, code))
