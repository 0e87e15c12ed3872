"""What somebody waits for: a place in each partition, what is pending, and what happens when too much is.

A subscription first *looks* at what came (which records are for it, is there room?) and then *delivers* what is pending. Looking
costs nothing where there is no filter. A protocol says how records match and how they are delivered, by a subclass.

When `capacity` records are pending:

    DROP_OLDEST   the oldest go
    DROP_NEW      what comes goes
    WAIT          it looks no further: the records wait in the log, nothing is lost, and the topic counts as full
    BLOCK         the same, and publishers of the topic are asked to wait

Whatever goes is counted. Retention that passes a subscription by is counted as `lost`.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.base.figures import DELIVERED
from braidmq.broker.push.chunk import Chunk
from braidmq.broker.push.feed import Feed
from braidmq.broker.push.hub import Hub
from braidmq.broker.push.pending import Pending, Span
from braidmq.broker.topics import Topic


class Overflow(enum.Enum):
    DROP_OLDEST = "drop_oldest"
    DROP_NEW = "drop_new"
    WAIT = "wait"
    BLOCK = "block"


@dataclass(slots=True)
class Counters:
    delivered: int = 0
    delivered_bytes: int = 0
    dropped: int = 0
    redelivered: int = 0
    lost: int = 0
    """Records that retention took before they were delivered."""

    def add(self, other: Counters) -> None:
        self.delivered += other.delivered
        self.delivered_bytes += other.delivered_bytes
        self.dropped += other.dropped
        self.redelivered += other.redelivered
        self.lost += other.lost


class Subscription:
    """The base of BlipMQ's subscribers and fq's queues.

    A subclass has `send`, and `select` where not every record is for it.
    """

    filtered = False
    """Whether `select` has to be asked."""
    protocol: ClassVar[str] = ""
    """For whom it counts."""

    def __init__(self, hub: Hub, capacity: int, overflow: Overflow) -> None:
        self.hub = hub
        self.capacity = capacity
        self.overflow = overflow
        self.cursors: dict[Feed, int] = {}
        """The next offset to look at in each partition."""
        self.pending = Pending()
        self.counters = Counters()
        self._delivered_s = hub.figures.request(self.protocol, DELIVERED)
        self._held: set[int] = set()
        """Topics that it holds up, by being full."""
        self._stalled: set[Feed] = set()
        """Partitions that cannot be read where they would go on."""
        self._delivering = False

    # --- for subclasses

    def ready(self) -> bool:
        """Whether whoever receives can take more."""
        raise NotImplementedError

    def send(self, feed: Feed, chunk: Chunk, stop: int, wanted: bytes | None) -> int:
        """Deliver records of `chunk` before `stop`; returns the offset behind the last that is done with."""
        raise NotImplementedError

    def select(self, feed: Feed, chunk: Chunk) -> tuple[bytes | None, int]:
        """Which records of a chunk are meant: a mask, or None for all, and how many. Asked where `filtered` is set."""
        raise NotImplementedError

    def failed(self, feed: Feed, error: BraidError) -> None:
        """A partition cannot be read any further."""

    # --- topics

    def add_topic(self, topic: Topic, start: Callable[[Feed], int]) -> None:
        """Begin to read a topic, at `start` of each partition."""
        added = [feed for feed in self.hub.feeds(topic) if feed not in self.cursors]
        for feed in added:
            self.cursors[feed] = start(feed)
            feed.attach(self)
        # Only when all are there: what comes of looking at one may depend on the others.
        for feed in added:
            if self.cursors.get(feed, feed.tail) < feed.tail:
                self.wake(feed)

    def remove_topic(self, topic: Topic) -> None:
        """Forget a topic and what is pending of it."""
        for feed in [feed for feed in self.cursors if feed.topic.id == topic.id]:
            self._forget(feed)

    def close(self) -> None:
        for feed in list(self.cursors):
            self._forget(feed)
        # What was counted is not lost with who counted it.
        self.hub.closed.setdefault(self.protocol, Counters()).add(self.counters)
        self.counters = Counters()

    def _forget(self, feed: Feed) -> None:
        del self.cursors[feed]
        self._stalled.discard(feed)
        self.pending.forget(feed)
        self._let_through(feed.topic.id)
        feed.detach(self)

    def has_topic(self, topic_id: int) -> bool:
        return any(feed.topic.id == topic_id for feed in self.cursors)

    def settled(self, feed: Feed) -> int:
        """Everything before this offset is done with; where to go on after a restart."""
        pending = self.pending.first_of(feed)
        return self.cursors[feed] if pending is None else min(pending, self.cursors[feed])

    # --- a feed's reader

    def wake(self, feed: Feed) -> None:
        if feed in self.cursors and feed not in self._stalled:
            self._look(feed)
            self.deliver()

    def feed_closed(self, feed: Feed) -> None:
        if feed in self.cursors:
            self._forget(feed)

    def feed_failed(self, feed: Feed, error: BraidError) -> None:
        if feed in self.cursors:
            # Its place stays where it is: what cannot be read now must not count as delivered. Others go on.
            first = self.pending.first_of(feed)
            if first is not None:
                self.cursors[feed] = min(first, self.cursors[feed])
                self.pending.forget(feed)
            self._stalled.add(feed)
            self.failed(feed, error)

    # --- looking

    @property
    def _waits(self) -> bool:
        return self.overflow in (Overflow.WAIT, Overflow.BLOCK)

    def _look(self, feed: Feed) -> None:
        """Decide about everything that came, as far as there is room."""
        position = self.cursors[feed]
        if position < feed.start:
            self.counters.lost += feed.start - position
            position = self.cursors[feed] = feed.start
        tail = feed.tail
        looked = 0
        while position < tail:
            if self._waits and self.pending.count >= self.capacity:
                self._hold_up(feed.topic.id)
                return
            if self.filtered:
                if looked >= limits.PUSH_LOOK_BYTES_MAX:
                    # There is much to pass over: others get their turn first.
                    asyncio.get_running_loop().call_soon(self.wake, feed)
                    return
                chunk = feed.read(position, self)
                if chunk is None:
                    return
                looked += chunk.size
                try:
                    mask, count = self.select(feed, chunk)
                except BraidError as error:
                    self.feed_failed(feed, error)
                    return
                span = Span(feed, position, chunk.next_offset, count, mask)
            else:
                span = Span(feed, position, tail, tail - position)
            # Before anything is delivered, or what is delivered would be looked at again.
            self.cursors[feed] = span.next_offset
            if span.count:
                self._admit(span)
            # Delivering may have led to another look at the same feed, or to its end.
            position = self.cursors.get(feed, tail)

    def _admit(self, span: Span) -> None:
        if self.overflow is Overflow.DROP_NEW:
            room = self.capacity - self.pending.count
            if room < span.count and not self.pending:
                # Nothing waits, so what fits the receiver's own buffers never was in a queue.
                self.pending.add(span)
                self.deliver()
                self.counters.dropped += self._drop_newest()
                return
            if room < span.count:
                self.counters.dropped += span.count - max(room, 0)
                if room <= 0:
                    return
                stop = span.offset_after(room)
                span = Span(span.feed, span.first, stop, room, span.wanted(span.first, stop))
            self.pending.add(span)
            return
        self.pending.add(span)
        if self.overflow is Overflow.DROP_OLDEST and self.pending.count > self.capacity:
            self.deliver()
            self.counters.dropped += self.pending.drop_oldest(self.capacity)

    def _drop_newest(self) -> int:
        """Let go of what is too much of the only span there is."""
        if self.pending.count <= self.capacity:
            return 0
        span = self.pending.head
        excess = self.pending.count - self.capacity
        left = span.count - excess
        self.pending.forget(span.feed)
        if left:
            stop = span.offset_after(left)
            self.pending.add(Span(span.feed, span.first, stop, left, span.wanted(span.first, stop)))
        return excess

    def _hold_up(self, topic_id: int) -> None:
        if topic_id not in self._held:
            self._held.add(topic_id)
            (self.hub.set_blocked if self.overflow is Overflow.BLOCK else self.hub.set_full)(topic_id, True)

    def _let_through(self, topic_id: int) -> None:
        if topic_id in self._held:
            self._held.discard(topic_id)
            (self.hub.set_blocked if self.overflow is Overflow.BLOCK else self.hub.set_full)(topic_id, False)

    # --- delivering

    def pushed(
        self, feed: Feed, chunk: Chunk, first: int, stop: int, wanted: bytes | None, count: int, size: int, address: str
    ) -> None:
        """Count records that went out to `address`, those of `chunk` from `first` up to `stop`, and how old they are by now."""
        self.counters.delivered += count
        self.counters.delivered_bytes += size
        self._delivered_s.observe(feed.age_s(chunk, stop))
        tracing = self.hub.tracing
        if tracing is not None:
            chosen = None if wanted is None else lambda offset: bool(wanted[offset - first])
            tracing.deliver(self.protocol, address, feed.log, first, stop, count, chunk.batches, chosen)

    def deliver(self) -> None:
        """Deliver what is pending, as far as the receiver takes it."""
        if self._delivering:
            return
        self._delivering = True
        try:
            self._deliver()
        finally:
            self._delivering = False
        if self._held and self.pending.count < self.capacity:
            self._look_again()

    def _deliver(self) -> None:
        pending = self.pending
        while pending and self.ready():
            span = pending.head
            feed = span.feed
            first = span.first
            if first < feed.start:
                self.counters.lost += span.count_below(feed.start)
                pending.advance(feed.start)
                continue
            chunk = feed.read(first, self)
            if chunk is None:
                if feed in self._stalled:
                    # It just failed, and nothing of it is pending any more.
                    continue
                return
            stop = min(chunk.next_offset, span.next_offset)
            try:
                reached = self.send(feed, chunk, stop, span.wanted(first, stop))
            except BraidError as error:
                # Damage that came after the log was checked; others go on.
                self.feed_failed(feed, error)
                continue
            if reached <= first:
                return
            # A part of it may be one batch of several: as long as the receiver takes more, it gets more.
            pending.advance(reached)
            if reached >= chunk.next_offset:
                feed.passed(chunk)

    def _look_again(self) -> None:
        """There is room again: look at what was left in the log."""
        for topic_id in list(self._held):
            self._let_through(topic_id)
        for feed in list(self.cursors):
            if self.cursors.get(feed, feed.tail) < feed.tail:
                self.wake(feed)
