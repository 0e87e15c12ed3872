"""`compact`: the latest record of each key, as a Delta table and, where wanted, as a topic.

Of each batch only the last record of a key is used. It replaces the key's row in the table, and is appended to the topic, which so
holds a key once a batch instead of once a change: enough to rebuild the latest state from, at a fraction of the size. Records
without a key say nothing about one and are passed over. An empty value is kept as it is; `WHERE length(value) > 0` leaves those
out.

Table and topic each take a batch once, by the id of the query and the number of the batch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.spark.pipeline.batches import SESSIONS, query_id
from braidmq.spark.pipeline.definition import TableSink
from braidmq.spark.pipeline.sinks.delta import DeltaSink
from braidmq.spark.pipeline.sinks.sink import Batch, latest_per_key, writer_name
from braidmq.spark.pipeline.sinks.staging import write_records
from braidmq.spark.products.archive import safe_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_KEPT: Final = ("key", "value", "headers", "timestamp", "partition", "offset")


@dataclass(frozen=True)
class CompactBatch:
    """What happens to a batch. It travels to the server where Spark is reached by Connect."""

    query: str
    checkpoint: str
    table: str | None
    topic: str | None
    options: Mapping[str, str]

    def __call__(self, frame: DataFrame, number: int) -> None:
        batch = Batch(query_id(frame, self.query, self.checkpoint), number)
        latest = latest_per_key(frame.where("length(key) > 0"), ["key"]).persist()
        try:
            if self.table is not None:
                DeltaSink(TableSink(self.table, key=["key"]), self.table).write(latest, batch)
            if self.topic is not None:
                records = latest.select("key", "value", "headers")
                write_records(records, {**self.options, "topic": self.topic}, writer_name(batch, f"topic:{self.topic}"), number)
        finally:
            latest.unpersist()


def compact(
    spark: SparkSession,
    topic: str,
    options: Mapping[str, str],
    *,
    checkpoint: str,
    table: str | None = None,
    to_topic: str | None = None,
    once: bool = False,
    every: str | None = None,
) -> StreamingQuery:
    """Start compacting a topic into a table, a topic, or both. `options` are those of the data source."""
    if table is None and to_topic is None:
        raise BraidError("INVALID_ARGUMENT", reason="compacting needs a table, a topic, or both to write to")
    if to_topic == topic:
        raise BraidError("INVALID_ARGUMENT", reason=f"{topic} cannot be compacted into itself")
    name = f"compact-{safe_name(topic)}-{os.getpid()}"
    group = f"compact-{safe_name(topic)}"
    records = (
        spark.readStream.format("braid")
        .options(**{"startingOffsets": "earliest", "group": group, **options, "subscribe": json.dumps([topic])})
        .load()
    )
    SESSIONS[name] = spark
    job = CompactBatch(name, checkpoint, table, to_topic, dict(options))
    writer = records.select(*_KEPT).writeStream.foreachBatch(job).option("checkpointLocation", checkpoint).queryName(name)
    if once:
        writer = writer.trigger(availableNow=True)
    elif every:
        writer = writer.trigger(processingTime=every)
    return writer.start()
