"""A request for a page of the console, as the page's function sees it, and what all pages have in common.

Pages show only what the endpoints of the API answer to the person who looks, and change things only through them. A form carries
the token of the login; the API refuses one without it. What a page shows is escaped, and browsers are told to run no script and
take no style that is not a file of ours: whatever gets into a payload stays text.

A failed page is a page too: it says the error of the one table, with its hint. Who has to log in gets the form for that and comes
back after it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from braidmq import __version__
from braidmq.admin.api import BY_NAME
from braidmq.admin.api.logins import Identity
from braidmq.admin.bodies import media_of, read_limited
from braidmq.admin.call import Call
from braidmq.admin.console import words
from braidmq.admin.console.navigation import NAVIGATION
from braidmq.admin.console.static import static_url
from braidmq.admin.console.trend import LagTrend
from braidmq.admin.shapes import read_body, read_query
from braidmq.admin.site import Site, request_id_of, set_cookies
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.security.rules import Rule

FORM_MEDIA: Final = "application/x-www-form-urlencoded"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    # With none at all, browsers would not say either that a form was sent by a page of ours.
    "Referrer-Policy": "same-origin",
    "Vary": "HX-Request, Cookie",
}
THEME_COOKIE: Final = "braid_theme"
NOTICE_COOKIE: Final = "braid_notice"
_NOTICE_SECONDS: Final = 60
_NOTICE_CHARACTERS_MAX: Final = 500
_WAYS_IN: Final = ("AUTHENTICATION_REQUIRED", "INVALID_CREDENTIALS")
"""Errors that end when somebody logs in."""

Handler = Callable[["View"], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class PageRoute:
    method: str
    path: str
    handler: Handler


class Console:
    """What all pages share."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.trend = LagTrend(site)

    @cached_property
    def templates(self) -> jinja2.Environment:
        """Loaded by the first page that somebody opens."""
        found = jinja2.Environment(
            loader=jinja2.PackageLoader("braidmq.admin.console"), autoescape=True, undefined=jinja2.StrictUndefined,
            trim_blocks=True, lstrip_blocks=True, auto_reload=False,
        )  # fmt: skip
        found.filters.update(words.FILTERS)
        found.globals.update(static=static_url, version=__version__, navigation=NAVIGATION, node=self.site.config.node_id)
        return found

    def serve(self, page: PageRoute) -> Callable[[Request], Awaitable[Response]]:
        """The function that Starlette calls for a page."""

        async def served(request: Request) -> Response:
            view = View(self, request)
            self.trend.keep_watching()
            try:
                return await page.handler(view)
            except Exception as fault:
                return view.failed(fault)

        return served


