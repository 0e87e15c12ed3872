"""Flat Avro records to columns: both twins say the same, whatever the bytes are."""

from __future__ import annotations

import io
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import BraidError
from braidmq.hot import pure

_TYPES = {"i": "int", "l": "long", "d": "double", "f": "float", "b": "boolean", "s": "bytes"}
_CELLS = {
    "i": st.integers(-(1 << 31), (1 << 31) - 1), "l": st.integers(-(1 << 63), (1 << 63) - 1), "b": st.booleans(),
    "d": st.floats(allow_nan=False), "f": st.floats(allow_nan=False, width=32), "s": st.binary(max_size=70),
}  # fmt: skip


@pytest.fixture(scope="module")
def native() -> ModuleType:
    return pytest.importorskip("braidmq.hot._native")


def column(cells: list[bytes]) -> tuple[Any, bytes]:
    return np.cumsum([0, *map(len, cells)], dtype="<i4"), b"".join(cells)


@st.composite
def records(draw: st.DrawFn) -> tuple[bytes, bytes, list[dict[str, Any]], list[bytes]]:
    """Kinds and nulls of fields, some rows, and the rows as Avro."""
    import fastavro

    kinds = draw(st.text("ildfbs", min_size=1, max_size=5))
    nulls = [draw(st.sampled_from([0, 1, 255])) for _ in kinds]
    types = {0: lambda kind: ["null", kind], 1: lambda kind: [kind, "null"], 255: lambda kind: kind}
    fields = [{"name": f"f{at}", "type": types[nulls[at]](_TYPES[kind])} for at, kind in enumerate(kinds)]
    schema = fastavro.parse_schema({"type": "record", "name": "R", "fields": fields})
    cells = {f"f{at}": _CELLS[kind] if nulls[at] == 255 else st.none() | _CELLS[kind] for at, kind in enumerate(kinds)}
    rows = draw(st.lists(st.fixed_dictionaries(cells), max_size=5))
    written = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        written.append(out.getvalue())
    return kinds.encode(), bytes(nulls), rows, written


@given(case=records())
def test_columns_are_what_was_written(native: ModuleType, case: Any) -> None:
    kinds, nulls, rows, written = case
    found = pure.avro_columns(kinds, nulls, *column(written))
    assert found == native.avro_columns(kinds, nulls, *column(written))
    assert found is not None
    for at, (valid, ends, cells) in enumerate(found):
        expected = [row[f"f{at}"] for row in rows]
        kind = chr(kinds[at])
        if nulls[at] != 255:
            assert [bool(there) for there in valid] == [cell is not None for cell in expected]
        if kind == "s":
            places = np.frombuffer(ends, "<i4").tolist()
            given_back = [cells[places[row] : places[row + 1]] for row in range(len(rows))]
            assert given_back == [cell or b"" for cell in expected]
        else:
            numbers = np.frombuffer(cells, {"b": "u1", "d": "<f8", "f": "<f8"}.get(kind, "<i8")).tolist()
            assert numbers == [cell or 0 for cell in expected]


@given(case=records(), at=st.integers(0, 1 << 16), byte=st.integers(0, 255), cut=st.integers(0, 2), noise=st.binary(max_size=24))
def test_bytes_that_are_no_records_are_refused_alike(
    native: ModuleType, case: Any, at: int, byte: int, cut: int, noise: bytes
) -> None:
    kinds, nulls, _, written = case
    for row in [*written, noise]:
        changed = bytearray(row)
        if changed:
            changed[at % len(changed)] = byte
        broken = bytes(changed[: len(changed) - cut])
        for cells in ([broken], [*written, broken], [broken, *written]):
            assert pure.avro_columns(kinds, nulls, *column(cells)) == native.avro_columns(kinds, nulls, *column(cells))


def test_fields_nobody_knows_and_cells_outside_are_errors(native: ModuleType) -> None:
    ends = np.array([0, 1], "<i4")
    for twin in (pure, native):
        for kinds, nulls in ((b"", b""), (b"l", b""), (b"x", b"\xff")):
            with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
                twin.avro_columns(kinds, nulls, ends, b"\x02")
        with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
            twin.avro_columns(b"l", b"\xff", np.array([0, 9], "<i4"), b"\x02")
