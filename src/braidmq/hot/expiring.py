"""Batches whose records have a time to live: giving them one, and serving them when some of it is over.

A stored batch is never changed. A reader of whole batches gets it as it lies while all of its records live. After that it
gets the runs of living records as batches of their own, at their offsets, and in place of what is gone a *gap*: a header with
FLAG_CONTROL and nothing behind it, whose base offset and count say which offsets hold nothing to read. Without it a reader
could not tell the end of the log from a long expired stretch, and would ask for the same offsets for ever.

A producer does not know the broker's time. In a batch on its way to the broker the expiry column holds how long each record
lives, in milliseconds, and the broker puts in its place when that will be.

None of this is on the way of batches without FLAG_EXPIRY, and all of it works on columns, so there is one form for both
twins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.hot import layout
from braidmq.hot.checksum import crc32c
from braidmq.hot.pure_batch import Buffer, column_bytes, shape_fault

_Column = np.ndarray[Any, np.dtype[Any]]
_GAP_OFFSETS_MAX: Final = limits.BATCH_RECORDS_MAX

HIDDEN_MS: Final = 1
"""Expiry of a record that only keeps its place: it was refused, and never was there for anybody. No clock shows this time."""


def expiry_column(batch: Buffer, head: layout.BatchHeader, position: int = 0) -> _Column:
    """When each record of the batch at `position` expires, 0 for never. The batch has FLAG_EXPIRY and its shape was checked."""
    n = head.records
    at = position + layout.HEADER_BYTES + 3 * layout.padded(4 * n) + (8 * n if head.flags & layout.FLAG_TIMESTAMPS else 0)
    return np.frombuffer(batch, "<i8", n, at)


def expired(column: _Column, now_ms: int) -> _Column:
    """Which records of an expiry column are gone."""
    result: _Column = (column > 0) & (column <= now_ms)
    return result


def with_expiry(batch: Buffer, expiry_ms: int) -> bytes:
    """A plain, whole batch in which every record that had no expiry has this one."""
    known = _expiry_or_none(batch)
    return _with_column(batch, np.where(known == 0, expiry_ms, known))


def hiding(batch: Buffer, records: Collection[int]) -> bytes:
    """A plain, whole batch of which some records, by their numbers, are for nobody and only keep their offsets."""
    column = _expiry_or_none(batch).copy()
    column[list(records)] = HIDDEN_MS
    return _with_column(batch, column)


def with_times_to_live(batch: Buffer, ttls_ms: Sequence[int] | _Column) -> bytes:
    """A producer's batch whose records live so long each; 0 is what the topic says."""
    return _with_column(batch, np.array(ttls_ms, "<i8"))


def has_times_to_live(batch: Buffer) -> bool:
    """Whether a producer's batch may have a column of times to live; what is no batch has none."""
    return len(batch) >= layout.HEADER_BYTES and bool(layout.read_header(batch).flags & layout.FLAG_EXPIRY)


def split_times_to_live(batch: Buffer) -> tuple[bytes, _Column]:
    """A producer's batch without its times to live, and these. It is checked as far as that needs; `stamp_batch` does the rest."""
    view = memoryview(batch)
    fault = shape_fault(view, 0, len(view))
    if fault:
        raise BraidError("INVALID_BATCH", reason=fault)
    head = layout.read_header(view)
    if head.length != len(view):
        raise BraidError("INVALID_BATCH", reason="more than one batch")
    if head.flags & ~(layout.FLAG_EXPIRY | layout.FLAG_ATTRS):
        raise BraidError("INVALID_BATCH", reason=f"flags {head.flags:#06x} are not for producers")
    if crc32c(view[layout.CHECKSUM_FROM : head.length]) != head.checksum:
        raise BraidError("INVALID_BATCH", reason="checksum mismatch")
    n = head.records
    column = expiry_column(view, head)
    wrong = np.flatnonzero(column < 0)
    if len(wrong):
        raise BraidError("INVALID_BATCH", reason=f"record {wrong[0]} lives for {column[wrong[0]]} ms")
    at = layout.HEADER_BYTES + 3 * layout.padded(4 * n)
    fields = head._replace(
        flags=head.flags & ~layout.FLAG_EXPIRY, length=head.length - 8 * n, rows_at=head.rows_at - 8 * n,
        attrs_at=head.attrs_at - 8 * n, plain_length=head.plain_length - 8 * n,
    )
    return _sealed(fields, [view[layout.HEADER_BYTES : at], view[at + 8 * n :]]), column


def living_for(batch: Buffer, ttls_ms: _Column, now_ms: int) -> bytes:
    """A plain, whole batch whose records expire after these times from now on, or after none where that is 0."""
    return _with_column(batch, np.where(ttls_ms > 0, now_ms + np.minimum(ttls_ms, limits.TTL_MS_MAX), 0))


def _expiry_or_none(batch: Buffer) -> _Column:
    head = layout.read_header(batch)
    return expiry_column(batch, head) if head.flags & layout.FLAG_EXPIRY else np.zeros(head.records, "<i8")


