"""The audit trail: what `braid audit` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from braidmq.wire import flymq

from .asking import Asker

LIMIT: Final = 100


class Audit:
    """`client.audit`. Times are seconds since the Unix epoch, 0 and empty mean any."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def query(
        self,
        *,
        start: int = 0,
        end: int = 0,
        types: Sequence[str] = (),
        user: str = "",
        resource: str = "",
        result: str = "",
        search: str = "",
        limit: int = LIMIT,
        skip: int = 0,
    ) -> flymq.AuditEvents:
        """Events, newest first, with how many there are in all."""
        wanted = flymq.AuditFilter(start, end, tuple(types), user, resource, result, search, limit, skip)
        return await self._asker.ask(flymq.AuditQuery(wanted), flymq.AuditEvents)

    async def export(
        self,
        form: Literal["json", "csv"] = "json",
        *,
        start: int = 0,
        end: int = 0,
        types: Sequence[str] = (),
        user: str = "",
        resource: str = "",
        result: str = "",
        search: str = "",
    ) -> bytes:
        """All events that match, as one document."""
        wanted = flymq.AuditFilter(start, end, tuple(types), user, resource, result, search)
        return (await self._asker.ask(flymq.AuditExport(wanted, form), flymq.AuditDocument)).document
