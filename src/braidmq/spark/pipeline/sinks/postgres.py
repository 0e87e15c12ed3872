"""A table of PostgreSQL: the rows of a batch and the mark that it was written, a row of `braid_batches`, are one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from braidmq.spark.pipeline.definition import PostgresSink as Definition
from braidmq.spark.pipeline.ordering import Order
from braidmq.spark.pipeline.sinks.latest import latest_per_key, refused_without
from braidmq.spark.pipeline.sinks.sink import Batch, Replacing, writer_name

_TYPES: Final[dict[type[T.DataType], str]] = {
    T.StringType: "text", T.BinaryType: "bytea", T.BooleanType: "boolean", T.ByteType: "smallint", T.ShortType: "smallint",
    T.IntegerType: "integer", T.LongType: "bigint", T.FloatType: "real", T.DoubleType: "double precision", T.DateType: "date",
    T.TimestampType: "timestamptz", T.TimestampNTZType: "timestamp",
}  # fmt: skip
_BATCHES: Final = "CREATE TABLE IF NOT EXISTS braid_batches (writer text PRIMARY KEY, batch bigint NOT NULL)"
_SETUP_LOCK: Final = 0x62726169
"""Two that make the same table at once would both fail."""


class PostgresSink:
    def __init__(self, definition: Definition, order: Order | None = None) -> None:
        self._definition = definition
        self._order = order
        self.label = f"postgres:{definition.table}"

    def write(self, frame: DataFrame, batch: Batch) -> int | None:
        return self._write(frame, batch, None)

    def replace(self, frame: DataFrame, batch: Batch, replacing: Replacing) -> int | None:
        return self._write(frame, batch, replacing)

    def refuses(self, columns: Sequence[str]) -> str:
        return refused_without(columns, self._order, self.label)

    def _write(self, frame: DataFrame, batch: Batch, replacing: Replacing | None) -> int | None:
        import psycopg
        from psycopg import sql

        order = self._order
        keys = list(order.keys) if order is not None else []
        table = sql.Identifier(*self._definition.table.split("."))
        columns = sql.SQL(", ").join(map(sql.Identifier, frame.columns))
        writer = writer_name(batch, self.label)
        rows = latest_per_key(frame, order, self.label) if order is not None else frame
        with psycopg.connect(self._definition.dsn) as connection, connection.cursor() as cursor:
            self._set_up(cursor, frame, table, keys)
            cursor.execute("INSERT INTO braid_batches VALUES (%s, -1) ON CONFLICT DO NOTHING", (writer,))
            cursor.execute("SELECT batch FROM braid_batches WHERE writer = %s FOR UPDATE", (writer,))
            found = cursor.fetchone()
            assert found is not None
            if found[0] >= batch.number and replacing is None:
                return None
            if replacing is not None and not keys:
                cursor.execute(sql.SQL("DELETE FROM {} WHERE {}").format(table, sql.SQL(replacing.condition())))
            staged = sql.Identifier("braid_staged")
            copied: sql.Identifier = table
            if keys:
                form = "CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA"
                cursor.execute(sql.SQL(form).format(staged, columns, table))
                copied = staged
            count = 0
            with cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(copied, columns)) as copy:
                for row in _values(rows):
                    copy.write_row(row)
                    count += 1
            if order is not None:
                later = _later(order, frame) if replacing is not None else None
                cursor.execute(_upsert(table, staged, frame.columns, keys, later))
            cursor.execute("UPDATE braid_batches SET batch = greatest(batch, %s) WHERE writer = %s", (batch.number, writer))
            return count

    def _set_up(self, cursor: Any, frame: DataFrame, table: Any, keys: Sequence[str]) -> None:
        from psycopg import sql

        cursor.execute("SELECT to_regclass(%s), to_regclass('braid_batches')", (self._definition.table,))
        if None not in cursor.fetchone():
            return
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_SETUP_LOCK,))
        cursor.execute(_BATCHES)
        columns = [
            sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(_type(field.dataType))) for field in frame.schema.fields
        ]
        if keys:
            columns.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, keys))))
        cursor.execute(sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(table, sql.SQL(", ").join(columns)))


def _later(order: Order, frame: DataFrame) -> Any:
    """Whether the row that is there comes from a later record than the one that is to replace it."""
    from psycopg import sql

    def column(side: str, name: str) -> str:
        # Spark compares text by its bytes.
        collation = ' COLLATE "C"' if isinstance(frame.schema[name].dataType, T.StringType) else ""
        return sql.Identifier(side, name).as_string(None) + collation

    return sql.SQL(order.later(frame.columns, lambda name: column("there", name), lambda name: column("excluded", name)))


def _upsert(table: Any, staged: Any, columns: Sequence[str], keys: Sequence[str], later: Any) -> Any:
    """Rows in the place of those with their key, but for those of which `later` is true."""
    from psycopg import sql

    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    changed = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in columns if name not in keys]
    action = sql.SQL("UPDATE SET ") + sql.SQL(", ").join(changed) if changed else sql.SQL("NOTHING")
    if changed and later is not None:
        action += sql.SQL(" WHERE ({}) IS NOT TRUE").format(later)
    form = "INSERT INTO {} AS there ({}) SELECT {} FROM {} ON CONFLICT ({}) DO {}"
    return sql.SQL(form).format(table, names, names, staged, sql.SQL(", ").join(map(sql.Identifier, keys)), action)


def _type(kind: T.DataType) -> str:
    if isinstance(kind, T.DecimalType):
        return f"numeric({kind.precision}, {kind.scale})"
    return _TYPES.get(type(kind), "jsonb")


def _values(frame: DataFrame) -> Iterator[list[Any]]:
    """Rows as PostgreSQL takes them: structs, lists and maps as JSON, times with their zone."""
    fields = frame.schema.fields
    for row in frame.toLocalIterator():
        yield [_value(value, field.dataType) for value, field in zip(row, fields, strict=True)]


def _value(value: Any, kind: T.DataType) -> Any:
    if value is None:
        return None
    if isinstance(kind, T.StructType | T.ArrayType | T.MapType):
        return json.dumps(value.asDict(recursive=True) if isinstance(kind, T.StructType) else value, default=_plain)
    if isinstance(kind, T.TimestampType) and value.tzinfo is None:
        # Spark hands over the local time of this process.
        return value.astimezone(UTC)
    return bytes(value) if isinstance(kind, T.BinaryType) else value


def _plain(value: Any) -> Any:
    return value.asDict(recursive=True) if hasattr(value, "asDict") else str(value)
