"""Rows into topics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from braidmq.spark.connecting import client_of
from braidmq.spark.options import Options
from braidmq.spark.packing import Packing


@dataclass
class Written(WriterCommitMessage):
    rows: int


class _Writer:
    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        Packing.check(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        client = client_of(self.options)
        packing = Packing(self.options, client)
        rows = 0
        for batch in iterator:
            for topic, partition, packed, count in packing.add(batch):
                client.produce_batch(topic, partition, packed)
                rows += count
        for topic, partition, packed, count in packing.rest():
            client.produce_batch(topic, partition, packed)
            rows += count
        return Written(rows)


class BatchWriter(_Writer, DataSourceArrowWriter):
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        pass


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass
