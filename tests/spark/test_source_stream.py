"""Topics as streams: limits, the group, gaps, topics that come and go, and what of Spark the design leans on."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from running_broker import RunningBroker, StartBroker

from braidmq.base.errors import BraidError
from braidmq.client import sync
from braidmq.spark.progress import ProgressListener
from braidmq.spark.shapes import record_schema
from braidmq.spark.source import BraidDataSource
from braidmq.spark.stream import StreamReader

if TYPE_CHECKING:
    from conftest import NewTopic
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

PATIENCE_S = 250
pytestmark = pytest.mark.timeout(600)


def reader(broker: RunningBroker, **options: str) -> StreamReader:
    """The reader as Spark makes it, without Spark."""
    found = BraidDataSource({"servers": broker.address, **options}).streamReader(record_schema(None))
    assert isinstance(found, StreamReader)
    return found


def read(stream: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    spans = stream.partitions(start, end)
    return [value.as_py() for span in spans for batch in stream.read(span) for value in batch.column("value")]


def fill(broker: RunningBroker, topic: str, count: int, partition: int = 0) -> None:
    with sync.connect(broker.address) as client:
        for number in range(count):
            client.produce(topic, b"%d" % number, partition=partition)


def test_a_stream_keeps_to_its_limits_and_shows_as_a_group(
    spark: SparkSession, braid: RunningBroker, new_topic: NewTopic, checkpoint: str, tmp_path: Path
) -> None:
    """Also pins what Spark does and does not document: `latestOffset(start)` follows every batch, the last one too."""
    topic = new_topic(3)
    fill(braid, topic, 20, 0)
    fill(braid, topic, 5, 2)
    group = f"stream-{topic}"
    stream = spark.readStream.format("braid").options(
        servers=braid.address, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=10, group=group
    )
    seen: list[tuple[int, int]] = []

    def look(frame: Any, batch: int) -> None:
        with sync.connect(braid.address) as client:
            known = client.group.show(group)
            assert known.state == "active" and known.members, "it lives"
            seen.append((batch, frame.count() + known.lag))

    heard = f"heard-{topic}"
    listener = ProgressListener({"servers": braid.address, "group": heard})
    spark.streams.addListener(listener)
    query: StreamingQuery = (
        stream.load().writeStream.foreachBatch(look).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )
    assert query.awaitTermination(PATIENCE_S)
    progress = [(each["batchId"], each["numInputRows"]) for each in query.recentProgress]
    assert progress[:3] == [(0, 10), (1, 10), (2, 5)]
    assert [behind for _, behind in seen] == [35, 25, 10], "while a batch runs, the group is where it begins"
    with sync.connect(braid.address) as client:
        lags = client.group.lag(group, topic)
        assert [(lag.committed, lag.lag) for lag in lags] == [(20, 0), (0, 0), (5, 0)], "after the last batch too"
        # The process that planned the batches ends in its own time.
        deadline_s = time.monotonic() + PATIENCE_S
        while client.group.show(group).state != "empty":
            assert time.monotonic() < deadline_s, "the group's member outlives its query"
            time.sleep(0.05)
        while not any(info.group == heard and info.topic == topic for info in client.group.ls()):
            # The listener is told a moment later.
            query.awaitTermination(0.1)
    spark.streams.removeListener(listener)
    source = query.lastProgress["sources"][0]
    assert json.loads(source["latestOffset"])[topic]["next"] == {"0": 20, "1": 0, "2": 5}


def test_admission_shares_out_what_a_batch_may_read(braid: RunningBroker, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    fill(braid, topic, 30, 0)
    fill(braid, topic, 10, 1)
    stream = reader(braid, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="8")
    start = stream.initialOffset()
    first = stream.latestOffset(start, ReadMaxRows(8))
    assert first[topic]["next"] == {"0": 6, "1": 2, "2": 0}
    assert read(stream, start, first) == [b"0", b"1", b"2", b"3", b"4", b"5", b"0", b"1"]
    assert stream.latestOffset(first, ReadAllAvailable())[topic]["next"] == {"0": 30, "1": 10, "2": 0}, "what the trigger says wins"
    assert isinstance(stream.getDefaultReadLimit(), ReadMaxRows)
    stored = stream.reportLatestOffset()
    assert stream.partitions(stored, stored) == [], "an empty batch has no tasks"
    bytes_limited = reader(braid, subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="1024")
    reached = bytes_limited.latestOffset(start, bytes_limited.getDefaultReadLimit())
    moved = sum(reached[topic]["next"].values())
    assert 0 < moved < 40, "about a kilobyte of about four"
    one = reader(braid, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="1")
    assert sum(one.latestOffset(start, ReadMaxRows(1))[topic]["next"].values()) == 1, "it always moves"
    # What comes after the start of AvailableNow is for the next run.
    stream.prepareForTriggerAvailableNow()
    fill(braid, topic, 3, 2)
    end = stream.latestOffset(first, ReadAllAvailable())
    assert end[topic]["next"]["2"] == 0 and stream.latestOffset(end, ReadAllAvailable()) == end


def test_topics_that_match_later_are_read_from_their_beginning(braid: RunningBroker, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    fill(braid, topic, 2)
    stream = reader(braid, subscribePattern=f"{topic}(-more)?")
    start = stream.initialOffset()
    assert start[topic]["next"] == {"0": 2}
    with sync.connect(braid.address) as client:
        client.create_topic(f"{topic}-more", 1)
    fill(braid, f"{topic}-more", 3)
    end = stream.latestOffset(start, ReadAllAvailable())
    assert read(stream, start, end) == [b"0", b"1", b"2"]
    assert stream.partitions(end, stream.latestOffset(end, ReadAllAvailable())) == []


def test_retention_that_passes_a_paused_query_is_said_to_the_offset(start_broker: StartBroker, caplog: Any) -> None:
    broker = start_broker("--retention-interval", "0.05s", "--durability", "os")
    with sync.connect(broker.address) as client:
        client.create_topic("t", 1, {"segment_bytes": "4096", "retention_bytes": "8192"})
        stream = reader(broker, subscribe="t", startingOffsets="earliest")
        start = stream.initialOffset()
        end = start
        for _ in range(100):
            client.produce("t", bytes(1000))
        while (oldest := client.metadata("t").partitions[0].oldest) < 50:
            client.produce("t", bytes(1000))
        planned = stream.latestOffset({"t": {**start["t"], "next": {"0": oldest}}}, ReadAllAvailable())
        lost = f"from offset 0 to before {oldest} cannot be read: retention removed them"
        with pytest.raises(BraidError, match=lost):
            stream.latestOffset(start, ReadAllAvailable())
        with pytest.raises(BraidError, match="RECORDS_LOST"):
            stream.partitions(start, planned)
        brave = reader(broker, subscribe="t", failOnDataLoss="false")
        end = brave.latestOffset(start, ReadAllAvailable())
        assert end["t"]["lost"] == oldest, "the offsets of the stream keep the count"
        assert lost in caplog.text
        count = end["t"]["next"]["0"] - oldest
        assert len(read(brave, start, end)) == count, "all that is there, once"
        assert brave.latestOffset(end, ReadAllAvailable())["t"]["lost"] == oldest
        # It goes on while a task reads: the task finds the gap itself.
        (task,) = brave.partitions({"t": {**start["t"], "next": {"0": oldest}}}, end)
        # Retention may have moved on before the task was planned, so it is the task that says where it begins.
        while client.metadata("t").partitions[0].oldest <= task.spans[0].start:
            client.produce("t", bytes(1000))
        with pytest.raises(BraidError, match="RECORDS_LOST"):
            list(stream.read(task))
        assert sum(batch.num_rows for batch in brave.read(task)) < count


def test_a_group_may_hold_retention(start_broker: StartBroker) -> None:
    broker = start_broker("--retention-interval", "0.05s", "--durability", "os")
    with sync.connect(broker.address) as client:
        small = {"segment_bytes": "4096", "retention_bytes": "8192"}
        client.create_topic("held", 1, small)
        client.create_topic("bounded", 1, small | {"retention_hold": "slow", "retention_hold_bytes": "32768"})
        client.create_topic("free", 1, small)
        stream = reader(broker, subscribe="held", startingOffsets="earliest", group="slow", holdRetention="true")
        start = stream.initialOffset()
        stream.latestOffset(start, ReadAllAvailable())
        assert client.topic_config("held")["retention_hold"] == "slow"

        def let_retention_pass() -> None:
            """Until it has removed something of a topic that nobody holds."""
            before = client.metadata("free").partitions[0].oldest
            while client.metadata("free").partitions[0].oldest < before + 60:
                for topic in ("held", "bounded", "free"):
                    client.produce(topic, bytes(1000))

        let_retention_pass()
        broker.restart()
        let_retention_pass()
        # A group that is forgotten does not fill the disk. Retention comes to one topic after the other.
        while client.metadata("bounded").partitions[0].oldest == 0:
            client.produce("bounded", bytes(1000))
        assert client.metadata("held").partitions[0].oldest == 0
        end = stream.latestOffset(start, ReadAllAvailable())
        assert len(read(stream, start, end)) == end["held"]["next"]["0"]
        stream.latestOffset(end, ReadAllAvailable())
        while client.metadata("held").partitions[0].oldest == 0:
            client.produce("held", bytes(1000))


def test_a_topic_that_is_deleted_or_made_anew_is_noticed(braid: RunningBroker, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    fill(braid, topic, 5)
    stream = reader(braid, subscribe=topic, startingOffsets="earliest")
    brave = reader(braid, subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    tasks = stream.partitions(start, end)
    with sync.connect(braid.address) as client:
        client.delete_topic(topic)
        for attempt in (lambda: stream.latestOffset(end, ReadAllAvailable()), lambda: list(stream.read(tasks[0]))):
            with pytest.raises(BraidError, match=f"topic {topic} was deleted while"):
                attempt()
        assert brave.latestOffset(end, ReadAllAvailable()) == {} and list(brave.read(tasks[0])) == []
        client.create_topic(topic, 1)
        fill(braid, topic, 9)
        for attempt in (
            lambda: stream.latestOffset(end, ReadAllAvailable()),
            lambda: stream.partitions(start, end),
            lambda: list(stream.read(tasks[0])),
        ):
            with pytest.raises(BraidError, match=f"topic {topic} was deleted and made anew while"):
                attempt()
        again = brave.latestOffset(end, ReadAllAvailable())
        assert len(read(brave, end, again)) == 9, "from its beginning"


def test_a_broker_that_stays_away_fails_the_task_in_time(start_broker: StartBroker) -> None:
    broker = start_broker()
    with sync.connect(broker.address) as client:
        client.create_topic("t", 1)
    fill(broker, "t", 3)
    stream = reader(broker, subscribe="t", startingOffsets="earliest", timeout="1s")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    (task,) = stream.partitions(start, end)
    broker.kill()
    with pytest.raises(BraidError, match=r"UNREACHABLE|CONNECTION_LOST|TIMED_OUT"):
        list(stream.read(task))
    broker.start()
    assert read(stream, start, end) == [b"0", b"1", b"2"]


def test_a_query_that_fails_says_why(spark: SparkSession, braid: RunningBroker, new_topic: NewTopic, checkpoint: str) -> None:
    topic = new_topic(1)
    stream = spark.readStream.format("braid").options(servers=braid.address, subscribe=topic, endingOffsets="latest").load()
    with pytest.raises(StreamingQueryException, match="a stream does not end"):
        query = stream.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination(PATIENCE_S)
