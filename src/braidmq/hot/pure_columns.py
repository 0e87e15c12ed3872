"""Whole batches to columns and back, for readers and writers that work on columns, in plain Python.

A column of bytes is two buffers: `ends`, an `int32` array with one entry more than cells, where cell `i` lies from `ends[i]` to
`ends[i + 1]`, and the bytes themselves. That is how Arrow lays out binary columns, so nothing is converted on the way.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from braidmq.base.errors import BraidError
from braidmq.hot.pure_batch import Buffer, decode_records, encode_batch, fnv1a

Columns = tuple[int, int, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]


def gather_columns(
    data: Buffer, from_offset: int, to_offset: int, with_keys: bool = True, with_values: bool = True, with_attrs: bool = True
) -> Columns:
    """The records of whole batches from `from_offset` to before `to_offset`, as columns.

    Returns how many there are, the offset to go on from, their offsets and timestamps (`int64`, milliseconds), then ends and bytes
    of keys, of values and of attribute blocks. A record without a key has an empty one. Columns that were not asked for are
    empty, and so are those of the attributes where no record has any.
    """
    offsets: list[int] = []
    stamps: list[int] = []
    keys: list[bytes] = []
    values: list[bytes] = []
    blocks: list[bytes] = []

    def take(offset: int, timestamp: int, key: bytes | None, value: bytes, attrs: bytes) -> None:
        if offset < to_offset:
            offsets.append(offset)
            stamps.append(timestamp)
            keys.append(key or b"")
            values.append(value)
            blocks.append(attrs)

    _, next_offset = decode_records(data, from_offset, sys.maxsize, take)
    none = (b"", b"")
    return (
        len(offsets), min(next_offset, max(to_offset, from_offset)),
        np.array(offsets, "<i8").tobytes(), np.array(stamps, "<i8").tobytes(),
        *(_joined(keys) if with_keys else none), *(_joined(values) if with_values else none),
        *(_joined(blocks) if with_attrs and any(blocks) else none),
    )  # fmt: skip


def _joined(cells: list[bytes]) -> tuple[bytes, bytes]:
    data = b"".join(cells)
    if len(data) > 0x7FFFFFFF:
        raise BraidError("INVALID_ARGUMENT", reason="more than 2 GiB at once")
    ends = np.zeros(len(cells) + 1, "<i4")
    np.cumsum(np.fromiter(map(len, cells), "<i8", len(cells)), out=ends[1:])
    return ends.tobytes(), data


def _cells(ends: Any, data: Any) -> tuple[list[int], memoryview]:
    places, octets = np.frombuffer(ends, "<i4"), memoryview(data)
    if not len(places) or places[0] < 0 or places[-1] > len(octets) or (np.diff(places) < 0).any():
        raise BraidError("INVALID_ARGUMENT", reason="a column's cells lie outside its bytes")
    return places.tolist(), octets


def encode_columns(
    rows: Any, key_ends: Any, keys: Any, value_ends: Any, values: Any, attr_ends: Any = None, attrs: Any = None
) -> bytes:
    """A batch for PRODUCE_BATCH of some `rows` (an `int32` array of their numbers) of columns of keys, values and attribute blocks.

    An empty key is none, an empty block neither. Without `key_ends` no record has a key, without `attr_ends` none has attributes.
    """
    chosen = np.frombuffer(rows, "<i4").tolist()

    def column(ends: Any, data: Any) -> list[bytes]:
        places, octets = _cells(ends, data)
        for row in chosen:
            if not 0 <= row < len(places) - 1:
                raise BraidError("INVALID_ARGUMENT", reason=f"there is no row {row}")
        return [bytes(octets[places[row] : places[row + 1]]) for row in chosen]

    bodies = column(value_ends, values)
    names: list[bytes | None] = [None] * len(chosen) if key_ends is None else [cell or None for cell in column(key_ends, keys)]
    return encode_batch(names, bodies, None if attr_ends is None else column(attr_ends, attrs))


def hash_cells(ends: Any, data: Any) -> bytes:
    """FNV-1a of every cell, as `uint32`: what decides about the partition of a key."""
    places, octets = _cells(ends, data)
    hashes = [fnv1a(bytes(octets[places[i] : places[i + 1]])) for i in range(len(places) - 1)]
    return np.array(hashes, "<u4").tobytes()
