"""Durable subscribers, as a state machine: who they are and what they asked for.

A subscriber is known by its name (BlipMQ's client_id) and belongs to whoever created it. It has filters; how far it came in each
topic is kept elsewhere (`positions.py`). With each filter goes the id that the next topic would have had: topics that came later
are read from their beginning, so that nothing is missed between a topic's first record and the moment somebody looks.

`parked_ms` says since when nobody is connected for it. After a crash it may be unknown; then it counts from the start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from braidmq.base import limits
from braidmq.base.errors import BraidError


@dataclass(slots=True)
class DurableFilter:
    """One filter of a durable subscriber."""

    topics_from: int
    """Topics with this id or a later one came after it."""
    options: dict[str, str]
    """What else was asked for, as the protocol names it."""


@dataclass(slots=True)
class DurableSubscriber:
    name: str
    owner: str
    """Whose it is; nobody else may use the name."""
    expiry_ms: int
    """How long it is kept while nobody is connected for it."""
    parked_ms: int = 0
    """Since when nobody is; 0 while somebody is, or when a crash left that open."""
    filters: dict[str, DurableFilter] = field(default_factory=dict)


class SubscriberTable:
    def __init__(self, subscribers_max: int = limits.DURABLE_SUBSCRIBERS_MAX) -> None:
        self._subscribers: dict[str, DurableSubscriber] = {}
        self._subscribers_max = subscribers_max

    def __len__(self) -> int:
        return len(self._subscribers)

    def get(self, name: str) -> DurableSubscriber | None:
        return self._subscribers.get(name)

    def all(self) -> list[DurableSubscriber]:
        return list(self._subscribers.values())

    # --- commands

    def subscribe(
        self, name: str, owner: str, text: str, topics_from: int, options: dict[str, str], expiry_ms: int
    ) -> list[Any]:
        """Add a filter, or give it other options. The command carries the limits of its day."""
        most = [self._subscribers_max, limits.SUBSCRIBER_FILTERS_MAX]
        return ["subscribe", name, owner, text, topics_from, dict(options), expiry_ms, most]

    @staticmethod
    def unsubscribe(name: str, text: str) -> list[Any]:
        """Take a filter away; the subscriber goes with its last one."""
        return ["unsubscribe", name, text]

    @staticmethod
    def park(name: str, now_ms: int) -> list[Any]:
        """Note since when nobody is connected; 0 when somebody is."""
        return ["park", name, now_ms]

    @staticmethod
    def remove(name: str) -> list[Any]:
        return ["remove", name]

    def apply(self, command: list[Any]) -> Any:
        """Carry out one command.

        `subscribe` returns the subscriber; `unsubscribe` whether the filter was there; `remove` whether there was anybody.
        """
        match command:
            case ["subscribe", str(name), str(owner), str(text), int(topics_from), dict(options), int(expiry_ms), [most, filters]]:
                return self._subscribe(name, owner, text, DurableFilter(topics_from, options), expiry_ms, most, filters)
            case ["unsubscribe", str(name), str(text)]:
                return self._unsubscribe(name, text)
            case ["park", str(name), int(now_ms)]:
                known = self._subscribers.get(name)
                if known is not None:
                    known.parked_ms = now_ms
                return None
            case ["remove", str(name)]:
                return self._subscribers.pop(name, None) is not None
        raise AssertionError(f"unknown subscriber command {command[:1]}")

    def _subscribe(
        self, name: str, owner: str, text: str, wanted: DurableFilter, expiry_ms: int, most: int, filters_most: int
    ) -> DurableSubscriber:
        known = self._subscribers.get(name)
        if known is None:
            if len(self._subscribers) >= most:
                raise BraidError("SUBSCRIBER_LIMIT", what="durable subscribers", limit=most)
            known = self._subscribers[name] = DurableSubscriber(name, owner, expiry_ms)
        if known.owner != owner:
            raise BraidError("CLIENT_OF_ANOTHER", client=name)
        before = known.filters.get(text)
        if before is None and len(known.filters) >= filters_most:
            raise BraidError("SUBSCRIBER_LIMIT", what="filters of a subscriber", limit=filters_most)
        if before is not None:
            # It goes on where it is: only what is asked for may differ.
            wanted.topics_from = before.topics_from
        known.filters[text] = wanted
        known.expiry_ms = expiry_ms
        known.parked_ms = 0
        return known

    def _unsubscribe(self, name: str, text: str) -> bool:
        known = self._subscribers.get(name)
        if known is None or known.filters.pop(text, None) is None:
            return False
        if not known.filters:
            del self._subscribers[name]
        return True

    # --- snapshots

    def snapshot(self) -> Any:
        return [
            [s.name, s.owner, s.expiry_ms, s.parked_ms, [[text, f.topics_from, f.options] for text, f in s.filters.items()]]
            for s in self._subscribers.values()
        ]

    def restore(self, document: Any) -> None:
        for name, owner, expiry_ms, parked_ms, filters in document:
            kept = {text: DurableFilter(topics_from, options) for text, topics_from, options in filters}
            self._subscribers[name] = DurableSubscriber(name, owner, expiry_ms, parked_ms, kept)
