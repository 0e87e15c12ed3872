"""What the design leans on and Spark does not document. One of these fails when an upgrade of Spark changes it."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from pyspark.sql.worker import data_source_pushdown_filters, plan_data_source_read

from braidmq.spark.source import FILTERING_PLANNER_KNOWS
from braidmq.spark.writer import BATCH_ID, QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.timeout(600)


def test_only_the_planner_for_filters_knows_how_to_read_them() -> None:
    """`BraidDataSource.reader` tells by this name whether it may return a reader that takes filters."""
    assert FILTERING_PLANNER_KNOWS in vars(data_source_pushdown_filters)
    assert FILTERING_PLANNER_KNOWS not in vars(plan_data_source_read)
    assert "data_source.reader(schema=schema)" in inspect.getsource(data_source_pushdown_filters._main)


def test_a_reader_that_takes_filters_is_refused_while_they_are_off() -> None:
    """Otherwise one class would do."""
    assert "DATA_SOURCE_PUSHDOWN_DISABLED" in inspect.getsource(plan_data_source_read._main)
    assert datasource.DataSourceReader.pushFilters.__qualname__ == "DataSourceReader.pushFilters"


def test_arrow_types_have_to_match_to_the_letter() -> None:
    """So the schema is made by the same function that checks it."""
    assert "pa_schema.equals(first_element.schema)" in inspect.getsource(plan_data_source_read.records_to_arrow_batches)


def test_a_task_of_a_stream_knows_its_query_and_batch(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    """And when commit fails, abort comes with the same messages, and the next run repeats both with the same ids."""
    notes = str(tmp_path / "notes")

    class Message(WriterCommitMessage):
        def __init__(self, query: str, batch: str) -> None:
            self.query, self.batch = query, batch

    class Noting(DataSourceStreamArrowWriter):
        def note(self, *what: Any) -> None:
            with open(notes, "a") as file:
                file.write(json.dumps(what) + "\n")

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            from pyspark import TaskContext

            for _ in iterator:
                pass
            context = TaskContext.get()
            return Message(context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID))  # type: ignore[union-attr]

        def commit(self, messages: list[Any], batchId: int) -> None:
            self.note("commit", batchId, [(message.query, message.batch) for message in messages])
            if not os.path.exists(notes + ".failed"):
                open(notes + ".failed", "w").close()
                raise RuntimeError("once")

        def abort(self, messages: list[Any], batchId: int) -> None:
            self.note("abort", batchId, [(message.query, message.batch) for message in messages])

    class Pinned(DataSource):
        @classmethod
        def name(cls) -> str:
            return "pinned"

        def streamWriter(self, schema: StructType, overwrite: bool) -> Noting:
            return Noting()

    spark.dataSource.register(Pinned)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/one.txt").write_text("a\n")
    lines = spark.readStream.format("text").load(str(tmp_path / "in"))
    for _ in range(2):
        query = lines.writeStream.format("pinned").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        try:
            query.awaitTermination(110)
        except Exception as fault:
            assert "once" in str(fault)
    told = [json.loads(line) for line in Path(notes).read_text().splitlines()]
    identity = [[str(query.id), "0"]]
    assert told == [["commit", 0, identity], ["abort", 0, identity], ["commit", 0, identity]]
