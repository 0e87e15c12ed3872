"""What became of the messages that fq clients published: who is told so, and the figures of each exchange.

A publisher learns from its status how many of its messages reached a queue. That is known only when the queues have looked at the
records, which happens after they are durable. So a run of messages is *claimed* when it is taken in: these offsets of that
partition came from this publisher. Queues say what they chose and what they dropped, and when all of them have looked, the claim
is settled. Messages of an exchange that nothing is bound to are counted at once.

An exchange is known here from the first bind that names it. Records are kept in its topic either way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.push import Feed, Span
from braidmq.log.partition import PartitionLog

if TYPE_CHECKING:
    from collections.abc import Iterator


class Looking(Protocol):
    """A queue, as far as claims are concerned."""

    @property
    def cursors(self) -> dict[Feed, int]:
        """How far it has looked at each partition."""

    @property
    def catching_up(self) -> bool:
        """Whether it has much to look at before it comes to what is new."""


@dataclass(slots=True)
class Tally:
    """The figures of one data connection, as STATUS reports them."""

    no_exchange: int = 0
    no_route: int = 0
    routed: int = 0
    dropped: int = 0
    size_dropped: int = 0
    msgs_in: int = 0
    msgs_out: int = 0
    octets_in: int = 0
    octets_out: int = 0


@dataclass(slots=True)
class Figures:
    """The figures of an exchange, or of all."""

    messages: int = 0
    octets: int = 0
    no_route: int = 0
    routed: int = 0
    dropped: int = 0


@dataclass(slots=True, eq=False)
class Exchange:
    name: bytes
    figures: Figures = field(default_factory=Figures)
    queues: dict[Looking, None] = field(default_factory=dict)
    """What is bound to it."""


class Claim:
    """A run of messages whose fate is not known yet."""

    __slots__ = ("_all", "_chosen", "away", "dropped", "end", "error", "exchange", "first", "known", "routed", "settled", "tally")

    def __init__(self, exchange: Exchange, tally: Tally, first: int, end: int, settled: Callable[[Claim], None] | None) -> None:
        self.exchange = exchange
        self.tally = tally
        self.first = first
        self.end = end
        self.routed = 0
        self.dropped = 0
        self.known = True
        """Whether there is such an exchange."""
        self.away = False
        """Whether another node of the cluster has stored them."""
        self.error: BraidError | None = None
        """Why the messages were not taken in."""
        self.settled = settled
        """Called when everything is known."""
        self._all = False
        self._chosen = 0
        """A byte a record, the first lowest, as one number: 1 where a queue chose it."""

    @property
    def no_route(self) -> int:
        """How many no queue chose."""
        return 0 if self._all else self.end - self.first - self._chosen.bit_count()

    def waits_for(self, queue: Looking, feed: Feed) -> bool:
        """Whether a queue has still to say what it chooses."""
        return queue.cursors.get(feed, self.end) < self.end

    def choose_all(self) -> None:
        self._all = True
        self.routed += self.end - self.first

    def choose(self, span: Span) -> None:
        """A queue chose what a span says."""
        first, end = max(self.first, span.first), min(self.end, span.next_offset)
        mask = span.wanted(first, end)
        if mask is None:
            if end - first == self.end - self.first:
                self.choose_all()
                return
            self.routed += end - first
            mask = b"\1" * (end - first)
        else:
            self.routed += mask.count(1)
        self._chosen |= int.from_bytes(mask, "little") << 8 * (first - self.first)


class Exchanges:
    def __init__(self, exchanges_max: int = limits.FQ_EXCHANGES_MAX) -> None:
        self._exchanges_max = exchanges_max
        self._by_name: dict[bytes, Exchange] = {}
        self._claims: dict[Feed, deque[Claim]] = {}
        self.total = Figures()
        self.no_exchange = 0
        self.size_dropped = 0

    def all(self) -> list[Exchange]:
        return [self._by_name[name] for name in sorted(self._by_name)]

    def bound(self, name: bytes) -> Exchange:
        """The exchange that something is being bound to."""
        exchange = self._by_name.get(name)
        if exchange is None:
            if len(self._by_name) >= self._exchanges_max:
                # Only a bind makes one, and each has long been forgotten by whoever made it.
                idle = next((known for known in self._by_name.values() if not known.queues), None)
                if idle is not None:
                    del self._by_name[idle.name]
            exchange = self._by_name[name] = Exchange(name)
        return exchange

    # --- publishing

    def published(
        self, name: bytes, feed: Feed | None, first: int, count: int, octets: int, tally: Tally,
        settled: Callable[[Claim], None] | None = None,
    ) -> None:
        """A publisher's messages were taken in, as `count` records of a partition from `first` on.

        `feed` is None where nobody waits on the partition. `settled` is called when it is known what became of them.
        """
        self.total.messages += count
        self.total.octets += octets
        exchange = self._by_name.get(name)
        if exchange is None:
            claim = self._unknown(Claim(Exchange(name), tally, first, first + count, settled))
        else:
            exchange.figures.messages += count
            exchange.figures.octets += octets
            claim = Claim(exchange, tally, first, first + count, settled)
            if feed is not None and exchange.queues:
                self._claims.setdefault(feed, deque()).append(claim)
                if len(self._claims[feed]) > limits.FQ_CLAIMS_MAX:
                    self._settle(self._claims[feed].popleft())
                return
        self._settle(claim)

    def stored_away(
        self, name: bytes, choosing: int | None, octets: int, tally: Tally, settled: Callable[[Claim], None] | None
    ) -> None:
        """Another node stored a message, and so many queues choose it; None where nothing is bound to the exchange."""
        self.total.messages += 1
        self.total.octets += octets
        exchange = self._by_name.get(name)
        claim = Claim(exchange or Exchange(name), tally, 0, 1, settled)
        claim.away = True
        if exchange is not None:
            exchange.figures.messages += 1
            exchange.figures.octets += octets
        elif choosing is None:
            self._unknown(claim)
        for _ in range(choosing or 0):
            claim.choose_all()
        self._settle(claim)

    def refused(self, name: bytes, tally: Tally, settled: Callable[[Claim], None] | None = None) -> None:
        """A message was not taken in: for its publisher there is no such exchange."""
        self._settle(self._unknown(Claim(Exchange(name), tally, 0, 1, settled)))

    def rejected(
        self, name: bytes, tally: Tally, error: BraidError | None, settled: Callable[[Claim], None] | None = None
    ) -> None:
        """A message was not taken in: it does not fit, or cannot be stored."""
        claim = Claim(self._by_name.get(name) or Exchange(name), tally, 0, 1, settled)
        claim.error = error
        self._settle(claim)

    def _unknown(self, claim: Claim) -> Claim:
        claim.known = False
        self.no_exchange += claim.end - claim.first
        claim.tally.no_exchange += claim.end - claim.first
        return claim

    def failed(self, log: PartitionLog) -> None:
        """Records of a partition could not be written, and are taken back."""
        lost_from = log.log_end if log.failure is None else log.high_watermark
        for feed in [feed for feed in self._claims if feed.log is log]:
            claims = self._claims[feed]
            while claims and claims[-1].end > lost_from:
                self._settle(claims.pop())
            self._forget_empty(feed)

    # --- what queues say

    def chosen(self, span: Span) -> None:
        """A queue is about to take these records."""
        for claim in self._overlapping(span.feed, span.first, span.next_offset):
            claim.choose(span)

    def dropped(self, span: Span) -> None:
        """A queue had no room for these, which it chose before."""
        for claim in self._overlapping(span.feed, span.first, span.next_offset):
            claim.dropped += span.count_below(claim.end) - span.count_below(max(claim.first, span.first))

    def looked(self, feed: Feed) -> None:
        """A queue has looked at some more of a partition, or will not any more."""
        claims = self._claims.get(feed)
        while claims:
            claim = claims[0]
            late = [queue for queue in claim.exchange.queues if claim.waits_for(queue, feed)]
            if not all(queue.catching_up for queue in late):
                break
            for _ in late:
                # It drops nothing meanwhile. Whether it chooses the messages is known too late to tell the publisher.
                claim.choose_all()
            self._settle(claims.popleft())
        self._forget_empty(feed)

    def _overlapping(self, feed: Feed, first: int, end: int) -> Iterator[Claim]:
        for claim in self._claims.get(feed, ()):
            if claim.first >= end:
                return
            if claim.end > first:
                yield claim

    def _forget_empty(self, feed: Feed) -> None:
        if not self._claims.get(feed, True):
            del self._claims[feed]

    def _settle(self, claim: Claim) -> None:
        for figures in (claim.tally, claim.exchange.figures, self.total):
            figures.routed += claim.routed
            figures.dropped += claim.dropped
            figures.no_route += claim.no_route
        if claim.settled is not None:
            claim.settled(claim)
