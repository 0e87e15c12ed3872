"""Rows of topics, tables and files, as a stream or as what is there now.

Delta and Iceberg need no jar: their logs say which Parquet files make up a table (delta-rs, pyiceberg), and Spark reads those. As a
stream they are followed from version to version (`spark/tables`). A folder of files is a stream of its own to Spark, which
remembers what it has read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from braidmq.base.errors import BraidError
from braidmq.spark.connecting import client_of
from braidmq.spark.options import Options
from braidmq.spark.pipeline.admitting import default_bytes
from braidmq.spark.pipeline.context import Context


def read_source(spark: SparkSession, context: Context, *, stream: bool, bounds: Mapping[str, str] | None = None) -> DataFrame:
    """The source of a pipeline. `bounds` are options that replace where topics begin and end, for a replay."""
    source = context.source
    if source.topics is not None:
        return read_topics(spark, context, list(source.topics), source.schema, stream=stream, bounds=bounds)
    if source.files is not None:
        return _read_files(spark, context, stream)
    assert source.table is not None
    form = source.format or "delta"
    if form == "parquet":
        path = context.path(source.table)
        found = spark.read.options(**source.options).parquet(path)
        return spark.readStream.schema(found.schema).options(**source.options).parquet(path) if stream else found
    if not stream:
        return read_table(spark, context, source.table, form, source.catalog)
    from braidmq.spark.tables.source import FORMAT, TableDataSource, table_options

    spark.dataSource.register(TableDataSource)
    path = source.table if form == "iceberg" else context.path(source.table)
    return spark.readStream.format(FORMAT).options(**table_options(source, path)).load()


def read_topics(
    spark: SparkSession,
    context: Context,
    topics: list[str],
    schema: str | None,
    *,
    stream: bool,
    bounds: Mapping[str, str] | None = None,
    group: bool = True,
) -> DataFrame:
    source = context.source
    options = {**context.options(), "subscribe": json.dumps(topics), **source.options}
    if schema is not None:
        options["schema"] = schema
    if bounds is not None:
        options |= bounds
    elif source.since is not None:
        options["startingTimestamp"] = str(int(source.since))
    else:
        options["startingOffsets"] = str(source.starting)
    if stream and source.max_records is not None:
        options["maxOffsetsPerTrigger"] = str(source.max_records)
    if stream and "maxbytespertrigger" not in map(str.lower, options):
        most = source.max_bytes if source.max_bytes is not None else default_bytes(client_of(Options(context.options())), topics)
        options["maxBytesPerTrigger"] = str(most)
    if group and (stream or "group" in options.values()):
        options["group"] = context.group
    reader = spark.readStream if stream else spark.read
    return reader.format("braid").options(**options).load()


def _read_files(spark: SparkSession, context: Context, stream: bool) -> DataFrame:
    source = context.source
    assert source.files is not None
    form = source.format or "json"
    reader: Any = (spark.readStream if stream else spark.read).format(form).options(**source.options)
    if source.schema is not None:
        reader = reader.schema(source.schema)
    elif stream:
        found = spark.read.format(form).options(**source.options).load(context.path(source.files)).schema
        reader = reader.schema(found)
    loaded: DataFrame = reader.load(context.path(source.files))
    return loaded


def read_table(spark: SparkSession, context: Context, name: str, form: str, catalog: Mapping[str, str]) -> DataFrame:
    """A table as it is now."""
    match form:
        case "delta":
            return _read_delta(spark, context.path(name))
        case "iceberg":
            return _read_iceberg(spark, name, catalog)
        case _:
            reader = spark.read.format(form)
            return (reader.option("header", "true").option("inferSchema", "true") if form == "csv" else reader).load(
                context.path(name)
            )


def _read_delta(spark: SparkSession, path: str) -> DataFrame:
    from braidmq.spark.tables.delta_log import open_delta

    table = open_delta(path)
    schema = _spark_schema(table.schema().to_arrow())
    files = table.file_uris()
    if not files:
        return spark.createDataFrame([], schema)
    frame = spark.read.option("basePath", path).schema(schema).parquet(*files)
    return frame.select(*[field.name for field in schema.fields])


def _spark_schema(schema: Any) -> Any:
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(pa.schema(schema))


def _read_iceberg(spark: SparkSession, name: str, catalog: Mapping[str, str]) -> DataFrame:
    from pyiceberg.catalog import load_catalog

    table = load_catalog("braid", **catalog).load_table(name)
    tasks = list(table.scan().plan_files())
    if any(task.delete_files for task in tasks):
        raise BraidError("INVALID_ARGUMENT", reason=f"the Iceberg table {name} has delete files, which cannot be read here")
    schema = _spark_schema(table.schema().as_arrow())
    files = [task.file.file_path for task in tasks]
    return spark.read.schema(schema).parquet(*files) if files else spark.createDataFrame([], schema)
