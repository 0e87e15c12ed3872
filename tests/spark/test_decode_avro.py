"""Avro to columns, against fastavro: random schemas and values come out as they went in, and what is damaged is an error row.

What a value should become is worked out here from the value that was written, not from what a decoder read.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.spark.decode_avro import AvroDecoder, FlatAvroDecoder, avro_decoder

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FLAT: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "boolean": st.booleans(),
    "string": st.text(max_size=20),
    "bytes": st.binary(max_size=20),
}
Typed = tuple[Any, st.SearchStrategy[Any]]


def optional(kind: Any, values: st.SearchStrategy[Any], order: int) -> Typed:
    branches = ["null", kind] if order else [kind, "null"]
    return branches, st.none() | values


@st.composite
def flat_types(draw: st.DrawFn) -> Typed:
    kind = draw(st.sampled_from(sorted(FLAT)))
    values = FLAT[kind]
    return draw(st.sampled_from([(kind, values), optional(kind, values, 0), optional(kind, values, 1), ({"type": kind}, values)]))


@st.composite
def deep_types(draw: st.DrawFn, depth: int = 2) -> Typed:
    number = draw(st.integers(0, 10**9))
    leaves: list[Typed] = [
        draw(flat_types()),
        ({"type": "enum", "name": f"E{number}", "symbols": ["A", "B"]}, st.sampled_from(["A", "B"])),
        ({"type": "fixed", "name": f"F{number}", "size": 3}, st.binary(min_size=3, max_size=3)),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            st.integers(-(10**11), 10**12).map(lambda n: EPOCH + timedelta(milliseconds=n)),
        ),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            st.integers(-(10**14), 10**15).map(lambda n: EPOCH + timedelta(microseconds=n)),
        ),
        ({"type": "int", "logicalType": "date"}, st.dates(date(1000, 1, 1), date(3000, 1, 1))),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
            st.integers(-(10**11), 10**11).map(lambda n: Decimal(n).scaleb(-3)),
        ),
        (["string", "long", "null"], st.none() | st.text(max_size=5) | FLAT["long"]),
    ]
    if depth:
        inner, values = draw(deep_types(depth - 1))
        leaves += [
            ({"type": "array", "items": inner}, st.lists(values, max_size=3)),
            ({"type": "map", "values": inner}, st.dictionaries(st.text(max_size=5), values, max_size=3)),
            draw(records(depth - 1)),
        ]
    return draw(st.sampled_from(leaves))


@st.composite
def records(draw: st.DrawFn, depth: int = 2) -> Typed:
    parts = draw(st.lists(deep_types(depth), min_size=1, max_size=3))
    fields = [{"name": f"f{index}", "type": kind} for index, (kind, _) in enumerate(parts)]
    number = draw(st.integers(0, 10**9))
    strategy = st.fixed_dictionaries({f"f{index}": values for index, (_, values) in enumerate(parts)})
    return {"type": "record", "name": f"R{number}", "fields": fields}, strategy


@st.composite
def flat_records(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    parts = draw(st.lists(flat_types(), min_size=1, max_size=6))
    schema = {"type": "record", "name": "R", "fields": [{"name": f"f{i}", "type": kind} for i, (kind, _) in enumerate(parts)]}
    rows = st.fixed_dictionaries({f"f{i}": values for i, (_, values) in enumerate(parts)})
    return schema, draw(st.lists(rows, max_size=8))


@st.composite
def deep_records(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    schema, rows = draw(records())
    return schema, draw(st.lists(rows, max_size=5))


def encoded(schema: Any, value: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def expected(schema: Any, value: Any) -> Any:
    """What a value becomes, as `to_pylist` shows it."""
    if isinstance(schema, list):
        others = [branch for branch in schema if branch != "null"]
        if len(others) > 1:
            return None if value is None else json.dumps(value)
        return None if value is None else expected(others[0], value)
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(kind, dict | list):
        return expected(kind, value)
    match kind:
        case "record":
            return {field["name"]: expected(field["type"], value[field["name"]]) for field in schema["fields"]}
        case "array":
            return [expected(schema["items"], each) for each in value]
        case "map":
            return [(key, expected(schema["values"], each)) for key, each in value.items()]
    return value


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) and isinstance(found, float):
        return found == wanted or (math.isnan(found) and math.isnan(wanted))
    if isinstance(wanted, dict) and isinstance(found, dict):
        return found.keys() == wanted.keys() and all(same(found[name], wanted[name]) for name in wanted)
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, tuple) and isinstance(found, tuple):
        return same(list(found), list(wanted))
    return type(found) is type(wanted) and bool(found == wanted)


@given(flat_records())
def test_flat_records_come_out_as_they_went_in(case: tuple[Any, list[Any]]) -> None:
    schema, rows = case
    decoder = avro_decoder(json.dumps(schema).encode())
    assert isinstance(decoder, FlatAvroDecoder)
    data, error = decoder(pa.array([encoded(schema, row) for row in rows], pa.binary()))
    assert data.type == decoder.type and error.null_count == len(rows)
    assert all(map(same, data.to_pylist(), [expected(schema, row) for row in rows]))
    data.validate(full=True)


@given(deep_records())
def test_any_records_come_out_as_they_went_in(case: tuple[Any, list[Any]]) -> None:
    schema, rows = case
    decoder = avro_decoder(json.dumps(schema).encode())
    data, error = decoder(pa.array([encoded(schema, row) for row in rows], pa.binary()))
    assert data.type == decoder.type and error.null_count == len(rows), error
    assert all(map(same, data.to_pylist(), [expected(schema, row) for row in rows])), (data, rows)
    data.validate(full=True)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Any, list[Any], list[bytes | None]]:
    """Rows of which some are whole, some are cut, lengthened or changed, some are nothing, and some were never Avro."""
    schema, rows = draw(flat_records() | deep_records())
    values: list[bytes | None] = []
    for row in rows:
        value = encoded(schema, row)
        match draw(st.integers(0, 5)):
            case 0:
                value = value[: draw(st.integers(0, len(value)))]
            case 1:
                value += draw(st.binary(max_size=3))
            case 2 if value:
                at = draw(st.integers(0, len(value) - 1))
                value = value[:at] + draw(st.binary(min_size=1, max_size=1)) + value[at + 1 :]
            case 3:
                value = draw(st.binary(max_size=30))
            case 4 if draw(st.booleans()):
                values.append(None)
                continue
        values.append(value)
    return schema, rows, values


@given(damaged())
def test_what_is_damaged_is_an_error_and_never_another_value(case: tuple[Any, list[Any], list[bytes | None]]) -> None:
    schema, _, values = case
    decoder = avro_decoder(json.dumps(schema).encode())
    data, error = decoder(pa.array(values, pa.binary()))
    data.validate(full=True)
    parsed = fastavro.parse_schema(schema)
    for value, row, fault in zip(values, data.to_pylist(), error.to_pylist(), strict=True):
        assert (row is None) == (fault is not None), "a row has data or an error"
        if value is None:
            assert fault == "there is no value"
        elif fault is None:
            # Taken as good: then another implementation reads the same from it, to the last byte.
            source = BytesIO(value)
            read = fastavro.schemaless_reader(source, parsed)
            assert source.tell() == len(value)
            assert same(row, expected(schema, read)), (row, read)


@given(flat_records())
def test_slices_of_columns_are_decoded_alike(case: tuple[Any, list[Any]]) -> None:
    """Arrow hands over parts of longer columns, which begin somewhere in their buffers."""
    schema, rows = case
    decoder = avro_decoder(json.dumps(schema).encode())
    values = pa.array([b"\xff" * 5, *[encoded(schema, row) for row in rows], b"junk"], pa.binary()).slice(1, len(rows))
    data, error = decoder(values)
    assert error.null_count == len(rows)
    assert all(map(same, data.to_pylist(), [expected(schema, row) for row in rows]))


@pytest.mark.parametrize(
    ("schema", "value", "told"),
    [
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}, b"\x80" * 11, "invalid Avro"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}, b"\x04\xff\xff", "invalid Avro"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "boolean"}]}, b"\x02", "invalid Avro"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "int"]}]}, b"\x04\x02", "invalid Avro"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}, b"\x80\x80\x80\x80\x20", "invalid Avro"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "bytes"}]}, b"\x01", "invalid Avro"),
        ({"type": "array", "items": "long"}, b"\x02", "invalid Avro"),
    ],
)
def test_what_is_wrong_is_said(schema: Any, value: bytes, told: str) -> None:
    good = encoded(schema, [1] if schema["type"] == "array" else {"a": {"string": "x", "boolean": True, "bytes": b""}.get(
        str(schema["fields"][0]["type"]), 1)})  # fmt: skip
    data, error = avro_decoder(json.dumps(schema).encode())(pa.array([good, value, good], pa.binary()))
    assert data[0].as_py() == data[2].as_py() is not None and data[1].as_py() is None
    assert error[0].as_py() is None and told in error[1].as_py()


def test_a_type_that_is_no_record_is_wrapped_and_one_within_itself_is_text() -> None:
    data, _ = avro_decoder(b'"long"')(pa.array([encoded("long", 7)], pa.binary()))
    assert data.to_pylist() == [{"value": 7}]
    tree = {"type": "record", "name": "T", "fields": [{"name": "n", "type": "int"}, {"name": "next", "type": ["null", "T"]}]}
    decoder = avro_decoder(json.dumps(tree).encode())
    assert isinstance(decoder, AvroDecoder)
    data, error = decoder(pa.array([encoded(tree, {"n": 1, "next": {"n": 2, "next": None}})], pa.binary()))
    assert error.to_pylist() == [None]
    assert json.loads(data.to_pylist()[0]["next"]) == {"n": 2, "next": None}


@pytest.mark.parametrize(
    ("kind", "plain", "value"),
    [
        ({"type": "long", "logicalType": "timestamp-millis"}, "long", 2**62),
        ({"type": "long", "logicalType": "timestamp-micros"}, "long", 2**63 - 1),
        ({"type": "int", "logicalType": "date"}, "int", 2**31 - 1),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}, "bytes", b"\x7f" * 10),
        ({"type": "string", "logicalType": "uuid"}, "string", "no uuid"),
        ({"type": "long", "logicalType": "time-micros"}, "long", 2**50),
    ],
)
def test_values_beyond_their_type_are_errors_of_their_row(kind: dict[str, Any], plain: str, value: Any) -> None:
    """Sound bytes of a value that no column can hold: neither the other rows nor the task suffer."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}
    good = encoded(plain, "6f9619ff-8b86-d011-b42d-00c04fc964ff" if plain == "string" else b"\x01" if plain == "bytes" else 1)
    data, error = avro_decoder(json.dumps(schema).encode())(pa.array([good, encoded(plain, value), good], pa.binary()))
    assert [row is None for row in data.to_pylist()] == [False, True, False]
    assert [text is None for text in error.to_pylist()] == [True, False, True]


def test_a_nan_that_signals_is_a_nan() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "float"}]}
    data, error = avro_decoder(json.dumps(schema).encode())(pa.array([b"\x01\x00\xa0\x7f"], pa.binary()))
    assert math.isnan(data.to_pylist()[0]["a"]) and error.null_count == 1


def test_a_decimal_that_spark_cannot_hold_is_its_text() -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 2}
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}
    value = Decimal("12345678901234567890123456789012345678901234567890.12")
    data, error = avro_decoder(json.dumps(schema).encode())(pa.array([encoded(schema, {"a": value})], pa.binary()))
    assert (data.to_pylist(), error.to_pylist()) == ([{"a": str(value)}], [None])
