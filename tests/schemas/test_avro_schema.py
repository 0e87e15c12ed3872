"""Avro: what fastavro writes passes, and every other byte string is refused for a reason."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proof_length import length

from braidmq.base.errors import BraidError
from braidmq.schemas.compiling import compile_schema
from braidmq.schemas.schema import Schema


def compiled(document: Any) -> Schema:
    return compile_schema("avro", json.dumps(document).encode())


def written(document: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(document), value)
    return out.getvalue()


LIST = {"type": "record", "name": "Node", "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "Node"]}]}
MIXED = {
    "type": "record",
    "name": "a.b.Mixed",
    "fields": [
        {"name": "i", "type": "int"},
        {"name": "l", "type": "long"},
        {"name": "f", "type": "float"},
        {"name": "d", "type": "double"},
        {"name": "b", "type": "boolean"},
        {"name": "s", "type": "string"},
        {"name": "y", "type": "bytes"},
        {"name": "n", "type": "null"},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "x", "type": {"type": "fixed", "name": "F", "size": 3}},
        {"name": "a", "type": {"type": "array", "items": "long"}},
        {"name": "m", "type": {"type": "map", "values": "string"}},
        {"name": "u", "type": ["null", "string", "E"]},
    ],
}
VALUES = st.fixed_dictionaries(
    {
        "i": st.integers(-(2**31), 2**31 - 1),
        "l": st.integers(-(2**63), 2**63 - 1),
        "f": st.floats(width=32, allow_nan=False),
        "d": st.floats(allow_nan=False),
        "b": st.booleans(),
        "s": st.text(max_size=80),
        "y": st.binary(max_size=80),
        "n": st.none(),
        "e": st.sampled_from("AB"),
        "x": st.binary(min_size=3, max_size=3),
        "a": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
        "m": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4),
        "u": st.none() | st.text(max_size=5),
    }
)
SCHEMA = compiled(MIXED)


@given(VALUES)
@settings(max_examples=length(60, 200), deadline=None)
def test_what_was_written_passes_and_every_cut_of_it_fails(value: dict[str, Any]) -> None:
    message = written(MIXED, value)
    assert SCHEMA.check(message) == []
    assert SCHEMA.check(message + b"\0") == ["invalid Avro message: 1 bytes are left over"]
    for cut in range(len(message)):
        assert SCHEMA.check(message[:cut]), cut


@given(st.binary(max_size=60))
@settings(max_examples=length(100, 500), deadline=None)
def test_any_bytes_that_pass_are_read_whole_by_fastavro(message: bytes) -> None:
    parsed = fastavro.parse_schema(MIXED)
    stream = io.BytesIO(message)
    if SCHEMA.check(message) == []:
        fastavro.schemaless_reader(stream, parsed, None)
        assert stream.tell() == len(message)


@pytest.mark.parametrize(
    ("schema", "message", "reason"),
    [
        ("boolean", b"\x02", "a boolean is 0 or 1"),
        ("int", b"\xfe\xff\xff\xff\x1f", "does not fit an int"),
        ("long", b"\xff" * 11, "longer than 64 bits"),
        ("long", b"\xff" * 9 + b"\x7f", "longer than 64 bits"),
        ("string", b"\x02\xff", "not UTF-8"),
        ("string", b"\x01", "negative"),
        ("bytes", b"\x01", "negative"),
        ("bytes", b"\x04a", "too early"),
        ("string", b"\x04a", "too early"),
        ("double", b"1234567", "too early"),
        (["null", "int"], b"\x04", "no branch 2"),
        (["null", "int"], b"\x01", "no branch -1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "no symbol 1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01", "no symbol -1"),
        ({"type": "fixed", "name": "F", "size": 4}, b"abc", "too early"),
        ({"type": "array", "items": "int"}, b"\x04\x02\x02", "too early"),
        ({"type": "array", "items": "int"}, b"\x01\x04\x02\x00", "not as long as it says"),
        ({"type": "map", "values": "null"}, b"\x80\x80\x80\x10\x00", "cannot be in"),
        (LIST, b"\x02\x02\x02\x06", "no branch 3 at next.next"),
    ],
)
def test_a_message_that_does_not_fit(schema: Any, message: bytes, reason: str) -> None:
    (error,) = compiled(schema).check(message)
    assert error.startswith("invalid Avro message: ") and reason in error


def test_forms_that_are_rare_but_right() -> None:
    assert compiled({"type": "array", "items": "int"}).check(b"\x01\x02\x02\x02\x04\x00") == []
    assert compiled({"type": "array", "items": "null"}).check(b"\x80\x80\x80\x80\x80\x80\x10\x00") == []
    assert compiled("null").check(b"") == []
    assert compile_schema("avro", b"string").check(b"\x02a") == []
    assert compiled({"type": "record", "name": "R", "fields": []}).check(b"") == []
    assert compiled({"type": "fixed", "name": "F", "size": 0}).check(b"") == []
    assert compiled(LIST).check(b"\x02\x02\x04\x00") == []


@pytest.mark.parametrize(
    "definition",
    [
        b"{",
        b"5",
        b"\xff",
        b'{"type":"foo"}',
        b'{"type":"record","name":"A"}',
        b'{"type":"record","name":"A","fields":5}',
        b'{"type":"record","name":"A","fields":[{"name":"x","type":"A"}]}',
        b'{"type":"record","name":"A","fields":[{"name":"x","type":"int","default":"s"}]}',
        b'["int","int"]',
        b'[["int"],"string"]',
        b'{"type":"enum","name":"E","symbols":["A","A"]}',
        b'{"type":"fixed","name":"F","size":"x"}',
        b'{"type":"fixed","name":"F","size":-1}',
        b'{"type":"array"}',
    ],
)
def test_a_definition_that_is_wrong(definition: bytes) -> None:
    with pytest.raises(BraidError) as caught:
        compile_schema("avro", definition)
    assert caught.value.code == "SCHEMA_INVALID"


def test_an_equal_definition_has_an_equal_fingerprint() -> None:
    one = compile_schema("avro", b'{"type":"record","name":"a.R","doc":"x","fields":[{"name":"x","type":{"type":"int"}}]}')
    other = compile_schema("avro", b'{"fields":[ {"type":"int","name":"x"}], "namespace":"a","name":"R","type":"record"}')
    assert one.fingerprint == other.fingerprint
    added = compile_schema("avro", b'{"type":"record","name":"a.R","fields":[{"name":"x","type":"int","default":1}]}')
    assert added.fingerprint != one.fingerprint, "a default decides what can be read"
