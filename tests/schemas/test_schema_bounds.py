"""Hostile definitions and messages: each costs little, and none ends the process."""

from __future__ import annotations

import json
import threading
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proof_length import length

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.schemas.compiling import compile_schema
from braidmq.schemas.json_depth import json_depth

DEEP = 100_000
SECONDS_MAX = 10.0
"""What the slowest case may take on a busy machine; without its bound each one takes hours, or ends the process."""


def refused(kind: str, definition: bytes) -> str:
    began = process_time()
    with pytest.raises(BraidError) as caught:
        compile_schema(kind, definition)
    assert caught.value.code == "SCHEMA_INVALID"
    assert process_time() - began < SECONDS_MAX
    assert len(caught.value.text) < limits.SCHEMA_REASON_CHARS_MAX + 100
    return caught.value.text


def checked(kind: str, definition: bytes, message: bytes) -> list[str]:
    schema = compile_schema(kind, definition)
    began = process_time()
    errors = schema.check(message)
    assert process_time() - began < SECONDS_MAX
    assert len(errors) <= limits.SCHEMA_ERRORS_MAX
    return errors


@pytest.mark.parametrize("kind", ["json", "avro", "protobuf"])
def test_a_giant_definition(kind: str) -> None:
    assert "are more than" in refused(kind, b" " * limits.SCHEMA_DEFINITION_BYTES_MAX + b"{}")


@pytest.mark.parametrize(
    ("kind", "definition"),
    [
        ("json", b'{"not":' * 30_000 + b"{}" + b"}" * 30_000),
        ("json", b"[" * DEEP),
        ("json", b'{"a":' * 50_000),
        ("avro", b"[" * DEEP + b"]" * DEEP),
        ("avro", b'{"type":"array","items":' * 9000 + b'"int"' + b"}" * 9000),
        ("protobuf", b'syntax="proto3"; ' + b"message A {" * 20_000),
        ("protobuf", b'syntax="proto3"; message A { option x = ' + b"{" * DEEP),
        ("protobuf", b"/*" * DEEP),
        ("protobuf", b'"' + b"\\" * DEEP),
        ("protobuf", b"\x0a\x7f\x00" * 60_000),
    ],
)
def test_a_deep_definition(kind: str, definition: bytes) -> None:
    refused(kind, definition)


def test_the_depth_of_a_definition_is_exact() -> None:
    def nested(levels: int) -> bytes:
        return b'{"not":' * (levels - 1) + b"{}" + b"}" * (levels - 1)

    compile_schema("json", nested(limits.SCHEMA_DEPTH_MAX))
    assert "nested deeper" in refused("json", nested(limits.SCHEMA_DEPTH_MAX + 1))


def test_the_depth_of_a_message_is_exact() -> None:
    schema = compile_schema("json", b"{}")
    deepest = limits.SCHEMA_DEPTH_MAX
    assert schema.check(b"[" * deepest + b"]" * deepest) == []
    assert schema.check(b"[" * (deepest + 1) + b"]" * (deepest + 1)) == [
        f"invalid JSON message: nested deeper than {deepest} levels"
    ]
    assert schema.check(b"[" + b"[]," * 5000 + b"[]]") == [], "wide is not deep"
    assert schema.check(json.dumps(["[" * 500]).encode()) == [], "brackets in a string are text"


def test_messages_that_nest_100_000_levels() -> None:
    recursive = b'{"properties":{"a":{"$ref":"#"}},"items":{"$ref":"#"}}'
    for message in (b"[" * DEEP, b'{"a":' * DEEP, b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP):
        assert checked("json", recursive, message)
    node = b'{"type":"record","name":"N","fields":[{"name":"n","type":["null","N"]}]}'
    assert "nested deeper" in checked("avro", node, b"\x02" * DEEP + b"\0")[0]
    lists = b'{"type":"record","name":"N","fields":[{"name":"n","type":{"type":"array","items":"N"}}]}'
    assert "nested deeper" in checked("avro", lists, b"\x02" * DEEP + b"\0")[0]
    message = b""
    for _ in range(3000):
        message = b"\x0a" + _varint(len(message)) + message
    assert checked("proto", b'syntax="proto3"; message A { A a = 1; }', message)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


@pytest.mark.parametrize(
    ("kind", "definition"), [("json", b"{}"), ("avro", b'"bytes"'), ("proto", b'syntax="proto3"; message A { bytes a = 1; }')]
)
def test_a_message_over_the_limit(kind: str, definition: bytes) -> None:
    (error,) = checked(kind, definition, b'"' * (limits.SCHEMA_MESSAGE_BYTES_MAX + 1))
    assert f"more than {limits.SCHEMA_MESSAGE_BYTES_MAX}" in error


