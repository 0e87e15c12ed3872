"""What was delivered and waits to be acknowledged.

Only places in the log are kept: a delivery that has to be repeated is read from the log again. Deliveries that went out together
share one `Flight`, so a thousand of them cost a thousand entries in a table and nothing else. The lowest of a partition is where a
restart goes on. By which ids a receiver knows them is the business of its connection (`window.py`).

A delivery that came back (refused for now, overdue, or its connection is gone) has a flight without a window: it stays unsettled,
and goes out again from `due_s` on, before anything newer. With an infinite `due_s` somebody else sees to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from braidmq.broker.push.feed import Feed
    from braidmq.broker.push.window import Window


class Flight:
    """One attempt at deliveries that went out together."""

    __slots__ = ("attempt", "due_s", "window")

    def __init__(self, attempt: int, due_s: float, window: Window | None) -> None:
        self.attempt = attempt
        """1 for the first."""
        self.due_s = due_s
        """When it is overdue; without a window, when it may go out again."""
        self.window = window
        """Where it went; None for what came back."""


class Place(NamedTuple):
    """An unsettled delivery."""

    feed: Feed
    offset: int
    flight: Flight


class InFlight:
    def __init__(self) -> None:
        self._places: dict[Feed, dict[int, Flight]] = {}
        """First deliveries go out in the order of the log and later ones keep their entry, so the lowest offset comes first."""
        self.count = 0

    def sent(self, feed: Feed, offsets: Sequence[int], flight: Flight) -> None:
        """First deliveries, above all others of this partition."""
        self._places.setdefault(feed, {}).update(zip(offsets, repeat(flight)))
        self.count += len(offsets)

    def change(self, feed: Feed, offset: int, flight: Flight) -> None:
        """Another attempt, or the end of one."""
        places = self._places[feed]
        assert offset in places, "only what is unsettled changes"
        places[offset] = flight

    def settle(self, feed: Feed, offset: int) -> Flight | None:
        """Done with; None where it was before."""
        places = self._places.get(feed)
        flight = None if places is None else places.pop(offset, None)
        if flight is not None:
            self.count -= 1
        return flight

    def settle_many(self, feed: Feed, offsets: Iterable[int]) -> None:
        """Some of a partition are done with."""
        places = self._places.get(feed)
        if places is not None:
            before = len(places)
            for offset in offsets:
                places.pop(offset, None)
            self.count -= before - len(places)

    def forget(self, feed: Feed) -> None:
        """Settle everything of a partition."""
        self.count -= len(self._places.pop(feed, ()))

    def first_of(self, feed: Feed) -> int | None:
        """The lowest unsettled offset of a partition."""
        return next(iter(self._places.get(feed, ())), None)

    def flight_of(self, feed: Feed, offset: int) -> Flight | None:
        return self._places.get(feed, _NOTHING).get(offset)

    def all(self) -> list[Place]:
        """Everything unsettled, each partition in the order of the log."""
        return [Place(feed, offset, flight) for feed, places in self._places.items() for offset, flight in places.items()]

    def of_window(self, window: Window) -> list[Place]:
        """What one connection has not settled."""
        return [place for place in self.all() if place.flight.window is window]

    def overdue(self, now_s: float) -> list[Place]:
        """What was not acknowledged in time."""
        return [place for place in self.all() if place.flight.window is not None and place.flight.due_s <= now_s]

    def returned(self, now_s: float) -> list[Place]:
        """What came back and may go out again."""
        return [place for place in self.all() if place.flight.window is None and place.flight.due_s <= now_s]

    def next_due(self, after_s: float) -> float | None:
        """The next time after `after_s` at which something becomes overdue, or may go out again."""
        dues = {flight.due_s for places in self._places.values() for flight in places.values()}
        return min((due_s for due_s in dues if after_s < due_s < math.inf), default=None)


_NOTHING: Final[dict[int, Flight]] = {}
