"""Reading the audit trail, under each of the opcodes that published clients and ours use."""

from __future__ import annotations

from braidmq.security.audit import require_trail
from braidmq.security.audit_events import AuditQuery
from braidmq.server.operations.calling import Answer, Caller, respond
from braidmq.wire import flymq


async def audit_query(caller: Caller, request: flymq.AuditQuery) -> Answer:
    page = await require_trail(caller.broker.security.audit).query(_query(request.filter))
    events = (
        flymq.AuditEvent(
            event.id, event.time_ms, event.type, event.user, event.client_ip, event.resource, event.action, event.result,
            event.node_id, tuple(event.details.items()),
        )
        for event in page.events
    )
    return respond(caller, request, flymq.AuditEvents(tuple(events), page.total, page.has_more))


async def audit_export(caller: Caller, request: flymq.AuditExport) -> Answer:
    document = await require_trail(caller.broker.security.audit).export(_query(request.filter), request.format)
    return respond(caller, request, flymq.AuditDocument(document, request.format))


def _query(wanted: flymq.AuditFilter) -> AuditQuery:
    return AuditQuery(
        start_s=wanted.start, end_s=wanted.end, types=frozenset(wanted.types), user=wanted.user, resource=wanted.resource,
        result=wanted.result, search=wanted.search, limit=wanted.limit, offset=wanted.offset,
    )  # fmt: skip
