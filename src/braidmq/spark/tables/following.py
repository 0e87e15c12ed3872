"""Where a stream is in a table, and what lies between two such places.

A table is a list of versions, each of which adds files. A stream begins with the table as it is, file by file, and goes on with the
files that each later version adds. A place, as Spark keeps it in the checkpoint, is a version and how many of its files were read:

    {"version": 7, "files": 3, "whole": true}      of the table as it was in version 7, the first three files
    {"version": 9, "files": -1, "whole": false}    everything up to version 9

The files of a version have a fixed order, so a place means the same after a restart: nothing is passed over, nothing comes twice.

Only added rows are a stream. A version that changes or removes rows ends it with TABLE_NOT_FOLLOWED, unless such versions are to be
passed over; one that only writes the same rows into other files (compaction) is no change. So does a version that the table's log
no longer holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa

from braidmq.base.errors import BraidError

ALL: Final = -1
"""In a place: all files of the version."""
NOTHING: Final = -1
"""The version of a table that has none yet."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table, as a task needs it to read it."""

    path: str
    rows: int | None
    """None where the log does not say."""
    detail: Any = field(default=None, compare=False)
    """What else reading it takes, by the kind of table."""


class Reader(Protocol):
    """Reads files on an executor. It is pickled on its way there."""

    def read(self, files: Sequence[TableFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]: ...


class TableLog(Protocol):
    """What a table's log says at the moment. Versions are numbers; only their order in `following` means anything."""

    name: str

    def schema(self) -> pa.Schema:
        """The columns of the table as it is now."""
        ...

    def reader(self) -> Reader: ...

    def latest(self) -> int:
        """The current version; NOTHING for a table without any."""
        ...

    def snapshot(self, version: int) -> list[TableFile]:
        """All files of the table as it was then, in a fixed order."""
        ...

    def following(self, version: int) -> list[int]:
        """The versions after one, the oldest first; raises TABLE_NOT_FOLLOWED where the log does not reach back to it."""
        ...

    def added(self, version: int) -> list[TableFile] | None:
        """The files that a version added, in a fixed order; None for one that changed or removed rows."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    version: int
    files: int = ALL
    whole: bool = False

    def as_offset(self) -> dict[str, Any]:
        return {"version": self.version, "files": self.files, "whole": self.whole}

    @staticmethod
    def of(offset: dict[str, Any]) -> Place:
        return Place(int(offset["version"]), int(offset["files"]), bool(offset["whole"]))


def beginning(log: TableLog, starting: str) -> Place:
    """The place before the first row of a stream."""
    latest = log.latest()
    return Place(latest) if starting == "latest" or latest == NOTHING else Place(latest, 0, True)


def advance(log: TableLog, start: Place, rows_max: int | None, skip_changes: bool, until: int | None = None) -> Place:
    """The furthest place from `start` with at most `rows_max` rows in between, but at least one file where there is one.

    It does not go beyond the version `until`.
    """
    at, rows = start, 0
    for version, whole, files in _walk(log, start, until, skip_changes):
        first = max(at.files, 0) if (version, whole) == (at.version, at.whole) else 0
        for number in range(first, len(files)):
            if rows_max is not None and rows and rows + (files[number].rows or rows_max) > rows_max:
                return Place(version, number, whole)
            rows += files[number].rows or (rows_max or 0)
        at = Place(version, ALL, whole)
        if rows_max is not None and rows >= rows_max:
            return at
    return at


def between(log: TableLog, start: Place, end: Place, skip_changes: bool) -> list[TableFile]:
    """The files from one place to another."""
    found: list[TableFile] = []
    if start == end:
        return found
    for version, whole, files in _walk(log, start, end.version, skip_changes):
        first = max(start.files, 0) if (version, whole) == (start.version, start.whole) else 0
        is_last = (version, whole) == (end.version, end.whole)
        last = len(files) if not is_last or end.files == ALL else end.files
        if last > len(files):
            reason = f"version {version} has {len(files)} files, and {last} of them were read"
            raise BraidError("TABLE_NOT_FOLLOWED", table=log.name, reason=reason)
        found += files[first:last]
        if is_last:
            break
    return found


def _walk(log: TableLog, start: Place, until: int | None, skip_changes: bool) -> Iterator[tuple[int, bool, list[TableFile]]]:
    """What is left of the version of `start`, then the versions after it up to `until`: (version, whole, all its files)."""
    if start.files != ALL:
        files = log.snapshot(start.version) if start.whole else _added(log, start.version, skip_changes)
        yield start.version, start.whole, files
    if until == start.version:
        return
    for version in log.following(start.version):
        yield version, False, _added(log, version, skip_changes)
        if version == until:
            return


def _added(log: TableLog, version: int, skip_changes: bool) -> list[TableFile]:
    files = log.added(version)
    if files is None:
        if not skip_changes:
            reason = f"version {version} changes or removes rows, and only added rows are a stream; `skip_changes` passes over it"
            raise BraidError("TABLE_NOT_FOLLOWED", table=log.name, reason=reason)
        return []
    return files
