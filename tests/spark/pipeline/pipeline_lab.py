"""What tests of pipelines share: a folder with a definition, the shared broker, and short ways to run and to look."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from running_broker import RunningBroker

from braidmq.client.sync import Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from braidmq.spark.pipeline.context import Context
    from braidmq.spark.pipeline.reading import Reading

_numbers = itertools.count()

ORDER = json.dumps(
    {
        "type": "object",
        "properties": {"order_id": {"type": "string"}, "amount": {"type": "number"}, "email": {"type": "string"}},
        "required": ["order_id", "amount"],
    }
).encode()


class Lab:
    """A pipeline to be, its topics, and what came of it."""

    def __init__(self, spark: SparkSession, broker: RunningBroker, client: Client, folder: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.client = client
        self.folder = folder
        number = f"{os.getpid()}-{next(_numbers)}"
        self.name = f"orders-{number}"
        self.topic = f"orders-{number}"
        self.clean = f"clean-{number}"
        self.schema = f"order-{number}"
        client.create_topic(self.topic, 2)
        client.create_topic(self.clean, 2)
        client.schema.put(self.schema, ORDER)

    def send(self, *rows: dict[str, Any] | bytes) -> None:
        with self.client.producer() as producer:
            for row in rows:
                value = row if isinstance(row, bytes) else json.dumps(row).encode()
                producer.send(self.topic, value, key=value[:20])

    def read(self, text: str) -> Reading:
        from braidmq.spark.pipeline.checking import check_definition
        from braidmq.spark.pipeline.reading import read_yaml

        for word in ("name", "topic", "clean", "schema"):
            text = text.replace(f"<{word}>", getattr(self, word))
        reading = read_yaml(text, str(self.folder / "pipeline.yaml"), os.environ)
        check_definition(reading)
        assert not reading.problems, list(map(str, reading.problems))
        return reading

    def context(self, reading: Reading) -> Context:
        from braidmq.spark.pipeline.context import context_of

        return context_of(reading, self.client.settings)

    def once(self, text: str, *, fresh: bool = False) -> Any:
        """Run to the end of what is there; returns how far it came."""
        from braidmq.spark.pipeline.running import Run

        reading = self.read(text)
        run = Run(self.spark, self.context(reading), reading, once=True, client=self.client, replace=True, fresh=fresh)
        assert run.go() == "finished"
        return run.progress

    def table(self, path: str, form: str = "delta", **catalog: str) -> list[dict[str, Any]]:
        from braidmq.spark.pipeline.sources import read_table

        context = self.context(self.read("name: a\nsource: {topics: [a]}\nsinks: [console]"))
        return [row.asDict(recursive=True) for row in read_table(self.spark, context, path, form, catalog).collect()]

    def records(self, topic: str) -> list[Any]:
        found = []
        for part in self.client.metadata(topic).partitions:
            offset = part.oldest
            while offset < part.newest:
                fetched = self.client.fetch(topic, part.partition, offset)
                found += fetched.records
                assert fetched.next_offset > offset
                offset = fetched.next_offset
        return found

    def values(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(record.value) for record in self.records(topic)]

    def lag(self) -> int:
        return sum(part.lag for part in self.client.group.lag(f"pipeline-{self.name}", self.topic))


def orders(numbers: Sequence[int] | range) -> list[dict[str, Any]]:
    return [{"order_id": f"o{n}", "amount": n + 0.5, "email": f"{n}@example.org"} for n in numbers]
