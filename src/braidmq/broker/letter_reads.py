"""What is read of dead letters: what lies in the logs here, and in a cluster what the leaders have.

Whoever lists letters, sends them back or lets them go may have no replica of the topic that they lie in, or one that is behind.
Letters that it lacks would be left out without a word, so there the leader is asked; where it says nothing, what was asked fails
before anything was done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.broker.pace import Pace
from braidmq.broker.peers import Peers
from braidmq.broker.topics import Topic
from braidmq.log.partition import PartitionLog
from braidmq.log.partition_reads import Cold

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

_LEADERS_S: Final = 10.0
_PILES_S: Final = 2.0
"""How long leaders may take to say how many letters there are: whoever looks wants to see the rest."""
_AGAIN_S: Final = 0.1

logger = logging.getLogger("braidmq.letters")


@dataclass(frozen=True, slots=True)
class Pile:
    """The letters of a topic together."""

    topic: Topic
    letters: int
    """At most: some may have been sent back."""
    size_bytes: int
    unknown: bool
    """Whether a leader does not answer, so that there may be more."""


class LetterReads:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def bounds(self, topic: Topic, partitions: Sequence[int]) -> list[tuple[int, int]]:
        """Where each partition of a dead-letter topic begins and ends."""
        peers = self._broker.peers
        if peers is None:
            logs = [self._broker.log_of(topic, partition) for partition in partitions]
            return [(log.log_start, log.high_watermark) for log in logs]
        said = await peers.look({(topic.id, partition): () for partition in partitions}, _LEADERS_S)
        found = []
        for partition in partitions:
            place = said[topic.id, partition]
            if isinstance(place, BraidError):
                raise _unread(topic, partition, place)
            found.append((place.log_start, place.high_watermark))
        return found

    async def read(self, topic: Topic, partition: int, offset: int, bytes_max: int) -> tuple[bytes, int]:
        """Whole batches from `offset` on, which is before the end, and where the partition begins by now."""
        peers = self._broker.peers
        if peers is not None:
            return await self._led(peers, topic, partition, offset, bytes_max)
        log = self._broker.log_of(topic, partition)
        read = log.read_batches(max(offset, log.log_start), bytes_max)
        if isinstance(read, Cold):
            await self._broker.warm(read)
            read = log.read_batches(max(offset, log.log_start), bytes_max, warmed=True)
            assert not isinstance(read, Cold)
        return b"".join(read.slices), log.log_start

    async def _led(self, peers: Peers, topic: Topic, partition: int, offset: int, bytes_max: int) -> tuple[bytes, int]:
        """A leader that is lost while it is read is replaced in a moment, and one that has just begun may not know its end yet."""
        clock = self._broker.clock
        deadline_s = clock.monotonic() + _LEADERS_S
        while True:
            try:
                read = await peers.read(topic, partition, offset, bytes_max, 0.0, raw=False)
                if read.next_offset > offset or read.log_start > offset:
                    return bytes(read.batches), read.log_start
                fault = BraidError("NOT_LEADER", reason=f"the leader has not heard its replicas yet, partition={partition}")
            except BraidError as error:
                if error.code not in ("NOT_LEADER", "NODE_UNREACHABLE"):
                    raise
                fault = error
            if clock.monotonic() >= deadline_s:
                raise _unread(topic, partition, fault)
            await asyncio.sleep(_AGAIN_S)

    async def piles(self, topics: Sequence[Topic]) -> list[Pile]:
        """How many letters there are in each of these dead-letter topics."""
        peers, first_from = self._broker.peers, self._broker.work.table.letters.first_from
        pace = Pace()
        found = []
        if peers is None:
            for topic in topics:
                await pace.step(topic.partitions)
                if self._broker.topics.by_id(topic.id) is None:
                    continue
                logs = [self._broker.log_of(topic, partition) for partition in range(topic.partitions)]
                counts = [log.high_watermark - first_from(topic.id, log.partition, log.log_start) for log in logs]
                letters = sum(max(0, count) for count in counts)
                found.append(Pile(topic, letters, sum(log.size_bytes for log in logs), unknown=False))
            return found
        keys = [(topic.id, partition) for topic in topics for partition in range(topic.partitions)]
        said = await peers.look(dict.fromkeys(keys, ()), _PILES_S)
        for topic in topics:
            await pace.step(topic.partitions)
            letters = size = 0
            unknown = False
            for partition in range(topic.partitions):
                place = said[topic.id, partition]
                if isinstance(place, BraidError):
                    unknown = True
                    logger.info("how many letters there are in %s/%d is not known: %s", topic.name, partition, place)
                    continue
                letters += max(0, place.high_watermark - first_from(topic.id, partition, place.log_start))
                size += place.size_bytes
            if not unknown or self._broker.topics.by_id(topic.id) is not None:
                found.append(Pile(topic, letters, size, unknown))
        return found

    async def let_go(self, topic: Topic, partition: int, end: int) -> None:
        """Give back what letters before `end` take on disk."""
        peers = self._broker.peers
        if peers is None or peers.leads(topic.id, partition):
            await self.let_go_here(self._broker.log_of(topic, partition), end)
            return
        try:
            await peers.let_go(topic, partition, end)
        except BraidError as error:
            # They are no letters any more; retention takes what is left of them.
            logger.info("%s/%d keeps what purged letters take on disk: %s", topic.name, partition, error)

    async def let_go_here(self, log: PartitionLog, end: int) -> None:
        for segment in log.let_go_below(end):
            await self._broker.beside(segment.remove)


def _unread(topic: Topic, partition: int, fault: BraidError) -> BraidError:
    """The error of letters that nobody tells. Nothing was done, which a node that does not answer would leave open."""
    if fault.code != "NODE_UNREACHABLE":
        return fault
    return BraidError("NOT_LEADER", reason=f"nobody says what is in {topic.name}/{partition}: {fault.text}")