@pytest.mark.parametrize("unit", [b"0,", b"[],", b"{},", b'"",', b'"\\"[",'])
def test_a_message_at_the_limit(unit: bytes) -> None:
    message = b"[" + unit * (limits.SCHEMA_MESSAGE_BYTES_MAX // len(unit) - 2) + b"0]"
    assert len(message) <= limits.SCHEMA_MESSAGE_BYTES_MAX
    assert checked("json", b'{"type":"array"}', message) == []


def test_a_large_message_with_an_error_in_every_value() -> None:
    message = b"[" + b"0," * 500_000 + b"0]"
    assert len(message) > limits.SCHEMA_LIGHT_BYTES_MAX and limits.SCHEMA_LISTED_WORK_MAX < 500_000
    assert checked("json", b'{"items":{"type":"string"}}', message) == ["type mismatch at [0]: expected string, got integer"]
    few = b"[" + b"0," * 4000 + b"0]"
    assert len(checked("json", b'{"items":{"type":"string"}}', few)) == limits.SCHEMA_ERRORS_MAX


def test_an_error_text_is_cut() -> None:
    (error,) = checked("json", b'{"maxLength":1}', b'"' + b"a" * 10_000 + b'"')
    assert len(error) <= limits.SCHEMA_REASON_CHARS_MAX


def test_values_times_evaluations() -> None:
    wide = json.dumps({"items": {"enum": list(range(20_000))}}).encode()
    message = b"[" + b'"",' * 500_000 + b"0]"
    assert limits.SCHEMA_WORK_MAX < 500_000 * 20_000
    assert "too many values" in checked("json", wide, message)[0]
    assert checked("json", wide, b"[1,2,3]") == []


def test_references_that_double() -> None:
    names: dict[str, Any] = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(60)}
    doubling = json.dumps({"$ref": "#/$defs/a0", "$defs": names | {"a60": {"type": "integer"}}}).encode()
    assert str(limits.SCHEMA_EVALUATIONS_MAX) in refused("json", doubling)
    below: dict[str, Any] = {f"a{n}": {"properties": {"x": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2}}} for n in range(60)}
    definition = json.dumps({"$ref": "#/$defs/a0", "$defs": below | {"a60": {"type": "integer"}}}).encode()
    assert checked("json", definition, b'{"x":{"x":{}}}') == []
    assert "too deep, for this schema" in checked("json", definition, b'{"x":' * 60 + b'"a"' + b"}" * 60)[0]


def test_references_that_come_back() -> None:
    recursive = json.dumps(
        {"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#", "title": "x"}]}}, "required": ["v"]}
    ).encode()
    assert checked("json", recursive, b'{"v":1,"a":' * 9 + b'{"v":1}' + b"}" * 9) == []
    assert checked("json", recursive, b'{"v":1,"a":' * 9 + b"{}" + b"}" * 9)
    assert checked("json", recursive, b'{"v":1,"a":' * 16 + b"{}" + b"}" * 16)
    assert "for this schema" in checked("json", recursive, b'{"v":1,"a":' * 90 + b'{"v":1}' + b"}" * 90)[0]
    once = b'{"properties":{"a":{"$ref":"#"}},"required":["v"]}'
    assert checked("json", once, b'{"v":1,"a":' * 90 + b'{"v":1}' + b"}" * 90) == []


