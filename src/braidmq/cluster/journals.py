"""Who may append to the broker's own logs: one partition state for all of them together, in the metadata quorum.

Topics, users, offsets and decided work are commands in journals (`broker/journal.py`), and the journals are replicated like any
partition. Whoever leads them is the coordinator of the cluster. Their state is the one thing that cannot lie in a journal, so
it lies in the quorum, and each change is a guarded write: it counts only if nobody changed it before.

All of these logs are led together, so they have one isr: a node is in it when it has all of each, and leaves it when it is
behind in one. While it is on its way in, each of the logs waits for it (`replication/replication.py`): one that went on without it
would have records that a replica in sync lacks.

An old leader that does not know yet that it is one can do no harm. What it appends becomes visible only when every member of
the isr has it; the new leader is one of them and takes nothing from it; and to shrink the isr it would have to write here, from a
state that is not the newest any more.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.cluster.partition_state import LogKey, PartitionState, elected, with_isr
from braidmq.cluster.quorum import Conflict, Entry, Guard, MetaQuorum, Ok, Put, TxnResult, Unknown

INTERNAL: Final = ("metadata", "offsets", "work", "staging", "delayed", "stages")
"""The broker's own logs that are replicated; the audit trail is each node's own."""
INTERNAL_KEYS: Final[tuple[LogKey, ...]] = tuple((0, number) for number in range(len(INTERNAL)))
_JOURNALS: Final = 3
"""The first of these are journals of commands."""
STATE_KEY: Final = "journal"
_ANSWERS_S: Final = (0.5, 1.0, 2.0, 3.0)
"""How long the quorum is waited for before it is asked again, and then once more. A member hands what it is asked to its leader,
and when that has just died, nobody ever answers: it is often lost together with the node that is to be replaced."""

logger = logging.getLogger("braidmq.cluster")


def is_journal(key: LogKey) -> bool:
    """Whether a log holds commands; the others of the broker's own hold records that are staged, which may be many."""
    return key[0] == 0 and key[1] < _JOURNALS


class JournalGroup:
    def __init__(self, node: str, quorum: MetaQuorum, min_insync: int, changed: Callable[[PartitionState], None]) -> None:
        self._node = node
        self._quorum = quorum
        self._min_insync = min_insync
        self._changed = changed
        self.state: PartitionState | None = None
        self._revision = 0
        self._one_at_a_time = asyncio.Lock()

    @property
    def min_insync(self) -> int:
        """How many replicas an acknowledgement needs: of a cluster that is being founded, as many as there are."""
        return min(self._min_insync, len(self.state.replicas)) if self.state is not None else 1

    # --- reading

    async def read(self) -> PartitionState | None:
        """Ask the quorum what the state is now."""
        reading = await self._quorum.read(STATE_KEY)
        self.adopt(reading.entries.get(STATE_KEY))
        return self.state

    def adopt(self, entry: Entry | None) -> None:
        """The quorum says what the state is."""
        if entry is None or entry.revision <= self._revision:
            return
        self._revision = entry.revision
        self.state = PartitionState.of(json.loads(entry.value))
        self._changed(self.state)

    # --- writing

    async def _write(self, state: PartitionState) -> bool:
        """Put `state` in place of the one that is known; False when another change came first, which is known then. Raises
        QUORUM_UNAVAILABLE when nobody says; it may happen yet, until something else does."""
        value = json.dumps(state.document()).encode()
        guard = Guard(STATE_KEY, self._revision)
        why = ""
        for patience_s in _ANSWERS_S:
            result = await self._asked(guard, value, patience_s)
            if isinstance(result, Ok):
                self.adopt(Entry(value, result.revision))
                return True
            if isinstance(result, Conflict):
                self.adopt(result.entries.get(STATE_KEY))
                return self.state == state
            why = result.reason
            # It may have happened, or may happen yet. To ask for the same from the same revision is safe: of all these only one can
            # happen, and the others find its value.
        raise BraidError("QUORUM_UNAVAILABLE", reason=f"whether the journals changed is not known: {why}")

    async def _asked(self, guard: Guard, value: bytes, patience_s: float) -> TxnResult:
        try:
            async with asyncio.timeout(patience_s):
                return await self._quorum.txn([guard], [Put(guard.key, value)])
        except TimeoutError:
            return Unknown(f"no answer within {patience_s:g} s")

    async def found(self) -> None:
        """Begin a cluster, unless somebody did: this node is the first to have the journals."""
        async with self._one_at_a_time:
            if await self.read() is None:
                await self._write(PartitionState(self._node, 1, (self._node,), (self._node,), (), 1))

    async def take_over(self, live: set[str]) -> bool:
        """Lead, if this node may; also when it did before it was restarted."""
        async with self._one_at_a_time:
            state = self.state
            if state is None or not (self._node in state.isr or (self._node in state.elr and not live & set(state.isr))):
                return False
            wanted = elected(state, {self._node}, self._node)
            if wanted is None:
                return False
            # Who is known to be away is not waited for.
            away = [node for node in wanted.isr if node not in live and node != self._node]
            if away:
                rest = [node for node in wanted.isr if node not in away]
                shrunk = with_isr(wanted, rest, min(self._min_insync, len(wanted.replicas)))
                if shrunk is not None:
                    wanted = replace(shrunk, version=wanted.version)
            taken = await self._write(wanted)
            if taken:
                logger.info("this node coordinates since epoch %d", wanted.epoch)
            return taken

    async def hand_over(self, live: set[str], *, stays: bool = False) -> bool:
        """Let another member of the isr lead; False when there is none. Whoever does not stay leaves the isr, too."""
        async with self._one_at_a_time:
            state = self.state
            if state is None or state.leader != self._node:
                return True
            wanted = elected(state, live - {self._node})
            if wanted is None or wanted.leader == self._node:
                return False
            # Nobody is to wait for a node that is about to go.
            rest = [node for node in wanted.isr if node != self._node]
            without = None if stays else with_isr(wanted, rest, self.min_insync)
            return await self._write(wanted if without is None else replace(without, version=wanted.version))

    async def set_replicas(self, replicas: tuple[str, ...]) -> bool:
        """Let others have the journals, too; whoever leaves must not be the leader or the last one in sync."""
        async with self._one_at_a_time:
            state = self.state
            if state is None or state.leader != self._node or self._node not in replicas or state.replicas == replicas:
                return False
            isr = tuple(node for node in state.isr if node in replicas)
            elr = tuple(node for node in state.elr if node in replicas)
            return await self._write(replace(state, replicas=replicas, isr=isr, elr=elr, version=state.version + 1))

    async def alter_isr(self, seen: PartitionState, isr: tuple[str, ...]) -> PartitionState | None:
        """The leader of the logs, which is this node, says who has all of them. The state as it is then; raises QUORUM_UNAVAILABLE
        when it is not known what came of it."""
        async with self._one_at_a_time:
            state = self.state
            if state is None or state != seen:
                # Whoever was to come in was counted for the state that was seen, and for no other.
                return state
            # The same isr again settles what an earlier word on it came to.
            await self._write(with_isr(state, isr, self.min_insync) or replace(state, version=state.version + 1))
            return self.state

    async def drop(self, nodes: set[str]) -> None:
        """Do not wait for nodes that are not here."""
        async with self._one_at_a_time:
            state = self.state
            if state is None or state.leader != self._node:
                return
            rest = [node for node in state.isr if node not in nodes or node == self._node]
            wanted = with_isr(state, rest, self.min_insync)
            if wanted is not None:
                await self._write(wanted)
