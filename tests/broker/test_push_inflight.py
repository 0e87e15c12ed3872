"""Unsettled deliveries, against a plain dictionary."""

from __future__ import annotations

import math
import random
from typing import Any, cast

import pytest

from braidmq.broker.push.inflight import Flight, InFlight
from braidmq.broker.push.window import Window

_FEEDS = [cast(Any, f"feed {number}") for number in range(3)]


@pytest.mark.parametrize("seed", range(30))
def test_in_flight_is_a_table_of_attempts(seed: int) -> None:
    chance = random.Random(seed)
    inflight, model = InFlight(), dict[tuple[object, int], Flight]()
    tails = dict.fromkeys(_FEEDS, 0)
    window = Window(100)
    for now in range(300):
        feed = chance.choice(_FEEDS)
        match chance.choice(("sent", "sent", "settle", "settle many", "change", "forget")):
            case "sent":
                offsets = [tails[feed] + step for step in range(chance.randint(1, 5))]
                tails[feed] = offsets[-1] + 1 + chance.randint(0, 2)
                flight = Flight(1, now + chance.randint(0, 20), window)
                inflight.sent(feed, offsets, flight)
                model |= {(feed, offset): flight for offset in offsets}
            case "settle":
                known = [place for place in model if place[0] is feed]
                place = chance.choice(known) if known and chance.random() < 0.9 else (feed, 10_000_000)
                assert inflight.settle(feed, place[1]) is model.pop(place, None)
            case "change" if model:
                own, offset = chance.choice(list(model))
                due_s = chance.choice((now - 1.0, now + 3.0, math.inf))
                model[own, offset] = Flight(model[own, offset].attempt + 1, due_s, chance.choice((None, window)))
                inflight.change(cast(Any, own), offset, model[own, offset])
            case "settle many":
                known = [place for place in model if place[0] is feed and chance.random() < 0.5]
                inflight.settle_many(feed, [offset for _, offset in known] + [10_000_000])
                for place in known:
                    del model[place]
            case "forget" if chance.random() < 0.1:
                inflight.forget(feed)
                model = {place: flight for place, flight in model.items() if place[0] is not feed}
        assert inflight.count == len(model)
        assert {(place.feed, place.offset): place.flight for place in inflight.all()} == model
        for each in _FEEDS:
            assert inflight.first_of(each) == min((offset for own, offset in model if own is each), default=None)
        late = {place for place, flight in model.items() if flight.due_s <= now}
        flying = {place for place, flight in model.items() if flight.window is window}
        assert {place[:2] for place in inflight.overdue(now)} == late & flying
        assert {place[:2] for place in inflight.returned(now)} == late - flying
        assert {place[:2] for place in inflight.of_window(window)} == flying
        dues = [flight.due_s for flight in model.values() if now < flight.due_s < math.inf]
        assert inflight.next_due(now) == min(dues, default=None)


def test_only_what_is_unsettled_changes() -> None:
    inflight = InFlight()
    inflight.sent(_FEEDS[0], [1], Flight(1, 0.0, None))
    with pytest.raises(AssertionError):
        inflight.change(_FEEDS[0], 2, Flight(2, 0.0, None))
