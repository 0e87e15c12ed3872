"""An Iceberg table through pyiceberg: rows of a batch and the mark that it was written, a property of the table, are one commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from braidmq.base.errors import BraidError
from braidmq.spark.pipeline.definition import TableSink
from braidmq.spark.pipeline.ordering import Order
from braidmq.spark.pipeline.sinks.latest import latest_per_key, refused_without
from braidmq.spark.pipeline.sinks.sink import Batch, Replacing, to_arrow, with_partitions, writer_name


class IcebergSink:
    def __init__(self, definition: TableSink, order: Order | None = None) -> None:
        self._definition = definition
        self._order = order
        self.label = f"table:{definition.path}"

    def _table(self, rows: Any) -> Any:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError

        catalog = load_catalog("braid", **self._definition.catalog)
        name = self._definition.path
        namespace = name.rpartition(".")[0]
        if not namespace:
            raise BraidError("INVALID_ARGUMENT", reason=f"{self.label}: the name needs a namespace, as `lake.{name}`")
        try:
            return catalog.load_table(name)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(namespace)
            table = catalog.create_table_if_not_exists(name, schema=rows.schema)
            if self._definition.partition_by:
                with table.update_spec() as spec:
                    for column in self._definition.partition_by:
                        spec.add_identity(column)
            return table

    def write(self, frame: DataFrame, batch: Batch) -> int | None:
        rows, mark = self._rows(frame, batch)
        table = self._table(rows)
        if int(table.properties.get(mark, -1)) >= batch.number:
            return None
        if self._order is not None:
            return self._upsert(table, rows, self._order, mark, batch.number)
        with table.transaction() as transaction:
            if rows.num_rows:
                transaction.append(rows)
            transaction.set_properties({mark: str(batch.number)})
        return int(rows.num_rows)

    def _rows(self, frame: DataFrame, batch: Batch) -> tuple[Any, str]:
        frame = with_partitions(frame, self._definition.partition_by, self.label)
        if self._order is not None:
            frame = latest_per_key(frame, self._order, self.label)
        return to_arrow(frame), f"braid.{writer_name(batch, self.label)}"

    def _upsert(self, table: Any, rows: Any, order: Order, mark: str, number: int) -> int:
        with table.transaction() as transaction:
            if rows.num_rows:
                transaction.upsert(rows, join_cols=list(order.keys))
            transaction.set_properties({mark: str(number)})
        return int(rows.num_rows)

    def replace(self, frame: DataFrame, batch: Batch, replacing: Replacing) -> int | None:
        rows, mark = self._rows(frame, batch)
        table = self._table(rows)
        if self._order is not None:
            return self._upsert(table, _without_older(table, rows, self._order), self._order, mark, batch.number)
        with table.transaction() as transaction:
            transaction.overwrite(rows, overwrite_filter=replacing.condition(""))
            transaction.set_properties({mark: str(batch.number)})
        return int(rows.num_rows)

    def refuses(self, columns: Sequence[str]) -> str:
        return refused_without(columns, self._order, self.label)


def _without_older(table: Any, rows: Any, order: Order) -> Any:
    """Rows without those whose key has a row of a later record in the table."""
    from pyiceberg.table.upsert_util import create_match_filter

    if not rows.num_rows:
        return rows
    keys, deciding = list(order.keys), order.columns(rows.column_names)
    found = table.scan(row_filter=create_match_filter(rows, keys), selected_fields=(*keys, *deciding)).to_arrow().to_pylist()
    there = {tuple(row[name] for name in keys): {name: row[name] for name in deciding} for row in found}
    kept = []
    for row in rows.select([*dict.fromkeys((*keys, *deciding))]).to_pylist():
        before = there.get(tuple(row[name] for name in keys))
        kept.append(before is None or not order.is_later(before, row))
    return rows.filter(kept)
