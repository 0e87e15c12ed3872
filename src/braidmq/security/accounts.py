"""What clients ask about users, roles and ACLs: logging in, and the rules of administration, whichever protocol asks.

This is the one place that joins the state machines to passwords, throttle and audit trail. Whether the caller may ask at all
was decided before (`authorizer.py`). Commands go through `submit`, which makes them durable first. Passwords are hashed beside
the loop, a few at a time; whether a guess has to wait is asked again right before it is tried, so that guesses made
at once gain nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from braidmq.base import limits
from braidmq.base.clock import Clock
from braidmq.base.disk import Disk
from braidmq.base.errors import BraidError
from braidmq.base.figures import Figures
from braidmq.security.account_names import check_user
from braidmq.security.acls import Acl, AclTable
from braidmq.security.audit import AuditTrail
from braidmq.security.audit_events import Result
from braidmq.security.authorizer import Authorizer, Principal
from braidmq.security.passwords import DEFAULT_COST, Cost, check_password, hash_password, needs_rehash, verify_password
from braidmq.security.quotas import Rates
from braidmq.security.roles import Permission, Role, RoleTable
from braidmq.security.throttle import LoginThrottle
from braidmq.security.users import User, UserTable

T = TypeVar("T")
Submit = Callable[[str, list[Any]], Awaitable[Any]]
"""Makes a command of the named machine (`users`, `roles`, `acls`) durable, applies it and answers."""

PASSWORD_VARIABLES: Final = ("BRAID_AUTH_ADMIN_PASSWORD", "FLYMQ_AUTH_ADMIN_PASSWORD")

logger = logging.getLogger("braidmq.security")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and from where."""

    principal: Principal
    address: str = ""
    """Without the port: a guesser has many ports."""


@dataclass(frozen=True, slots=True)
class UserInfo:
    """What may be shown of a user."""

    name: str
    roles: tuple[str, ...]
    permissions: tuple[Permission, ...]
    enabled: bool
    created_s: int
    updated_s: int


