"""All feeds and who waits for topics that are yet to come.

The hub turns advances of high watermarks into wake-ups, one a feed and turn, and keeps the chunks that were read lately within a
bound for all feeds together.

It also keeps the two facts that publishers have to know about subscribers: which topics have a subscriber that must not miss
anything and has no room (`full`), and which have one that asked to slow publishers down (`blocked`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from braidmq.base import limits
from braidmq.base.tracing import Tracing
from braidmq.broker.journal import StateMachine
from braidmq.broker.machines import SUBSCRIBERS
from braidmq.broker.push.chunk import Chunk
from braidmq.broker.push.feed import Feed
from braidmq.broker.push.positions import Positions
from braidmq.broker.push.serving import Serving
from braidmq.broker.push.subscriber_table import SubscriberTable
from braidmq.broker.topics import Topic
from braidmq.log.partition_reads import Cold

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.broker.push.subscription import Counters


_WAKES_PER_INTERVAL: Final = 4


class Watcher(Protocol):
    """Whoever wants to know of topics that come."""

    def topic_created(self, topic: Topic) -> None: ...


class Hub:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self.clock = broker.clock
        self.figures = broker.figures
        self.steady_ms = broker.steady.now_ms
        self._feeds: dict[tuple[int, int], Feed] = {}
        self.closed: dict[str, Counters] = {}
        """What subscriptions that are gone had counted, by protocol."""
        self._moved: list[Feed] = []
        self._chunks: OrderedDict[tuple[Feed, int], int] = OrderedDict()
        self._chunk_bytes = 0
        self._by_name: dict[str, dict[Watcher, None]] = {}
        self._patterns: dict[Watcher, None] = {}
        self._full: dict[int, int] = {}
        self._blocked: dict[int, int] = {}
        self._when_open: dict[int, list[Callable[[], None]]] = {}
        self.full_version = 0
        """Grows when a topic becomes full or blocked, or is not any more."""
        self.flush_interval_s = 0.0
        """How long what comes for a partition may wait to be delivered together with more, once its readers were woken several
        times within as long. What comes alone never waits."""
        self.flush_records = 1
        """So much of it does not wait."""
        self.blocked_version = 0
        """Grows when a topic becomes blocked, or is not any more."""
        self._warming: set[asyncio.Task[None]] = set()
        self.positions = Positions(broker)
        """How far those came who go on where they were."""
        self.serving = Serving(broker)
        """Which node serves them."""
        self.subscribers = SubscriberTable()

    @property
    def tracing(self) -> Tracing | None:
        return self._broker.commit.tracing

    def machines(self) -> Mapping[str, StateMachine]:
        """What of this has to survive."""
        return {SUBSCRIBERS: self.subscribers}

    async def leave(self) -> None:
        """Let other nodes serve what this one did, from where it came to; for as long as they can be asked."""
        await self.positions.stop()
        await self.serving.leave()

    async def stop(self) -> None:
        """Make durable what is kept of subscribers; nobody is served any more."""
        await self.positions.stop()

    # --- feeds

    def feed(self, topic: Topic, partition: int) -> Feed:
        """The feed of a partition; it lives as long as it has readers."""
        place = (topic.id, partition)
        feed = self._feeds.get(place)
        if feed is None:
            feed = self._feeds[place] = Feed(self, topic, self._broker.log_of(topic, partition))
        return feed

    def feeds(self, topic: Topic) -> list[Feed]:
        return [self.feed(topic, partition) for partition in range(topic.partitions)]

    def has_readers(self, topic: Topic) -> bool:
        return any((topic.id, partition) in self._feeds for partition in range(topic.partitions))

    def live_feed(self, topic_id: int, partition: int) -> Feed | None:
        """The feed of a partition if somebody waits on it."""
        return self._feeds.get((topic_id, partition))

    def forget(self, feed: Feed) -> None:
        self._feeds.pop((feed.topic.id, feed.partition), None)

    def feed_moved(self, feed: Feed) -> None:
        if self.flush_interval_s and feed.wakes >= _WAKES_PER_INTERVAL and feed.tail - feed.woken_at < self.flush_records:
            due_s = feed.woken_s + self.flush_interval_s
            if due_s > self._loop.time():
                # Readers are busy with what came a moment ago: what comes until then goes out in one write.
                feed.late = self._loop.call_at(due_s, self._wake_one, feed)
                return
        self._wake_soon(feed)

    def hurry(self, feed: Feed) -> None:
        """More came for a feed whose readers will be woken later; when it is enough, they are woken now."""
        if feed.late is not None and feed.tail - feed.woken_at >= self.flush_records:
            feed.late.cancel()
            feed.late = None
            self._wake_soon(feed)

    def _wake_soon(self, feed: Feed) -> None:
        self._moved.append(feed)
        if len(self._moved) == 1:
            # The commit that moved it is still telling others; readers come after it.
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        moved, self._moved = self._moved, []
        for feed in moved:
            self._wake_one(feed)

    def _wake_one(self, feed: Feed) -> None:
        if self.flush_interval_s:
            now_s = self._loop.time()
            if now_s - feed.woken_s >= self.flush_interval_s:
                feed.woken_s, feed.wakes = now_s, 0
            feed.wakes += 1
            feed.woken_at = feed.tail
            feed.late = None
        feed.wake_readers()

    # --- chunks

    def keep_chunk(self, feed: Feed, chunk: Chunk) -> None:
        self._chunks[(feed, chunk.first)] = chunk.size
        self._chunk_bytes += chunk.size
        self._make_room()

    def chunk_grew(self, feed: Feed, position: int, size: int) -> None:
        """Something was made of a chunk; if it is kept, that is kept with it."""
        kept = self._chunks.get((feed, position))
        if kept is not None:
            self._chunks[(feed, position)] = kept + size
            self._chunk_bytes += size
            self._make_room()

    def _make_room(self) -> None:
        while self._chunk_bytes > limits.PUSH_CHUNKS_BYTES_MAX and len(self._chunks) > 1:
            (old, first), size = self._chunks.popitem(last=False)
            self._chunk_bytes -= size
            old.forget_chunk(first)

    def drop_chunks(self, feed: Feed, positions: Iterable[int]) -> None:
        for position in positions:
            self._chunk_bytes -= self._chunks.pop((feed, position), 0)

    def warm(self, feed: Feed, cold: Cold) -> None:
        task = self._loop.create_task(self._warm(feed, cold))
        self._warming.add(task)
        task.add_done_callback(self._warming.discard)

    async def _warm(self, feed: Feed, cold: Cold) -> None:
        try:
            await self._broker.warm(cold)
        finally:
            # A range that could not be brought in fails in the reader's next read, with the reason.
            feed.warmed()

    # --- topics that come and go

    def watch(self, watcher: Watcher, names: Collection[str] | None) -> None:
        """Tell `watcher` of new topics: of those with one of `names`, or of all."""
        if names is None:
            self._patterns[watcher] = None
            return
        for name in names:
            self._by_name.setdefault(name, {})[watcher] = None

    def unwatch(self, watcher: Watcher, names: Collection[str] | None = None) -> None:
        """Take back a `watch` with the same arguments."""
        if names is None:
            self._patterns.pop(watcher, None)
            return
        for name in names:
            watchers = self._by_name.get(name)
            if watchers is not None:
                watchers.pop(watcher, None)
                if not watchers:
                    del self._by_name[name]

    def topic_created(self, topic: Topic) -> None:
        """A topic is new: nothing was written to it yet."""
        for watcher in (*self._by_name.get(topic.name, ()), *self._patterns):
            watcher.topic_created(topic)

    # --- what publishers have to know

    def set_full(self, topic_id: int, full: bool) -> None:
        """A subscriber that must not miss anything has no room, or has it again."""
        before = self._full.get(topic_id, 0)
        after = before + (1 if full else -1)
        assert after >= 0, "as many come to an end as began"
        if after:
            self._full[topic_id] = after
        else:
            del self._full[topic_id]
        if not (before and after):
            self.full_version += 1

    def is_full(self, topic_id: int) -> bool:
        return topic_id in self._full

    @property
    def holds_up(self) -> bool:
        """Whether any topic is full or blocked."""
        return bool(self._full or self._blocked)

    def set_blocked(self, topic_id: int, blocked: bool) -> None:
        """A subscriber asks publishers to wait, or does not any more."""
        before = self._blocked.get(topic_id, 0)
        after = before + (1 if blocked else -1)
        assert after >= 0, "as many come to an end as began"
        if not (before and after):
            self.full_version += 1
            self.blocked_version += 1
        if after:
            self._blocked[topic_id] = after
            return
        del self._blocked[topic_id]
        for callback in self._when_open.pop(topic_id, ()):
            self._loop.call_soon(callback)

    def is_blocked(self, topic_id: int) -> bool:
        return topic_id in self._blocked

    def when_open(self, topic_id: int, callback: Callable[[], None]) -> None:
        """Call back once a blocked topic takes records again."""
        self._when_open.setdefault(topic_id, []).append(callback)
