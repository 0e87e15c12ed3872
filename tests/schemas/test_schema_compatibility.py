"""Compatibility: each rule of each kind once as allowed and once as refused, and the modes that use them."""

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
from braidmq.schemas.compatibility import MODES, check_mode, incompatibilities
from braidmq.schemas.compiling import compile_schema
from braidmq.schemas.schema import Schema


def schema(kind: str, definition: Any) -> Schema:
    return compile_schema(
        kind, (definition if isinstance(definition, str) and kind == "proto" else json.dumps(definition)).encode()
    )


def faults(kind: str, reader: Any, writer: Any) -> list[str]:
    return schema(kind, reader).reads(schema(kind, writer))


def obj(properties: dict[str, Any], required: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), **more}


INT, TEXT, NUMBER = {"type": "integer"}, {"type": "string"}, {"type": "number"}

JSON_CASES = [
    # reader, writer, part of the reason ("" when it reads)
    (obj({"a": INT}, ("a",)), obj({"a": INT}), "field a is required"),
    (obj({"a": INT}), obj({"a": INT}, ("a",)), ""),
    (obj({"o": obj({"b": INT}, ("b",))}), obj({"o": obj({"b": INT})}), "field o.b is required"),
    ({"allOf": [obj({}, ("a",)), obj({"b": INT})]}, obj({"a": INT, "b": INT}), "field a is required"),
    (obj({"a": INT, "b": INT}, ("b",)), obj({"a": INT}), "field b is required"),
    (obj({"o": obj({"b": INT}, ("b",))}), obj({"o": obj({})}), "field o.b is required"),
    (obj({"a": NUMBER}), obj({"a": INT}), ""),
    (obj({"a": INT}), obj({"a": NUMBER}), "type of a changed"),
    (obj({"a": TEXT}), obj({"a": INT}), "integer does not fit string"),
    (obj({"a": {"type": ["string", "null"]}}), obj({"a": TEXT}), ""),
    (obj({"a": TEXT}), obj({"a": {}}), "any type does not fit string"),
    (obj({"a": TEXT, "new": INT}), obj({"a": TEXT}), ""),
    (obj({}), obj({"a": TEXT}), ""),
    (obj({}, additionalProperties=False), obj({"a": TEXT}, additionalProperties=False), "field a is not allowed"),
    (obj({"a": TEXT}, additionalProperties=False), obj({"a": TEXT}), "further fields at $"),
    (obj({"a": TEXT}), obj({"a": TEXT}, additionalProperties=False), ""),
    (obj({}, additionalProperties=INT), obj({"a": TEXT}, additionalProperties=False), "type of a changed"),
    (obj({}, additionalProperties=INT), obj({}, additionalProperties=TEXT), "type of * changed"),
    ({"enum": ["a", "b"]}, {"enum": ["a"]}, ""),
    ({"enum": ["a"]}, {"enum": ["a", "b"]}, 'no longer allows "b"'),
    ({"enum": ["a"]}, TEXT, "limited to an enumeration"),
    (TEXT, {"enum": ["a"]}, ""),
    (TEXT, {"enum": ["a", 1]}, "value 1 of $ does not fit string"),
    ({"const": "a"}, {"const": "b"}, 'no longer allows "b"'),
    ({"minimum": 1}, {"minimum": 2}, ""),
    ({"minimum": 2}, {"minimum": 1}, "minimum of $ is now 2, was 1"),
    ({"minimum": 2, "maximum": 3}, {"minimum": 2, "maximum": 3}, ""),
    (obj({"a": TEXT, "b": TEXT}), obj({"a": INT, "b": INT}), "type of b changed"),
    ({"maximum": 2}, {}, "maximum of $ is now 2"),
    ({"minimum": 2}, {"exclusiveMinimum": 2}, ""),
    ({"exclusiveMinimum": 2}, {"minimum": 2}, "exclusiveMinimum"),
    ({"minimum": 2}, {"enum": [2, 3]}, ""),
    ({"minimum": 2}, {"enum": [1, 3]}, "minimum"),
    ({"maxLength": 5}, {"maxLength": 6}, "maxLength"),
    ({"maxLength": 5}, {"maxLength": 4}, ""),
    ({"minItems": 0}, {}, ""),
    ({"pattern": "a"}, {"pattern": "a"}, ""),
    ({"pattern": "a"}, {"pattern": "b"}, "pattern of $ changed"),
    ({"pattern": "a"}, {}, "pattern of $ is new"),
    ({}, {"pattern": "a"}, ""),
    ({"uniqueItems": True}, {}, "uniqueItems"),
    ({"uniqueItems": False}, {}, ""),
    ({"items": INT}, {"items": TEXT}, "type of [] changed"),
    ({"items": INT}, {}, "type of [] changed"),
    ({"items": NUMBER}, {"items": INT}, ""),
    ({"$ref": "#/$defs/x", "$defs": {"x": INT}}, INT, ""),
    ({"$ref": "#/$defs/x", "$defs": {"x": INT}}, TEXT, "type of $ changed"),
    ({"allOf": [obj({}, ("a",)), obj({"b": INT})]}, obj({"a": INT, "b": INT}, ("a",)), ""),
    ({"allOf": [obj({}, ("z",)), obj({"b": INT})]}, obj({"b": INT}), "field z is required"),
    ({"allOf": [obj({"b": TEXT}), obj({"b": INT})]}, obj({"b": INT}), "type of b changed"),
    ({"anyOf": [INT, TEXT]}, INT, ""),
    ({"anyOf": [INT, TEXT]}, {"anyOf": [TEXT]}, ""),
    ({"anyOf": [INT, TEXT]}, {"type": "null"}, "no branch of anyOf"),
    ({"anyOf": [INT]}, {"anyOf": [INT, TEXT]}, "no branch of anyOf"),
    ({"not": TEXT}, {}, "not of $ is new"),
    (obj({"a": False}), obj({"a": INT}), "a is no longer allowed"),
    (obj({"n": {"$ref": "#"}, "v": INT}), obj({"n": {"$ref": "#"}, "v": INT}), ""),
    (obj({"n": {"$ref": "#"}, "v": INT}), obj({"n": {"$ref": "#"}, "v": TEXT}), "type of v changed"),
    ({"type": "integer", "title": "x"}, {"type": "integer", "description": "y"}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "writer", "reason"), JSON_CASES)
