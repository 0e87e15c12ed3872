"""Who sends a request: the users of the wire, by name and password, by token, or by the cookie of the web console.

Everything here runs on the broker's loop, next to the accounts that it asks. A password is checked by the same code as on the
wire, with the same throttle, which takes as long as hashing takes; a pair that was right is remembered for a minute, under a
keyed digest. A login gives a token. It lives until it is ended, was silent for hours, or the account changed its password, was
disabled or is gone.

With authentication off everybody may do everything, as on the wire, and nothing is checked.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.security.authorizer import ANONYMOUS, Principal

COOKIE: Final = "braid_session"
CSRF_HEADER: Final = "x-csrf-token"
_REMEMBERED_SECONDS: Final = 60.0
_REMEMBERED_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request brings along; at most one of the three."""

    name: str = ""
    password: str = ""
    token: str = ""
    """Of the header `Authorization: Bearer`."""
    cookie: str = ""

    @property
    def basic(self) -> bool:
        return bool(self.name)


@dataclass(slots=True)
class Login:
    """Somebody who logged in."""

    token: str
    csrf_token: str
    """What a page of ours knows and another site cannot: changes by cookie have to bring it along."""
    principal: Principal
    password_hash: str
    used_at: float


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who a request comes from, and by which login."""

    principal: Principal
    login: Login | None = None


class UncheckedPassword(Exception):
    """A password that has to be hashed before anybody knows whose it is, which takes its time."""


def read_credentials(authorization: str, cookie: str) -> Credentials:
    """From the header `Authorization` and the cookie; a header wins. One that makes no sense is INVALID_CREDENTIALS."""
    scheme, _, rest = authorization.partition(" ")
    if not authorization:
        return Credentials(cookie=cookie)
    if scheme.lower() == "bearer" and rest.strip():
        return Credentials(token=rest.strip())
    if scheme.lower() == "basic":
        try:
            name, colon, password = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
        except ValueError:
            name, colon, password = "", "", ""
        if colon and name:
            return Credentials(name, password)
    raise BraidError("INVALID_CREDENTIALS")


class Doorkeeper:
    def __init__(self, broker: Broker) -> None:
        self._security = broker.security
        self._clock = broker.clock
        self._key = secrets.token_bytes(32)
        self._logins: OrderedDict[str, Login] = OrderedDict()
        """By digest of the token; the one that was used longest ago comes first."""
        self._remembered: OrderedDict[bytes, tuple[Principal, str, float]] = OrderedDict()

    # --- who is it

    def recognize(self, credentials: Credentials) -> Visitor:
        """Who it is, as far as that can be told at once; `UncheckedPassword` when it cannot."""
        authorizer = self._security.authorizer
        if credentials.basic:
            if not authorizer.enabled:
                return Visitor(Principal(credentials.name))
            known = self._remembered.get(self._digest(credentials))
            if known is None or self._clock.monotonic() >= known[2] or not self._still(known[0], known[1]):
                raise UncheckedPassword
            return Visitor(known[0])
        token = credentials.token or credentials.cookie
        login = self._logins.get(_hashed(token)) if token else None
        if login is not None and self._clock.monotonic() - login.used_at >= limits.ADMIN_SESSION_IDLE_SECONDS_MAX:
            self.end(login)
            login = None
        if login is not None and authorizer.enabled and not self._still(login.principal, login.password_hash):
            self.end(login)
            login = None
        if login is None:
            if credentials.token:
                raise BraidError("INVALID_CREDENTIALS")
            return Visitor(ANONYMOUS)
        login.used_at = self._clock.monotonic()
        self._logins.move_to_end(_hashed(login.token))
        return Visitor(login.principal, login)

    async def check(self, credentials: Credentials, ip: str) -> Visitor:
        """Who somebody with name and password is; takes as long as the throttle of logins says."""
        principal = await self._security.accounts.authenticate(credentials.name, credentials.password, ip)
        self._remembered[self._digest(credentials)] = (
            principal, self._password_hash(principal), self._clock.monotonic() + _REMEMBERED_SECONDS,
        )  # fmt: skip
        while len(self._remembered) > _REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        return Visitor(principal)

    # --- logins

    async def log_in(self, name: str, password: str, ip: str) -> Login:
        principal = await self._security.accounts.authenticate(name, password, ip)
        now = self._clock.monotonic()
        login = Login(secrets.token_urlsafe(32), secrets.token_urlsafe(32), principal, self._password_hash(principal), now)
        self._logins[_hashed(login.token)] = login
        while len(self._logins) > limits.ADMIN_SESSIONS_MAX:
            self._logins.popitem(last=False)
        return login

    def end(self, login: Login) -> None:
        self._logins.pop(_hashed(login.token), None)

    # --- what it rests on

    def _still(self, principal: Principal, password_hash: str) -> bool:
        """Whether the account is still there, enabled, and has the password it had then."""
        live = not self._security.authorizer.current(principal).anonymous
        return live and self._password_hash(principal) == password_hash

    def _password_hash(self, principal: Principal) -> str:
        user = self._security.users.get(principal.name)
        return "" if user is None else user.password_hash

    def _digest(self, credentials: Credentials) -> bytes:
        pair = f"{credentials.name}\0{credentials.password}"
        return hmac.digest(self._key, pair.encode("utf-8", "surrogatepass"), "sha256")


def _hashed(token: str) -> str:
    """Tokens are found by their digest, so that the time a search takes says nothing about them."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def same_token(expected: str, given: str) -> bool:
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "surrogatepass"))
