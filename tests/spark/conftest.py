"""What tests with Spark share: one session, one broker, topics and checkpoints of their own.

Starting Spark takes longer than any test of it, so there is one session for all of them, made for speed: one shuffle partition,
no web server, a JVM that compiles quickly rather than well. All tests below this directory are one group of pytest-xdist, so that a
parallel run starts one JVM and not one a process.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from free_port import free_port
from running_broker import RunningBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NewTopic = Callable[..., str]
"""`new_topic(partitions=1)`: the name of a topic that no other test uses."""

TEST_CONFIG = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m",
    "spark.log.level": "ERROR",
}
"""What a session of tests sets; those that start sessions of their own, in other processes, use it too."""

CONNECT_PORT = "spark.connect.grpc.binding.port"

_counter = itertools.count()


@pytest.fixture(scope="session")
def spark_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables for processes that start Spark: where it is, which Python and Java it uses, nothing of who runs the tests."""
    from braidmq.spark.home import light_home
    from braidmq.spark.java import find_java

    directory = tmp_path_factory.mktemp("spark")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "BRAID_", "FLYMQ_"))}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept | {
        "SPARK_HOME": light_home({"HOME": str(directory)}) or "",
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "JAVA_HOME": str(find_java(os.environ).home),
    }


@pytest.fixture(scope="session")
def spark(spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that all tests share, as `braidmq.spark.session()` makes it. Streams that a test leaves behind are stopped."""
    from braidmq.spark import session

    work = tmp_path_factory.mktemp("spark-session")
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(spark_environment)
    # The same JVM serves Spark Connect: starting another one for that would take longer than what is tested of it.
    config = TEST_CONFIG | {
        "spark.sql.warehouse.dir": str(work / "warehouse"), "spark.local.dir": str(work / "local"),
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1", CONNECT_PORT: str(free_port()),
    }  # fmt: skip
    try:
        spark = session("braid tests", master="local[2]", config=config)
        try:
            yield spark
        finally:
            stop_spark(spark)
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="session")
def connect_server(spark: SparkSession) -> str:
    """The address of a Spark Connect server, for clients in processes of their own."""
    return f"sc://127.0.0.1:{spark.sparkContext.getConf().get(CONNECT_PORT)}"


def stop_spark(spark: SparkSession) -> None:
    """Stop a session and its JVM, and close what PySpark itself leaves open to the end of the process."""
    from pyspark import SparkContext

    for query in spark.streams.active:
        query.stop()
    gateway = SparkContext._gateway
    spark.stop()
    if gateway is None:
        return
    process = gateway.proc
    gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    if process is not None:
        process.stdin.close()
        process.wait(30)
    # Sockets that py4j forgot complain when they are collected; that is no fault of the test that happens to run then.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        import gc

        gc.collect()


@pytest.fixture(scope="session")
def braid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker in a process of its own, speaking all three protocols, shared by all tests: use topics of your own."""
    listen = [("--listen", f"{protocol}://127.0.0.1:0") for protocol in ("flymq", "blipmq", "fq")]
    flags = (*(word for words in listen for word in words), "--durability", "os")
    broker = RunningBroker(tmp_path_factory.mktemp("broker") / "data", flags)
    broker.start()
    try:
        yield broker
        broker.stop()
    finally:
        if broker.running:
            broker.kill()


@pytest.fixture
def new_topic(braid: RunningBroker) -> NewTopic:
    """`new_topic(partitions=1)` creates a topic with a name of its own."""
    from braidmq.client import sync

    def create(partitions: int = 1, name: str = "topic") -> str:
        topic = f"{name}-{os.getpid()}-{next(_counter)}"
        with sync.connect(braid.address) as client:
            client.create_topic(topic, partitions)
        return topic

    return create


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A directory for the checkpoint of one query."""
    return str(tmp_path / "checkpoint")
