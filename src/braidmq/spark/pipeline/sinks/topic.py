"""A topic, through the data source: the rows of a batch are staged by the executors and appear together, once."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from braidmq.spark.options import Options
from braidmq.spark.pipeline.context import Context
from braidmq.spark.pipeline.definition import TopicSink as Definition
from braidmq.spark.pipeline.frames import quoted, require_columns
from braidmq.spark.pipeline.ordering import Order
from braidmq.spark.pipeline.sinks.latest import latest_per_key
from braidmq.spark.pipeline.sinks.sink import Batch, Replacing, never, writer_name
from braidmq.spark.pipeline.sinks.staging import write_records as write_records


class TopicSink:
    def __init__(self, definition: Definition, context: Context, order: Order | None = None) -> None:
        self._definition = definition
        self._order = order
        self._options = {**context.options(definition.servers), **definition.options, "topic": definition.name}
        # What is wrong with them is wrong before anything runs.
        Options(self._options)
        self.label = f"topic:{definition.name}"

    def write(self, frame: DataFrame, batch: Batch) -> int | None:
        return write_records(traced(self._records(frame), batch), self._options, writer_name(batch, self.label), batch.number)

    def _records(self, frame: DataFrame) -> DataFrame:
        """Key and value: the columns that are named, or all of them as JSON."""
        key, value, headers = self._definition.key, self._definition.value, self._definition.headers
        require_columns(frame, [name for name in (key, value, headers) if name is not None], self.label)
        if self._order is not None:
            frame = latest_per_key(frame, self._order, self.label)
        keys = _bytes(frame, key) if key is not None else F.lit(None).cast("binary")
        if value is not None:
            values = _bytes(frame, value)
        else:
            values = F.to_json(F.struct(*map(quoted, frame.columns)), {"ignoreNullFields": "false"}).cast("binary")
        with_headers = [F.col(quoted(headers)).alias("headers")] if headers is not None else []
        return frame.select(keys.alias("key"), values.alias("value"), *with_headers)

    def replace(self, frame: DataFrame, batch: Batch, replacing: Replacing) -> int | None:
        raise never(self.label, self.refuses(()))

    def refuses(self, columns: Sequence[str]) -> str:
        return f"{self.label} is a topic, and what a topic holds is never taken back"


def traced(records: DataFrame, batch: Batch) -> DataFrame:
    """Records with the context of their batch among the headers, in the place of the one that they came with."""
    if not batch.traceparent:
        return records
    own = F.array(F.struct(F.lit("traceparent").alias("key"), F.lit(batch.traceparent).alias("value")))
    if "headers" not in records.columns:
        return records.withColumn("headers", own)
    kept = F.expr("filter(headers, each -> each.key NOT IN ('traceparent', 'tracestate'))")
    return records.withColumn("headers", F.concat(F.coalesce(kept, F.array().cast(records.schema["headers"].dataType)), own))


def _bytes(frame: DataFrame, name: str) -> Column:
    """A column as bytes: binary as it is, text as UTF-8, structs as JSON, anything else as its text."""
    column = F.col(quoted(name))
    kind = frame.select(column).schema.fields[0].dataType.typeName()
    if kind == "binary":
        return column
    return (F.to_json(column) if kind in ("struct", "array", "map") else column.cast("string")).cast("binary")
