"""The web console: pages on the admin port, rendered in the HTTP thread.

A page asks the same endpoints as the API does, `await site.fetch(BY_NAME["list_topics"], request, query=TopicQuery(limit=100))`,
and gets their shapes: rights, checks and the audit trail are the same. `site.visitor(request)` says who looks, and `csrf_token`
of their login goes into every form, from where the page hands it to `site.fetch`.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from braidmq.admin.site import Site


def routes(site: Site) -> list[BaseRoute]:
    """The pages."""

    async def front(request: Request) -> Response:
        return RedirectResponse("/api/v1/openapi.json")

    return [Route("/", front)]
