"""The OpenAPI 3.1 document, made from the table of endpoints: it cannot say something else than the code does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import braidmq
from braidmq.admin.call import Document, Nothing
from braidmq.admin.endpoint import Endpoint
from braidmq.admin.problem import MEDIA
from braidmq.admin.shapes import SchemaBook, fields_of
from braidmq.security.rules import Rule

_PROBLEM: Final = {
    "type": "object",
    "description": "What went wrong, as RFC 9457 has it.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string", "description": "the code in the table of errors"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "hint": {"type": "string", "description": "what to do about it"},
        "retriable": {"type": "boolean", "description": "whether the same request may succeed later"},
        "request_id": {"type": "string"},
        "error": {"type": "string", "description": "the text once more, where clients of FlyMQ's API look"},
    },
    "required": ["type", "title", "status", "detail", "hint", "retriable", "request_id", "error"],
}


def openapi_document(endpoints: Sequence[Endpoint], *, auth_enabled: bool) -> dict[str, Any]:
    book = SchemaBook()
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, book, auth_enabled)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "BraidMQ admin API",
            "version": braidmq.__version__,
            "description": "Everything that can be asked of a broker and changed in it. Names in paths are percent-encoded.",
        },
        "paths": paths,
        "components": {
            "schemas": {**book.shapes, "Problem": _PROBLEM},
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer", "description": "the token of POST /api/v1/session"},
            },
        },
    }


def _operation(endpoint: Endpoint, book: SchemaBook, auth_enabled: bool) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "tags": [endpoint.group],
        "summary": endpoint.doc.partition(".")[0],
        "description": f"{endpoint.doc}\n\nWho may: {endpoint.rule.value}.",
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
                for name in endpoint.parameters
            ),
            *(
                {
                    "name": field.name, "in": "query", "required": field.required, "description": field.doc,
                    "schema": book.of_field(field), **_style(book.of_field(field)),
                }
                for field in fields_of(endpoint.query)
            ),
        ],
        "responses": {
            str(endpoint.status): _success(endpoint, book),
            "default": {"description": "a problem", "content": {MEDIA: {"schema": {"$ref": "#/components/schemas/Problem"}}}},
        },
    }  # fmt: skip
    if endpoint.body is not Nothing:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": book.of(endpoint.body)}}}
    if auth_enabled and endpoint.rule is not Rule.NONE:
        operation["security"] = [{"basic": []}, {"bearer": []}]
    return operation


def _style(schema: dict[str, Any]) -> dict[str, Any]:
    """Lists in a query are one parameter with commas."""
    return {"style": "form", "explode": False} if schema.get("type") == "array" else {}


def _success(endpoint: Endpoint, book: SchemaBook) -> dict[str, Any]:
    if endpoint.status == 204:
        return {"description": "done"}
    if endpoint.answer is Document:
        content = {"application/json": {"schema": {}}, "text/csv": {"schema": {"type": "string"}}}
        return {"description": "the document", "content": content}
    schema = book.of(endpoint.answer) if endpoint.media == "application/json" else {"type": "string"}
    return {"description": "the answer", "content": {endpoint.media: {"schema": schema}}}
