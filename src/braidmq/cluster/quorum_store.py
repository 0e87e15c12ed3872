"""The keys of a metadata quorum as a deterministic state machine: what `local` keeps in its command log and the simulator in
memory.

Commands are lists that JSON can hold, because the log keeps them so; values are text of Latin-1, one character a byte. A
command whose guards do not hold changes nothing and uses up no revision. Watchers read the recent changes from here; a watcher
that asks for older ones than are kept is told so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from braidmq.base import limits
from braidmq.cluster.quorum import Changed, Compacted, Conflict, Delete, Entry, Event, Guard, Ok, Op, Put, Reading

_TXN: Final = "txn"
_GRANT: Final = "grant"
_END: Final = "end"


def txn_command(guards: Sequence[Guard], ops: Sequence[Op]) -> list[Any]:
    rows: list[list[Any]] = []
    for op in ops:
        match op:
            case Put(key, value, lease):
                rows.append([key, value.decode("latin-1"), lease])
            case Delete(key):
                rows.append([key])
    return [_TXN, [[guard.key, guard.revision] for guard in guards], rows]


def grant_command(ttl_s: float) -> list[Any]:
    return [_GRANT, ttl_s]


def end_command(lease: int) -> list[Any]:
    """The lease is over: its keys go."""
    return [_END, lease]


class QuorumStore:
    def __init__(self) -> None:
        self.revision = 0
        self._entries: dict[str, Entry] = {}
        self._lease_of: dict[str, int] = {}
        self.leases: dict[int, float] = {}
        """Time to live of every lease that was granted and has not ended."""
        self._last_lease = 0
        self._changes: deque[Changed] = deque()
        self._forgotten_to = 0
        """Changes up to this revision are not kept."""
        self._changed = asyncio.Event()

    # --- commands

    def apply(self, command: list[Any]) -> Any:
        match command:
            case [str(name), list(guards), list(ops)] if name == _TXN:
                return self._txn(guards, ops)
            case [str(name), ttl_s] if name == _GRANT:
                self._last_lease += 1
                self.leases[self._last_lease] = ttl_s
                return self._last_lease
            case [str(name), lease] if name == _END:
                return self._end(lease)
            case _:
                raise AssertionError(f"no such command: {command}")

    def _txn(self, guards: list[Any], ops: list[Any]) -> Ok | Conflict:
        found = {key: self._entries.get(key) for key, _ in guards}
        held = all((entry.revision if (entry := found[key]) is not None else 0) == revision for key, revision in guards)
        # A key that would be bound to a lease that is over could never go again.
        if not held or any(len(op) > 1 and op[2] and op[2] not in self.leases for op in ops):
            return Conflict(found)
        if ops:
            self.revision += 1
            for op in ops:
                if len(op) > 1:
                    self._put(op[0], op[1].encode("latin-1"), op[2])
                else:
                    self._delete(op[0])
            self._tell()
        return Ok(self.revision)

    def _end(self, lease: int) -> bool:
        """Whether there was such a lease."""
        if self.leases.pop(lease, None) is None:
            return False
        keys = sorted(key for key, holder in self._lease_of.items() if holder == lease)
        if keys:
            self.revision += 1
            for key in keys:
                self._delete(key)
            self._tell()
        return True

    def _put(self, key: str, value: bytes, lease: int) -> None:
        entry = self._entries[key] = Entry(value, self.revision)
        self._lease_of.pop(key, None)
        if lease:
            self._lease_of[key] = lease
        self._note(Changed(key, entry, self.revision))

    def _delete(self, key: str) -> None:
        if self._entries.pop(key, None) is not None:
            self._lease_of.pop(key, None)
            self._note(Changed(key, None, self.revision))

    def _note(self, change: Changed) -> None:
        self._changes.append(change)
        if len(self._changes) > limits.QUORUM_CHANGES_KEPT:
            self._forgotten_to = self._changes.popleft().revision

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # --- reading

    def read(self, prefix: str) -> Reading:
        return Reading(self.revision, {key: entry for key, entry in sorted(self._entries.items()) if key.startswith(prefix)})

    def changes(self, prefix: str, after_revision: int) -> list[Event]:
        """The changes that are known; a `Compacted` alone where some of them are not."""
        if after_revision < self._forgotten_to:
            return [Compacted(self._forgotten_to)]
        return [change for change in self._changes if change.revision > after_revision and change.key.startswith(prefix)]

    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Event]:
        while True:
            changed = self._changed
            events = self.changes(prefix, after_revision)
            # What was looked at is behind the watcher, whatever happens while it works on the events.
            after_revision = max(after_revision, self.revision)
            for event in events:
                yield event
                if isinstance(event, Compacted):
                    return
            await changed.wait()

    def forget_changes(self) -> None:
        """Keep no change from before now."""
        self._changes.clear()
        self._forgotten_to = self.revision

    # --- snapshots

    def snapshot(self) -> Any:
        entries = [
            [key, entry.value.decode("latin-1"), entry.revision, self._lease_of.get(key, 0)]
            for key, entry in sorted(self._entries.items())
        ]
        leases = sorted(self.leases.items())
        return {"revision": self.revision, "entries": entries, "leases": leases, "last_lease": self._last_lease}

    def restore(self, document: Any) -> None:
        self.revision = document["revision"]
        self._entries = {key: Entry(value.encode("latin-1"), revision) for key, value, revision, _ in document["entries"]}
        self._lease_of = {key: lease for key, _, _, lease in document["entries"] if lease}
        self.leases = {lease: ttl_s for lease, ttl_s in document["leases"]}
        self._last_lease = document["last_lease"]
        self.forget_changes()
