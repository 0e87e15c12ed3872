"""Pipelines: what they are made of, how far they are, and steering them."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from braidmq.admin.console.graph import graph_of
from braidmq.admin.console.view import PageRoute, View
from braidmq.admin.console.words import in_path
from braidmq.admin.times import rfc3339

_REPORTS: Final = 20


async def list_pipelines(view: View) -> Response:
    return await view.render("pipelines.html", rows=await view.fetch("list_pipelines"))


async def show_pipeline(view: View) -> Response:
    found = await view.fetch("get_pipeline", {"pipeline": view.named("pipeline")})
    identity = await view.identity()
    latest = found.reports[-1].progress if found.reports else found.runs[-1].progress if found.runs else {}
    return await view.render(
        "pipeline.html", found=found, latest=latest, graph=graph_of(found.format, found.definition),
        reports=[(rfc3339(report.time_ms), report.progress) for report in reversed(found.reports[-_REPORTS:])],
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


PAGES: Final = (
    PageRoute("GET", "/console/pipelines", list_pipelines),
    PageRoute("GET", "/console/pipelines/{pipeline}", show_pipeline),
    PageRoute("POST", "/console/pipelines/{pipeline}/steer", steer_pipeline),
    PageRoute("POST", "/console/pipelines/{pipeline}/remove", remove_pipeline),
)
