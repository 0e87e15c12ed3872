"""Columns of a DataFrame by name, with the errors that people need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql import DataFrame

from braidmq.base.errors import BraidError
from braidmq.spark.pipeline.kinds import Millis, did_you_mean

RECORD: Final = ("topic", "partition", "offset", "key", "value")
"""What a row has to have kept of its record to become a dead letter."""


def require_columns(frame: DataFrame, names: Iterable[str], what: str) -> None:
    """Raise unless the columns are there; `what` says who wants them."""
    have = frame.columns
    for name in names:
        root = name.split(".")[0]
        if root not in have:
            known = f"; there are {', '.join(have)}"
            raise BraidError("INVALID_ARGUMENT", reason=f"{what}: there is no column `{name}`{did_you_mean(root, have)}{known}")


def quoted(name: str) -> str:
    """A column's name in SQL, `a.b` as a field of a struct."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in name.split("."))


def interval(length: Any) -> str:
    """A length of time as Spark writes it."""
    assert isinstance(length, Millis)
    return f"{int(length)} milliseconds"
