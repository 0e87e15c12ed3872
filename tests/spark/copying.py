"""A stream from topic to topic, with accidents where one is wanted, and what came of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

import failing_source
from failing_source import FailingSource
from pyspark import cloudpickle

from braidmq.client import sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

PATIENCE_S = 250


class Reachable(Protocol):
    @property
    def address(self) -> str: ...


def register_failing(spark: SparkSession) -> None:
    """Workers do not know this directory, so the class travels as it is."""
    cloudpickle.register_pickle_by_value(failing_source)
    spark.dataSource.register(FailingSource)


def fill(broker: Reachable, topic: str, begin: int, end: int) -> None:
    with sync.connect(broker.address) as client, client.producer() as producer:
        for number in range(begin, end):
            key = b"k%d" % (number % 7) if number % 3 else None
            producer.send(topic, b"%06d" % number, key=key, headers={"n": b"%d" % number})


def copy(
    spark: SparkSession, broker: Reachable, source: str, sink: str, checkpoint: str, accident: str = "", **options: Any
) -> StreamingQuery:
    reading = {"servers": broker.address, "subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 40}
    stream = spark.readStream.format("braid").options(**reading | options, group=source).load()
    writer = stream.select("key", "value", "headers").writeStream.format("failing" if accident else "braid")
    if accident:
        writer = writer.option("accident", accident)
    return (
        writer.options(servers=broker.address, topic=sink, group=source)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def values_of(broker: Reachable, topic: str) -> Counter[bytes]:
    """Every value that readers see."""
    found: Counter[bytes] = Counter()
    with sync.connect(broker.address) as client:
        for part in client.metadata(topic).partitions:
            at = part.oldest
            while at < part.newest:
                read = client.fetch(topic, part.partition, at, max_records=100_000)
                found.update(record.value for record in read.records)
                at = read.next_offset
    return found


def assert_each_once(broker: Reachable, topic: str, count: int) -> None:
    assert values_of(broker, topic) == Counter(b"%06d" % number for number in range(count))


def lag_of(broker: Reachable, group: str) -> int:
    with sync.connect(broker.address) as client:
        return client.group.show(group).lag
