"""QoS 1 messages that publishers sent again: acknowledged, not stored twice.

A message is known by who sent it, the topic and the message_id, for as long as `blipmq_dedup_window_ms` says. It is acknowledged
again when the first one is durable, not before. Kept in memory: after a restart a repeated message is stored again, as QoS 1
allows.
"""

from __future__ import annotations

from collections import OrderedDict

from braidmq.base import limits
from braidmq.broker.staged import StagedBatch

Key = tuple[object, str, str]
"""Who sent it (a user, or a connection without one), topic, message_id."""


class Dedup:
    def __init__(self, window_ms: int, remembered_max: int = limits.BLIPMQ_DEDUP_REMEMBERED_MAX) -> None:
        self._window_ms = window_ms
        self._remembered_max = remembered_max
        self._known: OrderedDict[Key, tuple[int, StagedBatch]] = OrderedDict()
        """Until when, and where it was stored; in the order in which they came."""

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: Key, now_ms: int) -> StagedBatch | None:
        """The same message, if it was stored within the window."""
        while self._known:
            until_ms, _ = next(iter(self._known.values()))
            if until_ms > now_ms:
                break
            self._known.popitem(last=False)
        found = self._known.get(key)
        return None if found is None or found[1].log.failure is not None else found[1]

    def remember(self, key: Key, staged: StagedBatch, now_ms: int) -> None:
        self._known.pop(key, None)
        self._known[key] = (now_ms + self._window_ms, staged)
        if len(self._known) > self._remembered_max:
            self._known.popitem(last=False)

    def forget(self, key: Key) -> None:
        """It was not stored after all."""
        self._known.pop(key, None)
