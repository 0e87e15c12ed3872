"""The step `decode`: bytes of any column by a schema of the registry."""

from __future__ import annotations

from pyspark.sql import DataFrame

from braidmq.spark.pipeline.context import Context
from braidmq.spark.pipeline.definition import Decode


def decode(frame: DataFrame, step: Decode, context: Context, what: str) -> DataFrame:
    raise NotImplementedError
