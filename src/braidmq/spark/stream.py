"""Topics as a stream: what `spark.readStream.format("braid")` plans and reads.

An offset of the stream, as Spark keeps it in the checkpoint, says for each topic its id and the next offset of each partition:

    {"orders": {"id": 7, "next": {"0": 512, "1": 498}}}

The id tells a topic that was deleted and made anew under the same name from the one the query was reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from braidmq.spark.admission import admit
from braidmq.spark.connecting import client_of
from braidmq.spark.decode import Decoding
from braidmq.spark.gaps import Gap, report
from braidmq.spark.options import Options
from braidmq.spark.places import Places, places_of, topics_of
from braidmq.spark.ranges import RangePartition, Span, cut
from braidmq.spark.reader import starting
from braidmq.spark.reading import read_spans
from braidmq.spark.shapes import arrow_schema

StreamOffset = dict[str, dict[str, Any]]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options, schema: StructType, decoding: Decoding | None) -> None:
        options.refuse(("endingOffsets",), "a stream does not end")
        self.options = options
        self.schema = schema
        self.decoding = decoding
        self._target: StreamOffset | None = None
        """Where a query with the trigger AvailableNow ends."""

    # --- on the driver

    def initialOffset(self) -> StreamOffset:
        client = client_of(self.options)
        places = places_of(client, topics_of(client, self.options))
        starts = starting(client, self.options, places, "latest")
        return {topic: stream_place(info.id, starts[topic]) for topic, info in places.items()}

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        client = client_of(self.options)
        places = places_of(client, topics_of(client, self.options))
        end = ends_of(places) if self._target is None else self._target
        if isinstance(limit, ReadAllAvailable):
            return grown(start, end)
        return admit(grown(start, end), start, places, self.options.get("maxOffsetsPerTrigger"), self.options.get("maxBytesPerTrigger"))

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.has("maxOffsetsPerTrigger"):
            return ReadMaxRows(self.options.get("maxOffsetsPerTrigger"))
        if self.options.has("maxBytesPerTrigger"):
            return ReadMaxBytes(self.options.get("maxBytesPerTrigger"))
        return ReadAllAvailable()

    def reportLatestOffset(self) -> StreamOffset:
        client = client_of(self.options)
        return ends_of(places_of(client, topics_of(client, self.options)))

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.reportLatestOffset()

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[InputPartition]:
        client = client_of(self.options)
        places = places_of(client, sorted(end))
        return list(cut(spans_between(start, end, places, self.options), self.options.get("minPartitions")))

    # --- on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        decode = None if self.decoding is None else self.decoding.decoder()
        return read_spans(self.options, arrow_schema(self.schema), partition.spans, decode)


def stream_place(topic_id: int, offsets: list[int]) -> dict[str, Any]:
    return {"id": topic_id, "next": {str(number): offset for number, offset in enumerate(offsets)}}


def ends_of(places: Places) -> StreamOffset:
    return {topic: stream_place(info.id, [place.newest for place in info.partitions]) for topic, info in places.items()}


def grown(start: StreamOffset, end: StreamOffset) -> StreamOffset:
    """`end`, but nowhere before `start`: an offset of a stream never goes back."""
    result: StreamOffset = {}
    for topic in sorted({*start, *end}):
        known, now = start.get(topic), end.get(topic)
        if known is None or now is None or known["id"] != now["id"]:
            result[topic] = now or known or {}
            continue
        following = dict(known["next"])
        for number, offset in now["next"].items():
            following[number] = max(offset, following.get(number, 0))
        result[topic] = {"id": now["id"], "next": following}
    return result


def spans_between(start: StreamOffset, end: StreamOffset, places: Places, options: Options) -> list[Span]:
    """What lies between two offsets of the stream. What of it is gone is reported."""
    spans = []
    for topic, until in end.items():
        info = places[topic]
        known = start.get(topic, {"id": until["id"], "next": {}})
        for number, stop in sorted(until["next"].items(), key=lambda item: int(item[0])):
            partition = int(number)
            place = info.partitions[partition]
            # A partition or a topic that came while the query ran is read from its beginning.
            first = known["next"].get(number, place.oldest) if known["id"] == until["id"] else place.oldest
            if first < min(place.oldest, stop):
                gone = min(place.oldest, stop)
                report(Gap(topic, partition, first, gone, "retention removed them"), options)
                first = gone
            if first < stop:
                spans.append(Span(topic, until["id"], partition, first, stop))
    return spans
