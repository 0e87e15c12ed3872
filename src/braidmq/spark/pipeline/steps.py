"""What each step does to a DataFrame. Nothing is computed here: Spark plans it, as part of a stream or for one batch."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from braidmq.base.errors import BraidError
from braidmq.spark.pipeline.context import Context
from braidmq.spark.pipeline.decoding import check_rules, decode
from braidmq.spark.pipeline.definition import Decode, Deduplicate, Expectation, Join, Mask, PythonStep, Sql, Validate, Window
from braidmq.spark.pipeline.frames import interval, quoted, require_columns
from braidmq.spark.pipeline.letters import SCHEMA_REASON, letters_of
from braidmq.spark.pipeline.sections import Section
from braidmq.spark.pipeline.sources import read_table, read_topics

_MASKS: Final[dict[str, Callable[[Column, str | None], Column]]] = {
    "hash": lambda column, salt: F.sha2(F.concat(F.lit(salt or ""), column.cast("string")), 256),
    "redact": lambda column, _: F.when(column.isNotNull(), F.lit("***")),
    "null": lambda column, _: F.lit(None).cast("string"),
    "last4": lambda column, _: F.concat(F.lit("***"), F.substring(column.cast("string"), -4, 4)),
}


@dataclass(frozen=True, slots=True)
class Staged:
    """Rows after a step, and those that it took out."""

    rows: DataFrame
    letters: DataFrame | None = None
    fatal: DataFrame | None = None
    """Rows that must not be there at all, as letters: one of them fails the pipeline."""


def step_name(index: int, step: Section) -> str:
    """A step as errors call it."""
    return f"step {index + 1} ({type(step).__name__.removesuffix('Step').lower()})"


def is_stateful(step: Section) -> bool:
    """Whether it remembers rows from one batch to the next, so that it has to be part of the stream."""
    return isinstance(step, Deduplicate | Window) or (isinstance(step, Join) and step.topic is not None)


def apply_step(frame: DataFrame, step: Section, index: int, context: Context) -> Staged:
    what = step_name(index, step)
    match step:
        case Decode():
            return Staged(decode(frame, step, context, what))
        case Validate():
            return _validate(frame, step, context, what)
        case Sql():
            return Staged(_sql(frame, step.query, f"braid_input_{index}"))
        case PythonStep():
            return Staged(_python(frame, step, context, what))
        case Deduplicate():
            return Staged(_deduplicate(frame, step, what))
        case Window():
            return Staged(_window(frame, step, what))
        case Join():
            return Staged(_join(frame, step, context, what))
        case Mask():
            return Staged(_mask(frame, step, what))
    raise AssertionError(f"no step: {step}")


# --- validate


def _validate(frame: DataFrame, step: Validate, context: Context, what: str) -> Staged:
    """One pass: each row gets the first thing that is wrong with it, and goes where that leads."""
    has_schema = "error" in frame.columns and "data" in frame.columns
    rules: list[tuple[str, Column, Column, str]] = []
    if has_schema:
        schema = _schema_before(context, step)
        frame = frame if schema is None else check_rules(frame, context, schema)
        rules.append((SCHEMA_REASON, F.col("error").isNull(), F.col("error"), step.schema))
    for each in step.expect:
        assert isinstance(each, Expectation)
        told = F.lit(f"expectation {each.name} is not met: {each.sql}")
        rules.append((each.name, F.expr(f"coalesce(({each.sql}), false)"), told, each.on_fail))
    if not rules:
        reason = "there is nothing to check: neither has the source a schema, nor are there expectations"
        raise BraidError("INVALID_ARGUMENT", reason=f"{what}: {reason}")
    fault = F.coalesce(
        *[
            F.when(~fits, F.struct(F.lit(name).alias("reason"), told.alias("error"), F.lit(action).alias("action")))
            for name, fits, told, action in rules
        ]
    )
    checked = frame.withColumn("__fault", fault)
    drop = [*(["error"] if has_schema else []), "__fault"]
    good = checked.where("__fault IS NULL").drop(*drop)

    def taken(action: str) -> DataFrame | None:
        if all(rule[3] != action for rule in rules):
            return None
        bad = checked.where(F.col("__fault.action") == action)
        return letters_of(bad, F.col("__fault.reason"), F.col("__fault.error"), context, what) if action != "fail" else bad.select(
            F.col("__fault.reason").alias("reason"), F.col("__fault.error").alias("error"),
            F.to_json(F.struct(*[name for name in frame.columns if name not in ("value", "headers")])).alias("row"),
        )  # fmt: skip

    return Staged(good, taken("dead-letter"), taken("fail"))


def _schema_before(context: Context, step: Validate) -> str | None:
    """The schema that `data` was decoded by: that of the last `decode` of `value` before the step, or the source's."""
    schema = context.source.schema if context.source.topics is not None else None
    for each in context.pipeline.steps:
        if each is step:
            break
        if isinstance(each, Decode) and each.column == "value" and each.into == "data":
            schema = each.schema
    return schema


# --- transform


