"""Where the records of a partition are looked at: here, or in a cluster at its leader, where this node has no replica in sync.

Who looks at a topic sees the same whichever node was asked. Where no leader answers, that is an error, and never an empty topic.
"""

from __future__ import annotations

from typing import NamedTuple

from braidmq.broker.broker import Broker
from braidmq.broker.topics import Topic


class Ends(NamedTuple):
    oldest: int
    newest: int
    """The next offset to be written, as readers see it."""


class Read(NamedTuple):
    ends: Ends
    next_offset: int
    data: bytes
    """Whole batches up to `next_offset`; none where nothing is."""


async def ends_of(broker: Broker, topic: Topic, partition: int) -> Ends:
    if _is_here(broker, topic, partition):
        log = broker.log_of(topic, partition)
        return Ends(log.log_start, log.high_watermark)
    return (await _from_leader(broker, topic, partition, 0, 0)).ends


async def read_from(broker: Broker, topic: Topic, partition: int, offset: int, bytes_max: int) -> Read:
    """Batches from `offset` on; nothing where that is before the oldest or behind the newest."""
    if not _is_here(broker, topic, partition):
        return await _from_leader(broker, topic, partition, offset, bytes_max)
    log = broker.log_of(topic, partition)
    ends = Ends(log.log_start, log.high_watermark)
    if not ends.oldest <= offset < ends.newest:
        return Read(ends, offset, b"")
    read = await broker.read_batches(log, offset, bytes_max, 1, 0)
    return Read(ends, read.next_offset, b"".join(read.slices))


def _is_here(broker: Broker, topic: Topic, partition: int) -> bool:
    return broker.peers is None or broker.peers.holds(topic.id, partition)


async def _from_leader(broker: Broker, topic: Topic, partition: int, offset: int, bytes_max: int) -> Read:
    assert broker.peers is not None
    said = await broker.peers.read(topic, partition, offset, bytes_max, 0.0, raw=False)
    return Read(Ends(said.log_start, said.high_watermark), said.next_offset, bytes(said.batches))
