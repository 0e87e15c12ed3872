"""Topics as a stream: what `spark.readStream.format("braid")` plans and reads.

An offset of the stream, as Spark keeps it in the checkpoint, says for each topic its id and the next offset of each partition;
where records were lost on the way and that was allowed, also how many, and where each partition went on behind its last gap:

    {"orders": {"id": 7, "next": {"0": 512, "1": 498}, "lost": 30, "resumed": {"0": 130}}}

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
from braidmq.spark.gaps import Gap, report, report_replaced
from braidmq.spark.options import Options
from braidmq.spark.places import Place, Places, existing, places_of, topics_of
from braidmq.spark.progress import Progress, StreamOffset
from braidmq.spark.ranges import RangePartition, Span, cut
from braidmq.spark.reader import starting
from braidmq.spark.reading import read_spans
from braidmq.spark.shapes import arrow_schema


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options, schema: StructType, decoding: Decoding | None) -> None:
        options.refuse(("endingOffsets",), "a stream does not end")
        if options.get("holdRetention") and not options.has("group"):
            options.refuse(("holdRetention",), "it needs the option `group`")
        self.options = options
        self.schema = schema
        self.decoding = decoding
        self._target: StreamOffset | None = None
        """Where a query with the trigger AvailableNow ends."""
        self._progress: Progress | None = None

    def __getstate__(self) -> dict[str, Any]:
        # It travels to executors, which keep no group.
        return {**self.__dict__, "_progress": None}

    # --- on the driver

    def _group(self) -> Progress | None:
        if self._progress is None and self.options.has("group"):
            hold = self.options.get("holdRetention", False)
            self._progress = Progress(client_of(self.options), self.options.get("group"), hold)
        return self._progress

    def initialOffset(self) -> StreamOffset:
        client = client_of(self.options)
        places = existing(client, self.options)
        starts = starting(client, self.options, places, "latest")
        return {topic: stream_place(info.id, starts[topic]) for topic, info in places.items()}

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        client = client_of(self.options)
        group = self._group()
        if group is not None:
            group.completed(start)
        places = places_of(client, topics_of(client, self.options, start))
        begin = self._over_gaps(start, places)
        end = ends_of(places) if self._target is None else self._target
        reached = grown(begin, end, places)
        if isinstance(limit, ReadAllAvailable):
            return reached
        return admit(reached, begin, places, self.options.get("maxOffsetsPerTrigger"), self.options.get("maxBytesPerTrigger"))

    def _over_gaps(self, start: StreamOffset, places: Places) -> StreamOffset:
        """`start`, moved over records that are gone where that is allowed; otherwise it is an error that names them."""
        moved: StreamOffset = {}
        for topic, known in start.items():
            info = places.get(topic)
            if info is None or info.id != known["id"]:
                report_replaced(topic, info is not None, self.options)
                if info is not None:
                    moved[topic] = {"id": info.id, "next": {}, **_lost(known, 0)}
                continue
            resumed, lost = {}, 0
            for number, at in known["next"].items():
                gap = _gap(topic, int(number), at, info.partitions[int(number)])
                if gap is not None:
                    report(gap, self.options)
                    resumed[number] = gap.end if gap.start == at else gap.start
                    lost += gap.end - gap.start
            moved[topic] = {**known, "next": known["next"] | resumed, **_lost(known, lost)}
            if resumed:
                moved[topic]["resumed"] = known.get("resumed", {}) | resumed
        return moved

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
        group = self._group()
        if group is not None:
            group.planned(end)
        places = places_of(client_of(self.options), sorted(end))
        return list(cut(spans_between(start, end, places, self.options), self.options.get("minPartitions")))

    # --- on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        decode = None if self.decoding is None else self.decoding.decoder()
        return read_spans(self.options, arrow_schema(self.schema), partition.spans, decode)


def _gap(topic: str, partition: int, at: int, place: Place) -> Gap | None:
    """What a query that is at an offset cannot read any more."""
    if at < place.oldest:
        return Gap(topic, partition, at, place.oldest, "retention removed them")
    if at > place.newest:
        # It was restored from a backup, or lost its end: what is written from now on is new, and has offsets that were read before.
        return Gap(topic, partition, place.newest, at, "the topic ends before them")
    return None


def _lost(known: dict[str, Any], more: int) -> dict[str, int]:
    lost = known.get("lost", 0) + more
    return {"lost": lost} if lost else {}


def stream_place(topic_id: int, offsets: list[int]) -> dict[str, Any]:
    return {"id": topic_id, "next": {str(number): offset for number, offset in enumerate(offsets)}}


def ends_of(places: Places) -> StreamOffset:
    return {topic: stream_place(info.id, [place.newest for place in info.partitions]) for topic, info in places.items()}


def grown(start: StreamOffset, end: StreamOffset, places: Places) -> StreamOffset:
    """`end`, but nowhere before `start`: an offset of a stream never goes back. Of topics that are gone nothing is left."""
    result: StreamOffset = {}
    for topic in sorted({*start, *end} & set(places)):
        known, now = start.get(topic), end.get(topic)
        if known is None or now is None or known["id"] != now["id"]:
            # One that came while the query ran is read from its beginning, but not past the target of AvailableNow.
            chosen = now if known is None or (now is not None and now["id"] == places[topic].id) else known
            if chosen is not None:
                result[topic] = chosen
            continue
        following = dict(known["next"])
        for number, offset in now["next"].items():
            following[number] = max(offset, following.get(number, 0))
        result[topic] = {**known, "next": following}
    return result


def spans_between(start: StreamOffset, end: StreamOffset, places: Places, options: Options) -> list[Span]:
    """What lies between two offsets of the stream. What of it is gone is reported."""
    spans = []
    for topic, until in end.items():
        info = places.get(topic)
        known = start.get(topic)
        same = known is not None and known["id"] == until["id"]
        gone = info is None or info.id != until["id"]
        if gone:
            report_replaced(topic, info is not None, options)
        for number, stop in sorted(until["next"].items(), key=lambda item: int(item[0])):
            partition = int(number)
            # A partition or a topic that came while the query ran is read from its beginning.
            oldest = 0 if info is None or gone else info.partitions[partition].oldest
            first = known["next"].get(number, oldest) if same and known is not None else oldest
            if gone:
                continue
            # What lies before is known to be gone: the offsets have counted it.
            first = max(first, until.get("resumed", {}).get(number, first))
            if first < min(oldest, stop):
                until_gone = min(oldest, stop)
                report(Gap(topic, partition, first, until_gone, "retention removed them"), options)
                first = until_gone
            if first < stop:
                spans.append(Span(topic, until["id"], partition, first, stop))
    return spans
