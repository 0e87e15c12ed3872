"""Users, roles and rights: what `braid user`, `braid role` and `braid acl` do."""

from __future__ import annotations

from collections.abc import Sequence

from braidmq.base.errors import BraidError
from braidmq.wire import flymq

from .asking import Asker


class Users:
    """`client.user`."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def ls(self) -> list[flymq.UserInfo]:
        return list((await self._asker.ask(flymq.UserList(), flymq.Users)).users)

    async def show(self, user: str) -> flymq.UserInfo:
        return await self._asker.ask(flymq.UserGet(user), flymq.UserInfo)

    async def add(self, user: str, password: str, roles: Sequence[str] = (), *, enabled: bool = True) -> flymq.UserInfo:
        request = flymq.UserCreate(user, password, roles=tuple(roles), enabled=enabled)
        return await self._asker.ask(request, flymq.UserInfo, again=False)

    async def set(self, user: str, *, roles: Sequence[str] | None = None, enabled: bool | None = None) -> flymq.UserInfo:
        """Change a user's roles, or whether it may log in; what is not given stays."""
        if roles is not None and not roles:
            # To the broker an empty list is one that was not given.
            raise BraidError("INVALID_ARGUMENT", reason="a user has at least one role; `guest` permits nothing")
        known = await self.show(user)
        request = flymq.UserUpdate(
            user,
            roles=known.roles if roles is None else tuple(roles),
            enabled=known.enabled if enabled is None else enabled,
        )
        await self._asker.ask(request, flymq.Ok)
        return await self.show(user)

    async def rm(self, user: str) -> None:
        await self._asker.ask(flymq.UserDelete(user), flymq.Ok, again=False)

    async def passwd(self, user: str, new_password: str, old_password: str = "") -> None:
        """Change a password. One's own needs the old one, an administrator changes another's without.

        Connections that exist stay logged in; new ones of this client still use the password of its settings.
        """
        request = flymq.PasswordChange(user, new_password, old_password)
        await self._asker.ask(request, flymq.Ok, again=False)

    async def quotas(self, user: str = "") -> flymq.Quotas:
        """A user's quota; without a name those of all users that have one of their own. And what holds for everybody else."""
        return await self._asker.ask(flymq.QuotaList(user), flymq.Quotas)

    async def set_quota(self, user: str, bytes_per_s: int | None, requests_per_s: int | None) -> None:
        """Say how much a user may spend a second, from now on; None is the broker's default, 0 is no quota."""
        await self._asker.ask(flymq.QuotaSet(user, bytes_per_s, requests_per_s), flymq.Ok)


class Roles:
    """`client.role`."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def ls(self) -> list[flymq.Role]:
        return list((await self._asker.ask(flymq.RoleList(), flymq.Roles)).roles)

    async def add(self, name: str, permissions: Sequence[str] = (), description: str = "") -> None:
        """Add a role with permissions out of `read`, `write` and `admin`. One without any is still a name for ACLs."""
        await self._asker.ask(flymq.RoleCreate(name, tuple(permissions), description), flymq.Ok, again=False)

    async def set(self, name: str, *, permissions: Sequence[str] | None = None, description: str | None = None) -> None:
        """Change a role, also for those who are connected; what is not given stays."""
        known = next((role for role in await self.ls() if role.name == name), None)
        if known is None:
            raise BraidError("ROLE_NOT_FOUND", role=name)
        request = flymq.RoleUpdate(
            name,
            known.permissions if permissions is None else tuple(permissions),
            known.description if description is None else description,
        )
        await self._asker.ask(request, flymq.Ok)

    async def rm(self, name: str) -> None:
        """Remove a role that no user and no ACL names."""
        await self._asker.ask(flymq.RoleDelete(name), flymq.Ok, again=False)


class Acls:
    """`client.acl`. Topics may be patterns."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def ls(self) -> flymq.Acls:
        """Every ACL, and whether topics without one are public."""
        return await self._asker.ask(flymq.AclList(), flymq.Acls)

    async def get(self, topic: str) -> flymq.Acl:
        return await self._asker.ask(flymq.AclGet(topic), flymq.Acl)

    async def set(self, topic: str, *, public: bool = False, users: Sequence[str] = (), roles: Sequence[str] = ()) -> None:
        """Say who may use a topic; it replaces what was said before."""
        await self._asker.ask(flymq.AclSet(topic, public, tuple(users), tuple(roles)), flymq.Ok)

    async def rm(self, topic: str) -> None:
        await self._asker.ask(flymq.AclDelete(topic), flymq.Ok, again=False)
