"""Consumer groups as the outside sees them: offsets, lag, resets, and members of both kinds.

The offsets are durable (`group_offsets.py`). Members are not: a connection that subscribed (`group_subscribers.py`), or a
member that shares partitions with others and is known by its id (`group_sharing.py`).

A group belongs to a topic. Members that share partitions join a name, and belong to the groups of that name on all their
topics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from braidmq.base import limits
from braidmq.base.clock import Clock
from braidmq.base.errors import BraidError
from braidmq.broker.group_ends import GroupEnds
from braidmq.broker.group_lag import GroupLag, LagReader, LogOf, OffLoop, PartitionLag
from braidmq.broker.group_members import Member
from braidmq.broker.group_offsets import GroupOffsets
from braidmq.broker.group_sharing import SharedGroups
from braidmq.broker.group_subscribers import Subscribers
from braidmq.broker.names import check_group
from braidmq.broker.peers import PartitionLook, Peers
from braidmq.broker.topics import Topic, TopicTable

_COMMITTED: Final = ("commit", "committed")

OffsetRow = tuple[int, str, int, int]
"""Topic id, group, partition, offset."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    topic: str
    group: str
    members: tuple[str, ...]
    """Addresses of connections that subscribed, then ids of members that share the partitions."""
    offsets: tuple[tuple[int, int], ...]
    """Partition and offset, of the partitions that were committed."""
    state: str
    """`empty`, `active`, or `rebalancing`."""
    generation: int
    """0 without members that share."""


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """What a reset does to one partition, or would do."""

    partition: int
    before: int | None
    after: int


