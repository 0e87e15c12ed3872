"""Whom the broker pushes to and who is connected: subscriptions, fq queues, connections, each with what was dropped."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from braidmq.admin.console.view import PageRoute, View

_ROWS: Final = 200


async def list_subscriptions(view: View) -> Response:
    return await _listed(view, "list_subscriptions", "subscriptions.html")


async def list_queues(view: View) -> Response:
    return await _listed(view, "list_queues", "queues.html")


async def list_connections(view: View) -> Response:
    return await _listed(view, "list_connections", "connections.html")


async def close_connection(view: View) -> Response:
    name = view.named("id")
    await view.act("close_connection", {"id": name})
    return view.go("/console/connections", f"Closed {name}.")


async def _listed(view: View, endpoint: str, template: str) -> Response:
    page = await view.fetch(endpoint, query={"cursor": view.asked.get("cursor", ""), "limit": _ROWS})
    return await view.render(template, page=page, rows=page.items)


PAGES: Final = (
    PageRoute("GET", "/console/subscriptions", list_subscriptions),
    PageRoute("GET", "/console/queues", list_queues),
    PageRoute("GET", "/console/connections", list_connections),
    PageRoute("POST", "/console/connections/{id}/close", close_connection),
)
