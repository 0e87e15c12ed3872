"""The audit trail: who did what, in an internal partition like everything else that is durable.

Recording never waits and never fails a request: an event joins the write of the current turn, and when too many are on their way
or the disk does not take them, it is counted as dropped and the operator is told. What was written survives what the broker's
durability level promises.

No event is held in memory. A query walks the log from its end towards its beginning, a bounded piece at a time, letting other
work go first in between, and steps over segments whose times cannot match. Wall clocks jump: the order of events
is that of the log, and a segment is stepped over by the smallest and largest time in it, not by its neighbours.

Retention lets whole segments go, by age and by size.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Final

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.log.commit import GroupCommit
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings, PartitionLog
from braidmq.log.partition_reads import Cold
from braidmq.log.segment import Segment
from braidmq.security.audit_events import (
    AuditEvent,
    AuditPage,
    AuditQuery,
    Result,
    check_format,
    decode_event,
    encode_event,
    export_row,
    wrap_export,
)

_DAY_MS: Final = 86_400_000
_STEP_EVENTS: Final = 256
_STEP_BYTES: Final = 256 * limits.KIB

RunBlocking = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a function that waits for the disk beside the loop."""

logger = logging.getLogger("braidmq.audit")


def audit_settings(level: Level, retention_days: int, retention_bytes: int) -> LogSettings:
    """How the trail's partition is kept: a segment a day, or sooner when much happens."""
    return LogSettings(max(Level.OS, level), limits.AUDIT_SEGMENT_BYTES, _DAY_MS, retention_bytes, retention_days * _DAY_MS)


def require_trail(trail: AuditTrail | None) -> AuditTrail:
    """The trail to read from, or AUDIT_DISABLED."""
    if trail is None:
        raise BraidError("AUDIT_DISABLED")
    return trail


