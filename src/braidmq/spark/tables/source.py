"""The data source `braid_table`: a Delta or Iceberg table as a stream of its added rows, without a jar.

Pipelines use it; it is registered where one is compiled. Options: `path` (or the name of an Iceberg table), `kind`, `catalog` as
JSON, `starting`, `maxRowsPerTrigger` (a batch ends with a whole file) and `skipChanges`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from braidmq.spark.pipeline.definition import Source
from braidmq.spark.shapes import arrow_schema
from braidmq.spark.tables.delta_log import DeltaLog
from braidmq.spark.tables.following import Place, Reader, TableFile, TableLog, advance, beginning, between
from braidmq.spark.tables.iceberg_log import IcebergLog

FORMAT: Final = "braid_table"
_TASKS_MAX: Final = 32


def table_options(source: Source, path: str) -> dict[str, str]:
    """Options of this data source, for the source of a pipeline; `path` is where its table is."""
    given = {
        "kind": source.format or "delta", "path": path, "catalog": json.dumps(dict(source.catalog)),
        "starting": str(source.starting), "skipChanges": str(source.skip_changes).lower(),
    }  # fmt: skip
    if source.max_records is not None:
        given["maxRowsPerTrigger"] = str(source.max_records)
    return given


class TableDataSource(DataSource):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._given = {key.lower(): value for key, value in dict(options).items()}

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        found: StructType = from_arrow_schema(_open(self._given).schema())
        return found

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TableStreamReader(self._given, schema)


def _open(given: Mapping[str, str]) -> TableLog:
    if given["kind"] == "iceberg":
        return IcebergLog(given["path"], json.loads(given["catalog"]))
    return DeltaLog(given["path"])


class FilesPartition(InputPartition):
    """What one task reads, in order."""

    def __init__(self, files: Sequence[TableFile], reader: Reader) -> None:
        super().__init__(None)
        self.files = tuple(files)
        self.reader = reader


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self.given = dict(given)
        self.schema = schema
        self.target: int | None = None
        """The version where a query with the trigger AvailableNow ends."""

    def initialOffset(self) -> dict[str, Any]:
        return beginning(_open(self.given), self.given.get("starting", "earliest")).as_offset()

    def _skips(self) -> bool:
        return self.given.get("skipchanges", "false").lower() == "true"

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = None if isinstance(limit, ReadAllAvailable) else self._rows_max()
        return advance(_open(self.given), Place.of(start), most, self._skips(), self.target).as_offset()

    def _rows_max(self) -> int | None:
        text = self.given.get("maxrowspertrigger")
        return None if text is None else int(text)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._rows_max()
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any]:
        return Place(_open(self.given).latest()).as_offset()

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = _open(self.given).latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        log = _open(self.given)
        files = between(log, Place.of(start), Place.of(end), self._skips())
        reader = log.reader()
        size = max(1, -(-len(files) // _TASKS_MAX))
        return [FilesPartition(files[at : at + size], reader) for at in range(0, len(files), size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FilesPartition)
        return partition.reader.read(partition.files, arrow_schema(self.schema))
