"""JSON Schema: verdicts, the texts clients look for, and what a definition may not do."""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

import pytest

from braidmq.base.errors import BraidError
from braidmq.schemas.compiling import compile_schema
from braidmq.schemas.json_cost import evaluations_by_depth
from braidmq.schemas.schema import Schema, enforce


def compiled(document: Any) -> Schema:
    return compile_schema("json", json.dumps(document).encode())


def check(document: Any, message: Any) -> list[str]:
    return compiled(document).check(message if isinstance(message, bytes) else json.dumps(message).encode())


PERSON = {
    "type": "object",
    "required": ["name", "home"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "home": {
            "type": "object",
            "required": ["city"],
            "properties": {"city": {"type": "string"}, "zip": {"type": ["integer", "null"]}},
            "additionalProperties": False,
        },
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}


def test_a_message_that_fits() -> None:
    assert check(PERSON, {"name": "a", "age": 3, "home": {"city": "x", "zip": None}, "tags": ["q"]}) == []


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"name": "a"}, "missing required field: home"),
        ({"name": "a", "home": {}}, "missing required field: home.city"),
        ({"name": "a", "home": {"city": "x"}, "age": "3"}, "type mismatch at age: expected integer, got string"),
        ({"name": "a", "home": {"city": "x"}, "age": 1.5}, "type mismatch at age: expected integer, got number"),
        ({"name": "a", "home": {"city": "x"}, "x": 1}, "unexpected field: x"),
        ({"name": "a", "home": {"city": "x", "y": 1}}, "unexpected field: home.y"),
        ({"name": "a", "home": {"city": "x"}, "tags": ["a", 1]}, "type mismatch at tags[1]: expected string, got integer"),
        ({"name": None, "home": {"city": "x"}}, "type mismatch at name: expected string, got null"),
        ({"name": True, "home": {"city": "x"}}, "type mismatch at name: expected string, got boolean"),
        ({"name": [], "home": {"city": "x"}}, "type mismatch at name: expected string, got array"),
        ([], "type mismatch at $: expected object, got array"),
    ],
)
def test_the_texts_of_errors(message: Any, error: str) -> None:
    assert check(PERSON, message) == [error]


def test_every_error_is_told_at_once() -> None:
    errors = check(PERSON, {"home": {}, "age": "x", "q": 1})
    assert sorted(errors) == [
        "missing required field: home.city",
        "missing required field: name",
        "type mismatch at age: expected integer, got string",
        "unexpected field: q",
    ]


def test_several_types_are_named() -> None:
    (error,) = check(PERSON, {"name": "a", "home": {"city": "x", "zip": "1"}})
    assert error.startswith("type mismatch at home.zip: expected ") and error.endswith(", got string")
    assert "integer" in error and "null" in error


@pytest.mark.parametrize("message", [b"", b"{", b"nope", b'{"a":}', b"\xff", b'{"a":1} x', b"NaN", b'"\xff"', b"1" * 5000, b"[1,]"])
def test_what_is_not_json(message: bytes) -> None:
    (error,) = check({}, message)
    assert error.startswith("invalid JSON message: ")


