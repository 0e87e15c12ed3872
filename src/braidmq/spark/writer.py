"""Rows into topics: all of a batch at one moment, and once.

Every task packs its rows into batches and stages them on the broker under the name of the writer, the number of the batch, the
task, and a number that no other attempt has. The driver's commit publishes the attempts that Spark chose. What that survives:

    a task dies               its attempt is never named, and the broker lets go of it
    the driver dies before    the batch is repeated; its tasks stage anew, and what the first run staged is void
    the driver dies after     the batch is repeated; the broker says that it was published, and nothing is written again
    commit fails, Spark aborts    giving up what was published changes nothing
    the broker dies           what was staged is on its disk; requests are repeated until it is back

The writer of a stream is the id of the query, which Spark keeps in the checkpoint, so a new run goes on where the last one was.
Every `df.write` is a writer of its own, with one batch.
"""

from __future__ import annotations

import secrets
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from braidmq.base.errors import BraidError
from braidmq.client.sync import Client
from braidmq.spark.connecting import client_of
from braidmq.spark.options import Options
from braidmq.spark.packing import Packed, Packing

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties in which Spark tells a task of a stream which query and which batch it works for. Nothing documents them."""

_UNDER_WAY_MAX: Final = 2
"""Batches on their way to the broker while the next one is packed."""


@dataclass
class Staged(WriterCommitMessage):
    """What a task has done."""

    writer: str
    epoch: int
    task: int
    attempt: int
    batches: int
    rows: int


class _Writer:
    """What both writers do on executors. It is pickled on its way there."""

    def __init__(self, options: Options, schema: StructType) -> None:
        Packing.check(options, schema)
        self.options = options

    def _put(self, iterator: Iterator[pa.RecordBatch], writer: str, epoch: int) -> Staged:
        client = client_of(self.options)
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        done = Staged(writer, epoch, task, secrets.randbits(63), 0, 0)
        packing = Packing(self.options, client)
        staging = _Staging(client, done, self.options.get("exactlyOnce", True))
        with ThreadPoolExecutor(1, "braid-stage") as sender:
            under_way: deque[Future[bool]] = deque()
            for packed in packing.pack_all(iterator):
                while len(under_way) >= _UNDER_WAY_MAX:
                    if under_way.popleft().result():
                        # Published before: whatever this attempt has to say was said by an earlier one.
                        return done
                under_way.append(sender.submit(staging.send, packed))
            while under_way:
                under_way.popleft().result()
        return done

    def _publish(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        done = [message for message in messages if isinstance(message, Staged)]
        if not done or not self.options.get("exactlyOnce", True):
            return
        tasks = [(message.task, message.attempt, message.batches) for message in done if message.batches]
        group = self.options.get("group", "")
        if tasks or group:
            client_of(self.options).stage.publish(done[0].writer, done[0].epoch, tasks, group=group)

    def _give_up(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        for message in messages:
            if isinstance(message, Staged):
                client_of(self.options).stage.abort(message.writer, message.epoch)
                return


class _Staging:
    """Sends batches of one attempt, in order."""

    def __init__(self, client: Client, done: Staged, exactly_once: bool) -> None:
        self._client = client
        self._done = done
        self._exactly_once = exactly_once

    def send(self, packed: Packed) -> bool:
        """Whether the epoch turned out to be published already."""
        done = self._done
        if self._exactly_once:
            state = self._client.stage.batch(
                done.writer, done.epoch, done.task, done.attempt, done.batches, packed.topic, packed.partition, packed.batch
            )
            if state.published:
                return True
        else:
            self._client.produce_batch(packed.topic, packed.partition, packed.batch)
        done.batches += 1
        done.rows += packed.records
        return False


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write`."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        # With a name the same rows are written once, however often somebody writes them.
        self.writer = options.get("writer") or f"write-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._put(iterator, self.writer, 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._publish(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._give_up(messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream`."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_ID)
        epoch = None if context is None else context.getLocalProperty(BATCH_ID)
        if query is None or epoch is None:
            raise BraidError("INTERNAL", reason="this version of Spark does not tell a task its query and batch")
        return self._put(iterator, self.options.get("writer") or query, int(epoch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._publish(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._give_up(messages)