def test_json(reader: Any, writer: Any, reason: str) -> None:
    found = faults("json", reader, writer)
    assert (reason in "\n".join(found)) if reason else found == []
    assert bool(found) == bool(reason)


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [dict(zip(("name", "type", "default", "aliases"), f, strict=False)) for f in fields],
        **more,
    }


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


FIXED = {"type": "fixed", "name": "F", "size": 4}
AVRO_CASES = [
    ("long", "int", ""), ("float", "int", ""), ("double", "int", ""), ("double", "long", ""), ("float", "long", ""),
    ("double", "float", ""), ("bytes", "string", ""), ("string", "bytes", ""), ("int", "int", ""),
    ("int", "long", "long cannot be read as int"), ("long", "float", "float cannot be read as long"),
    ("float", "double", "double"), ("string", "int", "int cannot be read as string"), ("boolean", "int", "int"),
    (record(("a", "int")), record(("a", "int"), ("b", "int")), ""),
    (record(("a", "int"), ("b", "int")), record(("a", "int")), "field b has no default"),
    (record(("a", "int"), ("b", "int", 7)), record(("a", "int")), ""),
    (record(("b", "int", 0, ["a"])), record(("a", "int")), ""),
    (record(("b", "int", 0, ["a"])), record(("a", "string")), "type of b changed"),
    (record(("a", "int")), record(("a", "string")), "type of a changed"),
    (record(("a", "int"), name="x.R"), record(("a", "int"), name="y.R"), ""),
    (record(("a", "int"), name="S"), record(("a", "int")), "is named S, was R"),
    (record(("a", "int"), name="S", aliases=["R"]), record(("a", "int")), ""),
    (["null", "int"], "int", ""), (["null", "long"], "int", ""), (["null", "string"], "int", "no branch"),
    ("int", ["int", "null"], "may be null"), (["null", "int"], ["null"], ""), (["null"], ["null", "int"], "may be int"),
    (enum("A", "B"), enum("A"), ""), (enum("A"), enum("A", "B"), "no longer has B"), (enum("A", default="A"), enum("A", "B"), ""),
    (FIXED, FIXED, ""), (FIXED, {**FIXED, "size": 5}, "size of $ changed from 5 to 4"),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, ""),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, "type of [] changed"),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, "type of {} changed"),
    ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, "array cannot be read as map"),
    (record(("v", "long"), ("n", ["null", "R"])), record(("v", "int"), ("n", ["null", "R"])), ""),
    (record(("v", "int"), ("n", ["null", "R"])), record(("v", "long"), ("n", ["null", "R"])), "type of v changed"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
     {"type": "bytes", "logicalType": "decimal", "precision": 4}, "decimal"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 6},
     {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 0}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "writer", "reason"), AVRO_CASES)
