"""The audit trail: looking for events, and taking them away as a document."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Literal

from braidmq.admin.call import Call, Document, Nothing
from braidmq.admin.shapes import Bounds
from braidmq.base.errors import BraidError
from braidmq.security.audit import require_trail
from braidmq.security.audit_events import AuditQuery


@dataclass(frozen=True, slots=True)
class AuditRow:
    """Something that happened."""

    id: str
    timestamp: str
    type: str
    user: str
    client_ip: str
    resource: str
    action: str
    result: str
    details: dict[str, str]
    node_id: str


@dataclass(frozen=True, slots=True)
class AuditEvents:
    """Events, the newest first."""

    events: list[AuditRow]
    total_count: Annotated[int, "how many match"]
    has_more: bool


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events; everything that is left out matches all."""

    start_time: Annotated[str, Bounds(0, 64), "RFC 3339"] = ""
    end_time: Annotated[str, Bounds(0, 64), "RFC 3339"] = ""
    types: Annotated[list[str], "such as auth.failure"] = field(default_factory=list)
    user: str = ""
    resource: Annotated[str, "a part of the resource"] = ""
    result: Annotated[str, "success, failure or denied"] = ""
    search: Annotated[str, "looked for in action, resource and details"] = ""
    limit: Annotated[int, Bounds(0, 10_000)] = 100
    offset: Annotated[int, Bounds(0, 1 << 40)] = 0


@dataclass(frozen=True, slots=True)
class Export:
    """What to take away, and how."""

    filter: EventFilter = field(default_factory=lambda: EventFilter(limit=0))
    format: Literal["json", "csv"] = "json"


async def list_audit_events(call: Call[EventFilter, Nothing]) -> AuditEvents:
    """Events of the audit trail, the newest first."""
    page = await require_trail(call.broker.security.audit).query(_query(call.query))
    return AuditEvents([AuditRow(**event.document()) for event in page.events], page.total, page.has_more)


async def export_audit(call: Call[Nothing, Export]) -> Document:
    """Events of the audit trail as one document. A limit of 0 takes all of them."""
    form = call.body.format
    data = await require_trail(call.broker.security.audit).export(_query(call.body.filter), form)
    call.headers["Content-Disposition"] = f'attachment; filename="audit.{form}"'
    return Document(data, "text/csv; charset=utf-8" if form == "csv" else "application/json")


def _query(wanted: EventFilter) -> AuditQuery:
    return AuditQuery(
        start_s=_seconds(wanted.start_time, "start_time"), end_s=_seconds(wanted.end_time, "end_time"),
        types=frozenset(wanted.types), user=wanted.user, resource=wanted.resource, result=wanted.result, search=wanted.search,
        limit=wanted.limit, offset=wanted.offset,
    )  # fmt: skip


def _seconds(text: str, name: str) -> int:
    if not text:
        return 0
    try:
        found = datetime.fromisoformat(text)
        return max(0, int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()))
    except (ValueError, OverflowError):
        raise BraidError("INVALID_ARGUMENT", reason=f"`{name}` is not RFC 3339, as 2026-01-31T12:00:00Z") from None
