"""What a broker counts about itself, for metrics and for people who look.

Counting must cost next to nothing, so it happens once a batch, a run of requests or a sync, never once a message; what
partitions, sessions and subscriptions count anyway is read from there. To observe is to append to a list. What lies there is sorted
into its bounds, all at once, by whoever looks at the histogram, and by `fold` now and then, so that it does not grow.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

LATENCY_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip
RECORD_BOUNDS: Final = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0, 30_000.0, 100_000.0)
_RATE_SECONDS: Final = 10.0

# --- operations, as metrics name them
PRODUCED: Final = "produce"
PUBLISHED_QOS0: Final = "publish_qos0"
PUBLISHED_QOS1: Final = "publish_qos1"
PUBLISHED: Final = "publish"
DELIVERED: Final = "deliver"
"""From the write of a record until it was pushed."""

INTAKE: Final = {"flymq": (PRODUCED,), "blipmq": (PUBLISHED_QOS0, PUBLISHED_QOS1), "fq": (PUBLISHED,)}
"""How records come in, by protocol."""
OPERATIONS: Final = {
    "blipmq": {
        PUBLISHED_QOS0: "messages without an answer, until they are as durable as their topic asks",
        PUBLISHED_QOS1: "messages until their Ack; a run that has some of either QoS is one of these",
        "login": "a key until its answer",
        "subscribe": "Subscribe until its Ack",
        "unsubscribe": "Unsubscribe until its Ack",
        "ack": "a run of Acks until what they settle is settled",
        "poll": "POLLs of the binary framing until what waits for them is sent",
        "ping": "Ping until its Pong",
        DELIVERED: "the newest message of a push, from its write until it was handed to the connection",
    },
    "fq": {
        PUBLISHED: "messages of a data connection until they are as durable as their exchange asks",
        "auth": "AUTH until its answer",
        "bind": "BIND until its answer",
        "unbind": "UNBIND until its answer",
        "status": "STATUS until its answer",
        "submit": "a message over HTTP until its answer",
        "http": "any other request over HTTP",
        DELIVERED: "the newest message of a push, from its write until it was handed to the connection",
    },
}
"""All there are, by protocol, with what is measured. FlyMQ's are its opcodes, in small letters, and `unknown`."""


class Histogram:
    """Observations, counted by upper bound."""

    __slots__ = ("_counts", "_folding", "_fresh", "_total", "bounds", "observe")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS_S) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self._fresh: list[float] = []
        self._folding = threading.Lock()
        self.observe: Callable[[float], None] = self._fresh.append
        """Takes a value, on any thread."""

    def fold(self) -> None:
        """Sort what was observed into the bounds."""
        if not self._fresh:
            return
        import numpy as np

        with self._folding:
            values = self._fresh[:]
            # Whatever is appended meanwhile stays.
            del self._fresh[: len(values)]
            places = np.searchsorted(self.bounds, values, side="left")
            found = np.bincount(places, minlength=len(self._counts)).tolist()
            self._counts = [before + more for before, more in zip(self._counts, found, strict=True)]
            self._total += sum(values)

    @property
    def counts(self) -> list[int]:
        """How many lie up to each bound and above the one before; the last are above all of them. The list does not change."""
        self.fold()
        return self._counts

    @property
    def total(self) -> float:
        self.fold()
        return self._total

    @property
    def count(self) -> int:
        return sum(self.counts)

    def copy(self) -> Histogram:
        found = Histogram(self.bounds)
        with self._folding:
            found._counts, found._total, found._fresh[:] = self._counts, self._total, self._fresh
        return found

    def quantile(self, part: float) -> float:
        """The value below which so great a part lies, as far as the bounds tell; 0 without observations."""
        return quantile(self.counts, part, self.bounds)


def quantile(counts: Sequence[int], part: float, bounds: tuple[float, ...] = LATENCY_BOUNDS_S) -> float:
    """The same of counts by bound, such as the difference of two looks at a histogram."""
    wanted = part * sum(counts)
    seen = 0
    for count, bound in zip(counts, (*bounds, bounds[-1]), strict=True):
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

    def latency_counts(self) -> dict[str, tuple[list[int], list[int]]]:
        """By protocol, how many records or runs of them took how long to come in, and how many pushes to go out."""
        found = {}
        for protocol, intake in INTAKE.items():
            taken = [self.request(protocol, operation).counts for operation in intake]
            pushed = self.requests.get((protocol, DELIVERED))
            none = [0] * len(taken[0])
            found[protocol] = [sum(each) for each in zip(*taken, strict=True)], none if pushed is None else pushed.counts
        return found

    def fold(self) -> None:
        """Let no histogram grow, whether anybody looks or not."""
        for histogram in (self.batch_records, self.commit_s, self.sync_s, self.append_s, *self.requests.values()):
            histogram.fold()

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
