"""Flat Avro by columns: the compiled pass and numpy's say the same, of good rows and of bad ones."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from braidmq import hot
from braidmq.spark.decode_avro import FlatAvroDecoder, avro_decoder

FIELDS = [
    {"name": "id", "type": "long"}, {"name": "size", "type": ["null", "int"]}, {"name": "name", "type": ["string", "null"]},
    {"name": "price", "type": ["null", "double"]}, {"name": "share", "type": "float"},
    {"name": "paid", "type": ["boolean", "null"]}, {"name": "raw", "type": "bytes"},
]  # fmt: skip
SCHEMA: dict[str, Any] = {"type": "record", "name": "Row", "fields": FIELDS}
ROWS: list[dict[str, Any]] = [
    {"id": -1, "size": None, "name": "Grüße", "price": 0.5, "share": 0.25, "paid": True, "raw": b""},
    {"id": 1 << 62, "size": -7, "name": None, "price": None, "share": -2.0, "paid": None, "raw": b"\xff\x00"},
    {"id": 0, "size": 1 << 30, "name": "", "price": -1e300, "share": 0.0, "paid": False, "raw": b"x" * 300},
]


def written(row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), row)
    return out.getvalue()


@pytest.fixture(params=["compiled", "pure"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FlatAvroDecoder:
    if request.param == "compiled" and hot.IMPLEMENTATION != "compiled":
        pytest.skip("there is no compiled module")
    monkeypatch.setattr(hot, "IMPLEMENTATION", request.param)
    found = avro_decoder(json.dumps(SCHEMA).encode())
    assert isinstance(found, FlatAvroDecoder)
    return found


def test_good_rows_are_what_was_written(decoder: FlatAvroDecoder) -> None:
    data, errors = decoder(pa.array([written(row) for row in ROWS], pa.binary()))
    assert data.type == decoder.type
    data.validate(full=True)
    assert data.to_pylist() == ROWS
    assert errors.null_count == len(ROWS)


def test_part_of_a_column_is_decoded_alone(decoder: FlatAvroDecoder) -> None:
    whole = pa.array([b"no record", *(written(row) for row in ROWS), b"nor this"], pa.binary())
    data, errors = decoder(whole[1:-1])
    assert data.to_pylist() == ROWS
    assert errors.null_count == len(ROWS)


@pytest.mark.parametrize(
    "bad", [b"", b"\x80", written(ROWS[0])[:-1], written(ROWS[0]) + b"\0", written(ROWS[0]).replace(b"Gr", b"\xff\xff"), None]
)
def test_a_bad_row_is_null_with_its_reason_and_harms_no_other(decoder: FlatAvroDecoder, bad: bytes | None) -> None:
    data, errors = decoder(pa.array([written(ROWS[1]), bad, written(ROWS[2])], pa.binary()))
    assert data.to_pylist() == [ROWS[1], None, ROWS[2]]
    assert [error is None for error in errors.to_pylist()] == [True, False, True]
