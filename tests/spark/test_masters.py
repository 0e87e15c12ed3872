"""Masters of more than one process: `local-cluster`, a standalone master with two workers, and Spark Connect.

Each runs the same program (`cluster_program.py`) in a process of its own: rows into a topic by the sink, out of it by the source
as a table, a stream from topic to topic, and a pipeline. What the topics hold in the end is looked at from here, without Spark.

In the suite it is Spark Connect, which has a server (in the JVM that the tests share), a client and workers in three kinds of
processes; all three, and an executor that is killed in the middle of a task, run under BRAID_TEST_LONG.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from free_port import free_port
from running_broker import RunningBroker

from braidmq.client import sync

if TYPE_CHECKING:
    from conftest import NewTopic

PROGRAM = Path(__file__).with_name("cluster_program.py")
LONG = pytest.mark.skipif(os.environ.get("BRAID_TEST_LONG") != "1", reason="a long proof: make test-long")
ROWS = 3000
PATIENCE_S = 300.0


def run_program(
    environ: dict[str, str], braid: RunningBroker, topic: str, work: Path, *words: str, patience_s: float = PATIENCE_S
) -> str:
    """Run the program to its end; what it printed."""
    command = [sys.executable, str(PROGRAM), braid.address, topic, str(work), str(ROWS), *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=patience_s, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout


def values_in(braid: RunningBroker, topic: str) -> list[bytes]:
    found: list[bytes] = []
    with sync.connect(braid.address) as client:
        for part in client.metadata(topic).partitions:
            at = part.oldest
            while at < part.newest:
                fetched = client.fetch(topic, part.partition, at)
                found += [record.value for record in fetched.records]
                at = fetched.next_offset
    return sorted(found)


def check_outcome(braid: RunningBroker, topic: str, said: str) -> None:
    """Every row is in each topic once, whatever the program says it has seen."""
    expected = sorted(b"row %06d" % number for number in range(ROWS))
    assert values_in(braid, topic) == expected, "the sink of df.write"
    assert values_in(braid, f"{topic}.streamed") == expected, "from topic to topic"
    cleaned = [json.loads(value)["text"].encode() for value in values_in(braid, f"{topic}.clean")]
    assert sorted(cleaned) == [row for row in expected if row != b"row 000007"], "the pipeline"
    assert values_in(braid, f"{topic}.dlq") == [b"row 000007"]
    outcome = json.loads(said.splitlines()[-1])
    assert outcome["read"] == ROWS
    # Also where batches run in another process than the one that watches them.
    assert (outcome["rejected"], outcome["written"]) == ({"not-seven": 1}, {f"topic:{topic}.clean": ROWS - 1})
    with sync.connect(braid.address) as client:
        (known,) = [json.loads(each.progress) for each in client.pipeline.ls() if each.name == topic]
    assert (known["rows"], known["rejected"], known["lag"]) == (ROWS, {"not-seven": 1}, 0)


@contextmanager
def spawned(command: list[str], environ: dict[str, str], log: Path, ready: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ready when its log says so; ended, with all that it started, at the end."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environ, stdout=file, stderr=file, start_new_session=True)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(ready, log.read_text(errors="replace")):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")[-4000:]
            time.sleep(0.1)
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def spark_class(environ: dict[str, str], *words: str) -> list[str]:
    return [f"{environ['SPARK_HOME']}/bin/spark-class", *words]


@pytest.mark.timeout(600)
def test_spark_connect(
    spark_environment: dict[str, str], connect_server: str, braid: RunningBroker, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2, "connect")
    said = run_program(spark_environment, braid, topic, tmp_path, "--remote", connect_server)
    check_outcome(braid, topic, said)


@LONG
@pytest.mark.timeout(900)
def test_local_cluster(spark_environment: dict[str, str], braid: RunningBroker, new_topic: NewTopic, tmp_path: Path) -> None:
    topic = new_topic(4, "cluster")
    said = run_program(spark_environment, braid, topic, tmp_path, "--master", "local-cluster[2,1,1024]")
    check_outcome(braid, topic, said)


@LONG
@pytest.mark.timeout(900)
def test_a_standalone_master_with_two_workers(
    spark_environment: dict[str, str], braid: RunningBroker, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, port = new_topic(4, "standalone"), free_port()
    master = spark_class(
        spark_environment, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"
    )
    url = f"spark://127.0.0.1:{port}"
    with spawned(master, spark_environment, tmp_path / "master.log", "New state: ALIVE"):
        worker = spark_class(
            spark_environment, "org.apache.spark.deploy.worker.Worker", url, "--host", "127.0.0.1",
            "--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(tmp_path / "work"),
        )  # fmt: skip
        registered = "Successfully registered with master"
        with (
            spawned(worker, spark_environment, tmp_path / "worker1.log", registered),
            spawned(worker, spark_environment, tmp_path / "worker2.log", registered),
        ):
            said = run_program(spark_environment, braid, topic, tmp_path, "--master", url)
    assert json.loads(said.splitlines()[-1])["executors"] == 2
    check_outcome(braid, topic, said)


@LONG
@pytest.mark.timeout(900)
def test_an_executor_killed_in_a_task_loses_and_doubles_nothing(
    spark_environment: dict[str, str], braid: RunningBroker, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(4, "killed")
    said = run_program(spark_environment, braid, topic, tmp_path, "--master", "local-cluster[2,1,1024]", "--kill-executor")
    assert json.loads(said.splitlines()[-1])["killed"], "an executor died while it was writing"
    check_outcome(braid, topic, said)
