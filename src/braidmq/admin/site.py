"""What all requests of the HTTP servers share, and the way each one takes: checked here, carried out on the broker's loop,
written here.

`Site.answer` serves an endpoint of the API. Pages of the console ask the same endpoints with `Site.fetch`, so that rights, checks
and notes in the audit trail are the same for people and for programs.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.call import Call, Document
from braidmq.admin.endpoint import Endpoint
from braidmq.admin.gate import Gate
from braidmq.admin.identity import (
    COOKIE,
    CSRF_HEADER,
    Credentials,
    Doorkeeper,
    UncheckedPassword,
    Visitor,
    read_credentials,
    same_token,
)
from braidmq.admin.live import LiveStream, LiveStreams
from braidmq.admin.metrics.snapshot import MetricsReader, Snapshot
from braidmq.admin.metrics.text import MEDIA as METRICS_MEDIA
from braidmq.admin.metrics.text import scrape_text
from braidmq.admin.origins import SAFE_METHODS, allowed_hosts, check_host, check_origin
from braidmq.admin.problem import problem_response
from braidmq.admin.writing import json_response
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.server.app import BrokerServer

_LOGINS_AT_ONCE: Final = 64
"""Those whose password is being checked wait for the throttle and not for the loop; they must not hold up the others."""

T = TypeVar("T")

logger = logging.getLogger("braidmq.admin")


class Site:
    def __init__(self, server: BrokerServer, broker_loop: asyncio.AbstractEventLoop) -> None:
        """In the HTTP thread; the broker may still be starting."""
        self.server = server
        self.config = server.config
        self.gate = Gate(server, broker_loop)
        self._logins = Gate(server, broker_loop, at_once_max=_LOGINS_AT_ONCE)
        self.stopping = asyncio.Event()
        """Set when live streams have to end."""
        self.metrics = MetricsReader(server)
        self.live = LiveStreams()
        self._doorkeeper: Doorkeeper | None = None
        self._hosts = allowed_hosts(server.config.admin_hosts, server.config.node_id, server.config.admin_listen.host)

    @property
    def doorkeeper(self) -> Doorkeeper:
        """To be asked on the broker's loop, once the broker is there."""
        if self._doorkeeper is None:
            self._doorkeeper = Doorkeeper(self.server.broker)
        return self._doorkeeper

    # --- the API

    async def answer(self, endpoint: Endpoint, request: Request, query: Any, body: Any) -> Response:
        """Carry out a request and write its answer."""
        found, call = await self.run(endpoint, request, query=query, body=body)
        response: Response
        if endpoint.status == 204:
            response = Response(status_code=204)
        elif isinstance(found, LiveStream):
            response = self.live.response(self, found, request_id_of(request))
        elif isinstance(found, Snapshot):
            response = Response(await scrape_text(found), media_type=METRICS_MEDIA)
        elif isinstance(found, Document):
            response = Response(found.data, 200, media_type=found.media)
        else:
            response = json_response(found, endpoint.status)
        response.headers.update(call.headers)
        set_cookies(response, call, secure=request.url.scheme == "https")
        return response

    async def fetch(
        self, endpoint: Endpoint, request: Request, *, path: Mapping[str, str] | None = None, query: Any = None, body: Any = None,
        csrf_token: str | None = None,
    ) -> Any:
        """What an endpoint answers, for a page: the shapes themselves. `csrf_token` is the one of the page's form."""
        found, _ = await self.run(endpoint, request, path=path, query=query, body=body, csrf_token=csrf_token)
        return found

    async def run(
        self, endpoint: Endpoint, request: Request, *, path: Mapping[str, str] | None = None, query: Any = None, body: Any = None,
        csrf_token: str | None = None,
    ) -> tuple[Any, Call[Any, Any]]:
        credentials = credentials_of(request)
        given = {name: unquote(text) for name, text in request.path_params.items()} if path is None else dict(path)
        token = request.headers.get(CSRF_HEADER, "") if csrf_token is None else csrf_token
        query = endpoint.query() if query is None else query
        body = endpoint.body() if body is None else body
        ip = client_ip(request)

        async def carry_out() -> tuple[Any, Call[Any, Any]]:
            visitor = self.doorkeeper.recognize(credentials)
            if endpoint.method not in SAFE_METHODS:
                check_csrf(visitor, credentials, token)
            call: Call[Any, Any] = Call(self.server, ip, given, query, body, visitor, self.doorkeeper, self.metrics)
            subject = given.get("user", "")
            call.require(endpoint.rule, given.get(endpoint.about, ""), subject=subject, what=endpoint.name)
            found = endpoint.handler(call)
            return (await found if inspect.isawaitable(found) else found), call

        return await self._with_login(credentials, ip, carry_out, self._logins if endpoint.hashes else self.gate)

    async def _with_login(self, credentials: Credentials, ip: str, action: Callable[[], Awaitable[T]], gate: Gate) -> T:
        """Run what wants to know who asks on the broker's loop; a new password is checked before, where waiting is free."""
        try:
            return await gate.ask(action)
        except UncheckedPassword:
            await self._logins.ask(lambda: self.doorkeeper.check(credentials, ip))
            return await gate.ask(action)

    async def visitor(self, request: Request) -> Visitor:
        """Who sends a request."""
        credentials = credentials_of(request)

        async def recognize() -> Visitor:
            return self.doorkeeper.recognize(credentials)

        return await self._with_login(credentials, client_ip(request), recognize, self.gate)

    # --- around every request of the admin port

    def check_request(self, request: Request) -> None:
        """Refuse what another site made a browser send."""
        check_host(request.headers.get("host", ""), self._hosts)
        check_origin(request.method, request.headers)

    def failure(self, request: Request, fault: Exception) -> Response:
        """The answer to a request that failed. A fault of ours is logged with its traceback, under the id that the answer names."""
        request_id = request_id_of(request)
        if not isinstance(fault, BraidError):
            logger.error("%s %s failed", request.method, request.url.path, exc_info=fault, extra={"request_id": request_id})
            fault = BraidError("INTERNAL", reason=f"request {request_id} failed")
        ours = COOKIE in request.cookies or "hx-request" in request.headers
        headers = {"Allow": str(fault.fields["allow"])} if "allow" in fault.fields else None
        return problem_response(fault, request_id, ask_login=not ours, headers=headers)


