"""The state of journals, for nodes that missed more of them than is kept.

The leader of a journal lets go of commands that its snapshots replace. A node whose log ends before what is left gets the newest
snapshot instead: in pieces, because it may be larger than a frame, and as it lies on the leader's disk, so nothing is made for it.

What the node does with it depends on what it knows:

    nothing yet     the state is taken in, and the log goes on behind it
    anything        snapshots of all journals are put on its own disk, and the node begins anew, as after a restart: the newest
                    snapshot is the state then. Much hangs on what was applied (routes, subscribers, logs that are open), and
                    nothing of that can be left from before

Logs of topics are touched by neither. What of topics and partitions the new state does not name any more goes as at every start.

A crash at any point leaves snapshots that are whole, each a state that the cluster decided: the next start goes on from there. Who
sends one need not coordinate: what was applied anywhere is decided, and whoever is to coordinate may wait for the node that asks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from braidmq import hot
from braidmq.base import limits
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.broker.journal import Journal
from braidmq.cluster.journals import INTERNAL, is_journal
from braidmq.cluster.messages import pack, unpack
from braidmq.cluster.partition_state import LogKey
from braidmq.cluster.transport import ClusterOp
from braidmq.log.partition import PartitionLog

if TYPE_CHECKING:
    from braidmq.cluster.node import ClusterNode

_PIECE_S: Final = 30.0
_SAID_S: Final = 5.0
"""How long it is told why the state could not be had, unless that is tried again."""
_KEPT_S: Final = 60.0
"""How long a snapshot stays in memory after the last piece of it was asked for."""

logger = logging.getLogger("braidmq.cluster")


@dataclass(frozen=True, slots=True)
class _Sent:
    """A snapshot that is being sent. Offset, size and checksum tell it from any other."""

    offset: int
    body: bytes
    name: tuple[int, int, int]


def _read(journal: Journal) -> _Sent | None:
    found = journal.newest_snapshot()
    return None if found is None else _Sent(*found, (found[0], len(found[1]), hot.crc32c(found[1])))


class JournalTransfer:
    def __init__(self, node: ClusterNode, piece_bytes: int = 4 * limits.MIB) -> None:
        self._node = node
        self._piece_bytes = piece_bytes
        self._sending: dict[str, _Sent] = {}
        self._dropping: dict[str, asyncio.TimerHandle] = {}
        self._reading = asyncio.Lock()
        self._one_at_a_time = asyncio.Lock()
        self._said, self._said_s = "", 0.0
        node.transport.serve(ClusterOp.JOURNAL_SNAPSHOT, self._asked)

    @property
    def standing(self) -> str:
        """What this node lacks of the journals, and how far it is with it; empty where it follows them."""
        if self._node.outdated.is_set():
            return "it begins anew with the state of the cluster's journals"
        fresh = self._one_at_a_time.locked() or self._node.clock.monotonic() - self._said_s < _SAID_S
        return self._said if fresh else ""

    def _say(self, text: str) -> None:
        self._said, self._said_s = text, self._node.clock.monotonic()

    # --- sending

    async def _asked(self, node: str, payload: memoryview) -> Sequence[Buffer]:
        """A piece of the snapshot that is named, or the first one of the newest."""
        journal, wanted, position = unpack(payload)[0]
        sent = self._sending.get(journal)
        if sent is None or sent.name != tuple(wanted):
            async with self._reading:
                sent, position = await self._to_send(journal), 0
        timer = self._dropping.pop(journal, None)
        if timer is not None:
            timer.cancel()
        self._dropping[journal] = asyncio.get_running_loop().call_later(_KEPT_S, self._sending.pop, journal, None)
        return pack([sent.name, position], memoryview(sent.body)[position : position + self._piece_bytes])

    async def _to_send(self, name: str) -> _Sent:
        """The newest snapshot, read beside the loop. The log that is left continues it."""
        broker = self._node.broker
        journal = broker.journals[name]
        sent = self._sending.get(name)
        if sent is not None and sent.offset >= journal.log.log_start:
            return sent
        try:
            found: _Sent | None = await broker.compute(partial(_read, journal))
            if found is None or found.offset < journal.log.log_start:
                await journal.save_snapshot_beside(broker.beside)
                found = await broker.compute(partial(_read, journal))
        except OSError as fault:
            raise BraidError("SERVER_ERROR", message=f"the snapshot of {name} cannot be read: {fault}") from fault
        if found is None:
            raise BraidError("NOT_READY", state=f"without a snapshot of {name}")
        self._sending[name] = found
        return found

    # --- receiving

    async def begin_anew(self, key: LogKey, log: PartitionLog, offset: int) -> Callable[[], None] | None:
        """The leader has nothing any more that would continue a log, its own begins at `offset`. What is left to do on the loop, if
        the log is still followed then as it is now; None when the whole node begins anew."""
        if not is_journal(key):
            return partial(log.reset, offset)
        node, name = self._node, INTERNAL[key[1]]
        journal = node.broker.journals[name]
        async with self._one_at_a_time:
            if journal.applied >= offset:
                # A snapshot was taken in, and then there was a crash.
                return lambda: log.reset(journal.applied)
            if node.outdated.is_set():
                return None
            try:
                if journal.applied:
                    await self._replace_all(offset - journal.applied, name)
                    return None
                found, body = await self._received(name, -1)
                document = await node.broker.compute(partial(journal.keep_snapshot, found, body))
                self._said = ""
            except (BraidError, OSError) as error:
                self._say(f"it missed what the cluster decided, and cannot get the state of {name}: {error}")
                raise

        def finish() -> None:
            if not journal.applied:
                journal.install(found, document)
                log.reset(found)
                logger.info("%s begins with the state at offset %d", log.topic, found)

        return finish

    async def _replace_all(self, missed: int, name: str) -> None:
        """Get the state of each journal that is newer than what is known here, and begin anew with it."""
        node = self._node
        logger.warning("this node missed %d commands of %s that are not kept any more: it gets the state instead", missed, name)
        for other, journal in node.broker.journals.items():
            try:
                found, body = await self._received(other, journal.applied)
            except BraidError as error:
                if error.code != "NOT_READY" or other == name:
                    raise
                # The leader has never written its state down: all commands are there.
                continue
            if found > journal.applied:
                await node.broker.compute(partial(journal.keep_snapshot, found, body))
        node.begin_again()

    async def _received(self, journal: str, known: int) -> tuple[int, bytes]:
        """The leader's newest snapshot, and its offset; nothing of one that is not newer than `known`."""
        node = self._node
        leader = node.coordinator_node()
        if leader in ("", node.node):
            raise BraidError("NOT_LEADER", reason="no leader elected")
        name: list[Any] = []
        pieces: list[bytes] = []
        have = 0
        while not name or have < name[1]:
            payload = await node.transport.call(leader, ClusterOp.JOURNAL_SNAPSHOT, pack([journal, name, have]), _PIECE_S)
            (found, position), piece = unpack(payload)
            if found[0] <= known:
                return found[0], b""
            if found != name or position != have:
                # The first answer, or another snapshot, of which the pieces so far are no part.
                name, pieces, have = found, [], 0
                if position:
                    continue
            if not len(piece):
                raise BraidError("UNEXPECTED_REPLY", reason=f"a snapshot of {journal} that is shorter than it says")
            pieces.append(bytes(piece))
            have += len(piece)
            how_far = f"{have} of {name[1]} bytes"
            self._say(f"it missed what the cluster decided, and gets the state of {journal} from {leader}: {how_far}")
        body = b"".join(pieces)
        if await node.broker.compute(partial(hot.crc32c, body)) != name[2]:
            raise BraidError("UNEXPECTED_REPLY", reason=f"a snapshot of {journal} whose checksum is wrong")
        return name[0], body
