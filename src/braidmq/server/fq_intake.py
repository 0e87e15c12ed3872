"""How messages of fq come into the log, whichever way they arrive: data connections, other brokers, HTTP.

The exchange is a topic. Whether the publisher may write to it, whether it is created when missing and whether its records have to
fit a schema is decided as for every other protocol. fq has no word for a refusal, so a message that is refused is dropped and
counted as one that found no exchange; a refusal of rights is in the audit trail. Where a queue asks to slow publishers down
(`block`), the publisher waits, and nobody else; so it does where another node of the cluster stores its messages, and is behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.admission import is_open
from braidmq.broker.broker import Broker
from braidmq.broker.fq_exchanges import Claim, Tally
from braidmq.broker.topics import Topic
from braidmq.log import attrs
from braidmq.security.authorizer import Principal
from braidmq.security.roles import Permission
from braidmq.wire.fq.messages import encode_origin
from braidmq.wire.fq.naming import exchange_topic

_REFUSED_FOR_S: Final = 1.0
"""A refusal is not looked at again for each message, but soon enough for somebody who changes a setting."""
_ASK_AGAIN: Final = frozenset(("TOPIC_NOT_FOUND", "INVALID_TOPIC", "TOPIC_LIMIT"))

logger = logging.getLogger("braidmq.fq")


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message on its way in."""

    exchange: bytes
    route: bytes
    message_id: bytes
    payload: bytes
    tail: bytes
    """Sender and hops, as they will be delivered."""


