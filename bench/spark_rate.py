"""How fast Spark reads and writes topics, beside Spark on Parquet: `python bench/spark_rate.py`. Prints a table, or JSON.

Every pair does the same work on the same rows in one session of `local[2]`, taking turns, and the best of its turns counts: what a
busy machine does to one it does to the other.

    read     the whole topic to `noop`, beside the same columns of the same rows from Parquet files
    stream   the same as one micro-batch, beside Spark's stream of Parquet files
    sink     a stream of the topic into another topic, exactly once, beside the same stream into Parquet files
    json     values decoded by a schema of the registry, beside `from_json` on the same values
    avro     the same rows as flat Avro records, beside the same `from_json`

The values of the first three are random bytes: nothing makes them smaller, in a log or in Parquet. With `--padded` they are a
number and 90 times `x`, of which a Parquet file keeps next to nothing, so that it reads a fiftieth of the bytes.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import numpy as np
import pyarrow as pa

from braidmq import hot
from braidmq.client import sync
from braidmq.spark import session

PARTITIONS: Final = 2
VALUE_BYTES: Final = 100
BATCH_ROWS: Final = 10_000
ASKED: Final = {"read": 0.8, "stream": 0.7, "sink": 0.8, "json": 3.0, "avro": 5.0}
ORDER: Final = {
    "type": "object",
    "properties": {
        "order_id": {"type": "integer"}, "customer": {"type": "string"}, "amount": {"type": "number"},
        "country": {"type": "string"}, "paid": {"type": "boolean"},
    },
}  # fmt: skip
AVRO: Final = {
    "type": "record", "name": "Order", "fields": [
        {"name": "order_id", "type": "long"}, {"name": "customer", "type": "string"}, {"name": "amount", "type": "double"},
        {"name": "country", "type": "string"}, {"name": "paid", "type": "boolean"},
    ],
}  # fmt: skip
FIELDS: Final = "order_id bigint, customer string, amount double, country string, paid boolean"
DATA: Final = "data struct<order_id: bigint, customer: string, amount: double, country: string, paid: boolean>"


@contextmanager
def broker(directory: Path) -> Iterator[str]:
    ready = directory / "ready"
    command = [
        sys.executable, "-m", "braidmq", "serve", "--data-dir", str(directory / "data"), "--listen", "flymq://127.0.0.1:0",
        "--ready-file", str(ready), "--no-admin-enabled", "--no-metrics-enabled", "--no-health-enabled",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise SystemExit("the broker did not start")
            time.sleep(0.05)
        yield json.loads(ready.read_text())["flymq"]
    finally:
        process.terminate()
        process.wait(60)


def orders(begin: int, end: int) -> Iterator[dict[str, Any]]:
    for number in range(begin, end):
        yield {
            "order_id": number, "customer": f"customer-{number % 5000}", "amount": number * 0.25,
            "country": ("DE", "FR", "IT", "ES")[number % 4], "paid": number % 2 == 0,
        }  # fmt: skip


def fill(client: sync.Client, topic: str, rows: int, values: Callable[[int, int], list[bytes]]) -> None:
    client.create_topic(topic, PARTITIONS)
    for number, begin in enumerate(range(0, rows, BATCH_ROWS)):
        end = min(rows, begin + BATCH_ROWS)
        column = pa.array(values(begin, end), pa.binary())
        keys = pa.array([b"key-%d" % (row % 1000) for row in range(begin, end)], pa.binary())
        chosen = np.arange(end - begin, dtype="<i4")
        batch = hot.encode_columns(chosen, *keys.buffers()[1:], *column.buffers()[1:])
        client.produce_batch(topic, number % PARTITIONS, batch)


def avro_values(begin: int, end: int) -> list[bytes]:
    import fastavro

    schema = fastavro.parse_schema(AVRO)
    found = []
    for order in orders(begin, end):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, order)
        found.append(out.getvalue())
    return found


class Bench:
    def __init__(self, spark: Any, address: str, directory: Path, rows: int, padded: bool = False) -> None:
        self.spark = spark
        self.address = address
        self.directory = directory
        self.rows = rows
        self.padded = padded
        self._chance = random.Random(7)
        self._number = 0

    def scratch(self) -> str:
        self._number += 1
        return str(self.directory / f"scratch-{self._number}")

    def table(self, topic: str, columns: str | None = None, **options: str) -> Any:
        reader = self.spark.read.format("braid").options(servers=self.address, subscribe=topic, **options)
        return (reader.schema(columns) if columns else reader).load()

    def stream(self, topic: str) -> Any:
        options = {"servers": self.address, "subscribe": topic, "startingOffsets": "earliest"}
        return self.spark.readStream.format("braid").options(**options).load()

    def timed(self, work: Callable[[], Any]) -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    def noop(self, frame: Any) -> float:
        return self.timed(lambda: frame.write.format("noop").mode("overwrite").save())

    def run_stream(self, frame: Any, kind: str, **options: str) -> float:
        def work() -> None:
            writer = frame.writeStream.format(kind).options(checkpointLocation=self.scratch(), **options)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            if sum(progress["numInputRows"] for progress in query.recentProgress) != self.rows:
                raise SystemExit("a stream has not read every row")

        return self.timed(work)

    # --- pairs: ours, and what it is set beside

    def read(self) -> tuple[float, float]:
        return self.noop(self.table("plain")), self.noop(self.spark.read.parquet(self.parquet))

    def streaming(self) -> tuple[float, float]:
        files = self.spark.readStream.schema(self.spark.read.parquet(self.parquet).schema).parquet(self.parquet)
        return self.run_stream(self.stream("plain"), "noop"), self.run_stream(files, "noop")

    def sink(self) -> tuple[float, float]:
        rows = self.stream("plain").select("key", "value")
        out = f"out-{self._number}"
        with sync.connect(self.address) as client:
            client.create_topic(out, PARTITIONS)
        ours = self.run_stream(rows, "braid", servers=self.address, topic=out)
        with sync.connect(self.address) as client:
            if client.metadata(out).records != self.rows:
                raise SystemExit("the sink has not written every row")
            client.delete_topic(out)
        path = self.scratch()
        theirs = self.run_stream(rows, "parquet", path=path)
        shutil.rmtree(path)
        return ours, theirs

    def from_json(self) -> float:
        from pyspark.sql import functions as f

        values = self.table("json", "value binary")
        return self.noop(values.select(f.from_json(values.value.cast("string"), FIELDS).alias("data")))

    def json(self) -> tuple[float, float]:
        return self.noop(self.table("json", DATA, schema="order")), self.from_json()

    def avro(self) -> tuple[float, float]:
        return self.noop(self.table("avro", DATA, schema="order-avro")), self.from_json()

    @property
    def parquet(self) -> str:
        return str(self.directory / "parquet")

    def plain_values(self, begin: int, end: int) -> list[bytes]:
        if self.padded:
            return [b"%010d" % number + b"x" * (VALUE_BYTES - 10) for number in range(begin, end)]
        return [b"%010d" % number + self._chance.randbytes(VALUE_BYTES - 10) for number in range(begin, end)]

    def prepare(self) -> None:
        with sync.connect(self.address) as client:
            client.schema.put("order", json.dumps(ORDER).encode())
            client.schema.put("order-avro", json.dumps(AVRO).encode(), "avro")
            fill(client, "plain", self.rows, self.plain_values)
            fill(client, "json", self.rows, lambda begin, end: [json.dumps(order).encode() for order in orders(begin, end)])
            fill(client, "avro", self.rows, avro_values)
        self.table("plain").write.mode("overwrite").parquet(self.parquet)


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="bench/spark_rate.py", description=__doc__, formatter_class=raw)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of each topic (2,000,000)")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each pair (3)")
    parser.add_argument("--only", action="append", choices=list(ASKED), help="this pair; repeatable")
    parser.add_argument("--memory", default="2g", help="memory of the driver (2g)")
    parser.add_argument("--padded", action="store_true", help="values that Parquet compresses to next to nothing")
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    args = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="braid-spark-") as name, broker(Path(name)) as address:
        config = {"spark.driver.memory": args.memory, "spark.log.level": "ERROR", "spark.sql.warehouse.dir": f"{name}/warehouse"}
        spark = session("bench", master="local[2]", config=config)
        bench = Bench(spark, address, Path(name), args.rows, args.padded)
        bench.prepare()
        pairs = {"read": bench.read, "stream": bench.streaming, "sink": bench.sink, "json": bench.json, "avro": bench.avro}
        found: dict[str, list[tuple[float, float]]] = {each: [] for each in pairs if not args.only or each in args.only}
        for _ in range(args.repeats):
            for each, turns in found.items():
                turns.append(pairs[each]())
        spark.stop()
    document = {}
    for each, turns in found.items():
        ours, theirs = min(turn[0] for turn in turns), min(turn[1] for turn in turns)
        document[each] = {
            "rows_per_s": round(args.rows / ours), "beside_rows_per_s": round(args.rows / theirs), "ratio": round(theirs / ours, 2),
            "asked": ASKED[each], "ratios": [round(turn[1] / turn[0], 2) for turn in turns],
        }  # fmt: skip
    if args.json:
        print(json.dumps(document))
        return 0
    print(f"{'':8} {'rows/s':>12} {'beside':>12} {'ratio':>7} {'asked':>7}   ratio of each turn")
    for each, row in document.items():
        turns = " ".join(map(str, row["ratios"]))
        print(f"{each:8} {row['rows_per_s']:>12,} {row['beside_rows_per_s']:>12,} {row['ratio']:>7} {row['asked']:>7}   {turns}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
