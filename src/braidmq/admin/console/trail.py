"""The audit trail."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from braidmq.admin.console.view import PageRoute, View

_ROWS: Final = 100
_FILTERS: Final = ("user", "resource", "result", "search")


async def list_events(view: View) -> Response:
    given = {name: view.asked.get(name, "") for name in _FILTERS}
    offset = view.number("offset")
    kind = view.asked.get("type", "")
    query = {**given, "types": [kind] if kind else [], "limit": _ROWS, "offset": offset}
    found = await view.fetch("list_audit_events", query=query)
    return await view.render("audit.html", found=found, given={**given, "type": kind}, offset=offset, step=_ROWS)


PAGES: Final = (PageRoute("GET", "/console/audit", list_events),)
