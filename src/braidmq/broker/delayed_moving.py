"""Keeps what delayed messages take on the disk in proportion to what waits.

Their staging is a log, and a log is let go from its front: one message that is due in a day would keep everything that was
staged after it, delivered or not. So when the log has grown to several times what waits in it, the few messages that still wait
in its oldest segment are staged once more at its end, and the segment can go. Every message is moved at most once for three
times its size that is given back.

A move has two steps: the copies are durable, then one command in the journal says where the messages are now. A crash before
that command leaves copies that nobody refers to; there is never more than one place that a delivery reads from, and whoever
delivers or cancels at the same time wins.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from braidmq.base import limits
from braidmq.broker.staging import Staged

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

_OVERGROWTH: Final = 4
"""The log may be so many times as large as what waits in it, and two segments more."""


async def move_survivors(broker: Broker) -> int:
    """Stage anew what waits in the oldest segment, where the log has grown too large for what waits; returns how many."""
    table, log = broker.work.table.delayed, broker.work.delayed.log
    allowed = _OVERGROWTH * table.size_bytes + 2 * log.settings.segment_bytes
    if len(log.segments) < 2 or log.size_bytes <= allowed:
        return 0
    numbers = table.waiting_below(log.segments[1].base_offset)
    moved = 0
    for at in range(0, len(numbers), limits.DELIVERY_RECORDS_MAX):
        found = await broker.delayed.staged(numbers[at : at + limits.DELIVERY_RECORDS_MAX])
        moved += await _move(broker, found)
    return moved


async def _move(broker: Broker, found: dict[int, Staged]) -> int:
    work = broker.work
    moves: list[list[int]] = []
    durable: list[asyncio.Future[None]] = []
    for number, record in found.items():
        ref = work.delayed.add(number, record.key, record.value, record.attrs, record.topic, record.partition)
        moves.append([number, ref])
        # Each one is watched for itself: places of records that were taken back from a full disk are given to others.
        durable.append(broker.durability(work.delayed.log, ref + 1))
    outcomes = await asyncio.gather(*durable, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    count: int = await work.journal.submit(["move", moves]) if moves else 0
    return count
