"""Flat JSON objects to columns: both twins say the same, whatever the bytes are, and numbers are what Python reads."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from braidmq.base.errors import BraidError
from braidmq.base.limits import SCHEMA_MESSAGE_BYTES_MAX
from braidmq.hot import pure

NAMES = ["id", "price", "paid", "name", "größe"]
KINDS = "ldbsd"
FIELDS = (KINDS.encode(), [name.encode() for name in NAMES])
_CELLS = {
    "l": st.integers(-(1 << 63), (1 << 63) - 1), "b": st.booleans(),
    "s": st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    "d": st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False) | st.integers(-(1 << 70), 1 << 70),
}  # fmt: skip
_OTHERS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _CELLS["s"],
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_CELLS["s"], inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def native() -> ModuleType:
    return pytest.importorskip("braidmq.hot._native")


def column(cells: list[bytes]) -> tuple[Any, bytes]:
    return np.cumsum([0, *map(len, cells)], dtype="<i4"), b"".join(cells)


@st.composite
def objects(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Some rows, and the rows as JSON: in any order, with properties nobody asked for, with and without escapes and spaces."""
    rows, written = [], []
    for _ in range(draw(st.integers(0, 4))):
        row = draw(st.fixed_dictionaries({}, optional={
            name: st.none() | _CELLS[kind] for name, kind in zip(NAMES, KINDS, strict=True)
        }))  # fmt: skip
        more = draw(st.dictionaries(st.sampled_from(["i", "other", "ids", "groesse", ""]), _OTHERS, max_size=2))
        items = draw(st.permutations([*row.items(), *more.items()]))
        ascii_names = all(name.isascii() for name, _ in items)
        text = json.dumps(
            dict(items), ensure_ascii=ascii_names and draw(st.booleans()), indent=draw(st.sampled_from([None, 1])),
            separators=draw(st.sampled_from([None, (",", ":")])),
        )  # fmt: skip
        rows.append(row)
        written.append(draw(st.sampled_from(["", " ", "\n"])).join(["", text, ""]).encode())
    return rows, written


@given(case=objects())
def test_columns_are_what_was_written(native: ModuleType, case: Any) -> None:
    rows, written = case
    found = native.json_columns(*FIELDS, *column(written))
    assert found == pure.json_columns(*FIELDS, *column(written))
    assert found is not None
    for name, kind, (valid, ends, cells) in zip(NAMES, KINDS, found, strict=True):
        expected = [row.get(name) for row in rows]
        there = [cell is not None for cell in expected]
        assert [bool(byte) for byte in valid] == ([] if all(there) else there)
        if kind == "s":
            places = np.frombuffer(ends, "<i4").tolist()
            given_back = [cells[places[row] : places[row + 1]].decode() for row in range(len(rows))]
            assert given_back == [cell or "" for cell in expected]
        else:
            numbers = np.array([0 if cell is None else cell for cell in expected], {"b": "u1", "d": "<f8"}.get(kind, "<i8"))
            assert cells == numbers.tobytes()


@given(
    case=objects(), at=st.integers(0, 1 << 16), cut=st.integers(0, 2),
    put=st.binary(max_size=2) | st.sampled_from([bytes([mark]) for mark in b'"\\{}[],:0-e.'] + [b"\\ud83d"]),
)  # fmt: skip
def test_bytes_that_are_no_objects_are_refused_alike(native: ModuleType, case: Any, at: int, cut: int, put: bytes) -> None:
    _, written = case
    for row in written or [b"{}"]:
        place = at % (len(row) + 1)
        broken = row[:place] + put + row[place + cut :]
        for cells in ([broken], [*written, broken], [broken, *written]):
            assert pure.json_columns(*FIELDS, *column(cells)) == native.json_columns(*FIELDS, *column(cells))


@given(text=st.from_regex(r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,24})?([eE][+-]?[0-9]{1,3})?", fullmatch=True))
@example("9007199254740993")  # halfway between two doubles
@example("9007199254740993.00000000000000000001")
@example("1e23")
@example("8.5e22")
@example("18446744073709551615e288")
@example("18446744073709551615e-290")
@example("2.2250738585072014e-308")
@example("1.7976931348623157e308")
def test_numbers_are_what_python_reads(native: ModuleType, text: str) -> None:
    cells = column([b'{"x":%s}' % text.encode()])
    found = native.json_columns(b"d", [b"x"], *cells)
    assert found == pure.json_columns(b"d", [b"x"], *cells)
    if found is not None:
        assert found[0][2] == np.array([float(text)]).tobytes()
    else:
        assert text == "-0" or not 2.3e-308 < abs(float(text)) < float("inf")


