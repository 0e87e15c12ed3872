"""One group whose members share its partitions: who lives, who owns what, and how the shares change.

A member joins with its topics and is answered with a generation and its share. Any change (a member joins, leaves or dies,
a topic comes, goes or grows) begins a rebalance:

1. Members learn it from their next heartbeat. Until they rejoin they keep their shares, so that they can commit what they
   have read; a member that rejoins gives its share up.
2. When all live members have rejoined, or time is up, the group *settles*: the next generation begins, the shares of the
   one before it are void, and every waiting join is answered with a new share.
3. Members that were late are fenced: their heartbeats and commits are refused until they rejoin, which is a change again.

So within a generation a partition has one owner, and a commit is taken only from the owner of a generation that is
still the current one. Commits that are on their way to the disk when a group could settle are waited for: the new owner
finds them.

Nothing here reads a clock, waits or touches the disk: time is passed in, and answers go to callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.assignment import Assignment, assign


@dataclass(frozen=True, slots=True)
class Joined:
    """What a member is told: its id, the generation, and its share."""

    member: str
    generation: int
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Heartbeat:
    generation: int
    rebalance: bool
    """Whether the member has to join again."""


Answer = Callable[[Joined | BraidError], None]


@dataclass(slots=True)
class Member:
    id: str
    number: int
    """Members are served in the order in which they first joined."""
    address: str
    topics: frozenset[str]
    session_s: float
    deadline: float
    """When it is dead, unless it is heard of before."""
    owner: object = None
    """The connection it was last heard on."""
    generation: int = 0
    """The generation its share belongs to; 0 before the first one."""
    share: Assignment = field(default_factory=dict)
    waiting: Answer | None = None
    """Where the answer to its join goes, while it waits for one."""


class MemberGroup:
    def __init__(self, name: str, partitions_of: Callable[[str], int], next_generation: Callable[[], int]) -> None:
        self.name = name
        self._partitions_of = partitions_of
        self._next_generation = next_generation
        self.members: dict[str, Member] = {}
        self.watched: set[str] = set()
        """Topics whose changes the group is told of."""
        self.strategy = ""
        self.generation = 0
        self._divided: dict[str, int] = {}
        """Partitions of each topic in this generation."""
        self._deadline: float | None = None
        """When a rebalance waits no longer; None while there is none."""
        self._closing = False
        """Whether nothing but commits on their way keeps the group from settling."""
        self._commits = 0
        self.next_check = 0.0
        """No deadline of the group is earlier."""

    # --- what it is

    @property
    def idle(self) -> bool:
        """Whether nothing would be lost if the group were forgotten."""
        return not self.members and not self._commits

    @property
    def rebalancing(self) -> bool:
        return self._deadline is not None

    def topics(self) -> set[str]:
        return set().union(*(member.topics for member in self.members.values()))

    def member(self, member_id: str) -> Member:
        found = self.members.get(member_id)
        if found is None:
            raise BraidError("UNKNOWN_MEMBER", member=member_id, group=self.name)
        return found

    # --- coming and going

    def join(self, member: Member, strategy: str, now: float, answer: Answer) -> None:
        """Let a member in, new or again; `answer` is called once, perhaps before this returns."""
        if strategy != self.strategy and any(other != member.id for other in self.members):
            raise BraidError("INVALID_ARGUMENT", reason=f"group {self.name} divides by {self.strategy}, not by {strategy}")
        known = self.members.get(member.id)
        if known is None and len(self.members) >= limits.GROUP_MEMBERS_MAX:
            raise BraidError("GROUP_LIMIT", what=f"group {self.name}", limit=limits.GROUP_MEMBERS_MAX, things="members")
        if known is not None:
            same = known.topics == member.topics and strategy == self.strategy
            known.topics, known.session_s, known.address = member.topics, member.session_s, member.address
            known.deadline = now + known.session_s
            if same and not self.rebalancing and known.generation == self.generation:
                # Its last answer was lost on the way.
                answer(Joined(known.id, known.generation, known.share))
                return
            if known.waiting is not None:
                known.waiting(self._fenced(known, "it joined again elsewhere"))
            member = known
        self.members[member.id] = member
        self.strategy = strategy
        self.next_check = min(self.next_check, member.deadline)
        member.waiting = answer
        self._begin(now)
        self._settle_if_ready(now)

    def remove(self, member_id: str, now: float) -> Member:
        """A member left or died; the others share what it had."""
        gone = self.member(member_id)
        del self.members[member_id]
        self._turn_away(gone)
        if self.members:
            if gone.share:
                self._begin(now)
            self._settle_if_ready(now)
        else:
            self._deadline = None
            self._closing = False
        return gone

    def disband(self) -> list[Member]:
        """Remove all members at once; returns them."""
        gone = list(self.members.values())
        self.members.clear()
        self._deadline = None
        self._closing = False
        for member in gone:
            self._turn_away(member)
        return gone

    def _turn_away(self, member: Member) -> None:
        if member.waiting is not None:
            member.waiting(BraidError("UNKNOWN_MEMBER", member=member.id, group=self.name))
            member.waiting = None

    def owner_lost(self, member: Member, now: float) -> None:
        """The connection of a member that waits for nothing is gone: it has little time to come back."""
        member.deadline = min(member.deadline, now + limits.MEMBER_RECONNECT_SECONDS)
        self.next_check = min(self.next_check, member.deadline)

    def topics_changed(self, now: float) -> None:
        """Divide anew when the topics are no longer what was divided."""
        if self.members and not self.rebalancing and self._partitions() != self._divided:
            self._begin(now)

    def expire(self, now: float) -> list[Member]:
        """Remove members whose time is over, and end a rebalance whose time is."""
        dead = [member for member in self.members.values() if member.waiting is None and member.deadline <= now]
        for member in dead:
            self.remove(member.id, now)
        if self._deadline is not None and self._deadline <= now:
            if any(member.waiting is not None for member in self.members.values()):
                self._closing = True
                self._settle_if_ready(now)
            else:
                # Nobody has come yet, so nobody waits: the old shares may as well last a little longer.
                self._deadline = now + self._patience_s()
        deadlines = [member.deadline if member.waiting is None else now + member.session_s for member in self.members.values()]
        if self._deadline is not None:
            deadlines.append(self._deadline)
        self.next_check = min(deadlines, default=now)
        return dead

    # --- rebalancing

    def _patience_s(self) -> float:
        return min(limits.REBALANCE_SECONDS_MAX, max((member.session_s for member in self.members.values()), default=0.0))

    def _begin(self, now: float) -> None:
        if self._deadline is None:
            self._deadline = now + self._patience_s()
            self.next_check = min(self.next_check, self._deadline)

    def _settle_if_ready(self, now: float) -> None:
        if self._deadline is None:
            return
        if all(member.waiting is not None for member in self.members.values()):
            self._closing = True
        if self._closing and not self._commits:
            self._settle(now)

    def _partitions(self) -> dict[str, int]:
        return {topic: count for topic in self.topics() if (count := self._partitions_of(topic))}

    def _settle(self, now: float) -> None:
        self._deadline = None
        self._closing = False
        self.generation = self._next_generation()
        self._divided = self._partitions()
        present = [member for member in self.members.values() if member.waiting is not None]
        present.sort(key=lambda member: member.number)
        shares = assign(self.strategy, [(member.id, member.topics) for member in present], self._divided)
        for member in self.members.values():
            member.share = shares.get(member.id, {})
        for member in present:
            member.generation = self.generation
            member.deadline = now + member.session_s
            answer, member.waiting = member.waiting, None
            assert answer is not None
            answer(Joined(member.id, self.generation, member.share))

    # --- living

    def heartbeat(self, member_id: str, generation: int, now: float) -> Heartbeat:
        member = self.member(member_id)
        self._check_generation(member, generation)
        member.deadline = now + member.session_s
        return Heartbeat(self.generation, self.rebalancing)

    def check_commit(self, member_id: str, generation: int, partitions: Iterable[tuple[str, int]], now: float) -> None:
        """Refuse a commit from anybody but the owner of all these partitions; it counts as a sign of life."""
        member = self.member(member_id)
        self._check_generation(member, generation)
        if member.waiting is not None or self._closing:
            raise self._fenced(member, "the group is being divided anew")
        owned = {topic: set(numbers) for topic, numbers in member.share.items()}
        for topic, partition in partitions:
            if partition not in owned.get(topic, ()):
                raise self._fenced(member, f"{topic}/{partition} is not assigned to it")
        member.deadline = now + member.session_s

    def commit_begins(self) -> None:
        self._commits += 1

    def commit_ends(self, now: float) -> None:
        self._commits -= 1
        self._settle_if_ready(now)

    def _check_generation(self, member: Member, generation: int) -> None:
        if not generation == member.generation == self.generation:
            raise self._fenced(member, f"its generation {generation} is not the current one, {self.generation}")

    def _fenced(self, member: Member, reason: str) -> BraidError:
        return BraidError("FENCED_MEMBER", member=member.id, group=self.name, reason=reason)
