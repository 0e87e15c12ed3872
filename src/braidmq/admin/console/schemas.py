"""Schemas: their versions, what changed between two of them, and registering one."""

from __future__ import annotations

import difflib
import json
from typing import Final

from starlette.responses import Response

from braidmq.admin.api.schemas import SchemaRow
from braidmq.admin.console.view import PageRoute, View
from braidmq.admin.console.words import in_path, pretty
from braidmq.schemas.compatibility import MODES
from braidmq.schemas.schema import KINDS

_ROWS: Final = 100


async def list_schemas(view: View) -> Response:
    rows, call = await view.run("list_schemas", query={"cursor": view.asked.get("cursor", ""), "limit": _ROWS})
    cursor = call.headers.get("X-Next-Cursor", "")
    return await view.render("schemas.html", rows=rows, cursor=cursor, kinds=KINDS, modes=list(MODES))


async def show_schema(view: View) -> Response:
    name = view.named("name")
    versions = await view.fetch("list_schema_versions", {"name": name})
    by_number = {row.version: row for row in versions}
    shown = by_number.get(view.number("version"), versions[-1])
    earlier = [row for row in versions if row.version < shown.version]
    other = by_number.get(view.number("against"), earlier[-1] if earlier else None)
    return await view.render(
        "schema.html", name=name, versions=versions, shown=shown, other=other, text=_readable(shown),
        changes=_difference(other, shown) if other is not None and other is not shown else None,
    )  # fmt: skip


async def register_schema(view: View) -> Response:
    form = await view.form()
    body = {key: form.get(key, "") for key in ("name", "schema", "type", "compatibility")}
    made = await view.act("register_schema", body=body)
    return view.go(f"/console/schemas/{in_path(made.name)}", f"Registered version {made.version}.")


async def delete_version(view: View) -> Response:
    name, number = view.named("name"), view.named("version")
    await view.act("delete_schema_version", {"name": name, "version": number})
    left = [row for row in await view.fetch("list_schemas") if row.name == name]
    return view.go(f"/console/schemas/{in_path(name)}" if left else "/console/schemas", f"Deleted version {number} of {name}.")


def _readable(row: SchemaRow) -> str:
    """JSON in lines, so that two versions can be compared; anything else as it was registered."""
    if row.type == "protobuf":
        return row.schema
    try:
        return pretty(json.loads(row.schema))
    except ValueError:
        return row.schema


def _difference(old: SchemaRow, new: SchemaRow) -> list[tuple[str, str]]:
    """Lines with what they are: added, gone, kept or a place in the text."""
    kinds = {"+": "added", "-": "gone", "@": "place"}
    lines = difflib.unified_diff(_readable(old).splitlines(), _readable(new).splitlines(), lineterm="", n=4)
    return [(kinds.get(line[:1], "kept"), line) for number, line in enumerate(lines) if number >= 2]


PAGES: Final = (
    PageRoute("GET", "/console/schemas", list_schemas),
    PageRoute("POST", "/console/schemas", register_schema),
    PageRoute("GET", "/console/schemas/{name}", show_schema),
    PageRoute("POST", "/console/schemas/{name}/{version}/delete", delete_version),
)
