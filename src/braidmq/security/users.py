"""Users, as a state machine: who exists, what is stored of their password, their roles and their quota.

Times are seconds since the Unix epoch, as published clients read them. Each user has a number that is never used again, and gets
another one when it is disabled: whoever logged in before is nobody from then on, and does not become somebody again when the
account is enabled, or when the next user of that name is created. Commands carry hashes, never passwords.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.security.account_names import check_role, check_user, distinct


@dataclass(slots=True)
class User:
    name: str
    id: int
    password_hash: str = field(repr=False)
    roles: tuple[str, ...]
    enabled: bool
    created_s: int
    updated_s: int
    bytes_per_s: int | None = None
    requests_per_s: int | None = None
    """Quotas of this user; None is the broker's default, 0 is none at all."""


class UserTable:
    def __init__(self, users_max: int = limits.USERS_MAX) -> None:
        self._users_max = users_max
        self._users: dict[str, User] = {}
        self._next_id = 1
        self.version = 0
        """Grows with every change, so that a decision made earlier can be told from a current one."""

    def __len__(self) -> int:
        return len(self._users)

    def get(self, name: str) -> User | None:
        return self._users.get(name)

    def require(self, name: str) -> User:
        """The user, or USER_NOT_FOUND."""
        user = self._users.get(name)
        if user is None:
            raise BraidError("USER_NOT_FOUND", user=name)
        return user

    def all(self) -> list[User]:
        return [self._users[name] for name in sorted(self._users)]

    def having(self, role: str) -> str | None:
        """A user that has the role, if there is one."""
        return next((user.name for user in self._users.values() if role in user.roles), None)

    # --- commands

    def create(self, name: str, password_hash: str, roles: Iterable[str], now_ms: int) -> list[Any]:
        check_user(name)
        return ["create", name, password_hash, _checked_roles(roles), now_ms // 1000, self._users_max]

    @staticmethod
    def delete(name: str) -> list[Any]:
        return ["delete", name]

    @staticmethod
    def update(name: str, roles: Iterable[str] | None, enabled: bool | None, now_ms: int) -> list[Any]:
        """None leaves as it is."""
        return ["update", name, None if roles is None else _checked_roles(roles), enabled, now_ms // 1000]

    @staticmethod
    def set_password(name: str, password_hash: str, now_ms: int) -> list[Any]:
        return ["password", name, password_hash, now_ms // 1000]

    @staticmethod
    def rehash(name: str, before: str, after: str) -> list[Any]:
        """Store the same password at another cost, unless it was changed meanwhile. To the user nothing changed."""
        return ["rehash", name, before, after]

    @staticmethod
    def set_quota(name: str, bytes_per_s: int | None, requests_per_s: int | None, now_ms: int) -> list[Any]:
        for what, rate in (("bytes_per_s", bytes_per_s), ("requests_per_s", requests_per_s)):
            if rate is not None and rate < 0:
                raise BraidError("INVALID_ARGUMENT", reason=f"{what} is negative; 0 is no quota")
        return ["quota", name, bytes_per_s, requests_per_s, now_ms // 1000]

    def apply(self, command: list[Any]) -> User:
        """Carry out one command; returns the user as it is now, or as it was before it was deleted."""
        match command:
            case ["create", str(name), str(password_hash), list(roles), int(now_s), int(users_max)]:
                if name in self._users:
                    raise BraidError("USER_EXISTS", user=name)
                if len(self._users) >= users_max:
                    raise BraidError("ACCOUNT_LIMIT", limit=users_max, what="users")
                user = self._users[name] = User(name, self._new_id(), password_hash, tuple(roles), True, now_s, now_s)
            case ["delete", str(name)]:
                user = self.require(name)
                del self._users[name]
            case ["update", str(name), roles, enabled, int(now_s)]:
                user = self.require(name)
                user.roles = user.roles if roles is None else tuple(roles)
                if user.enabled and enabled is False:
                    user.id = self._new_id()
                user.enabled = user.enabled if enabled is None else enabled
                user.updated_s = now_s
            case ["password", str(name), str(password_hash), int(now_s)]:
                user = self.require(name)
                user.password_hash = password_hash
                user.updated_s = now_s
            case ["rehash", str(name), str(before), str(after)]:
                user = self.require(name)
                if user.password_hash == before:
                    user.password_hash = after
            case ["quota", str(name), bytes_per_s, requests_per_s, int(now_s)]:
                user = self.require(name)
                user.bytes_per_s, user.requests_per_s = bytes_per_s, requests_per_s
                user.updated_s = now_s
            case _:
                raise AssertionError(f"unknown user command {command[:1]}")
        self.version += 1
        return user

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    # --- snapshots

    def snapshot(self) -> Any:
        rows = [
            [u.name, u.id, u.password_hash, list(u.roles), u.enabled, u.created_s, u.updated_s, u.bytes_per_s, u.requests_per_s]
            for u in self._users.values()
        ]
        return {"next_id": self._next_id, "users": rows}

    def restore(self, document: Any) -> None:
        self._users = {
            name: User(name, number, password_hash, tuple(roles), *rest)
            for name, number, password_hash, roles, *rest in document["users"]
        }
        self._next_id = document["next_id"]
        self.version += 1


def _checked_roles(roles: Iterable[str]) -> list[str]:
    found = distinct("roles", roles, limits.ROLES_PER_USER_MAX)
    for role in found:
        check_role(role)
    return found
