"""A Delta table, without a jar: executors write Parquet, the driver commits.

One commit of the table's log holds the files of a batch and the mark (writer, number) that it was written: Delta calls it an
application transaction. The mark is looked at before anything is written, because delta-rs records it and does not compare. A
crash before the commit leaves files that the log does not name; after it, the batch is passed over when it comes again.

With a `key` a batch is merged instead: a row replaces the one with the same key, or removes it where `delete_when` says so. In a
replay it does not where the row that is there comes from a later record. That, and replacing what was made of a range of records,
happens on the driver, with the batch in memory.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from braidmq.base.errors import BraidError
from braidmq.spark.pipeline.definition import TableSink
from braidmq.spark.pipeline.ordering import Order
from braidmq.spark.pipeline.sinks.files import write_files
from braidmq.spark.pipeline.sinks.latest import latest_per_key, refused_without
from braidmq.spark.pipeline.sinks.sink import Batch, Replacing, to_arrow, with_partitions, writer_name

_DELETED: Final = "__deleted"

logger = logging.getLogger("braidmq.pipeline")


class DeltaSink:
    def __init__(self, definition: TableSink, path: str, order: Order | None = None) -> None:
        self._definition = definition
        self._order = order
        self._path = path
        self.label = f"table:{definition.path}"

    def write(self, frame: DataFrame, batch: Batch) -> int | None:
        writer = writer_name(batch, self.label)
        if self._has(writer, batch.number):
            return None
        frame = with_partitions(frame, self._definition.partition_by, self.label)
        if self._order is not None:
            return self._merge(frame, self._order, writer, batch.number)
        table = self._table(frame)
        files = write_files(frame, self._path, self._definition.partition_by, f"part-{batch.number:010d}")
        self._commit(table, files, writer, batch.number)
        every = self._definition.compact_every
        if every is not None and batch.number % every == every - 1:
            self._compact()
        return sum(each.rows for each in files)

    def _has(self, writer: str, number: int) -> bool:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self._path):
            return False
        done = DeltaTable(self._path).transaction_version(writer)
        return done is not None and done >= number

    def _table(self, frame: DataFrame) -> Any:
        """The table, made where it is missing, with the columns that the rows have."""
        from deltalake import DeltaTable, Schema

        wanted = Schema.from_arrow(_arrow_schema(frame))
        if not DeltaTable.is_deltatable(self._path):
            DeltaTable.create(self._path, schema=wanted, mode="ignore", partition_by=list(self._definition.partition_by) or None)
        table = DeltaTable(self._path)
        have = {field.name: field.type for field in table.schema().fields}
        come = {field.name: field.type for field in wanted.fields}
        if have != come:
            strange = [f"{name} {_type(kind)}" for name, kind in come.items() if have.get(name) != kind]
            missing = [name for name in have if name not in come]
            told = [f"its rows have {', '.join(strange)}, which the table has not"] if strange else []
            told += [f"the table has {', '.join(missing)}, which its rows have not"] if missing else []
            raise BraidError("INVALID_ARGUMENT", reason=f"{self.label}: {'; '.join(told)}")
        if list(table.metadata().partition_columns) != list(self._definition.partition_by):
            was = ", ".join(table.metadata().partition_columns) or "nothing"
            raise BraidError("INVALID_ARGUMENT", reason=f"{self.label}: the table is divided by {was}, and that cannot be changed")
        return table

    def _properties(self, writer: str, number: int) -> Any:
        from deltalake import CommitProperties, Transaction

        return CommitProperties(app_transactions=[Transaction(writer, number)])

    def _commit(self, table: Any, files: Sequence[Any], writer: str, number: int) -> None:
        from deltalake.transaction import AddAction

        now_ms = time.time_ns() // 1_000_000
        actions = [
            AddAction(each.path, each.size, each.values, now_ms, True, json.dumps({"numRecords": each.rows})) for each in files
        ]
        if actions:
            table.create_write_transaction(
                actions, "append", table.schema(), list(self._definition.partition_by) or None,
                commit_properties=self._properties(writer, number),
            )  # fmt: skip

    def _merge(self, frame: DataFrame, order: Order, writer: str, number: int, again: bool = False) -> int:
        """Replace rows by their key; `again` leaves those alone that are later than what comes."""
        latest = latest_per_key(frame, order, self.label)
        delete_when = self._definition.delete_when
        if delete_when is not None:
            latest = latest.withColumn(_DELETED, F.expr(f"coalesce(({delete_when}), false)"))
        rows = to_arrow(latest)
        table = self._table(frame)
        if rows.num_rows:
            same = " AND ".join(f't."{name}" = s."{name}"' for name in order.keys)
            merging = table.merge(
                rows, same, source_alias="s", target_alias="t", commit_properties=self._properties(writer, number)
            )
            if delete_when is None:
                later = order.later(frame.columns, 't."{}"'.format, 's."{}"'.format) if again else ""
                newer = f"NOT coalesce({later}, false)" if later else None
                merging = merging.when_matched_update_all(newer).when_not_matched_insert_all()
            else:
                gone, stays = f's."{_DELETED}"', f'NOT s."{_DELETED}"'
                merging = merging.when_matched_delete(gone).when_matched_update_all(stays, except_cols=[_DELETED])
                merging = merging.when_not_matched_insert_all(stays, except_cols=[_DELETED])
            merging.execute()
        return int(rows.num_rows)

    def replace(self, frame: DataFrame, batch: Batch, replacing: Replacing) -> int | None:
        from deltalake import write_deltalake

        frame = with_partitions(frame, self._definition.partition_by, self.label)
        writer = writer_name(batch, self.label)
        if self._order is not None:
            return self._merge(frame, self._order, writer, batch.number, again=True)
        table = self._table(frame)
        rows = to_arrow(frame)
        write_deltalake(
            table, rows, mode="overwrite", predicate=replacing.condition(), commit_properties=self._properties(writer, batch.number)
        )
        return int(rows.num_rows)

    def refuses(self, columns: Sequence[str]) -> str:
        if self._definition.delete_when is not None:
            return f"{self.label} has `delete_when`: the table does not say which keys were deleted, so they could come back"
        return refused_without(columns, self._order, self.label)

    def _compact(self) -> None:
        """Join small files. Whether it works out changes nothing that anybody reads, so the batch stands either way."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            DeltaTable(self._path).optimize.compact()
        except DeltaError as fault:
            logger.warning("%s was not compacted: %s", self.label, fault)


def _arrow_schema(frame: DataFrame) -> Any:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(frame.schema, timezone="UTC")


def _type(kind: Any) -> str:
    return str(getattr(kind, "type", kind))
