"""What `test_masters.py` runs on each master: the sink, the source, a stream and a pipeline, one after the other.

Words: broker, topic, work directory, rows, then `--master` or `--remote` with an address. With `--kill-executor` the task that
writes the first rows of the stream kills the JVM that started it, once. The last line of its output is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from braidmq.client import sync
from braidmq.spark import session
from braidmq.spark.pipeline.context import Context
from braidmq.spark.pipeline.reading import read_yaml
from braidmq.spark.pipeline.running import Run

DEFINITION = """
name: {name}
source: {{topics: [{topic}], starting: earliest}}
steps:
  - validate: {{expect: [{{name: not-seven, sql: "cast(value AS string) != 'row 000007'"}}]}}
  - sql: SELECT cast(value AS string) AS text FROM input
sinks:
  - topic: {topic}.clean
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("server")
    parser.add_argument("topic")
    parser.add_argument("work", type=Path)
    parser.add_argument("rows", type=int)
    parser.add_argument("--master")
    parser.add_argument("--remote")
    parser.add_argument("--kill-executor", action="store_true")
    args = parser.parse_args()
    config = {
        "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "spark.log.level": "ERROR",
    }  # fmt: skip
    if args.remote:
        config = {key: value for key, value in config.items() if key.startswith("spark.sql.")}
    spark = session("braid cluster", master=args.master, remote=args.remote, config=config)
    options = {"servers": args.server}

    rows = spark.range(0, args.rows, 1, 4).selectExpr(
        "cast(format_string('k%d', id % 11) AS binary) AS key", "cast(format_string('row %06d', id) AS binary) AS value"
    )
    rows.write.format("braid").options(**options, topic=args.topic).mode("append").save()
    outcome: dict[str, Any] = {"read": spark.read.format("braid").options(**options, subscribe=args.topic).load().count()}

    with sync.connect(args.server) as client:
        for ending in ("streamed", "clean"):
            client.create_topic(f"{args.topic}.{ending}", 4)
    copied = spark.readStream.format("braid").options(**options, subscribe=args.topic, startingOffsets="earliest").load()
    copied = copied.select("key", "value")
    if args.kill_executor:
        copied = copied.mapInArrow(killing(str(args.work / "killed")), "key binary, value binary")
    query = (
        copied.writeStream.format("braid").options(**options, topic=f"{args.topic}.streamed")
        .option("checkpointLocation", str(args.work / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    outcome["killed"] = (args.work / "killed").exists()

    reading = read_yaml(DEFINITION.format(name=args.topic, topic=args.topic), str(args.work / "pipeline.yaml"), {})
    with sync.connect(args.server) as client:
        context = Context(reading.require(), str(args.work), args.server)
        run = Run(spark, context, reading, once=True, client=client)
        outcome["pipeline"] = run.go()
        outcome |= {"rejected": run.progress.rejected, "written": run.progress.written}
    if not args.remote:
        # The driver is among them.
        outcome["executors"] = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    spark.stop()
    print(json.dumps(outcome))


def killing(mark: str) -> Any:
    """A step that kills its executor the first time that rows come through: the JVM of the worker, as `kill -9` does."""

    def step(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            # Workers are forked by a daemon, and that is a child of the JVM.
            daemon = os.getppid()
            parent = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(parent, signal.SIGKILL)

    return step


if __name__ == "__main__":
    main()
