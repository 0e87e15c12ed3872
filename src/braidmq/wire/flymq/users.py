"""Who is asking and what they may do: AUTH and WHOAMI in both dialects, users, ACLs and roles, 70 to 7D.

The answers to AUTH and WHOAMI are the ones that differ most between dialects; see `_AuthenticatedV126` and `_IdentityV126`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from braidmq.base.errors import BraidError
from braidmq.wire.flymq.answers import OK
from braidmq.wire.flymq.layout import (
    BOOL,
    I64,
    STR,
    STR8,
    TRAILING_BOOL,
    ByDialect,
    Layout,
    Many,
    Sink,
    Source,
    WireType,
    asked,
)
from braidmq.wire.flymq.opcodes import Op
from braidmq.wire.shape import shape


@shape
class Auth:
    op: ClassVar[Op] = Op.AUTH
    user: str
    password: str

    def __repr__(self) -> str:
        return f"Auth(user={self.user!r})"


@shape
class WhoAmI:
    op: ClassVar[Op] = Op.WHOAMI


@shape
class _UserFields:
    """What the three requests that change a user carry, each using some of it."""

    user: str
    password: str = ""
    old_password: str = ""
    roles: tuple[str, ...] = ()
    enabled: bool = True
    """False where a sender leaves it out."""

    def __repr__(self) -> str:
        # Requests end up in logs, passwords must not.
        return f"{type(self).__name__}(user={self.user!r}, roles={self.roles!r}, enabled={self.enabled!r})"


@shape
class UserCreate(_UserFields):
    op: ClassVar[Op] = Op.USER_CREATE


@shape
class UserUpdate(_UserFields):
    """Roles and whether the user is enabled."""

    op: ClassVar[Op] = Op.USER_UPDATE


@shape
class PasswordChange(_UserFields):
    """`password` is the new one."""

    op: ClassVar[Op] = Op.PASSWORD_CHANGE


@shape
class UserDelete:
    op: ClassVar[Op] = Op.USER_DELETE
    user: str


@shape
class UserList:
    op: ClassVar[Op] = Op.USER_LIST


@shape
class UserGet:
    op: ClassVar[Op] = Op.USER_GET
    user: str


@shape
class AclSet:
    op: ClassVar[Op] = Op.ACL_SET
    topic: str
    public: bool
    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


@shape
class AclGet:
    op: ClassVar[Op] = Op.ACL_GET
    topic: str


@shape
class AclDelete:
    op: ClassVar[Op] = Op.ACL_DELETE
    topic: str


@shape
class AclList:
    op: ClassVar[Op] = Op.ACL_LIST


@shape
class RoleList:
    op: ClassVar[Op] = Op.ROLE_LIST


UserRequest = (
    Auth
    | WhoAmI
    | UserCreate
    | UserDelete
    | UserUpdate
    | UserList
    | UserGet
    | AclSet
    | AclGet
    | AclDelete
    | AclList
    | PasswordChange
    | RoleList
)


@shape
class Authenticated:
    """What AUTH came to. A refusal is this, too, and no ERROR frame."""

    success: bool
    user: str = ""
    roles: tuple[str, ...] = ()
    error: str = ""


@shape
class Identity:
    """Who the connection is."""

    authenticated: bool
    user: str = ""
    roles: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()
    """Only v126 carries them."""


@shape
class UserInfo:
    user: str
    roles: tuple[str, ...]
    permissions: tuple[str, ...]
    enabled: bool
    created: int
    """Seconds since the Unix epoch."""
    updated: int


@shape
class Users:
    users: tuple[UserInfo, ...]


@shape
class Acl:
    topic: str
    exists: bool
    public: bool
    default_public: bool
    users: tuple[str, ...]
    roles: tuple[str, ...]


@shape
class AclEntry:
    topic: str
    exists: bool
    public: bool
    users: tuple[str, ...]
    roles: tuple[str, ...]


@shape
class Acls:
    entries: tuple[AclEntry, ...]
    default_public: bool


@shape
class Role:
    name: str
    permissions: tuple[str, ...]
    description: str


@shape
class Roles:
    roles: tuple[Role, ...]


UserResponse = Authenticated | Identity | UserInfo | Users | Acl | Acls | Roles


class _AuthenticatedV126:
    """AUTH's answer in v126: role names have a length of one byte, the error comes last.

    Without roles two bytes of zero follow, for published decoders that look for a list of permissions there.
    """

    _FIELDS: Final = Layout(Authenticated, success=BOOL, user=STR, roles=Many(STR8), error=STR)
    size_min = _FIELDS.size_min

    def read(self, source: Source) -> Authenticated:
        return self._FIELDS.read(source)

    def write(self, sink: Sink, value: Authenticated, name: str) -> None:
        self._FIELDS.write(sink, value)
        if not value.roles and not value.error:
            sink.add(b"\0\0")


class _IdentityDocumented:
    """WHOAMI's answer as documented: that of AUTH, without an error."""

    _FIELDS: Final = Layout(Authenticated, success=BOOL, error=STR, user=STR, roles=Many(STR))
    size_min = _FIELDS.size_min

    def read(self, source: Source) -> Identity:
        fields = self._FIELDS.read(source)
        return Identity(fields.success, fields.user, fields.roles)

    def write(self, sink: Sink, value: Identity, name: str) -> None:
        self._FIELDS.write(sink, Authenticated(value.authenticated, value.user, value.roles))


