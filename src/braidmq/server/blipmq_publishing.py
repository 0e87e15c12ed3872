"""Messages on their way in, for all that the parser leaves to the general way: first ones of a topic, metadata, special topics.

What decides, in this order:

| Question | otherwise |
|---|---|
| does the broker go on? | `SHUTTING_DOWN` |
| may the user write there? | `UNAUTHORIZED` |
| is a compressed payload sound, and not too large? | `INVALID_MESSAGE`, `RECORD_TOO_LARGE` |
| is the topic there, or may it be made? | `TOPIC_NOT_FOUND` |
| does a subscriber ask publishers to wait? | wait, up to `blipmq_block_timeout_ms`; `TTL_EXPIRED` if that was too long for it |
| is the node that stores it behind? | wait |
| QoS 1: has every subscriber that must get it room? | `QUEUE_FULL`, and nobody gets it |
| QoS 1: is it known already? | acknowledged with the first one |
| does it fit the topic's schema? | as the topic says |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.base.figures import PUBLISHED_QOS0, PUBLISHED_QOS1
from braidmq.base.tracing import Traced
from braidmq.broker.admission import is_open
from braidmq.broker.staged import StagedBatch
from braidmq.broker.topics import Topic
from braidmq.security.roles import Permission
from braidmq.server.blipmq_records import check_compression, check_metadata, publish_attrs
from braidmq.wire import blipmq
from braidmq.wire.blipmq import Metadata

if TYPE_CHECKING:
    from braidmq.server.blipmq_session import BlipMQSession

_FOR_EVER: Final = 1 << 53
"""A longer time to live is none."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message that somebody publishes, in whichever framing."""

    topic: str
    payload: bytes
    qos: int
    ttl_ms: int
    message_id: str
    metadata: Metadata
    answer: bytes
    """What the publisher is told when it is stored; empty for nothing."""
    refuse: Callable[[BraidError], bytes]
    """What it is told otherwise."""
    federation: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class _Watch:
    """How long a message takes until it is stored, and its span where somebody traces."""

    measured: Callable[[], None]
    traced: Traced | None

    def end(self, error: BraidError | None) -> None:
        self.measured()
        if self.traced is not None:
            self.traced.end("" if error is None else error.code, records=1)