@pytest.mark.parametrize("row", [
    b"", b" ", b"null", b"[]", b"{", b"{}x", b"{}{}", b"{,}", b'{"id":1,}', b'{"id" 1}', b'{"id":}', b'{"id":1 "price":1}',
    b"{'id':1}", b'{"id":01}', b'{"id":-}', b'{"id":+1}', b'{"id":1.0}', b'{"id":1e0}', b'{"id":9223372036854775808}',
    b'{"id":"1"}', b'{"id":true}', b'{"id":-9223372036854775809}', b'{"id":18446744073709551617}', b'{"id":1,"id":1}',
    b'{"id":null,"id":1}', b'{"\\u0069d":1}', b'{"price":NaN}', b'{"price":Infinity}', b'{"price":-Infinity}', b'{"price":1.}',
    b'{"price":.5}', b'{"price":1e}', b'{"price":1e999}', b'{"price":00}', b'{"price":-0}', b'{"price":1e-999}',
    b'{"price":5e-324}', b'{"price":0.' + b"0" * 130 + b"1}", b'{"price":"1"}', b'{"paid":1}', b'{"paid":True}', b'{"paid":tru}',
    b'{"paid":truefalse}', b'{"name":nul}', b'{"name":1}', b'{"name":{}}', b'{"name":"a}', b'{"name":"\n"}', b'{"name":"\\x"}',
    b'{"name":"\\u12"}', b'{"name":"\\u12g4"}', b'{"name":"\\', b'{"name":"\\ud83d"}', b'{"name":"\\ude00"}',
    b'{"name":"\\ud83d\\u0041"}', b'{"name":"\xff"}', b'{"name":"\xc3"}', b'{"name":"\xc0\x80"}', b'{"name":"\xed\xa0\x80"}',
    b'{"name":"\xe0\x80\x80"}', b'{"name":"\xf0\x80\x80\x80"}', b'{"name":"\xf4\x90\x80\x80"}', b'{"x":"\xff"}', b'{"\xff":1}',
    b'{"x":01}', b'{"x":[1,]}', b'{"x":{"a"}}', b'{"x":{"a":1,}}', b'{"x":[}', b'{"x":{]}', b'{"x":nulL}',
    b'{"x":' + b"[" * 61 + b"]" * 61 + b"}", b'{"x":"\\ud83d"}', b'\xef\xbb\xbf{"id":1}', b'{"id":1}\0', b'{"id":1}\x0b',
    b'\xc2\xa0{"id":1}',
])  # fmt: skip
def test_of_a_doubtful_row_nothing_is_said(native: ModuleType, row: bytes) -> None:
    for cells in ([row], [b'{"id":1}', row], [row, b'{"id":1}']):
        assert native.json_columns(*FIELDS, *column(cells)) is None
        assert pure.json_columns(*FIELDS, *column(cells)) is None


def test_a_value_may_be_as_long_and_as_deep_as_is_said(native: ModuleType) -> None:
    deep = b'{"x":' + b"[" * 60 + b"]" * 60 + b"}"
    assert native.json_columns(*FIELDS, *column([deep])) == pure.json_columns(*FIELDS, *column([deep])) is not None
    for more in (0, 1):
        text = b"x" * (SCHEMA_MESSAGE_BYTES_MAX + more - len(b'{"name":""}'))
        found = native.json_columns(b"s", [b"name"], *column([b'{"name":"%s"}' % text]))
        assert (found is None) is bool(more)
        assert pure.json_columns(b"s", [b"name"], *column([b'{"name":"%s"}' % text])) == found


def test_fields_nobody_knows_and_cells_outside_are_errors(native: ModuleType) -> None:
    ends = np.array([0, 2], "<i4")
    for twin in (pure, native):
        for kinds, names in ((b"", []), (b"l", []), (b"x", [b"a"]), (b"ll", [b"a", b"a"])):
            with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
                twin.json_columns(kinds, names, ends, b"{}")
        with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
            twin.json_columns(b"l", [b"a"], np.array([0, 9], "<i4"), b"{}")
