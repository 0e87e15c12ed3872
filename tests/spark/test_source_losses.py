"""What a query was to read and is gone: retention, a topic that got shorter, another one under the same name. Nothing of it is
silent, and what is allowed to go on goes on with exactly what is there."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from copying import PATIENCE_S, copy, fill, values_of
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import DataSourceArrowWriter
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType
from running_broker import RunningBroker, StartBroker
from test_source_stream import read, reader

from braidmq.base.errors import BraidError
from braidmq.client import sync
from braidmq.spark.shapes import record_schema
from braidmq.spark.source import BraidDataSource

if TYPE_CHECKING:
    from conftest import NewTopic
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
SMALL = {"segment_bytes": "4096", "retention_bytes": "8192"}
RETENTION = ("--retention-interval", "0.05s", "--durability", "os")


def let_retention_pass(client: sync.Client, topic: str, offset: int, partition: int = 0) -> None:
    """Write until a partition begins behind `offset`."""
    while client.metadata(topic).partitions[partition].oldest <= offset:
        client.produce(topic, b"%d" % client.metadata(topic).partitions[partition].newest + bytes(1000), partition=partition)


def table(broker: RunningBroker, **options: str) -> list[bytes]:
    """What a batch query reads, without Spark."""
    found = BraidDataSource({"servers": broker.address, **options}).reader(record_schema(None))
    return [value.as_py() for task in found.partitions() for batch in found.read(task) for value in batch.column("value")]


def test_a_topic_that_ends_before_its_query_is_a_gap(start_broker: StartBroker) -> None:
    """It was restored from a backup: records that come now have offsets that the query has read before."""
    broker = start_broker()
    backup = broker.data_dir.with_name("backup")
    with sync.connect(broker.address) as client:
        client.create_topic("t")
        for number in range(5):
            client.produce("t", b"%d" % number)
        broker.stop()
        shutil.copytree(broker.data_dir, backup)
        broker.start()
        for number in range(5, 10):
            client.produce("t", b"%d" % number)
        stream = reader(broker, subscribe="t", startingOffsets="earliest")
        brave = reader(broker, subscribe="t", startingOffsets="earliest", failOnDataLoss="false")
        end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        client.group.commit("g", [("t", 0, 10)])
        broker.stop()
        shutil.rmtree(broker.data_dir)
        shutil.copytree(backup, broker.data_dir)
        broker.start()
        client.group.commit("g", [("t", 0, 10)])
        lost = "5 records of t/0 from offset 5 to before 10 cannot be read: the topic ends before them"
        with pytest.raises(BraidError, match=lost):
            stream.latestOffset(end, ReadAllAvailable())
        moved = brave.latestOffset(end, ReadAllAvailable())
        assert (moved["t"]["next"], moved["t"]["lost"]) == ({"0": 5}, 5)
        assert brave.partitions(end, moved) == []
        assert brave.latestOffset(moved, ReadAllAvailable()) == moved, "said and counted once"
        for value in (b"new", b"newer"):
            client.produce("t", value)
        assert read(brave, moved, brave.latestOffset(moved, ReadAllAvailable())) == [b"new", b"newer"]
        # The same for those who begin there.
        with pytest.raises(BraidError, match="from offset 7 to before 10 cannot be read: the topic ends before them"):
            table(broker, subscribe="t", startingOffsets="group", group="g")
        assert table(broker, subscribe="t", startingOffsets="group", group="g", failOnDataLoss="false") == []
        for begin in (reader(broker, subscribe="t", startingOffsets='{"t": {"0": 9}}').initialOffset,
                      lambda: table(broker, subscribe="t", startingOffsets='{"t": {"0": 9}}')):  # fmt: skip
            with pytest.raises(BraidError, match="offset 9 of t/0 was not written yet; it ends at 7"):
                begin()


def test_a_group_that_retention_passed_is_not_moved_over_the_gap(start_broker: StartBroker) -> None:
    broker = start_broker(*RETENTION)
    with sync.connect(broker.address) as client:
        client.create_topic("t", 2, SMALL)
        client.group.commit("g", [("t", 0, 3)])
        for partition in range(2):
            let_retention_pass(client, "t", 3, partition)
        begin = {"subscribe": "t", "startingOffsets": "group", "group": "g"}
        stream = reader(broker, **begin)
        start = stream.initialOffset()
        assert start["t"]["next"]["0"] == 3 and start["t"]["next"]["1"] > 3, "without a position it is the earliest"
        lost = "of t/0 from offset 3 to before .* cannot be read: retention removed them"
        with pytest.raises(BraidError, match=lost):
            stream.latestOffset(start, ReadAllAvailable())
        with pytest.raises(BraidError, match=lost):
            table(broker, **begin)
        parts = client.metadata("t").partitions
        rows = sum(part.newest - part.oldest for part in parts)
        assert len(table(broker, **begin, failOnDataLoss="false")) == rows
        # To end where a group is: behind what is there, that is nothing.
        early = table(broker, subscribe="t", endingOffsets="group", group="g")
        assert early == table(broker, subscribe="t", endingOffsets="earliest") == []


def test_a_gap_that_was_counted_hides_no_other(start_broker: StartBroker) -> None:
    broker = start_broker(*RETENTION)
    with sync.connect(broker.address) as client:
        client.create_topic("t", 2, SMALL)
        strict = reader(broker, subscribe="t", startingOffsets="earliest")
        brave = reader(broker, subscribe="t", failOnDataLoss="false")
        start = strict.initialOffset()
        client.produce("t", b"kept", partition=1)
        let_retention_pass(client, "t", 0)
        end = brave.latestOffset(start, ReadAllAvailable())
        assert end["t"]["lost"] == end["t"]["resumed"]["0"] and "1" not in end["t"]["resumed"]
        let_retention_pass(client, "t", 0, 1)
        with pytest.raises(BraidError, match="1 records of t/1 from offset 0 to before 1 cannot be read: retention"):
            strict.partitions({"t": {**start["t"], "next": start["t"]["next"] | {"0": end["t"]["next"]["0"]}}}, end)
        with pytest.raises(BraidError, match="of t/1 "):
            # Where partition 0 goes on was said when the batch was made.
            strict.partitions(start, {"t": {**end["t"], "resumed": {"0": end["t"]["next"]["0"]}}})


def test_rows_of_a_topic_made_anew_do_not_come_with_those_of_the_old_one(braid: RunningBroker, new_topic: NewTopic) -> None:
    topic = new_topic()
    with sync.connect(braid.address) as client:
        for number in range(20):
            client.produce(topic, b"old %d" % number + bytes(1000))
        brave = reader(braid, subscribe=topic, startingOffsets="earliest", failOnDataLoss="false", fetchBytes="1024")
        start = brave.initialOffset()
        (task,) = brave.partitions(start, brave.latestOffset(start, ReadAllAvailable()))
        rows = (value.as_py() for batch in brave.read(task) for value in batch.column("value"))
        begun = next(rows)
        client.delete_topic(topic)
        client.create_topic(topic)
        for number in range(20):
            client.produce(topic, b"new %d" % number + bytes(1000))
        assert begun.startswith(b"old 0") and not [row[:6] for row in rows if row.startswith(b"new")]


def test_retention_passes_a_paused_query(spark: SparkSession, start_broker: StartBroker, checkpoint: str) -> None:
    broker = start_broker(*RETENTION)
    with sync.connect(broker.address) as client:
        client.create_topic("in", 1, SMALL)
        client.create_topic("out")
        fill(broker, "in", 0, 10)
        assert copy(spark, broker, "in", "out", checkpoint).awaitTermination(PATIENCE_S)
        let_retention_pass(client, "in", 20)
        with pytest.raises(StreamingQueryException, match=r"of in/0 from offset 10 to before .* retention removed them"):
            copy(spark, broker, "in", "out", checkpoint).awaitTermination(PATIENCE_S)
        assert sum(values_of(broker, "out").values()) == 10, "nothing was written behind the gap"
        query = copy(spark, broker, "in", "out", checkpoint, failOnDataLoss="false")
        assert query.awaitTermination(PATIENCE_S)
        assert query.lastProgress is not None
        reached = json.loads(query.lastProgress["sources"][0]["endOffset"])["in"]
        assert reached["lost"] == reached["resumed"]["0"] - 10 > 0
        written = values_of(broker, "out")
        assert len(written) == sum(written.values()) == 10 + reached["next"]["0"] - reached["resumed"]["0"]


def test_topics_are_made_anew_below_a_query_and_its_sink(
    spark: SparkSession, braid: RunningBroker, new_topic: NewTopic, checkpoint: str
) -> None:
    source, sink = new_topic(2), new_topic(2)
    fill(braid, source, 0, 20)
    assert copy(spark, braid, source, sink, checkpoint).awaitTermination(PATIENCE_S)
    with sync.connect(braid.address) as client:
        client.delete_topic(source)
        with pytest.raises(StreamingQueryException, match=f"topic {source} was deleted while"):
            copy(spark, braid, source, sink, checkpoint).awaitTermination(PATIENCE_S)
        client.create_topic(source, 3)
        fill(braid, source, 100, 130)
        with pytest.raises(StreamingQueryException, match=f"topic {source} was deleted and made anew while"):
            copy(spark, braid, source, sink, checkpoint).awaitTermination(PATIENCE_S)
        assert copy(spark, braid, source, sink, checkpoint, failOnDataLoss="false").awaitTermination(PATIENCE_S)
        assert sorted(values_of(braid, sink)) == [b"%06d" % number for number in (*range(20), *range(100, 130))]
        # The sink's topic has other partitions now: what was in it is gone, what comes is there once.
        client.delete_topic(sink)
        client.create_topic(sink, 5)
        fill(braid, source, 130, 160)
        assert copy(spark, braid, source, sink, checkpoint).awaitTermination(PATIENCE_S)
    written = values_of(braid, sink)
    assert sorted(written) == [b"%06d" % number for number in range(130, 160)] and set(written.values()) == {1}


def test_a_topic_deleted_between_the_rows_and_their_commit_fails_the_batch_and_not_the_next_try(
    braid: RunningBroker, new_topic: NewTopic
) -> None:
    """The driver is killed after that, so nobody gives up what its run staged; the next run repeats the batch."""
    topic = new_topic(2)

    def writer() -> DataSourceArrowWriter:
        options = {"servers": braid.address, "topic": topic, "writer": f"writer-{topic}"}
        found = BraidDataSource(options).writer(StructType([StructField("value", BinaryType())]), False)
        assert isinstance(found, DataSourceArrowWriter)
        return found

    rows = [pa.RecordBatch.from_pydict({"value": [b"one", b"two"]})]
    first = writer()
    staged = first.write(iter(rows))
    with sync.connect(braid.address) as client:
        client.delete_topic(topic)
        with pytest.raises(BraidError, match="TOPIC_NOT_FOUND"):
            first.commit([staged])
        client.create_topic(topic, 3)
        assert not values_of(braid, topic)
        again = writer()
        again.commit([again.write(iter(rows))])
        assert values_of(braid, topic) == {b"one": 1, b"two": 1}


def test_two_hundred_partitions_and_a_large_value_pass_a_stream_and_its_sink(
    spark: SparkSession, braid: RunningBroker, new_topic: NewTopic, checkpoint: str
) -> None:
    source, sink = new_topic(200), new_topic(200)
    large = b"large" + bytes(10_000_000)
    with sync.connect(braid.address) as client, client.producer() as producer:
        for number in range(0, 200, 5):
            producer.send(source, b"%d" % number, partition=number)
        producer.flush()
        client.produce(source, large, partition=150)
    query = copy(spark, braid, source, sink, checkpoint, maxOffsetsPerTrigger=1000)
    assert query.awaitTermination(PATIENCE_S)
    written = values_of(braid, sink)
    assert written[large] == 1 and sum(written.values()) == len(written) == 41
    with sync.connect(braid.address) as client:
        assert sum(row.lag for row in client.group.lag(source, source)) == 0
