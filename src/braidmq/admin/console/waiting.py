"""What is under way: delayed messages and open transactions."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from braidmq.admin.console.view import PageRoute, View

_ROWS: Final = 200


async def list_delayed(view: View) -> Response:
    topic = view.asked.get("topic", "")
    page = await view.fetch("list_delayed", query={"topic": topic, "limit": _ROWS})
    return await view.render("delayed.html", page=page, topic=topic)


async def cancel_delayed(view: View) -> Response:
    name = view.named("id")
    await view.act("cancel_delayed", {"id": name})
    return view.go("/console/delayed", f"Cancelled {name}.")


async def list_transactions(view: View) -> Response:
    return await view.render("transactions.html", rows=await view.fetch("list_transactions"))


async def abort_transaction(view: View) -> Response:
    name = view.named("id")
    await view.act("abort_transaction", {"id": name})
    return view.go("/console/transactions", f"Aborted {name}.")


PAGES: Final = (
    PageRoute("GET", "/console/delayed", list_delayed),
    PageRoute("POST", "/console/delayed/{id}/cancel", cancel_delayed),
    PageRoute("GET", "/console/transactions", list_transactions),
    PageRoute("POST", "/console/transactions/{id}/abort", abort_transaction),
)
