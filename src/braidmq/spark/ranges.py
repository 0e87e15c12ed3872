"""Offset ranges: what one task reads, and how many of them a read is cut into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition


@dataclass(frozen=True, slots=True)
class Span:
    """Records of one partition, from `start` to before `end`."""

    topic: str
    topic_id: int
    partition: int
    start: int
    end: int

    @property
    def records(self) -> int:
        return self.end - self.start


class RangePartition(InputPartition):
    """What one task reads, in order."""

    def __init__(self, spans: Sequence[Span]) -> None:
        super().__init__(None)
        self.spans = tuple(spans)

    def __repr__(self) -> str:
        return ", ".join(f"{span.topic}/{span.partition} {span.start}..{span.end}" for span in self.spans)


def cut(spans: Sequence[Span], at_least: int | None) -> list[RangePartition]:
    """One task a span; with `at_least` spans are split, the larger into more pieces, until there are so many tasks."""
    filled = [span for span in spans if span.records > 0]
    total = sum(span.records for span in filled)
    if at_least is None or at_least <= len(filled) or not total:
        return [RangePartition([span]) for span in filled]
    tasks: list[RangePartition] = []
    for span in filled:
        pieces = max(1, min(span.records, -(-span.records * at_least // total)))
        edges = [span.start + span.records * number // pieces for number in range(pieces + 1)]
        for start, end in pairwise(edges):
            tasks.append(RangePartition([Span(span.topic, span.topic_id, span.partition, start, end)]))
    return tasks
