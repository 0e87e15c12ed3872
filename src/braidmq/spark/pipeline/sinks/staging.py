"""Records into topics, once a batch, from inside a batch.

Tasks pack their rows and stage them on the broker under (writer, batch); the driver publishes what the tasks that counted have
staged, all at one moment. A batch that the broker has published is known before anything is computed. What a dead task or a dead
driver staged is void when the batch comes again, and given up before anything is staged anew.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame

from braidmq.base.errors import BraidError
from braidmq.client.sync import Client
from braidmq.spark.connecting import client_of
from braidmq.spark.options import Options

logger = logging.getLogger("braidmq.pipeline")

_STAGED: Final = "task int, attempt bigint, batches int, rows bigint"
_LEAVE: Final = ("STAGE_NOT_FOUND", "SPARK_JOB_CANCELLED", "UNREACHABLE", "CONNECTION_LOST", "TIMED_OUT")
"""Failures after which what is staged may be that of another driver, which took over, or nobody is there to be told."""


def write_records(records: DataFrame, options: Mapping[str, str], writer: str, number: int) -> int | None:
    """Write rows of key and value, with `topic` and `attrs` where they have them; None when this batch was written before."""
    given = dict(options)
    client = client_of(Options(given))
    found = client.stage.status(writer, number)
    if found.published or (found.stages and client.stage.abort(writer, number).published):
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

    try:
        staged = records.mapInArrow(stage, _STAGED).collect()
        client.stage.publish(writer, number, [(row["task"], row["attempt"], row["batches"]) for row in staged if row["batches"]])
    except Exception as fault:
        _give_up(client, writer, number, str(fault))
        raise
    return int(sum(row["rows"] for row in staged))


def _give_up(client: Client, writer: str, number: int, fault: str) -> None:
    """Let the broker forget what a batch that failed has staged; one that was published all the same stays so."""
    if any(code in fault for code in _LEAVE):
        return
    try:
        client.stage.abort(writer, number)
    except BraidError as trouble:
        # The batch gives it up when it comes again, and else the broker does after its `stage_timeout_s`.
        logger.warning("what batch %d of %s staged could not be given up: %s", number, writer, trouble)
