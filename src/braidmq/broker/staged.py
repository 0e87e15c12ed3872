"""A batch on its way into a partition: what whoever brought it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from braidmq.base.errors import BraidError
from braidmq.log.level import Level
from braidmq.log.partition import PartitionLog


@dataclass(slots=True)
class StagedBatch:
    """A batch on its way into a partition."""

    log: PartitionLog
    base_offset: int
    records: int
    timestamp: int
    duplicate: bool

    def when_durable(self, callback: Callable[[BraidError | None], None]) -> None:
        """Call back when it is as durable as its topic promises, or never will be."""
        _when_durable(self.log, self.base_offset + self.records, callback)

    def durability(self) -> asyncio.Future[None]:
        """The same as something to wait for. To be asked for in the turn that brings the records: a write may fail at its end."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def told(error: BraidError | None) -> None:
            if not waiting.done():
                if error is None:
                    waiting.set_result(None)
                else:
                    waiting.set_exception(error)

        self.when_durable(told)
        return waiting


def _when_durable(log: PartitionLog, end_offset: int, callback: Callable[[BraidError | None], None]) -> None:
    """Call back when everything below `end_offset` is as durable as its topic promises, or never will be.

    At level `none` a failure is not reported, but the answer follows the write all the same: a read behind it finds the record.
    """
    log.when_durable(end_offset, callback if log.settings.level != Level.NONE else lambda _: callback(None))
