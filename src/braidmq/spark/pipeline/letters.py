"""Rows that cannot go on, as the dead letters they become.

A letter has the bytes of its record as they were, and in its attributes where it came from, why it is there and which pipeline said
so: the form that the broker's own letters have, so `braid dlq` lists, shows and sends them back like any other.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from braidmq.base.errors import BraidError
from braidmq.base.limits import ERROR_TEXT_BYTES_MAX
from braidmq.base.naming import DEAD_LETTER_ENDING
from braidmq.log.attrs import (
    TAG_ERROR,
    TAG_FAILURES,
    TAG_HEADER,
    TAG_ORIGIN_PLACE,
    TAG_ORIGIN_TOPIC,
    TAG_PIPELINE,
    TAG_REASON,
    encode_attrs,
)
from braidmq.spark.pipeline.context import Context
from braidmq.spark.pipeline.frames import RECORD

SCHEMA_REASON: Final = "schema"
LETTER: Final = (
    "topic string, partition int, offset bigint, key binary, value binary, headers array<struct<key:string,value:binary>>, "
    "reason string, error string"
)
"""A row on its way to become a letter."""
WRITTEN: Final = "topic string, key binary, value binary, attrs binary"
_PLACE: Final = struct.Struct("<iq")
_FAILURES: Final = struct.Struct("<Iqq")
_NAME: Final = struct.Struct("<H")


def letters_of(frame: DataFrame, reason: Column, error: Column, context: Context, what: str) -> DataFrame:
    """Rows as letters, with what was wrong with each."""
    columns = frame.columns
    if all(name in columns for name in RECORD):
        headers = "headers" if "headers" in columns else "cast(null as array<struct<key:string,value:binary>>)"
        kept = frame.selectExpr("*", f"{headers} as __headers")
        return kept.select(
            "topic", "partition", "offset", "key", "value", F.col("__headers").alias("headers"), reason.alias("reason"),
            error.alias("error"),
        )  # fmt: skip
    origin = context.pipeline.dead_letters
    if context.source.topics is not None or origin is None:
        missing = ", ".join(f"`{name}`" for name in RECORD if name not in columns)
        hint = "validate before the step that drops them" if context.source.topics is not None else "name a topic in `dead_letters`"
        raise BraidError("INVALID_ARGUMENT", reason=f"{what} makes dead letters, which need {missing}: {hint}")
    shown = [name for name in columns if not name.startswith("__")]
    return frame.select(
        F.lit(origin).alias("topic"), F.lit(-1).alias("partition"), F.lit(-1).cast("bigint").alias("offset"),
        F.lit(None).cast("binary").alias("key"), F.to_json(F.struct(*shown)).cast("binary").alias("value"),
        F.lit(None).cast("array<struct<key:string,value:binary>>").alias("headers"), reason.alias("reason"), error.alias("error"),
    )  # fmt: skip


def letter_records(letters: DataFrame, context: Context) -> DataFrame:
    """Letters as records of the dead-letter topics, ready to be written."""
    pipeline = context.pipeline.name

    def pack(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        now_ms = time.time_ns() // 1_000_000
        for batch in batches:
            rows = batch.to_pylist()
            yield pa.RecordBatch.from_pydict(
                {
                    "topic": pa.array([row["topic"] + DEAD_LETTER_ENDING for row in rows], pa.string()),
                    "key": batch.column("key"),
                    "value": batch.column("value"),
                    "attrs": pa.array([_attrs(row, pipeline, now_ms) for row in rows], pa.binary()),
                }
            )

    return letters.mapInArrow(pack, WRITTEN)


def _attrs(row: dict[str, Any], pipeline: str, now_ms: int) -> bytes:
    error = f"pipeline {pipeline}: {row['error']}".encode("utf-8", "replace")[:ERROR_TEXT_BYTES_MAX]
    entries = [
        (TAG_ORIGIN_TOPIC, row["topic"].encode()),
        (TAG_ORIGIN_PLACE, _PLACE.pack(row["partition"], row["offset"])),
        (TAG_REASON, row["reason"].encode()),
        (TAG_ERROR, error),
        (TAG_FAILURES, _FAILURES.pack(1, now_ms, now_ms)),
        (TAG_PIPELINE, pipeline.encode()),
    ]
    for header in row["headers"] or ():
        name = header["key"].encode()
        entries.append((TAG_HEADER, _NAME.pack(len(name)) + name + header["value"]))
    return encode_attrs(entries)
