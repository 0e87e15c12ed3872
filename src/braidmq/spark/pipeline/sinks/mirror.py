"""The topics of another broker, with the records of ours as they are.

A topic that the other broker lacks is created there with as many partitions. Partition, key, value, headers and order are the same.
A broker stamps what it stores with its own time, so the time of a record travels in a header (`braid.timestamp`, milliseconds since
1970 as text); one that has it already, because it was mirrored before, keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from braidmq.base.errors import BraidError
from braidmq.spark.connecting import client_of
from braidmq.spark.options import Options
from braidmq.spark.pipeline.context import Context
from braidmq.spark.pipeline.definition import MirrorSink as Definition
from braidmq.spark.pipeline.frames import require_columns
from braidmq.spark.pipeline.sinks.sink import Batch, Replacing, never, writer_name
from braidmq.spark.pipeline.sinks.staging import write_records

TIME_HEADER: Final = "braid.timestamp"
_NEEDED: Final = ("topic", "partition", "timestamp", "key", "value", "headers")
_HEADERS: Final = f"""
    CASE WHEN exists(headers, each -> each.key = '{TIME_HEADER}') THEN headers
    ELSE concat(headers, array(named_struct(
        'key', '{TIME_HEADER}', 'value', cast(cast(unix_millis(timestamp) AS string) AS binary)
    ))) END
"""


class MirrorSink:
    def __init__(self, definition: Definition, context: Context) -> None:
        self._prefix = definition.prefix or ""
        self._topics = context.source.topics or ()
        self._source = context.options()
        self._target = {**context.options(definition.servers), **definition.options}
        self.label = f"mirror:{definition.servers}"
        if not self._prefix and Options(self._source).get("servers") == Options(self._target).get("servers"):
            reason = "a mirror on the same broker needs a prefix, or it would read what it writes"
            raise BraidError("INVALID_ARGUMENT", reason=reason)

    def write(self, frame: DataFrame, batch: Batch) -> int | None:
        require_columns(frame, _NEEDED, self.label)
        prepare(self._topics, self._source, self._target, self._prefix)
        topic = F.concat(F.lit(self._prefix), F.col("topic")).alias("topic")
        records = frame.select(topic, "partition", "key", "value", F.expr(_HEADERS).alias("headers"))
        return write_records(records, self._target, writer_name(batch, self.label), batch.number)

    def replace(self, frame: DataFrame, batch: Batch, replacing: Replacing) -> int | None:
        raise never(self.label, self.refuses(()))

    def refuses(self, columns: Sequence[str]) -> str:
        return f"{self.label} are topics, and what a topic holds is never taken back"


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