class View:
    def __init__(self, console: Console, request: Request) -> None:
        self.console = console
        self.site = console.site
        self.request = request
        self._identity: Identity | None = None
        self._form: dict[str, str] | None = None

    # --- what was asked

    @property
    def asked(self) -> Mapping[str, str]:
        """The query."""
        return self.request.query_params

    def named(self, name: str) -> str:
        """A part of the path."""
        return unquote(self.request.path_params[name])

    def number(self, name: str, default: int = 0) -> int:
        """A whole number of the query."""
        text = self.asked.get(name, "")
        if not text:
            return default
        try:
            return int(text)
        except ValueError:
            raise BraidError("INVALID_ARGUMENT", reason=f"`{name}` is not a whole number") from None

    async def form(self) -> dict[str, str]:
        """The fields of the form that was sent."""
        if self._form is None:
            media = media_of(self.request)
            if media != FORM_MEDIA:
                raise BraidError("MEDIA_TYPE", given=media[:100] or "of no type", expected=FORM_MEDIA)
            text = (await read_limited(self.request)).decode("utf-8", "replace")
            try:
                pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=limits.FORM_FIELDS_MAX)
            except ValueError as fault:
                raise BraidError("INVALID_ARGUMENT", reason=f"the form: {fault}") from None
            self._form = {name: value.replace("\r\n", "\n") for name, value in pairs}
        return self._form

    @property
    def in_part(self) -> bool:
        """Whether a script of ours asks, which puts the answer into the page that is there."""
        return "hx-request" in self.request.headers

    # --- who asks

    async def identity(self) -> Identity:
        if self._identity is None:
            self._identity = await self.site.fetch(BY_NAME["who_am_i"], self.request, path={})
        return self._identity

    async def may(self, rule: Rule, topic: str = "") -> bool:
        """Whether a button is of any use to the one who looks. The API decides anew when it is pressed."""
        visitor = await self.site.visitor(self.request)
        authorizer = self.site.server.broker.security.authorizer
        return await self.site.gate.look(lambda: authorizer.decide_rule(visitor.principal, rule, topic) is None)

    # --- what the API says

    async def fetch(self, name: str, path: Mapping[str, str] | None = None, query: Mapping[str, object] | None = None) -> Any:
        """What an endpoint answers. Queries are checked as those of programs are."""
        found, _ = await self.run(name, path, query)
        return found

    async def run(
        self, name: str, path: Mapping[str, str] | None = None, query: Mapping[str, object] | None = None,
        body: Mapping[str, object] | None = None, csrf_token: str | None = None,
    ) -> tuple[Any, Call[Any, Any]]:  # fmt: skip
        endpoint = BY_NAME[name]
        asked = {key: _text(value) for key, value in (query or {}).items() if value is not None}
        return await self.site.run(
            endpoint, self.request, path=path or {}, query=read_query(endpoint.query, asked),
            body=None if body is None else read_body(endpoint.body, dict(body)), csrf_token=csrf_token,
        )  # fmt: skip

    async def act(
        self, name: str, path: Mapping[str, str] | None = None, query: Mapping[str, object] | None = None,
        body: Mapping[str, object] | None = None,
    ) -> Any:  # fmt: skip
        """Have the API change something, with the token of the form."""
        form = await self.form()
        found, _ = await self.run(name, path, query, body, csrf_token=form.get("csrf", ""))
        return found

    # --- answers

    async def render(self, template: str, status: int = 200, **values: Any) -> Response:
        identity = await self.identity()
        return self._page(template, identity, status, values)

    def _page(self, template: str, identity: Identity | None, status: int, values: Mapping[str, Any]) -> Response:
        request = self.request
        theme = request.cookies.get(THEME_COOKIE, "")
        notice = unquote(request.cookies.get(NOTICE_COOKIE, ""))
        text = self.console.templates.get_template(template).render(
            identity=identity, here=request.url.path, asked=self.asked, notice=notice,
            theme=theme if theme in ("dark", "light") else "", csrf=(identity.csrf_token or "") if identity else "", **values,
        )  # fmt: skip
        response = self._html(text, status)
        if notice:
            response.delete_cookie(NOTICE_COOKIE, path="/console")
        return response

    @staticmethod
    def _html(text: str, status: int = 200) -> Response:
        return HTMLResponse(text, status, _HEADERS)

    def part(self, template: str, status: int = 200, **values: Any) -> Response:
        """A piece of a page."""
        return self._html(self.console.templates.get_template(template).render(asked=self.asked, **values), status)

    def go(self, url: str, notice: str = "") -> Response:
        """Lead to another page, which says what was done."""
        response = Response(headers={"HX-Redirect": url}) if self.in_part else RedirectResponse(url, 303)
        if notice:
            text = quote(notice[:_NOTICE_CHARACTERS_MAX])
            response.set_cookie(NOTICE_COOKIE, text, _NOTICE_SECONDS, path="/console", httponly=True, samesite="strict")
        return response

    def keep_cookies(self, response: Response, call: Call[Any, Any]) -> Response:
        """Set what the API has set."""
        set_cookies(response, call, secure=self.request.url.scheme == "https")
        return response

    def failed(self, fault: Exception) -> Response:
        if isinstance(fault, BraidError) and fault.code in _WAYS_IN and not self.request.url.path.startswith("/console/login"):
            back = self.request.headers.get("hx-current-url", "") if self.in_part else str(self.request.url)
            return self.go(f"/console/login?{words.in_query({'next': _local(back)})}")
        # The API's own answer is written first: it logs what is a fault of ours, under the id that both name.
        status = self.site.failure(self.request, fault).status_code
        error = fault if isinstance(fault, BraidError) else BraidError(
            "INTERNAL", reason=f"request {request_id_of(self.request)} failed"
        )  # fmt: skip
        if self.in_part:
            return self.part("problem.html", status, error=error)
        return self._page("failed.html", self._identity, status, {"error": error})


def _local(url: str) -> str:
    """The path of an address, without whatever leads to another server."""
    path = "/" + url.partition("://")[2].partition("/")[2]
    return path if path.startswith("/console") else "/console"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
