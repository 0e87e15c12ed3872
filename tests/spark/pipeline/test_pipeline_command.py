"""The example of the documentation as a command: seen and steered through the broker, killed, and started again."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running_broker import RunningBroker

from braidmq.client.sync import Client, connect

PAGE = Path(__file__).parents[3] / "docs/pipelines.md"
PATIENCE_S = 240.0
CONFIG = {
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m",
    "spark.log.level": "ERROR",
}
SCHEMA = {
    "type": "object",
    "properties": {"amount": {"type": "number"}, **{name: {"type": "string"} for name in ("order_id", "customer", "email")}},
    "required": ["order_id"],
}  # fmt: skip


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.2)


class Command:
    """`braid pipeline run` in a process of its own."""

    def __init__(self, file: Path, server: str, environment: dict[str, str]) -> None:
        settings = [word for key, value in CONFIG.items() for word in ("--conf", f"{key}={value}")]
        words = ["pipeline", "run", str(file), "--server", server, "--master", "local[2]", "--replace", *settings]
        self.log = file.with_suffix(".log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "braidmq", *words], cwd=file.parent, env=environment, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """All of it, as the loss of a machine would: the driver, its JVM and its workers."""
        import os
        import signal

        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


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


@pytest.mark.timeout(1200)
def test_the_example_runs_is_steered_killed_and_goes_on(
    broker: RunningBroker, tmp_path: Path, spark_environment: dict[str, str]
) -> None:
    from deltalake import DeltaTable

    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "orders.yaml"
    file.write_text(example)

    def rows() -> list[str]:
        path = str(tmp_path / "lake/orders")
        return (
            DeltaTable(path).to_pyarrow_table(columns=["order_id"]).column("order_id").to_pylist()
            if DeltaTable.is_deltatable(path)
            else []
        )

    with connect(broker.address) as client:
        client.create_topic("orders", 2)
        client.create_topic("orders.clean", 2)
        client.schema.put("order", json.dumps(SCHEMA).encode())
        command = Command(file, broker.address, spark_environment)
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
            # Killed while it works, somewhere.
            until(lambda: len(rows()) >= 50 or client.pipeline.show("orders").events[-1].text == "running", "it to go on")
            command.kill()
            # The broker dies too, while nothing and then while something runs.
            broker.kill()
            broker.restart()
            command = Command(file, broker.address, spark_environment)
            until(lambda: len(rows()) >= 90, "the rows of the next run")
            send(client, 100, 50)
            broker.kill()
            broker.restart()
            until(lambda: len(rows()) >= 135, "the rows after the broker came back")
            until(lambda: len(values(client, "orders.clean")) >= 135, "the records after the broker came back")
            until(lambda: sum(part.lag for part in client.group.lag("pipeline-orders", "orders")) == 0, "no lag")
            client.pipeline.stop("orders")
            assert command.process.wait(PATIENCE_S) == 0, command.log.read_text()[-3000:]
        finally:
            command.kill()
        expected = sorted(f"o{n}" for n in range(150) if n % 10)
        assert sorted(rows()) == expected, "each row once"
        assert sorted(values(client, "orders.clean")) == expected, "each record once"
        letters = [client.dlq.show("orders", each.id)[0].value for each in client.dlq.ls("orders")]
        assert sorted(json.loads(value)["order_id"] for value in letters) == sorted(f"o{n}" for n in range(0, 150, 10)), (
            "each letter once"
        )
        done = client.pipeline.show("orders")
        assert (done.state, done.runs[-1].outcome, done.runs[0].outcome) == ("stopped", "stopped", "replaced")
