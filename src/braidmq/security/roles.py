"""Roles, as a state machine: four that are always there, and those an operator adds.

A role is a name for permissions. Users and ACLs name roles freely: a name without a role behind it grants nothing, and begins to
grant when the role is created. The other way round a role that a user or an ACL names cannot be deleted: who had it would get
whatever the next role of that name permits. That is decided when the command is applied, from tables whose commands are in the
same journal, so a replay decides as it was decided then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.security.account_names import check_role


class Permission(StrEnum):
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Role:
    name: str
    permissions: tuple[Permission, ...]
    description: str


BUILT_IN: Final[dict[str, Role]] = {
    role.name: role
    for role in (
        Role("admin", (Permission.READ, Permission.WRITE, Permission.ADMIN), "Full access to all operations"),
        Role("producer", (Permission.WRITE,), "Write-only access (produce messages)"),
        Role("consumer", (Permission.READ,), "Read-only access (consume messages)"),
        Role("guest", (), "Access to public topics only"),
    )
}


class RoleTable:
    def __init__(self, roles_max: int = limits.ROLES_MAX, used_by: Callable[[str], str | None] = lambda name: None) -> None:
        """`used_by` says in words who names a role, None when nobody does."""
        self._roles_max = roles_max
        self._used_by = used_by
        self._custom: dict[str, Role] = {}
        self.version = 0
        """Grows with every change, so that a decision made earlier can be told from a current one."""

    def get(self, name: str) -> Role | None:
        return BUILT_IN.get(name) or self._custom.get(name)

    def all(self) -> list[Role]:
        """The built-in roles, then the others by name."""
        return [*BUILT_IN.values(), *(self._custom[name] for name in sorted(self._custom))]

    def permissions(self, roles: Iterable[str]) -> tuple[Permission, ...]:
        """What these roles grant together, always in the same order."""
        granted = {permission for name in roles if (role := self.get(name)) is not None for permission in role.permissions}
        return tuple(permission for permission in Permission if permission in granted)

    def grants(self, roles: Iterable[str], permission: Permission) -> bool:
        return any((role := self.get(name)) is not None and permission in role.permissions for name in roles)

    # --- commands

    def create(self, name: str, permissions: Iterable[str], description: str = "") -> list[Any]:
        check_role(name)
        return ["create", name, _checked_permissions(permissions), _checked_description(description), self._roles_max]

    @staticmethod
    def update(name: str, permissions: Iterable[str], description: str) -> list[Any]:
        return ["update", name, _checked_permissions(permissions), _checked_description(description)]

    @staticmethod
    def delete(name: str) -> list[Any]:
        return ["delete", name]

    def apply(self, command: list[Any]) -> Role:
        match command:
            case ["create", str(name), list(permissions), str(description), int(roles_max)]:
                if self.get(name) is not None:
                    raise BraidError("ROLE_EXISTS", role=name)
                if len(self._custom) >= roles_max:
                    raise BraidError("ACCOUNT_LIMIT", limit=roles_max, what="roles")
                role = self._custom[name] = _role(name, permissions, description)
                self.version += 1
                return role
            case ["update", str(name), list(permissions), str(description)]:
                self._require_custom(name)
                role = self._custom[name] = _role(name, permissions, description)
                self.version += 1
                return role
            case ["delete", str(name)]:
                gone = self._require_custom(name)
                where = self._used_by(name)
                if where is not None:
                    raise BraidError("ROLE_IN_USE", role=name, where=where)
                del self._custom[name]
                self.version += 1
                return gone
        raise AssertionError(f"unknown role command {command[:1]}")

    def _require_custom(self, name: str) -> Role:
        if name in BUILT_IN:
            raise BraidError("ROLE_BUILT_IN", role=name)
        role = self._custom.get(name)
        if role is None:
            raise BraidError("ROLE_NOT_FOUND", role=name)
        return role

    # --- snapshots

    def snapshot(self) -> Any:
        return [[role.name, list(map(str, role.permissions)), role.description] for role in self._custom.values()]

    def restore(self, document: Any) -> None:
        self._custom = {name: _role(name, permissions, description) for name, permissions, description in document}
        self.version += 1


def _checked_permissions(permissions: Iterable[str]) -> list[str]:
    known = [str(permission) for permission in Permission]
    asked = list(dict.fromkeys(map(str, permissions)))
    for permission in asked:
        if permission not in known:
            raise BraidError("INVALID_ARGUMENT", reason=f"unknown permission {permission!r}; there are {', '.join(known)}")
    return asked


def _checked_description(text: str) -> str:
    size, most = len(text.encode("utf-8", "replace")), limits.ROLE_DESCRIPTION_BYTES_MAX
    if size > most:
        raise BraidError("INVALID_ARGUMENT", reason=f"the description takes {size} bytes, {most} at most")
    return text


def _role(name: str, permissions: list[str], description: str) -> Role:
    return Role(name, tuple(permission for permission in Permission if permission in permissions), description)
