"""A driver that is killed with SIGKILL between staging and commit, of a pipeline and of a query: then each row is there once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from copying import assert_each_once, copy, fill, values_of
from driver_command import DriverCommand
from pipeline_lab import Lab, orders

if TYPE_CHECKING:
    from conftest import NewTopic

PATIENCE_S = 250.0
GATE = """
def gate(frame, file):
    def wait(batches):
        import os
        import time
        from pyspark import TaskContext

        for batch in batches:
            # One task goes on, the other one waits until it may.
            while TaskContext.get().partitionId() == 1 and not os.path.exists(file):
                time.sleep(0.05)
            yield batch

    return frame.select("value").mapInArrow(wait, "value binary")
"""
TEXT = """
name: <name>
source: {topics: [<topic>]}
steps:
  - python: {function: "gate.py:gate", arguments: {file: GO}}
sinks:
  - topic: {name: <clean>, value: value}
  - table: {path: lake/delta}
  - table: {path: lake/files, format: parquet}
"""


def until(condition: Callable[[], Any], what: str, alive: Callable[[], bool]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert alive(), f"waited for {what} in vain"
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.05)
    return found


@pytest.mark.timeout(600)
def test_a_driver_killed_between_staging_and_commit(
    lab: Lab, new_topic: NewTopic, spark_environment: dict[str, str]
) -> None:
    from braidmq.spark.pipeline.running import Run

    source, copied, go = new_topic(2), new_topic(2), lab.folder / "go"
    fill(lab.broker, source, 0, 60)
    lab.send(*orders(range(40)))
    (lab.folder / "gate.py").write_text(GATE)
    reading = lab.read(TEXT.replace("GO", str(go)))
    (lab.folder / "pipeline.yaml").write_text(reading.text)

    before = {each.writer for each in lab.client.stage.ls()}

    def of_ours() -> list[Any]:
        """What is staged since the test began: of the pipeline, whose writer names its topic, and of the query."""
        return [each for each in lab.client.stage.ls() if each.writer not in before]

    command = DriverCommand(
        lab.folder / "pipeline.yaml", lab.broker.address, spark_environment, "hold-commit", source, copied
    )
    try:
        until(of_ours, "the pipeline to stage", command.alive)
        command.begin()
        until(lambda: command.happened.exists() and len(of_ours()) == 2, "the commit of the query", command.alive)
        left = {each.writer: each for each in of_ours()}
    finally:
        command.kill()
        command.happened.unlink(missing_ok=True)
    (pipeline,) = [each for name, each in left.items() if lab.clean in name]
    assert pipeline.stages == 1, "one of two tasks has staged its rows"
    assert not values_of(lab.broker, lab.clean) and not values_of(lab.broker, copied), "nothing was published"

    assert copy(lab.spark, lab.broker, source, copied, str(command.checkpoint)).awaitTermination(PATIENCE_S)
    assert_each_once(lab.broker, copied, 60)
    run = Run(lab.spark, lab.context(reading), reading, once=True, client=lab.client, replace=True)
    outcomes: list[str] = []
    runner = threading.Thread(target=lambda: outcomes.append(run.go()))
    runner.start()
    try:
        again = until(
            lambda: [each for each in of_ours() if each.touched_ms > pipeline.touched_ms], "the pipeline to stage", runner.is_alive
        )
        assert [(each.writer, each.epoch, each.stages) for each in again] == [(pipeline.writer, pipeline.epoch, 1)], (
            "what the dead one left was given up first"
        )
    finally:
        go.touch()
        runner.join(PATIENCE_S)
    assert outcomes == ["finished"]
    expected = sorted(f"o{n}" for n in range(40))
    assert sorted(value["order_id"] for value in lab.values(lab.clean)) == expected
    for path, form in (("lake/delta", "delta"), ("lake/files", "parquet")):
        values = [row["value"] for row in lab.table(path, form)]
        assert len(values) == len(set(values)) == 40
    assert of_ours() == [], "nothing is left over"