class _IdentityV126:
    """WHOAMI's answer in v126, which two families of published decoders have to read.

    One reads `list<str> roles, list<str> permissions`, the other a list of roles with lengths of one byte, then a text. To the
    second every role with a length of two bytes is an empty role and the role, so k roles are written twice under a count of 2k:
    it finds its 2k roles in the first copy, and ignores the rest. That needs names of 1 to 255 bytes.
    """

    _FIELDS: Final = Layout(Identity, authenticated=BOOL, user=STR, roles=Many(STR), permissions=Many(STR))
    _NAME_BYTES_MAX: Final = 255
    size_min = _FIELDS.size_min

    def read(self, source: Source) -> Identity:
        fields = self._FIELDS.read(source)
        wrong = self._wrong_role(fields.roles)
        if wrong is not None:
            raise BraidError("MALFORMED_PAYLOAD", reason=f"role name {wrong[:20]!r} has not 1 to {self._NAME_BYTES_MAX} bytes")
        half, odd = divmod(len(fields.roles), 2)
        if odd or fields.roles[:half] != fields.roles[half:]:
            return fields
        return Identity(fields.authenticated, fields.user, fields.roles[:half], fields.permissions)

    def write(self, sink: Sink, value: Identity, name: str) -> None:
        wrong = self._wrong_role(value.roles)
        if wrong is not None:
            raise BraidError("INVALID_ARGUMENT", reason=f"role name {wrong[:20]!r} has not 1 to {self._NAME_BYTES_MAX} bytes")
        self._FIELDS.write(sink, Identity(value.authenticated, value.user, value.roles * 2, value.permissions))

    def _wrong_role(self, roles: tuple[str, ...]) -> str | None:
        return next((role for role in roles if not 1 <= len(role.encode(errors="replace")) <= self._NAME_BYTES_MAX), None)


_NAMES: Final = Many(STR)
_ASKED_NAMES: Final = asked(STR)
_CHANGE: Final[dict[str, WireType[Any]]] = {
    "user": STR,
    "password": STR,
    "old_password": STR,
    "roles": _ASKED_NAMES,
    "enabled": TRAILING_BOOL,
}
_USER: Final = Layout(UserInfo, user=STR, roles=_NAMES, permissions=_NAMES, enabled=BOOL, created=I64, updated=I64)

REQUESTS: Final[dict[int, WireType[Any]]] = {
    Op.AUTH: Layout(Auth, user=STR, password=STR),
    Op.WHOAMI: Layout(WhoAmI),
    Op.USER_CREATE: Layout(UserCreate, **_CHANGE),
    Op.USER_DELETE: Layout(UserDelete, user=STR),
    Op.USER_UPDATE: Layout(UserUpdate, **_CHANGE),
    Op.USER_LIST: Layout(UserList),
    Op.USER_GET: Layout(UserGet, user=STR),
    Op.ACL_SET: Layout(AclSet, topic=STR, public=BOOL, users=_ASKED_NAMES, roles=_ASKED_NAMES),
    Op.ACL_GET: Layout(AclGet, topic=STR),
    Op.ACL_DELETE: Layout(AclDelete, topic=STR),
    Op.ACL_LIST: Layout(AclList),
    Op.PASSWORD_CHANGE: Layout(PasswordChange, **_CHANGE),
    Op.ROLE_LIST: Layout(RoleList),
}

RESPONSES: Final[dict[int, WireType[Any]]] = {
    Op.AUTH: ByDialect[Authenticated](
        documented=Layout(Authenticated, success=BOOL, error=STR, user=STR, roles=_NAMES), v126=_AuthenticatedV126()
    ),
    Op.WHOAMI: ByDialect[Identity](documented=_IdentityDocumented(), v126=_IdentityV126()),
    Op.USER_CREATE: _USER,
    Op.USER_DELETE: OK,
    Op.USER_UPDATE: OK,
    Op.USER_LIST: Layout(Users, users=Many(_USER)),
    Op.USER_GET: _USER,
    Op.ACL_SET: OK,
    Op.ACL_GET: Layout(Acl, topic=STR, exists=BOOL, public=BOOL, default_public=BOOL, users=_NAMES, roles=_NAMES),
    Op.ACL_DELETE: OK,
    Op.ACL_LIST: Layout(
        Acls,
        entries=Many(Layout(AclEntry, topic=STR, exists=BOOL, public=BOOL, users=_NAMES, roles=_NAMES)),
        default_public=BOOL,
    ),
    Op.PASSWORD_CHANGE: OK,
    Op.ROLE_LIST: Layout(Roles, roles=Many(Layout(Role, name=STR, permissions=_NAMES, description=STR))),
}
