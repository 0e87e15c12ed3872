"""Walks the files of a partition without a broker, reading only.

Maps each segment and steps from batch to batch. Where a batch cannot be believed the walk says
why and at which byte, and ends that segment there: nothing after it can be located, let alone trusted. Only whole batches
are looked at, so the files of a running broker can be walked too; its newest segment may then end in a batch that is being
written, which is a torn tail and not damage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from braidmq import hot
from braidmq.base.disk_real import RealDisk
from braidmq.hot import layout
from braidmq.log.index import SparseIndex
from braidmq.log.segment import INDEX_ENDING, LOG_ENDING, Segment

_BASE_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch in its file."""

    position: int
    header: layout.BatchHeader


@dataclass(slots=True)
class SegmentReport:
    """What a walk through one segment found."""

    path: str
    base_offset: int
    size: int
    batches: int = 0
    records: int = 0
    next_offset: int = 0
    faults: list[str] = field(default_factory=list)
    torn_bytes: int = 0
    """Bytes after the last whole batch of a partition's newest segment."""
    index: str = "ok"
    """`ok`, `missing` (the newest segment's is in memory) or `wrong`: the broker makes it anew."""


@dataclass(slots=True)
class PartitionReport:
    directory: str
    segments: list[SegmentReport]
    faults: list[str]
    """What is wrong between segments: gaps and overlaps."""

    @property
    def damaged(self) -> bool:
        return bool(self.faults) or any(segment.faults for segment in self.segments)


def segment_paths(directory: str) -> list[str]:
    """The segments of a partition's directory, oldest first."""
    names = sorted(name for name in os.listdir(directory) if _is_segment(name))
    return [os.path.join(directory, name) for name in names]


def _is_segment(name: str) -> bool:
    return name.endswith(LOG_ENDING) and len(name) == _BASE_DIGITS + len(LOG_ENDING) and name[:_BASE_DIGITS].isdigit()


def base_offset_of(path: str) -> int:
    return int(os.path.basename(path)[:_BASE_DIGITS])


def mapped(path: str) -> memoryview:
    """The whole file; empty for an empty one, which cannot be mapped."""
    size = os.path.getsize(path)
    return RealDisk().map_file(path, size).view if size else memoryview(b"")


def walk(view: memoryview) -> Iterator[Batch | str]:
    """The batches of a segment; a text instead of a batch says what is wrong at the place where the walk ends."""
    position = 0
    while position < len(view):
        end, reason = hot.verify_batches(view, position, min(len(view), position + _length_at(view, position)))
        if reason:
            yield f"byte {position}: {reason}"
            return
        yield Batch(position, layout.read_header(view, position))
        position = end


def _length_at(view: memoryview, position: int) -> int:
    """The length a header announces, so that one batch at a time is checked; a header that is cut short is left to the check."""
    if len(view) - position < layout.HEADER_BYTES:
        return len(view) - position
    return max(layout.HEADER_BYTES, layout.read_header(view, position).length)


def inspect_segment(path: str, newest: bool) -> SegmentReport:
    """Check every batch of a segment, the run of its offsets, and its index."""
    report = inspect_view(path, mapped(path), newest)
    report.index = _index_state(path, report.size)
    return report


def inspect_view(path: str, view: memoryview, newest: bool) -> SegmentReport:
    """Check every batch of a segment and the run of its offsets, wherever its bytes are."""
    base = base_offset_of(path)
    report = SegmentReport(path, base, len(view), next_offset=base)
    end = 0
    for item in walk(view):
        if isinstance(item, str):
            if newest and _torn(view, end):
                report.torn_bytes = len(view) - end
            else:
                report.faults.append(item)
            break
        header = item.header
        if header.base_offset != report.next_offset:
            report.faults.append(f"byte {item.position}: offset {header.base_offset} where {report.next_offset} comes next")
        report.batches += 1
        report.records += header.records
        report.next_offset = header.next_offset
        end = item.position + header.length
    return report


def _torn(view: memoryview, position: int) -> bool:
    """Whether the bytes from `position` are the beginning of a batch that was never finished, rather than a damaged one."""
    rest = len(view) - position
    if rest < layout.HEADER_BYTES:
        return True
    header = layout.read_header(view, position)
    return header.magic == layout.MAGIC and header.length > rest


def _index_state(path: str, size: int) -> str:
    index_path = path.removesuffix(LOG_ENDING) + INDEX_ENDING
    if not os.path.exists(index_path):
        return "missing"
    return "wrong" if SparseIndex.load(RealDisk(), index_path, size) is None else "ok"


def inspect_partition(directory: str) -> PartitionReport:
    paths = segment_paths(directory)
    segments = [inspect_segment(path, newest=path == paths[-1]) for path in paths]
    return PartitionReport(directory, segments, between_segments(segments))


def between_segments(segments: list[SegmentReport]) -> list[str]:
    """What is wrong between the segments of a partition."""
    faults = []
    for before, after in pairwise(segments):
        if before.faults:
            continue
        if after.base_offset > before.next_offset:
            faults.append(f"gap: offsets {before.next_offset} to {after.base_offset - 1} are missing before {after.path}")
        elif after.base_offset < before.next_offset:
            faults.append(f"overlap: {after.path} begins at {after.base_offset}, {before.path} ends before {before.next_offset}")
    return faults


def rebuild_index(path: str, newest: bool) -> int | None:
    """Write the index of a segment anew; returns its number of entries.

    Damage raises CORRUPT_LOG rather than being indexed. A torn tail gives None: the broker removes it at its next start and makes
    the index itself.
    """
    view = mapped(path)
    position, reason = hot.verify_batches(view, 0, len(view))
    if reason and newest and _torn(view, position):
        return None
    segment = Segment(RealDisk(), os.path.dirname(path) or ".", base_offset_of(path), len(view))
    if reason:
        raise segment.damage(position, reason)
    return len(segment.rebuild_index())
