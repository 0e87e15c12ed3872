"""Roles of one's own and quotas of users, 5F: our own operation, with a verb for each thing that it does.

The protocol leaves us one opcode for what it takes to administer them, so its first byte says what is meant:

    1  str name, list<str> permissions, str description     create a role
    2  str name, list<str> permissions, str description     change a role
    3  str name                                             delete a role
    4  str user, i64 bytes_per_s, i64 requests_per_s        set a user's quota
    5  str user                                             show quotas

A rate of -1 is the broker's default, here None; 0 is no quota.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from braidmq.base.errors import BraidError
from braidmq.wire.flymq.answers import OK, Ok
from braidmq.wire.flymq.layout import I64, STR, U8, U64, Choice, Layout, Many, Sink, Source, WireType, asked
from braidmq.wire.flymq.opcodes import Op
from braidmq.wire.shape import shape


@shape
class RoleCreate:
    op: ClassVar[Op] = Op.ACCOUNT_ADMIN
    name: str
    permissions: tuple[str, ...] = ()
    description: str = ""


@shape
class RoleUpdate:
    """Permissions and description from now on."""

    op: ClassVar[Op] = Op.ACCOUNT_ADMIN
    name: str
    permissions: tuple[str, ...]
    description: str


@shape
class RoleDelete:
    op: ClassVar[Op] = Op.ACCOUNT_ADMIN
    name: str


@shape
class QuotaSet:
    op: ClassVar[Op] = Op.ACCOUNT_ADMIN
    user: str
    bytes_per_s: int | None
    requests_per_s: int | None


@shape
class QuotaList:
    op: ClassVar[Op] = Op.ACCOUNT_ADMIN
    user: str = ""
    """Empty for every user that has a quota of its own."""


RoleRequest = RoleCreate | RoleUpdate | RoleDelete | QuotaSet | QuotaList


@shape
class Quota:
    user: str
    bytes_per_s: int | None
    """None is the broker's default, 0 is no quota."""
    requests_per_s: int | None


@shape
class Quotas:
    default_bytes_per_s: int
    """What holds for a user that has nothing of its own; 0 is no quota."""
    default_requests_per_s: int
    quotas: tuple[Quota, ...]


RoleResponse = Ok | Quotas


class _Rate:
    """A rate, or None for the default."""

    _DEFAULT: Final = -1
    size_min = I64.size_min

    def read(self, source: Source) -> int | None:
        rate = I64.read(source)
        if rate < self._DEFAULT:
            raise BraidError("MALFORMED_PAYLOAD", reason=f"a rate of {rate}")
        return None if rate == self._DEFAULT else rate

    def write(self, sink: Sink, value: int | None, name: str) -> None:
        if value is not None and value < 0:
            raise BraidError("INVALID_ARGUMENT", reason=f"{name} is negative; 0 is no quota")
        I64.write(sink, self._DEFAULT if value is None else value, name)


class _ByVerb:
    """A byte that says what is asked for, then the fields of that."""

    def __init__(self, **verbs: Layout[Any]) -> None:
        """Class names to fields; the first verb is 1."""
        self._layouts = dict(enumerate(verbs.values(), 1))
        self._verbs = {name: verb for verb, name in enumerate(verbs, 1)}
        self.size_min = 1 + min(layout.size_min for layout in verbs.values())

    def read(self, source: Source) -> RoleRequest:
        verb = U8.read(source)
        layout = self._layouts.get(verb)
        if layout is None:
            raise BraidError("MALFORMED_PAYLOAD", reason=f"there is no verb {verb}")
        return layout.read(source)  # type: ignore[no-any-return]

    def write(self, sink: Sink, value: RoleRequest, name: str) -> None:
        verb = self._verbs[type(value).__name__]
        U8.write(sink, verb, "verb")
        self._layouts[verb].write(sink, value, name)


_RATE: Final = _Rate()
_RATES: Final[dict[str, WireType[Any]]] = {"user": STR, "bytes_per_s": _RATE, "requests_per_s": _RATE}
_ROLE: Final[dict[str, WireType[Any]]] = {"name": STR, "permissions": asked(STR), "description": STR}

REQUESTS: Final[dict[int, WireType[Any]]] = {
    Op.ACCOUNT_ADMIN: _ByVerb(
        RoleCreate=Layout(RoleCreate, **_ROLE),
        RoleUpdate=Layout(RoleUpdate, **_ROLE),
        RoleDelete=Layout(RoleDelete, name=STR),
        QuotaSet=Layout(QuotaSet, **_RATES),
        QuotaList=Layout(QuotaList, user=STR),
    ),
}

RESPONSES: Final[dict[int, WireType[Any]]] = {
    Op.ACCOUNT_ADMIN: Choice[Ok | Quotas](
        Ok=OK,
        Quotas=Layout(
            Quotas, default_bytes_per_s=U64, default_requests_per_s=U64, quotas=Many(Layout(Quota, **_RATES))
        ),
    ),
}
