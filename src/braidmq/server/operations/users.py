"""Who the caller is; users, ACLs and roles."""

from __future__ import annotations

from braidmq.base.errors import BraidError
from braidmq.security.accounts import UserInfo
from braidmq.security.roles import BUILT_IN, Permission
from braidmq.server.operations.calling import Answer, Caller, account, respond
from braidmq.wire import flymq
from braidmq.wire.flymq import Dialect

_EVERYBODY: tuple[str, ...] = ("admin",)
"""Roles of everybody where nobody has to log in."""

# --- who somebody is


async def auth(caller: Caller, request: flymq.Auth) -> Answer:
    """A refusal is an answer, not an error; whoever the connection was before, it stays."""
    security = caller.broker.security
    try:
        principal = await security.accounts.authenticate(request.user, request.password, caller.ip)
    except BraidError as refused:
        text = refused.text if caller.dialect is Dialect.V126 else str(refused)
        return respond(caller, request, flymq.Authenticated(False, error=text))
    caller.logged_in(principal)
    roles = security.users.require(principal.name).roles if security.authorizer.enabled else _EVERYBODY
    return respond(caller, request, flymq.Authenticated(True, principal.name, roles))


def whoami(caller: Caller, request: flymq.WhoAmI) -> Answer:
    security = caller.broker.security
    name = caller.principal.name
    if not security.authorizer.enabled:
        permissions = BUILT_IN["admin"].permissions if name else ()
        return respond(caller, request, flymq.Identity(bool(name), name, _EVERYBODY if name else (), _texts(permissions)))
    user = security.users.get(name)
    if user is None or user.id != caller.principal.id:
        return respond(caller, request, flymq.Identity(False))
    return respond(caller, request, flymq.Identity(True, name, user.roles, _texts(security.roles.permissions(user.roles))))


def _texts(permissions: tuple[Permission, ...]) -> tuple[str, ...]:
    return tuple(map(str, permissions))


# --- users


def _info(info: UserInfo) -> flymq.UserInfo:
    return flymq.UserInfo(
        info.name, info.roles, _texts(info.permissions), info.enabled, info.created_s, info.updated_s
    )


async def user_create(caller: Caller, request: flymq.UserCreate) -> Answer:
    info = await caller.broker.security.accounts.create_user(account(caller), request.user, request.password, request.roles)
    return respond(caller, request, _info(info))


async def user_delete(caller: Caller, request: flymq.UserDelete) -> Answer:
    await caller.broker.security.accounts.delete_user(account(caller), request.user)
    return respond(caller, request, flymq.Ok(True, request.user))


async def user_update(caller: Caller, request: flymq.UserUpdate) -> Answer:
    await caller.broker.security.accounts.update_user(account(caller), request.user, request.roles, request.enabled)
    return respond(caller, request, flymq.Ok(True, request.user))


def user_list(caller: Caller, request: flymq.UserList) -> Answer:
    return respond(caller, request, flymq.Users(tuple(map(_info, caller.broker.security.accounts.all_users()))))


def user_get(caller: Caller, request: flymq.UserGet) -> Answer:
    return respond(caller, request, _info(caller.broker.security.accounts.info(request.user)))


async def password_change(caller: Caller, request: flymq.PasswordChange) -> Answer:
    accounts = caller.broker.security.accounts
    await accounts.change_password(account(caller), request.user, request.password, request.old_password)
    return respond(caller, request, flymq.Ok(True, request.user))


# --- ACLs and roles


async def acl_set(caller: Caller, request: flymq.AclSet) -> Answer:
    accounts = caller.broker.security.accounts
    await accounts.set_acl(account(caller), request.topic, request.public, request.users, request.roles)
    return respond(caller, request, flymq.Ok(True, request.topic))


def acl_get(caller: Caller, request: flymq.AclGet) -> Answer:
    security = caller.broker.security
    acl = security.acls.get(request.topic)
    default = security.authorizer.default_public
    if acl is None:
        return respond(caller, request, flymq.Acl(request.topic, False, default, default, (), ()))
    return respond(caller, request, flymq.Acl(acl.topic, True, acl.public, default, acl.users, acl.roles))


async def acl_delete(caller: Caller, request: flymq.AclDelete) -> Answer:
    await caller.broker.security.accounts.delete_acl(account(caller), request.topic)
    return respond(caller, request, flymq.Ok(True, request.topic))


def acl_list(caller: Caller, request: flymq.AclList) -> Answer:
    security = caller.broker.security
    entries = (flymq.AclEntry(acl.topic, True, acl.public, acl.users, acl.roles) for acl in security.acls.all())
    return respond(caller, request, flymq.Acls(tuple(entries), security.authorizer.default_public))


def role_list(caller: Caller, request: flymq.RoleList) -> Answer:
    roles = (
        flymq.Role(role.name, _texts(role.permissions), role.description) for role in caller.broker.security.roles.all()
    )
    return respond(caller, request, flymq.Roles(tuple(roles)))
