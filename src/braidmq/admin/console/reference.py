"""The admin API as a page, at `/swagger/`: every operation of the OpenAPI document, and a form to try those that change nothing.

It is made from the document alone, so it says what programs are told. Nobody has to log in to read it; what a request may see is
decided when it is sent. Without scripts a form leads to the answer itself; with them the answer comes below the form.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from braidmq.admin.api import ENDPOINTS
from braidmq.admin.console.view import PageRoute, View
from braidmq.admin.console.words import in_path, in_query
from braidmq.admin.openapi import openapi_document
from braidmq.admin.shapes import plain
from braidmq.base.errors import BraidError

_SHAPES: Final = "#/components/schemas/"
_STREAM: Final = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a value in words, with the shape that they end in, where they do."""

    words: str
    shape: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A parameter of a request, or a field of a shape."""

    name: str
    kind: Kind
    required: bool
    about: str
    choices: tuple[str, ...] = ()
    default: str = ""


@dataclass(frozen=True, slots=True)
class Answered:
    status: str
    media: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    method: str
    path: str
    summary: str
    about: str
    who: str
    in_path: tuple[Row, ...]
    in_query: tuple[Row, ...]
    body: Kind | None
    command: str
    """How `curl` asks it."""
    answers: tuple[Answered, ...]

    @property
    def can_be_tried(self) -> bool:
        return self.method == "GET"

    @property
    def streams(self) -> bool:
        return any(answer.media == _STREAM for answer in self.answers)


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    about: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    groups: dict[str, list[Operation]]
    shapes: list[Shape]


async def show_reference(view: View) -> Response:
    found = _reference(view.site.config.auth_enabled)
    return await view.render("reference.html", groups=found.groups, shapes=found.shapes)


async def try_operation(view: View) -> Response:
    """Where the form of a page without scripts leads: to the address that it spells out."""
    wanted = view.asked.get("operation", "")
    endpoint = next((each for each in ENDPOINTS if each.name == wanted and each.method == "GET"), None)
    if endpoint is None:
        raise BraidError("NO_SUCH_PATH", path=f"{wanted[:100]} of the API")
    path = endpoint.path
    for name in endpoint.parameters:
        value = view.asked.get(f"path.{name}", "")
        if not value:
            raise BraidError("INVALID_ARGUMENT", reason=f"`{name}` is part of the path, and empty")
        path = path.replace(f"{{{name}}}", in_path(value))
    query = in_query({key.removeprefix("query."): value for key, value in view.asked.items() if key.startswith("query.")})
    return RedirectResponse(f"{path}?{query}" if query else path, 303)


async def to_reference(view: View) -> Response:
    return RedirectResponse("/swagger/", 307)


# --- reading the document


@cache
def _reference(auth_enabled: bool) -> Reference:
    return read_document(plain(openapi_document(ENDPOINTS, auth_enabled=auth_enabled)))


def read_document(document: dict[str, Any]) -> Reference:
    shapes = document["components"]["schemas"]
    groups: dict[str, list[Operation]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][0], []).append(_operation(method.upper(), path, operation, shapes))
    return Reference(groups, [_shape(name, schema) for name, schema in sorted(shapes.items())])


def _operation(method: str, path: str, operation: dict[str, Any], shapes: dict[str, Any]) -> Operation:
    about, _, who = operation["description"].partition("\n\n")
    rows = [(each["in"], _parameter(each)) for each in operation["parameters"]]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    return Operation(
        operation["operationId"], method, path, operation["summary"], about, who,
        tuple(row for place, row in rows if place == "path"), tuple(row for place, row in rows if place == "query"),
        None if body is None else _kind(body), _command(method, path, _example(body, shapes) if body is not None else None),
        tuple(
            Answered(status, media, _kind(content.get("schema", {})))
            for status, answer in operation["responses"].items()
            for media, content in (answer.get("content") or {"": {}}).items()
        ),
    )  # fmt: skip


def _parameter(given: dict[str, Any]) -> Row:
    return _row(given["name"], given["schema"], given["required"], given.get("description", ""))


def _row(name: str, schema: dict[str, Any], required: bool, about: str) -> Row:
    bare = _without_null(schema)
    default = bare.get("default")
    shown = "" if default in (None, "", [], {}) else default if isinstance(default, str) else json.dumps(default)
    return Row(name, _kind(schema), required, about, tuple(map(str, bare.get("enum", ()))), shown)


def _shape(name: str, schema: dict[str, Any]) -> Shape:
    required = schema.get("required", ())
    rows = (
        _row(field, part, field in required, _without_null(part).get("description", ""))
        for field, part in schema["properties"].items()
    )
    return Shape(name, schema.get("description", ""), tuple(rows))


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema itself, of one that may also be null."""
    found: dict[str, Any] = next((part for part in schema.get("anyOf", ()) if part.get("type") != "null"), schema)
    return found


def _kind(schema: dict[str, Any]) -> Kind:
    schema = _without_null(schema)
    if "$ref" in schema:
        return Kind("", schema["$ref"].removeprefix(_SHAPES))
    match schema.get("type"):
        case "array":
            inner = _kind(schema["items"])
            return Kind(f"list of {inner.words}", inner.shape)
        case "object" if "additionalProperties" in schema:
            inner = _kind(schema["additionalProperties"])
            return Kind(f"names with {inner.words}", inner.shape)
        case None:
            return Kind("anything")
        case word:
            return Kind(str(word) + _range(schema))


def _range(schema: dict[str, Any]) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    return "" if least is None else f", {least} to {most}"


def _example(schema: dict[str, Any], shapes: dict[str, Any]) -> Any:
    """The least that a body has to hold, or all that has a default where nothing has to be there."""
    schema = _without_null(schema)
    if "$ref" in schema:
        shape = shapes[schema["$ref"].removeprefix(_SHAPES)]
        wanted = shape.get("required") or shape["properties"]
        return {name: _example(shape["properties"][name], shapes) for name in wanted}
    if "default" in schema:
        return schema["default"]
    if "enum" in schema:
        return schema["enum"][0]
    kinds: dict[Any, Any] = {"integer": schema.get("minimum", 0), "number": 0.0, "boolean": False, "array": [], "object": {}}
    return kinds.get(schema.get("type"), "...")


def _command(method: str, path: str, body: Any) -> str:
    words = ["curl", "-s", *(["-X", method] if method != "GET" else [])]
    if body is not None:
        words += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    return " ".join([*map(shlex.quote, words), f"http://127.0.0.1:9096{quote(path, safe='/{}')}"])


PAGES: Final = (
    PageRoute("GET", "/swagger", to_reference),
    PageRoute("GET", "/swagger/", show_reference),
    PageRoute("GET", "/api/v1/swagger/", show_reference),
    PageRoute("GET", "/swagger/try", try_operation),
)
