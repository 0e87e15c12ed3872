"""One row a key: the latest, by the order of the rows (`ordering.py`).

What cannot be decided fails when the rows are computed: two different rows of a key that are equal in all that orders them, and a
row without a value there.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from braidmq.base.errors import BraidError
from braidmq.spark.pipeline.frames import quoted, require_columns
from braidmq.spark.pipeline.ordering import Order


def latest_per_key(frame: DataFrame, order: Order, label: str) -> DataFrame:
    """One row a key, the latest; raises where rows with these columns have no order."""
    require_columns(frame, order.keys, label)
    order.require(frame.columns, label)
    columns = frame.columns
    keys = [_column(name) if name in columns else F.col(quoted(name)) for name in order.keys]
    for name in order.columns(columns):
        if isinstance(frame.schema[name].dataType, T.StructType | T.ArrayType | T.MapType):
            raise BraidError("INVALID_ARGUMENT", reason=f"{label}: `{name}` holds more than one value, so it cannot order rows")
        told = f"{label}: {name}, which orders rows, is missing in the row with the key"
        frame = frame.where(_or_fail(_column(name).isNotNull(), keys, told))
    for within, highest in order.stages(columns):
        window = Window.partitionBy(*keys, *map(_column, within)).orderBy(*[_column(name).desc() for name in highest])
        frame = frame.withColumn("__rank", F.rank().over(window)).where("__rank = 1").drop("__rank")
    # Rows are compared as text, which costs something: only where there are several.
    alike = Window.partitionBy(*keys)
    several = F.count(F.lit(1)).over(alike) > 1
    ordered = alike.orderBy("__row")
    alone = (
        frame.withColumn("__several", several)
        .withColumn("__row", F.when(F.col("__several"), F.to_json(F.struct(*map(_column, columns)))))
        .withColumn("__number", F.row_number().over(ordered))
        .withColumn("__last", F.last("__row").over(ordered.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)))
        .where("__number = 1")
    )
    told = f"{label}: nothing says which of two different rows is the later one (see `order_by`), with the key"
    return alone.where(_or_fail(F.col("__row").eqNullSafe(F.col("__last")), keys, told)).select(*map(_column, columns))


def _or_fail(fits: Column, keys: Sequence[Column], text: str) -> Column:
    key = F.to_json(F.struct(*keys))
    return F.when(fits, F.lit(True)).otherwise(F.raise_error(F.concat(F.lit(f"{text} "), key)).cast("boolean"))


def _column(name: str) -> Column:
    """A column by the whole of its name, whatever characters that has."""
    return F.col(f"`{name.replace('`', '``')}`")


def refused_without(columns: Sequence[str], order: Order | None, label: str) -> str:
    """Why a replay cannot replace rows with these columns in a table that can change; empty when it can."""
    from braidmq.spark.pipeline.sinks.sink import ORIGIN

    if order is not None:
        return order.refuses(columns, label)
    if all(name in columns for name in ORIGIN):
        return ""
    return f"{label} has no `key`, and its rows do not have {', '.join(ORIGIN)}: what was made of a record before cannot be found"
