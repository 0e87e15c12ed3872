"""Where Spark remembers how far a pipeline is, and what it means when nothing is there.

A pipeline without a checkpoint begins where its definition says. For one that has run before that is wrong without a sign of it:
what topics and tables without a key hold comes to them once more, or, with `starting: latest`, what was written meanwhile is passed
over. The broker knows of earlier runs, so such a run is refused unless somebody says that it is meant.
"""

from __future__ import annotations

import json

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from braidmq.base.errors import BraidError
from braidmq.client.sync import Client
from braidmq.spark.pipeline.context import Context

_MODES = ("once", "continuous")
"""Runs that move the checkpoint; replays and backfills have none."""


def checkpoint_path(context: Context) -> str:
    return f"{context.path(context.pipeline.checkpoint)}/{context.pipeline.name}"


def refuse_a_lost_checkpoint(spark: SparkSession, context: Context, client: Client, fresh: bool) -> None:
    """Raise where a run would begin anew although the pipeline has run before; `fresh` says that this is meant."""
    path = checkpoint_path(context)
    there = query_at(spark, path) is not None
    if there and fresh:
        reason = f"--fresh begins without a checkpoint, and there is one at {path}: remove it, or run without --fresh"
        raise BraidError("INVALID_ARGUMENT", reason=reason)
    if not there and not fresh and _has_run(context, client):
        raise BraidError("PIPELINE_CHECKPOINT_GONE", pipeline=context.pipeline.name, path=path)


def query_at(spark: SparkSession, path: str) -> str | None:
    """The id of the query that a checkpoint belongs to; None where there is no checkpoint.

    Spark looks for it, as only Spark can reach every place that a checkpoint may be in. It writes this file before any batch."""
    try:
        # A name is a name, whatever characters it has that may stand in patterns.
        found = spark.read.option("__globPaths__", "false").text(f"{path}/metadata").first()
    except PySparkException as fault:
        if fault.getCondition() == "PATH_NOT_FOUND":
            return None
        raise
    return None if found is None else str(json.loads(found[0])["id"])


def _has_run(context: Context, client: Client) -> bool:
    """Whether an earlier run has come to a batch. One that failed before it leaves no checkpoint, and nothing in the sinks."""
    try:
        runs = [run for run in client.pipeline.show(context.pipeline.name).runs if run.mode in _MODES]
    except BraidError as fault:
        if fault.code != "PIPELINE_NOT_FOUND":
            raise
        return False
    told = [json.loads(run.progress) for run in runs if run.progress]
    if any(each.get("batch", -1) >= 0 or each.get("counted", -1) >= 0 for each in told):
        return True
    # One that was killed may not have told of its batches. The position is its own unless the group is somebody else's.
    if not runs or context.source.topics is None or context.source.group is not None:
        return False
    topics = set(client.list_topics())
    return any(_has_position(client, context.group, topic) for topic in context.source.topics if topic in topics)


def _has_position(client: Client, group: str, topic: str) -> bool:
    try:
        return any(part.committed for part in client.group.lag(group, topic))
    except BraidError as fault:
        if fault.code != "GROUP_NOT_FOUND":
            raise
        return False
