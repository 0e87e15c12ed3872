"""Delta tables by their log: delta-rs says what a version consists of, and the log's own files say what each commit added.

Refused, because rows would be wrong: deletion vectors and column mapping, which delta-rs does not resolve for single files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from braidmq.base.errors import BraidError
from braidmq.spark.pipeline.sinks.files import file_system
from braidmq.spark.tables.following import NOTHING, TableFile
from braidmq.spark.tables.shaping import read_parquet

_FEATURES = ("deletionVectors", "columnMapping")


def open_delta(path: str, version: int | None = None) -> Any:
    """The table at a path, where it can be read here."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        table = DeltaTable(path, version=version)
    except TableNotFoundError:
        raise BraidError("INVALID_ARGUMENT", reason=f"there is no Delta table at {path}") from None
    mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    used = [each for each in table.protocol().reader_features or [] if each in _FEATURES[:1]]
    if mapping != "none":
        used.append(_FEATURES[1])
    if used:
        raise BraidError("INVALID_ARGUMENT", reason=f"the Delta table at {path} uses {', '.join(used)}, which cannot be read here")
    return table


class DeltaLog:
    def __init__(self, path: str) -> None:
        self.name = path
        self._table = open_delta(path)

    def schema(self) -> pa.Schema:
        return pa.schema(self._table.schema().to_arrow())

    def reader(self) -> DeltaReader:
        return DeltaReader(self.name)

    def latest(self) -> int:
        return int(self._table.version())

    def snapshot(self, version: int) -> list[TableFile]:
        if version == NOTHING:
            return []
        table = self._table if version == self.latest() else self._at(version)
        rows = pa.table(table.get_add_actions(flatten=False)).to_pylist()
        return sorted(
            (TableFile(row["path"], row.get("num_records"), row.get("partition") or {}) for row in rows), key=lambda each: each.path
        )

    def _at(self, version: int) -> Any:
        from deltalake.exceptions import DeltaError

        try:
            return open_delta(self.name, version)
        except DeltaError as fault:
            reason = f"version {version} cannot be read any more: {fault}"
            raise BraidError("TABLE_NOT_FOLLOWED", table=self.name, reason=reason) from None

    def following(self, version: int) -> list[int]:
        latest = self.latest()
        if version > latest:
            reason = f"it is in version {latest}, and version {version} was read: it is not the same table"
            raise BraidError("TABLE_NOT_FOLLOWED", table=self.name, reason=reason)
        return list(range(version + 1, latest + 1))

    def added(self, version: int) -> list[TableFile] | None:
        found: list[TableFile] = []
        for action in self._actions(version):
            removed, add = action.get("remove"), action.get("add")
            if removed is not None and removed.get("dataChange", True):
                return None
            if add is not None and add.get("dataChange", True):
                if add.get("deletionVector"):
                    raise BraidError("INVALID_ARGUMENT", reason=f"the Delta table at {self.name} uses {_FEATURES[0]}")
                stats = json.loads(add.get("stats") or "{}")
                found.append(TableFile(add["path"], stats.get("numRecords"), add.get("partitionValues") or {}))
        return sorted(found, key=lambda each: each.path)

    def _actions(self, version: int) -> Iterator[dict[str, Any]]:
        system, root = file_system(self.name)
        try:
            with system.open_input_stream(f"{root}/_delta_log/{version:020d}.json") as stream:
                text = stream.read()
        except FileNotFoundError:
            reason = f"its log no longer holds version {version}: the stream was away for longer than the log is kept"
            raise BraidError("TABLE_NOT_FOLLOWED", table=self.name, reason=reason) from None
        for line in text.splitlines():
            if line.strip():
                yield json.loads(line)


@dataclass(frozen=True)
class DeltaReader:
    path: str

    def read(self, files: Sequence[TableFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for each in files:
            name = unquote(each.path)
            place = name if "://" in name or name.startswith("/") else f"{self.path}/{name}"
            yield from read_parquet(place, schema, each.detail)
