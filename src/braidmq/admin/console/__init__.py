"""The web console: pages on the admin port, rendered in the HTTP thread.

A page asks the same endpoints as the API does and gets their shapes: rights, checks and the audit trail are the same for people and
for programs. Nothing here looks into the broker. Pages work without scripts; with them, parts of a page keep themselves up to date.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from braidmq.admin.console import (
    access,
    cluster,
    deliveries,
    groups,
    letters,
    messages,
    overview,
    pipelines,
    reference,
    schemas,
    sign_in,
    system,
    topics,
    trail,
    waiting,
)
from braidmq.admin.console.static import static_route
from braidmq.admin.console.view import Console, PageRoute
from braidmq.admin.site import Site

_PAGES: Final[tuple[PageRoute, ...]] = (
    *overview.PAGES,
    *sign_in.PAGES,
    *topics.PAGES,
    *messages.PAGES,
    *groups.PAGES,
    *schemas.PAGES,
    *letters.PAGES,
    *waiting.PAGES,
    *deliveries.PAGES,
    *pipelines.PAGES,
    *access.PAGES,
    *trail.PAGES,
    *system.PAGES,
    *reference.PAGES,
    *cluster.PAGES,
)


def routes(site: Site) -> list[BaseRoute]:
    """The pages, what they are made of, and the way to them from the port's root."""
    console = Console(site)
    pages: list[BaseRoute] = [Route(page.path, console.serve(page), methods=[page.method]) for page in _PAGES]
    return [Route("/", _front), Route("/console/", _front), static_route(console), *pages]


async def _front(request: Request) -> Response:
    return RedirectResponse("/console", 307)
