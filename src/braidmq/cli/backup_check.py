"""Is a backup whole? Every file against the manifest, every batch against its own checksum, every snapshot against its.

What the manifest does not say is said too: a file that it does not name has no business in a backup.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from braidmq import hot
from braidmq.cli.backup_archive import Archive
from braidmq.cli.log_walk import SegmentReport, between_segments, inspect_view

_SUMMED: Final = ("checkpoint", "clock")
"""Files that begin with a checksum of the rest."""
_PIECE: Final = 1 << 20


@dataclass(slots=True)
class BackupReport:
    files: int = 0
    bytes: int = 0
    partitions: int = 0
    batches: int = 0
    records: int = 0
    changed: list[str] = field(default_factory=list)
    """The backup is not what was written: nothing in it can be trusted."""
    damaged: list[str] = field(default_factory=list)
    """It is what was written, and what was written was damaged already."""
    notes: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not self.changed and not self.damaged


def check_backup(archive: Archive, done: Callable[[int], None] = lambda _: None) -> BackupReport:
    """Look at everything; nothing is written. `done` is told how many bytes were looked at."""
    report = BackupReport()
    segments: dict[str, list[str]] = {}
    for path, entry in sorted(archive.manifest.files.items()):
        content = archive.content(path)
        report.files += 1
        if content is None:
            report.changed.append(f"{path}: missing, or cut short")
        elif len(content) != entry.bytes:
            report.changed.append(f"{path}: {len(content)} bytes instead of {entry.bytes}")
        elif sha256_of(content) != entry.sha256:
            report.changed.append(f"{path}: its content is not what was written")
        else:
            report.bytes += entry.bytes
            done(report.bytes)
            if path.endswith(".log"):
                segments.setdefault(path.rpartition("/")[0], []).append(path)
            elif path in _SUMMED or "/snapshot-" in path:
                _check_summed(report, path, content)
    for path in sorted(set(archive.paths()) - set(archive.manifest.files)):
        report.changed.append(f"{path}: the manifest does not know it")
    if "FORMAT" not in archive.manifest.files:
        report.damaged.append("FORMAT: missing; this is no data directory")
    for folder, paths in segments.items():
        _check_partition(report, archive, folder, sorted(paths))
    return report


def _check_partition(report: BackupReport, archive: Archive, folder: str, paths: list[str]) -> None:
    report.partitions += 1
    found: list[SegmentReport] = []
    for path in paths:
        content = archive.content(path)
        if content is not None:
            found.append(inspect_view(path, content, newest=path == paths[-1]))
    for segment in found:
        report.batches += segment.batches
        report.records += segment.records
        report.damaged += [f"{segment.path}: {fault}" for fault in segment.faults]
        if segment.torn_bytes:
            report.notes.append(f"{segment.path}: {segment.torn_bytes} bytes of an unfinished batch, which the first start removes")
    report.damaged += [f"{folder}: {fault}" for fault in between_segments(found)]


def _check_summed(report: BackupReport, path: str, content: memoryview) -> None:
    head, _, body = bytes(content).partition(b"\n")
    if head != b"%08x" % hot.crc32c(body):
        report.damaged.append(f"{path}: its checksum is wrong")


def sha256_of(content: memoryview) -> str:
    digest = hashlib.sha256()
    for position in range(0, len(content), _PIECE):
        digest.update(content[position : position + _PIECE])
    return digest.hexdigest()
