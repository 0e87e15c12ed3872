"""The broker itself: how it came up, how its disk does, and its settings with where each came from."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from braidmq.admin.console.view import PageRoute, View


async def show_recovery(view: View) -> Response:
    return await view.render("recovery.html", recovery=await view.fetch("get_recovery"), disk=await view.fetch("get_disk"))


async def show_settings(view: View) -> Response:
    search = view.asked.get("search", "").casefold()
    rows = await view.fetch("get_config")
    shown = [row for row in rows if search in row.key or search in row.doc.casefold() or search in row.value.casefold()]
    return await view.render("settings.html", rows=shown, search=view.asked.get("search", ""))


PAGES: Final = (
    PageRoute("GET", "/console/recovery", show_recovery),
    PageRoute("GET", "/console/settings", show_settings),
)