def test_chains_of_references() -> None:
    names = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(5000)}
    chain = json.dumps({"$ref": "#/$defs/a0", "$defs": names | {"a5000": {"type": "null"}}}).encode()
    assert checked("json", chain, b"null") == [] and checked("json", chain, b"1")
    records = [{"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}]
    records += [{"type": "record", "name": f"R{n}", "fields": [{"name": "x", "type": f"R{n - 1}"}]} for n in range(1, 3000)]
    schema = compile_schema("avro", json.dumps(records).encode())
    assert "nested deeper" in schema.check(_varint(2999 * 2) + b"\x02")[0]
    with pytest.raises(BraidError, match="to be compared"):
        schema.reads(schema)


def test_patterns_do_not_backtrack() -> None:
    message = json.dumps("a" * 100_000 + "b").encode()
    assert checked("json", b'{"pattern":"^(a+)+$"}', message)
    assert checked("json", b'{"pattern":"^(a|a)*$"}', message)
    refused("json", b'{"pattern":"((a{1000}){1000}){1000}"}')


def test_values_that_must_differ() -> None:
    message = b"[" + b",".join(b'{"a":%d}' % n for n in range(300_000)) + b"]"
    assert checked("json", b'{"uniqueItems":true}', message) == []


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (b'{"type":"array","items":"null"}', b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00"),
        (b'{"type":"array","items":{"type":"array","items":"null"}}', b"\x80\x80\x08" + b"\xfe\xff\xff\xff\x0f\x00" * 100_000),
        (b'{"type":"array","items":{"type":"record","name":"Z","fields":[]}}', b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00"),
        (b'{"type":"bytes"}', b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"),
        (b'{"type":"fixed","name":"F","size":9000000000000000000}', b"a"),
        (b'{"type":"map","values":"null"}', b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00"),
    ],
)
def test_avro_counts_that_lie(definition: bytes, message: bytes) -> None:
    checked("avro", definition, message)


def test_a_protobuf_message_of_millions_of_messages() -> None:
    definition = b'syntax="proto3"; message A { repeated B b = 1; message B { int32 x = 1; } }'
    message = b"\x0a\x00" * (limits.SCHEMA_MESSAGE_BYTES_MAX // 2 - 2)
    assert checked("proto", definition, message) == []
    assert checked("proto", definition, message + b"\x0a\x02\x10\x01") == ["unexpected field: somewhere in a large message"]


def test_the_check_runs_on_a_small_stack() -> None:
    """Worker threads have less room than the main one."""
    outcome: list[list[str]] = []
    deepest = limits.SCHEMA_DEPTH_MAX
    schema = compile_schema("json", b'{"items":{"$ref":"#"}}')
    before = threading.stack_size(256 * limits.KIB)
    try:
        thread = threading.Thread(target=lambda: outcome.append(schema.check(b"[" * deepest + b"]" * deepest)))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert outcome == [[]]


# --- the scan for depth


def _depth(value: Any) -> int:
    if isinstance(value, (list, dict)):
        return 1 + max((_depth(child) for child in (value.values() if isinstance(value, dict) else value)), default=0)
    return 0


DOCUMENTS = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a\\"[]{}é\n'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='k\\"{}['), inner, max_size=3),
    max_leaves=20,
)


@given(DOCUMENTS, st.booleans())
@settings(max_examples=length(100, 400), deadline=None)
def test_depth_without_parsing_is_depth(document: Any, ascii_only: bool) -> None:
    assert json_depth(json.dumps(document, ensure_ascii=ascii_only).encode()) == _depth(document)


def test_depth_across_pieces_of_the_scan() -> None:
    padding = '"' + "[" * 1_500_000 + '"'
    text = "[" * 7 + padding + "," + "[" * 3 + padding + "]" * 10
    assert json_depth(text.encode()) == 10


@pytest.mark.parametrize("kind", ["json", "avro", "proto"])
@given(definition=st.binary(max_size=200))
@settings(max_examples=length(50, 150), deadline=None)
def test_any_bytes_as_a_definition(kind: str, definition: bytes) -> None:
    try:
        compile_schema(kind, definition).check(definition)
    except BraidError as error:
        assert error.code == "SCHEMA_INVALID"


@given(
    st.lists(
        st.sampled_from(
            [
                "syntax",
                "=",
                '"proto3"',
                ";",
                "message",
                "A",
                "{",
                "int32",
                "a",
                "1",
                "}",
                "oneof",
                "map",
                "<",
                ",",
                ">",
                "enum",
                "reserved",
                "to",
                "[",
                "]",
                "option",
                "-",
                "(",
                ")",
                ".",
                "5",
            ]
        ),
        max_size=40,
    )
)
@settings(max_examples=length(100, 400), deadline=None)
def test_any_words_as_a_proto_file(words: list[str]) -> None:
    text = 'syntax = "proto3"; message A { ' + " ".join(words)
    try:
        compile_schema("proto", text.encode())
    except BraidError as error:
        assert error.code == "SCHEMA_INVALID"


AVRO_PARTS = st.recursive(
    st.sampled_from(["int", "null", "A", "record", 5, None, [], {}]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "name", "fields", "items", "values", "symbols", "size", "default", "aliases"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(AVRO_PARTS)
@settings(max_examples=length(100, 400), deadline=None)
def test_any_document_as_an_avro_schema(document: Any) -> None:
    try:
        schema = compile_schema("avro", json.dumps(document).encode())
        schema.check(b"\0")
        assert schema.reads(schema) == []
    except BraidError as error:
        assert error.code == "SCHEMA_INVALID"


JSON_PARTS = st.recursive(
    st.sampled_from(["integer", "#", "a", 5, None, True, -1]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "allOf", "anyOf", "$ref", "enum", "required", "minimum", "$defs", "$id", "a", "not"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON_PARTS)
@settings(max_examples=length(100, 400), deadline=None)
def test_any_document_as_a_json_schema(document: Any) -> None:
    try:
        schema = compile_schema("json", json.dumps(document).encode())
        schema.check(b'{"a":[1]}')
        schema.reads(schema)
    except BraidError as error:
        assert error.code == "SCHEMA_INVALID"
