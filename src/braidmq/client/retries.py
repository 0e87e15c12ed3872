"""Records that an application could not process, until they come again. No I/O, no waiting, no clock.

A record that failed is kept here and handed out again when it is due, while the consumer reads on. Until it is processed, or
has become a dead letter, nothing at or past its offset may be committed: after a crash it has to be found again. So each
partition is *held* at the lowest offset that is not settled yet.

A lock of its own makes every step safe, because positions are committed beside the application.
"""

from __future__ import annotations

import heapq
import itertools
import secrets
import threading
from typing import Final, Generic, TypeVar

from braidmq.client.models import Record, TopicPartition

R = TypeVar("R", bound=Record)

RETRY_SECONDS_FIRST: Final = 1.0
RETRY_SECONDS_MAX: Final = 60.0
"""The broker's policy, for when its clock and ours disagree so much that its due time means nothing here."""
CLOCK_SECONDS_MAX: Final = 2.0
"""Disagreement that is put up with."""


def retry_delay_s(retry_at_ms: int, now_ms: int, attempts: int) -> float:
    """How long to wait until a retry that is due at a time of the broker's clock."""
    delay_s = (retry_at_ms - now_ms) / 1000
    if -CLOCK_SECONDS_MAX <= delay_s <= RETRY_SECONDS_MAX + CLOCK_SECONDS_MAX:
        return max(0.0, delay_s)
    return min(RETRY_SECONDS_FIRST * 2.0 ** min(attempts - 1, 30), RETRY_SECONDS_MAX)


class Retries(Generic[R]):
    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, R]] = []
        """A heap by due time."""
        self._handed: dict[tuple[TopicPartition, int], R] = {}
        """Records that were handed out again and are not settled yet."""
        self._open: dict[TopicPartition, set[int]] = {}
        """Offsets that are not settled."""
        self._reports: dict[tuple[TopicPartition, int], int] = {}
        """Failures that were reported and not answered yet, by what the report is called."""

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def report(self, record: R) -> int:
        """What to call the report of a failure: the same name until it was answered, so that the broker counts it once."""
        with self._mutex:
            place = (TopicPartition(record.topic, record.partition), record.offset)
            return self._reports.setdefault(place, secrets.randbits(63) + 1)

    def answered(self, record: R) -> None:
        """The broker has counted the failure."""
        with self._mutex:
            self._reports.pop((TopicPartition(record.topic, record.partition), record.offset), None)

    def add(self, record: R, due_s: float) -> None:
        """Hand the record out again at `due_s`."""
        with self._mutex:
            key = TopicPartition(record.topic, record.partition)
            self._handed.pop((key, record.offset), None)
            offsets = self._open.setdefault(key, set())
            if record.offset in offsets:
                self._waiting = [entry for entry in self._waiting if not _is(entry[2], key, record.offset)]
                heapq.heapify(self._waiting)
            offsets.add(record.offset)
            heapq.heappush(self._waiting, (due_s, next(self._numbers), record))

    def settle(self, record: R) -> None:
        """It needs no retry any more."""
        with self._mutex:
            key = TopicPartition(record.topic, record.partition)
            self._handed.pop((key, record.offset), None)
            self._waiting = [entry for entry in self._waiting if not _is(entry[2], key, record.offset)]
            heapq.heapify(self._waiting)
            self._close(key, record.offset)

    def settle_handed(self) -> None:
        """Everything that was handed out again and has not failed since is processed."""
        if not self._handed:
            return
        with self._mutex:
            for key, offset in self._handed:
                self._close(key, offset)
            self._handed.clear()

    def _close(self, key: TopicPartition, offset: int) -> None:
        offsets = self._open.get(key)
        if offsets is not None:
            offsets.discard(offset)
            if not offsets:
                del self._open[key]

    def take_due(self, now_s: float) -> R | None:
        """A record to hand out again now."""
        if not self._waiting or self._waiting[0][0] > now_s:
            return None
        with self._mutex:
            _, _, record = heapq.heappop(self._waiting)
            self._handed[TopicPartition(record.topic, record.partition), record.offset] = record
            return record

    def next_due_s(self) -> float | None:
        with self._mutex:
            return self._waiting[0][0] if self._waiting else None

    def hold(self, positions: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The positions, none of them past a record that is not settled."""
        if not self._open:
            return positions
        with self._mutex:
            lowest = {key: min(offsets) for key, offsets in self._open.items()}
        return {key: min(offset, lowest.get(key, offset)) for key, offset in positions.items()}

    def drop(self, key: TopicPartition) -> None:
        """Whatever the partition's records were waiting for: they are read anew, or by somebody else."""
        with self._mutex:
            self._open.pop(key, None)
            self._handed = {place: record for place, record in self._handed.items() if place[0] != key}
            self._waiting = [entry for entry in self._waiting if (entry[2].topic, entry[2].partition) != key]
            heapq.heapify(self._waiting)


def _is(record: Record, key: TopicPartition, offset: int) -> bool:
    return record.offset == offset and (record.topic, record.partition) == key
