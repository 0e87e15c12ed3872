"""Delta and Iceberg tables as sources: every added row once, and no change passed over in silence."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pipeline_lab import Lab

from braidmq.base.errors import BraidError
from braidmq.spark.tables.delta_log import DeltaLog
from braidmq.spark.tables.following import ALL, NOTHING, Place, TableLog, advance, beginning, between
from braidmq.spark.tables.iceberg_log import IcebergLog

SCHEMA = pa.schema([("n", pa.int64()), ("part", pa.string()), ("day", pa.date32())])


def rows(first: int, count: int) -> pa.Table:
    """Every third row lies in a part whose name has to be escaped, and one in no part at all."""
    numbers = list(range(first, first + count))
    parts = [None if n % 5 == 0 else ("a", "b c/%d", "ü")[n % 3] for n in numbers]
    return pa.table({"n": numbers, "part": parts, "day": pa.array([n % 2 for n in numbers], pa.date32())}, SCHEMA)


class DeltaLake:
    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "lake/rows")
        self.source: dict[str, Any] = {"table": self.path}

    def add(self, table: pa.Table) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.path, table, mode="append", partition_by=["part", "day"])

    def log(self) -> TableLog:
        return DeltaLog(self.path)

    def change(self) -> None:
        from deltalake import DeltaTable

        DeltaTable(self.path).delete("n = 0")


class IcebergLake:
    def __init__(self, folder: Path) -> None:
        (folder / "warehouse").mkdir()
        self.catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        self.source: dict[str, Any] = {"table": "lake.rows", "format": "iceberg", "catalog": self.catalog}

    @property
    def table(self) -> Any:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("braid", **self.catalog)
        catalog.create_namespace_if_not_exists("lake")
        return catalog.create_table_if_not_exists("lake.rows", SCHEMA)

    def add(self, table: pa.Table) -> None:
        self.table.append(table)

    def log(self) -> TableLog:
        return IcebergLog("lake.rows", self.catalog)

    def change(self) -> None:
        self.table.delete("n = 0")


@pytest.fixture(params=[DeltaLake, IcebergLake])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return request.param(tmp_path)


def numbers(log: TableLog, start: Place, end: Place, skip: bool = False) -> list[int]:
    found: list[int] = []
    for batch in log.reader().read(between(log, start, end, skip), SCHEMA):
        assert batch.schema == SCHEMA
        for row in batch.to_pylist():
            expected = rows(row["n"], 1).to_pylist()[0]
            assert row == expected, "columns that the table is divided by are right too"
            found.append(row["n"])
    return sorted(found)


def test_a_table_is_followed_file_by_file(lake: Any) -> None:
    lake.add(rows(0, 10))
    at = beginning(lake.log(), "earliest")
    assert at.files == 0 and at.whole
    lake.add(rows(10, 10))
    seen: list[int] = []
    steps = 0
    while True:
        # Every step begins anew, as after a restart, from what a checkpoint would hold.
        start = Place.of(at.as_offset())
        at = advance(lake.log(), start, 3, False)
        if at == start:
            break
        steps += 1
        seen += numbers(lake.log(), start, at)
    assert sorted(seen) == list(range(20)), "each row once"
    assert steps >= 2 and at == Place(lake.log().latest(), ALL, False)
    assert beginning(lake.log(), "latest") == at
    # A batch that is planned again after a crash has the same files, whatever came since.
    first = beginning(lake.log(), "earliest")
    end = advance(lake.log(), first, 7, False)
    before = between(lake.log(), first, end, False)
    lake.add(rows(20, 5))
    assert between(lake.log(), first, end, False) == before
    assert numbers(lake.log(), at, advance(lake.log(), at, None, False)) == list(range(20, 25))
    until = advance(lake.log(), first, None, False, until=first.version)
    assert numbers(lake.log(), first, until) == list(range(20)), "a run that takes what is there ends where it began to look"


def test_changes_are_never_passed_over_in_silence(lake: Any) -> None:
    lake.add(rows(0, 4))
    at = beginning(lake.log(), "latest")
    lake.change()
    lake.add(rows(4, 2))
    with pytest.raises(BraidError, match="changes or removes rows") as caught:
        advance(lake.log(), at, None, False)
    assert caught.value.code == "TABLE_NOT_FOLLOWED"
    assert numbers(lake.log(), at, advance(lake.log(), at, None, True), True) == [4, 5]
    with pytest.raises(BraidError, match="TABLE_NOT_FOLLOWED"):
        advance(lake.log(), Place(10**6), None, False)


def test_compaction_is_no_change_and_a_lost_log_is_told(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    lake = DeltaLake(tmp_path)
    lake.add(rows(0, 4))
    at = beginning(lake.log(), "latest")
    lake.add(rows(4, 4))
    DeltaTable(lake.path).optimize.compact()
    lake.add(rows(8, 1))
    assert numbers(lake.log(), at, advance(lake.log(), at, None, False)) == list(range(4, 9))
    DeltaTable(lake.path).create_checkpoint()
    os.remove(f"{lake.path}/_delta_log/{at.version + 1:020d}.json")
    with pytest.raises(BraidError, match="no longer holds version"):
        advance(lake.log(), at, None, False)
    with pytest.raises(BraidError, match="there is no Delta table"):
        DeltaLog(str(tmp_path / "nowhere"))


def test_iceberg_without_snapshots_and_with_lost_ones(tmp_path: Path) -> None:
    lake = IcebergLake(tmp_path)
    assert lake.table.current_snapshot() is None
    at = beginning(lake.log(), "earliest")
    assert at == Place(NOTHING)
    for number in range(3):
        lake.add(rows(number * 2, 2))
    assert numbers(lake.log(), at, advance(lake.log(), at, None, False)) == list(range(6))
    first = lake.table.metadata.snapshots[0].snapshot_id
    lake.table.maintenance.expire_snapshots().by_id(first).commit()
    with pytest.raises(BraidError, match="expired, or rolled back"):
        advance(lake.log(), Place(first), None, False)
    with pytest.raises(BraidError, match="there is no Iceberg table"):
        IcebergLog("lake.nowhere", lake.catalog)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [DeltaLake, IcebergLake])
def test_a_pipeline_follows_a_table(lab: Lab, kind: Callable[[Path], Any]) -> None:
    import json

    lake = kind(lab.folder)
    lake.add(rows(0, 6))
    lake.add(rows(6, 6))
    source = {**lake.source, "max_records": 4}
    text = f"""
name: <name>
source: {json.dumps(source)}
steps:
  - validate: {{expect: [{{name: small, sql: n < 100}}]}}
  - sql: SELECT n, n * 2 AS twice, part FROM input
sinks:
  - table: {{path: lake/twice}}
dead_letters: <topic>
"""
    progress = lab.once(text)
    assert progress.rows == 12 and progress.batch >= 1, "several batches"
    assert sorted((row["n"], row["twice"]) for row in lab.table("lake/twice")) == [(n, n * 2) for n in range(12)]
    lake.add(rows(99, 3))
    assert lab.once(text).rows == 3
    assert sorted(row["n"] for row in lab.table("lake/twice")) == [*range(12), 99]
    letters = [json.loads(lab.client.dlq.show(lab.topic, each.id)[0].value)["n"] for each in lab.client.dlq.ls(lab.topic)]
    assert sorted(letters) == [100, 101], "what is rejected is a dead letter of the topic that the definition names"
    if kind is DeltaLake:
        lake.change()
        with pytest.raises(BraidError, match=r"failed in the stream: TABLE_NOT_FOLLOWED: the table .*changes or removes rows"):
            lab.once(text)
