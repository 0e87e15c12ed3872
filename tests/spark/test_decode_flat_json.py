"""Flat JSON: the compiled pass says of every row what Arrow's reader and msgspec say, of good rows and of bad ones."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from braidmq import hot
from braidmq.spark.decode_json import JsonDecoder

SCHEMA: dict[str, Any] = {"type": "object", "properties": {
    "id": {"type": "integer"}, "price": {"type": ["null", "number"]}, "name": {"type": ["string", "null"]},
    "paid": {"type": "boolean"}, "größe": {"type": "number"}, "country": {"enum": ["DE", "FR"]},
}}  # fmt: skip
EMPTY: dict[str, Any] = dict.fromkeys(SCHEMA["properties"])
ROWS: list[dict[str, Any]] = [
    {"id": -1, "price": 0.1, "name": "Grüße", "paid": True, "größe": 1.5, "country": "DE"},
    {"id": (1 << 63) - 1, "price": None, "name": 'quoted "\\\n\x00😀', "paid": None, "größe": -1e300, "country": ""},
    {"id": -(1 << 63), "price": 12345678901234.567, "name": "", "paid": False, "größe": 0.30000000000000004, "country": None},
    EMPTY,
]
GOOD = [json.dumps(row, ensure_ascii=False).encode() for row in ROWS]
BAD = [
    b"", b"null", b"[1]", b"{", b'{"id":1}}', b'{"id":01}', b'{"id":1.5}', b'{"id":4.0}', b'{"id":9223372036854775808}',
    b'{"price":NaN}', b'{"price":"1"}', b'{"name":"\xff"}', b'{"name":"\\ud83d"}', b'{"paid":1}', b'{"other":[1,]}', None,
]  # fmt: skip
ODD: list[tuple[bytes, dict[str, Any]]] = [
    (b' {"id":1}\n', {"id": 1}), (b'{"id":1,"id":2}', {"id": 2}), (b'{"\\u0069d":3}', {"id": 3}),
    (b'{"other":{"id":[{}, "\\u00e9", -0.5e-7]},"id":5}', {"id": 5}), (b'{"price":1e-400}', {"price": 0.0}),
    (b'{"price":123456789012345678901234567890}', {"price": 123456789012345678901234567890.0}),
    (b'{"name":"\\ud83d\\ude00\\/\\u00e9"}', {"name": "😀/é"}), (b'{"x":' + b"[" * 90 + b"]" * 90 + b',"id":6}', {"id": 6}),
]  # fmt: skip


@pytest.fixture(params=["compiled", "pure"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> JsonDecoder:
    if request.param == "compiled" and hot.IMPLEMENTATION != "compiled":
        pytest.skip("there is no compiled module")
    monkeypatch.setattr(hot, "IMPLEMENTATION", request.param)
    return JsonDecoder(json.dumps(SCHEMA).encode())


def test_good_rows_are_what_was_written(decoder: JsonDecoder) -> None:
    for ascii_only in (False, True):
        written = [json.dumps({name: cell for name, cell in row.items() if name != "größe" or not ascii_only}) for row in ROWS]
        data, errors = decoder(pa.array([text.encode() for text in written] if ascii_only else GOOD, pa.binary()))
        assert data.type == decoder.type
        data.validate(full=True)
        assert data.to_pylist() == [{**row, **({"größe": None} if ascii_only else {})} for row in ROWS]
        assert errors.null_count == len(ROWS)


def test_part_of_a_column_is_decoded_alone(decoder: JsonDecoder) -> None:
    data, errors = decoder(pa.array([b"no object", *GOOD, b"nor this"], pa.binary())[1:-1])
    assert data.to_pylist() == ROWS
    assert errors.null_count == len(ROWS)


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_row_is_null_with_its_reason_and_harms_no_other(decoder: JsonDecoder, bad: bytes | None) -> None:
    data, errors = decoder(pa.array([GOOD[1], bad, GOOD[2]], pa.binary()))
    assert data.to_pylist() == [ROWS[1], None, ROWS[2]]
    assert [error is None for error in errors.to_pylist()] == [True, False, True]


@pytest.mark.parametrize(("odd", "expected"), ODD)
def test_an_odd_row_is_read_all_the_same(decoder: JsonDecoder, odd: bytes, expected: dict[str, Any]) -> None:
    data, errors = decoder(pa.array([GOOD[0], odd], pa.binary()))
    assert data.to_pylist() == [ROWS[0], EMPTY | expected]
    assert errors.null_count == 2


@pytest.mark.skipif(hot.IMPLEMENTATION != "compiled", reason="there is no compiled module")
def test_both_ways_say_the_same_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Good, odd and damaged rows, many to a batch: data and errors are equal, whoever decoded."""
    decoder = JsonDecoder(json.dumps(SCHEMA).encode())
    chance = random.Random(7)
    source = [*GOOD, *(odd for odd, _ in ODD)]
    for damaged in (0.0, 0.01, 0.3):
        rows: list[bytes] = []
        for _ in range(1500):
            row = bytearray(chance.choice(source))
            if chance.random() < damaged:
                row[chance.randrange(len(row))] = chance.choice([*b'{}[]",:\\0-e. \xc3\xff', chance.randrange(256)])
            rows.append(bytes(row))
        for part in (rows, *([row] for row in rows[:300])):
            values = pa.array(part, pa.binary())
            monkeypatch.setattr(hot, "IMPLEMENTATION", "compiled")
            data, errors = decoder(values)
            data.validate(full=True)
            monkeypatch.setattr(hot, "IMPLEMENTATION", "pure")
            assert decoder(values) == (data, errors)
