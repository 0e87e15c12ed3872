"""What is pending, against a plain list of places."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from braidmq.broker.push import Pending, Span

_FEEDS = [cast(Any, object()) for _ in range(3)]
Place = tuple[object, int]


def _places(pending: Pending) -> list[Place]:
    found: list[Place] = []
    for span in pending:
        wanted = span.wanted(span.first, span.next_offset)
        offsets = range(span.first, span.next_offset)
        found += [(span.feed, offset) for offset in offsets if wanted is None or wanted[offset - span.first]]
    return found


def _span(feed: Any, first: int, count: int, random_bits: random.Random) -> tuple[Span, list[Place]]:
    if random_bits.random() < 0.5:
        return Span(feed, first, first + count, count), [(feed, offset) for offset in range(first, first + count)]
    mask = bytes(random_bits.randint(0, 1) for _ in range(count - 1)) + b"\1"
    wanted = [(feed, first + index) for index, bit in enumerate(mask) if bit]
    return Span(feed, first, first + count, len(wanted), mask), wanted


@pytest.mark.parametrize("seed", range(40))
def test_pending_is_a_list_of_places(seed: int) -> None:
    chance = random.Random(seed)
    pending, model = Pending(), list[Place]()
    tails = dict.fromkeys(_FEEDS, 0)
    for _ in range(200):
        match chance.choice(("add", "add", "advance", "advance", "drop", "forget", "front")):
            case "add":
                feed = chance.choice(_FEEDS)
                tails[feed] += chance.choice((0, 0, 3))
                span, wanted = _span(feed, tails[feed], chance.randint(1, 12), chance)
                tails[feed] = span.next_offset
                pending.add(span)
                model += wanted
            case "advance" if pending:
                span = pending.head
                to = chance.randint(span.first, span.next_offset)
                gone = [place for place in model[: span.count] if place[1] < to]
                pending.advance(to)
                model = model[len(gone) :]
            case "drop":
                keep = chance.randint(0, len(model) + 2)
                dropped = pending.drop_oldest(keep)
                assert dropped == max(0, len(model) - keep)
                model = model[dropped:]
            case "forget" if chance.random() < 0.2:
                feed = chance.choice(_FEEDS)
                before = len(model)
                model = [place for place in model if place[0] is not feed]
                assert pending.forget(feed) == before - len(model)
            case "front" if pending:
                span = pending.head
                if span.first > 0:
                    pending.push_front(Span(span.feed, span.first - 1, span.first, 1))
                    model.insert(0, (span.feed, span.first - 1))
        assert pending.count == len(model) and bool(pending) == bool(model)
        assert _places(pending) == model
        for feed in _FEEDS:
            lowest = min((offset for own, offset in model if own is feed), default=None)
            first = pending.first_of(feed)
            # It may be lower than the first that is wanted, never higher: a restart repeats looking, and skips nothing.
            assert (first is None) == (lowest is None) and (first is None or lowest is None or first <= lowest)


def test_what_follows_without_a_filter_becomes_one_span() -> None:
    pending = Pending()
    for first in range(0, 10_000, 10):
        pending.add(Span(_FEEDS[0], first, first + 10, 10))
    assert len(list(pending)) == 1 and pending.count == 10_000


@pytest.mark.parametrize("count", range(1, 5))
def test_the_offset_behind_some_records_of_a_masked_span(count: int) -> None:
    span = Span(_FEEDS[0], 100, 108, 4, b"\0\1\0\1\1\0\0\1")
    assert span.offset_after(count) == (102, 104, 105, 108)[count - 1]
    assert span.count_below(span.offset_after(count)) == count
