"""`braidmq.spark.session()`: what it sets, what wins over it, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from running_broker import RunningBroker

from braidmq.base.errors import BraidError
from braidmq.client import sync
from braidmq.spark import session
from braidmq.spark.home import light_home
from braidmq.spark.session import SETTINGS

if TYPE_CHECKING:
    from conftest import NewTopic
    from pyspark.sql import SparkSession


def test_the_session_is_ready_for_topics(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.master == "local[2]"
    assert spark.sparkContext.getConf().get("spark.sql.shuffle.partitions") == "1", "config wins over what we set"
    assert spark.sparkContext.uiWebUrl is None


def test_workers_run_on_the_python_that_asked(spark: SparkSession) -> None:
    def where(batches):  # type: ignore[no-untyped-def]
        import sys

        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    assert spark.range(1).mapInArrow(where, "python string").first()["python"] == sys.executable


def test_the_same_session_is_returned_again(spark: SparkSession) -> None:
    assert session("another name", master="local[2]").sparkContext is spark.sparkContext


def test_a_master_and_a_remote_are_one_too_many() -> None:
    with pytest.raises(BraidError, match="not both"):
        session(master="local[2]", remote="sc://localhost")


def test_streams_run_with_the_checkpoints_of_tests(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    """The class that keeps checkpoints is named by its place inside Spark, which an upgrade may change."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/one.txt").write_text("a\nb\n")
    lines = spark.readStream.format("text").load(str(tmp_path / "in"))
    query = lines.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(60)
        assert query.lastProgress["numInputRows"] == 2
    finally:
        query.stop()


def test_the_shared_broker_speaks_all_protocols(braid: RunningBroker, new_topic: NewTopic) -> None:
    assert set(braid.addresses) == {"flymq", "blipmq", "fq"}
    with sync.connect(braid.address) as client:
        assert new_topic(3) != new_topic()
        assert len(client.metadata(new_topic(3)).partitions) == 3


def test_a_light_home_is_made_once_and_has_no_archive(tmp_path: Path) -> None:
    home = light_home({"HOME": str(tmp_path)})
    assert home is not None and home == light_home({"HOME": str(tmp_path)})
    assert Path(home, "bin/spark-submit").exists() and Path(home, "jars").is_dir()
    assert [path.name.partition("-")[0] for path in Path(home, "python/lib").iterdir()] == ["py4j"]
    assert len(list((tmp_path / ".cache/braidmq").iterdir())) == 1
    (tmp_path / "file").write_text("not a directory")
    assert light_home({"HOME": str(tmp_path / "file")}) is None


def test_spark_keeps_a_filter_for_the_next_query(spark: SparkSession, braid: RunningBroker, new_topic: NewTopic) -> None:
    """Why sessions leave the pushdown off. When Spark has learned better this fails, and they can turn it on."""
    assert "spark.sql.python.filterPushdown.enabled" not in SETTINGS
    topic = new_topic()
    with sync.connect(braid.address) as client:
        for number in range(5):
            client.produce(topic, b"%d" % number)

    def counts() -> list[int]:
        frame = spark.read.format("braid").options(servers=braid.address, subscribe=topic).load()
        return [frame.count(), frame.where("offset < 2").count(), frame.count()]

    assert counts() == [5, 2, 2], "Spark 4.3 is wrong here"
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert counts() == [5, 2, 5]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
