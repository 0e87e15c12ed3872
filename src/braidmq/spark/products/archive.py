"""`archive`: a topic kept for ever, as a Delta table divided by day.

Retention takes old records out of a topic; the table has them all, with their offsets. It is a plain pipeline, so it runs, pauses
and shows its lag like any other, and each record gets into the table once. Small files are joined every so many batches.

`history` reads both as one: the table up to the last offset that it has of each partition, the topic from there on. What is where
is decided once, from one version of the table, so no record comes twice and none is missing, also while the archive is
running. Where retention took records before they were archived there is a gap; reading over it fails, as it does with topics.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.errors import BraidError

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

COMPACT_EVERY: Final = 20
_NAMES: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


def safe_name(topic: str) -> str:
    """A topic's name as part of a path or of a pipeline's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", topic).strip("._-") or "topic"


def archive_path(topic: str) -> str:
    """Where the archive of a topic is unless somebody says otherwise: below `archive` in the working directory."""
    return f"archive/{safe_name(topic)}"


def bounds(max_records: int | None, max_bytes: str | None) -> list[str]:
    """What a batch reads at most, as lines of `source`."""
    lines = [f"  max_records: {max_records}"] if max_records is not None else []
    return [*lines, f"  max_bytes: {json.dumps(max_bytes)}"] if max_bytes is not None else lines


def archive_definition(
    topic: str,
    table: str | None = None,
    *,
    checkpoint: str | None = None,
    every: str | None = None,
    max_records: int | None = None,
    max_bytes: str | None = None,
    compact_every: int = COMPACT_EVERY,
) -> str:
    """The pipeline that archives a topic, as YAML. Where it is belongs to the table, from wherever it is started: the checkpoint is
    in the table's folder, where those who read the table do not look, and goes when that goes."""
    path = (table or archive_path(topic)).rstrip("/")
    lines = [
        f"name: archive-{safe_name(topic)}",
        f"description: {json.dumps(f'Archive of {topic}, divided by day', ensure_ascii=False)}",
        "source:",
        f"  topics: {json.dumps([topic], ensure_ascii=False)}",
        "  starting: earliest",
        *bounds(max_records, max_bytes),
        "sinks:",
        "  - table:",
        f"      path: {json.dumps(path, ensure_ascii=False)}",
        "      partition_by: [day]",
        f"      compact_every: {compact_every}",
        f"checkpoint: {json.dumps(checkpoint or f'{path}/_checkpoint', ensure_ascii=False)}",
        *([f"trigger: {{every: {every}}}"] if every else []),
    ]
    return "\n".join(lines) + "\n"


def history(
    topic: str, table: str | None = None, *, spark: SparkSession | None = None, options: Mapping[str, str] | None = None
) -> DataFrame:
    """All records of a topic ever archived or still in it, as one DataFrame with the columns of the data source.

    `options` are those of the data source, such as `servers`. A topic that has no archive yet is read from the broker alone.
    """
    from braidmq.spark.session import session

    spark = spark or session()
    path = table or archive_path(topic)
    cold, next_offsets = _cold(spark, path if "://" in path else os.path.abspath(path), topic)
    given = {**(options or {}), "subscribe": json.dumps([topic])}
    if next_offsets:
        given["startingOffsets"] = json.dumps({topic: next_offsets})
    hot = spark.read.format("braid").options(**given).load().select(*_NAMES)
    return hot if cold is None else cold.unionByName(hot)


def _cold(spark: SparkSession, path: str, topic: str) -> tuple[DataFrame | None, dict[int, int]]:
    """The archived records, and the first offset of each partition that is not among them."""
    from deltalake import DeltaTable
    from pyspark.sql import functions as F

    if not DeltaTable.is_deltatable(path):
        return None, {}
    table = DeltaTable(path)
    missing = {*_NAMES} - {field.name for field in table.schema().fields}
    if missing:
        reason = f"{path} is no archive of a topic: it has no column {', '.join(sorted(missing))}"
        raise BraidError("INVALID_ARGUMENT", reason=reason)
    files = table.file_uris()
    if not files:
        return None, {}
    frame = spark.read.option("basePath", path).schema(_schema(table)).parquet(*files).select(*_NAMES)
    rows = frame.groupBy("topic", "partition").agg(F.max("offset")).collect()
    others = {row[0] for row in rows} - {topic}
    if others:
        raise BraidError("INVALID_ARGUMENT", reason=f"{path} holds records of {', '.join(sorted(others))}, not only of {topic}")
    return frame, {row[1]: row[2] + 1 for row in rows}


def _schema(table: DeltaTable) -> Any:
    """The columns of the table as Spark declares them, whatever a single file has."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(pa.schema(table.schema().to_arrow()))
