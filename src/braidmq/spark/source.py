"""The data source `braid`, as Spark finds it.

Spark makes this object in processes of its own, with the options of the query, and asks it for readers and writers.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from functools import cached_property
from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from braidmq.base.errors import BraidError
from braidmq.spark.connecting import client_of
from braidmq.spark.decode import Decoding
from braidmq.spark.options import OPTIONS, Options
from braidmq.spark.reader import BatchReader, FilteringReader, check_columns
from braidmq.spark.shapes import record_schema
from braidmq.spark.stream import StreamReader
from braidmq.spark.writer import BatchWriter, StreamWriter

_READ_ONLY: Final = tuple(option.name for option in OPTIONS if option.use == "read")
_WRITE_ONLY: Final = tuple(option.name for option in OPTIONS if option.use == "write")

FILTERING_PLANNER_KNOWS: Final = "deserializeFilter"


class BraidDataSource(DataSource):
    """`format("braid")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = Options(dict(options))

    @classmethod
    def name(cls) -> str:
        return "braid"

    @cached_property
    def _decoding(self) -> Decoding | None:
        name = self._given.get("schema")
        if name is None:
            return None
        found = client_of(self._given).schema.get(name, self._given.get("schemaVersion", 0))
        return Decoding(found.name, found.type, found.version, found.definition)

    def schema(self) -> StructType:
        return record_schema(self._decoding)

    def _checked(self, schema: StructType) -> Options:
        self._given.refuse(_WRITE_ONLY, "it is for writing")
        check_columns(schema, self._decoding)
        return self._given

    def reader(self, schema: StructType) -> DataSourceReader:
        # A class that can be asked about filters must not be given to Spark while these are switched off, and nothing tells a data
        # source whether they are. So it looks who asks: of Spark's planners only the one for filters knows this name.
        filtering = FILTERING_PLANNER_KNOWS in sys._getframe(1).f_globals
        kind = FilteringReader if filtering else BatchReader
        return kind(self._checked(schema), schema, self._decoding)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(self._checked(schema), schema, self._decoding)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self._for_writing(overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(self._for_writing(overwrite), schema)

    def _for_writing(self, overwrite: bool) -> Options:
        if overwrite:
            raise BraidError("INVALID_ARGUMENT", reason="a topic is only ever appended to: use mode `append`")
        self._given.refuse(_READ_ONLY, "it is for reading")
        return self._given
