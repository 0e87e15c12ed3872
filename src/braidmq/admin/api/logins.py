"""Logging in and out, and who one is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from braidmq.admin.call import Call, Nothing
from braidmq.admin.identity import COOKIE, Login, Visitor
from braidmq.admin.shapes import Bounds
from braidmq.base import limits
from braidmq.security.rules import Rule


@dataclass(frozen=True, slots=True)
class NewLogin:
    """Name and password."""

    username: Annotated[str, Bounds(1, limits.USER_NAME_BYTES_MAX)]
    password: Annotated[str, Bounds(0, limits.PASSWORD_BYTES_MAX)]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the caller is, and what they may do."""

    username: Annotated[str, "empty for somebody who did not log in"]
    authenticated: bool
    auth_enabled: Annotated[bool, "whether anybody has to log in; where not, everybody may do everything"]
    roles: list[str]
    permissions: list[str]
    admin: Annotated[bool, "whether the caller may change things"]
    csrf_token: Annotated[str | None, "for the header X-CSRF-Token, where the caller came by cookie or just logged in"] = None
    token: Annotated[str | None, "for `Authorization: Bearer`; only in the answer to a login"] = None


async def log_in(call: Call[Nothing, NewLogin]) -> Identity:
    """Log in. The answer has a token for `Authorization: Bearer`, and sets the same as a cookie for browsers."""
    login = await call.doorkeeper.log_in(call.body.username, call.body.password, call.ip)
    call.set_cookie(COOKIE, login.token)
    call.visitor = Visitor(login.principal, login)
    return _identity(call, login, token=login.token)


def log_out(call: Call[Nothing, Nothing]) -> None:
    """End the login of the token or cookie that comes with the request."""
    if call.visitor.login is not None:
        call.doorkeeper.end(call.visitor.login)
        call.note("auth.logout", call.principal.name, "logout")
    call.set_cookie(COOKIE, "")


def who_am_i(call: Call[Nothing, Nothing]) -> Identity:
    """Who the caller is, and what they may do."""
    return _identity(call, call.visitor.login)


def _identity(call: Call[Nothing, NewLogin] | Call[Nothing, Nothing], login: Login | None, token: str | None = None) -> Identity:
    security = call.broker.security
    enabled = security.authorizer.enabled
    user = security.users.get(call.principal.name) if enabled else None
    roles = ("admin",) if not enabled else () if user is None else user.roles
    return Identity(
        username=call.principal.name,
        authenticated=user is not None,
        auth_enabled=enabled,
        roles=list(roles),
        permissions=[str(permission) for permission in security.roles.permissions(roles)],
        admin=call.may(Rule.ADMIN),
        csrf_token=None if login is None else login.csrf_token,
        token=token,
    )