def test_avro(reader: Any, writer: Any, reason: str) -> None:
    found = faults("avro", reader, writer)
    assert (reason in "\n".join(found)) if reason else found == []
    assert bool(found) == bool(reason)


PRIMITIVES = st.sampled_from(["int", "long", "float", "double", "string", "bytes", "boolean", "null"])
TYPES = st.one_of(PRIMITIVES, st.lists(PRIMITIVES, min_size=1, max_size=3, unique=True))
SAMPLES = {"int": 1, "long": 1 << 40, "float": 1.5, "double": 1.5, "string": "x", "bytes": b"x", "boolean": True, "null": None}


@given(TYPES, TYPES)
@settings(max_examples=length(80, 300), deadline=None)
def test_avro_agrees_with_a_real_reader(reader: Any, writer: Any) -> None:
    """Where nothing is refused, fastavro reads every branch that was written; where something is, it fails on one."""
    reads = []
    for branch in writer if isinstance(writer, list) else [writer]:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, writer, (branch, SAMPLES[branch]) if isinstance(writer, list) else SAMPLES[branch])
        out.seek(0)
        try:
            fastavro.schemaless_reader(out, writer, reader)
        except (fastavro.read.SchemaResolutionError, TypeError):
            reads.append(False)
        else:
            reads.append(True)
    assert (faults("avro", reader, writer) == []) == all(reads)


def proto(body: str, syntax: str = "proto3") -> str:
    return f'syntax = "{syntax}"; message M {{ {body} }}'


