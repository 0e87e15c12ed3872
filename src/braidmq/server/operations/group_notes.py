"""What the audit trail says about groups that come into being and offsets that move.

Committing is what consumers do all day, so an event for each commit would make the trail a second offsets journal, and drown what
an auditor looks for. The trail says once for each connection, topic and group that somebody commits; where a group stands is
known to the group itself. What is not everyday is written down each time: a group that begins, and a group that moves back, which
makes its consumers read again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType

from braidmq.server.operations.calling import Caller, note

Place = tuple[str, int, int]
"""Topic, partition, offset."""


@contextmanager
def noted_groups(caller: Caller, group: str, topics: Iterable[str], action: str) -> Iterator[None]:
    """Write down which groups begin with what the block does, if it succeeds."""
    is_new = caller.broker.coordinator.is_new
    new = [topic for topic in dict.fromkeys(topics) if group and is_new(topic, group)]
    yield
    for topic in new:
        note(caller, "group.create", f"{topic}:{group}", action)


class NotedCommit:
    """The same for a commit of offsets, and that somebody committed. A class, because commits are frequent and it is cheaper."""

    __slots__ = ("_action", "_back", "_caller", "_group", "_new", "_places")

    def __init__(self, caller: Caller, group: str, places: Collection[Place], action: str) -> None:
        self._caller = caller
        self._group = group
        self._places = places
        self._action = action

    def __enter__(self) -> None:
        coordinator, group = self._caller.broker.coordinator, self._group
        self._new: dict[str, None] = {}
        self._back: list[tuple[str, int, int, int]] = []
        for topic, partition, offset in self._places:
            before = coordinator.position(topic, group, partition)
            if before is None:
                if coordinator.is_new(topic, group):
                    self._new[topic] = None
            elif offset < before:
                self._back.append((topic, partition, before, offset))

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            return
        caller, group, action = self._caller, self._group, self._action
        for topic in self._new:
            note(caller, "group.create", f"{topic}:{group}", action)
        for topic, partition, before, after in self._back:
            note_move(caller, topic, group, partition, before, after, action)
        for topic, _, _ in self._places:
            resource = f"{topic}:{group}"
            if caller.first_commit(resource):
                note(caller, "offset.commit", resource, action)


def note_move(caller: Caller, topic: str, group: str, partition: int, before: int | None, after: int, action: str) -> None:
    """Write down that a group was moved to another offset."""
    note(
        caller, "offset.reset", f"{topic}:{group}", action, partition=str(partition),
        before="" if before is None else str(before), after=str(after),
    )  # fmt: skip
