"""Users, roles, ACLs and quotas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from braidmq.admin.call import Call, Nothing
from braidmq.admin.shapes import Bounds
from braidmq.admin.times import rfc3339
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.security.accounts import UserInfo
from braidmq.security.acls import Acl
from braidmq.security.roles import BUILT_IN, Role

PermissionName = Literal["read", "write", "admin"]
_Name = Annotated[str, Bounds(1, limits.USER_NAME_BYTES_MAX)]
_Password = Annotated[str, Bounds(0, limits.PASSWORD_BYTES_MAX)]


@dataclass(frozen=True, slots=True)
class UserRow:
    """A user."""

    username: str
    roles: list[str]
    permissions: list[str]
    enabled: bool
    created_at: str
    updated_at: str


@dataclass(frozen=True, slots=True)
class NewUser:
    """A user to be made."""

    username: _Name
    password: _Password
    roles: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class UserChange:
    """What is to change; the rest stays."""

    roles: list[str] | None = None
    enabled: bool | None = None


@dataclass(frozen=True, slots=True)
class PasswordChange:
    """A new password. Whoever changes their own shows that they know the old one."""

    new_password: _Password
    old_password: _Password = ""


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """What a user may spend a second; without a number the broker's setting counts, 0 is no quota."""

    bytes_per_s: Annotated[int | None, Bounds(0, 1 << 50)] = None
    requests_per_s: Annotated[int | None, Bounds(0, 1_000_000_000)] = None


@dataclass(frozen=True, slots=True)
class AclRow:
    """Who may use a topic, or the topics that a pattern names."""

    topic: str
    public: bool
    allowed_users: list[str]
    allowed_roles: list[str]


@dataclass(frozen=True, slots=True)
class AclChange:
    """Who may use a topic."""

    public: bool = False
    allowed_users: list[str] = field(default_factory=list)
    allowed_roles: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RoleRow:
    """A name for permissions."""

    name: str
    permissions: list[str]
    description: str
    built_in: bool


@dataclass(frozen=True, slots=True)
class NewRole:
    """A role to be made."""

    name: _Name
    permissions: list[PermissionName]
    description: Annotated[str, Bounds(0, limits.ROLE_DESCRIPTION_BYTES_MAX)] = ""


@dataclass(frozen=True, slots=True)
class RoleChange:
    """What a role is to be."""

    permissions: list[PermissionName]
    description: Annotated[str, Bounds(0, limits.ROLE_DESCRIPTION_BYTES_MAX)] = ""


# --- users


def list_users(call: Call[Nothing, Nothing]) -> list[UserRow]:
    """All users, by name."""
    return [_user(info) for info in call.broker.security.accounts.all_users()]


async def create_user(call: Call[Nothing, NewUser]) -> UserRow:
    """Create a user."""
    body = call.body
    return _user(await call.broker.security.accounts.create_user(call.account, body.username, body.password, body.roles))


def get_user(call: Call[Nothing, Nothing]) -> UserRow:
    """One user."""
    return _user(call.broker.security.accounts.info(call.path["user"]))


async def update_user(call: Call[Nothing, UserChange]) -> UserRow:
    """Change roles of a user, or let them in or not."""
    accounts = call.broker.security.accounts
    before = accounts.info(call.path["user"])
    enabled = before.enabled if call.body.enabled is None else call.body.enabled
    return _user(await accounts.update_user(call.account, before.name, call.body.roles or (), enabled))


async def delete_user(call: Call[Nothing, Nothing]) -> None:
    """Delete a user."""
    await call.broker.security.accounts.delete_user(call.account, call.path["user"])


async def change_password(call: Call[Nothing, PasswordChange]) -> UserRow:
    """Change a password: one's own with the old one, or anybody's as an administrator."""
    accounts = call.broker.security.accounts
    await accounts.change_password(call.account, call.path["user"], call.body.new_password, call.body.old_password)
    return _user(accounts.info(call.path["user"]))


def get_quota(call: Call[Nothing, Nothing]) -> QuotaRow:
    """What a user may spend."""
    user = call.broker.security.users.require(call.path["user"])
    return QuotaRow(user.bytes_per_s, user.requests_per_s)


async def set_quota(call: Call[Nothing, QuotaRow]) -> QuotaRow:
    """Set what a user may spend."""
    body = call.body
    await call.broker.security.accounts.set_quota(call.account, call.path["user"], body.bytes_per_s, body.requests_per_s)
    return body


def _user(info: UserInfo) -> UserRow:
    return UserRow(
        info.name, list(info.roles), [str(permission) for permission in info.permissions], info.enabled,
        rfc3339(info.created_s * 1000), rfc3339(info.updated_s * 1000),
    )  # fmt: skip


# --- ACLs


def list_acls(call: Call[Nothing, Nothing]) -> list[AclRow]:
    """All ACLs."""
    return [_acl(acl) for acl in call.broker.security.acls.all()]


def get_acl(call: Call[Nothing, Nothing]) -> AclRow:
    """The ACL of a topic or pattern; without one what counts for topics that have none."""
    name = call.path["pattern"]
    acl = call.broker.security.acls.get(name)
    return AclRow(name, call.authorizer.default_public, [], []) if acl is None else _acl(acl)


async def set_acl(call: Call[Nothing, AclChange]) -> AclRow:
    """Say who may use a topic, or the topics of a pattern."""
    body = call.body
    accounts = call.broker.security.accounts
    return _acl(await accounts.set_acl(call.account, call.path["pattern"], body.public, body.allowed_users, body.allowed_roles))


async def delete_acl(call: Call[Nothing, Nothing]) -> None:
    """Take an ACL away."""
    if call.broker.security.acls.get(call.path["pattern"]) is None:
        raise BraidError("ACL_NOT_FOUND", topic=call.path["pattern"])
    await call.broker.security.accounts.delete_acl(call.account, call.path["pattern"])


def _acl(acl: Acl) -> AclRow:
    return AclRow(acl.topic, acl.public, list(acl.users), list(acl.roles))


# --- roles


def list_roles(call: Call[Nothing, Nothing]) -> list[RoleRow]:
    """All roles, the built-in ones first."""
    return [_role(role) for role in call.broker.security.roles.all()]


async def create_role(call: Call[Nothing, NewRole]) -> RoleRow:
    """Create a role."""
    body = call.body
    return _role(await call.broker.security.accounts.create_role(call.account, body.name, body.permissions, body.description))


async def update_role(call: Call[Nothing, RoleChange]) -> RoleRow:
    """Change a role; it applies at once, also to those who are connected."""
    body = call.body
    role = await call.broker.security.accounts.update_role(call.account, call.path["role"], body.permissions, body.description)
    return _role(role)


async def delete_role(call: Call[Nothing, Nothing]) -> None:
    """Delete a role that nobody has any more."""
    await call.broker.security.accounts.delete_role(call.account, call.path["role"])


def _role(role: Role) -> RoleRow:
    return RoleRow(role.name, [str(permission) for permission in role.permissions], role.description, role.name in BUILT_IN)
