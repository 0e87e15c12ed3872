"""Which step fails, and on which row.

Spark computes nothing until a sink asks, so an error in the data comes from the sink. To find the step, each one is computed
alone, in order, over the rows of the batch; to find the row, those that go into it are halved until one is left. It runs only
after something has failed, and looks at a bounded number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from braidmq.base.errors import BraidError
from braidmq.spark.pipeline.compiling import Outcome, first_lines
from braidmq.spark.pipeline.context import Context
from braidmq.spark.pipeline.steps import apply_step, step_name

_ROWS_MAX: Final = 4096
_SHOWN_CHARACTERS: Final = 500


def diagnose(outcome: Outcome, context: Context) -> None:
    """Raise PIPELINE_FAILED with step and row when a step cannot be computed; return when all of them can."""
    frames = [*[frame for _, frame in outcome.trail[1:]], outcome.rows]
    for (step, before), after in zip(outcome.trail, frames, strict=True):
        fault = _fault(after)
        if fault is not None:
            row = _row(before, step, context)
            sample = f"; row: {row}" if row else ""
            raise BraidError(
                "PIPELINE_FAILED", pipeline=context.pipeline.name, step=step, reason=f"{first_lines(str(fault))}{sample}"
            ) from fault


def _fault(frame: DataFrame) -> Exception | None:
    try:
        frame.write.format("noop").mode("overwrite").save()
    except PySparkException as fault:
        return fault
    return None


def _row(before: DataFrame, step: str, context: Context) -> str:
    """The row that the step fails on, as JSON; empty when it fails on none alone."""
    index, definition = next(
        (index, each) for index, each in enumerate(context.pipeline.steps) if step_name(index, each) == step
    )  # fmt: skip
    schema = before.schema
    rows: Sequence[Any] = before.limit(_ROWS_MAX).collect()

    def fails(some: Sequence[Any]) -> bool:
        frame = before.sparkSession.createDataFrame(list(some), schema)
        return _fault(apply_step(frame, definition, index, context).rows) is not None

    if not rows or not fails(rows):
        return ""
    while len(rows) > 1:
        half = rows[: len(rows) // 2]
        rows = half if fails(half) else rows[len(rows) // 2 :]
    return str(rows[0].asDict(recursive=True))[:_SHOWN_CHARACTERS]
