"""Topics: the list, and one of them with its partitions and settings."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from braidmq.admin.console.view import PageRoute, View
from braidmq.admin.console.words import in_path
from braidmq.base.errors import BraidError
from braidmq.broker.topics import PROPERTIES
from braidmq.security.rules import Rule

_ROWS: Final = 100


async def list_topics(view: View) -> Response:
    search = view.asked.get("search", "")
    query = {"search": search, "cursor": view.asked.get("cursor", ""), "limit": _ROWS}
    rows, call = await view.run("list_topics", query=query)
    figures = {each.name: each for each in await view.fetch("list_topic_figures", query=query)}
    return await view.render("topics.html", rows=rows, figures=figures, search=search, cursor=call.headers.get("X-Next-Cursor", ""))


async def create_topic(view: View) -> Response:
    form = await view.form()
    name = form.get("name", "")
    properties = {key: form[key] for key in PROPERTIES if form.get(key)}
    options = {"partitions": _whole(form, "partitions"), "properties": properties}
    await view.act("create_topic", body={"name": name, "options": options})
    return view.go(f"/console/topics/{in_path(name)}", f"Created topic {name}.")


async def show_topic(view: View) -> Response:
    name = view.named("topic")
    topic = await view.fetch("get_topic", {"topic": name})
    groups = await view.fetch("list_groups", query={"topic": name, "limit": _ROWS})
    may_write = await view.may(Rule.WRITE_TOPIC, name)
    return await view.render("topic.html", topic=topic, groups=groups, known=PROPERTIES, may_write=may_write)


async def configure_topic(view: View) -> Response:
    name, form = view.named("topic"), await view.form()
    topic = await view.fetch("get_topic", {"topic": name})
    changed = {key: form[key] for key in PROPERTIES if key in form and form[key] != topic.properties.get(key, "")}
    await view.act("configure_topic", {"topic": name}, body={"properties": changed})
    return view.go(f"/console/topics/{in_path(name)}", "Settings saved." if changed else "Nothing was changed.")


async def delete_topic(view: View) -> Response:
    name = view.named("topic")
    await view.act("delete_topic", {"topic": name})
    return view.go("/console/topics", f"Deleted topic {name}.")


def _whole(form: dict[str, str], name: str) -> int:
    try:
        return int(form.get(name) or 0)
    except ValueError:
        raise BraidError("INVALID_ARGUMENT", reason=f"`{name}` is not a whole number") from None


PAGES: Final = (
    PageRoute("GET", "/console/topics", list_topics),
    PageRoute("POST", "/console/topics", create_topic),
    PageRoute("GET", "/console/topics/{topic}", show_topic),
    PageRoute("POST", "/console/topics/{topic}/settings", configure_topic),
    PageRoute("POST", "/console/topics/{topic}/delete", delete_topic),
)
