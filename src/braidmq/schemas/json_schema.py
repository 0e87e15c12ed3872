"""JSON Schema: every draft the validator knows, with the error texts FlyMQ clients expect.

The message is parsed by msgspec and judged by jsonschema-rs on the parsed values; together that is the fastest pair measured
(the standard parser alone takes longer than both). Patterns run on an engine that cannot backtrack, and a reference is never
fetched.

Bounds: depth is counted before anything parses; the number of values times what the schema can make of one is limited; only
messages that need little work get all their errors listed, because listing costs far more than judging.
"""

from __future__ import annotations

import json
from typing import Any, Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.schemas.json_compat import JsonReading
from braidmq.schemas.json_cost import evaluations_by_depth
from braidmq.schemas.json_depth import json_depth
from braidmq.schemas.schema import Schema, fingerprint_of, invalid, unavailable

_JSON_TYPES: Final = {
    dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null",
}  # fmt: skip


class JsonSchema:
    kind: Final = "json"

    __slots__ = ("_decode", "_depth_unweighed", "_evaluations", "_is_valid", "_validator", "definition", "document", "fingerprint")

    def __init__(self, definition: bytes) -> None:
        try:
            import jsonschema_rs
            import msgspec
        except ImportError as missing:
            raise unavailable(self.kind, missing) from missing
        self._decode = msgspec.json.Decoder().decode
        self.definition = definition
        self.document = parse_document(definition, self._decode)
        canonical = json.dumps(self.document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        self.fingerprint = fingerprint_of(self.kind, canonical.encode())
        try:
            self._evaluations = evaluations_by_depth(self.document)
            self._validator = jsonschema_rs.validator_for(
                self.document, validate_formats=True, pattern_options=jsonschema_rs.RegexOptions(), offline=True
            )
        except BraidError:
            raise
        except RecursionError as error:
            raise invalid(self.kind, "references nest too deeply") from error
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise invalid(self.kind, getattr(error, "message", error)) from error
        self._is_valid = self._validator.is_valid
        light = [most * limits.SCHEMA_LIGHT_BYTES_MAX <= limits.SCHEMA_WORK_MAX for most in self._evaluations]
        self._depth_unweighed = light.index(False) - 1 if False in light else limits.SCHEMA_DEPTH_MAX

    def check(self, value: bytes) -> list[str]:
        if len(value) > limits.SCHEMA_LIGHT_BYTES_MAX or value.count(b"[") + value.count(b"{") > self._depth_unweighed:
            refusal = self._refusal(value)
            if refusal:
                return [f"invalid JSON message: {refusal}"]
        try:
            message = self._decode(value)
        except (ValueError, RecursionError) as error:
            return [f"invalid JSON message: {error}"]
        if self._is_valid(message):
            return []
        return self._explain(message, self._work(value, json_depth(value)))

    def decode(self, value: bytes) -> Any:
        return self._decode(value)

    def reads(self, writer: Schema) -> list[str]:
        assert isinstance(writer, JsonSchema)
        return JsonReading(self.document, writer.document).faults()

    def _refusal(self, value: bytes) -> str:
        """Why a message is not even looked at, if it is not."""
        if len(value) > limits.SCHEMA_MESSAGE_BYTES_MAX:
            return f"{len(value)} bytes are more than {limits.SCHEMA_MESSAGE_BYTES_MAX}"
        depth = json_depth(value)
        if depth > limits.SCHEMA_DEPTH_MAX:
            return f"nested deeper than {limits.SCHEMA_DEPTH_MAX} levels"
        if self._work(value, depth) > limits.SCHEMA_WORK_MAX:
            return "too many values, or too deep, for this schema"
        return ""

    def _work(self, value: bytes, depth: int) -> int:
        """Most evaluations the message may need: each value is the first, or follows a bracket or a comma."""
        values = 1 + value.count(b",") + value.count(b"[") + value.count(b"{")
        return values * self._evaluations[depth]

    def _explain(self, message: Any, work: int) -> list[str]:
        import jsonschema_rs

        texts: list[str] = []
        if work <= limits.SCHEMA_LISTED_WORK_MAX:
            for error in self._validator.iter_errors(message):
                texts += _texts(error, message)
                if len(texts) >= limits.SCHEMA_ERRORS_MAX:
                    break
        elif max(self._evaluations) <= limits.SCHEMA_LISTED_WORK_MAX:
            try:
                self._validator.validate(message)
            except jsonschema_rs.ValidationError as error:
                texts += _texts(error, message)
        else:
            texts.append("invalid value at $: the message does not fit the schema, which is too complex to say where")
        return [text[: limits.SCHEMA_REASON_CHARS_MAX] for text in texts[: limits.SCHEMA_ERRORS_MAX]]


def parse_document(definition: bytes, decode: Any) -> dict[str, Any]:
    if json_depth(definition) > limits.SCHEMA_DEPTH_MAX:
        raise invalid("json", f"nested deeper than {limits.SCHEMA_DEPTH_MAX} levels")
    try:
        document = decode(definition)
    except (ValueError, RecursionError) as error:
        raise invalid("json", f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise invalid("json", "the definition must be an object")
    return document


def _texts(error: Any, message: Any) -> list[str]:
    path = list(error.instance_path)
    where = _dotted(path)
    match error.kind.name:
        case "required":
            return [f"missing required field: {_dotted([*path, error.kind.property])}"]
        case "additionalProperties" | "unevaluatedProperties":
            return [f"unexpected field: {_dotted([*path, name])}" for name in error.kind.unexpected]
        case "type":
            expected = " or ".join(error.kind.types)
            return [f"type mismatch at {where}: expected {expected}, got {_type_at(message, path)}"]
    return [f"invalid value at {where}: {error.message}"]


def _type_at(message: Any, path: list[Any]) -> str:
    for part in path:
        # Names of properties are judged too, and are no place in the message.
        if not isinstance(message, (dict, list)):
            return "string"
        message = message[part]
    return _JSON_TYPES[type(message)]


def _dotted(path: list[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "$"
