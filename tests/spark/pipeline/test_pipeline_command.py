"""The example of the documentation as a command: seen and steered through the broker, killed, and started again."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from copying import assert_each_once, copy, fill, values_of
from driver_command import DriverCommand
from running_broker import RunningBroker

from braidmq.client.sync import Client, connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[3] / "docs/pipelines.md"
PATIENCE_S = 400.0
SCHEMA = {
    "type": "object",
    "properties": {"amount": {"type": "number"}, **{name: {"type": "string"} for name in ("order_id", "customer", "email")}},
    "required": ["order_id"],
}  # fmt: skip


def until(condition: Callable[[], Any], what: str, doer: threading.Thread | None = None) -> Any:
    """Wait for something, as long as the thread that does it is there."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        going = doer is None or doer.is_alive()
        found = condition()
        if found:
            return found
        assert going, f"waited for {what} in vain"
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.2)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    running = RunningBroker(tmp_path / "data", ("--durability", "os"))
    running.start()
    try:
        yield running
    finally:
        if running.running:
            running.kill()


def send(client: Client, first: int, count: int) -> None:
    with client.producer() as producer:
        for n in range(first, first + count):
            row: dict[str, Any] = {"order_id": f"o{n}", "amount": 1 + n, "customer": "c", "email": "e@example.org"}
            if n % 10 == 0:
                del row["customer"]
            producer.send("orders", json.dumps(row).encode(), key=b"%d" % n)


def values(client: Client, topic: str) -> list[str]:
    found: list[str] = []
    for part in client.metadata(topic).partitions:
        offset = part.oldest
        while offset < part.newest:
            fetched = client.fetch(topic, part.partition, offset)
            found += [json.loads(record.value)["order_id"] for record in fetched.records]
            offset = fetched.next_offset
    return found


@pytest.mark.timeout(1500)
def test_the_example_runs_is_steered_killed_and_goes_on(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path, spark_environment: dict[str, str]
) -> None:
    """A driver is killed while it works, and after a query of its has published a batch that Spark has not noted yet. The broker
    dies too, while nothing and then while something runs. The session of the tests goes on with both checkpoints."""
    from braidmq.spark.pipeline.context import context_of
    from braidmq.spark.pipeline.reading import read_file
    from braidmq.spark.pipeline.running import Run

    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "orders.yaml"
    file.write_text(example)

    def rows() -> list[str]:
        from deltalake import DeltaTable

        path = str(tmp_path / "lake/orders")
        return (
            DeltaTable(path).to_pyarrow_table(columns=["order_id"]).column("order_id").to_pylist()
            if DeltaTable.is_deltatable(path)
            else []
        )

    with connect(broker.address) as client:
        client.create_topic("orders", 2)
        client.create_topic("orders.clean", 2)
        client.create_topic("in", 1)
        client.create_topic("out", 1)
        client.schema.put("order", json.dumps(SCHEMA).encode())
        fill(broker, "in", 0, 60)
        command = DriverCommand(file, broker.address, spark_environment, "kill-jvm")
        try:
            send(client, 0, 50)
            until(lambda: len(rows()) >= 45, "the first rows")
            shown = until(
                lambda: [s for s in client.pipeline.ls() if json.loads(s.progress or b"{}").get("rows") == 50], "its report"
            )
            assert shown[0].state == "running"
            client.pipeline.pause("orders")
            until(lambda: client.pipeline.show("orders").reports[-1].progress.find(b'"paused"') > 0, "the pause")
            send(client, 50, 50)
            client.pipeline.resume("orders")
            command.begin()
            until(command.happened.exists, "the accident")
        finally:
            command.kill()
        broker.kill()
        broker.restart()
        assert sum(values_of(broker, "out").values()) == 40, "all of the batch that was published, and nothing else"
        assert copy(spark, broker, "in", "out", str(command.checkpoint)).awaitTermination(PATIENCE_S)
        assert_each_once(broker, "out", 60)

        reading = read_file(str(file), {})
        run = Run(spark, context_of(reading, client.settings), reading, client=client, replace=True)
        outcomes: list[str] = []
        runner = threading.Thread(target=lambda: outcomes.append(run.go()))
        runner.start()
        try:
            until(lambda: len(rows()) >= 90, "the rows of the next run", runner)
            send(client, 100, 50)
            broker.kill()
            broker.restart()
            until(lambda: len(rows()) >= 135, "the rows after the broker came back", runner)
            until(lambda: len(values(client, "orders.clean")) >= 135, "the records after the broker came back", runner)
            until(lambda: sum(part.lag for part in client.group.lag("pipeline-orders", "orders")) == 0, "no lag", runner)
            client.pipeline.stop("orders")
            runner.join(PATIENCE_S)
            assert outcomes == ["stopped"]
        finally:
            run.stop()
            runner.join(PATIENCE_S)
        expected = sorted(f"o{n}" for n in range(150) if n % 10)
        assert sorted(rows()) == expected, "each row once"
        assert sorted(values(client, "orders.clean")) == expected, "each record once"
        letters = [client.dlq.show("orders", each.id)[0].value for each in client.dlq.ls("orders")]
        assert sorted(json.loads(value)["order_id"] for value in letters) == sorted(f"o{n}" for n in range(0, 150, 10)), (
            "each letter once"
        )
        done = client.pipeline.show("orders")
        assert (done.state, done.runs[-1].outcome, done.runs[0].outcome) == ("stopped", "stopped", "replaced")
