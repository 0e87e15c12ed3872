"""The app of the admin port: routes from the table of endpoints, around them what every request passes.

Names of topics, groups and schemas may hold a slash. Routes are matched before the path is decoded, so `%2F` is part of a name
and `/` is not; where FlyMQ's own paths end with a name, the rest of the path is taken as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from braidmq.admin import console
from braidmq.admin.api import ENDPOINTS
from braidmq.admin.bodies import read_json
from braidmq.admin.call import Nothing
from braidmq.admin.endpoint import Endpoint
from braidmq.admin.openapi import openapi_document
from braidmq.admin.shapes import read_body, read_query
from braidmq.admin.site import Site, request_id_of
from braidmq.admin.writing import json_response
from braidmq.base.errors import BraidError

_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

logger = logging.getLogger("braidmq.admin")

Serve = Callable[[Request], Awaitable[Response]]


def admin_app(site: Site) -> ASGIApp:
    routes = [*_api_routes(site), Route("/api/v1/openapi.json", _document(site)), Route("/swagger.json", _document(site)),
              Route("/api/v1/swagger.json", _document(site))]  # fmt: skip
    return _Around(site, Starlette(routes=[*routes, *console.routes(site), _nowhere(site)]))


# --- the API


def _api_routes(site: Site) -> list[BaseRoute]:
    """One route a path, whole paths before those that take a rest."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in ENDPOINTS:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    routes: list[BaseRoute] = [Route(path, _Methods(site, methods)) for path, methods in by_path.items()]
    for path, methods in by_path.items():
        tails = {method: endpoint for method, endpoint in methods.items() if endpoint.raw_tail}
        if tails:
            routes.append(Route(path.removesuffix("}") + ":path}", _Methods(site, tails)))
    return routes


class _Methods:
    """What is done at one path, by method."""

    def __init__(self, site: Site, methods: dict[str, Endpoint]) -> None:
        self._site = site
        self._methods = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except Exception as fault:
            response = self._site.failure(request, fault)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        endpoint = self._methods.get(method)
        if endpoint is None:
            allow = ", ".join(sorted([*self._methods, *(["HEAD"] if "GET" in self._methods else [])]))
            raise BraidError("METHOD_NOT_ALLOWED", path=request.url.path, method=request.method, allow=allow)
        query: Any = read_query(endpoint.query, _once(request))
        body = Nothing() if endpoint.body is Nothing else read_body(endpoint.body, await read_json(request))
        return await self._site.answer(endpoint, request, query, body)


def _once(request: Request) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in found:
            raise BraidError("INVALID_ARGUMENT", reason=f"`{name[:100]}` is given twice")
        found[name] = value
    return found


# --- what is not in the table


def _document(site: Site) -> Serve:
    document = openapi_document(ENDPOINTS, auth_enabled=site.config.auth_enabled)

    async def openapi(request: Request) -> Response:
        return json_response(document)

    return openapi


def _nowhere(site: Site) -> Route:
    async def nowhere(request: Request) -> Response:
        return site.failure(request, BraidError("NO_SUCH_PATH", path=request.url.path))

    return Route("/{rest:path}", nowhere, methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])


class _Around:
    """What every request of the port passes: whose page sent it, its id, and headers that keep browsers careful."""

    def __init__(self, site: Site, app: ASGIApp) -> None:
        self._site = site
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["path"] = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        request = Request(scope, receive)
        request_id = request_id_of(request)

        async def send_marked(message: Any) -> None:
            if message["type"] == "http.response.start":
                if logger.isEnabledFor(logging.DEBUG):
                    # Neither query nor body: either may hold what is nobody's business.
                    status, extra = message["status"], {"request_id": request_id}
                    logger.debug("%s %s: %d", request.method, scope["path"], status, extra=extra)
                present = {name.lower() for name, _ in message["headers"]}
                added = {**_HEADERS, "X-Request-Id": request_id}
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in added.items() if name.lower().encode() not in present),
                ]
            await send(message)

        try:
            self._site.check_request(request)
        except BraidError as refused:
            await self._site.failure(request, refused)(scope, receive, send_marked)
            return
        await self._app(scope, receive, send_marked)