class GroupCoordinator:
    def __init__(
        self, offsets: GroupOffsets, topics: TopicTable, log_of: LogOf, clock: Clock,
        submit: Callable[[list[Any]], Awaitable[Any]], off_loop: OffLoop,
        peers: Callable[[], Peers | None] = lambda: None, *, groups_max: int = limits.GROUPS_MAX,
    ) -> None:
        self._offsets = offsets
        self._topics = topics
        self._submit = submit
        self._groups_max = groups_max
        self._ends = GroupEnds(log_of, self._is_live, off_loop, peers)
        self._lags = LagReader(log_of, self._is_live, clock, off_loop, peers)
        self._subscribers = Subscribers()
        self.members = SharedGroups(topics, clock, submit, self._member_gone)

    # --- finding

    def _topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise BraidError("TOPIC_NOT_FOUND", topic=name)
        return topic

    def _is_live(self, topic: Topic) -> bool:
        return self._topics.by_id(topic.id) is not None

    def _checked(self, name: str, partition: int) -> Topic:
        topic = self._topic(name)
        if not 0 <= partition < topic.partitions:
            raise BraidError("PARTITION_NOT_FOUND", partition=partition)
        return topic

    def is_new(self, topic: str, group: str) -> bool:
        """Whether there is the topic, and no such group on it."""
        found = self._topics.get(topic)
        return found is not None and not self._exists(found, group)

    def position(self, topic: str, group: str, partition: int) -> int | None:
        """What the group committed in a partition; None for nothing, whatever the reason."""
        found = self._topics.get(topic)
        return None if found is None else self._offsets.committed(found.id, group, partition)

    def _exists(self, topic: Topic, group: str) -> bool:
        known = self._offsets.has(topic.id, group) or self._subscribers.has(topic.id, group)
        return known or bool(self.members.readers(topic.name, group))

    def _topics_of(self, name: str, group: str) -> list[Topic]:
        """The topic, or with the empty name all that have the group, in name order; or GROUP_NOT_FOUND."""
        if name:
            topic = self._topics.get(name)
            found = [] if topic is None or not self._exists(topic, group) else [topic]
        else:
            names = self.members.topics_of(group)
            ids = self._offsets.topics_of(group) | self._subscribers.topics_of(group)
            topics = {topic.id: topic for topic in map(self._topics.by_id, ids) if topic is not None}
            topics |= {topic.id: topic for topic in map(self._topics.get, names) if topic is not None}
            found = sorted(topics.values(), key=lambda topic: topic.name)
        if not found:
            raise BraidError("GROUP_NOT_FOUND", topic=name, group=group)
        return found

    def _all(self) -> Iterator[tuple[Topic, str]]:
        """Every group, by topic and name. Whoever asks for them one by one leaves out what goes meanwhile."""
        names: dict[int, set[str]] = {}
        for topic_id, group in chain(self._offsets.all(), self._subscribers.all()):
            names.setdefault(topic_id, set()).add(group)
        for shared in self.members.all():
            for topic in map(self._topics.get, shared.topics()):
                if topic is not None:
                    names.setdefault(topic.id, set()).add(shared.name)
        topics = [(topic.name, topic) for topic in map(self._topics.by_id, names) if topic is not None]
        topics.sort(key=itemgetter(0))
        for _, topic in topics:
            for group in sorted(names[topic.id]):
                if self._is_live(topic) and self._exists(topic, group):
                    yield topic, group

    # --- asking

    def committed(self, topic: str, group: str, partition: int) -> int:
        """The group's next offset to read; 0 when it has not committed here."""
        found = self._topics_of(topic, group)[0]
        self._checked(found.name, partition)
        return self._offsets.committed(found.id, group, partition) or 0

    def describe(self, topic: str, group: str) -> GroupInfo:
        """One group; the empty topic means the first in name order that has it."""
        return self._info(self._topics_of(topic, group)[0], group)

    def each_group(self) -> Iterator[GroupInfo]:
        """Every group on every topic, in that order. There may be a million: let others have their turn between them."""
        return (self._info(topic, group) for topic, group in self._all())

    def topics_of(self, group: str) -> list[str]:
        """The topics on which there is a group of that name, in order."""
        return [topic.name for topic in self._topics_of("", group)]

    def _info(self, topic: Topic, group: str) -> GroupInfo:
        members = self._subscribers.addresses(topic.id, group)
        generation, state = 0, "active" if members else "empty"
        sharing, shared = self.members.readers(topic.name, group), self.members.get(group)
        if sharing and shared is not None:
            members += [member.id for member in sharing]
            generation, state = shared.generation, "rebalancing" if shared.rebalancing else "active"
        return GroupInfo(
            topic.name, group, tuple(members), tuple(sorted(self._offsets.offsets(topic.id, group).items())), state, generation
        )

    async def lag(self, topic: str, group: str, partition: int) -> PartitionLag:
        """How far the group is behind; one that nobody knows has read nothing."""
        found = self._checked(topic, partition)
        return await self._lags.partition(found, partition, self._offsets.committed(found.id, group, partition) or 0)

    async def group_lag(self, topic: str, group: str) -> GroupLag:
        """All partitions; the empty topic means the first in name order that has the group."""
        found = self._topics_of(topic, group)[0]
        lags = await self._lags.groups([(found, group, self._offsets.offsets(found.id, group))])
        if not lags:
            raise BraidError("GROUP_NOT_FOUND", topic=topic, group=group)
        return lags[0]

    def group_lag_at_hand(self, topic: str, group: str) -> GroupLag | None:
        """The same where it takes no waiting, else None: whoever asks for many groups asks for them one by one."""
        found = self._topics_of(topic, group)[0]
        return self._lags.at_hand(found, group, self._offsets.offsets(found.id, group))

    async def lags_of(self, groups: Iterable[tuple[str, str]]) -> list[GroupLag]:
        """Of these groups, given as topic and name, those that there are, in the same order."""
        found = [(self._topics.get(topic), group) for topic, group in groups]
        return await self._lags.groups(
            (topic, group, dict(self._offsets.offsets(topic.id, group)))
            for topic, group in found
            if topic is not None and self._exists(topic, group)
        )

    async def lags(self, topics: Collection[str] | None = None) -> list[GroupLag]:
        """Every group on every topic, or on these."""
        return await self._lags.groups(
            (topic, group, dict(self._offsets.offsets(topic.id, group)))
            for topic, group in self._all()
            if topics is None or topic.name in topics
        )

    # --- published clients: a connection subscribes

    def subscribe(self, topic: str, group: str, partition: int, mode: str, member: object, address: str) -> int:
        """Where to begin to read; the connection is a member of the group until `unsubscribe`. No group, no member."""
        found = self._subscribable(topic, group, partition)
        oldest, newest = self._ends.bounds_here(found, partition)
        offset = start_offset(mode, oldest, newest, self._offsets.committed(found.id, group, partition))
        self._join(found, group, member, address)
        return offset

    async def subscribe_in_cluster(
        self, topic: str, group: str, partition: int, mode: str, member: object, address: str
    ) -> int:
        """The same where the leader says where the partition begins and ends. What is committed is known without it."""
        found = self._subscribable(topic, group, partition)
        committed = self._offsets.committed(found.id, group, partition)
        oldest = newest = 0
        if committed is None or mode not in _COMMITTED:
            start_offset(mode, 0, 0, None)
            ((oldest, newest),) = await self._ends.bounds(found, (partition,))
            if not self._is_live(found):
                raise BraidError("TOPIC_NOT_FOUND", topic=topic)
            committed = self._offsets.committed(found.id, group, partition)
        self._join(found, group, member, address)
        return start_offset(mode, oldest, newest, committed)

    def _subscribable(self, topic: str, group: str, partition: int) -> Topic:
        found = self._checked(topic, partition)
        if group:
            check_group(group)
        return found

    def _join(self, found: Topic, group: str, member: object, address: str) -> None:
        """Have a connection be a member of a group from now on; with an empty group it is none."""
        if group:
            if len(self._subscribers) >= self._groups_max and not self._exists(found, group):
                raise BraidError("GROUP_LIMIT", what="the broker", limit=self._groups_max, things="groups")
            self._subscribers.join(found.id, group, member, address)

    def unsubscribe(self, topic_id: int, group: str, member: object) -> None:
        self._subscribers.leave(topic_id, group, member)

    # --- moving offsets

    def row(self, topic: str, group: str, partition: int, offset: int) -> OffsetRow:
        """A checked row for `commit_rows`."""
        found = self._checked(topic, partition)
        check_group(group)
        if offset < 0:
            raise BraidError("INVALID_ARGUMENT", reason=f"offset {offset} is negative")
        if len(self._offsets) >= self._groups_max and not self._offsets.has(found.id, group):
            raise BraidError("GROUP_LIMIT", what="the broker", limit=self._groups_max, things="groups")
        return found.id, group, partition, offset

    async def commit_offset(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Store one position; durable when this returns."""
        await self._submit(self._offsets.commit(*self.row(topic, group, partition, offset)))

    async def commit_rows(self, rows: Collection[OffsetRow], transaction: int | None = None) -> bool:
        """Store many positions, all or none; durable when this returns.

        With a transaction's number it happens once, however often it is asked for; False says that it had happened before.
        What belongs to a topic that is gone by now is left out.
        """
        most = limits.GROUP_COMMIT_OFFSETS_MAX
        if len(rows) > most:
            raise BraidError("INVALID_ARGUMENT", reason=f"{len(rows)} offsets at once are more than {most}")
        live = [row for row in rows if self._topics.by_id(row[0]) is not None]
        applied: bool = await self._submit(self._offsets.commit_many(live, transaction))
        return applied

    async def reset(
        self, topic: str, group: str, partition: int | None, mode: str, value: int = 0, *, dry_run: bool = False
    ) -> list[OffsetChange]:
        """Move the group in one partition, or in all of them at once with None; creates the group.

        `mode` is `earliest`, `latest`, `offset` (`value` as given) or `timestamp` (`value` in ms). Returns the changes; a dry
        run only returns them.
        """
        check_group(group)
        found = self._topic(topic) if partition is None else self._checked(topic, partition)
        numbers = range(found.partitions) if partition is None else (partition,)
        places = await self._reset_offsets(found, numbers, mode, value)
        if not self._is_live(found):
            raise BraidError("TOPIC_NOT_FOUND", topic=topic)
        changes = [
            OffsetChange(number, self._offsets.committed(found.id, group, number), after)
            for number, after in zip(numbers, places, strict=True)
        ]
        if not dry_run:
            rows = [self.row(topic, group, change.partition, change.after) for change in changes]
            if any(row[0] != found.id for row in rows):
                # While that was looked up, another topic took the name; these offsets are none of its.
                raise BraidError("TOPIC_NOT_FOUND", topic=topic)
            await self.commit_rows(rows)
        return changes

    async def _reset_offsets(self, topic: Topic, partitions: Sequence[int], mode: str, value: int) -> list[int]:
        match mode:
            case "earliest":
                return [oldest for oldest, _ in await self._ends.bounds(topic, partitions)]
            case "latest":
                return [newest for _, newest in await self._ends.bounds(topic, partitions)]
            case "offset":
                if value < 0:
                    raise BraidError("INVALID_ARGUMENT", reason=f"offset {value} is negative")
                return [value] * len(partitions)
            case "timestamp":
                return await self._ends.since(topic, partitions, value)
        raise BraidError("INVALID_RESET_MODE", mode=mode)

    async def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """The smallest offset here whose timestamp is at least `timestamp_ms`; the end when there is none."""
        return await self.offset_here(self._checked(topic, partition), partition, timestamp_ms)

    async def offset_here(self, topic: Topic, partition: int, timestamp_ms: int) -> int:
        """The same; the leader of a partition says by it where a time is."""
        return await self._ends.since_here(topic, partition, timestamp_ms)

    async def look_here(self, topic: Topic, partition: int, offsets: Collection[int]) -> PartitionLook:
        """What the leader of a partition says of it."""
        return await self._lags.look(topic, partition, offsets)

    async def seek(self, topic: str, group: str, partition: int, timestamp_ms: int) -> int:
        """The offset for a time, and the group moved there; without a group it is only looked up."""
        if group:
            check_group(group)
        found = self._checked(topic, partition)
        (offset,) = await self._ends.since(found, (partition,), timestamp_ms)
        if group:
            if not self._is_live(found):
                raise BraidError("TOPIC_NOT_FOUND", topic=topic)
            await self.commit_offset(topic, group, partition, offset)
        return offset

    async def delete(self, topic: str, group: str) -> list[str]:
        """Delete the group with its offsets, on every topic when `topic` is empty; returns the topics that had it.

        Its members are strangers from then on. Those that are alive come back, and begin without offsets.
        """
        gone = self._topics_of(topic, group)
        if any(found.name in self.members.topics_of(group) for found in gone):
            self.members.disband(group)
        for found in gone:
            self._subscribers.remove(found.id, group)
        await self._submit(self._offsets.delete(gone[0].id if topic else None, group))
        return [found.name for found in gone]

    # --- members that share partitions; everything else about them is asked of `members`

    async def commit(self, group: str, member: str, generation: int, offsets: Collection[tuple[str, int, int]]) -> None:
        """Store positions (topic, partition, offset) of partitions that the member owns, all or none."""
        with self.members.committing(group, member, generation, ((topic, partition) for topic, partition, _ in offsets)):
            await self.commit_rows([self.row(topic, group, partition, offset) for topic, partition, offset in offsets])

    def _member_gone(self, group: str, member: Member) -> None:
        for topic in map(self._topics.get, member.topics):
            if topic is not None:
                self._subscribers.remember(topic.id, group)

    def topic_changed(self, topic: str) -> None:
        """A topic came, or has more partitions."""
        self.members.topic_changed(topic)

    def topic_removed(self, topic: Topic) -> None:
        """A topic is gone, and with it what was known of its groups in memory."""
        self._subscribers.forget_topic(topic.id)
        self.members.topic_changed(topic.name)


def start_offset(mode: str, oldest: int, newest: int, committed: int | None) -> int:
    """Where a SUBSCRIBE with `mode` begins to read."""
    match mode:
        case "earliest":
            return oldest
        case "latest" | "":
            return newest
        case _ if mode in _COMMITTED:
            return oldest if committed is None else committed
    raise BraidError("INVALID_MODE", mode=mode)
