"""What a broker counts about itself, for metrics and for people who look.

Counting must cost next to nothing, so it happens once a batch, a run of requests or a sync, never once a message; what
partitions, sessions and subscriptions count anyway is read from there. A histogram has one writer and may be read from another
thread at any time: a reader may see it one observation behind, never torn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Final

LATENCY_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip
RECORD_BOUNDS: Final = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0, 30_000.0, 100_000.0)
_RATE_SECONDS: Final = 10.0


class Histogram:
    """Observations, counted by upper bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """How many lie up to each bound and above the one before; the last are above all of them."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, part: float) -> float:
        """The value below which so great a part lies, as far as the bounds tell; 0 without observations."""
        counts = self.counts[:]
        wanted = part * sum(counts)
        seen = 0
        for count, bound in zip(counts, (*self.bounds, self.bounds[-1]), strict=True):
            seen += count
            if seen >= wanted and seen:
                return bound
        return 0.0


class Figures:
    """Of one broker, since it started."""

    def __init__(self) -> None:
        self.records = 0
        """Written to the log, of every topic and protocol, internal ones not counted."""
        self.written_bytes = 0
        self.batch_records = Histogram(RECORD_BOUNDS)
        """Records that one write of a partition brought."""
        self.commit_s = Histogram()
        """From the end of a turn until what it brought is as durable as asked."""
        self.sync_s = Histogram()
        """One sync, of however many files."""
        self.append_s = Histogram()
        """The writes of one turn, to however many partitions."""
        self.requests: dict[tuple[str, str], Histogram] = {}
        """By protocol and operation."""
        self.errors: dict[str, int] = {}
        """Answers that were an error, by code."""
        self.auth_failures = 0
        self.denied = 0
        self._marks: deque[tuple[float, int]] = deque([(0.0, 0)])

    def request(self, protocol: str, operation: str) -> Histogram:
        """Where the latency of an operation is counted; fetch it once and keep it."""
        found = self.requests.get((protocol, operation))
        if found is None:
            found = self.requests[protocol, operation] = Histogram()
        return found

    def failed(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1

    def records_per_s(self, now_s: float) -> float:
        """Over the last seconds, as far as somebody asked meanwhile."""
        marks = self._marks
        marks.append((now_s, self.records))
        while len(marks) > 2 and marks[1][0] <= now_s - _RATE_SECONDS:
            marks.popleft()
        since, before = marks[0]
        return (self.records - before) / (now_s - since) if now_s > since else 0.0