def set_cookies(response: Response, call: Call[Any, Any], *, secure: bool) -> None:
    """A cookie of ours is for no script and for no other site."""
    for name, value in call.cookies.items():
        if value:
            response.set_cookie(name, value, path="/", httponly=True, samesite="strict", secure=secure)
        else:
            response.delete_cookie(name, path="/", httponly=True, samesite="strict", secure=secure)


def check_csrf(visitor: Visitor, credentials: Credentials, token: str) -> None:
    """A cookie comes with every request that a browser makes, whoever wrote the page; the token only with those of our pages."""
    if credentials.cookie and visitor.login is not None and not same_token(visitor.login.csrf_token, token):
        raise BraidError("CROSS_SITE", reason=f"the header {CSRF_HEADER} has to hold the csrf_token of the login")


def credentials_of(request: Request) -> Credentials:
    return read_credentials(request.headers.get("authorization", ""), request.cookies.get(COOKIE, ""))


def client_ip(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def request_id_of(request: Request) -> str:
    """The id under which a request is found in the log: the caller's own where it brings one, as gateways do."""
    known: str = request.scope.get("braid.request_id", "")
    if not known:
        given = request.headers.get("x-request-id", "")
        fine = 0 < len(given) <= limits.REQUEST_ID_CHARACTERS_MAX and given.isascii() and given.isprintable() and " " not in given
        known = request.scope["braid.request_id"] = given if fine else secrets.token_hex(8)
    return known
