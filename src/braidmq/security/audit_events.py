"""What the audit trail holds: events, their types, how they are stored, which ones a query wants, and how they are exported.

An event is stored as a JSON list in the value of a record; its time is the record's, and its id is made of both time and
offset, so neither can disagree with the log. No event holds a secret: details whose name sounds like one are hidden
before they are stored, and texts are cut to a bounded length.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from braidmq.base import limits
from braidmq.base.errors import BraidError

EVENT_TYPES: Final = frozenset({
    "auth.success", "auth.failure", "auth.logout",
    "access.granted", "access.denied",
    "data.produce", "data.consume",
    "topic.create", "topic.delete",
    "user.create", "user.update", "user.delete", "user.password",
    "acl.set", "acl.delete",
    "schema.register", "schema.delete",
    "group.create", "group.delete",
    "offset.commit", "offset.reset",
    "txn.begin", "txn.commit", "txn.abort",
    "system.start", "system.stop",
    "cluster.join", "cluster.leave",
    "config.change",
    "pipeline.put", "pipeline.steer", "pipeline.remove", "pipeline.start", "pipeline.end", "pipeline.replay",
})  # fmt: skip

Result = Literal["success", "failure", "denied"]

_SECRETS: Final = ("password", "passwd", "secret", "token", "credential", "hash", "key")
_HIDDEN: Final = "[hidden]"
_CSV_HEADER: Final = ("ID", "Timestamp", "Type", "User", "ClientIP", "Resource", "Action", "Result", "NodeID", "Details")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class AuditEvent:
    id: str
    time_ms: int
    type: str
    user: str
    client_ip: str
    resource: str
    action: str
    result: str
    node_id: str
    details: Mapping[str, str]

    @property
    def timestamp(self) -> str:
        """RFC 3339, milliseconds, UTC."""
        return (_EPOCH + timedelta(milliseconds=self.time_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def document(self) -> dict[str, Any]:
        return {
            "id": self.id, "timestamp": self.timestamp, "type": self.type, "user": self.user, "client_ip": self.client_ip,
            "resource": self.resource, "action": self.action, "result": self.result, "details": dict(self.details),
            "node_id": self.node_id,
        }  # fmt: skip


def encode_event(
    kind: str, user: str, client_ip: str, resource: str, action: str, result: Result, node_id: str, details: Mapping[str, str]
) -> bytes:
    """An event as it is stored, without what the log adds."""
    assert kind in EVENT_TYPES, kind
    shown = {
        _cut(name): _HIDDEN if any(word in name.lower() for word in _SECRETS) else _cut(value)
        for name, value in list(details.items())[: limits.AUDIT_DETAILS_MAX]
    }
    row = [kind, _cut(user), _cut(client_ip), _cut(resource), _cut(action), result, _cut(node_id), shown]
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def decode_event(offset: int, time_ms: int, value: bytes) -> AuditEvent:
    kind, user, client_ip, resource, action, result, node_id, details = json.loads(value)
    return AuditEvent(
        f"{time_ms:012x}-{offset:x}", time_ms, kind, user, client_ip, resource, action, result, node_id, details
    )  # fmt: skip


def _cut(text: str) -> str:
    return text[: limits.AUDIT_FIELD_CHARACTERS_MAX]


# --- queries


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """Which events are wanted, and which page of them. Everything left out matches all."""

    start_s: int = 0
    end_s: int = 0
    """Both inclusive, seconds since the Unix epoch; 0 is open."""
    types: frozenset[str] = frozenset()
    user: str = ""
    resource: str = ""
    """A part of the event's resource."""
    result: str = ""
    search: str = ""
    """Looked for in action, resource and the values of details, without regard to case."""
    limit: int = 0
    """0 is a page of the usual size."""
    offset: int = 0
    _needle: str = field(init=False, repr=False, default="")

    def __post_init__(self) -> None:
        for name, number in (("limit", self.limit), ("offset", self.offset)):
            if number < 0:
                raise BraidError("INVALID_ARGUMENT", reason=f"{name} {number} is negative")
        object.__setattr__(self, "_needle", self.search.casefold())

    @property
    def start_ms(self) -> int:
        return self.start_s * 1000

    @property
    def end_ms(self) -> int | None:
        """The last millisecond of the second named."""
        return self.end_s * 1000 + 999 if self.end_s else None

    def wants(self, event: AuditEvent) -> bool:
        end_ms = self.end_ms
        return (
            event.time_ms >= self.start_ms
            and (end_ms is None or event.time_ms <= end_ms)
            and (not self.types or event.type in self.types)
            and (not self.user or event.user == self.user)
            and self.resource in event.resource
            and (not self.result or event.result == self.result)
            and (not self._needle or self._found_in(event))
        )

    def _found_in(self, event: AuditEvent) -> bool:
        return any(self._needle in text.casefold() for text in (event.action, event.resource, *event.details.values()))


@dataclass(frozen=True, slots=True)
class AuditPage:
    events: tuple[AuditEvent, ...]
    """The newest first."""
    total: int
    """How many match on all pages."""
    has_more: bool


# --- export


def check_format(name: str) -> None:
    if name not in ("json", "csv"):
        raise BraidError("INVALID_ARGUMENT", reason=f"unknown export format {name!r}; there are json and csv")


def export_row(event: AuditEvent, form: str) -> bytes:
    """One event of a document that `wrap_export` makes whole."""
    if form == "json":
        text = json.dumps(event.document(), indent=2, ensure_ascii=False)
        return ("  " + text.replace("\n", "\n  ")).encode("utf-8", "replace")
    details = json.dumps(dict(event.details), separators=(",", ":"), ensure_ascii=False)
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow((
        event.id, event.timestamp, event.type, event.user, event.client_ip, event.resource, event.action, event.result,
        event.node_id, details,
    ))  # fmt: skip
    return buffer.getvalue().encode("utf-8", "replace")


def wrap_export(parts: list[bytes], form: str) -> bytes:
    if form == "json":
        return b"[\n" + b",\n".join(parts) + b"\n]\n" if parts else b"[]\n"
    return ",".join(_CSV_HEADER).encode() + b"\n" + b"".join(parts)
