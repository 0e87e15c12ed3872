"""Pipelines: what they are made of, how far they are, and steering them."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from braidmq.admin.console.graph import graph_of
from braidmq.admin.console.messages import time_ms
from braidmq.admin.console.view import PageRoute, View
from braidmq.admin.console.words import in_path
from braidmq.admin.times import rfc3339
from braidmq.base.errors import BraidError
from braidmq.base.spans import read_span

_REPORTS: Final = 20


async def list_pipelines(view: View) -> Response:
    return await view.render("pipelines.html", rows=await view.fetch("list_pipelines"))


async def show_pipeline(view: View) -> Response:
    found = await view.fetch("get_pipeline", {"pipeline": view.named("pipeline")})
    replays = await view.fetch("list_replays", {"pipeline": view.named("pipeline")})
    identity = await view.identity()
    latest = found.reports[-1].progress if found.reports else found.runs[-1].progress if found.runs else {}
    waiting = [replay for replay in replays if replay.state == "requested"]
    return await view.render(
        "pipeline.html", found=found, latest=latest, graph=graph_of(found.format, found.definition),
        reports=[(rfc3339(report.time_ms), report.progress) for report in reversed(found.reports[-_REPORTS:])],
        replays=[(replay, _spoken(replay.wish)) for replay in reversed(replays)],
        unheard=waiting if found.state in ("stopped", "lost") else [],
        may_steer=identity.admin or (identity.authenticated and identity.username == found.owner),
    )  # fmt: skip


async def steer_pipeline(view: View) -> Response:
    name, form = view.named("pipeline"), await view.form()
    desired = form.get("desired", "")
    await view.act("steer_pipeline", {"pipeline": name}, body={"desired": desired})
    return view.go(f"/console/pipelines/{in_path(name)}", f"{name} is to {desired}; a run follows between two batches.")


async def remove_pipeline(view: View) -> Response:
    name = view.named("pipeline")
    await view.act("remove_pipeline", {"pipeline": name})
    return view.go("/console/pipelines", f"Forgot {name}.")


async def ask_replay(view: View) -> Response:
    name, form = view.named("pipeline"), await view.form()
    row = await view.act("ask_replay", {"pipeline": name}, body=_wish(form))
    return view.go(f"/console/pipelines/{in_path(name)}", f"Replay {row.number} is requested: {row.outlook}.")


async def cancel_replay(view: View) -> Response:
    name, number = view.named("pipeline"), view.named("number")
    await view.act("cancel_replay", {"pipeline": name, "number": number})
    return view.go(f"/console/pipelines/{in_path(name)}", f"Cancelled replay {number}.")


def _wish(form: dict[str, str]) -> dict[str, object]:
    """What the form asks for: only the fields that belong to the kind that was chosen."""
    wish: dict[str, object] = {"skip": [part.strip() for part in form.get("skip", "").split(",") if part.strip()]}
    match form.get("kind", ""):
        case "offsets":
            wish["offsets"] = [_span(line) for line in form.get("offsets", "").splitlines() if line.strip()]
        case "time":
            if not form.get("since", "").strip():
                raise BraidError("INVALID_ARGUMENT", reason="a replay of a time has to say from when on")
            wish["since_ms"] = time_ms(form["since"].strip())
            if form.get("until", "").strip():
                wish["until_ms"] = time_ms(form["until"].strip())
        case "letters":
            wish = {"letters": True}
        case other:
            raise BraidError("INVALID_ARGUMENT", reason=f"{other[:40]!r} is no kind of replay")
    return wish


def _span(line: str) -> dict[str, object]:
    return dict(zip(("topic", "partition", "first", "end"), read_span(line.strip()), strict=True))


def _spoken(wish: dict[str, Any]) -> str:
    """A wish in words."""
    if wish.get("letters"):
        return "dead letters"
    skipped = f", without {', '.join(wish['skip'])}" if wish.get("skip") else ""
    if "since_ms" in wish:
        until = rfc3339(wish["until_ms"]) if "until_ms" in wish else "now"
        return f"{rfc3339(wish['since_ms'])} to {until}{skipped}"
    return ", ".join(f"{topic}:{partition}:{first}-{end}" for topic, partition, first, end in wish["offsets"]) + skipped


PAGES: Final = (
    PageRoute("GET", "/console/pipelines", list_pipelines),
    PageRoute("GET", "/console/pipelines/{pipeline}", show_pipeline),
    PageRoute("POST", "/console/pipelines/{pipeline}/steer", steer_pipeline),
    PageRoute("POST", "/console/pipelines/{pipeline}/remove", remove_pipeline),
    PageRoute("POST", "/console/pipelines/{pipeline}/replays", ask_replay),
    PageRoute("POST", "/console/pipelines/{pipeline}/replays/{number}/cancel", cancel_replay),
)
