"""The audit trail under three pairs of opcodes.

The published command line asks with 80 and 81, the published SDKs with A0 and A1 and in other layouts. Neither is in the documents,
so either moves a connection to v126. Our own client asks with 5D and 5E, which are 80 and 81 without that effect.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from braidmq.wire.flymq.layout import (
    BOOL,
    BYTES,
    I32,
    I64,
    PAIR,
    STR,
    U16,
    Layout,
    Many,
    OnlyV126,
    Prefixed,
    Sink,
    Source,
    WireType,
    asked,
)
from braidmq.wire.flymq.opcodes import Op
from braidmq.wire.shape import shape


@shape
class AuditFilter:
    """Which events; 0 and empty mean any."""

    start: int = 0
    """Seconds since the Unix epoch, inclusive as is the end."""
    end: int = 0
    types: tuple[str, ...] = ()
    user: str = ""
    resource: str = ""
    result: str = ""
    search: str = ""
    limit: int = 0
    offset: int = 0
    """How many to skip, newest first. An export asked with A1 carries neither limit nor offset."""


@shape
class AuditQuery:
    filter: AuditFilter
    op: Op = Op.AUDIT_EVENTS
    """AUDIT_EVENTS, AUDIT_QUERY or AUDIT_QUERY_SDK."""


@shape
class AuditExport:
    filter: AuditFilter
    format: str
    """`json` or `csv`."""
    op: Op = Op.AUDIT_DOCUMENT
    """AUDIT_DOCUMENT, AUDIT_EXPORT or AUDIT_EXPORT_SDK."""


AuditRequest = AuditQuery | AuditExport


@shape
class AuditEvent:
    id: str
    timestamp: int
    """Milliseconds since the Unix epoch."""
    type: str
    user: str
    client_ip: str
    resource: str
    action: str
    result: str
    node_id: str
    details: tuple[tuple[str, str], ...] = ()


@shape
class AuditEvents:
    events: tuple[AuditEvent, ...]
    total: int
    has_more: bool


@shape
class AuditDocument:
    document: bytes
    format: str = ""
    """Not carried by the answer to A1."""


AuditResponse = AuditEvents | AuditDocument


class _RawDocument:
    """The answer to A1: the document is the payload."""

    size_min = 0

    def read(self, source: Source) -> AuditDocument:
        return AuditDocument(bytes(source.take(source.left)))

    def write(self, sink: Sink, value: AuditDocument, name: str) -> None:
        sink.add(value.document)


_TEXTS: Final[dict[str, WireType[Any]]] = {"user": STR, "resource": STR, "result": STR, "search": STR}
_FILTER: Final = Layout(AuditFilter, start=I64, end=I64, types=asked(STR), **_TEXTS, limit=I32, offset=I32)
_FILTER_SDK: Final = Layout(AuditFilter, start=I64, end=I64, types=asked(STR, U16), **_TEXTS, limit=I32, offset=I32)
_FILTER_EXPORT_SDK: Final = Layout(AuditFilter, start=I64, end=I64, types=asked(STR, U16), **_TEXTS)

_WHAT: Final[dict[str, WireType[Any]]] = {
    "id": STR,
    "timestamp": I64,
    "type": STR,
    "user": STR,
    "client_ip": STR,
    "resource": STR,
    "action": STR,
    "result": STR,
}
_EVENT: Final = Layout(AuditEvent, **_WHAT, node_id=STR, details=Many(PAIR))
_EVENT_SDK: Final = Layout(AuditEvent, **_WHAT, details=Many(PAIR, U16), node_id=STR)
_EVENTS: Final = Layout(AuditEvents, events=Many(Prefixed(_EVENT)), total=I32, has_more=BOOL)
_DOCUMENT: Final = Layout(AuditDocument, format=STR, document=BYTES)

REQUESTS: Final[dict[int, WireType[Any]]] = {
    Op.AUDIT_EVENTS: Layout(AuditQuery, filter=_FILTER),
    Op.AUDIT_DOCUMENT: Layout(AuditExport, filter=Prefixed(_FILTER), format=STR),
    Op.AUDIT_QUERY: OnlyV126(Layout(partial(AuditQuery, op=Op.AUDIT_QUERY), filter=_FILTER)),
    Op.AUDIT_EXPORT: OnlyV126(Layout(partial(AuditExport, op=Op.AUDIT_EXPORT), filter=Prefixed(_FILTER), format=STR)),
    Op.AUDIT_QUERY_SDK: OnlyV126(Layout(partial(AuditQuery, op=Op.AUDIT_QUERY_SDK), filter=_FILTER_SDK)),
    Op.AUDIT_EXPORT_SDK: OnlyV126(
        Layout(partial(AuditExport, op=Op.AUDIT_EXPORT_SDK), format=STR, filter=_FILTER_EXPORT_SDK)
    ),
}

RESPONSES: Final[dict[int, WireType[Any]]] = {
    Op.AUDIT_EVENTS: _EVENTS,
    Op.AUDIT_DOCUMENT: _DOCUMENT,
    Op.AUDIT_QUERY: _EVENTS,
    Op.AUDIT_EXPORT: _DOCUMENT,
    Op.AUDIT_QUERY_SDK: Layout(AuditEvents, total=I32, has_more=BOOL, events=Many(_EVENT_SDK)),
    Op.AUDIT_EXPORT_SDK: _RawDocument(),
}
