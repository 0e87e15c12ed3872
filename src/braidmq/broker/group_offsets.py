"""The committed offsets of all groups, as a state machine: what is known is what the commands in the offsets journal say.

A group belongs to a topic, so the same name on two topics is two groups. A committed offset is the next one to read; it is
stored as given and may go back. One command can move many offsets, all or none of them; with the number of a transaction
it moves them once, however often it is submitted.

The machine also counts the generations of group members that were set aside for use, so that none is ever given out twice.

In a cluster it says as well which node serves a group that is pushed (`push/serving.py`). A node that takes a group gets a number
that nobody had before; offsets that bear another one are passed over, because whoever sends them was replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from braidmq.base import limits
from braidmq.base.json_pieces import Deferred

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_NOTHING: Final[Mapping[int, int]] = MappingProxyType({})


class Server(NamedTuple):
    """Who serves a group."""

    node: str
    term: int
    """Of all services of all groups, the number of this one."""


NOBODY: Final = Server("", 0)


class GroupOffsets:
    def __init__(self, transactions_remembered: int = limits.GROUP_TRANSACTIONS_REMEMBERED) -> None:
        self._groups: dict[tuple[int, str], dict[int, int]] = {}
        self._topics: dict[str, set[int]] = {}
        """For each name, the topics that have a group of it."""
        self._names: dict[int, set[str]] = {}
        """For each topic, the names of its groups."""
        self._transactions: dict[int, None] = {}
        """Applied, in order."""
        self._transactions_remembered = transactions_remembered
        self.generations = 0
        """Generations up to this one may have been given out."""
        self._servers: dict[str, Server] = {}
        self._terms = 0
        """Terms up to this one were given out."""
        self.on_served: Callable[[str, Server, bool], None] | None = None
        """Told of every group that got another server, and whether the one before gave it away."""

    def __len__(self) -> int:
        return len(self._groups)

    def has(self, topic_id: int, group: str) -> bool:
        return (topic_id, group) in self._groups

    def topics_of(self, group: str) -> set[int]:
        return self._topics.get(group, set())

    def all(self) -> Iterable[tuple[int, str]]:
        return self._groups.keys()

    def offsets(self, topic_id: int, group: str) -> Mapping[int, int]:
        """Partition to offset, of those that were committed."""
        return self._groups.get((topic_id, group), _NOTHING)

    def committed(self, topic_id: int, group: str, partition: int) -> int | None:
        return self.offsets(topic_id, group).get(partition)

    def server(self, group: str) -> Server:
        """Who serves a group; NOBODY where nobody does."""
        return self._servers.get(group, NOBODY)

    def servers(self) -> Mapping[str, Server]:
        return self._servers

    # --- commands

    @staticmethod
    def commit(topic_id: int, group: str, partition: int, offset: int) -> list[Any]:
        return ["commit", topic_id, group, partition, offset]

    @staticmethod
    def commit_many(offsets: Iterable[tuple[int, str, int, int]], transaction: int | None = None) -> list[Any]:
        """`offsets` are (topic id, group, partition, offset)."""
        return ["commit_many", [list(row) for row in offsets], transaction]

    @staticmethod
    def commit_served(offsets: Iterable[tuple[int, str, int, int]], terms: Mapping[str, int]) -> list[Any]:
        """As `commit_many`, of groups that this node serves, each with its term."""
        return ["commit_served", [list(row) for row in offsets], dict(terms)]

    @staticmethod
    def serve(group: str, node: str, before: int) -> list[Any]:
        """Let a node serve a group, if the term of its last server is still `before`."""
        return ["serve", group, node, before]

    @staticmethod
    def give(group: str, node: str, before: int) -> list[Any]:
        """As `serve`, by the server that the group had: nothing was lost with it, and the group goes on as it is."""
        return ["give", group, node, before]

    @staticmethod
    def unserve(group: str, term: int) -> list[Any]:
        """Let nobody serve a group any more, if its term is still that."""
        return ["unserve", group, term]

    @staticmethod
    def delete(topic_id: int | None, group: str) -> list[Any]:
        """None stands for every topic that has the group."""
        return ["delete", topic_id, group]

    @staticmethod
    def forget_topic(topic_id: int) -> list[Any]:
        return ["forget_topic", topic_id]

    @staticmethod
    def reserve_generations(count: int) -> list[Any]:
        return ["reserve_generations", count]

    def apply(self, command: list[Any]) -> Any:
        """Carry out one command.

        `commit_many` returns whether it was applied (False for a transaction that was applied before), `delete` the topics
        that had the group, `reserve_generations` the first of them, `serve`, `give` and `unserve` who serves the group from then
        on.
        """
        match command:
            case ["commit", int(topic_id), str(group), int(partition), int(offset)]:
                self._set(topic_id, group, partition, offset)
            case ["commit_many", list(rows), transaction]:
                return self._commit_many(rows, transaction)
            case ["commit_served", list(rows), dict(terms)]:
                return self._commit_many([row for row in rows if self.server(row[1]).term == terms[row[1]]], None)
            case ["serve" | "give", str(group), str(node), int(before)]:
                if self.server(group).term == before:
                    self._terms += 1
                    self._set_server(group, Server(node, self._terms), given=command[0] == "give")
                return self.server(group)
            case ["unserve", str(group), int(term)]:
                if self.server(group).term == term:
                    self._set_server(group, NOBODY)
                return self.server(group)
            case ["delete", int(topic_id), str(group)]:
                return [topic_id] if self._remove(topic_id, group) else []
            case ["delete", None, str(group)]:
                gone = sorted(self.topics_of(group))
                for topic_id in gone:
                    self._remove(topic_id, group)
                return gone
            case ["forget_topic", int(topic_id)]:
                for group in list(self._names.get(topic_id, ())):
                    self._remove(topic_id, group)
            case ["reserve_generations", int(count)]:
                self.generations += count
                return self.generations - count + 1
            case _:
                raise AssertionError(f"unknown group command {command[:1]}")
        return None

    def _commit_many(self, rows: list[list[Any]], transaction: int | None) -> bool:
        if transaction is not None:
            if transaction in self._transactions:
                return False
            self._transactions[transaction] = None
            if len(self._transactions) > self._transactions_remembered:
                del self._transactions[next(iter(self._transactions))]
        for topic_id, group, partition, offset in rows:
            self._set(topic_id, group, partition, offset)
        return True

    def _set_server(self, group: str, server: Server, *, given: bool = False) -> None:
        if server.node:
            self._servers[group] = server
        else:
            self._servers.pop(group, None)
        if self.on_served is not None:
            self.on_served(group, server, given)

    def _set(self, topic_id: int, group: str, partition: int, offset: int) -> None:
        offsets = self._groups.get((topic_id, group))
        if offsets is None:
            offsets = self._groups[topic_id, group] = {}
            self._topics.setdefault(group, set()).add(topic_id)
            self._names.setdefault(topic_id, set()).add(group)
        offsets[partition] = offset

    def _remove(self, topic_id: int, group: str) -> bool:
        if self._groups.pop((topic_id, group), None) is None:
            return False
        _discard(self._topics, group, topic_id)
        _discard(self._names, topic_id, group)
        return True

    def keep_topics(self, is_live: Callable[[int], bool]) -> None:
        """Drop groups of topics that are gone: a crash may have come between the deletion of a topic and of its groups.

        Ids are never used again, so every start comes to the same result and no command is needed.
        """
        for topic_id in [known for known in self._names if not is_live(known)]:
            self.apply(self.forget_topic(topic_id))

    # --- snapshots

    def snapshot(self) -> Any:
        groups = [(place, offsets.copy()) for place, offsets in self._groups.items()]
        return {
            "groups": Deferred(lambda: ([*place, list(offsets.items())] for place, offsets in groups)),
            "transactions": list(self._transactions),
            "generations": self.generations,
            "servers": [[group, *server] for group, server in self._servers.items()],
            "terms": self._terms,
        }

    def restore(self, document: Any) -> None:
        if isinstance(document, list):
            # Version 0.1 kept nothing but the offsets.
            document = {"groups": document, "transactions": [], "generations": 0}
        for topic_id, group, offsets in document["groups"]:
            for partition, offset in offsets:
                self._set(topic_id, group, partition, offset)
        self._transactions = dict.fromkeys(document["transactions"])
        self.generations = document["generations"]
        # Version 0.1 knew of no servers.
        self._servers = {group: Server(node, term) for group, node, term in document.get("servers", ())}
        self._terms = document.get("terms", 0)


def _discard(index: dict[_Key, set[_Value]], key: _Key, value: _Value) -> None:
    values = index[key]
    values.discard(value)
    if not values:
        del index[key]
