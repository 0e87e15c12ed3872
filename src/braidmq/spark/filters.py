"""Filters of a batch query that are carried out where the records lie, or before they are fetched at all.

    topic, partition, offset    cut what is read: partitions are left out, ranges made shorter. Spark looks at none of it again
    timestamp >, >=, =          the broker finds where a range begins. Timestamps need not rise, so Spark still compares
    key                         compared by columns before rows go to the JVM

Everything else stays with Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from braidmq.client.sync import Client
from braidmq.spark.ranges import Span

_MOST = 1 << 63


@dataclass(slots=True)
class Pushed:
    """What filters say about the records that are wanted. It can be pickled."""

    topics: set[str] | None = None
    partitions: list[tuple[int, int]] = field(default_factory=list)
    """Ranges, of which all hold."""
    some_partitions: set[int] | None = None
    offsets: list[tuple[int, int]] = field(default_factory=list)
    since_ms: int | None = None
    keys: set[bytes] | None = None
    has_key: bool | None = None

    def take(self, filters: Sequence[Filter]) -> list[Filter]:
        """Take what can be carried out here; returns what Spark still has to look at."""
        return [each for each in filters if not self._take(each)]

    def _take(self, each: Filter) -> bool:
        name = getattr(each, "attribute", ())
        match name, each:
            case ("topic",), IsNotNull():
                return True
            case ("topic",), EqualTo(value=str(value)) | EqualNullSafe(value=str(value)):
                self.topics = _both(self.topics, {value})
                return True
            case ("topic",), In(value=values) if all(isinstance(value, str) for value in values):
                self.topics = _both(self.topics, set(values))
                return True
            case ("partition" | "offset",), IsNotNull():
                return True
            case ("partition",), In(value=values) if all(isinstance(value, int) for value in values):
                self.some_partitions = _both(self.some_partitions, set(values))
                return True
            case ("partition" | "offset",), _:
                found = _range(each)
                if found is None:
                    return False
                (self.partitions if name == ("partition",) else self.offsets).append(found)
                return True
            case ("timestamp",), GreaterThan(value=datetime()) | GreaterThanOrEqual(value=datetime()) | EqualTo(value=datetime()):
                self.since_ms = max(self.since_ms or 0, int(each.value.timestamp() * 1000))
                return False
            case ("key",), EqualTo(value=bytes(value)):
                self.keys = _both(self.keys, {value})
                return True
            case ("key",), In(value=values) if all(isinstance(value, bytes) for value in values):
                self.keys = _both(self.keys, set(values))
                return True
            case ("key",), IsNull():
                self.has_key = False
                return self.keys is None
            case ("key",), IsNotNull():
                if self.has_key is False:
                    return False
                self.has_key = True
                return True
        return False

    def spans(self, spans: Sequence[Span], client: Client) -> list[Span]:
        """What is left to read."""
        wanted = [span for span in spans if self._wants(span)]
        if self.since_ms is not None and wanted:
            wanted = self._since(wanted, client, self.since_ms)
        low = max((low for low, _ in self.offsets), default=0)
        high = min((high for _, high in self.offsets), default=_MOST)
        cut = [
            Span(span.topic, span.topic_id, span.partition, max(span.start, low), min(span.end, high)) for span in wanted
        ]
        return [span for span in cut if span.start < span.end]

    def _wants(self, span: Span) -> bool:
        return (
            (self.topics is None or span.topic in self.topics)
            and (self.some_partitions is None or span.partition in self.some_partitions)
            and all(low <= span.partition < high for low, high in self.partitions)
        )

    @staticmethod
    def _since(spans: list[Span], client: Client, since_ms: int) -> list[Span]:
        found: list[Span] = []
        for topic in dict.fromkeys(span.topic for span in spans):
            own = [span for span in spans if span.topic == topic]
            starts = client.offsets_since(topic, [span.partition for span in own], max(since_ms, 0))
            found += [
                Span(span.topic, span.topic_id, span.partition, max(span.start, start), span.end)
                for span, start in zip(own, starts, strict=True)
            ]
        return found

    @property
    def looks_at_rows(self) -> bool:
        return self.keys is not None or self.has_key is not None

    def rows(self, batch: pa.RecordBatch) -> pa.Array:
        """Which rows of a batch are wanted."""
        # Slow to import, and only queries with such a filter need it.
        import pyarrow.compute as pc

        column = batch.column("key")
        wanted = pa.repeat(pa.scalar(True), batch.num_rows)
        if self.keys is not None:
            wanted = pc.is_in(column, value_set=pa.array(sorted(self.keys), pa.binary()))
        if self.has_key is not None:
            wanted = pc.and_(wanted, column.is_valid() if self.has_key else column.is_null())
        return wanted


def _both(known: Any, more: Any) -> Any:
    return more if known is None else known & more


def _range(each: Filter) -> tuple[int, int] | None:
    """The whole numbers that a comparison lets through: the first, and the one after the last."""
    value = getattr(each, "value", None)
    if not isinstance(value, int):
        return None
    match each:
        case EqualTo() | EqualNullSafe():
            return value, value + 1
        case GreaterThan():
            return value + 1, _MOST
        case GreaterThanOrEqual():
            return value, _MOST
        case LessThan():
            return -_MOST, value
        case LessThanOrEqual():
            return -_MOST, value + 1
    return None
