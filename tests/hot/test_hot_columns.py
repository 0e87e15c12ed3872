"""Batches to columns and back: both twins say the same, and neither believes a length."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import BraidError
from braidmq.hot import pure
from braidmq.hot.expiring import gap
from braidmq.hot.layout import read_header
from braidmq.log.attrs import encode_headers

_records = st.lists(
    st.tuples(st.none() | st.binary(min_size=1, max_size=5), st.binary(max_size=20), st.booleans()), min_size=1, max_size=6
)


def column(cells: list[bytes]) -> tuple[Any, bytes]:
    return np.cumsum([0, *map(len, cells)], dtype="<i4"), b"".join(cells)


def cells(ends: bytes, data: bytes) -> list[bytes]:
    places = np.frombuffer(ends, "<i4").tolist()
    return [data[begin:end] for begin, end in pairwise(places)]


def stored(batches: list[list[tuple[bytes | None, bytes, bool]]], first: int) -> bytes:
    """Batches as a broker has them, with a gap behind each."""
    out, at = b"", first
    for records in batches:
        attrs = [encode_headers({"h": value}) if headed else b"" for _, value, headed in records]
        batch = pure.encode_batch([key for key, _, _ in records], [value for _, value, _ in records], attrs)
        stamped = bytes(pure.stamp_batch(batch, at, 0, 1000 + at))
        at += len(records)
        out += stamped + gap(at, 2, read_header(stamped))
        at += 2
    return out


@given(
    batches=st.lists(_records, min_size=1, max_size=4), first=st.integers(0, 50), skip=st.integers(0, 12), take=st.integers(0, 30)
)
def test_columns_are_what_records_are(
    batches: list[list[tuple[bytes | None, bytes, bool]]], first: int, skip: int, take: int
) -> None:
    native = pytest.importorskip("braidmq.hot._native")
    data = stored(batches, first)
    begin, end = first + skip, first + skip + take
    expected, _ = pure.decode_records(data, begin, 1000, lambda *record: record)
    expected = [record for record in expected if record[0] < end]
    for twin in (pure, native):
        found = twin.gather_columns(data, begin, end)
        count, following, offsets, stamps, key_ends, keys, value_ends, values, block_ends, blocks = found
        assert count == len(expected)
        assert np.frombuffer(offsets, "<i8").tolist() == [record[0] for record in expected]
        assert np.frombuffer(stamps, "<i8").tolist() == [record[1] for record in expected]
        assert cells(key_ends, keys) == [record[2] or b"" for record in expected]
        assert cells(value_ends, values) == [record[3] for record in expected]
        assert (cells(block_ends, blocks) if block_ends else [b""] * count) == [record[4] for record in expected]
        assert begin <= following <= max(begin, end)
        narrow = twin.gather_columns(data, begin, end, False, False, False)
        assert narrow[:4] == found[:4] and narrow[4:] == (b"",) * 6
    assert pure.gather_columns(data, begin, end) == native.gather_columns(data, begin, end)


@given(records=_records, order=st.randoms())
def test_a_batch_of_columns_is_the_batch_of_their_records(records: list[tuple[bytes | None, bytes, bool]], order: Any) -> None:
    native = pytest.importorskip("braidmq.hot._native")
    rows = [number for number in range(len(records)) if order.random() < 0.7] or [0]
    order.shuffle(rows)
    attrs = [encode_headers({"h": value}) if headed else b"" for _, value, headed in records]
    keys, values, blocks = column([key or b"" for key, _, _ in records]), column([value for _, value, _ in records]), column(attrs)
    expected = pure.encode_batch([records[row][0] for row in rows], [records[row][1] for row in rows], [attrs[row] for row in rows])
    chosen = np.array(rows, "<i4")
    for twin in (pure, native):
        assert twin.encode_columns(chosen, *keys, *values, *blocks) == expected
        assert twin.encode_columns(chosen, None, None, *values) == pure.encode_batch(
            [None] * len(rows), [records[row][1] for row in rows]
        )
        assert np.frombuffer(twin.hash_cells(*keys), "<u4").tolist() == [pure.fnv1a(key or b"") for key, _, _ in records]


def test_what_lies_outside_is_refused(implementation: ModuleType) -> None:
    good = np.array([0, 1, 2], "<i4")
    for ends in ([0, 1, 3], [0, 2, 1], [-1, 1, 2], []):
        with pytest.raises(BraidError, match="outside"):
            implementation.encode_columns(np.array([0], "<i4"), None, None, np.array(ends, "<i4"), b"ab")
        with pytest.raises(BraidError, match="outside"):
            implementation.hash_cells(np.array(ends, "<i4"), b"ab")
    for row in (-1, 2):
        with pytest.raises(BraidError, match="there is no row"):
            implementation.encode_columns(np.array([row], "<i4"), None, None, good, b"ab")
    with pytest.raises(BraidError, match="record count"):
        implementation.encode_columns(np.array([], "<i4"), None, None, good, b"ab")


def test_a_damaged_batch_ends_it(implementation: ModuleType) -> None:
    data = bytearray(stored([[(b"k", b"value", True)]], 0))
    for at in (5, 100, len(data) - 60):
        broken = bytearray(data)
        broken[at] ^= 0xFF
        with pytest.raises(BraidError, match="INVALID_BATCH"):
            implementation.gather_columns(bytes(broken), 0, 10)
    with pytest.raises(BraidError, match="INVALID_BATCH"):
        implementation.gather_columns(bytes(data[:-8]), 0, 10)
