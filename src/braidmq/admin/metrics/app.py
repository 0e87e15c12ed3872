"""The app of the metrics port."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from braidmq.admin.metrics.text import MEDIA, scrape_text
from braidmq.admin.site import Site
from braidmq.base.errors import BraidError


def metrics_app(site: Site) -> ASGIApp:
    async def metrics(request: Request) -> Response:
        try:
            snapshot = await site.gate.ask(site.metrics.read)
        except BraidError as fault:
            # Whoever scrapes during recovery has nothing to gain from an error page.
            return PlainTextResponse(f"# {fault}\n", 503)
        return Response(await scrape_text(snapshot), media_type=MEDIA)

    return Starlette(routes=[Route("/metrics", metrics)])
