"""Consumer groups: durable offsets, as a state machine, and the members that are connected now.

A group belongs to a topic, so the same name on two topics is two groups. A committed offset is the next one to read; it is
stored as given and may go back. Members live in memory only: a member is a connection.
"""

from __future__ import annotations

from typing import Any

from braidmq.base.errors import BraidError


class Group:
    __slots__ = ("members", "name", "offsets", "topic_id")

    def __init__(self, topic_id: int, name: str) -> None:
        self.topic_id = topic_id
        self.name = name
        self.offsets: dict[int, int] = {}
        self.members: dict[object, str] = {}
        """Connection to its address."""


class GroupTable:
    def __init__(self) -> None:
        self._groups: dict[tuple[int, str], Group] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, topic_id: int, name: str) -> Group | None:
        return self._groups.get((topic_id, name))

    def all(self) -> list[Group]:
        return list(self._groups.values())

    # --- commands

    @staticmethod
    def commit(topic_id: int, group: str, partition: int, offset: int) -> list[Any]:
        return ["commit", topic_id, group, partition, offset]

    @staticmethod
    def forget_topic(topic_id: int) -> list[Any]:
        return ["forget_topic", topic_id]

    def apply(self, command: list[Any]) -> None:
        match command:
            case ["commit", int(topic_id), str(name), int(partition), int(offset)]:
                self._ensure(topic_id, name).offsets[partition] = offset
            case ["forget_topic", int(topic_id)]:
                for key in [key for key in self._groups if key[0] == topic_id]:
                    del self._groups[key]
            case _:
                raise AssertionError(f"unknown group command {command[:1]}")

    def _ensure(self, topic_id: int, name: str) -> Group:
        key = (topic_id, name)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(topic_id, name)
        return group

    # --- members

    def join(self, topic_id: int, name: str, member: object, address: str) -> Group:
        group = self._ensure(topic_id, name)
        group.members[member] = address
        return group

    def leave(self, topic_id: int, name: str, member: object) -> None:
        group = self._groups.get((topic_id, name))
        if group is not None:
            group.members.pop(member, None)
            if not group.members and not group.offsets:
                del self._groups[topic_id, name]

    def committed(self, topic_id: int, name: str, partition: int) -> int | None:
        group = self._groups.get((topic_id, name))
        return None if group is None else group.offsets.get(partition)

    # --- snapshots

    def snapshot(self) -> Any:
        return [[g.topic_id, g.name, list(g.offsets.items())] for g in self._groups.values() if g.offsets]

    def restore(self, document: Any) -> None:
        for topic_id, name, offsets in document:
            self._ensure(topic_id, name).offsets.update((int(p), int(o)) for p, o in offsets)


def start_offset(mode: str, oldest: int, newest: int, committed: int | None) -> int:
    """Where a SUBSCRIBE with `mode` begins to read."""
    match mode:
        case "earliest":
            return oldest
        case "latest" | "":
            return newest
        case "commit" | "committed":
            return oldest if committed is None else committed
    raise BraidError("INVALID_MODE", mode=mode)
