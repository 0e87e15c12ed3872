"""Groups as published clients know them: a SUBSCRIBE makes the connection a member until it closes, and assigns nothing.

A group that has never committed is known all the same after a SUBSCRIBE. It has nothing that could be lost, so it lives in
memory: as long as it has members, and after that until too many of its kind have come.
"""

from __future__ import annotations

from collections.abc import Iterable

from braidmq.base import limits


class Subscribers:
    """Connections and their addresses, for each topic id and group name."""

    def __init__(self, left_max: int = limits.GROUPS_WITHOUT_OFFSETS_MAX) -> None:
        self._members: dict[tuple[int, str], dict[object, str]] = {}
        self._left: dict[tuple[int, str], None] = {}
        """Groups without members, the one that was left first in front."""
        self._left_max = left_max
        self._topics: dict[str, set[int]] = {}

    def __len__(self) -> int:
        return len(self._members)

    def has(self, topic_id: int, group: str) -> bool:
        return (topic_id, group) in self._members or (topic_id, group) in self._left

    def topics_of(self, group: str) -> set[int]:
        return self._topics.get(group, set())

    def all(self) -> Iterable[tuple[int, str]]:
        return (*self._members, *self._left)

    def addresses(self, topic_id: int, group: str) -> list[str]:
        return list(self._members.get((topic_id, group), {}).values())

    def join(self, topic_id: int, group: str, member: object, address: str) -> None:
        self._left.pop((topic_id, group), None)
        self._members.setdefault((topic_id, group), {})[member] = address
        self._topics.setdefault(group, set()).add(topic_id)

    def remember(self, topic_id: int, group: str) -> None:
        """Know the group although nobody subscribed."""
        if (topic_id, group) not in self._members:
            self._topics.setdefault(group, set()).add(topic_id)
            self._leave_behind((topic_id, group))

    def leave(self, topic_id: int, group: str, member: object) -> None:
        members = self._members.get((topic_id, group))
        if members is not None and members.pop(member, None) is not None and not members:
            del self._members[topic_id, group]
            self._leave_behind((topic_id, group))

    def _leave_behind(self, key: tuple[int, str]) -> None:
        self._left.pop(key, None)
        self._left[key] = None
        if len(self._left) > self._left_max:
            self._drop(next(iter(self._left)))

    def remove(self, topic_id: int, group: str) -> bool:
        """Forget the group, members and all; they are strangers until they subscribe again."""
        known = self.has(topic_id, group)
        if known:
            self._drop((topic_id, group))
        return known

    def forget_topic(self, topic_id: int) -> None:
        for key in [key for key in self.all() if key[0] == topic_id]:
            self._drop(key)

    def _drop(self, key: tuple[int, str]) -> None:
        self._members.pop(key, None)
        self._left.pop(key, None)
        topics = self._topics[key[1]]
        topics.discard(key[0])
        if not topics:
            del self._topics[key[1]]
