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


class Roles:
    """`client.role`."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def ls(self) -> list[flymq.Role]:
        return list((await self._asker.ask(flymq.RoleList(), flymq.Roles)).roles)


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