class AuditTrail:
    def __init__(self, log: PartitionLog, commit: GroupCommit, node_id: str, run_blocking: RunBlocking) -> None:
        self._log = log
        self._commit = commit
        self._node_id = node_id
        self._run_blocking = run_blocking
        self._pending = 0
        self.recorded = 0
        """Events that are durable, since the start."""
        self.dropped = 0
        """Events that are lost, since the start."""
        self._dropping = False
        self._oldest_ms: dict[int, int] = {}
        """Smallest time in a closed segment, by its first offset, as far as queries have found out."""

    # --- recording

    def record(
        self,
        kind: str,
        *,
        user: str = "",
        client_ip: str = "",
        resource: str = "",
        action: str = "",
        result: Result = "success",
        details: Mapping[str, str] | None = None,
    ) -> None:
        """Write an event down. Returns at once, whatever the disk does."""
        if self._pending >= limits.AUDIT_PENDING_EVENTS_MAX or self._log.failure is not None or self._log.removed:
            self._drop("too many events are waiting for the disk" if self._log.failure is None else str(self._log.failure))
            return
        value = encode_event(kind, user, client_ip, resource, action, result, self._node_id, details or {})
        if self._log.pending_bytes > limits.FLUSH_BYTES_TARGET:
            self._commit.flush()
        offset = self._log.accumulator.append(None, value)
        self._commit.touch(self._log)
        self._pending += 1
        self._log.when_visible(offset + 1, self._written)

    def _written(self, error: BraidError | None) -> None:
        self._pending -= 1
        if error is not None:
            self._drop(str(error))
            return
        self.recorded += 1
        if self._dropping:
            self._dropping = False
            logger.warning("the audit trail is written again; %d events are missing since the start", self.dropped)

    def _drop(self, reason: str) -> None:
        self.dropped += 1
        if not self._dropping:
            # Once for each time that it begins: a line an event would bury the reason.
            self._dropping = True
            logger.error("audit events are being dropped: %s", reason)

    # --- retention

    def apply_retention(self, now_ms: int) -> int:
        """Let go of segments past the trail's limits; returns how many."""
        log = self._log
        if log.failure is not None:
            return 0
        log.roll_if_old(now_ms)
        expired = log.expired_segments(now_ms)
        log.drop_segments(expired)
        for segment in expired:
            self._oldest_ms.pop(segment.base_offset, None)
        return len(expired)

    # --- reading

    async def query(self, query: AuditQuery) -> AuditPage:
        """One page of the events that match, the newest first."""
        wanted = query.limit or limits.AUDIT_PAGE_EVENTS_DEFAULT
        events: list[AuditEvent] = []
        total = size = 0
        full = False
        async for event, event_bytes in self._matching(query):
            total += 1
            if total <= query.offset or full:
                continue
            # The first one of a page is always taken, so that paging gets on.
            full = len(events) >= wanted or bool(events and size + event_bytes > limits.AUDIT_PAGE_BYTES_MAX)
            if not full:
                events.append(event)
                size += event_bytes
        return AuditPage(tuple(events), total, query.offset + len(events) < total)

    async def export(self, query: AuditQuery, form: str) -> bytes:
        """Everything that matches as one document; a limit of 0 is no limit here."""
        check_format(form)
        parts: list[bytes] = []
        number = size = 0
        async with aclosing(self._matching(query)) as matching:
            async for event, _ in matching:
                number += 1
                if number <= query.offset:
                    continue
                if query.limit and number > query.offset + query.limit:
                    break
                parts.append(export_row(event, form))
                size += len(parts[-1]) + 2
                if size > limits.AUDIT_EXPORT_BYTES_MAX:
                    raise BraidError("AUDIT_EXPORT_TOO_LARGE", limit=limits.AUDIT_EXPORT_BYTES_MAX)
        return wrap_export(parts, form)

    async def _matching(self, query: AuditQuery) -> AsyncGenerator[tuple[AuditEvent, int], None]:
        """Events that match, from the newest to the oldest, each with its stored size."""
        end = self._log.high_watermark
        for segment in reversed(list(self._log.segments)):
            start = segment.base_offset
            if start >= end:
                continue
            if start < self._log.log_start:
                # Retention went on meanwhile: what is older is gone.
                return
            if self._may_match(segment, query):
                oldest_ms = segment.index.max_timestamp
                stop = end
                while stop > start:
                    begin = max(start, stop - _STEP_EVENTS)
                    if begin < self._log.log_start:
                        return
                    step = await self._read(begin, stop)
                    for event, size in reversed(step):
                        oldest_ms = min(oldest_ms, event.time_ms)
                        if query.wants(event):
                            yield event, size
                    stop = begin
                    await asyncio.sleep(0)
                if segment.sealed:
                    self._oldest_ms[start] = oldest_ms
            end = start

    def _may_match(self, segment: Segment, query: AuditQuery) -> bool:
        newest_ms = segment.index.max_timestamp
        if 0 <= newest_ms < query.start_ms:
            return False
        oldest_ms = self._oldest_ms.get(segment.base_offset)
        return query.end_ms is None or oldest_ms is None or oldest_ms <= query.end_ms

    async def _read(self, begin: int, stop: int) -> list[tuple[AuditEvent, int]]:
        """The events of a range of offsets, in order."""
        events: list[tuple[AuditEvent, int]] = []
        at = begin
        warmed = False
        while at < stop:
            read = self._log.read_batches(at, _STEP_BYTES, warmed=warmed)
            if isinstance(read, Cold):
                await self._run_blocking(read.warm_up)
                warmed = True
                continue
            warmed = False
            found, following = hot.decode_records(
                b"".join(read.slices), at, stop - at,
                lambda offset, time_ms, _key, value, _attrs: (decode_event(offset, time_ms, value), len(value)),
            )  # fmt: skip
            if following == at:
                raise BraidError(
                    "CORRUPT_LOG", path=self._log.directory, position=0, offset=at, reason="events are missing from the audit trail"
                )
            events += found
            at = following
        return events