@pytest.mark.parametrize(
    ("document", "good", "bad"),
    [
        ({"enum": ["a", 1]}, "a", "b"),
        ({"const": {"x": [1]}}, {"x": [1]}, {"x": [2]}),
        ({"pattern": "^a+$"}, "aa", "ab"),
        ({"minimum": 3}, 3, 2),
        ({"exclusiveMaximum": 3}, 2.9, 3),
        ({"multipleOf": 0.5}, 1.5, 1.6),
        ({"minLength": 2, "maxLength": 3}, "ab", "a"),
        ({"uniqueItems": True}, [1, 2], [1, 1]),
        ({"contains": {"type": "null"}}, [None], [1]),
        ({"not": {"type": "string"}}, 1, "s"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 5}]}, 1, 6),
        ({"if": {"type": "string"}, "then": {"minLength": 3}}, "abc", "ab"),
        ({"prefixItems": [{"type": "integer"}], "items": False}, [1], [1, 2]),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
        ({"propertyNames": {"maxLength": 1}}, {"a": 1}, {"ab": 1}),
        ({"unevaluatedProperties": False, "allOf": [{"properties": {"a": True}}]}, {"a": 1}, {"b": 1}),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "null"}}}, None, 1),
        ({"$ref": "#x", "$defs": {"q": {"$anchor": "x", "type": "null"}}}, None, 1),
        ({"$id": "http://a.b/c", "$ref": "d", "$defs": {"q": {"$id": "d", "type": "null"}}}, None, 1),
        ({"format": "date-time"}, "2020-01-01T00:00:00Z", "yesterday"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3, "exclusiveMinimum": True}, 4, 3),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "null"}], "additionalItems": False},
            [None],
            [1],
        ),
        ({"type": "number"}, 1, "1"),
        ({"type": "integer"}, 1.0, 1.5),
        ({"type": "integer"}, 10**40, "1"),
        ({"properties": {"next": {"$ref": "#"}}, "required": ["v"]}, {"v": 1, "next": {"v": 2}}, {"v": 1, "next": {}}),
    ],
)
def test_the_full_draft(document: Any, good: Any, bad: Any) -> None:
    schema = compiled(document)
    assert schema.check(json.dumps(good).encode()) == []
    errors = schema.check(json.dumps(bad).encode())
    assert errors and all(errors)


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (b"[]", "must be an object"),
        (b"true", "must be an object"),
        (b"{", "not JSON"),
        (b"  ", "empty"),
        (b'{"type":"strin"}', "strin"),
        (b'{"pattern":"("}', "regex"),
        (b'{"pattern":"(?=a)b"}', "regex"),
        (b'{"pattern":"(a)\\\\1"}', "regex"),
        (b'{"$ref":"http://127.0.0.1:1/x"}', "leads out of the definition"),
        (b'{"$ref":"file:///etc/hostname"}', "leads out of the definition"),
        (b'{"$ref":"#/$defs/x"}', "leads nowhere"),
        (b'{"$ref":"#x"}', "leads nowhere"),
        (b'{"$schema":"http://example.org/own"}', "meta-schema"),
        (b'{"minimum":"x"}', "x"),
    ],
)
def test_a_definition_that_is_wrong(definition: bytes, reason: str) -> None:
    with pytest.raises(BraidError, match=reason) as caught:
        compile_schema("json", definition)
    assert caught.value.code == "SCHEMA_INVALID"


@pytest.mark.parametrize("keyword", ["$ref", "$schema", "$id"])
def test_nothing_is_fetched(keyword: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        document = (
            {"$defs": {"unused": {keyword: address, "$ref": "y"}}}
            if keyword == "$id"
            else {"$defs": {"unused": {keyword: address}}}
        )
        try:
            compiled(document)
        except BraidError as error:
            assert error.code == "SCHEMA_INVALID"
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_an_equal_definition_has_an_equal_fingerprint() -> None:
    one = compile_schema("json", b'{"type":"object","required":["a","b"]}')
    other = compile_schema("json", b'{ "required" : ["a", "b"],\n "type":"object" }')
    assert one.fingerprint == other.fingerprint
    assert one.fingerprint != compile_schema("json", b'{"type":"object","required":["b"]}').fingerprint
    assert other.definition.startswith(b"{ ")


def test_the_count_of_evaluations() -> None:
    assert set(evaluations_by_depth({})) == {1}
    assert set(evaluations_by_depth({"properties": {"a": {}, "b": {}}})) == {3}
    tree = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    assert max(evaluations_by_depth(tree)) < 10
    thrice = {"allOf": [{"$ref": "#/$defs/a"} for _ in range(3)], "$defs": {"a": {"required": ["x"] * 50}}}
    assert evaluations_by_depth(thrice)[0] > 150
    wide = {"required": ["x"] * 50}
    assert evaluations_by_depth({"additionalProperties": wide})[1] > 50
    assert evaluations_by_depth({"patternProperties": {"a": dict(wide), "b": dict(wide)}})[1] > 100, "one name may match both"
    assert evaluations_by_depth({"properties": {"a": dict(wide), "b": dict(wide)}})[1] < 100
    assert evaluations_by_depth({"prefixItems": [dict(wide)], "contains": dict(wide)})[1] > 100
    doubling = evaluations_by_depth({"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}})
    assert doubling[20] >= 2**20
    assert doubling[100] > 10**8


def test_a_message_is_refused_with_all_its_errors() -> None:
    enforce(compiled(PERSON), b'{"name":"a","home":{"city":"x"}}')
    with pytest.raises(BraidError) as caught:
        enforce(compiled(PERSON), b'{"name":"a","x":1}')
    assert caught.value.code == "SCHEMA_VALIDATION_FAILED"
    assert caught.value.text == "schema validation failed: [missing required field: home, unexpected field: x]"


def test_an_unknown_kind() -> None:
    with pytest.raises(BraidError, match="unsupported schema type: xml"):
        compile_schema("xml", b"<a/>")


@pytest.mark.parametrize(
    ("kind", "package"),
    [("json", "jsonschema_rs"), ("json", "msgspec"), ("avro", "fastavro.schema"), ("proto", "google.protobuf.unknown_fields")],
)
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, kind: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BraidError) as caught:
        compile_schema(kind, b'{"type":"null"}')
    assert caught.value.code == "SCHEMA_UNAVAILABLE"
    assert package in caught.value.text
    assert "braidmq[schemas]" in caught.value.hint
