"""Iceberg tables by their snapshots, through pyiceberg.

A version is the id of a snapshot. Files are read by the ids of columns, so a column that was renamed since is found under its new
name in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from braidmq.base.errors import BraidError
from braidmq.spark.tables.following import NOTHING, TableFile
from braidmq.spark.tables.shaping import shaped


class IcebergLog:
    def __init__(self, name: str, catalog: Mapping[str, str]) -> None:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError

        self.name = name
        self._catalog = dict(catalog)
        try:
            self._table: Any = load_catalog("braid", **catalog).load_table(name)
        except NoSuchTableError:
            raise BraidError("INVALID_ARGUMENT", reason=f"there is no Iceberg table {name}") from None

    def schema(self) -> pa.Schema:
        return self._table.schema().as_arrow()

    def reader(self) -> IcebergReader:
        return IcebergReader(self._table.metadata_location, self._table.schema().model_dump_json(), self._catalog)

    def latest(self) -> int:
        current = self._table.current_snapshot()
        return NOTHING if current is None else int(current.snapshot_id)

    def snapshot(self, version: int) -> list[TableFile]:
        if version == NOTHING:
            return []
        if self._table.snapshot_by_id(version) is None:
            raise self._lost(version)
        tasks = list(self._table.scan(snapshot_id=version).plan_files())
        if any(task.delete_files for task in tasks):
            reason = f"the Iceberg table {self.name} has delete files, which cannot be read here"
            raise BraidError("INVALID_ARGUMENT", reason=reason)
        return _sorted(task.file for task in tasks)

    def following(self, version: int) -> list[int]:
        found: list[int] = []
        at = self._table.current_snapshot()
        while at is not None and at.snapshot_id != version:
            found.append(int(at.snapshot_id))
            if at.parent_snapshot_id is None:
                at = None
                break
            at = self._table.snapshot_by_id(at.parent_snapshot_id)
            if at is None:
                # Expired: what lies between is not known any more.
                raise self._lost(version)
        if at is None and version != NOTHING:
            raise self._lost(version)
        return found[::-1]

    def _lost(self, version: int) -> BraidError:
        reason = f"snapshot {version}, which was read, is not among those that lead to the current one: expired, or rolled back"
        return BraidError("TABLE_NOT_FOLLOWED", table=self.name, reason=reason)

    def added(self, version: int) -> list[TableFile] | None:
        from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
        from pyiceberg.table.snapshots import Operation

        snapshot = self._table.snapshot_by_id(version)
        if snapshot is None:
            raise self._lost(version)
        operation = snapshot.summary.operation if snapshot.summary is not None else None
        if operation == Operation.REPLACE:
            return []
        if operation != Operation.APPEND:
            return None
        io, files = self._table.io, []
        for manifest in snapshot.manifests(io):
            if manifest.added_snapshot_id != version:
                continue
            if manifest.content != ManifestContent.DATA:
                return None
            files += [
                entry.data_file
                for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
                if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == version
            ]
        return _sorted(files)


def _sorted(files: Any) -> list[TableFile]:
    found = [TableFile(each.file_path, int(each.record_count), each) for each in files]
    return sorted(found, key=lambda each: each.path)


@dataclass(frozen=True)
class IcebergReader:
    metadata: str
    """Where the table's metadata lies: one file, which never changes."""
    columns: str
    """The columns of the table, as Iceberg knows them."""
    catalog: Mapping[str, str]

    def read(self, files: Sequence[TableFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan
        from pyiceberg.schema import Schema
        from pyiceberg.table import FileScanTask, StaticTable

        table = StaticTable.from_metadata(self.metadata, dict(self.catalog))
        wanted = Schema.model_validate_json(self.columns)
        scan = ArrowScan(table.metadata, table.io, wanted, AlwaysTrue())
        for each in files:
            for batch in scan.to_record_batches([FileScanTask(each.detail)]):
                yield shaped(batch, schema, {}, each.path, complete=True)
