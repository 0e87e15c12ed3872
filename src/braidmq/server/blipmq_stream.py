"""What both kinds of BlipMQ subscriptions share, and the simple one: QoS 0, sent once and forgotten.

A subscriber has up to two subscriptions, one for the topics it wants at QoS 0 and one for those at QoS 1 (`blipmq_queue.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from braidmq.base.errors import BraidError
from braidmq.broker.push import Chunk, Feed, Overflow, PushRecord, Subscription
from braidmq.broker.topics import Topic
from braidmq.server.blipmq_outlet import Outlet
from braidmq.server.blipmq_records import candidates
from braidmq.wire.blipmq import ContentFilter

if TYPE_CHECKING:
    from braidmq.server.blipmq_service import BlipMQService
    from braidmq.server.blipmq_subscriber import Subscriber


class BlipMQSubscription(Subscription):
    """Topics with content filters, batches of the configured size, and rights that may end."""

    protocol = "blipmq"

    def __init__(self, service: BlipMQService, capacity: int, overflow: Overflow) -> None:
        super().__init__(service.broker.push, capacity, overflow)
        self.service = service
        self._filters: dict[int, tuple[ContentFilter, ...]] = {}
        """Topics of which only some messages are wanted, and what is asked about them: one that says yes is enough."""
        self._names: dict[int, str] = {}
        """What BlipMQ calls the topics."""
        self._has_letters = False
        self.owner: Subscriber | None = None
        """Whose rights have to be looked at again when any change."""

    # --- topics

    def want(self, topic: Topic, filters: Sequence[ContentFilter]) -> None:
        """Say which messages of a topic are wanted; all without filters."""
        if tuple(filters) != self._filters.get(topic.id, ()):
            # What came before is decided by what was asked before.
            for feed in [feed for feed in self.cursors if feed.topic.id == topic.id]:
                self._look(feed)
        self._filters.pop(topic.id, None)
        if filters:
            self._filters[topic.id] = tuple(filters)
        self._has_letters = self._has_letters or self.service.holds_letters(topic)
        self.filtered = bool(self._filters) or self._has_letters

    def _forget(self, feed: Feed) -> None:
        super()._forget(feed)
        if not self.has_topic(feed.topic.id):
            self._filters.pop(feed.topic.id, None)
            self._names.pop(feed.topic.id, None)

    def name_of(self, topic: Topic) -> str:
        name = self._names.get(topic.id)
        if name is None:
            name = self._names[topic.id] = self.service.shown(topic.name)
        return name

    # --- choosing

    def wake(self, feed: Feed) -> None:
        if self.service.guarded and self.owner is not None:
            self.owner.check_rights()
        super().wake(feed)

    def select(self, feed: Feed, chunk: Chunk) -> tuple[bytes | None, int]:
        filters = self._filters.get(feed.topic.id, ())
        if not filters and not self.service.holds_letters(feed.topic):
            return None, chunk.next_offset - chunk.first
        asked = candidates(chunk, feed, self.name_of(feed.topic), self.service.payload_max) if filters else {}
        gone = self.service.broker.work.table.letters

        def wanted(record: PushRecord) -> bool:
            # A letter that was replayed or purged is none any more, though the log still has it.
            if gone.is_gone(feed.topic.id, feed.partition, record.offset):
                return False
            return not filters or any(content(asked[record.offset]) for content in filters)

        return chunk.mask(tuple(content.text for content in filters), wanted)

    def catch_up(self) -> None:
        """Look at everything that came, also at what a wake-up is still due for."""
        for feed in list(self.cursors):
            if self.cursors[feed] < feed.tail and feed not in self._stalled:
                self._look(feed)

    def batch_end(self, chunk: Chunk, stop: int) -> int:
        """Where a write ends that begins with a chunk: a batch has so many messages and so many bytes."""
        service = self.service
        records = chunk.next_offset - chunk.first
        fitting = max(1, service.batch_bytes * records // (chunk.size or 1))
        return min(stop, chunk.first + min(service.batch_records, fitting))

    def failed(self, feed: Feed, error: BraidError) -> None:
        self.service.logger.error("deliveries of %s/%d end: %s", feed.topic.name, feed.partition, error)


class Stream(BlipMQSubscription):
    """QoS 0."""

    def __init__(self, service: BlipMQService, outlet: Outlet) -> None:
        super().__init__(service, service.config.blipmq_subscriber_capacity, service.overflow)
        self.outlet = outlet
        self._blocking: asyncio.TimerHandle | None = None

    def ready(self) -> bool:
        return self.outlet.ready()

    def send(self, feed: Feed, chunk: Chunk, stop: int, wanted: bytes | None) -> int:
        end = min(self.batch_end(chunk, stop), chunk.first + self.outlet.room(0))
        frames = self.outlet.encode(feed, self.name_of(feed.topic), chunk, end, wanted)
        if frames.count:
            self.outlet.push(frames.data)
            self.pushed(feed, chunk, chunk.first, end, wanted, frames.count, len(frames.data), self.outlet.address)
        return end

    def deliver(self) -> None:
        super().deliver()
        if self.overflow is not self.service.overflow and self.pending.count <= self.capacity // 2:
            # It takes messages again, so publishers wait for it again.
            self.overflow = self.service.overflow

    # --- `block`: publishers wait, but not for ever

    def _hold_up(self, topic_id: int) -> None:
        super()._hold_up(topic_id)
        if self.overflow is Overflow.BLOCK and self._blocking is None:
            timeout_s = self.service.config.blipmq_block_timeout_ms / 1000
            self._blocking = asyncio.get_running_loop().call_later(timeout_s, self._give_up)

    def _let_through(self, topic_id: int) -> None:
        super()._let_through(topic_id)
        if self._blocking is not None and not self._held:
            self._blocking.cancel()
            self._blocking = None

    def _give_up(self) -> None:
        """Nothing was taken for too long: publishers go on, and this subscriber misses what comes until it takes something."""
        self._blocking = None
        held = [feed for feed in self.cursors if feed.topic.id in self._held]
        for topic_id in list(self._held):
            self._let_through(topic_id)
        self.overflow = Overflow.DROP_NEW
        for feed in held:
            self.wake(feed)
