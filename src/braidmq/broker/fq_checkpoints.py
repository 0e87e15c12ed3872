"""Named positions of disk queues: an operator notes where a queue is, and can send it back there.

A position is that of the queue's consumer group. Where a client names one place itself it says `LOG:MARK`: the number of the
partition among all that the broker ever had, and an offset in it. What lies before the mark counts as delivered.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.fq_queue import FqQueue
from braidmq.broker.fq_table import StoredQueue
from braidmq.broker.machines import QUEUES
from braidmq.broker.push import Feed

RESERVED: Final = "fq"
"""The published broker reads under this name."""
NOW: Final = "now"
"""Stands for where the queue is."""
_PLACE: Final = re.compile(r"([0-9]{1,18}):([0-9]{1,18})")


async def add_checkpoint(broker: Broker, queue_name: bytes, name: str, place: str) -> None:
    """Note a position under a name."""
    queue, _ = _kept(broker, queue_name)
    if not name or name == RESERVED:
        _refuse("a checkpoint needs a name other than fq")
    places = dict(queue.positions())
    if place != NOW:
        feed, offset = _place(queue, place)
        places[feed] = offset
    rows = [(feed.topic.id, feed.partition, offset) for feed, offset in places.items()]
    await broker.submit_metadata(QUEUES, broker.fq.table.set_checkpoint(queue_name, name, rows))


async def remove_checkpoint(broker: Broker, queue_name: bytes, name: str) -> None:
    _, stored = _kept(broker, queue_name)
    if name not in stored.checkpoints:
        _refuse("no such checkpoint")
    await broker.submit_metadata(QUEUES, broker.fq.table.set_checkpoint(queue_name, name, None))


async def reset_to_checkpoint(broker: Broker, queue_name: bytes, name: str) -> None:
    """Let the queue go on from a noted position; what is pending is looked at anew."""
    queue, stored = _kept(broker, queue_name)
    rows = stored.checkpoints.get(name)
    if rows is None:
        _refuse("no such checkpoint")
    noted = {(topic_id, partition): offset for topic_id, partition, offset in rows}
    places = {feed: noted.get((feed.topic.id, feed.partition)) for feed in queue.cursors}
    queue.move({feed: offset for feed, offset in places.items() if offset is not None})
    await broker.push.positions.commit(queue)


def _kept(broker: Broker, name: bytes) -> tuple[FqQueue, StoredQueue]:
    queue, stored = broker.fq.get(name), broker.fq.table.get(name)
    if queue is None or stored is None or not queue.kept:
        _refuse("no permanent disk queue of that name")
    return queue, stored


def _place(queue: FqQueue, text: str) -> tuple[Feed, int]:
    found = _PLACE.fullmatch(text)
    if found is None:
        _refuse(f"a checkpoint id is LOG:MARK, or {NOW}")
    number, offset = int(found[1]), int(found[2])
    for feed in queue.cursors:
        if feed.topic.first_partition + feed.partition == number:
            return feed, offset
    _refuse(f"the queue does not read from log {number}")


def _refuse(reason: str) -> NoReturn:
    raise BraidError("INVALID_ARGUMENT", reason=reason)
