"""All feeds and who waits for topics that are yet to come.

The hub turns advances of high watermarks into wake-ups, one a feed and turn, and keeps the chunks that were read lately within a
bound for all feeds together.

It also keeps the two facts that publishers have to know about subscribers: which topics have a subscriber that must not miss
anything and has no room (`full`), and which have one that asked to slow publishers down (`blocked`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.base.tracing import Tracing
from braidmq.broker.journal import StateMachine
from braidmq.broker.machines import SUBSCRIBERS
from braidmq.broker.peers import Elsewhere, Peers
from braidmq.broker.push.chunk import Chunk
from braidmq.broker.push.distant_log import DistantLog, Source
from braidmq.broker.push.distant_reads import DistantReads
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

logger = logging.getLogger("braidmq.push")


class _Guest:
    """Reads nothing, and keeps a feed alive."""

    def wake(self, feed: Feed) -> None: ...

    def feed_closed(self, feed: Feed) -> None: ...

    def feed_failed(self, feed: Feed, error: BraidError) -> None: ...


_GUEST: Final = _Guest()
_GUEST_S: Final = 5.0
_FIND_OUT_S: Final = 10.0


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
        self._warming: dict[asyncio.Task[None], Cold | Elsewhere] = {}
        """What is being brought into memory, and by which task."""
        self._leaving = asyncio.Event()
        self._stopped = False
        """Whether nobody is woken any more."""
        self._guests: dict[Feed, int] = {}
        """Feeds that somebody is about to read, and how many are."""
        self.distant: DistantReads | None = None
        """What is asked of other nodes; None as long as there was nothing."""
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
        self._leaving.set()
        await self._come_to_rest()
        await self.positions.stop()
        await self.serving.leave()

    async def stop(self) -> None:
        """Make durable what is kept of subscribers; nobody is served any more."""
        await self._come_to_rest()
        await self.positions.stop()
        followed = [feed.log for feed in self._feeds.values() if isinstance(feed.log, DistantLog)]
        for log in followed:
            log.close()
        await asyncio.gather(*(log.ended() for log in followed))
        if self.distant is not None:
            await self.distant.stop()

    async def _come_to_rest(self) -> None:
        """Wake no reader from now on, and wait for what was begun for one. Whoever is woken reads, and to read may begin
        something anew: nothing of it would come to an end as long as readers are."""
        self._stopped = True
        for task, cold in self._warming.items():
            # What lies on this node's disk is there in a moment, and its files have to stay open for so long. Another node may
            # never answer.
            if isinstance(cold, Elsewhere):
                task.cancel()
        await asyncio.gather(*self._warming, return_exceptions=True)

    # --- feeds

    def feed(self, topic: Topic, partition: int) -> Feed:
        """The feed of a partition; it lives as long as it has readers."""
        place = (topic.id, partition)
        feed = self._feeds.get(place)
        if feed is None:
            feed = self._feeds[place] = Feed(self, topic, self._source(topic, partition))
        elif feed.log.removed:
            self.go_on_elsewhere(feed)
        return feed

    def _source(self, topic: Topic, partition: int) -> Source:
        """Where a partition is read: here where this node has all of it, else on the node that leads it."""
        peers = self._broker.peers
        if peers is None or peers.holds(topic.id, partition):
            return self._broker.log_of(topic, partition)

        def lives() -> bool:
            return self._broker.topics.by_id(topic.id) is not None

        if self.distant is None:
            self.distant = DistantReads(peers)
        return DistantLog(peers, self.distant, topic, partition, self.steady_ms, lives, self._come_home)

    def _come_home(self, distant: DistantLog) -> bool:
        """Read a partition here from now on, if this node has as much of it as readers saw."""
        feed = self._feeds.get(distant.place)
        peers = self._broker.peers
        assert peers is not None
        if feed is None or feed.log is not distant or not peers.holds(*distant.place):
            return False
        if self._broker.topics.by_id(feed.topic.id) is None:
            return False
        log = self._broker.log_of(feed.topic, feed.partition)
        if log.removed or log.high_watermark < distant.high_watermark:
            return False
        feed.read_from(log)
        return True

    def go_on_elsewhere(self, feed: Feed) -> bool:
        """This node's replica of a partition is gone: read another one; False where the topic is."""
        if self._broker.peers is None or self._broker.topics.by_id(feed.topic.id) is None:
            return False
        source = self._source(feed.topic, feed.partition)
        if isinstance(source, DistantLog):
            source.goes_on_at(0, feed.seen)
        elif source.removed or source.high_watermark < feed.seen:
            return False
        feed.read_from(source)
        return True

    # --- where partitions end that are not here

    def tail(self, topic: Topic, partition: int) -> int:
        """Where a partition ends, as far as it is known (`find_out`)."""
        feed = self._feeds.get((topic.id, partition))
        if feed is None:
            return self._broker.log_of(topic, partition).high_watermark
        # A log that is gone has no end any more; who reads it goes on where it was, in another one.
        return feed.seen if feed.log.removed else feed.tail

    def knows(self, topics: Iterable[Topic]) -> bool:
        """Whether it is known where all partitions of some topics end. If not, nobody can begin there `from now on`."""
        peers = self._broker.peers
        if peers is None:
            return True
        return all(self._knows(peers, topic, partition) for topic in topics for partition in range(topic.partitions))

    def _knows(self, peers: Peers, topic: Topic, partition: int) -> bool:
        feed = self._feeds.get((topic.id, partition))
        return peers.holds(topic.id, partition) if feed is None else feed.known and not feed.log.removed

    async def find_out(self, topics: Collection[Topic]) -> None:
        """See to it that it is known where partitions end, for a moment in which somebody may begin to read."""
        if self.knows(topics):
            return
        feeds = [feed for topic in topics for feed in self.feeds(topic)]
        for feed in feeds:
            feed.attach(_GUEST)
            self._guests[feed] = self._guests.get(feed, 0) + 1
        stay_s = 0.0
        try:
            deadline_s = self._loop.time() + _FIND_OUT_S
            # While one is waited for, the replica of another one may move away.
            while not all(feed.known or feed.log.removed for feed in feeds):
                for feed in feeds:
                    await self._until_known(feed, deadline_s)
            # All stay known until whoever asked has come, however long the slowest of them took.
            stay_s = _GUEST_S
        finally:
            for feed in feeds:
                self._loop.call_later(stay_s, self._guest_leaves, feed)

    async def _until_known(self, feed: Feed, deadline_s: float) -> None:
        if feed.known:
            return
        leaving = self._loop.create_task(self._leaving.wait())
        try:
            # It may become another log meanwhile. That of a topic that was deleted has no end that anybody needs.
            while not feed.known and not feed.log.removed:
                log = feed.log
                assert isinstance(log, DistantLog)
                told = self._loop.create_task(log.told.wait())
                left_s = max(0.0, deadline_s - self._loop.time())
                done, _ = await asyncio.wait([told, leaving], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                told.cancel()
                if leaving in done:
                    raise BraidError("SHUTTING_DOWN")
                if not done or (log.closed and feed.log is log):
                    reason = f"nobody says where {feed.topic.name}/{feed.partition} ends"
                    raise BraidError("NODE_UNREACHABLE", node="that leads it", reason=reason)
        finally:
            leaving.cancel()

    def _guest_leaves(self, feed: Feed) -> None:
        self._guests[feed] -= 1
        if not self._guests[feed]:
            del self._guests[feed]
            feed.detach(_GUEST)

    def feeds(self, topic: Topic) -> list[Feed]:
        return [self.feed(topic, partition) for partition in range(topic.partitions)]

    def has_readers(self, topic: Topic) -> bool:
        return any((topic.id, partition) in self._feeds for partition in range(topic.partitions))

    def live_feed(self, topic_id: int, partition: int) -> Feed | None:
        """The feed of a partition if somebody waits on it."""
        return self._feeds.get((topic_id, partition))

    def behind_all(self, topic: Topic, partition: int) -> int:
        """Where a partition ended at most when anybody saw it last, on any node. A replica in sync has all of that, but may not
        know yet how far readers saw."""
        feed = self._feeds.get((topic.id, partition))
        log = self._broker.log_of(topic, partition) if feed is None else feed.log
        return log.high_watermark if isinstance(log, DistantLog) else max(log.high_watermark, log.log_end)

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
        if self._stopped:
            return
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

    def warm(self, feed: Feed, cold: Cold | Elsewhere) -> None:
        """Bring something into memory, and have the feed wake those who asked."""
        if self._stopped:
            return
        task = self._loop.create_task(self._warm(feed, cold))
        self._warming[task] = cold
        task.add_done_callback(self._warmed)

    def _warmed(self, task: asyncio.Task[None]) -> None:
        del self._warming[task]
        if not task.cancelled() and task.exception() is not None:
            # A range that could not be brought in fails in the reader's next read, with the reason.
            logger.debug("something could not be brought into memory: %s", task.exception())

    async def _warm(self, feed: Feed, cold: Cold | Elsewhere) -> None:
        try:
            await self._broker.warm(cold)
        finally:
            if not self._stopped:
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
        if self._stopped:
            return
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
