"""Access lists, as a state machine: for a topic or a pattern of topics, whether it is public, and who else may reach it.

An ACL widens what roles grant, and takes a topic out of the default that topics without one share (`auth_default_public`).

A name that is no pattern is meant literally. In a pattern

* `*` stands for any run of characters, also across `/`: `orders*`, `orders/*`, `*`;
* a level that is `+` alone stands for one level, whatever it holds: `orders/+/new`;
* a last level that is `#` stands for all levels that are left, also for none: `orders/#` covers `orders`.

`+` and `#` anywhere else mean themselves. Of the ACLs that fit a topic exactly one counts: the one of its very name, else the most
specific pattern. That is the one with most characters that mean themselves, then the one with fewest wildcards, then
the first in alphabetical order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import re2

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.security.account_names import check_acl_topic, check_role, check_user, distinct


@dataclass(frozen=True)
class Acl:
    topic: str
    """Name or pattern."""
    public: bool
    users: tuple[str, ...]
    roles: tuple[str, ...]

    @cached_property
    def user_set(self) -> frozenset[str]:
        return frozenset(self.users)

    @cached_property
    def role_set(self) -> frozenset[str]:
        return frozenset(self.roles)

    def names(self, user: str, roles: Iterable[str]) -> bool:
        """Whether the list holds the user or one of the roles."""
        return user in self.user_set or not self.role_set.isdisjoint(roles)


class TopicPattern:
    """A pattern, compiled. Matching takes time linear in the topic's name, whatever the pattern."""

    def __init__(self, text: str) -> None:
        self.text = text
        parts: list[str] = []
        self._literal = self._wildcards = 0
        levels = text.split("/")
        for number, level in enumerate(levels):
            if level == "#" and number == len(levels) - 1:
                parts.append("(?:/.*)?" if number else ".*")
                self._wildcards += 1
                continue
            parts.append("/" if number else "")
            self._literal += 1 if number else 0
            if level == "+":
                parts.append("[^/]*")
                self._wildcards += 1
                continue
            pieces = level.split("*")
            self._wildcards += len(pieces) - 1
            self._literal += sum(map(len, pieces))
            parts.append(".*".join(map(re2.escape, pieces)))
        self._compiled = re2.compile("(?s)" + "".join(parts))

    @property
    def rank(self) -> tuple[int, int, str]:
        """Sorts the most specific first."""
        return -self._literal, self._wildcards, self.text

    def matches(self, topic: str) -> bool:
        return self._compiled.fullmatch(topic) is not None


def is_pattern(topic: str) -> bool:
    levels = topic.split("/")
    return "*" in topic or "+" in levels or levels[-1] == "#"


class AclTable:
    def __init__(self, acls_max: int = limits.ACLS_MAX, patterns_max: int = limits.ACL_PATTERNS_MAX) -> None:
        self._acls_max = acls_max
        self._patterns_max = patterns_max
        self._acls: dict[str, Acl] = {}
        self._patterns: list[TopicPattern] = []
        """The most specific first."""
        self._found: dict[str, Acl | None] = {}
        """What `covering` answered, until something changes."""
        self.version = 0
        """Grows with every change, so that a decision made earlier can be told from a current one."""

    def __len__(self) -> int:
        return len(self._acls)

    def get(self, topic: str) -> Acl | None:
        """The ACL that was set for exactly this name or pattern."""
        return self._acls.get(topic)

    def all(self) -> list[Acl]:
        return [self._acls[topic] for topic in sorted(self._acls)]

    def naming(self, role: str) -> str | None:
        """A topic or pattern whose ACL names the role, if there is one."""
        return next((acl.topic for acl in self._acls.values() if role in acl.roles), None)

    def covering(self, topic: str) -> Acl | None:
        """The one ACL that counts for a topic."""
        own = self._acls.get(topic)
        if own is not None or not self._patterns:
            return own
        if topic in self._found:
            return self._found[topic]
        fitting = next((pattern for pattern in self._patterns if pattern.matches(topic)), None)
        found = None if fitting is None else self._acls[fitting.text]
        if len(self._found) >= limits.ACL_CACHE_TOPICS_MAX:
            self._found.clear()
        self._found[topic] = found
        return found

    # --- commands

    def set(self, topic: str, public: bool, users: Iterable[str], roles: Iterable[str]) -> list[Any]:
        check_acl_topic(topic)
        user_names = distinct("users", users, limits.ACL_NAMES_MAX)
        role_names = distinct("roles", roles, limits.ACL_NAMES_MAX)
        for name in user_names:
            check_user(name)
        for name in role_names:
            check_role(name)
        return ["set", topic, public, user_names, role_names, self._acls_max, self._patterns_max]

    @staticmethod
    def delete(topic: str) -> list[Any]:
        return ["delete", topic]

    def apply(self, command: list[Any]) -> Acl | None:
        """`set` returns the ACL, `delete` the one that is gone, if there was one."""
        match command:
            case ["set", str(topic), bool(public), list(users), list(roles), int(acls_max), int(patterns_max)]:
                if topic not in self._acls:
                    self._check_room(topic, acls_max, patterns_max)
                return self._insert(Acl(topic, public, tuple(users), tuple(roles)))
            case ["delete", str(topic)]:
                gone = self._acls.pop(topic, None)
                if gone is not None:
                    self._patterns = [pattern for pattern in self._patterns if pattern.text != topic]
                    self._changed()
                return gone
        raise AssertionError(f"unknown ACL command {command[:1]}")

    def _check_room(self, topic: str, acls_max: int, patterns_max: int) -> None:
        if len(self._acls) >= acls_max:
            raise BraidError("ACCOUNT_LIMIT", limit=acls_max, what="ACLs")
        if is_pattern(topic) and len(self._patterns) >= patterns_max:
            raise BraidError("ACCOUNT_LIMIT", limit=patterns_max, what="ACLs of patterns")

    def _insert(self, acl: Acl) -> Acl:
        if acl.topic not in self._acls and is_pattern(acl.topic):
            self._patterns.append(TopicPattern(acl.topic))
            self._patterns.sort(key=lambda pattern: pattern.rank)
        self._acls[acl.topic] = acl
        self._changed()
        return acl

    def _changed(self) -> None:
        self._found.clear()
        self.version += 1

    # --- snapshots

    def snapshot(self) -> Any:
        return [[acl.topic, acl.public, list(acl.users), list(acl.roles)] for acl in self._acls.values()]

    def restore(self, document: Any) -> None:
        self._acls, self._patterns = {}, []
        for topic, public, users, roles in document:
            self._insert(Acl(topic, public, tuple(users), tuple(roles)))
        self._changed()
