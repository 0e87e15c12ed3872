"""One request of the admin API, as its handler sees it. Handlers run on the broker's loop.

Pages are lists that begin after a place. The place is a cursor: text that means something only to the endpoint that gave it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from braidmq.admin.identity import Doorkeeper, Visitor
from braidmq.admin.shapes import Bounds
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.security import accounts
from braidmq.security.audit_events import Result
from braidmq.security.authorizer import Authorizer, Principal
from braidmq.security.rules import Rule
from braidmq.server.app import BrokerServer

if TYPE_CHECKING:
    from braidmq.admin.metrics.snapshot import MetricsReader

Q = TypeVar("Q")
B = TypeVar("B")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Nothing:
    """No parameters, or no body."""


@dataclass(frozen=True, slots=True)
class Document:
    """An answer that is no JSON of ours."""

    data: bytes
    media: str


@dataclass(frozen=True, slots=True)
class PageQuery:
    """Which part of a list."""

    limit: Annotated[int, Bounds(1, limits.PAGE_ITEMS_MAX), "how many items at most"] = limits.PAGE_ITEMS_MAX
    cursor: Annotated[str, Bounds(0, 4096), "where to go on: the cursor of the page before"] = ""


@dataclass(slots=True)
class Call(Generic[Q, B]):
    server: BrokerServer
    ip: str
    path: dict[str, str]
    query: Q
    body: B
    visitor: Visitor
    doorkeeper: Doorkeeper
    metrics: MetricsReader
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of the answer."""

    @property
    def principal(self) -> Principal:
        return self.visitor.principal

    cookies: dict[str, str] = field(default_factory=dict)
    """Cookies that the answer sets; an empty one is taken away."""

    def set_cookie(self, name: str, value: str) -> None:
        self.cookies[name] = value

    @property
    def broker(self) -> Broker:
        return self.server.broker

    @property
    def authorizer(self) -> Authorizer:
        return self.broker.security.authorizer

    @property
    def account(self) -> accounts.Caller:
        return accounts.Caller(self.principal, self.ip)

    def note(self, kind: str, resource: str, action: str, result: Result = "success", **details: str) -> None:
        """Write what the caller did into the audit trail."""
        self.broker.security.note(kind, self.principal, self.ip, resource, action, result, **details)

    def require(
        self, rule: Rule, topic: str = "", *, subject: str = "", what: str = "", owner: Principal | None = None
    ) -> None:
        """Refuse what the caller may not do, and write the refusal down."""
        refused = self.authorizer.decide_rule(self.principal, rule, topic, owner=owner, subject=subject)
        if refused is not None:
            self.note("access.denied", topic or what or "admin API", what or "admin API", "denied", reason=refused.text)
            raise refused

    def may(self, rule: Rule, topic: str = "") -> bool:
        return self.authorizer.decide_rule(self.principal, rule, topic) is None

    def visible(self, names: Iterable[str]) -> list[str]:
        """Of these topics those that the caller may read."""
        return self.authorizer.visible(self.principal, names)

    def link_next(self, cursor: str | None) -> None:
        """Say in a header how to go on, for lists that are plain arrays."""
        if cursor is not None:
            self.headers["Link"] = f'<?cursor={cursor}>; rel="next"'
            self.headers["X-Next-Cursor"] = cursor

    def page(self, items: Sequence[T], key: Callable[[T], Any], query: PageQuery) -> tuple[list[T], str | None]:
        """The part of `items`, which are in the order of `key`, that the query asks for, and the cursor of the next part."""
        begin = self._begin(items, key, query)
        found = list(items[begin : begin + query.limit])
        more = begin + query.limit < len(items)
        return found, write_cursor(key(found[-1])) if more and found else None

    def page_of(
        self, names: Sequence[str], visible: Callable[[Iterable[str]], list[str]], query: PageQuery
    ) -> tuple[list[str], str | None]:
        """The same of sorted names of which not all may be seen. Rights are looked up for as many as the page needs."""
        begin = self._begin(names, lambda name: name, query)
        found: list[str] = []
        while begin < len(names) and len(found) <= query.limit:
            found += visible(names[begin : begin + query.limit + 1])
            begin += query.limit + 1
        more = len(found) > query.limit
        del found[query.limit :]
        return found, write_cursor(found[-1]) if more else None

    @staticmethod
    def _begin(items: Sequence[T], key: Callable[[T], Any], query: PageQuery) -> int:
        """Where a page begins."""
        begin = 0
        if query.cursor:
            after = read_cursor(query.cursor)
            low, high = 0, len(items)
            try:
                while low < high:
                    middle = (low + high) // 2
                    if key(items[middle]) <= after:
                        low = middle + 1
                    else:
                        high = middle
            except TypeError:
                raise BraidError("INVALID_ARGUMENT", reason="`cursor` is none of this list") from None
            begin = low
        return begin


def write_cursor(place: Any) -> str:
    text = json.dumps(place, separators=(",", ":"), ensure_ascii=False)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> Any:
    try:
        return _tuples(json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))))
    except (ValueError, RecursionError):
        raise BraidError("INVALID_ARGUMENT", reason="`cursor` is none that this API gave") from None


def _tuples(place: Any) -> Any:
    return tuple(place) if isinstance(place, list) else place
