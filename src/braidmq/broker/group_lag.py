"""How far groups are behind: in records, and in time.

The lag of a partition is the number of records from the committed offset (0 without one) to the end. In time it is the age
of the oldest record that was not read and still exists, by its timestamp; a group that has read everything is 0 behind.

All groups together are looked at in one go, a few at a time, so that the loop serves others in between. What would wait for
the disk is read beside the loop.

In a cluster the leaders say it, all groups in a few questions to each. Of a partition whose leader does not answer nothing is
known, and that is what a group's lag says of it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from braidmq.base.clock import Clock
from braidmq.base.errors import BraidError
from braidmq.broker.pace import Pace
from braidmq.broker.peers import PartitionLook, Peers
from braidmq.broker.topics import Topic
from braidmq.log.partition import PartitionLog
from braidmq.log.time_lookup import timestamp_at

LogOf = Callable[[Topic, int], PartitionLog]
OffLoop = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs something that may block beside the loop."""

logger = logging.getLogger("braidmq.groups")
_AT_HAND_PARTITIONS_MAX: Final = 64
"""Beyond this others are to be served in between."""
_LEADERS_S: Final = 2.0
"""How long leaders may take to say how far behind groups are: whoever looks wants to see the rest."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    partition: int
    committed: int
    """0 when the group has not committed here."""
    latest: int
    """The next offset to be written."""
    records: int
    ms: int
    fault: BraidError | None = None
    """Why the leader does not say how far behind that is; then the three before are 0."""


@dataclass(frozen=True, slots=True)
class GroupLag:
    topic: str
    group: str
    partitions: tuple[PartitionLag, ...]
    """Every partition of the topic."""

    @property
    def records(self) -> int:
        return sum(lag.records for lag in self.partitions)

    @property
    def ms(self) -> int:
        return max((lag.ms for lag in self.partitions), default=0)

    @property
    def unknown(self) -> list[int]:
        """Partitions whose leaders do not answer. The group may be further behind than it says."""
        return [lag.partition for lag in self.partitions if lag.fault is not None]

    def complete(self) -> GroupLag:
        """The same, or the error for which it is not known."""
        for lag in self.partitions:
            if lag.fault is not None:
                raise lag.fault
        return self


class LagReader:
    def __init__(
        self, log_of: LogOf, is_live: Callable[[Topic], bool], clock: Clock, off_loop: OffLoop, peers: Callable[[], Peers | None]
    ) -> None:
        self._peers = peers
        self._log_of = log_of
        self._is_live = is_live
        self._clock = clock
        self._off_loop = off_loop

    async def partition(self, topic: Topic, partition: int, committed: int) -> PartitionLag:
        """The lag of one partition; damage in the log is an error, and so is a leader that says nothing."""
        peers = self._peers()
        if peers is not None:
            key = topic.id, partition
            lag = _led_lag(partition, committed, (await peers.look({key: (committed,)}, _LEADERS_S))[key])
            if lag.fault is not None:
                raise lag.fault
            return lag
        log = self._log_of(topic, partition)
        if committed >= log.high_watermark:
            return self._lag(log, committed, None)
        found = await self._timestamp(log, committed)
        return self._lag(log, committed, None if found is None else found[0])

    def at_hand(self, topic: Topic, group: str, offsets: Mapping[int, int]) -> GroupLag | None:
        """The lag of a group where it can be told at once: few partitions, and nothing to wait for. Else `groups` tells it."""
        if topic.partitions > _AT_HAND_PARTITIONS_MAX or self._peers() is not None:
            return None
        lags = []
        for number in range(topic.partitions):
            log = self._log_of(topic, number)
            committed = offsets.get(number, 0)
            stamp = None
            first = max(committed, log.log_start)
            if first < log.high_watermark and log.segments:
                try:
                    found = timestamp_at(log, first)
                except BraidError:
                    # `groups` says so, and goes on without it.
                    return None
                if not isinstance(found, tuple):
                    return None
                stamp = found[0]
            lags.append(self._lag(log, committed, stamp))
        return GroupLag(topic.name, group, tuple(lags))

    async def groups(self, groups: Iterable[tuple[Topic, str, Mapping[int, int]]]) -> list[GroupLag]:
        """The lag of each group, given as topic, name and committed offsets; those of topics that go meanwhile are left out."""
        peers = self._peers()
        if peers is not None:
            return await self._as_leaders_say(peers, groups)
        places: list[tuple[Topic, str, list[tuple[PartitionLog, int]]]] = []
        wanted: dict[PartitionLog, set[int]] = {}
        pace = Pace()
        for topic, group, offsets in groups:
            await pace.step(topic.partitions)
            if not self._is_live(topic):
                # Others were served in between, and nobody may open the log of a topic that is gone.
                continue
            rows = [(self._log_of(topic, number), offsets.get(number, 0)) for number in range(topic.partitions)]
            for log, committed in rows:
                if committed < log.high_watermark:
                    wanted.setdefault(log, set()).add(committed)
            places.append((topic, group, rows))
        stamps = {log: await self._timestamps(log, sorted(offsets), pace) for log, offsets in wanted.items()}
        lags: list[GroupLag] = []
        unread: dict[int, int] = {}
        for topic, group, rows in places:
            await pace.step(topic.partitions)
            if self._is_live(topic):
                partitions = (self._lag(log, committed, stamps.get(log, unread).get(committed)) for log, committed in rows)
                lags.append(GroupLag(topic.name, group, tuple(partitions)))
        return lags

    async def _as_leaders_say(self, peers: Peers, groups: Iterable[tuple[Topic, str, Mapping[int, int]]]) -> list[GroupLag]:
        places: list[tuple[Topic, str, list[int]]] = []
        wanted: dict[tuple[int, int], set[int]] = {}
        pace = Pace()
        for topic, group, offsets in groups:
            await pace.step(topic.partitions)
            row = [offsets.get(number, 0) for number in range(topic.partitions)]
            for number, committed in enumerate(row):
                wanted.setdefault((topic.id, number), set()).add(committed)
            places.append((topic, group, row))
        said = await peers.look(wanted, _LEADERS_S)
        lags: list[GroupLag] = []
        for topic, group, row in places:
            await pace.step(topic.partitions)
            if self._is_live(topic):
                rows = (_led_lag(number, committed, said[topic.id, number]) for number, committed in enumerate(row))
                lags.append(GroupLag(topic.name, group, tuple(rows)))
        return lags

    async def look(self, topic: Topic, partition: int, offsets: Collection[int]) -> PartitionLook:
        """What is said of a partition that this node leads. Its clock gave the records their times, and tells their ages."""
        log = self._log_of(topic, partition)
        end = log.high_watermark
        stamps = await self._timestamps(log, sorted(offset for offset in offsets if offset < end), Pace())
        now_ms = self._clock.now_ms()
        return PartitionLook(log.log_start, end, {offset: max(0, now_ms - stamp) for offset, stamp in stamps.items()})

    def _lag(self, log: PartitionLog, committed: int, stamp: int | None) -> PartitionLag:
        latest = log.high_watermark
        if committed >= latest:
            return PartitionLag(log.partition, committed, latest, 0, 0)
        age_ms = 0 if stamp is None else max(0, self._clock.now_ms() - stamp)
        return PartitionLag(log.partition, committed, latest, latest - committed, age_ms)

    async def _timestamps(self, log: PartitionLog, offsets: list[int], pace: Pace) -> dict[int, int]:
        """The timestamps at these offsets, as far as they can be told. Going up, neighbours are found in the same batch."""
        stamps: dict[int, int] = {}
        stamp, until = 0, -1
        for offset in offsets:
            if offset >= until:
                await pace.step()
                try:
                    found = await self._timestamp(log, offset)
                except BraidError as damage:
                    # One bad batch must not hide the lag of all groups; whoever asks for this partition alone is told.
                    logger.warning("the age of %s/%d at offset %d is unknown: %s", log.topic, log.partition, offset, damage)
                    found = None
                if found is None:
                    continue
                stamp, until = found
            stamps[offset] = stamp
        return stamps

    async def _timestamp(self, log: PartitionLog, offset: int) -> tuple[int, int] | None:
        """The timestamp at `offset`, or of what retention has left behind it, and up to where; None when nothing is left."""
        for warmed in (False, False, True):
            offset = max(offset, log.log_start)
            if offset >= log.high_watermark or not log.segments:
                return None
            found = timestamp_at(log, offset, warmed=warmed)
            if isinstance(found, tuple):
                return found
            await self._off_loop(found.warm_up)
        raise AssertionError("a read that may wait always answers")


def _led_lag(partition: int, committed: int, said: PartitionLook | BraidError) -> PartitionLag:
    if isinstance(said, BraidError):
        return PartitionLag(partition, committed, 0, 0, 0, said)
    records = max(0, said.high_watermark - committed)
    return PartitionLag(partition, committed, said.high_watermark, records, said.ages_ms.get(committed, 0) if records else 0)
