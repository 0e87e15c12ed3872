"""QoS 1: what is delivered stays the broker's business until it is acknowledged.

            room in the window                 Ack code 0
    queued ---------------------> in flight ----------------> done
       ^                           |  |  \\-- another code --> dead letter `rejected`
       |  overdue, Ack code 7,     |  |
       |  or the connection ends   |  \\---- its time to live is over ---> dead letter `expired`
       +---------------------------+
          after the last attempt instead: dead letter `max_attempts`

One connection takes from a queue, or the members of a shared group in turn. What goes out again goes before anything newer. Without
a connection the queue of a durable subscriber is *parked*: it goes on collecting, and what is too much becomes a dead letter,
the oldest first.

A queue keeps places in the log and never payloads. A record is done with when it is acknowledged, or when its dead letter is
durable; the lowest that is not is where a restart goes on.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from braidmq.broker.push import Chunk, Feed, Overflow, Span
from braidmq.broker.push.inflight import Flight, InFlight, Place
from braidmq.broker.topics import Topic
from braidmq.server.blipmq_outlet import Outlet
from braidmq.server.blipmq_records import by_offset
from braidmq.server.blipmq_stream import BlipMQSubscription

if TYPE_CHECKING:
    from braidmq.server.blipmq_service import BlipMQService

NACK: Final = 7
"""The code of an Ack that asks for another attempt; all others refuse for good."""
_BACKOFF_S_MAX: Final = 60.0
_LATE_S: Final = 0.1
"""A timer that comes so late says that the broker was held up."""
_READ_FIRST_S: Final = 0.02
"""Time for one turn of the loop, in which everything that has arrived is read."""
_SHARED_RUN_MAX: Final = 64
"""Members of a shared group take turns after so many."""
_BURIED_AT_ONCE: Final = 1000


class Queue(BlipMQSubscription):
    def __init__(self, service: BlipMQService, capacity: int, group: str = "") -> None:
        super().__init__(service, capacity, Overflow.WAIT)
        self.group = group
        """The consumer group that keeps its places, of a durable one."""
        self.inflight = InFlight()
        self._outlets: list[Outlet] = []
        self._turn = 0
        self._again = False
        """Whether something that came back is due and could not go out yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._burying: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    # --- where it goes

    @property
    def outlets(self) -> Sequence[Outlet]:
        return self._outlets

    @property
    def parked(self) -> bool:
        return not self._outlets

    def attach(self, outlet: Outlet) -> None:
        """Deliver to a connection, too."""
        self._outlets.append(outlet)
        self._again = self._again or bool(self.inflight.count)

    def detach(self, outlet: Outlet) -> None:
        """A connection is gone, and what it has not settled comes back."""
        self._outlets.remove(outlet)
        window = outlet.window
        window.forget(self, self._acks_until_s(1))
        self._came_back(self.inflight.of_window(window), 0.0)
        self.moved()
        if self._outlets:
            self.deliver()
        else:
            # Nobody waits for room that will not come: what is too much is dead letters from now on.
            self._look_again()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._burying is not None:
            self._burying.cancel()
        for outlet in self._outlets:
            outlet.window.forget(self, self._acks_until_s(1))
        self._outlets.clear()
        super().close()

    def _ready_outlet(self) -> Outlet | None:
        """The next connection that can take something."""
        outlets = self._outlets
        for step in range(len(outlets)):
            outlet = outlets[(self._turn + step) % len(outlets)]
            if outlet.ready() and outlet.room(1) > 0:
                self._turn = (self._turn + step) % len(outlets)
                return outlet
        return None

    # --- positions

    def positions(self) -> Iterable[tuple[Feed, int]]:
        first = dict(self.cursors)
        for span in self.pending:
            first[span.feed] = min(first[span.feed], span.first)
        for feed, position in first.items():
            unsettled = self.inflight.first_of(feed)
            yield feed, position if unsettled is None else min(unsettled, position)

    def moved(self) -> None:
        if self.group:
            self.hub.positions.moved(self)

    def _forget(self, feed: Feed) -> None:
        for outlet in self._outlets:
            outlet.window.forget(self, self._acks_until_s(1), feed)
        self.inflight.forget(feed)
        self.service.expiry.leave(feed, self)
        super()._forget(feed)

    def add_topic(self, topic: Topic, start: Callable[[Feed], int]) -> None:
        def begin(feed: Feed) -> int:
            position = start(feed)
            self.service.expiry.join(feed, self, position)
            return position

        super().add_topic(topic, begin)

    # --- looking

    @property
    def _waits(self) -> bool:
        return not self.parked

    def _hold_up(self, topic_id: int) -> None:
        # Publishers are refused while somebody who is connected is behind; nobody waits for who is away.
        if not self.parked:
            super()._hold_up(topic_id)

    def wake(self, feed: Feed) -> None:
        super().wake(feed)
        self.moved()

    def _admit(self, span: Span) -> None:
        self.pending.add(span)
        if self.parked and self.pending.count > self.capacity:
            self._bury_oldest()

    # --- delivering

    def ready(self) -> bool:
        return not self._again and self._ready_outlet() is not None

    def deliver(self) -> None:
        if self._again and self._outlets and not self._delivering:
            self._repeat()
        super().deliver()

    def send(self, feed: Feed, chunk: Chunk, stop: int, wanted: bytes | None) -> int:
        stop = self.batch_end(chunk, stop)
        if len(self._outlets) == 1:
            return self._send(self._outlets[0], feed, chunk, stop, wanted)
        stop = min(stop, chunk.first + _SHARED_RUN_MAX)
        end = chunk.first
        for _ in range(len(self._outlets)):
            outlet = self._ready_outlet()
            if outlet is None:
                break
            self._turn += 1
            end = self._send(outlet, feed, chunk, stop, wanted)
            if end > chunk.first:
                break
        return end

    def _send(self, outlet: Outlet, feed: Feed, chunk: Chunk, stop: int, wanted: bytes | None) -> int:
        end = min(stop, chunk.first + outlet.room(1))
        topic = self.name_of(feed.topic)
        frames = outlet.encode(feed, topic, chunk, end, wanted)
        now_s = self._loop.time()
        fitting = outlet.window.fitting(frames.ids, now_s)
        if fitting < len(frames.ids):
            # The id of one is taken: it and all behind it wait until the other message of that id is settled.
            self._wait_for(outlet, frames.ids[fitting], now_s)
            end = frames.offsets[fitting]
            if end == chunk.first:
                return end
            frames = outlet.encode(feed, topic, chunk, end, wanted)
        if frames.ids:
            flight = Flight(1, now_s + self._timeout_s(1), outlet.window)
            self.inflight.sent(feed, frames.offsets, flight)
            outlet.window.sent(self, feed, frames.offsets, frames.ids)
            self._wake_at(flight.due_s)
        if frames.count:
            outlet.push(frames.data)
            self.pushed(feed, chunk, chunk.first, end, wanted, frames.count, len(frames.data), outlet.address)
        return end

    def _repeat(self) -> None:
        """Send again what came back and is due, in the order of sequence numbers."""
        self._again = False
        now_s = self._loop.time()
        now_ms = self.service.broker.clock.now_ms()
        chunk: Chunk | None = None
        chunk_of: Feed | None = None
        for place in sorted(self.inflight.returned(now_s), key=lambda place: place.feed.sequence_base + place.offset):
            feed, offset, flight = place
            if flight.attempt >= self.service.config.blipmq_max_attempts:
                self.bury([place], "max_attempts", NACK)
                continue
            outlet = self._ready_outlet()
            if outlet is None:
                self._again = True
                return
            if offset < feed.start:
                self.counters.lost += 1
                self.inflight.settle(feed, offset)
                continue
            if chunk is None or chunk_of is not feed or not chunk.first <= offset < chunk.next_offset:
                chunk, chunk_of = feed.read(offset, self), feed
            if chunk is None:
                # It is being brought in; the feed wakes this queue then.
                self._again = True
                return
            record = by_offset(chunk).get(offset)
            if record is None:
                self.bury([place], "expired", 9)
                continue
            own, frame = outlet.encode_again(feed, self.name_of(feed.topic), record, flight.attempt + 1, now_ms)
            if own and not outlet.window.may_repeat(own, (self, feed, offset), now_s):
                # Another one with its id is not settled there; that one may be behind it here.
                self._wait_for(outlet, own, now_s)
                self._again = True
                continue
            if own:
                again = Flight(flight.attempt + 1, now_s + self._timeout_s(flight.attempt + 1), outlet.window)
                self.inflight.change(feed, offset, again)
                outlet.window.sent(self, feed, (offset,), (own,))
                self._wake_at(again.due_s)
            else:
                self.inflight.settle(feed, offset)
            outlet.push(frame)
            self._turn += 1
            self.counters.redelivered += 1

    # --- settling

    def acked(self, feed: Feed, offsets: Iterable[int]) -> None:
        """Deliveries are done with."""
        self.inflight.settle_many(feed, offsets)

    def is_unsettled(self, feed: Feed, offset: int) -> bool:
        return self.inflight.flight_of(feed, offset) is not None

    def settled_some(self) -> None:
        self.moved()
        self.deliver()

    def refused(self, feed: Feed, offset: int, code: int) -> None:
        """A receiver does not want a delivery: now, or at all."""
        flight = self.inflight.flight_of(feed, offset)
        if flight is None or flight.due_s == math.inf:
            # It is done with, or about to be a dead letter.
            return
        place = Place(feed, offset, flight)
        if code == NACK:
            self._came_back([place], self._timeout_s(flight.attempt))
        else:
            self.bury([place], "rejected", code)

    def _came_back(self, places: Iterable[Place], delay_s: float) -> None:
        """Deliveries were not acknowledged: they go out again, `delay_s` from now, unless that was their last attempt."""
        due_s = self._loop.time() + delay_s
        last: list[Place] = []
        for place in places:
            if place.flight.attempt >= self.service.config.blipmq_max_attempts:
                last.append(place)
                continue
            self.inflight.change(place.feed, place.offset, Flight(place.flight.attempt, due_s, None))
            self._again = self._again or delay_s <= 0
        if last:
            self.bury(last, "max_attempts", NACK)
        if delay_s > 0:
            self._wake_at(due_s)

    def _timeout_s(self, attempt: int) -> float:
        """How long an attempt may take, or the next one waits; never quite the same, so that nothing comes in waves."""
        first_s = self.service.config.blipmq_ack_timeout_ms / 1000
        return min(first_s * 2.0 ** min(attempt - 1, 32), max(first_s, _BACKOFF_S_MAX)) * random.uniform(0.9, 1.1)

    def _acks_until_s(self, attempt: int) -> float:
        """Until when Acks may come for an attempt that is given up now."""
        return self._loop.time() + 2 * self._timeout_s(attempt)

    def _wait_for(self, outlet: Outlet, own: bytes, now_s: float) -> None:
        """An id is taken; if that ends by itself, look again then."""
        free_s = outlet.window.free_at(own, now_s)
        if free_s is not None:
            self._wake_at(free_s)

    def _wake_at(self, due_s: float) -> None:
        if self._timer is None or due_s < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due_s, self._wake, due_s)

    def _wake(self, due_s: float) -> None:
        if self._loop.time() - due_s > _LATE_S:
            # The broker itself was held up. Acks that came meanwhile are read first.
            self._timer = self._loop.call_later(_READ_FIRST_S, self._check)
        else:
            self._check()

    def _check(self) -> None:
        """The time of some deliveries is over, or that of some has come."""
        self._timer = None
        now_s = self._loop.time()
        overdue = self.inflight.overdue(now_s)
        if overdue:
            places = {(place.feed, place.offset) for place in overdue}
            for outlet in self._outlets:
                outlet.window.set_aside(self, places, self._acks_until_s(max(place.flight.attempt for place in overdue)))
                outlet.window.purge(now_s)
            self._came_back(overdue, 0.0)
        if self._outlets:
            self._again = self._again or bool(self.inflight.returned(now_s))
            self.deliver()
            due_s = self.inflight.next_due(now_s)
            if due_s is not None:
                self._wake_at(due_s)

    # --- dead letters

    def bury(self, places: Sequence[Place], reason: str, code: int) -> None:
        """Make dead letters of deliveries; they are done with when these are durable."""
        for place in places:
            # Nothing happens to them meanwhile; their attempts are remembered in case it fails.
            self.inflight.change(place.feed, place.offset, Flight(place.flight.attempt, math.inf, None))
        self.service.letters.bury(self, places, reason, code)

    def buried(self, feed: Feed, offset: int) -> None:
        self.inflight.settle(feed, offset)

    def not_buried(self, places: Iterable[Place]) -> None:
        """The letters could not be written: try again later."""
        due_s = self._loop.time() + self._timeout_s(1)
        for place in places:
            if self.inflight.flight_of(place.feed, place.offset) is not None:
                attempts = self.service.config.blipmq_max_attempts
                self.inflight.change(place.feed, place.offset, Flight(attempts, due_s, None))
        self._wake_at(due_s)

    def _bury_oldest(self) -> None:
        if self._burying is None:
            self._burying = self._loop.create_task(self._bury_excess())
            self._burying.add_done_callback(self._buried_excess)

    def _buried_excess(self, task: asyncio.Task[None]) -> None:
        self._burying = None
        if not task.cancelled() and self.parked and self.pending.count > self.capacity:
            self._bury_oldest()

    async def _bury_excess(self) -> None:
        """Nobody is connected, and too much is waiting: the oldest become dead letters."""
        while self.parked and self.pending.count > self.capacity:
            span = self.pending.head
            feed, first = span.feed, span.first
            excess = min(self.pending.count - self.capacity, span.count, _BURIED_AT_ONCE)
            stop = span.next_offset if excess == span.count else span.offset_after(excess)
            wanted = span.wanted(first, stop)
            if not await self.service.letters.bury_run(feed, first, stop, wanted):
                return
            self.counters.dropped += excess
            if not self.pending or self.pending.head.feed is not feed or self.pending.head.first != first:
                # Somebody connected meanwhile and got them after all.
                return
            self.pending.advance(stop)
            self.moved()

    # --- expiry

    def expired(self, feed: Feed, offset: int) -> bool:
        """Whether a record that expired was still waiting here."""
        flight = self.inflight.flight_of(feed, offset)
        if flight is not None:
            if flight.window is not None or flight.due_s == math.inf:
                # Somebody has it, and may still acknowledge it; or it is a dead letter already.
                return False
            self.inflight.settle(feed, offset)
            return True
        cursor = self.cursors.get(feed)
        if cursor is None:
            return False
        return offset >= cursor or any(
            span.feed is feed and span.first <= offset < span.next_offset and (span.mask is None or span.mask[offset - span.base])
            for span in self.pending
        )
