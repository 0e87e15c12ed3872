"""Dead letters by cause: how many, since when, and what they look like.

A thousand letters usually have three reasons. Errors that differ only in what they quote (numbers, ids, text in quotes) count
as one cause. Only letters that are still open are counted: what was sent back or purged is not.

Letters are read page by page and forgotten, except a few samples a cause, so memory does not follow their number. It needs no
Spark, and so no Java either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.base.naming import DEAD_LETTER_ENDING
from braidmq.client.provenance import provenance
from braidmq.log.letter_id import place_in
from braidmq.spark.products.page import bars, columns, heading, page, paragraph, short, table
from braidmq.spark.products.times import day_and_time

if TYPE_CHECKING:
    from braidmq.client.models import Provenance, Record
    from braidmq.client.sync import Client

SAMPLES: Final = 3
PAGE: Final = 1000
BINS: Final = 48
_SAMPLE_CHARACTERS: Final = 200
_CAUSES_MAX: Final = 1000
"""Causes that are told apart; letters of further ones are counted together."""
_OTHER: Final = "(further causes)"
_VARIABLE: Final = (
    (re.compile(r"\"[^\"]*\"|'[^']*'|`[^`]*`"), "'…'"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE), "ID"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{12,}\b", re.IGNORECASE), "ID"),
    (re.compile(r"-?\b\d+(?:\.\d+)?\b"), "N"),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One letter of a cause."""

    id: str
    place: str
    """Topic, partition and offset that it came from."""
    key: str
    value: str
    error: str


@dataclass(slots=True)
class Cause:
    """Letters that failed alike."""

    reason: str
    error: str
    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    attempts: int = 0
    """Most attempts that a letter of it had."""
    samples: list[Sample] = field(default_factory=list)

    def add(self, sample: Sample, first_ms: int, last_ms: int, attempts: int) -> None:
        self.first_ms = min(self.first_ms, first_ms) if self.count else first_ms
        self.last_ms = max(self.last_ms, last_ms)
        self.attempts = max(self.attempts, attempts)
        self.count += 1
        if len(self.samples) < SAMPLES:
            self.samples.append(sample)


@dataclass(slots=True)
class Triage:
    """All causes of a topic's letters, the most frequent first."""

    topic: str
    causes: list[Cause]
    times_ms: list[int]
    """When letters failed last: sampled evenly where there are many."""

    @property
    def letters(self) -> int:
        return sum(cause.count for cause in self.causes)

    def rows(self) -> list[tuple[int, str, str, str, str, str]]:
        """A row a cause: count, reason, error, first and last failure, a sample."""
        return [
            (
                cause.count, cause.reason, cause.error, day_and_time(cause.first_ms), day_and_time(cause.last_ms),
                cause.samples[0].value if cause.samples else "",
            )
            for cause in self.causes
        ]  # fmt: skip

    def documents(self) -> list[dict[str, object]]:
        """The same for programs."""
        return [
            {
                "count": cause.count, "reason": cause.reason, "error": cause.error, "first_failure": day_and_time(cause.first_ms),
                "last_failure": day_and_time(cause.last_ms), "attempts_max": cause.attempts,
                "samples": [
                    {"id": each.id, "place": each.place, "key": each.key, "value": each.value, "error": each.error}
                    for each in cause.samples
                ],
            }
            for cause in self.causes
        ]  # fmt: skip

    def html(self) -> str:
        pieces = [
            bars("letters by cause", [(f"{cause.reason}: {cause.error}", cause.count) for cause in self.causes[:20]]),
        ]
        if self.times_ms:
            first, last = min(self.times_ms), max(self.times_ms)
            width = max((last - first) / BINS, 1)
            counts = [0.0] * BINS
            for moment in self.times_ms:
                counts[min(int((moment - first) / width), BINS - 1)] += 1
            pieces.append(columns("letters over time", counts, day_and_time(first), day_and_time(last)))
        for cause in self.causes:
            pieces += [
                heading(f"{cause.count:,} × {cause.reason}"),
                paragraph(cause.error),
                paragraph(f"{day_and_time(cause.first_ms)} to {day_and_time(cause.last_ms)}, at most {cause.attempts} attempts"),
                table(
                    ("id", "came from", "key", "value", "error"),
                    [(each.id, each.place, each.key, each.value, each.error) for each in cause.samples],
                ),
            ]
        return page(f"Dead letters of {self.topic}", f"{self.letters:,} letters of {len(self.causes):,} causes", pieces)


def triage(client: Client, topic: str) -> Triage:
    """Group the open dead letters of a topic by their cause."""
    origin = topic.removesuffix(DEAD_LETTER_ENDING)
    causes: dict[tuple[str, str], Cause] = {}
    times: list[int] = []
    keep_every = 1
    for seen, (letter, record, story) in enumerate(_letters(client, origin)):
        reason, error = (story.reason, story.error) if story is not None else ("unknown", "it was written by hand")
        name = (reason, cause_of(error))
        if name not in causes and len(causes) >= _CAUSES_MAX:
            name = (_OTHER, "")
        place = f"{story.topic}/{story.partition}@{story.offset}" if story is not None else ""
        sample = Sample(letter, place, _text(record.key), _text(record.value), short(error, _SAMPLE_CHARACTERS))
        first, last, attempts = (
            (story.first_failure_ms, story.last_failure_ms, story.attempts) if story is not None else (record.timestamp,) * 2 + (0,)
        )
        causes.setdefault(name, Cause(*name)).add(sample, first, last, attempts)
        if seen % keep_every == 0:
            times.append(last)
            if len(times) >= 100_000:
                times, keep_every = times[::2], keep_every * 2
    return Triage(origin, sorted(causes.values(), key=lambda cause: (-cause.count, cause.reason, cause.error)), times)


def cause_of(error: str) -> str:
    """An error without what differs from letter to letter."""
    for pattern, instead in _VARIABLE:
        error = pattern.sub(instead, error)
    return short(error.strip(), _SAMPLE_CHARACTERS)


def _letters(client: Client, origin: str) -> Iterator[tuple[str, Record, Provenance | None]]:
    """Every open letter with its record, page by page."""
    after = ""
    while True:
        ids = [letter.id for letter in client.dlq.ls(origin, PAGE, after)]
        if not ids:
            return
        wanted: dict[int, dict[int, str]] = {}
        for letter in ids:
            place = place_in(letter)
            if place is not None:
                wanted.setdefault(place[0], {})[place[1]] = letter
        for partition, offsets in wanted.items():
            yield from _records(client, origin + DEAD_LETTER_ENDING, partition, offsets)
        after = ids[-1]


def _records(
    client: Client, topic: str, partition: int, offsets: dict[int, str]
) -> Iterator[tuple[str, Record, Provenance | None]]:
    at, end = min(offsets), max(offsets)
    while at <= end:
        try:
            fetched = client.fetch(topic, partition, at)
        except BraidError as fault:
            if fault.code == "OFFSET_OUT_OF_RANGE":
                return  # purged, or removed by retention, while we were reading
            raise
        if not fetched.records:
            return
        for record in fetched.records:
            letter = offsets.get(record.offset)
            if letter is not None:
                yield letter, record, provenance(record)
        at = fetched.next_offset


def _text(data: bytes | None) -> str:
    return "" if data is None else short(data.decode("utf-8", "backslashreplace"), _SAMPLE_CHARACTERS)
