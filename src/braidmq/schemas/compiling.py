"""From a kind and a definition to a schema. What a kind needs is loaded with the first schema of that kind."""

from __future__ import annotations

from braidmq.base import limits
from braidmq.schemas.schema import Schema, canonical_kind, invalid


def compile_schema(kind: str, definition: bytes) -> Schema:
    """Slow for large definitions: up to about a second, so not for an event loop."""
    kind = canonical_kind(kind)
    if len(definition) > limits.SCHEMA_DEFINITION_BYTES_MAX:
        raise invalid(kind, f"{len(definition)} bytes are more than {limits.SCHEMA_DEFINITION_BYTES_MAX}")
    if not definition.strip():
        raise invalid(kind, "the definition is empty")
    if kind == "json":
        from braidmq.schemas.json_schema import JsonSchema

        return JsonSchema(definition)
    if kind == "avro":
        from braidmq.schemas.avro_schema import AvroSchema

        return AvroSchema(definition)
    from braidmq.schemas.proto_schema import ProtobufSchema

    return ProtobufSchema(definition)
