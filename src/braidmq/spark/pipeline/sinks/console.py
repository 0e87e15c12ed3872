"""The terminal. It shows a batch again when it comes again: nobody counts what they only look at."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from braidmq.spark.pipeline.definition import ConsoleSink as Definition
from braidmq.spark.pipeline.sinks.sink import Batch, Replacing


class ConsoleSink:
    label = "console"

    def __init__(self, definition: Definition) -> None:
        self._rows = definition.rows

    def write(self, frame: DataFrame, batch: Batch) -> int | None:
        frame.show(self._rows, truncate=False)
        return None

    def replace(self, frame: DataFrame, batch: Batch, replacing: Replacing) -> int | None:
        return self.write(frame, batch)

    def refuses(self, columns: Sequence[str]) -> str:
        return ""
