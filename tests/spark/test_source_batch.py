"""Topics as tables: every record once, only what was asked for, and clear words for what cannot be."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from running_broker import RunningBroker

from braidmq import hot
from braidmq.base.errors import BraidError
from braidmq.client import sync
from braidmq.log.attrs import TAG_HEADER, encode_attrs
from braidmq.spark.options import Options
from braidmq.spark.shapes import record_schema
from braidmq.spark.source import BraidDataSource

if TYPE_CHECKING:
    from conftest import NewTopic
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(600)

ORDER = json.dumps({
    "type": "object", "properties": {"id": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
}).encode()  # fmt: skip


def table(spark: SparkSession, broker: RunningBroker, columns: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("braid").options(servers=broker.address, **options)
    return (reader.schema(columns) if columns else reader).load()


def values(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row["value"]) for row in frame.select("value").collect())


def test_every_column_of_every_record(spark: SparkSession, braid: RunningBroker, new_topic: NewTopic) -> None:
    """Keys or none, headers or none (twice the same too), empty partitions, a value of 10 MB, records of single batches."""
    topic = new_topic(200)
    large = bytes(10_000_000)
    with sync.connect(braid.address) as client:
        before = client.produce(topic, b"first", key=b"k", partition=7).timestamp
        client.produce(topic, b"", partition=7)
        block = encode_attrs([(TAG_HEADER, b"\x01\x00a1x"), (TAG_HEADER, b"\x01\x00a2y")])
        client.produce_batch(topic, 150, hot.encode_batch([None, b"z"], [b"twice", large], [block, b""]))
    frame = table(spark, braid, subscribe=topic)
    assert frame.dtypes == [
        ("topic", "string"), ("partition", "int"), ("offset", "bigint"), ("timestamp", "timestamp"), ("key", "binary"),
        ("value", "binary"), ("headers", "array<struct<key:string,value:binary>>"),
    ]  # fmt: skip
    rows = frame.orderBy("partition", "offset").collect()
    assert [(row["partition"], row["offset"]) for row in rows] == [(7, 0), (7, 1), (150, 0), (150, 1)]
    assert [row["key"] for row in rows] == [b"k", None, None, b"z"]
    assert [bytes(row["value"])[:5] for row in rows[:3]] == [b"first", b"", b"twice"] and bytes(rows[3]["value"]) == large
    assert [[(pair["key"], bytes(pair["value"])) for pair in row["headers"]] for row in rows] == [
        [], [], [("a", b"1x"), ("a", b"2y")], [],
    ]  # fmt: skip
    assert {row["topic"] for row in rows} == {topic}
    assert round(rows[0]["timestamp"].timestamp() * 1000) == before


def test_filters_cut_what_is_read(spark: SparkSession, braid: RunningBroker, new_topic: NewTopic) -> None:
    one, other = new_topic(3), new_topic(1)
    with sync.connect(braid.address) as client:
        for number in range(30):
            client.produce(one, b"%d" % number, key=b"k%d" % (number % 5) if number % 2 else None, partition=number % 3)
        client.produce(other, b"other")
        stamp = client.fetch(one, 2, 5).records[0].timestamp
    frame = table(spark, braid, subscribe=f"{one},{other}")
    chosen = frame.where(f"topic = '{one}' and partition in (1, 2) and offset >= 3 and offset < 5")
    assert values(chosen) == sorted(b"%d" % number for number in range(30) if number % 3 and number // 3 in (3, 4))
    plan = chosen._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan, "Spark need not look again"
    assert chosen.rdd.getNumPartitions() == 2, "what is cut away is not even planned"
    keyed = frame.where("key = X'6B31'")
    assert values(keyed) == sorted(b"%d" % number for number in range(30) if number % 2 and number % 5 == 1)
    assert frame.where("key is null").count() == 16 and frame.where("key is not null and topic like '%-%'").count() == 15
    recent = frame.where(f"timestamp >= timestamp_millis({stamp}L) and partition = 2 and topic = '{one}'")
    assert b"17" in values(recent)
    # Narrower than everything: only these are made, and filters on others cannot come.
    narrow = table(spark, braid, "value binary, offset bigint", subscribe=one)
    assert narrow.columns == ["value", "offset"] and narrow.where("offset = 9").count() == 3


def test_without_pushdown_filters_are_for_spark(spark: SparkSession, braid: RunningBroker, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    with sync.connect(braid.address) as client:
        for number in range(4):
            client.produce(topic, b"%d" % number, partition=number % 2)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert values(table(spark, braid, subscribe=topic).where("partition = 1")) == [b"1", b"3"]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_where_a_table_begins_and_ends(spark: SparkSession, braid: RunningBroker, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    with sync.connect(braid.address) as client:
        for number in range(10):
            stored = client.produce(topic, b"%d" % number, partition=number % 2)
        client.group.commit("readers-" + topic, [(topic, 0, 4), (topic, 1, 3)])
    begin, end = json.dumps({topic: {"0": 1, "1": -2}}), json.dumps({topic: {"0": 3, "1": 1}})
    assert values(table(spark, braid, subscribe=topic, startingOffsets=begin, endingOffsets=end)) == [b"1", b"2", b"4"]
    group = table(spark, braid, subscribe=topic, group="readers-" + topic, startingOffsets="group")
    assert values(group) == [b"7", b"8", b"9"]
    split = table(spark, braid, subscribe=topic, minPartitions=4)
    assert split.rdd.getNumPartitions() == 4 and len(values(split)) == 10
    assert values(table(spark, braid, subscribePattern=topic[:-1] + "[0-9]", startingTimestamp=stored.timestamp))[-1] == b"9"
    moment = datetime.fromtimestamp(stored.timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    assert values(table(spark, braid, subscribe=topic, startingTimestamp=moment))[-1] == b"9"
    assert values(table(spark, braid, subscribe=topic, startingTimestamp="2900-01-01")) == []
    assert values(table(spark, braid, subscribe=topic, startingOffsets="latest")) == []
    assert values(table(spark, braid, subscribe=topic, endingOffsets="earliest")) == []


def test_values_are_decoded_and_what_cannot_be_is_said(spark: SparkSession, braid: RunningBroker, new_topic: NewTopic) -> None:
    topic = new_topic()
    key = "ab" * 32
    with sync.connect(braid.address, encryption_key=key) as client:
        client.schema.put(topic, ORDER)
        for value in (b'{"id": 1, "tags": ["x", null], "more": 5}', b"nonsense", b'{"id": 2}'):
            client.produce(topic, value)
    frame = table(spark, braid, subscribe=topic, schema=topic, encryptionKey=key)
    assert frame.schema["data"].dataType.simpleString() == "struct<id:bigint,tags:array<string>>"
    first, broken, last = [tuple(row) for row in frame.orderBy("offset").select("data.*", "error").collect()]
    assert first == (1, ["x", None], None) and last == (2, None, None)
    assert broken[:2] == (None, None) and broken[2].startswith("JSON is malformed: invalid character")
    with pytest.raises(PySparkException, match="DECRYPTION_FAILED"):
        table(spark, braid, subscribe=topic, encryptionKey="cd" * 32).collect()


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1769860800123", 1769860800123), ("2026-01-31T12:00:00Z", 1769860800000), ("2026-01-31T12:00:00", 1769860800000),
        ("2026-01-31T13:00:00.5+01:00", 1769860800500), ("2026-01-31", 1769817600000),
        ("2026-01-31T12:00:00.000001Z", 1769860800001),
    ],
)  # fmt: skip
def test_a_time_is_a_number_or_what_people_write(text: str, milliseconds: int) -> None:
    assert Options({"startingTimestamp": text}).get("startingTimestamp") == milliseconds


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "either `subscribe` or `subscribePattern`"),
        ({"subscribe": "no-such-topic"}, "TOPIC_NOT_FOUND"),
        ({"subscribe": "t", "startingOffset": "earliest"}, "did you mean"),
        ({"subscribe": "t", "startingOffsets": "soon"}, "none of earliest, latest, group"),
        ({"subscribe": "t", "startingOffsets": '{"t": [5]}'}, "no JSON of the form"),
        ({"subscribe": "t", "startingOffsets": "group"}, "needs the option `group`"),
        ({"subscribe": "t", "startingOffsets": '{"u": {"0": 5}}'}, "the topic u"),
        ({"subscribe": "t", "endingOffsets": '{"t": {"0": 5}}'}, "was not written yet"),
        ({"subscribe": "t", "endingOffsets": '{"t": {"9": 5}}'}, "PARTITION_NOT_FOUND"),
        ({"subscribe": "t", "startingTimestamp": "soon"}, "neither milliseconds since 1970 nor a time"),
        ({"subscribe": "t", "startingTimestamp": "1969-12-31"}, "before 1970"),
        ({"subscribe": "t", "maxOffsetsPerTrigger": "5"}, "it is for streams"),
        ({"subscribe": "t", "topic": "t"}, "it is for writing"),
        ({"subscribe": "t", "minPartitions": "none"}, "minPartitions"),
        ({"subscribePattern": "("}, "no regular expression"),
    ],
)
def test_what_cannot_be_is_refused(braid: RunningBroker, options: dict[str, str], complaint: str) -> None:
    with sync.connect(braid.address) as client:
        client.create_topic("t")
    with pytest.raises(BraidError, match=complaint):
        BraidDataSource({"servers": braid.address, **options}).reader(record_schema(None)).partitions()


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [("value binary, wrong int", "there is no column wrong"), ("offset int", "the column offset is bigint, not int")],
)
def test_other_columns_are_refused(spark: SparkSession, braid: RunningBroker, schema: str, complaint: str) -> None:
    wanted = spark.createDataFrame([], schema).schema
    with pytest.raises(BraidError, match=complaint):
        BraidDataSource({"servers": braid.address, "subscribe": "t"}).reader(wanted)
