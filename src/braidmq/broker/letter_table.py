"""What must be remembered of dead letters: which were replayed or purged, how often records failed, what expired so far, and which
records of a producer's newest batch were refused.

Letters themselves are records of ordinary topics (`<topic>.dlq`). A letter that was replayed stays there until retention
takes it, so its offset is kept here, in runs: replaying a whole topic leaves one run. This is part of a state machine:
nothing here depends on time or chance.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any, Final

from braidmq.base import limits

BURIED: Final = -1
"""Attempts of a record that is a dead letter by now."""


class Runs:
    """A set of offsets that come in runs."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, runs: list[list[int]] | None = None) -> None:
        self._starts = [start for start, _ in runs or ()]
        self._ends = [end for _, end in runs or ()]

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def add(self, start: int, end: int) -> None:
        """Add the offsets from `start` to before `end`."""
        first = bisect_right(self._starts, start)
        if first and self._ends[first - 1] >= start:
            first -= 1
            start = self._starts[first]
        last = first
        while last < len(self._starts) and self._starts[last] <= end:
            end = max(end, self._ends[last])
            last += 1
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def after(self, offset: int) -> int:
        """The first offset at `offset` or later that is not in the set."""
        at = bisect_right(self._starts, offset) - 1
        return self._ends[at] if at >= 0 and offset < self._ends[at] else offset

    def runs(self) -> list[list[int]]:
        return [[start, end] for start, end in zip(self._starts, self._ends, strict=True)]


@dataclass(frozen=True, slots=True)
class Failure:
    """What is known of a record that a group could not process."""

    attempts: int
    first_ms: int
    last_ms: int
    token: int = 0
    """What the last report of it was called; 0 where nobody gave it a name."""


_Place = tuple[int, str, int, int]


class LetterTable:
    def __init__(
        self, failures_remembered: int = limits.FAILURES_REMEMBERED, refusals_remembered: int = limits.REFUSALS_REMEMBERED
    ) -> None:
        self._gone: dict[tuple[int, int], Runs] = {}
        """(dead-letter topic, partition) to the offsets that are no letters any more."""
        self._failures: dict[_Place, Failure] = {}
        """The one that failed longest ago first."""
        self._failures_remembered = failures_remembered
        self._expired: dict[tuple[int, int], tuple[int, int]] = {}
        """(topic, partition) to (expiry, offset): what expired up to there is a dead letter."""
        self._refused: dict[tuple[int, int, int, int], tuple[int, int]] = {}
        """(topic, partition, producer, epoch) to (sequence of its newest batch that was refused in part, how many records of
        it were dealt with); the one that was refused longest ago first."""
        self._refusals_remembered = refusals_remembered

    # --- letters

    def is_gone(self, topic_id: int, partition: int, offset: int) -> bool:
        runs = self._gone.get((topic_id, partition))
        return runs is not None and offset in runs

    def first_from(self, topic_id: int, partition: int, offset: int) -> int:
        """The first offset at `offset` or later that may hold a letter."""
        runs = self._gone.get((topic_id, partition))
        return offset if runs is None else runs.after(offset)

    def strike(self, topic_id: int, partition: int, start: int, end: int) -> None:
        """What lies from `start` to before `end` are no letters any more."""
        if start < end:
            self._gone.setdefault((topic_id, partition), Runs()).add(start, end)

    # --- failures

    def failure(self, topic_id: int, group: str, partition: int, offset: int) -> Failure | None:
        return self._failures.get((topic_id, group, partition, offset))

    def fail(self, topic_id: int, group: str, partition: int, offset: int, now_ms: int, token: int = 0) -> Failure:
        """Count a failure, unless it is the last one reported again."""
        place = (topic_id, group, partition, offset)
        known = self._failures.pop(place, None) or Failure(0, now_ms, now_ms)
        if known.attempts != BURIED and (not token or known.token != token):
            known = Failure(known.attempts + 1, known.first_ms, now_ms, token)
        self._failures[place] = known
        if len(self._failures) > self._failures_remembered:
            del self._failures[next(iter(self._failures))]
        return known

    def bury(self, topic_id: int, group: str, partition: int, offset: int) -> bool:
        """The record becomes a dead letter; False when it is one already."""
        place = (topic_id, group, partition, offset)
        known = self._failures.get(place)
        if known is None or known.attempts == BURIED:
            return False
        self._failures[place] = replace(known, attempts=BURIED)
        return True

    # --- expired records

    def expired_to(self, topic_id: int, partition: int) -> tuple[int, int]:
        return self._expired.get((topic_id, partition), (0, -1))

    @property
    def latest_expiry_ms(self) -> int:
        """The latest expiry of anything that became a letter; 0 without any."""
        return max((expiry_ms for expiry_ms, _ in self._expired.values()), default=0)

    def expire(self, topic_id: int, partition: int, expiry_ms: int, offset: int) -> bool:
        """Move on to (expiry, offset); False when that was reached before."""
        if (expiry_ms, offset) <= self.expired_to(topic_id, partition):
            return False
        self._expired[topic_id, partition] = (expiry_ms, offset)
        return True

    # --- records of batches that were refused

    def refused_of(self, topic_id: int, partition: int, producer_id: int, epoch: int, sequence: int) -> int:
        """How many records of a producer's batch were dealt with: those of them that do not fit are dead letters."""
        known, records = self._refused.get((topic_id, partition, producer_id, epoch), (-1, 0))
        return records if known == sequence else 0

    def refuse(self, topic_id: int, partition: int, producer_id: int, epoch: int, sequence: int, records: int) -> bool:
        """Deal with a batch up to `records`; False when that was reached before. Without a producer nobody can tell."""
        if producer_id < 0:
            return True
        if self.refused_of(topic_id, partition, producer_id, epoch, sequence) >= records:
            return False
        place = (topic_id, partition, producer_id, epoch)
        self._refused.pop(place, None)
        self._refused[place] = (sequence, records)
        if len(self._refused) > self._refusals_remembered:
            del self._refused[next(iter(self._refused))]
        return True

    def forget_topic(self, topic_id: int) -> None:
        tables: tuple[dict[Any, Any], ...] = (self._gone, self._expired, self._refused)
        for table in tables:
            for key in [key for key in table if key[0] == topic_id]:
                del table[key]
        for place in [place for place in self._failures if place[0] == topic_id]:
            del self._failures[place]

    # --- snapshots

    def snapshot(self) -> Any:
        return {
            "gone": [[*key, runs.runs()] for key, runs in self._gone.items()],
            "failures": [[*place, f.attempts, f.first_ms, f.last_ms, f.token] for place, f in self._failures.items()],
            "expired": [[*key, *place] for key, place in self._expired.items()],
            "refused": [[*key, *upto] for key, upto in self._refused.items()],
        }

    def restore(self, document: Any) -> None:
        self._gone = {(topic_id, partition): Runs(runs) for topic_id, partition, runs in document["gone"]}
        self._failures = {(row[0], row[1], row[2], row[3]): Failure(*row[4:]) for row in document["failures"]}
        self._expired = {(topic_id, partition): (expiry, offset) for topic_id, partition, expiry, offset in document["expired"]}
        self._refused = {(row[0], row[1], row[2], row[3]): (row[4], row[5]) for row in document["refused"]}
