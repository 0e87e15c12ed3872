"""`mirror`: topics of one broker on another, each record once, in the same partition and order.

A topic that the other broker lacks is created there with as many partitions. Key, value and headers are the same; the time of a
record is when the other broker wrote it. The sink takes each batch once, so a mirror that is killed and started again with its
checkpoint neither loses nor doubles anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from braidmq.base.errors import BraidError
from braidmq.spark.connecting import client_of
from braidmq.spark.options import Options
from braidmq.spark.products.archive import safe_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def mirror(
    spark: SparkSession,
    topics: Sequence[str],
    source: Mapping[str, str],
    target: Mapping[str, str],
    *,
    checkpoint: str,
    prefix: str = "",
    once: bool = False,
    every: str | None = None,
) -> StreamingQuery:
    """Start mirroring. `source` and `target` are options of the data source; `prefix` goes before the names on the other side."""
    from pyspark.sql import functions as F

    if Options(source).get("servers") == Options(target).get("servers") and not prefix:
        raise BraidError("INVALID_ARGUMENT", reason="a mirror on the same broker needs a prefix, or it would read what it writes")
    prepare(topics, source, target, prefix)
    name = f"mirror-{safe_name('-'.join(topics))}"
    records = (
        spark.readStream.format("braid")
        .options(**{"startingOffsets": "earliest", "group": name, **source, "subscribe": json.dumps(list(topics))})
        .load()
    )
    copies = records.select(F.concat(F.lit(prefix), F.col("topic")).alias("topic"), "partition", "key", "value", "headers")
    writer = copies.writeStream.format("braid").options(**target).option("checkpointLocation", checkpoint).queryName(name)
    if once:
        writer = writer.trigger(availableNow=True)
    elif every:
        writer = writer.trigger(processingTime=every)
    return writer.start()


def prepare(topics: Sequence[str], source: Mapping[str, str], target: Mapping[str, str], prefix: str) -> None:
    """Create the topics that the target lacks; one with too few partitions is refused."""
    here, there = client_of(Options(source)), client_of(Options(target))
    existing = set(there.list_topics())
    for topic in topics:
        wanted = len(here.metadata(topic).partitions)
        if prefix + topic not in existing:
            there.create_topic(prefix + topic, wanted)
        have = len(there.metadata(prefix + topic).partitions)
        if have < wanted:
            reason = f"{prefix + topic} has {have} partitions on the other broker, and {topic} has {wanted}"
            raise BraidError("INVALID_ARGUMENT", reason=reason)
