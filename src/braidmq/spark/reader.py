"""Topics as a table: what `spark.read.format("braid")` plans and reads.

What is read is fixed when the query is planned: from where the partitions begin, or as `startingOffsets` says, to where they end
at that moment. A query over the same DataFrame that Spark plans again sees what was written since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from braidmq.base.errors import BraidError
from braidmq.spark.columns import COLUMNS, Shaping
from braidmq.spark.connecting import client_of
from braidmq.spark.decode import Decoding
from braidmq.spark.filters import Pushed
from braidmq.spark.gaps import Gap, report
from braidmq.spark.options import EARLIEST, LATEST, Options
from braidmq.spark.places import Places, existing, not_written, resolve, since
from braidmq.spark.ranges import RangePartition, Span, cut
from braidmq.spark.reading import read_spans
from braidmq.spark.shapes import arrow_schema

_STREAM_ONLY = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "holdRetention")


class BatchReader(DataSourceReader):
    def __init__(self, options: Options, schema: StructType, decoding: Decoding | None) -> None:
        options.refuse(_STREAM_ONLY, "it is for streams")
        self.options = options
        self.schema = schema
        self.decoding = decoding

    def partitions(self) -> list[InputPartition]:
        spans = self.spans(client_of(self.options))
        # Without tasks Spark would make up one of its own.
        return list(cut(spans, self.options.get("minPartitions"))) or [RangePartition([])]

    def spans(self, client: Any) -> list[Span]:
        """What is to be read, as it is now."""
        places = existing(client, self.options)
        starts = starting(client, self.options, places, "earliest")
        ends = resolve(client, self.options, places, self.options.get("endingOffsets", "latest"), LATEST)
        spans = []
        for topic, info in places.items():
            for number, place in enumerate(info.partitions):
                start, end = starts[topic][number], ends[topic][number]
                if end > place.newest:
                    raise not_written(topic, number, end, place)
                if start < place.oldest < end or start < end <= place.oldest:
                    report(Gap(topic, number, start, min(place.oldest, end), "retention removed them"), self.options)
                    start = min(place.oldest, end)
                if start < end:
                    spans.append(Span(topic, info.id, number, start, end))
        return spans

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_spans(self.options, arrow_schema(self.schema), partition.spans, self.decode())

    def decode(self) -> Any:
        return None if self.decoding is None else self.decoding.decoder()


class FilteringReader(BatchReader):
    """A reader that is asked about filters. Spark refuses one whose class says so while filters are switched off."""

    def __init__(self, options: Options, schema: StructType, decoding: Decoding | None) -> None:
        super().__init__(options, schema, decoding)
        self.pushed = Pushed()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return self.pushed.take(filters)

    def spans(self, client: Any) -> list[Span]:
        return self.pushed.spans(super().spans(client), client)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        row_filter = self.pushed.rows if self.pushed.looks_at_rows else None
        return read_spans(self.options, arrow_schema(self.schema), partition.spans, self.decode(), row_filter)


def starting(client: Any, options: Options, places: Places, default: Any) -> dict[str, list[int]]:
    """Where to begin in each partition."""
    if options.has("startingTimestamp"):
        options.refuse(("startingOffsets",), "`startingTimestamp` says where to begin")
        return since(client, places, options.get("startingTimestamp"))
    positions = options.get("startingOffsets", default)
    starts = resolve(client, options, places, positions, EARLIEST)
    for topic, info in places.items():
        for number, place in enumerate(info.partitions):
            start = starts[topic][number]
            if start > place.newest and positions != "group":
                raise not_written(topic, number, start, place)
            if start > place.newest:
                report(Gap(topic, number, place.newest, start, "the topic ends before them"), options)
                starts[topic][number] = place.newest
    return starts


def check_columns(schema: StructType, decoding: Decoding | None) -> None:
    """Refuse columns that do not exist, or of another type, before a task does."""
    Shaping(arrow_schema(schema), None, (lambda values: (values, values)) if decoding is not None else None)
    types = {name: kind for name, _, kind in COLUMNS}
    for field in schema.fields:
        wanted = types.get(field.name)
        if wanted is not None and field.dataType.simpleString() != wanted:
            reason = f"the column {field.name} is {wanted}, not {field.dataType.simpleString()}"
            raise BraidError("INVALID_ARGUMENT", reason=reason)
