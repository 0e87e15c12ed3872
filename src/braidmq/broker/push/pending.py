"""What is decided for a subscriber and not yet delivered: places in the log, in order.

A span is a run of offsets of one partition. Where a filter chose among them, a mask has one byte an offset; without one all of them
are meant, and spans that follow each other become one. So the memory of a queue without a filter does not grow with what is in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braidmq.broker.push.feed import Feed


class Span:
    """Offsets from `first` up to `next_offset`; with a `mask`, those whose byte (the first is that of `base`) is not 0."""

    __slots__ = ("base", "count", "feed", "first", "mask", "next_offset")

    def __init__(self, feed: Feed, first: int, next_offset: int, count: int, mask: bytes | None = None) -> None:
        self.feed = feed
        self.first = first
        self.next_offset = next_offset
        self.count = count
        self.mask = mask
        self.base = first

    def wanted(self, first: int, next_offset: int) -> bytes | None:
        """The mask of a part, None when all of it is meant."""
        return None if self.mask is None else self.mask[first - self.base : next_offset - self.base]

    def count_below(self, offset: int) -> int:
        """How many of its records lie before `offset`."""
        if self.mask is None:
            return min(offset, self.next_offset) - self.first
        return self.mask.count(1, self.first - self.base, max(0, min(offset, self.next_offset) - self.base))

    def offset_after(self, count: int) -> int:
        """The offset behind its first `count` records."""
        if self.mask is None:
            return min(self.next_offset, self.first + count)
        at = self.first - self.base - 1
        for _ in range(count):
            at = self.mask.index(1, at + 1)
        return self.base + at + 1


class Pending:
    def __init__(self) -> None:
        self._spans: deque[Span] = deque()
        self.count = 0
        """How many records are pending."""

    def __bool__(self) -> bool:
        return bool(self._spans)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    @property
    def head(self) -> Span:
        return self._spans[0]

    def add(self, span: Span) -> None:
        self.count += span.count
        if self._spans:
            last = self._spans[-1]
            if last.feed is span.feed and last.next_offset == span.first and last.mask is None is span.mask:
                last.next_offset = span.next_offset
                last.count += span.count
                return
        self._spans.append(span)

    def push_front(self, span: Span) -> None:
        """Put something first that is due before all else."""
        self.count += span.count
        self._spans.appendleft(span)

    def advance(self, offset: int) -> None:
        """Everything of the first span before `offset` is done with."""
        span = self._spans[0]
        if offset >= span.next_offset:
            self.count -= span.count
            self._spans.popleft()
            return
        done = span.count_below(offset)
        span.first = offset
        span.count -= done
        self.count -= done
        if not span.count:
            self._spans.popleft()

    def drop_oldest(self, keep: int) -> int:
        """Let go of the oldest until no more than `keep` are left; returns how many went."""
        dropped = 0
        while self.count > keep:
            span = self._spans[0]
            excess = min(self.count - keep, span.count)
            dropped += excess
            self.advance(span.next_offset if excess == span.count else span.offset_after(excess))
        return dropped

    def forget(self, feed: Feed) -> int:
        """Let go of everything of one feed; returns how much that was."""
        kept = deque(span for span in self._spans if span.feed is not feed)
        gone = self.count - sum(span.count for span in kept)
        self._spans = kept
        self.count -= gone
        return gone

    def first_of(self, feed: Feed) -> int | None:
        """The lowest pending offset of a feed."""
        return min((span.first for span in self._spans if span.feed is feed), default=None)
