"""From a definition to Spark: which part is the stream, and what happens to each of its batches.

Steps that remember rows (deduplicate, window, a join of streams) have to be part of the stream itself. Everything after the last
of them happens to each batch, where rows are computed once for all sinks and dead letters. Rows that a step inside the stream takes
out travel along, beside those that go on: each row of the stream is either one that goes on (`row`) or one on its way to become a
letter (`letter`), and the batch parts them again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from braidmq.base.errors import BraidError
from braidmq.spark.pipeline.context import Context
from braidmq.spark.pipeline.letters import LETTER
from braidmq.spark.pipeline.sections import Section
from braidmq.spark.pipeline.steps import Staged, apply_step, is_stateful, step_name

_OURS: Final = "braidmq.base.errors.BraidError: "


@dataclass(frozen=True, slots=True)
class Outcome:
    """Rows after all steps, and those that some step took out."""

    rows: DataFrame
    letters: list[DataFrame]
    fatal: list[tuple[str, DataFrame]]
    """Rows that must not be there, by the step that says so."""
    trail: list[tuple[str, DataFrame]]
    """The rows before each step, for the diagnosis of one that fails."""


def split_at(steps: Any) -> int:
    """How many of the steps belong to the stream."""
    return max((index + 1 for index, step in enumerate(steps) if is_stateful(step)), default=0)


def apply_steps(frame: DataFrame, steps: list[tuple[int, Section]], context: Context) -> Outcome:
    outcome = Outcome(frame, [], [], [])
    rows = frame
    for index, step in steps:
        outcome.trail.append((step_name(index, step), rows))
        staged = attributed(context, step_name(index, step), partial(_applied, rows, step, index, context))
        rows = staged.rows
        if staged.letters is not None:
            outcome.letters.append(staged.letters)
        if staged.fatal is not None:
            outcome.fatal.append((step_name(index, step), staged.fatal))
    return Outcome(rows, outcome.letters, outcome.fatal, outcome.trail)


def _applied(rows: DataFrame, step: Section, index: int, context: Context) -> Staged:
    staged = apply_step(rows, step, index, context)
    # Connect looks at a plan only when somebody asks for it: a mistake is found here, where it can be named.
    staged.rows.schema  # noqa: B018
    return staged


def attributed(context: Context, step: str, work: Callable[[], Any]) -> Any:
    """Run something for a step; what goes wrong names it."""
    try:
        return work()
    except BraidError as fault:
        if fault.code in ("PIPELINE_FAILED", "PIPELINE_RUN_ENDED"):
            raise
        raise BraidError("PIPELINE_FAILED", pipeline=context.pipeline.name, step=step, reason=fault.text) from fault
    except PySparkException as fault:
        raise BraidError("PIPELINE_FAILED", pipeline=context.pipeline.name, step=step, reason=first_lines(str(fault))) from fault
    except Exception as fault:  # what a step or a sink of somebody else may raise; it is named and goes on up
        reason = f"{type(fault).__name__}: {first_lines(str(fault))}"
        raise BraidError("PIPELINE_FAILED", pipeline=context.pipeline.name, step=step, reason=reason) from fault


def first_lines(text: str, most: int = 1000) -> str:
    """What a long error begins with, without the plans and stacks that Spark adds; where it holds an error of ours, that."""
    _, ours, said = text.partition(_OURS)
    if ours:
        return said.strip().splitlines()[0].strip()[:most]
    kept: list[str] = []
    for line in text.strip().splitlines():
        if line.startswith(("\tat ", "'", "+-", "JVM stacktrace", "Driver stacktrace", "== SQL")) or len(kept) >= 8:
            break
        kept.append(line.strip())
    return " ".join(kept)[:most]


# --- rows and letters in one stream


def stream_of(source: DataFrame, context: Context) -> tuple[DataFrame, int]:
    """The stream of a pipeline, and how many kinds of letters travel in it: for each of them Spark reads the source once more."""
    steps = list(enumerate(context.pipeline.steps))[: split_at(context.pipeline.steps)]
    outcome = apply_steps(source, steps, context)
    if outcome.fatal:
        step = outcome.fatal[0][0]
        reason = "`fail` cannot stand before a step that remembers rows; use `dead-letter`, or put it behind that step"
        raise BraidError("PIPELINE_FAILED", pipeline=context.pipeline.name, step=step, reason=reason)
    if not outcome.letters:
        return outcome.rows, 0
    rows = outcome.rows.select(F.struct("*").alias("row"), F.lit(None).cast(f"struct<{_as_fields(LETTER)}>").alias("letter"))
    kind = outcome.rows.schema
    for letters in outcome.letters:
        rows = rows.unionByName(letters.select(F.lit(None).cast(kind).alias("row"), F.struct("*").alias("letter")))
    return rows, len(outcome.letters)


def _as_fields(declared: str) -> str:
    """`a int, b string` as the fields of a struct."""
    return ",".join(":".join(field.split(" ", 1)) for field in declared.split(", "))


def part(batch: DataFrame) -> tuple[DataFrame, DataFrame]:
    """What travels together in a batch of the stream: rows, and letters."""
    return batch.where("row IS NOT NULL").select("row.*"), batch.where("letter IS NOT NULL").select("letter.*")
