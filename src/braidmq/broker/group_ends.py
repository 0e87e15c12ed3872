"""Where partitions begin and end, and where in them a time is, for those who begin to read or are moved.

A broker that runs alone looks into its logs. In a cluster whoever minds groups may have no replica of a partition, or one that
is behind: there the leader says it, or nobody does, and what was asked fails. An end that is only guessed would send a group to a
place where it never was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.broker.group_lag import LogOf, OffLoop
from braidmq.broker.peers import Peers
from braidmq.broker.topics import Topic
from braidmq.log.time_lookup import offset_for_time

_LEADERS_S: Final = 10.0


class GroupEnds:
    def __init__(
        self, log_of: LogOf, is_live: Callable[[Topic], bool], off_loop: OffLoop, peers: Callable[[], Peers | None]
    ) -> None:
        self._log_of = log_of
        self._is_live = is_live
        self._off_loop = off_loop
        self._peers = peers

    async def bounds(self, topic: Topic, partitions: Sequence[int]) -> list[tuple[int, int]]:
        """The oldest offset of each, and the next one to be written."""
        peers = self._peers()
        if peers is None:
            return [self.bounds_here(topic, partition) for partition in partitions]
        said = await peers.look({(topic.id, partition): () for partition in partitions}, _LEADERS_S)
        found = []
        for partition in partitions:
            place = said[topic.id, partition]
            if isinstance(place, BraidError):
                raise place
            found.append((place.log_start, place.high_watermark))
        return found

    def bounds_here(self, topic: Topic, partition: int) -> tuple[int, int]:
        log = self._log_of(topic, partition)
        return log.log_start, log.high_watermark

    async def since(self, topic: Topic, partitions: Sequence[int], timestamp_ms: int) -> list[int]:
        """The smallest offset of each whose timestamp is at least `timestamp_ms`; the end where there is none."""
        peers = self._peers()
        if peers is not None:
            return await peers.offsets_since(topic, partitions, timestamp_ms)
        found = []
        for partition in partitions:
            if not self._is_live(topic):
                raise BraidError("TOPIC_NOT_FOUND", topic=topic.name)
            found.append(await self.since_here(topic, partition, timestamp_ms))
        return found

    async def since_here(self, topic: Topic, partition: int, timestamp_ms: int) -> int:
        """The same, of what this node has."""
        log = self._log_of(topic, partition)
        for _ in range(2):
            found = offset_for_time(log, timestamp_ms)
            if isinstance(found, int):
                return found
            await self._off_loop(found.warm_up)
        found = offset_for_time(log, timestamp_ms, warmed=True)
        assert isinstance(found, int)
        return found
