"""The first page: what goes on now."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from braidmq.admin.console.view import PageRoute, View

_BUSIEST: Final = 8


def _by_lag(row: Any) -> tuple[bool, int, str, str]:
    """Those furthest behind first; of whom that is not known, before them."""
    return not row.unknown, -row.lag, row.topic, row.name


async def show_overview(view: View) -> Response:
    version = await view.fetch("get_version")
    cluster = await view.fetch("get_cluster")
    identity = await view.identity()
    groups = sorted(await view.fetch("list_groups", query={"limit": 500}), key=_by_lag)
    letters = await view.fetch("list_letter_topics")
    disk = await view.fetch("get_disk") if identity.admin else None
    return await view.render(
        "overview.html", version_of=version, cluster=cluster, late=groups[:_BUSIEST], groups=len(groups), disk=disk,
        letters=sum(row.letters for row in letters), letters_unknown=any(row.unknown for row in letters),
    )  # fmt: skip


PAGES: Final = (PageRoute("GET", "/console", show_overview),)