class Accounts:
    def __init__(
        self,
        users: UserTable,
        roles: RoleTable,
        acls: AclTable,
        authorizer: Authorizer,
        *,
        submit: Submit,
        run_blocking: Callable[[Callable[[], Any]], Awaitable[Any]],
        clock: Clock,
        audit: AuditTrail | None = None,
        figures: Figures | None = None,
        cost: Cost = DEFAULT_COST,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.users = users
        self.roles = roles
        self.acls = acls
        self._authorizer = authorizer
        self._submit = submit
        self._run_blocking = run_blocking
        self._clock = clock
        self._audit = audit
        self._figures = figures or Figures()
        self._cost = cost
        self._sleep = sleep
        self.throttle = LoginThrottle(clock)
        """Counts guesses, whatever is guessed: passwords here, keys of other protocols elsewhere."""
        self._hashing = asyncio.Semaphore(limits.LOGINS_AT_ONCE_MAX)

    # --- who somebody is

    async def authenticate(self, name: str, password: str, address: str) -> Principal:
        """The principal behind name and password.

        Raises INVALID_CREDENTIALS, USER_DISABLED or AUTH_THROTTLED. With authentication off everybody is who they say.
        """
        if not self._authorizer.enabled:
            return Principal(name)
        try:
            user = await self._verify(name, password, address)
            if not user.enabled:
                raise BraidError("USER_DISABLED")
        except BraidError as refused:
            self._note("auth.failure", Caller(Principal(name), address), name, "login", "failure", reason=refused.text)
            raise
        self._note("auth.success", Caller(Principal(name), address), name, "login")
        # As it is now: a user that is disabled while the hash is stored gets another number, which this login must not have.
        principal = Principal(user.name, user.id)
        if needs_rehash(user.password_hash, self._cost):
            before = user.password_hash
            after = await self._hash(password)
            if self.users.get(name) is user:
                await self._submit("users", self.users.rehash(name, before, after))
        return principal

    def identify(self, name: str | None, address: str) -> Principal | None:
        """The principal that a verified certificate names; None when there is no such user, or a disabled one."""
        if name is None:
            return None
        user = self.users.get(name)
        if user is None or not user.enabled:
            self._note("auth.failure", Caller(Principal(name), address), name, "certificate", "failure")
            return None
        self._note("auth.success", Caller(Principal(name), address), name, "certificate")
        return Principal(user.name, user.id)

    async def _verify(self, name: str, password: str, address: str) -> User:
        """The user whose password it is; everything else is INVALID_CREDENTIALS, in the same time."""
        deadline = self._clock.monotonic() + limits.THROTTLE_SECONDS_MAX
        while True:
            wait = self.throttle.wait_s(name, address)
            if wait > 0:
                if self._clock.monotonic() + wait > deadline:
                    raise BraidError("AUTH_THROTTLED", seconds=wait)
                await self._sleep(wait)
                continue
            async with self._hashing:
                if self.throttle.wait_s(name, address) > 0:
                    # Somebody failed while this one stood in line.
                    continue
                user = self.users.get(name)
                stored = None if user is None else user.password_hash
                right = await self._run_blocking(partial(verify_password, password, stored, self._cost))
                if user is None or not right or self.users.get(name) is not user:
                    self.throttle.failed(name, address)
                    raise BraidError("INVALID_CREDENTIALS")
                self.throttle.succeeded(name, address)
                return user

    async def _hash(self, password: str) -> str:
        check_password(password)
        async with self._hashing:
            stored: str = await self._run_blocking(partial(hash_password, password, self._cost))
            return stored

    # --- users

    def info(self, name: str) -> UserInfo:
        return self._info(self.users.require(name))

    def all_users(self) -> list[UserInfo]:
        return [self._info(user) for user in self.users.all()]

    def _info(self, user: User) -> UserInfo:
        permissions = self.roles.permissions(user.roles)
        return UserInfo(user.name, user.roles, permissions, user.enabled, user.created_s, user.updated_s)

    async def create_user(self, caller: Caller, name: str, password: str, roles: Iterable[str]) -> UserInfo:
        check_user(name)
        if self.users.get(name) is not None:
            raise BraidError("USER_EXISTS", user=name)
        # Built before the password is hashed, so that a wrong role costs no time.
        command = self.users.create(name, "", roles, self._clock.now_ms())
        command[2] = await self._hash(password)
        user: User = await self._submit("users", command)
        self._note("user.create", caller, name, "create", roles=",".join(user.roles))
        return self._info(user)

    async def update_user(self, caller: Caller, name: str, roles: Iterable[str], enabled: bool) -> UserInfo:
        """An empty list of roles leaves them as they are: published clients send one when they mean only the switch."""
        asked = list(roles)
        user: User = await self._submit("users", self.users.update(name, asked or None, enabled, self._clock.now_ms()))
        self._note("user.update", caller, name, "update", roles=",".join(user.roles), enabled=str(user.enabled).lower())
        return self._info(user)

    async def delete_user(self, caller: Caller, name: str) -> None:
        if name == caller.principal.name:
            raise BraidError("OWN_ACCOUNT")
        await self._submit("users", self.users.delete(name))
        self._note("user.delete", caller, name, "delete")

    async def change_password(self, caller: Caller, name: str, new: str, old: str) -> None:
        """Whoever changes their own password shows that they know it; an administrator changes others' without."""
        check_password(new)
        self.users.require(name)
        if name == caller.principal.name:
            try:
                await self._verify(name, old, caller.address)
            except BraidError as refused:
                self._note("user.password", caller, name, "change", "failure")
                if refused.code != "INVALID_CREDENTIALS":
                    raise
                raise BraidError("INVALID_PASSWORD") from None
        await self._submit("users", self.users.set_password(name, await self._hash(new), self._clock.now_ms()))
        self._note("user.password", caller, name, "change")

    async def set_quota(self, caller: Caller, name: str, bytes_per_s: int | None, requests_per_s: int | None) -> None:
        """None is the broker's default, 0 is no quota."""
        command = self.users.set_quota(name, bytes_per_s, requests_per_s, self._clock.now_ms())
        await self._submit("users", command)
        shown = ["default" if rate is None else str(rate) for rate in (bytes_per_s, requests_per_s)]
        self._note("user.update", caller, name, "quota", bytes_per_s=shown[0], requests_per_s=shown[1])

    def with_quota(self) -> list[User]:
        """The users that have a quota of their own."""
        return [user for user in self.users.all() if user.bytes_per_s is not None or user.requests_per_s is not None]

    def rates_of(self, name: str, defaults: Rates) -> Rates | None:
        """For `Quotas`: what a user may spend, None where nothing was set for this user."""
        user = self.users.get(name)
        if user is None or (user.bytes_per_s is None and user.requests_per_s is None):
            return None
        return Rates(
            defaults.bytes_per_s if user.bytes_per_s is None else user.bytes_per_s,
            defaults.requests_per_s if user.requests_per_s is None else user.requests_per_s,
        )

    # --- roles

    async def create_role(self, caller: Caller, name: str, permissions: Iterable[str], description: str = "") -> Role:
        role: Role = await self._submit("roles", self.roles.create(name, permissions, description))
        self._note("config.change", caller, name, "create role", permissions=",".join(role.permissions))
        return role

    async def update_role(self, caller: Caller, name: str, permissions: Iterable[str], description: str) -> Role:
        """Applies at once, also to those who are connected."""
        role: Role = await self._submit("roles", self.roles.update(name, permissions, description))
        self._note("config.change", caller, name, "change role", permissions=",".join(role.permissions))
        return role

    async def delete_role(self, caller: Caller, name: str) -> None:
        """ROLE_IN_USE while a user or an ACL names it."""
        await self._submit("roles", self.roles.delete(name))
        self._note("config.change", caller, name, "delete role")

    # --- ACLs

    async def set_acl(self, caller: Caller, topic: str, public: bool, users: Iterable[str], roles: Iterable[str]) -> Acl:
        if public and not self._authorizer.allow_anonymous:
            raise BraidError("ANONYMOUS_DISABLED")
        acl: Acl = await self._submit("acls", self.acls.set(topic, public, users, roles))
        self._note(
            "acl.set", caller, topic, "set", public=str(public).lower(), users=",".join(acl.users), roles=",".join(acl.roles)
        )  # fmt: skip
        return acl

    async def delete_acl(self, caller: Caller, topic: str) -> bool:
        """Whether there was one."""
        gone = await self._submit("acls", self.acls.delete(topic))
        self._note("acl.delete", caller, topic, "delete")
        return gone is not None

    # --- the first administrator

    async def ensure_admin(self, name: str, password: str | None) -> None:
        """Create the administrator that the settings name, where it is missing and there is a password for it."""
        if self.users.get(name) is not None:
            return
        if password:
            await self.create_user(Caller(Principal("system")), name, password, ["admin"])
            logger.info("user %s was created as administrator", name)
        elif not any(user.enabled and self.roles.grants(user.roles, Permission.ADMIN) for user in self.users.all()):
            logger.warning("nobody can administer this broker: give %s a password in %s", name, PASSWORD_VARIABLES[0])

    def _note(self, kind: str, caller: Caller, resource: str, action: str, result: Result = "success", **details: str) -> None:
        count_event(self._figures, kind)
        if self._audit is not None:
            self._audit.record(
                kind, user=caller.principal.name, client_ip=caller.address, resource=resource, action=action, result=result,
                details=details,
            )  # fmt: skip


def count_event(figures: Figures, kind: str) -> None:
    """Count what metrics show, whether there is a trail or not."""
    if kind == "auth.failure":
        figures.auth_failures += 1
    elif kind == "access.denied":
        figures.denied += 1


def admin_password(environ: Mapping[str, str], disk: Disk, path: str | None) -> str | None:
    """The administrator's password, from the environment or else from a file; no setting holds it, so none can show it."""
    for name in PASSWORD_VARIABLES:
        if environ.get(name):
            return environ[name]
    if path is None:
        return None
    try:
        password = disk.read_file(path).decode("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as fault:
        reason = f"{path} cannot be read: {fault.strerror if isinstance(fault, OSError) else 'it is not UTF-8'}"
        raise BraidError("CONFIG_INVALID_VALUE", key="auth_admin_password_file", origin="configuration", reason=reason) from None
    if not password:
        reason = f"{path} is empty"
        raise BraidError("CONFIG_INVALID_VALUE", key="auth_admin_password_file", origin="configuration", reason=reason)
    return password
