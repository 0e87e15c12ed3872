"""What every sink is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from braidmq.base.errors import BraidError
from braidmq.spark.pipeline.frames import require_columns

ORIGIN: Final = ("topic", "partition", "offset")
"""Columns by which a row can be traced to its record."""
_LABEL_CHARACTERS: Final = 60
_HASH_CHARACTERS: Final = 12
_DERIVED: Final = {
    "day": "date_format({0}, 'yyyy-MM-dd')",
    "hour": "date_format({0}, 'yyyy-MM-dd-HH')",
    "month": "date_format({0}, 'yyyy-MM')",
}


@dataclass(frozen=True, slots=True)
class Batch:
    writer: str
    """Who writes: the id of the query, which lives as long as its checkpoint."""
    number: int
    traceparent: bytes = b""
    """What records of this batch carry, so that a trace goes on; empty where nobody traces."""


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of one partition, the last one not included."""

    topic: str
    partition: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Replacing:
    """A batch whose rows replace what was made of the same records before."""

    spans: Sequence[Span]

    def condition(self, quote: str = '"') -> str:
        """The records, as SQL over the columns of `ORIGIN`."""

        def one(span: Span) -> str:
            topic, partition, offset = (f"{quote}{name}{quote}" for name in ORIGIN)
            name = span.topic.replace("'", "''")
            return f"({topic} = '{name}' AND {partition} = {span.partition} AND {offset} >= {span.first} AND {offset} < {span.end})"

        return " OR ".join(one(span) for span in self.spans)


class Sink(Protocol):
    label: str
    """Stable over restarts: the same sink is the same, wherever it stands in the definition."""

    def write(self, frame: DataFrame, batch: Batch) -> int | None:
        """Take the rows of a batch, unless it has them; returns how many it took, None when it cannot say."""
        ...

    def replace(self, frame: DataFrame, batch: Batch, replacing: Replacing) -> int | None:
        """Take rows in the place of what was made of these records before."""
        ...

    def refuses(self, columns: Sequence[str]) -> str:
        """Why rows with these columns cannot replace others here; empty when they can."""
        ...


def writer_name(batch: Batch, label: str) -> str:
    """Who writes to a sink: another name for each sink, short, and safe in file names.

    A label is cut and written with fewer characters than it may have, so its hash is what tells two of them apart."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", label)[:_LABEL_CHARACTERS]
    return f"{batch.writer}-{safe}-{hashlib.sha256(label.encode()).hexdigest()[:_HASH_CHARACTERS]}"


def with_partitions(frame: DataFrame, names: Sequence[str], what: str) -> DataFrame:
    """The rows with the columns that a table is divided by."""
    for name in names:
        if name not in frame.columns and name in _DERIVED and "timestamp" in frame.columns:
            frame = frame.withColumn(name, F.expr(_DERIVED[name].format("`timestamp`")))
    require_columns(frame, names, what)
    return frame


def to_arrow(frame: DataFrame) -> Any:
    """All rows, on the driver."""
    return frame.toArrow()


def never(label: str, why: str) -> BraidError:
    return BraidError("PIPELINE_REPLAY_REFUSED", pipeline=label, reason=why)
