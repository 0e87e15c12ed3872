"""From the definition of a sink to the sink."""

from __future__ import annotations

from braidmq.spark.pipeline import definition
from braidmq.spark.pipeline.context import Context
from braidmq.spark.pipeline.ordering import order_of
from braidmq.spark.pipeline.sections import Section
from braidmq.spark.pipeline.sinks.console import ConsoleSink
from braidmq.spark.pipeline.sinks.delta import DeltaSink
from braidmq.spark.pipeline.sinks.iceberg import IcebergSink
from braidmq.spark.pipeline.sinks.mirror import MirrorSink
from braidmq.spark.pipeline.sinks.parquet import ParquetSink
from braidmq.spark.pipeline.sinks.postgres import PostgresSink
from braidmq.spark.pipeline.sinks.sink import Sink
from braidmq.spark.pipeline.sinks.topic import TopicSink


def make_sink(wanted: Section, context: Context) -> Sink:
    order = order_of(wanted, context.pipeline)
    match wanted:
        case definition.TableSink(format="delta"):
            return DeltaSink(wanted, context.path(wanted.path), order)
        case definition.TableSink(format="parquet"):
            return ParquetSink(wanted, context.path(wanted.path))
        case definition.TableSink():
            return IcebergSink(wanted, order)
        case definition.TopicSink():
            return TopicSink(wanted, context, order)
        case definition.MirrorSink():
            return MirrorSink(wanted, context)
        case definition.PostgresSink():
            return PostgresSink(wanted, order)
        case definition.ConsoleSink():
            return ConsoleSink(wanted)
    raise AssertionError(f"no sink: {wanted}")