def _with_column(batch: Buffer, column: _Column) -> bytes:
    """The batch with this expiry column, in place of the one it had."""
    head = layout.read_header(batch)
    n = head.records
    view = memoryview(batch)
    at = layout.HEADER_BYTES + 3 * layout.padded(4 * n) + (8 * n if head.flags & layout.FLAG_TIMESTAMPS else 0)
    grown = 0 if head.flags & layout.FLAG_EXPIRY else 8 * n
    fields = head._replace(
        flags=head.flags | layout.FLAG_EXPIRY, length=head.length + grown, rows_at=head.rows_at + grown,
        attrs_at=head.attrs_at + grown, plain_length=head.plain_length + grown,
    )
    return _sealed(fields, [view[layout.HEADER_BYTES : at], column.astype("<i8").tobytes(), view[at + 8 * n - grown :]])


def gap(base_offset: int, offsets: int, head: layout.BatchHeader) -> bytes:
    """A header that stands for `offsets` offsets with nothing to read; `head` is of a batch they lie in."""
    size = layout.HEADER_BYTES
    fields = head._replace(
        length=size, flags=layout.FLAG_CONTROL, base_offset=base_offset, records=offsets, producer_id=-1, base_sequence=-1,
        producer_epoch=-1, rows_at=size, attrs_at=size, plain_length=size,
    )
    return _sealed(fields, [])


def living(batch: memoryview, now_ms: int) -> Iterator[bytes]:
    """A batch of which some records are expired, as readers of whole batches get it: runs of living records, and gaps."""
    head = layout.read_header(batch)
    gone = expired(expiry_column(batch, head), now_ms)
    edges = [0, *(np.flatnonzero(gone[1:] != gone[:-1]) + 1).tolist(), head.records]
    for first, last in pairwise(edges):
        if gone[first]:
            yield gap(head.base_offset + first, last - first, head)
        else:
            yield _run(batch, head, first, last)


def extended_gap(before: Buffer, after: Buffer) -> bytes | None:
    """One gap for two that follow each other, None when they are something else."""
    one, other = layout.read_header(before), layout.read_header(after)
    both = one.flags & other.flags & layout.FLAG_CONTROL
    if not both or one.next_offset != other.base_offset or one.records + other.records > _GAP_OFFSETS_MAX:
        return None
    return gap(one.base_offset, one.records + other.records, one)


def _run(batch: memoryview, head: layout.BatchHeader, first: int, last: int) -> bytes:
    """The records `first` to `last` of a batch, as a batch of their own."""
    n, at = head.records, layout.HEADER_BYTES

    def column(kind: str) -> _Column:
        nonlocal at
        whole: _Column = np.frombuffer(batch, kind, n, at)
        at += layout.padded(whole.nbytes)
        return whole[first:last]

    positions = column("<u4")
    row_from = int(positions[0])
    row_to = head.attrs_at - head.rows_at if last == n else int(np.frombuffer(batch, "<u4", n, layout.HEADER_BYTES)[last])
    columns = [column_bytes(part, "<u4") for part in (positions - np.uint32(row_from), column("<u4"), column("<u4"))]
    flags = head.flags & (layout.FLAG_TIMESTAMPS | layout.FLAG_EXPIRY | layout.FLAG_ATTRS)
    columns += [column_bytes(column("<i8"), "<i8") for flag in (layout.FLAG_TIMESTAMPS, layout.FLAG_EXPIRY) if flags & flag]
    attrs = b""
    if flags & layout.FLAG_ATTRS:
        places, attrs = _attrs_of(batch, head, column("<u4"))
        columns.append(column_bytes(places, "<u4"))
    rows_at = layout.HEADER_BYTES + sum(map(len, columns))
    rows = batch[head.rows_at + row_from : head.rows_at + row_to]
    attrs_at = rows_at + len(rows)
    length = layout.padded(attrs_at + len(attrs))
    fields = head._replace(
        length=length, flags=flags, base_offset=head.base_offset + first, records=last - first, producer_id=-1, base_sequence=-1,
        producer_epoch=-1, rows_at=rows_at, attrs_at=attrs_at, plain_length=length,
    )
    return _sealed(fields, [*columns, rows, attrs, bytes(length - attrs_at - len(attrs))])


def _attrs_of(batch: memoryview, head: layout.BatchHeader, column: _Column) -> tuple[list[int], bytes]:
    """The attrs that a part of the column points to, and where they lie then: what belongs to expired records is not served."""
    blocks = memoryview(batch)[head.attrs_at : head.length]
    places, kept = [], bytearray()
    for at in column.tolist():
        block = blocks[at : at + 4 + int.from_bytes(blocks[at : at + 4], "little")] if at != layout.NO_ATTRS else b""
        places.append(len(kept) if block else layout.NO_ATTRS)
        kept += block
    return places, bytes(kept)


def _sealed(head: layout.BatchHeader, parts: list[Buffer]) -> bytes:
    body = b"".join(parts)
    checksum = crc32c(body, crc32c(layout.HEADER.pack(*head)[layout.CHECKSUM_FROM :]))
    return layout.HEADER.pack(*head._replace(checksum=checksum)) + body
