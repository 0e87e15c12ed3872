"""Messages that expire before a QoS 1 subscriber got them: each becomes one dead letter, within a fifth of a second.

Nothing has to be taken out of a queue for that: the log does not serve what is expired. But somebody has to notice. For each
partition that a queue reads this looks at what comes, as far as it can expire, and remembers when the next of it will. What
expired is offered to the queues of the partition; if any of them was still waiting for it, it is a letter, once for all of them.

What a connection holds at that moment is not offered: it may still be acknowledged, and is not sent again otherwise. Topics with
the property `dlq_expired` make letters of everything that expires, and need none of this.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Final

from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.broker.push import Chunk, Feed
from braidmq.server.blipmq_records import expiries

if TYPE_CHECKING:
    from braidmq.server.blipmq_queue import Queue
    from braidmq.server.blipmq_service import BlipMQService

_STEP_MS: Final = 50
"""What expires about the same time is seen to together."""
_READ_BYTES: Final = 256 * 1024


class _Watch:
    """One partition, as a reader of its feed that delivers nothing."""

    __slots__ = ("_expiry", "covered_from", "feed", "position", "queues")

    def __init__(self, expiry: Expiry, feed: Feed, position: int) -> None:
        self._expiry = expiry
        self.feed = feed
        self.position = self.covered_from = position
        self.queues: dict[Queue, None] = {}

    def wake(self, feed: Feed) -> None:
        self.position = max(self.position, feed.start)
        while self.position < feed.tail:
            chunk = feed.read(self.position, self)
            if chunk is None:
                return
            self.position = chunk.next_offset
            if chunk.expires:
                self._expiry.look_at(self, chunk)

    def feed_closed(self, feed: Feed) -> None:
        self._expiry.forget(feed)
        feed.detach(self)

    def feed_failed(self, feed: Feed, error: BraidError) -> None:
        # Whoever reads there learns it, too, and says so.
        self.position = feed.tail


class Expiry:
    def __init__(self, service: BlipMQService) -> None:
        self._service = service
        self._watches: dict[Feed, _Watch] = {}
        self._heap: list[tuple[int, int, Feed, int, int, int]] = []
        """When something expires, a number, the partition, a run of offsets, and up to when all was seen to."""
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        """In the loop's time; uvloop's handles do not always tell."""
        self._sweeping: asyncio.Task[None] | None = None
        self._stopped = False

    # --- who reads what

    def join(self, feed: Feed, queue: Queue, position: int) -> None:
        """A queue reads a partition from `position` on."""
        watch = self._watches.get(feed)
        if watch is None:
            # Of what another node has, the end may not be known yet.
            watch = self._watches[feed] = _Watch(self, feed, max(feed.tail, position))
            feed.attach(watch)
        if position < watch.covered_from:
            # Of what is there already, some may have expired while nobody looked.
            self._remember(0, feed, position, watch.covered_from, 0)
            watch.covered_from = position
        watch.queues[queue] = None

    def leave(self, feed: Feed, queue: Queue) -> None:
        watch = self._watches.get(feed)
        if watch is not None:
            watch.queues.pop(queue, None)
            if not watch.queues:
                self.forget(feed)
                feed.detach(watch)

    def forget(self, feed: Feed) -> None:
        self._watches.pop(feed, None)

    # --- what expires when

    def look_at(self, watch: _Watch, chunk: Chunk) -> None:
        found = expiries(chunk.batches, chunk.first, chunk.next_offset)
        if found:
            # What was expired when the chunk was read is not in it, and was seen to before.
            self._remember(min(found.values()), watch.feed, chunk.first, chunk.next_offset, chunk.read_at_ms)

    def _remember(self, due_ms: int, feed: Feed, first: int, stop: int, seen_ms: int) -> None:
        self._number += 1
        heapq.heappush(self._heap, (due_ms, self._number, feed, first, stop, seen_ms))
        self._set_timer()

    def _set_timer(self) -> None:
        if not self._heap or self._sweeping is not None or self._stopped:
            return
        delay_s = max(0, self._heap[0][0] - self._service.broker.steady.now_ms() + _STEP_MS) / 1000
        loop = asyncio.get_running_loop()
        due_s = loop.time() + delay_s
        if self._timer is not None:
            if self._timer_due_s <= due_s:
                return
            self._timer.cancel()
        self._timer_due_s = due_s
        self._timer = loop.call_later(delay_s, self._sweep_soon)

    def _sweep_soon(self) -> None:
        self._timer = None
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep())
        self._sweeping.add_done_callback(self._swept)

    def _swept(self, task: asyncio.Task[None]) -> None:
        self._sweeping = None
        if not task.cancelled():
            self._set_timer()

    async def _sweep(self) -> None:
        while self._heap and self._heap[0][0] <= self._service.broker.steady.now_ms():
            _, _, feed, first, stop, seen_ms = heapq.heappop(self._heap)
            if feed not in self._watches:
                continue
            try:
                await self._see_to(feed, first, stop, seen_ms)
            except (BraidError, OSError) as fault:
                self._service.logger.error("expired messages of %s: %s", feed.topic.name, fault)

    async def _see_to(self, feed: Feed, first: int, stop: int, seen_ms: int) -> None:
        position, now_ms = max(first, feed.start), self._service.broker.steady.now_ms()
        while position < stop:
            batches, following = await self._read(feed, position)
            if following <= position:
                return
            found = expiries(batches, position, min(stop, following))
            gone = sorted(offset for offset, expiry in found.items() if seen_ms < expiry <= now_ms)
            later = [expiry for expiry in found.values() if expiry > now_ms]
            if later:
                self._remember(min(later), feed, position, min(stop, following), now_ms)
            await self._offer(feed, gone)
            position = following

    async def _offer(self, feed: Feed, offsets: list[int]) -> None:
        """Make letters of what somebody still waited for."""
        watch = self._watches.get(feed)
        if watch is None or not offsets or feed.topic.properties.get("dlq_expired") == "true":
            return
        # Every queue is asked about each: one that waited does not wait any more.
        missed = [offset for offset in offsets if any([queue.expired(feed, offset) for queue in watch.queues])]
        if missed:
            await self._service.letters.make(feed, missed, "expired", 9, {})
            for queue in list(watch.queues):
                queue.settled_some()

    async def _read(self, feed: Feed, position: int) -> tuple[list[Buffer], int]:
        read = await self._service.broker.read_whole(feed.log, position, _READ_BYTES, raw=True)
        return read.slices, read.next_offset

    async def stop(self) -> None:
        # What expires from now on is seen to after the next start.
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._sweeping is not None:
            await asyncio.gather(self._sweeping, return_exceptions=True)
