"""All groups whose members share partitions: joining, signs of life, leaving, and who is told of what.

`group_members.py` has the rules of one group. Here a join waits for its answer, members are tied to connections, deaths are
noticed, and generations are numbered. Members live in memory: after a restart all of them are strangers and join again.
Generations go on above every number that was ever given out, because they are set aside in the offsets journal, many at a
time, before they are used.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from braidmq.base import limits
from braidmq.base.clock import Clock
from braidmq.base.errors import BraidError
from braidmq.broker.assignment import check_strategy
from braidmq.broker.group_members import Heartbeat, Joined, Member, MemberGroup
from braidmq.broker.group_offsets import GroupOffsets
from braidmq.broker.names import check_group, check_topic
from braidmq.broker.topics import TopicTable

_GENERATIONS_AT_ONCE: Final = 1000


class SharedGroups:
    def __init__(
        self, topics: TopicTable, clock: Clock, submit: Callable[[list[Any]], Awaitable[Any]],
        on_gone: Callable[[str, Member], None],
    ) -> None:
        """`on_gone(group, member)` is called for each member that left or died."""
        self._topics = topics
        self._clock = clock
        self._submit = submit
        self._on_gone = on_gone
        self._groups: dict[str, MemberGroup] = {}
        self._watchers: dict[str, set[str]] = {}
        """Which groups to tell about a topic."""
        self._owned: dict[object, set[tuple[str, str]]] = {}
        """(group, member) of each connection."""
        self._members = 0
        self._numbers = 0
        self._joins_waiting = 0
        self._generation = 0
        """The last one given out."""
        self._generations_reserved = 0
        """The last one that may be."""

    # --- asking

    def get(self, group: str) -> MemberGroup | None:
        return self._groups.get(group)

    def all(self) -> Iterable[MemberGroup]:
        return self._groups.values()

    def readers(self, topic: str, group: str) -> list[Member]:
        """Members of the group that named the topic."""
        shared = self._groups.get(group)
        return [] if shared is None else [member for member in shared.members.values() if topic in member.topics]

    def topics_of(self, group: str) -> set[str]:
        """Topics that members of the group named, whether they exist or not."""
        shared = self._groups.get(group)
        return set() if shared is None else shared.topics()

    # --- coming

    async def join(
        self, group: str, member: str, topics: Collection[str], strategy: str = "", session_timeout_ms: int = 0,
        owner: object = None, address: str = "",
    ) -> Joined:
        """Become or stay a member; returns when the group has settled with the member's share.

        `member` is empty at first and the id from the answer later; an id that is not known any more is replaced.
        `owner` is the connection, see `owner_lost`.
        """
        check_group(group)
        strategy = check_strategy(strategy)
        session_s = _session_s(session_timeout_ms)
        wanted = self._check_subscription(topics)
        await self._reserve_generations()
        answer: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()

        def told(outcome: Joined | BraidError) -> None:
            if not answer.done():
                if isinstance(outcome, BraidError):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)

        shared = self._groups.get(group)
        known = shared.members.get(member) if shared is not None else None
        if known is None and self._members >= limits.MEMBERS_MAX:
            raise BraidError("GROUP_LIMIT", what="the broker", limit=limits.MEMBERS_MAX, things="group members")
        if shared is None:
            shared = self._groups[group] = MemberGroup(group, self._partitions_of, self._next_generation)
        if known is None:
            member = f"{address or 'member'}-{secrets.token_hex(8)}"
        now = self._clock.monotonic()
        self._numbers += 1
        newcomer = Member(member, self._numbers, address, wanted, session_s, now + session_s)
        try:
            shared.join(newcomer, strategy, now, told)
        except BraidError:
            self._drop_if_idle(shared)
            raise
        self._members += known is None
        self._owned_by(owner, shared.member(member), group)
        for topic in wanted - shared.watched:
            self._watchers.setdefault(topic, set()).add(group)
        shared.watched |= wanted
        self._joins_waiting += 1
        try:
            return await answer
        except asyncio.CancelledError:
            joined = shared.members.get(member)
            if joined is not None and joined.waiting is told:
                self._remove(shared, member)
            raise
        finally:
            self._joins_waiting -= 1

    def _check_subscription(self, topics: Collection[str]) -> frozenset[str]:
        if not 0 < len(topics) <= limits.MEMBER_TOPICS_MAX:
            raise BraidError("INVALID_ARGUMENT", reason=f"{len(topics)} topics are not 1 to {limits.MEMBER_TOPICS_MAX}")
        for topic in topics:
            check_topic(topic)
        wanted = frozenset(topics)
        partitions = sum(map(self._partitions_of, wanted))
        if partitions > limits.GROUP_PARTITIONS_MAX:
            raise BraidError("INVALID_ARGUMENT", reason=f"{partitions} partitions are more than {limits.GROUP_PARTITIONS_MAX}")
        return wanted

    def _partitions_of(self, topic: str) -> int:
        found = self._topics.get(topic)
        return 0 if found is None else found.partitions

    def _next_generation(self) -> int:
        assert self._generation < self._generations_reserved, "a group settles at most once for each join"
        self._generation += 1
        return self._generation

    async def _reserve_generations(self) -> None:
        """Make sure that every join that waits, and one more, can begin a generation that no process has begun before."""
        while self._generations_reserved - self._generation <= self._joins_waiting:
            count = _GENERATIONS_AT_ONCE + self._joins_waiting
            first = await self._submit(GroupOffsets.reserve_generations(count))
            if first > self._generations_reserved and self._generations_reserved - self._generation <= self._joins_waiting:
                self._generation = max(self._generation, first - 1)
                self._generations_reserved = first + count - 1

    def _found(self, group: str, member: str) -> MemberGroup:
        shared = self._groups.get(group)
        if shared is None:
            raise BraidError("UNKNOWN_MEMBER", member=member, group=group)
        return shared

    # --- living

    def heartbeat(self, group: str, member: str, generation: int, owner: object = None) -> Heartbeat:
        """A sign of life; says whether to join again. UNKNOWN_MEMBER and FENCED_MEMBER say so too, and void the share."""
        shared = self._found(group, member)
        beat = shared.heartbeat(member, generation, self._clock.monotonic())
        if owner is not None:
            self._owned_by(owner, shared.member(member), group)
        return beat

    def leave(self, group: str, member: str) -> None:
        """The member goes, and its share with it; one that is not known is gone already."""
        shared = self._groups.get(group)
        if shared is not None and member in shared.members:
            self._remove(shared, member)

    def check_member(self, group: str, member: str, generation: int, partitions: Iterable[tuple[str, int]]) -> None:
        """Refuse offsets from anybody but the current owner of all these partitions."""
        self._found(group, member).check_commit(member, generation, partitions, self._clock.monotonic())

    @contextmanager
    def committing(self, group: str, member: str, generation: int, partitions: Iterable[tuple[str, int]]) -> Iterator[None]:
        """`check_member`, and nothing is divided anew before the block ends: the next owner finds what it committed."""
        now = self._clock.monotonic
        shared = self._found(group, member)
        shared.check_commit(member, generation, partitions, now())
        shared.commit_begins()
        try:
            yield
        finally:
            shared.commit_ends(now())
            self._drop_if_idle(shared)

    # --- going

    def owner_lost(self, owner: object) -> None:
        """A connection closed. Its members may come back on another one, within a little time."""
        now = self._clock.monotonic()
        for group, member_id in list(self._owned.pop(owner, ())):
            shared = self._groups.get(group)
            member = shared.members.get(member_id) if shared is not None else None
            if shared is None or member is None:
                continue
            if member.waiting is not None:
                # Nobody would ever learn of the share it waits for.
                self._remove(shared, member_id)
            else:
                shared.owner_lost(member, now)

    def topic_changed(self, topic: str) -> None:
        """A topic came, went, or has more partitions."""
        now = self._clock.monotonic()
        for group in self._watchers.get(topic, ()):
            self._groups[group].topics_changed(now)

    def tick(self) -> None:
        """Remove members that were silent for too long, and end rebalances that took too long."""
        now = self._clock.monotonic()
        for shared in list(self._groups.values()):
            if shared.next_check <= now:
                for member in shared.expire(now):
                    self._removed(shared, member)

    def close(self) -> None:
        """Answer every join that waits: the broker is about to stop."""
        for group in list(self._groups):
            self.disband(group)

    def disband(self, group: str) -> None:
        """All members of the group are strangers from now on."""
        shared = self._groups.get(group)
        if shared is not None:
            for member in shared.disband():
                self._removed(shared, member)

    def _remove(self, shared: MemberGroup, member: str) -> None:
        self._removed(shared, shared.remove(member, self._clock.monotonic()))

    def _removed(self, shared: MemberGroup, member: Member) -> None:
        self._members -= 1
        self._owned_by(None, member, shared.name)
        self._on_gone(shared.name, member)
        self._drop_if_idle(shared)

    def _drop_if_idle(self, shared: MemberGroup) -> None:
        if shared.idle and self._groups.get(shared.name) is shared:
            del self._groups[shared.name]
            for topic in shared.watched:
                self._watchers[topic].discard(shared.name)
                if not self._watchers[topic]:
                    del self._watchers[topic]

    def _owned_by(self, owner: object, member: Member, group: str) -> None:
        """Note which connection a member was last heard on."""
        before, member.owner = member.owner, owner
        if before is not owner and before in self._owned:
            self._owned[before].discard((group, member.id))
            if not self._owned[before]:
                del self._owned[before]
        if owner is not None:
            self._owned.setdefault(owner, set()).add((group, member.id))


def _session_s(timeout_ms: int) -> float:
    timeout_ms = timeout_ms or limits.SESSION_TIMEOUT_MS_DEFAULT
    if not limits.SESSION_TIMEOUT_MS_MIN <= timeout_ms <= limits.SESSION_TIMEOUT_MS_MAX:
        raise BraidError(
            "INVALID_ARGUMENT",
            reason=f"session time-out {timeout_ms} ms is not {limits.SESSION_TIMEOUT_MS_MIN} to {limits.SESSION_TIMEOUT_MS_MAX}",
        )
    return timeout_ms / 1000
