"""Consumer groups: who is behind and how much, and moving one to another place, which is shown before it is done."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from braidmq.admin.console.messages import time_ms
from braidmq.admin.console.view import PageRoute, View
from braidmq.admin.console.words import in_path
from braidmq.admin.writing import json_response
from braidmq.base.errors import BraidError
from braidmq.security.rules import Rule

_ROWS: Final = 100


async def list_groups(view: View) -> Response:
    search = view.asked.get("search", "")
    rows, call = await view.run("list_groups", query={"search": search, "cursor": view.asked.get("cursor", ""), "limit": _ROWS})
    return await view.render("groups.html", rows=rows, search=search, cursor=call.headers.get("X-Next-Cursor", ""))


async def show_group(view: View) -> Response:
    place = _place(view)
    group = await view.fetch("get_topic_group", place)
    return await view.render("group.html", group=group, may_reset=await view.may(Rule.ADMIN))


async def show_trend(view: View) -> Response:
    """How its lag went lately, for the plot of its page."""
    place = _place(view)
    await view.fetch("get_topic_group", place)
    return json_response({"samples": [list(sample) for sample in await view.console.trend.of(place["topic"], place["group"])]})


async def plan_reset(view: View) -> Response:
    """What a reset would change; the answer has the button that does it."""
    place, form = _place(view), await view.form()
    outcome = await view.act("reset_group", place, body={**_wanted(form), "dry_run": True})
    fields = {key: form.get(key, "") for key in ("mode", "at", "partition")}
    if view.in_part:
        return view.part("reset_plan.html", outcome=outcome, fields=fields, csrf=form.get("csrf", ""), base=_base(place))
    return await view.render("reset.html", outcome=outcome, fields=fields, base=_base(place))


async def reset(view: View) -> Response:
    place, form = _place(view), await view.form()
    outcome = await view.act("reset_group", place, body=_wanted(form))
    return view.go(_base(place), f"Moved {len(outcome.changes)} {'partition' if len(outcome.changes) == 1 else 'partitions'}.")


async def delete_group(view: View) -> Response:
    place = _place(view)
    await view.act("delete_topic_group", place)
    return view.go("/console/groups", f"Deleted group {place['group']} of {place['topic']}.")


def _place(view: View) -> dict[str, str]:
    return {"topic": view.named("topic"), "group": view.named("group")}


def _base(place: dict[str, str]) -> str:
    return f"/console/topics/{in_path(place['topic'])}/groups/{in_path(place['group'])}"


def _wanted(form: dict[str, str]) -> dict[str, object]:
    mode, at = form.get("mode", ""), form.get("at", "").strip()
    try:
        value = int(at) if mode == "offset" else time_ms(at) if mode == "timestamp" else 0
        return {"mode": mode, "value": value, "partition": int(form.get("partition") or -1)}
    except ValueError:
        raise BraidError("INVALID_ARGUMENT", reason=f"{at[:60]!r} is no offset") from None


PAGES: Final = (
    PageRoute("GET", "/console/groups", list_groups),
    PageRoute("GET", "/console/topics/{topic}/groups/{group}", show_group),
    PageRoute("GET", "/console/topics/{topic}/groups/{group}/trend", show_trend),
    PageRoute("POST", "/console/topics/{topic}/groups/{group}/plan", plan_reset),
    PageRoute("POST", "/console/topics/{topic}/groups/{group}/reset", reset),
    PageRoute("POST", "/console/topics/{topic}/groups/{group}/delete", delete_group),
)
