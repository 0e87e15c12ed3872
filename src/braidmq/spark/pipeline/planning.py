"""What a pipeline will do: its graph, and the columns after each step, as Spark sees them. Nothing is read but schemas."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from braidmq.base.naming import DEAD_LETTER_ENDING
from braidmq.spark.pipeline.compiling import attributed
from braidmq.spark.pipeline.context import Context
from braidmq.spark.pipeline.definition import Expectation, Validate
from braidmq.spark.pipeline.ordering import order_of
from braidmq.spark.pipeline.sinks import make_sink
from braidmq.spark.pipeline.sources import read_source
from braidmq.spark.pipeline.steps import apply_step, is_stateful, step_name


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    about: str
    columns: list[tuple[str, str]]
    """Names and types after it; empty for a sink."""
    letters_to: list[str]


def plan(spark: SparkSession, context: Context) -> list[Stage]:
    """The stages of a pipeline in order; raises PIPELINE_FAILED, with the step that cannot be."""
    source = context.source
    frame: DataFrame = attributed(context, "source", lambda: _with_schema(read_source(spark, context, stream=False)))
    stages = [Stage("source", _source_text(context), _columns(frame), [])]
    origins = source.topics or ([context.pipeline.dead_letters] if context.pipeline.dead_letters else [])
    letters_to = [name + DEAD_LETTER_ENDING for name in origins]
    for index, step in enumerate(context.pipeline.steps):
        name = step_name(index, step)
        staged = attributed(context, name, lambda frame=frame, step=step, index=index: apply_step(frame, step, index, context))  # type: ignore[misc]
        frame = attributed(context, name, lambda staged=staged: _with_schema(staged.rows))  # type: ignore[misc]
        about = ("in the stream" if is_stateful(step) else "") or _step_text(step)
        stages.append(Stage(name, about, _columns(frame), letters_to if staged.letters is not None else []))
    for wanted in context.pipeline.sinks:
        order = order_of(wanted, context.pipeline)
        if order is not None:
            label = make_sink(wanted, context).label
            attributed(context, f"sink {label}", partial(order.require, frame.columns, label))
        stages.append(Stage(f"sink {make_sink(wanted, context).label}", _fields_text(wanted), [], []))
    return stages


def _with_schema(frame: DataFrame) -> DataFrame:
    frame.schema  # noqa: B018  Connect finds mistakes only when it is asked
    return frame


def _columns(frame: DataFrame) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]


def _source_text(context: Context) -> str:
    source = context.source
    if source.topics is not None:
        schema = f", schema {source.schema}" if source.schema else ""
        return f"topics {', '.join(source.topics)} of {context.servers}{schema}, group {context.group}"
    return f"table {source.table}" if source.table is not None else f"files {source.files}"


def _step_text(step: Any) -> str:
    if isinstance(step, Validate):
        rules = [f"schema: {step.schema}", *[f"{e.name}: {e.on_fail}" for e in step.expect if isinstance(e, Expectation)]]
        return ", ".join(rules)
    return _fields_text(step)


def _fields_text(section: Any) -> str:
    """The fields that were given, without those that may be secret."""
    shown = []
    for name, each in section.__dataclass_fields__.items():
        value = getattr(section, name)
        if name in ("dsn", "salt", "catalog", "options", "path", "name", "table") or not value or value == each.default:
            continue
        shown.append(f"{name}: {', '.join(map(str, value)) if isinstance(value, tuple) else value}")
    return "; ".join(shown)


def plan_lines(context: Context, stages: list[Stage]) -> list[str]:
    """The graph for people."""
    lines = [context.pipeline.name]
    for index, stage in enumerate(stages):
        is_sink = stage.name.startswith("sink ")
        last = index == len(stages) - 1
        lines.append(f"{'└─' if last else '├─'} {stage.name}{': ' if stage.about else ''}{' '.join(stage.about.split())}")
        bar = "   " if last else "│  "
        if stage.letters_to:
            lines.append(f"{bar} ✗ dead letters: {', '.join(stage.letters_to)}")
        if not is_sink:
            lines += [f"{bar}   {name} {kind}" for name, kind in stage.columns]
    return lines
