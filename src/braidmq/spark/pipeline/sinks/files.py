"""Executors write Parquet files; the driver learns of them and decides what they are worth.

A task writes one file for each partition of the table that its rows belong to, under a name that nobody else uses. A task that is
tried twice leaves a file that no list has, and so nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from pyspark.sql import DataFrame

_SCHEMA: Final = "path string, size bigint, rows bigint, partition_values array<string>"
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_OPEN_MAX: Final = 64
"""Files that a task writes at once; past it the one that was opened first is closed."""


@dataclass(frozen=True, slots=True)
class DataFile:
    path: str
    """Below the table's folder."""
    size: int
    rows: int
    values: dict[str, str | None]


def write_files(frame: DataFrame, folder: str, partition_by: Sequence[str], prefix: str) -> list[DataFile]:
    """Write the rows below `folder`, as files whose names begin with `prefix`."""
    names = list(partition_by)

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        task = _Task(folder, names, prefix)
        for batch in batches:
            task.add(pa.Table.from_batches([batch]))
        files = task.close()
        yield pa.RecordBatch.from_pydict(
            {
                "path": pa.array([each[0] for each in files], pa.string()),
                "size": pa.array([each[1] for each in files], pa.int64()),
                "rows": pa.array([each[2] for each in files], pa.int64()),
                "partition_values": pa.array([each[3] for each in files], pa.list_(pa.string())),
            }
        )

    found = frame.mapInArrow(write, _SCHEMA).collect()
    return [
        DataFile(row["path"], row["size"], row["rows"], dict(zip(names, row["partition_values"], strict=True))) for row in found
    ]


def file_system(folder: str) -> tuple[Any, str]:
    """The file system of a folder, and the folder's name there."""
    from pyarrow import fs

    if "://" in folder:
        found, root = fs.FileSystem.from_uri(folder)
        return found, root
    return fs.LocalFileSystem(), folder


class _Task:
    """The files of one task."""

    def __init__(self, folder: str, names: list[str], prefix: str) -> None:
        self._system, self._root = file_system(folder)
        self._names = names
        self._prefix = prefix
        self._open: dict[tuple[str | None, ...], tuple[Any, str, list[int]]] = {}
        self._done: list[tuple[str, int, int, list[str | None]]] = []

    def add(self, table: Any) -> None:
        import pyarrow.compute as pc

        if not table.num_rows:
            return
        if not self._names:
            self._write((), table)
            return
        texts = [table.column(name).cast("string") for name in self._names]
        body = table.drop_columns(self._names)
        for values in dict.fromkeys(zip(*(text.to_pylist() for text in texts), strict=True)):
            chosen = None
            for text, value in zip(texts, values, strict=True):
                here = pc.is_null(text) if value is None else pc.fill_null(pc.equal(text, value), False)
                chosen = here if chosen is None else pc.and_(chosen, here)
            self._write(values, body.filter(chosen))

    def _write(self, values: tuple[str | None, ...], table: Any) -> None:
        from pyarrow import parquet

        if values not in self._open:
            if len(self._open) >= _OPEN_MAX:
                self._close(next(iter(self._open)))
            folder = "/".join(
                f"{name}={_NULL if value is None else quote(value, safe=' ')}"
                for name, value in zip(self._names, values, strict=True)
            )
            name = f"{folder}/{self._prefix}-{uuid4()}.parquet" if folder else f"{self._prefix}-{uuid4()}.parquet"
            self._system.create_dir(f"{self._root}/{folder}".rstrip("/"), recursive=True)
            writer = parquet.ParquetWriter(f"{self._root}/{name}", table.schema, filesystem=self._system, compression="snappy")
            self._open[values] = (writer, name, [0])
        writer, _, count = self._open[values]
        writer.write_table(table)
        count[0] += table.num_rows

    def _close(self, values: tuple[str | None, ...]) -> None:
        writer, name, count = self._open.pop(values)
        writer.close()
        size = self._system.get_file_info(f"{self._root}/{name}").size
        self._done.append((name, size, count[0], list(values)))

    def close(self) -> list[tuple[str, int, int, list[str | None]]]:
        for values in list(self._open):
            self._close(values)
        return self._done
