"""What one connection was sent and has not settled, by the ids that its client knows.

Ids belong to publishers, and two of them may use the same one. An Ack says nothing but an id. So that it never settles a message
its sender has not seen, an id is used on a connection for one message at a time, and for another one only when no more Acks can be
on their way for the first:

    under way   sent, and not settled; these count against the limit
    late        overdue, or refused for now: there is room for others, but the id stays taken until the message is settled, here or
                elsewhere. A late Ack is an Ack
    owed        copies that were sent before and got no Ack of their own, because the message was sent again, settled otherwise or
                forgotten. As long as an Ack may come for one (`until_s`) the id is not used for anything else; Acks that come for
                them are taken as that and settle nothing

Whoever sends every message id once, as most do, never notices any of this.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from braidmq.broker.push.feed import Feed


class Settling(Protocol):
    """Whoever wants to know what became of deliveries."""

    def acked(self, feed: Feed, offsets: Iterable[int]) -> None: ...

    def refused(self, feed: Feed, offset: int, code: int) -> None: ...

    def is_unsettled(self, feed: Feed, offset: int) -> bool:
        """Whether a delivery is not done with."""

    def moved(self) -> None:
        """Some were settled."""


Entry = tuple[Settling, "Feed", int]
"""Whose delivery it is, and where it lies."""


class Window:
    __slots__ = ("_ids", "_late", "_owed", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._ids: dict[bytes, Entry] = {}
        self._late: dict[bytes, Entry] = {}
        self._owed: dict[bytes, tuple[int, float]] = {}
        """How many copies, and until when their Acks may come."""

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def room(self) -> int:
        """How many more may be under way."""
        return max(0, self.limit - len(self._ids))

    # --- going out

    def fitting(self, ids: Sequence[bytes], now_s: float) -> int:
        """How many of these may go out for the first time, from the first on, before one has an id that is taken."""
        taken = self._ids
        if taken.keys().isdisjoint(ids) and not self._late and not self._owed and len(set(ids)) == len(ids):
            return len(ids)
        seen = set(taken)
        for index, own in enumerate(ids):
            if own in seen or self._late_one(own) is not None or self.free_at(own, now_s) is not None:
                return index
            seen.add(own)
        return len(ids)

    def may_repeat(self, own: bytes, place: Entry, now_s: float) -> bool:
        """Whether a delivery may go out once more: here it was before, or its id is nobody's."""
        if own in self._ids:
            return False
        late = self._late_one(own)
        return late == place if late is not None else self.free_at(own, now_s) is None

    def free_at(self, own: bytes, now_s: float) -> float | None:
        """Until when an id is taken for Acks of earlier copies; None when it is not."""
        owed = self._owed.get(own)
        if owed is None:
            return None
        if owed[1] <= now_s:
            del self._owed[own]
            return None
        return owed[1]

    def _late_one(self, own: bytes) -> Entry | None:
        """What is late under an id, unless it was settled meanwhile."""
        entry = self._late.get(own)
        if entry is not None and not entry[0].is_unsettled(entry[1], entry[2]):
            del self._late[own]
            return None
        return entry

    def sent(self, owner: Settling, feed: Feed, offsets: Iterable[int], ids: Sequence[bytes]) -> None:
        """Deliveries of `owner` went out."""
        self._ids.update(zip(ids, zip(repeat(owner), repeat(feed), offsets)))  # noqa: B905 - repeat has no end
        if self._late:
            for own in ids:
                self._late.pop(own, None)

    # --- coming back

    def find(self, own: bytes) -> Entry | None:
        """Whose delivery has this id, and where it lies."""
        return self._ids.get(own) or self._late.get(own)

    def take(self, own: bytes) -> Entry | None:
        """An Ack came for an id: whose delivery it is, which is under way no more."""
        return self._ids.pop(own, None) or self._take_copy(own)

    def _take_copy(self, own: bytes) -> Entry | None:
        self.copy_answered(own)
        return self._late.pop(own, None)

    def copy_answered(self, own: bytes) -> None:
        """An Ack came for a copy that was sent before."""
        copies, until_s = self._owed.get(own, (0, 0.0))
        if copies > 1:
            self._owed[own] = (copies - 1, until_s)
        else:
            self._owed.pop(own, None)

    def take_many(self, ids: Iterable[bytes]) -> dict[tuple[Settling, Feed], list[int]]:
        """Acks came; the offsets that they settle, by whose they are and which partition."""
        pop = self._ids.pop
        found: dict[tuple[Settling, Feed], list[int]] = {}
        whose: Settling | None = None
        which: Feed | None = None
        offsets: list[int] = []
        for own in ids:
            entry = pop(own, None)
            if entry is None and (self._owed or self._late):
                entry = self._take_copy(own)
            if entry is not None:
                owner, feed, offset = entry
                if owner is not whose or feed is not which:
                    whose, which = owner, feed
                    offsets = found.setdefault((owner, feed), [])
                offsets.append(offset)
        return found

    def set_aside(self, owner: Settling, places: Container[tuple[Feed, int]], until_s: float) -> None:
        """Some deliveries of `owner` are late; their Acks may come until then."""
        for own in [own for own, entry in self._ids.items() if entry[0] is owner and entry[1:] in places]:
            self._late[own] = self._ids.pop(own)
            self._owe(own, until_s)
        for own in list(self._late):
            self._late_one(own)

    def refused(self, own: bytes) -> None:
        """The receiver does not want a delivery now: it is late, and no Ack is on its way for it."""
        entry = self._ids.pop(own, None)
        if entry is not None:
            self._late[own] = entry
        else:
            self.copy_answered(own)

    def _owe(self, own: bytes, until_s: float) -> None:
        copies, before_s = self._owed.get(own, (0, 0.0))
        self._owed[own] = (copies + 1, max(before_s, until_s))

    def forget(self, owner: Settling, until_s: float, feed: Feed | None = None) -> None:
        """Nothing of `owner`, or of one of its partitions, is this connection's business any more; Acks may come all the same."""
        for table in (self._ids, self._late):
            for own in [own for own, entry in table.items() if entry[0] is owner and feed in (None, entry[1])]:
                del table[own]
                if table is self._ids:
                    self._owe(own, until_s)

    def purge(self, now_s: float) -> None:
        """Let go of ids that are free again."""
        for own in list(self._owed):
            self.free_at(own, now_s)
