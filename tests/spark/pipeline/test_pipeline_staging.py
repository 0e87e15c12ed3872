"""What a batch stages into topics, and what is left of it when it fails, or when the driver before this one was killed."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from pipeline_lab import Lab
from pyspark.errors import PySparkException

from braidmq import hot
from braidmq.spark.pipeline import admitting
from braidmq.spark.pipeline.sinks.staging import write_records

PATIENCE_S = 120.0


def waiting_for(file: Path, lab: Lab) -> object:
    """A row in each of two tasks, where the second task ends when the file is there."""
    path = str(file)

    def wait(batches):  # type: ignore[no-untyped-def]
        import os
        import time

        from pyspark import TaskContext

        for batch in batches:
            while TaskContext.get().partitionId() == 1 and not os.path.exists(path):
                time.sleep(0.05)
            yield batch

    return lab.spark.range(0, 2, 1, 2).selectExpr("cast(id AS string) AS value").mapInArrow(wait, "value string")


@pytest.mark.timeout(300)
def test_what_a_killed_driver_staged_is_given_up_before_anything_is_staged(lab: Lab, tmp_path: Path) -> None:
    options = {"servers": lab.broker.address, "topic": lab.clean}
    writer, stage = f"writer-{lab.name}", lab.client.stage
    for task in range(5):
        stage.batch(writer, 0, task, 1, 0, lab.clean, 0, hot.encode_batch([None], [b"of a driver that is gone"], None))
    go = tmp_path / "go"
    written: list[int | None] = []
    thread = threading.Thread(target=lambda: written.append(write_records(waiting_for(go, lab), options, writer, 0)))  # type: ignore[arg-type]
    thread.start()
    try:
        deadline = time.monotonic() + PATIENCE_S
        while stage.status(writer, 0).stages != 1:
            assert thread.is_alive() and time.monotonic() < deadline, stage.status(writer, 0)
            time.sleep(0.05)
    finally:
        go.touch()
        thread.join(PATIENCE_S)
    assert written == [2]
    assert sorted(record.value for record in lab.records(lab.clean)) == [b"0", b"1"]


@pytest.mark.timeout(300)
def test_a_batch_that_fails_leaves_nothing_staged(lab: Lab) -> None:
    options = {"servers": lab.broker.address, "topic": lab.clean}
    writer, address = f"writer-{lab.name}", lab.broker.address

    def boom(batches):  # type: ignore[no-untyped-def]
        import time

        from pyspark import TaskContext

        from braidmq.client.sync import connect

        yield from batches
        with connect(address) as client:
            while TaskContext.get().partitionId() == 1:
                if client.stage.status(writer, 0).stages:
                    raise RuntimeError("boom")
                time.sleep(0.05)

    broken = lab.spark.range(0, 2, 1, 2).selectExpr("cast(id AS string) AS value").mapInArrow(boom, "value string")
    with pytest.raises(PySparkException, match="boom"):
        write_records(broken, options, writer, 0)
    assert lab.client.stage.status(writer, 0).stages == 0
    # Once somebody has published it there is nothing to give up, and nothing to do.
    lab.client.stage.publish(writer, 0, [])
    assert write_records(broken, options, writer, 0) is None


@pytest.mark.timeout(300)
def test_a_first_run_takes_a_backlog_in_pieces_also_of_compressed_records(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a small piece in the place of 256 MiB: a topic of 1 MiB, stored in far less."""
    packed = lab.topic + "-packed"
    lab.client.create_topic(packed, 1, {"compression": "gzip"})
    for topic in (lab.topic, packed):
        with lab.client.producer() as producer:
            for number in range(1024):
                producer.send(topic, b"%06d" % number + b" and the rest is the same in all of them" * 25)
    assert admitting.default_bytes(lab.client, [lab.topic]) > admitting.BATCH_BYTES / 1.2
    assert admitting.default_bytes(lab.client, [lab.topic, packed]) < admitting.BATCH_BYTES / 5
    monkeypatch.setattr(admitting, "BATCH_BYTES", 200_000)
    progress = lab.once(f"""
name: <name>
source: {{topics: [{packed}]}}
sinks:
  - topic: {{name: <clean>, value: value}}
""")
    assert 4 <= progress.batch <= 12, "about six batches, and one is number 0"
    assert sorted(record.value[:6] for record in lab.records(lab.clean)) == [b"%06d" % number for number in range(1024)]
    assert lab.client.group.lag(f"pipeline-{lab.name}", packed)[0].lag == 0
