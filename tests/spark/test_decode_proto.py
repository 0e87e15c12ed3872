"""Protocol Buffers to columns, against the runtime: random messages come out as they went in, and what is damaged is an error row.

What a message should become is worked out here from the values that were put into it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from braidmq.schemas.proto_schema import ProtobufSchema
from braidmq.spark.decode_proto import ProtobufDecoder

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), st.integers(-(2**31), 2**31 - 1)),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), st.integers(-(2**63), 2**63 - 1)),
    **dict.fromkeys(("uint32", "fixed32"), st.integers(0, 2**32 - 1)),
    **dict.fromkeys(("uint64", "fixed64"), st.integers(0, 2**64 - 1)),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "string": st.text(max_size=12),
    "bytes": st.binary(max_size=12),
    "Color": st.integers(0, 5),
    "google.protobuf.Timestamp": st.integers(-62_135_596_800 * 10**6, 253_402_300_799 * 10**6),
    "Inner": st.fixed_dictionaries({"a": st.integers(-5, 5), "b": st.lists(st.text(max_size=3), max_size=2)}),
}
KEYS = ("int32", "uint64", "bool", "string", "sfixed64")
Field = tuple[str, str, str]
"""How often, type, and the type of keys of a map."""


@st.composite
def definitions(draw: st.DrawFn) -> tuple[str, list[Field]]:
    fields: list[Field] = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(sorted(SCALARS)))
        fields.append((draw(st.sampled_from(["", "optional", "repeated", "map"])), kind, draw(st.sampled_from(KEYS))))
    lines = []
    for number, (how, kind, key) in enumerate(fields, 1):
        written = f"map<{key}, {kind}>" if how == "map" else f"{how} {kind}".strip()
        lines.append(f"  {written} f{number} = {number * 3};")
    text = '\n'.join([
        'syntax = "proto3";', 'import "google/protobuf/timestamp.proto";', "message M {", *lines, "}",
        "message Inner { int32 a = 1; repeated string b = 2; }", "enum Color { RED = 0; GREEN = 1; BLUE = 2; }",
    ])  # fmt: skip
    return text, fields


def values(fields: list[Field]) -> st.SearchStrategy[dict[str, Any]]:
    parts: dict[str, st.SearchStrategy[Any]] = {}
    for number, (how, kind, key) in enumerate(fields, 1):
        one = SCALARS[kind]
        match how:
            case "repeated":
                parts[f"f{number}"] = st.lists(one, max_size=3)
            case "map":
                parts[f"f{number}"] = st.dictionaries(SCALARS[key], one, max_size=3)
            case _:
                parts[f"f{number}"] = st.none() | one
    return st.fixed_dictionaries(parts)


def put(target: Any, kind: str, value: Any) -> None:
    """Fill a message that is itself a value."""
    if kind == "Inner":
        target.a = value["a"]
        target.b.extend(value["b"])
    else:
        target.seconds, target.nanos = value // 10**6, value % 10**6 * 1000
    target.SetInParent()


def message_of(schema: ProtobufSchema, fields: list[Field], row: dict[str, Any]) -> bytes:
    made = message_factory.GetMessageClass(schema.descriptor)()
    for number, (how, kind, _) in enumerate(fields, 1):
        name, value = f"f{number}", row[f"f{number}"]
        inner = kind in ("Inner", "google.protobuf.Timestamp")
        if value is None:
            continue
        if how == "repeated":
            for each in value:
                put(getattr(made, name).add(), kind, each) if inner else getattr(made, name).append(each)
        elif how == "map":
            for key, each in value.items():
                if inner:
                    put(getattr(made, name)[key], kind, each)
                else:
                    getattr(made, name)[key] = each
        elif inner:
            put(getattr(made, name), kind, value)
        else:
            setattr(made, name, value)
    whole: bytes = made.SerializeToString()
    return whole


def plain(kind: str, value: Any) -> Any:
    if value is None:
        return None
    match kind:
        case "uint64" | "fixed64":
            return Decimal(value)
        case "Color":
            return {0: "RED", 1: "GREEN", 2: "BLUE"}.get(value, str(value))
        case "google.protobuf.Timestamp":
            return EPOCH + timedelta(microseconds=value)
        case "Inner":
            return {"a": value["a"], "b": value["b"]}
    return value


def expected(fields: list[Field], row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, (how, kind, key) in enumerate(fields, 1):
        value = row[f"f{number}"]
        if how == "repeated":
            found[f"f{number}"] = [plain(kind, each) for each in value]
        elif how == "map":
            found[f"f{number}"] = sorted(((str(plain(key, name)), plain(kind, each)) for name, each in value.items()), key=repr)
        elif value is None and how == "" and kind not in ("Inner", "google.protobuf.Timestamp"):
            # A field that cannot say that it was not set has its default.
            default: Any = {"string": "", "bytes": b"", "bool": False, "float": 0.0, "double": 0.0}.get(kind, 0)
            found[f"f{number}"] = plain(kind, default)
        else:
            found[f"f{number}"] = plain(kind, value)
    return found


def shown(fields: list[Field], row: dict[str, Any]) -> dict[str, Any]:
    """Maps have no order, and keys of several kinds none that Python knows."""
    return {
        name: sorted(((str(key), each) for key, each in value), key=repr) if fields[int(name[1:]) - 1][0] == "map" else value
        for name, value in row.items()
    }


@given(st.data())
def test_messages_come_out_as_they_went_in(data: st.DataObject) -> None:
    text, fields = data.draw(definitions())
    rows = data.draw(st.lists(values(fields), max_size=5))
    schema, decoder = ProtobufSchema(text.encode()), ProtobufDecoder(text.encode())
    found, error = decoder(pa.array([message_of(schema, fields, row) for row in rows], pa.binary()))
    found.validate(full=True)
    assert found.type == decoder.type and error.null_count == len(rows)
    assert [shown(fields, row) for row in found.to_pylist()] == [expected(fields, row) for row in rows]


@given(st.data())
def test_what_is_damaged_is_an_error_and_never_another_value(data: st.DataObject) -> None:
    text, fields = data.draw(definitions())
    schema, decoder = ProtobufSchema(text.encode()), ProtobufDecoder(text.encode())
    whole = [message_of(schema, fields, row) for row in data.draw(st.lists(values(fields), min_size=1, max_size=4))]
    given_values: list[bytes | None] = []
    for value in whole:
        cut = data.draw(st.integers(0, len(value)))
        byte = data.draw(st.binary(min_size=1, max_size=1))
        choices = [value, value[:cut], value[:cut] + byte + value[cut + 1 :], data.draw(st.binary(max_size=20)), None]
        given_values.append(data.draw(st.sampled_from(choices)))
    found, error = decoder(pa.array(given_values, pa.binary()))
    found.validate(full=True)
    kind = message_factory.GetMessageClass(schema.descriptor)
    for number, value in enumerate(given_values):
        row, fault = found[number], error[number].as_py()
        assert row.is_valid == (fault is None), "a row has data or an error"
        if value is None:
            assert fault == "there is no value"
            continue
        try:
            message = kind.FromString(value)
        except DecodeError:
            assert fault is not None
            continue
        if fault is None:
            alone, none = decoder(pa.array([message.SerializeToString()], pa.binary()))
            # As text, because there may be numbers among them that are not equal to themselves.
            assert none[0].as_py() is None
            assert repr(shown(fields, alone[0].as_py())) == repr(shown(fields, row.as_py())), "its neighbours change nothing"


@pytest.mark.parametrize(("seconds", "nanos"), [(2**62, 0), (-(2**62), 0), (253_402_300_800, 0), (0, -1), (0, 10**9)])
def test_a_time_that_is_none_is_an_error_of_its_row(seconds: int, nanos: int) -> None:
    text = b'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message M { repeated google.protobuf.Timestamp t = 1; }'
    kind = message_factory.GetMessageClass(ProtobufSchema(text).descriptor)
    good, bad = kind(), kind()
    good.t.add(seconds=1)
    bad.t.add(seconds=1)
    bad.t.add(seconds=seconds, nanos=nanos)
    found, error = ProtobufDecoder(text)(
        pa.array([good.SerializeToString(), bad.SerializeToString(), good.SerializeToString()], pa.binary())
    )
    assert [row is None for row in found.to_pylist()] == [False, True, False]
    assert "is not between the years" in error[1].as_py() and error.null_count == 2


def test_required_fields_and_messages_within_themselves() -> None:
    required = b"message M { required int32 a = 1; optional int32 b = 2; }"
    found, error = ProtobufDecoder(required)(pa.array([b"\x08\x05", b"\x10\x05", b""], pa.binary()))
    assert found.to_pylist()[0] == {"a": 5, "b": None}
    assert [row is None for row in found.to_pylist()] == [False, True, True], "what lacks a required field is no message"
    assert "a" in error[1].as_py()
    tree = b'syntax = "proto3"; message T { int32 n = 1; T next = 2; }'
    found, error = ProtobufDecoder(tree)(pa.array([b"\x08\x01\x12\x02\x08\x02"], pa.binary()))
    assert found.to_pylist() == [{"n": 1, "next": b"\x08\x02"}] and error.null_count == 1