class Publishing:
    """The messages of one connection."""

    def __init__(self, session: BlipMQSession) -> None:
        self._session = session
        self._service = session.service
        self._broker = session.broker

    def check(self, message: Incoming) -> None:
        """Refuse what can be refused at once."""
        session = self._session
        if session.listener.stopping:
            raise BraidError("SHUTTING_DOWN")
        session.authorize(Permission.WRITE, message.topic, "publish")
        if message.metadata:
            check_metadata(message.metadata)
            named = next((value for key, value in message.metadata if key == blipmq.META_COMPRESSION), None)
            if named is not None:
                check_compression(message.payload, named, self._service.payload_max)
        if self._broker.topics.get(message.topic) is None and self._service.config.blipmq_strict_topics:
            raise BraidError("TOPIC_NOT_FOUND", topic=message.topic)

    def take(self, message: Incoming) -> bool:
        """Take a message that was checked into this turn's commit; False when that has to wait for something (`take_later`)."""
        topic = self._broker.topics.get(message.topic)
        if topic is None or self._broker.push.is_blocked(topic.id) or self._broker.away.is_full(topic, self._partition(topic)):
            return False
        if not is_open(topic) and not self._broker.admission.fits_at_once(topic, message.payload):
            return False
        session = self._session
        watch = self._watch(message)
        try:
            staged = self._stage(topic, message, watch)
        except BraidError as error:
            watch.end(error)
            raise
        due = session.due(message.answer)

        def durable(error: BraidError | None) -> None:
            watch.end(error)
            if error is not None:
                due.answers = message.refuse(error)
                self._forget(topic, message)
            session.settle(due)

        staged.when_durable(durable)
        session.remember_route(topic)
        return True

    async def take_later(self, message: Incoming) -> Sequence[bytes]:
        """As `take`, with everything that takes time; returns the answer."""
        watch = self._watch(message)
        fault: BraidError | None = None
        try:
            return await self._take_slowly(message, watch)
        except BraidError as error:
            fault = error
            raise
        finally:
            watch.end(fault)

    async def _take_slowly(self, message: Incoming, watch: _Watch) -> Sequence[bytes]:
        broker = self._broker
        topic = await broker.auto_create(message.topic)
        if broker.push.is_blocked(topic.id):
            await self._wait_for_room(topic, message)
        await broker.away.room(topic, self._partition(topic))
        if not is_open(topic) and not broker.admission.fits_at_once(topic, message.payload):
            self._check_room(topic, message)
            partition, attrs = self._partition(topic), self._attrs(message)
            await broker.admission.produce(topic, partition, b"", message.payload, ttl_ms=self._ttl_ms(message), attrs=attrs)
        else:
            staged = self._stage(topic, message, watch)
            try:
                await staged.durability()
            except BraidError:
                self._forget(topic, message)
                raise
        self._session.remember_route(topic)
        return [message.answer] if message.answer else []

    # --- steps

    def _watch(self, message: Incoming) -> _Watch:
        session, tracing = self._session, self._broker.commit.tracing
        traced = None if tracing is None else tracing.produce("blipmq", session.address, headers=dict(message.metadata))
        return _Watch(session.measured(PUBLISHED_QOS1 if message.qos else PUBLISHED_QOS0), traced)

    def _stage(self, topic: Topic, message: Incoming, watch: _Watch) -> StagedBatch:
        self._check_room(topic, message)
        if watch.traced is not None:
            self._broker.commit.cause(watch.traced.context)
        dedup = self._service.dedup if message.qos else None
        now_ms = self._broker.steady.now_ms()
        key = self._key(topic, message)
        known = None if dedup is None else dedup.find(key, now_ms)
        if known is not None:
            return known
        partition, attrs = self._partition(topic), self._attrs(message)
        staged = self._broker.stage(topic, partition, b"", message.payload, ttl_ms=self._ttl_ms(message), attrs=attrs)
        if dedup is not None:
            dedup.remember(key, staged, now_ms)
        return staged

    def _partition(self, topic: Topic) -> int:
        """Where everything that this connection publishes to a topic goes."""
        return self._session.lane % topic.partitions

    def _key(self, topic: Topic, message: Incoming) -> tuple[object, str, str]:
        return self._session.credential or self._session, topic.name, message.message_id

    def _forget(self, topic: Topic, message: Incoming) -> None:
        if self._service.dedup is not None:
            self._service.dedup.forget(self._key(topic, message))

    def _check_room(self, topic: Topic, message: Incoming) -> None:
        if message.qos and self._broker.push.is_full(topic.id):
            raise BraidError("QUEUE_FULL", reason=f"a subscriber of {message.topic} is behind")

    def _attrs(self, message: Incoming) -> bytes:
        return publish_attrs(message.qos, message.message_id, message.metadata, message.federation)

    def _ttl_ms(self, message: Incoming) -> int:
        ttl_ms = message.ttl_ms or self._service.config.blipmq_default_ttl_ms
        return ttl_ms if ttl_ms < _FOR_EVER else 0

    async def _wait_for_room(self, topic: Topic, message: Incoming) -> None:
        """A subscriber asked publishers to wait: for room, but not for ever."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        opened: asyncio.Future[None] = loop.create_future()

        def go_on() -> None:
            if not opened.done():
                opened.set_result(None)

        self._broker.push.when_open(topic.id, go_on)
        await asyncio.wait([opened], timeout=self._service.config.blipmq_block_timeout_ms / 1000)
        waited_ms = (loop.time() - began_s) * 1000
        ttl_ms = self._ttl_ms(message)
        if message.qos and 0 < ttl_ms <= waited_ms:
            raise BraidError("TTL_EXPIRED", ttl_ms=ttl_ms)
