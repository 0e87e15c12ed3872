"""Rows into topics: whatever dies, every row of the source is in the sink once, and the group is at the end.

A driver that is killed: between the publication and Spark's log in `pipeline/test_pipeline_command.py`, where one dies anyway, and
between staging and publication in `pipeline/test_pipeline_killed.py`.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from copying import PATIENCE_S, assert_each_once, copy, fill, lag_of, register_failing, values_of
from pyspark.errors import PySparkException, StreamingQueryException
from running_broker import RunningBroker, StartBroker

from braidmq import hot
from braidmq.base.errors import BraidError
from braidmq.client import sync
from braidmq.spark.source import BraidDataSource

if TYPE_CHECKING:
    from conftest import NewTopic
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def failing(spark: SparkSession) -> None:
    register_failing(spark)


@pytest.mark.parametrize("accident", ["before-commit", "after-commit", "task"])
@pytest.mark.usefixtures("failing")
def test_an_accident_and_a_restart_leave_every_row_once(
    spark: SparkSession, braid: RunningBroker, new_topic: NewTopic, tmp_path: Path, checkpoint: str, accident: str
) -> None:
    source, sink = new_topic(2), new_topic(3)
    fill(braid, source, 0, 60)
    with pytest.raises(StreamingQueryException, match="dies"):
        copy(spark, braid, source, sink, checkpoint, f"{accident} {tmp_path / 'happened'}").awaitTermination(PATIENCE_S)
    staged = sum(values_of(braid, sink).values())
    assert staged == (40 if accident == "after-commit" else 0), "all of a batch, or nothing"
    query = copy(spark, braid, source, sink, checkpoint, f"{accident} {tmp_path / 'happened'}")
    assert query.awaitTermination(PATIENCE_S)
    assert_each_once(braid, sink, 60)
    assert lag_of(braid, source) == 0
    with sync.connect(braid.address) as client:
        assert [epoch for epoch in client.stage.ls() if epoch.writer == str(query.id)] == [], "nothing is left over"


def test_a_broker_that_is_killed_in_a_batch_comes_back_and_every_row_is_there_once(
    spark: SparkSession, start_broker: StartBroker, checkpoint: str
) -> None:
    broker = start_broker()
    with sync.connect(broker.address) as client:
        client.create_topic("in", 4)
        client.create_topic("out", 2)
    fill(broker, "in", 0, 200)
    query = copy(spark, broker, "in", "out", checkpoint)
    stop = threading.Event()

    def kill_now_and_then() -> None:
        for _ in range(3):
            # However far the query is by then: the later the machine, the later in the query.
            if stop.wait(0.7):
                return
            broker.kill()
            broker.start()

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        assert query.awaitTermination(PATIENCE_S)
    finally:
        stop.set()
        killer.join()
    assert_each_once(broker, "out", 200)
    assert lag_of(broker, "in") == 0


def test_df_write_is_all_or_nothing_and_goes_where_columns_say(
    spark: SparkSession, braid: RunningBroker, new_topic: NewTopic
) -> None:
    one, other = new_topic(3), new_topic(1)
    rows = spark.range(0, 3000, 1, 4).selectExpr(
        f"if(id % 2 = 0, '{one}', null) as topic", "if(id % 4 = 0, 2, null) as partition",
        "if(id % 3 = 0, null, cast(id % 11 as string)) as key",
        "cast(lpad(id, 6, '0') as binary) as value", "if(id = 5, array(struct('h' as key, X'01' as value)), null) as headers",
    )  # fmt: skip
    rows.write.format("braid").mode("append").options(servers=braid.address, topic=other).save()
    both = values_of(braid, one) + values_of(braid, other)
    assert both == Counter(b"%06d" % number for number in range(3000))
    with sync.connect(braid.address) as client:
        placed = client.fetch(one, 2, 0, max_records=10_000).records
        assert {b"%06d" % number for number in range(0, 3000, 4)} <= {record.value for record in placed}
        for number in range(3):
            for record in client.fetch(one, number, 0, max_records=10_000).records:
                if record.key and int(record.value) % 4:
                    assert hot.fnv1a(record.key) % 3 == number, "keys go where every producer puts them"
        headed = [record for record in client.fetch(other, 0, 0, max_records=10_000).records if record.headers]
        assert [(record.value, record.headers) for record in headed] == [(b"000005", {"h": b"\x01"})]
    # One task of four dies: nobody sees anything of the others.
    broken = rows.selectExpr("if(cast(value as string) = '002900', cast(raise_error('boom') as binary), value) as value")
    with pytest.raises(PySparkException, match="boom"):
        broken.write.format("braid").mode("append").options(servers=braid.address, topic=one).save()
    assert values_of(braid, one) + values_of(braid, other) == both
    # The same name is the same write: the second time it is known.
    named = spark.range(3).selectExpr("cast(id as string) as value").write.format("braid").mode("append")
    for _ in range(2):
        named.options(servers=braid.address, topic=f"{other}-named", writer=f"import-{other}").save()
    assert sum(values_of(braid, f"{other}-named").values()) == 3
    # At least once, for those who ask: there at once, and again when it is written again.
    plain = spark.range(3).selectExpr("cast(id as string) as value").write.format("braid").mode("append")
    plain.options(servers=braid.address, topic=f"{other}-plain", exactlyOnce="false").save()
    assert sum(values_of(braid, f"{other}-plain").values()) == 3


def test_a_schema_refuses_the_batch_and_says_why(spark: SparkSession, braid: RunningBroker, new_topic: NewTopic) -> None:
    topic = new_topic()
    with sync.connect(braid.address) as client:
        client.schema.put(topic, b'{"type": "object", "required": ["id"]}')
        client.schema.bind(topic, topic)
    rows = spark.range(4).selectExpr("if(id = 3, '{}', concat('{\"id\": ', id, '}')) as value")
    with pytest.raises(PySparkException, match="missing required field: id"):
        rows.write.format("braid").mode("append").options(servers=braid.address, topic=topic).save()
    assert not values_of(braid, topic)


@pytest.mark.parametrize(
    ("schema", "options", "overwrite", "complaint"),
    [
        ("key binary", {"topic": "t"}, False, "there is no column `value`"),
        ("value binary", {}, False, "neither a column nor an option `topic`"),
        ("value int", {"topic": "t"}, False, "the column value is int"),
        ("value binary, more int", {"topic": "t"}, False, "the column more cannot be written"),
        ("value binary", {"topic": "t", "subscribe": "t"}, False, "it is for reading"),
        ("value binary", {"topic": "t"}, True, "only ever appended to"),
    ],
)
def test_what_cannot_be_written_is_refused(
    spark: SparkSession, braid: RunningBroker, schema: str, options: dict[str, str], overwrite: bool, complaint: str
) -> None:
    wanted = spark.createDataFrame([], schema).schema
    with pytest.raises(BraidError, match=complaint):
        BraidDataSource({"servers": braid.address, **options}).writer(wanted, overwrite)

