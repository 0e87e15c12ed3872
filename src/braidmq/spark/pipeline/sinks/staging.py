"""Records into topics, once a batch, from inside a batch.

Tasks pack their rows and stage them on the broker under (writer, batch); the driver publishes what the tasks that counted have
staged, all at one moment. A batch that the broker has published is known before anything is computed. What a dead task or a dead
driver staged is void when the batch comes again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame

from braidmq.spark.connecting import client_of
from braidmq.spark.options import Options

_STAGED: Final = "task int, attempt bigint, batches int, rows bigint"


def write_records(records: DataFrame, options: Mapping[str, str], writer: str, number: int) -> int | None:
    """Write rows of key and value, with `topic` and `attrs` where they have them; None when this batch was written before."""
    given = dict(options)
    client = client_of(Options(given))
    if client.stage.status(writer, number).published:
        return None

    def stage(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        from braidmq.spark.packing import Packing

        context = TaskContext.get()
        assert context is not None
        # Numbers of Spark's own begin anew with each driver, and what an earlier one staged must not be taken for this.
        task, attempt = context.partitionId(), secrets.randbits(63)
        settings = Options(given)
        here = client_of(settings)
        sent = rows = 0
        for packed in Packing(settings, here).pack_all(iter(batches)):
            here.stage.batch(writer, number, task, attempt, sent, packed.topic, packed.partition, packed.batch)
            sent += 1
            rows += packed.records
        row = {"task": [task], "attempt": [attempt], "batches": [sent], "rows": [rows]}
        kinds = [("task", pa.int32()), ("attempt", pa.int64()), ("batches", pa.int32()), ("rows", pa.int64())]
        yield pa.RecordBatch.from_pydict(row, pa.schema(kinds))

    staged = records.mapInArrow(stage, _STAGED).collect()
    client.stage.publish(writer, number, [(row["task"], row["attempt"], row["batches"]) for row in staged if row["batches"]])
    return int(sum(row["rows"] for row in staged))
