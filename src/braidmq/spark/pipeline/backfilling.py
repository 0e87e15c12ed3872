"""A backfill: what was written before a pipeline began, through the same definition, as one bounded job.

It is a replay of that range under another name, so the rules of the sinks are the same and it can be repeated. It ends where the
pipeline's own run is; for a pipeline that has not run yet, run it first: with `starting: latest` it begins now, and the backfill
does what was before.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from braidmq.base.errors import BraidError
from braidmq.client.sync import Client
from braidmq.spark.pipeline.context import Context
from braidmq.spark.pipeline.reading import Reading
from braidmq.spark.pipeline.replaying import Replayed, replay, spans_of_time


def backfill(
    spark: SparkSession, context: Context, client: Client, reading: Reading, since_ms: int | None, until_ms: int | None
) -> Replayed:
    """Process what was written in a time, as far as the pipeline's own run has passed it or will not come to it."""
    if context.source.topics is None:
        raise BraidError("PIPELINE_REPLAY_REFUSED", pipeline=context.pipeline.name, reason="only topics can be backfilled")
    client.pipeline.put(context.pipeline.name, reading.text, "python" if reading.file.endswith(".py") else "yaml")
    spans = spans_of_time(client, context, since_ms or 0, until_ms)
    return replay(spark, context, client, spans, mode="backfill")