PROTO_CASES = [
    (proto("int32 a = 1; string b = 2;"), proto("int32 a = 1;"), ""),
    (proto("int32 a = 1;"), proto("int32 a = 1; string b = 2;"), "field b (2) was removed without reserving"),
    (proto("int32 a = 1; reserved 2;"), proto("int32 a = 1; string b = 2;"), ""),
    (proto("int32 renamed = 1;"), proto("int32 a = 1;"), ""),
    (proto("int64 a = 1;"), proto("int32 a = 1;"), ""),
    (proto("bool a = 1;"), proto("uint64 a = 1;"), ""),
    (proto("sint32 a = 1;"), proto("int32 a = 1;"), "from int32 to sint32"),
    (proto("string a = 1;"), proto("int32 a = 1;"), "from int32 to string"),
    (proto("fixed32 a = 1;"), proto("sfixed32 a = 1;"), ""),
    (proto("fixed64 a = 1;"), proto("fixed32 a = 1;"), "from fixed32 to fixed64"),
    (proto("float a = 1;"), proto("fixed32 a = 1;"), "from fixed32 to float"),
    (proto("bytes a = 1;"), proto("string a = 1;"), ""),
    (proto("string a = 1;"), proto("bytes a = 1;"), "from bytes to string"),
    (proto("repeated string a = 1;"), proto("string a = 1;"), ""),
    (proto("repeated int32 a = 1;"), proto("int32 a = 1;"), "between one value and many"),
    (proto("int32 a = 2; reserved 1;"), proto("reserved 2; int32 a = 1;"), "number 2, which is reserved"),
    (proto("required int32 a = 1;", "proto2"), proto("", "proto2"), "is required"),
    (proto("required int32 a = 1;", "proto2"), proto("optional int32 a = 1;", "proto2"), "is now required"),
    (proto("optional int32 a = 1;", "proto2"), proto("required int32 a = 1;", "proto2"), ""),
    (proto("enum E { A = 0; } optional E e = 1;", "proto2"),
     proto("enum E { A = 0; B = 1; } optional E e = 1;", "proto2"), "no longer has B"),
    (proto("enum E { A = 0; } E e = 1;"), proto("enum E { A = 0; B = 1; } E e = 1;"), ""),
    (proto("enum E { A = 0; } optional E e = 1;", "proto2"), proto("optional int32 e = 1;", "proto2"), "does not know"),
    (proto("N n = 1; message N { int64 x = 1; }"), proto("N n = 1; message N { int32 x = 1; }"), ""),
    (proto("N n = 1; message N { string x = 1; }"), proto("N n = 1; message N { int32 x = 1; }"), "field n.x (1) changed its type"),
    (proto("M n = 1; string x = 2;"), proto("M n = 1; int32 x = 2;"), "field x (2) changed"),
    (proto("map<string, int64> m = 1;"), proto("map<string, int32> m = 1;"), ""),
    (proto("map<string, string> m = 1;"), proto("map<string, int32> m = 1;"), "field m.value (2)"),
    (proto("oneof o { int32 a = 1; int32 b = 2; }"), proto("int32 a = 1; int32 b = 2;"), "moved into oneof o"),
    (proto("int32 a = 1; int32 b = 2;"), proto("oneof o { int32 a = 1; int32 b = 2; }"), ""),
    (proto("optional int32 a = 1;"), proto("int32 a = 1;"), ""),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "writer", "reason"), PROTO_CASES)
def test_protobuf(reader: str, writer: str, reason: str) -> None:
    found = faults("proto", reader, writer)
    assert (reason in "\n".join(found)) if reason else found == []
    assert bool(found) == bool(reason)


WIDE, NARROW = {"type": "number"}, {"type": "integer"}


@pytest.mark.parametrize(
    ("mode", "versions", "new", "against"),
    [
        ("none", [TEXT], INT, []),
        ("backward", [NARROW], WIDE, []),
        ("backward", [WIDE], NARROW, [1]),
        ("backward", [TEXT, NARROW], WIDE, []),
        ("backward_transitive", [TEXT, NARROW], WIDE, [1]),
        ("forward", [WIDE], NARROW, []),
        ("forward", [NARROW], WIDE, [1]),
        ("forward", [TEXT, WIDE], NARROW, []),
        ("forward_transitive", [TEXT, WIDE], NARROW, [1]),
        ("full", [NARROW], WIDE, [1]),
        ("full", [WIDE], NARROW, [1]),
        ("full", [TEXT, NARROW], {**NARROW, "title": "x"}, []),
        ("full_transitive", [TEXT, NARROW], {**NARROW, "title": "x"}, [1, 1]),
        ("full_transitive", [], NARROW, []),
    ],
)
def test_modes(mode: str, versions: list[Any], new: Any, against: list[int]) -> None:
    old = [(number, schema("json", each)) for number, each in enumerate(versions, 1)]
    reasons = incompatibilities(schema("json", new), old, mode)
    assert [int(reason.split("version ")[1].split(":")[0]) for reason in reasons] == against


def test_another_kind_is_never_compatible() -> None:
    old = [(1, schema("json", {}))]
    assert incompatibilities(schema("avro", "int"), old, "backward") == ["version 1 is json, not avro"]
    assert incompatibilities(schema("avro", "int"), old, "none") == []


def test_an_unknown_mode() -> None:
    for mode in MODES:
        check_mode(mode)
    with pytest.raises(BraidError, match="sideways"):
        check_mode("sideways")
