"""Parquet files as the columns that a stream has: by name, in its types, with what the file itself does not hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from braidmq.base.errors import BraidError
from braidmq.spark.pipeline.sinks.files import file_system

_ROWS: Final = 65_536


def read_parquet(path: str, schema: pa.Schema, values: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """All rows of a file. `values` are columns that the table is divided by: they stand in its log, not in its files."""
    from pyarrow import parquet

    system, name = file_system(path)
    with system.open_input_file(name) as file, parquet.ParquetFile(file) as opened:
        here = [column for column in schema.names if column in opened.schema_arrow.names and column not in values]
        for batch in opened.iter_batches(_ROWS, columns=here):
            yield shaped(batch, schema, values, path)


def shaped(
    batch: pa.RecordBatch, schema: pa.Schema, values: Mapping[str, Any], what: str, *, complete: bool = False
) -> pa.RecordBatch:
    """A batch with exactly these columns. One that is missing, because it came later than the file, is null, unless the batch
    claims to be `complete`: then it was renamed or removed under the stream."""
    columns = []
    for field in schema:
        try:
            if field.name in values:
                columns.append(_repeated(values[field.name], field.type, batch.num_rows))
            elif field.name in batch.schema.names:
                column = batch.column(field.name)
                columns.append(column if column.type == field.type else column.cast(field.type))
            elif complete:
                reason = f"the column {field.name} was renamed or removed since the run began; start it again"
                raise BraidError("TABLE_NOT_FOLLOWED", table=what, reason=reason)
            else:
                columns.append(pa.nulls(batch.num_rows, field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as fault:
            raise BraidError("TABLE_NOT_FOLLOWED", table=what, reason=f"the column {field.name} does not fit: {fault}") from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _repeated(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    """One value of a column that the table is divided by; the log has it as text, in UTC where it is a time."""
    if value is None or value == "":
        return pa.nulls(rows, kind)
    if isinstance(value, str) and pa.types.is_timestamp(kind):
        plain = pa.scalar(value.rstrip("Z").replace("T", " ")).cast(pa.timestamp("us"))
        return pa.repeat(pa.scalar(plain.value, pa.int64()), rows).cast(kind)
    if isinstance(value, str) and pa.types.is_binary(kind):
        return pa.repeat(pa.scalar(value.encode(), kind), rows)
    made = pa.scalar(value).cast(kind) if isinstance(value, str) else pa.scalar(value, kind)
    return pa.repeat(made, rows)