def _sql(frame: DataFrame, query: str, view: str) -> DataFrame:
    """The query with the rows as `input`: a common table expression, so that each step has its own where Spark reads it late."""
    frame.createOrReplaceTempView(view)
    text = query.strip().rstrip(";")
    first = f"input AS (SELECT * FROM {view})"
    joined = f"WITH {first}, {text[4:].lstrip()}" if text[:5].lower().strip() == "with" else f"WITH {first} {text}"
    return frame.sparkSession.sql(joined)


def load_function(reference: str, folder: str) -> Callable[..., Any]:
    """A function by `module:function` or `file.py:function`."""
    where, _, name = reference.rpartition(":")
    if not where:
        raise BraidError("INVALID_ARGUMENT", reason=f"{reference!r} is not `module:function` or `file.py:function`")
    if where.endswith(".py"):
        path = Path(folder) / where
        if not path.is_file():
            raise BraidError("INVALID_ARGUMENT", reason=f"there is no file {path}")
        found = runpy.run_path(str(path)).get(name)
    else:
        sys.path.insert(0, folder)
        try:
            found = getattr(importlib.import_module(where), name, None)
        except ImportError as fault:
            raise BraidError("INVALID_ARGUMENT", reason=f"module {where} cannot be imported: {fault}") from None
        finally:
            sys.path.remove(folder)
    if not callable(found):
        raise BraidError("INVALID_ARGUMENT", reason=f"{where} has no function {name}")
    return found  # type: ignore[no-any-return]


def _python(frame: DataFrame, step: PythonStep, context: Context, what: str) -> DataFrame:
    made = load_function(step.function, context.folder)(frame, **step.arguments)
    if not (hasattr(made, "schema") and hasattr(made, "select")):
        raise BraidError("INVALID_ARGUMENT", reason=f"{what}: {step.function} returned {type(made).__name__}, not a DataFrame")
    return made  # type: ignore[no-any-return]


def _mask(frame: DataFrame, step: Mask, what: str) -> DataFrame:
    require_columns(frame, step.columns, what)
    for name in step.columns:
        root, _, inner = name.partition(".")
        masked = _MASKS[step.how](F.col(quoted(name)), step.salt)
        frame = frame.withColumn(root, F.col(quoted(root)).withField(inner, masked) if inner else masked)
    return frame


# --- over time


def _deduplicate(frame: DataFrame, step: Deduplicate, what: str) -> DataFrame:
    require_columns(frame, step.keys, what)
    keys = list(step.keys)
    if step.within is None or not frame.isStreaming:
        return frame.dropDuplicates(keys)
    require_columns(frame, [step.time], what)
    return _marked(frame, step.time, step.within).dropDuplicatesWithinWatermark(keys)


def _marked(frame: DataFrame, column: str, length: Any) -> DataFrame:
    """The rows with a watermark on a column of time. The first one on a column counts: Spark does not take a second."""
    if not frame.isStreaming or "spark.watermarkDelayMs" in frame.schema[column].metadata:
        return frame
    return frame.withWatermark(column, interval(length))


def _window(frame: DataFrame, step: Window, what: str) -> DataFrame:
    require_columns(frame, [step.time, *step.group_by], what)
    frame = _marked(frame, step.time, step.late)
    slide = interval(step.slide) if step.slide is not None else None
    spans = F.window(F.col(quoted(step.time)), interval(step.size), slide)
    groups = [F.col(quoted(name)) for name in step.group_by]
    counted = frame.groupBy(spans, *groups).agg(*[F.expr(sql).alias(name) for name, sql in step.aggregates.items()])
    rest = [name for name in counted.columns if name != "window"]
    return counted.select(F.col("window.start").alias("window_start"), F.col("window.end").alias("window_end"), *map(quoted, rest))


def _join(frame: DataFrame, step: Join, context: Context, what: str) -> DataFrame:
    keys = list(step.on)
    require_columns(frame, keys, what)
    spark = frame.sparkSession
    if step.table is not None:
        other = read_table(spark, context, step.table, step.format, step.catalog)
        require_columns(other, keys, f"{what}, table {step.table}")
        clash = [name for name in other.columns if name in frame.columns and name not in keys]
        return frame.join(other.drop(*clash), keys, step.how)
    assert step.topic is not None
    other = read_topics(spark, context, [step.topic], step.schema, stream=frame.isStreaming, group=False)
    other = other.select("data.*", F.col("timestamp").alias("__other_time")) if step.schema else other.withColumnRenamed(
        "timestamp", "__other_time"
    )  # fmt: skip
    require_columns(other, keys, f"{what}, topic {step.topic}")
    require_columns(frame, ["timestamp"], what)
    other = other.drop(*[name for name in other.columns if name in frame.columns and name not in keys])
    renamed = other.select(*[F.col(quoted(n)).alias(f"__on_{n}") if n in keys else F.col(quoted(n)) for n in other.columns])
    reach = interval(step.within)
    frame, renamed = _marked(frame, "timestamp", step.within), _marked(renamed, "__other_time", step.within)
    same = " AND ".join(f"{quoted(name)} = {quoted('__on_' + name)}" for name in keys)
    near = f"__other_time BETWEEN timestamp - INTERVAL {reach} AND timestamp + INTERVAL {reach}"
    joined = frame.join(renamed, F.expr(f"{same} AND {near}"), "inner" if step.how == "inner" else "left_outer")
    return joined.drop("__other_time", *[f"__on_{name}" for name in keys])
