"""Schemas of Spark and of Arrow."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from braidmq.spark.columns import COLUMNS
from braidmq.spark.decode import Decoding


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark expects of an Arrow batch with this schema, to the letter."""
    return to_arrow_schema(schema, timezone="UTC")


def record_schema(decoding: Decoding | None) -> StructType:
    """All columns of a record."""
    fields = [StructField(name, from_arrow_type(kind)) for name, kind, _ in COLUMNS]
    if decoding is not None:
        fields += [StructField("data", from_arrow_type(decoding.decoder().type)), StructField("error", StringType())]
    return StructType(fields)
