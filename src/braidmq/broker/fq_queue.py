"""An fq queue: what its bindings choose of the log, delivered to its consumers in turn.

A queue is a subscription whose topics are exchanges. A message goes to exactly one consumer, and not a second time: what was handed
to a connection that dies is gone. What comes is divided evenly among the consumers that can take it; each gets its part in the
order of the log. When a binding is taken back, what it chose before stays in the queue.

A permanent `disk` queue goes on where it was after a restart. What it hands out counts as delivered when the connection has passed
all of it on; until then a crash delivers it again, and so does the end of that connection. At a start it may hold more than its
backlog. Then nothing is dropped until it has caught up, or it would drop what it had accepted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from braidmq import hot
from braidmq.base import limits
from braidmq.broker.fq_binding import Binding, Monotonic, choose_any
from braidmq.broker.fq_exchanges import Exchanges
from braidmq.broker.push import Chunk, Feed, Hub, Overflow, Span, Subscription
from braidmq.broker.topics import Topic
from braidmq.wire.fq.auth import BLOCK, DISK, QueueDetail
from braidmq.wire.fq.naming import exchange_topic, topic_exchange

_UNLIMITED: Final = 1 << 60
GROUP_PREFIX: Final = "fq:"


def queue_group(name: bytes) -> str:
    """The consumer group that keeps the positions of a queue."""
    return GROUP_PREFIX + exchange_topic(name)


class Member(Protocol):
    """A client of a queue, whether it receives now or not."""

    @property
    def address(self) -> str: ...

    def dismiss(self) -> None:
        """Its queue is served elsewhere: its connections end."""


class Consumer(Protocol):
    """A connection that takes what a queue delivers."""

    @property
    def address(self) -> str: ...

    @property
    def writable(self) -> bool:
        """Whether it takes more now."""

    @property
    def unsent(self) -> int:
        """Bytes that it was given and has not passed on."""

    @property
    def skip_node(self) -> bytes | None:
        """The broker at its other end; messages that were there already are left out."""

    def may_read(self, topic: Topic) -> bool:
        """Whether its user has the right."""

    def deliver(self, frames: bytes, count: int) -> None: ...


class FqQueue(Subscription):
    protocol = "fq"

    def __init__(
        self, hub: Hub, detail: QueueDetail, exchanges: Exchanges, default_tail: bytes, clock: Monotonic,
        drained: Callable[[FqQueue, Binding], None],
    ) -> None:
        """`default_tail` stands for sender and hops of records that have none.

        `drained` is called for a binding that was taken back, when everything that it chose is delivered.
        """
        blocks = detail.policy == BLOCK
        super().__init__(hub, _capacity(detail), Overflow.BLOCK if blocks else Overflow.DROP_NEW)
        self.detail = detail
        self.permanent = False
        self.group = queue_group(detail.name)
        """The consumer group that keeps the positions."""
        self.bindings: dict[int, Binding] = {}
        """By route id; those that were taken back are not among them."""
        self.members: dict[Member, None] = {}
        self._exchanges = exchanges
        self._default_tail = default_tail
        self._clock = clock
        self._drained = drained
        self._by_topic: dict[str, list[Binding]] = {}
        """All that may still choose something, by the name of their topic."""
        self._ended: list[Binding] = []
        """Those that were taken back and may have something in the queue; of disk queues only."""
        self._lingering = False
        """Whether there are partitions that nothing is bound to and something is left of."""
        self._consumers: deque[Consumer] = deque()
        """The one whose turn it is first."""
        self._unsent: dict[Consumer, Span] = {}
        """What a disk queue handed out and the connection has not passed on."""
        self._known_until: dict[Feed, int] = {}
        """Where the log ended when a disk queue was set up again, as long as it has not come there."""
        self._ends_unknown: set[Feed] = set()
        """Partitions of which nobody could say then where they end."""

    @property
    def on_disk(self) -> bool:
        return self.detail.kind == DISK

    @property
    def kept(self) -> bool:
        """Whether its messages survive the broker."""
        return self.permanent and self.on_disk

    # --- bindings

    def find(self, exchange: bytes, program: bytes) -> Binding | None:
        """The binding of that text."""
        same = (b for b in self.bindings.values() if b.exchange == exchange and b.program.text == program)
        return next(same, None)

    def is_bound(self, exchange: bytes) -> bool:
        return any(binding.exchange == exchange for binding in self.bindings.values())

    def bind(self, binding: Binding) -> None:
        """Choose by it, as far as it holds."""
        if binding.ends is None:
            self.bindings[binding.route_id] = binding
        self._by_topic.setdefault(binding.topic_name, []).append(binding)

    def unbind(self, binding: Binding) -> None:
        """Choose by it no more; its `ends` say from where on. What it chose stays."""
        del self.bindings[binding.route_id]
        self._end_bindings(binding.topic_name)

    def remembered(self) -> list[Binding]:
        """Bindings that a restart of a permanent queue has to know."""
        if not self.on_disk:
            return [binding for binding in self.bindings.values() if binding.permanent]
        return [*(binding for bindings in self._by_topic.values() for binding in bindings), *self._ended]

    def _end_bindings(self, topic_name: str) -> None:
        """Let go of bindings that have nothing more to choose, and of the topic with the last of them."""
        feeds = self._feeds_of(topic_name)
        known = self._by_topic.get(topic_name, [])
        ended = [b for b in known if b.ends is not None and all(b.is_past(feed, self.cursors[feed]) for feed in feeds)]
        if not ended:
            return
        left = [binding for binding in known if binding not in ended]
        if self.on_disk:
            self._ended += ended
        if left:
            self._by_topic[topic_name] = left
        else:
            del self._by_topic[topic_name]
            self._release()
        self._tell_drained()

    def _feeds_of(self, topic_name: str) -> list[Feed]:
        return [feed for feed in self.cursors if feed.topic.name == topic_name]

    def _release(self) -> None:
        """Forget partitions that nothing is bound to and nothing is left of."""
        busy = {span.feed for span in (*self.pending, *self._unsent.values())}
        unbound = [feed for feed in self.cursors if feed.topic.name not in self._by_topic]
        for feed in unbound:
            if feed not in busy:
                self._forget(feed)
        self._lingering = not busy.isdisjoint(unbound)

    def _tell_drained(self) -> None:
        for binding in list(self._ended):
            if all(binding.is_past(feed, self.settled(feed)) for feed in self._feeds_of(binding.topic_name)):
                self._ended.remove(binding)
                self._drained(self, binding)

    # --- consumers

    def add_consumer(self, consumer: Consumer) -> None:
        self._consumers.append(consumer)
        self.deliver()

    def remove_consumer(self, consumer: Consumer) -> None:
        if consumer in self._consumers:
            self._consumers.remove(consumer)
        unsent = self._unsent.pop(consumer, None)
        if unsent is not None and unsent.feed in self.cursors:
            self.pending.push_front(unsent)
            self.deliver()

    def passed_on(self, consumer: Consumer) -> None:
        """A consumer takes more: what it was given is on its way."""
        if self._unsent.pop(consumer, None) is not None:
            self._moved()
        self.deliver()

    # --- going on elsewhere

    def resume(self, topic: Topic, start: Callable[[Feed], int]) -> None:
        """Go on with a topic where a disk queue was."""
        feeds = self.hub.feeds(topic)
        self._catch_up({feed: feed.tail for feed in feeds if feed.known})
        self._ends_unknown.update(feed for feed in feeds if not feed.known)
        self.add_topic(topic, start)
        for feed in feeds:
            self._caught_up(feed)

    def move(self, places: dict[Feed, int]) -> None:
        """Go to other places; what is pending of these partitions is let go."""
        for feed, offset in places.items():
            self.pending.forget(feed)
            for consumer in [consumer for consumer, span in self._unsent.items() if span.feed is feed]:
                del self._unsent[consumer]
            self.cursors[feed] = offset
        self._catch_up({feed: feed.tail for feed in places})
        for feed in places:
            self.wake(feed)
            self._caught_up(feed)
        self._moved()

    def _catch_up(self, until: dict[Feed, int]) -> None:
        """Hold little and drop nothing until it has looked so far."""
        if not until:
            return
        self._known_until |= until
        if self.overflow is Overflow.DROP_NEW:
            self.overflow = Overflow.WAIT
        self.capacity = min(_capacity(self.detail), limits.FQ_LOOK_AHEAD_RECORDS)

    def _caught_up(self, feed: Feed) -> None:
        """See whether a partition has come so far, and go back to the rules for all when every one has."""
        until = self._known_until.get(feed)
        if until is None or self.cursors.get(feed, until) < until:
            return
        del self._known_until[feed]
        if not self._known_until:
            self.capacity = _capacity(self.detail)
            if self.overflow is Overflow.WAIT:
                self.overflow = Overflow.DROP_NEW
                self._held.clear()
            asyncio.get_running_loop().call_soon(self._look_again)

    @property
    def catching_up(self) -> bool:
        return bool(self._known_until) and self.overflow is Overflow.WAIT

    @property
    def backlog(self) -> int:
        """How many messages wait; of what was not looked at yet everything counts."""
        ahead = sum(max(0, until - self.cursors.get(feed, until)) for feed, until in self._known_until.items())
        return self.pending.count + ahead

    # --- positions

    def positions(self) -> Iterable[tuple[Feed, int]]:
        return [(feed, self.settled(feed)) for feed in self.cursors]

    def settled(self, feed: Feed) -> int:
        settled = super().settled(feed)
        return min((span.first for span in self._unsent.values() if span.feed is feed and span.first < settled), default=settled)

    def _moved(self) -> None:
        if self.kept:
            self.hub.positions.moved(self)

    # --- looking

    def _look(self, feed: Feed) -> None:
        bindings = self._by_topic.get(feed.topic.name)
        if bindings is None:
            return
        if feed in self._ends_unknown and feed.known:
            self._ends_unknown.discard(feed)
            self._catch_up({feed: feed.tail})
        position = self.cursors[feed]
        # One that takes everything from here on saves looking at the records.
        plain = next((b for b in bindings if b.program.matches_all and b.holds_from(feed, position)), None)
        self.filtered = plain is None
        if plain is not None:
            plain.invocations += max(0, feed.tail - position)
        super()._look(feed)
        self._exchanges.looked(feed)
        if self._known_until:
            self._caught_up(feed)
        if any(binding.ends is not None for binding in bindings):
            self._end_bindings(feed.topic.name)
        self._moved()

    def select(self, feed: Feed, chunk: Chunk) -> tuple[bytes | None, int]:
        return choose_any(self._by_topic.get(feed.topic.name, ()), feed, chunk, self._clock)

    def _admit(self, span: Span) -> None:
        self._exchanges.chosen(span)
        before = self.counters.dropped
        asked = Span(span.feed, span.first, span.next_offset, span.count, span.mask)
        super()._admit(span)
        dropped = self.counters.dropped - before
        if dropped:
            # Whatever went is the newest of what came.
            stop = asked.first if dropped == asked.count else asked.offset_after(asked.count - dropped)
            gone = asked.wanted(stop, asked.next_offset)
            self._exchanges.dropped(Span(asked.feed, stop, asked.next_offset, dropped, gone))

    def _hold_up(self, topic_id: int) -> None:
        if self.overflow is Overflow.BLOCK:
            super()._hold_up(topic_id)
        else:
            # It only catches up; nobody has to wait for that.
            self._held.add(topic_id)

    def _let_through(self, topic_id: int) -> None:
        if self.overflow is Overflow.BLOCK:
            super()._let_through(topic_id)
        else:
            self._held.discard(topic_id)

    def _forget(self, feed: Feed) -> None:
        self._ends_unknown.discard(feed)
        for consumer in [consumer for consumer, span in self._unsent.items() if span.feed is feed]:
            del self._unsent[consumer]
        super()._forget(feed)
        self._caught_up(feed)
        self._exchanges.looked(feed)

    # --- delivering

    def ready(self) -> bool:
        return any(consumer.writable for consumer in self._consumers)

    def send(self, feed: Feed, chunk: Chunk, stop: int, wanted: bytes | None) -> int:
        left = Span(feed, chunk.first, stop, stop - chunk.first if wanted is None else wanted.count(1), wanted)
        takers = [consumer for consumer in self._consumers if consumer.may_read(feed.topic)]
        if not takers:
            # Nobody who is here has the right any more. Holding it back would hold up what they may read.
            self.counters.dropped += left.count
            return stop
        takers = [consumer for consumer in takers if consumer.writable]
        for number, consumer in enumerate(takers):
            share = -(-left.count // (len(takers) - number))
            end = stop if share == left.count else left.offset_after(share)
            if share:
                self._hand_over(consumer, Span(feed, left.first, end, share, left.wanted(left.first, end)), chunk)
            left = Span(feed, end, stop, left.count - share, left.wanted(end, stop))
        if takers:
            self._moved()
        return left.first

    def _hand_over(self, consumer: Consumer, part: Span, chunk: Chunk) -> None:
        self._consumers.remove(consumer)
        self._consumers.append(consumer)
        skip_node = consumer.skip_node
        exchange = topic_exchange(part.feed.topic.name)

        def encode(chunk: Chunk) -> tuple[bytes, int]:
            out = hot.ByteBuffer()
            count, _ = hot.encode_deliveries(
                chunk.batches, part.first, part.next_offset, exchange, self._default_tail, skip_node, part.mask, out
            )
            return out.take(), count

        if len(part.feed.readers) > 1:
            # Other queues at the same place deliver the same bytes.
            frames, count = chunk.made(("fq", part.first, part.next_offset, part.mask, skip_node), encode)
        else:
            frames, count = encode(chunk)
        if count:
            consumer.deliver(frames, count)
            self.pushed(part.feed, chunk, part.first, part.next_offset, part.mask, count, len(frames), consumer.address)
            if self.on_disk and consumer.unsent:
                self._unsent[consumer] = part

    def _deliver(self) -> None:
        super()._deliver()
        if self._lingering:
            self._release()
        if self._ended:
            self._tell_drained()


def _capacity(detail: QueueDetail) -> int:
    """How many messages may wait."""
    if detail.backlog < 0:
        return _UNLIMITED
    # A queue that blocks and holds nothing would never let anything through.
    return max(1, detail.backlog) if detail.policy == BLOCK else detail.backlog