class Intake:
    """The way of one publisher's messages into the log."""

    def __init__(self, broker: Broker, principal: Principal | None, address: str, lane: int) -> None:
        """Without a `principal` it is the broker itself, which may write anywhere.

        `lane` decides about the partition: all messages of a publisher to an exchange are in one, in order.
        """
        self._broker = broker
        self.principal = principal
        self._address = address
        self.lane = lane
        self.tally = Tally()
        self._table = hot.RouteTable()
        self._topics: dict[bytes, Topic] = {}
        self._refused: dict[bytes, float] = {}
        """Until when."""
        self._version: tuple[int, int, int] = (-1, -1, -1)

    # --- where to

    def routes(self) -> hot.RouteTable:
        """Exchanges that the parser may write to without asking."""
        broker = self._broker
        version = (broker.routes_version, broker.push.blocked_version, broker.security.authorizer.version)
        if version != self._version:
            self._version = version
            self._table.clear()
            self._topics.clear()
            self._refused.clear()
        return self._table

    def find(self, exchange: bytes) -> Topic | Coroutine[Any, Any, None] | None:
        """The topic for a message; None where it is refused. Something to wait for, after which it is to be asked again."""
        self.routes()
        known = self._topics.get(exchange)
        if known is not None:
            partition = self.lane % known.partitions
            if self._broker.away.is_full(known, partition):
                # Another node leads, and does not store as fast as messages come.
                return self._broker.away.room(known, partition)
            return known
        now = asyncio.get_running_loop().time()
        if self._refused.get(exchange, now) > now:
            return None
        broker = self._broker
        name = exchange_topic(exchange)
        if self.principal is not None:
            refused = broker.security.authorizer.decide(self.principal, Permission.WRITE, name)
            if refused is not None:
                broker.security.note(
                    "access.denied", self.principal, self._address, name, "produce", "denied", reason=refused.text
                )
                self._refuse(exchange)
                return None
        topic = broker.topics.get(name)
        if topic is None:
            return self._create(exchange, name)
        if broker.push.is_blocked(topic.id):
            return broker.fq.wait_for_room(topic)
        if len(self._topics) >= limits.SESSION_ROUTES_MAX:
            self._table.clear()
            self._topics.clear()
        self._topics[exchange] = topic
        # A topic may be new, and known before those that wait for it were told.
        broker.fq.topic_created(topic)
        if is_open(topic):
            route = broker.route(topic)
            self._table.add(hot.Route(exchange, route.accumulators, route.level))
        return topic

    def _refuse(self, exchange: bytes) -> None:
        if len(self._refused) >= limits.SESSION_ROUTES_MAX:
            self._refused.clear()
        self._refused[exchange] = asyncio.get_running_loop().time() + _REFUSED_FOR_S

    async def _create(self, exchange: bytes, name: str) -> None:
        try:
            await self._broker.auto_create(name)
        except BraidError as error:
            if error.code not in _ASK_AGAIN:
                logger.error("%s: no topic %s: %s", self._address, name, error)
            self._refuse(exchange)

    # --- taking in

    def taken(self, route: hot.Route, count: int, size: int) -> None:
        """The parser took messages of an exchange."""
        exchange = route.topic
        accumulator = route.accumulators[self.lane % len(route.accumulators)]
        octets, route.counter = route.counter, 0
        self._count(count, size)
        self._claim(exchange, self._topics[exchange], accumulator.next_offset - count, count, octets, None)

    def _count(self, count: int, size: int) -> None:
        self.tally.msgs_in += count
        self.tally.octets_in += size

    def _claim(
        self, exchange: bytes, topic: Topic, first: int, count: int, octets: int, settled: Callable[[Claim], None] | None
    ) -> None:
        broker = self._broker
        feed = broker.push.live_feed(topic.id, self.lane % topic.partitions)
        broker.fq.exchanges.published(exchange, feed, first, count, octets, self.tally, settled)

    def offer(
        self, message: Incoming, topic: Topic, settled: Callable[[Claim], None] | None = None
    ) -> Coroutine[Any, Any, None] | None:
        """Take one message in for the topic that `find` found; returns what to wait for where a schema has to be asked."""
        value = message.payload
        if is_open(topic) or self._broker.admission.fits_at_once(topic, value):
            self._stage(message, topic, settled)
            return None
        return self._offer_checked(message, topic, settled)

    async def _offer_checked(self, message: Incoming, topic: Topic, settled: Callable[[Claim], None] | None) -> None:
        admission = self._broker.admission
        try:
            fault = await admission.fault(topic, message.payload)
            if fault is not None:
                partition = self.lane % topic.partitions
                await admission.bury(topic, partition, message.route, message.payload, fault, _attrs(message))
        except BraidError as error:
            self._dropped(message, error, settled)
        else:
            if fault is None:
                self._stage(message, topic, settled)
            else:
                self._dropped(message, None, settled)

    def _stage(self, message: Incoming, topic: Topic, settled: Callable[[Claim], None] | None) -> None:
        broker = self._broker
        partition = self.lane % topic.partitions
        away = broker.goes_away(topic, partition)
        try:
            staged = broker.stage(topic, partition, message.route, message.payload, attrs=_attrs(message))
        except BraidError as error:
            self._dropped(message, error, settled)
            return
        if away:
            staged.when_durable(partial(self._stored_away, message, settled))
            return
        self._claim(message.exchange, topic, staged.base_offset, 1, len(message.payload), settled)
        staged.when_durable(lambda error: None if error is None else broker.fq.exchanges.failed(staged.log))

    def _stored_away(self, message: Incoming, settled: Callable[[Claim], None] | None, error: BraidError | None) -> None:
        """Another node stored a message. Queues here get it when it comes back; whoever waits is told how many will choose it."""
        fq = self._broker.fq
        if error is not None:
            self._dropped(message, error, settled)
        elif settled is not None:
            choosing = fq.choosing(message.exchange, message.route, message.payload)
            fq.exchanges.stored_away(message.exchange, choosing, len(message.payload), self.tally, settled)

    def _dropped(self, message: Incoming, error: BraidError | None, settled: Callable[[Claim], None] | None) -> None:
        if error is not None and error.spec.http >= 500:
            logger.error("%s: a message for %r is lost: %s", self._address, message.exchange, error)
        self._broker.fq.exchanges.rejected(message.exchange, self.tally, error, settled)

    async def submit(self, message: Incoming) -> Claim:
        """Take one message in; returns what became of it when it is durable and every queue has looked at it."""
        topic = self.find(message.exchange)
        while isinstance(topic, Coroutine):
            await topic
            topic = self.find(message.exchange)
        known: asyncio.Future[Claim] = asyncio.get_running_loop().create_future()

        def settled(claim: Claim) -> None:
            if not known.done():
                known.set_result(claim)

        if topic is None:
            self.refused(message.exchange, settled)
            return await known
        self._count(1, len(message.payload))
        checking = self.offer(message, topic, settled)
        if checking is not None:
            await checking
        claim = await known
        if claim.error is None and not claim.away:
            log = self._broker.log_of(topic, self.lane % topic.partitions)
            await self._broker.durable(log, claim.end)
        return claim

    # --- dropping

    def refused(self, exchange: bytes, settled: Callable[[Claim], None] | None = None) -> None:
        """A message found no exchange that its publisher may write to."""
        self._broker.fq.exchanges.refused(exchange, self.tally, settled)

    def too_large(self) -> None:
        self.tally.size_dropped += 1
        self._broker.fq.exchanges.size_dropped += 1


def _attrs(message: Incoming) -> bytes:
    return attrs.encode_attrs([(attrs.TAG_FQ, encode_origin(message.message_id, message.tail))])
