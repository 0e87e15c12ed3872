"""The data source with accidents: an option `accident` names one, and a file that remembers that it happened.

    before-commit FILE   the driver's commit dies before it asked the broker for anything
    after-commit FILE    the driver's commit dies after the broker has published, before Spark has written it down
    task FILE            a task dies after it has staged something
    hold-commit FILE     the driver's commit waits before it asks the broker for anything, for as long as the file is there
    kill-jvm FILE        as after-commit, but the whole driver is killed, as by the power button
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, MutableMapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from braidmq.spark.source import BraidDataSource
from braidmq.spark.writer import StreamWriter


class Accident(RuntimeError):
    pass


def _java_above(pid: int) -> int:
    """The JVM that a worker belongs to: between them there may be a daemon that forks workers."""
    while True:
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
        with open(f"/proc/{pid}/comm") as file:
            if file.read().strip() == "java":
                return pid


class FailingWriter(StreamWriter):
    def __init__(self, options: Any, schema: StructType, accident: str) -> None:
        super().__init__(options, schema)
        self.kind, _, self.file = accident.partition(" ")

    def _happens(self, kind: str) -> bool:
        if self.kind != kind or os.path.exists(self.file):
            return False
        with open(self.file, "w") as note:
            note.write(kind)
        return True

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        done = super().write(iterator)
        if self._happens("task"):
            raise Accident("a task dies")
        return done

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self._happens("before-commit"):
            raise Accident("the driver dies before the commit")
        if self._happens("hold-commit"):
            while os.path.exists(self.file):
                time.sleep(0.05)
            raise Accident("the driver should be dead by now")
        super().commit(messages, batchId)
        if self._happens("after-commit"):
            raise Accident("the driver dies after the commit")
        if self._happens("kill-jvm"):
            os.kill(_java_above(os.getpid()), signal.SIGKILL)


class FailingSource(BraidDataSource):
    """`format("failing")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        given = dict(options)
        self.accident = given.pop("accident", "none")
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "failing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return FailingWriter(self._for_writing(overwrite), schema, self.accident)
