"""Schemas of Spark and of Arrow, and the decoding of values by a schema of the registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from braidmq.spark.columns import COLUMNS, Decode


@dataclass(frozen=True, slots=True)
class Decoding:
    """A version of a schema, as it was when the query was planned. It can be pickled."""

    name: str
    kind: str
    version: int
    definition: bytes

    def decoder(self) -> Decode:
        raise NotImplementedError

    def spark_type(self) -> Any:
        raise NotImplementedError


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark expects of an Arrow batch with this schema, to the letter."""
    return to_arrow_schema(schema, timezone="UTC")


def record_schema(decoding: Decoding | None) -> str:
    """All columns, as Spark reads a schema."""
    columns = [f"`{name}` {kind}" for name, kind in COLUMNS]
    if decoding is not None:
        columns += [f"data {decoding.spark_type()}", "error string"]
    return ", ".join(columns)
