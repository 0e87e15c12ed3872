"""A partition of which this node has no replica, as whoever is pushed from it sees it: a log that lies on another node.

It knows where the partition begins and ends, tells when the end moves, and reads whole batches, like a `PartitionLog`. A question
waits at the leader for the end to move, and brings what came along (`distant_reads.py`). Everything else is fetched when somebody
reads there: it is `Elsewhere` at first, as what is not in memory is `Cold`, and is there when it was brought.

    the leader is gone     whoever leads next is asked; readers wait, and nothing is passed over
    it was moved here      as soon as this node's own replica has as much, that one is read (`home`)
    the topic is deleted   `removed`, and readers are told

What is served lay below the high watermark of a replica in sync, so it is what every reader sees, wherever it reads. Memory is
bounded: a few pieces that were brought lately, and the end is told without its records while nobody took the last ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.peers import Elsewhere, PartitionReading, Peers
from braidmq.broker.push.chunk import may_expire
from braidmq.broker.push.distant_reads import DistantReads
from braidmq.broker.topics import Topic
from braidmq.log.partition import PartitionLog
from braidmq.log.partition_reads import Batches

_AGAIN_S_FIRST: Final = 0.005
_AGAIN_S_MAX: Final = 0.2
"""Pause before a leader that did not answer is asked again; it doubles."""
_FOR_GOOD: Final = frozenset({"CORRUPT_LOG", "FORMAT_UNSUPPORTED", "ENCRYPTION_KEY_MISSING", "ENCRYPTION_KEY_WRONG"})
"""What asking again does not mend."""

logger = logging.getLogger("braidmq.push")

Key = tuple[int, bool]
"""Where a piece begins, and whether expired records are in it."""


class _Piece:
    __slots__ = ("at_ms", "batches", "expires", "taken")

    def __init__(self, batches: Batches, at_ms: int) -> None:
        self.batches = batches
        self.at_ms = at_ms
        self.expires = any(map(may_expire, batches.slices))
        self.taken = False


class DistantLog:
    def __init__(
        self, peers: Peers, reads: DistantReads, topic: Topic, partition: int, steady_ms: Callable[[], int],
        lives: Callable[[], bool], home: Callable[[DistantLog], bool],
    ) -> None:
        """`lives` says whether the topic is still there; `home` is asked now and then to use this node's replica, if it has one."""
        self.topic = topic.name
        self.partition = partition
        self.place = (topic.id, partition)
        self.log_start = 0
        self.high_watermark = 0
        self.newest_written_s = 0.0
        """Of another node's clock nothing is known."""
        self.removed = False
        self.closed = False
        self.known = False
        """Whether a leader has said where it begins and ends."""
        self.told = asyncio.Event()
        """Set when that is so, or never will be: it was deleted, or nobody reads it any more."""
        self._peers = peers
        self._reads = reads
        self._topic = topic
        self._steady_ms = steady_ms
        self._lives = lives
        self._home = home
        self._tails: dict[object, Callable[[], None]] = {}
        self._pieces: dict[Key, _Piece] = {}
        """Those brought lately, the oldest first."""
        self._faults: dict[Key, BraidError] = {}
        self._following = asyncio.get_running_loop().create_task(self._follow())
        self._following.add_done_callback(_ended)

    def close(self) -> None:
        self.closed = True
        self._following.cancel()
        for key in list(self._pieces):
            self._drop(key)
        self.told.set()

    async def ended(self) -> None:
        """Wait until nobody is asked any more."""
        await asyncio.wait([self._following])

    def watch_tail(self, key: object, wake: Callable[[], None]) -> None:
        self._tails[key] = wake

    def unwatch_tail(self, key: object) -> None:
        self._tails.pop(key, None)

    def goes_on_at(self, log_start: int, high_watermark: int) -> None:
        """This node had a replica until now, and readers saw so much of it."""
        self.log_start, self.high_watermark = log_start, high_watermark

    # --- the end

    async def _follow(self) -> None:
        pause_s = _AGAIN_S_FIRST
        while not self._home(self):
            if not self._lives():
                self.removed = True
                self.told.set()
                self._tell()
                return
            try:
                said = None
                if self.known:
                    said = await self._reads.come(self._topic, self.partition, self.high_watermark, self._ahead_bytes)
                if said is None:
                    # Only where it ends: what cannot be read there is told to whoever comes to it.
                    said = await self._ask(self.high_watermark, 0, raw=False)
                self._keep((self.high_watermark, False), said)
                self._see(said)
            except Exception as error:
                # A bug, here or there, is no reason to stand still for ever. It is told once.
                is_new_bug = not isinstance(error, BraidError) and pause_s == _AGAIN_S_FIRST
                level = logging.ERROR if is_new_bug else logging.DEBUG
                logger.log(level, "%s/%d is not read yet: %r", self.topic, self.partition, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _AGAIN_S_MAX)
                continue
            pause_s = _AGAIN_S_FIRST

    @property
    def _ahead_bytes(self) -> int:
        """How much of what comes next may come along: nothing while the last of it was not taken."""
        return 0 if any(not piece.taken for piece in self._pieces.values()) else limits.PUSH_CHUNK_BYTES

    async def _ask(self, offset: int, bytes_max: int, *, raw: bool) -> PartitionReading:
        return await self._peers.read(self._topic, self.partition, offset, bytes_max, 0.0, raw=raw)

    def _see(self, said: PartitionReading) -> None:
        moved = said.high_watermark > self.high_watermark or not self.known
        # A leader that was just elected may not know yet how far readers saw.
        self.high_watermark = max(self.high_watermark, said.high_watermark)
        self.log_start = max(self.log_start, said.log_start)
        self.known = True
        self.told.set()
        if moved:
            self._tell()

    def _tell(self) -> None:
        for wake in list(self._tails.values()):
            wake()

    # --- reading

    def read_batches(self, offset: int, bytes_max: int, *, warmed: bool = False, raw: bool = False) -> Batches | Elsewhere:
        """As of a `PartitionLog`; what comes may be less or more than `bytes_max`."""
        if offset >= self.high_watermark:
            return Batches([], 0, offset)
        if offset < self.log_start:
            raise BraidError(
                "OFFSET_OUT_OF_RANGE", offset=offset, topic=self.topic, partition=self.partition, oldest=self.log_start,
                newest=self.high_watermark,
            )  # fmt: skip
        key = (offset, raw)
        fault = self._faults.pop(key, None)
        if fault is not None:
            raise fault
        for begin, piece in list(self._pieces.items()):
            if begin[1] is not raw or offset < begin[0]:
                continue
            if piece.batches.next_offset <= offset:
                # Whoever took it came by another way.
                piece.taken = True
                continue
            # One that may hold expired records by now is good for a moment: whoever had it brought comes at once.
            fresh = self._steady_ms() - piece.at_ms < limits.PUSH_CHUNK_EXPIRING_MS_MAX
            if not piece.expires or raw or fresh:
                piece.taken = True
                return piece.batches
            self._drop(begin)
        return Elsewhere(lambda: self._bring(key))

    async def _bring(self, key: Key) -> None:
        """Try once to have a piece here."""
        offset, raw = key
        try:
            said = await self._ask(offset, limits.PUSH_CHUNK_BYTES, raw=raw)
        except BraidError as error:
            if error.code in _FOR_GOOD:
                self._faults[key] = error
                return
            logger.debug("%s/%d is not read yet at %d: %s", self.topic, self.partition, offset, error)
            await asyncio.sleep(_AGAIN_S_MAX)
            return
        self._keep(key, said)
        self._see(said)
        if said.next_offset <= offset and offset >= self.log_start:
            # A leader that was just elected, and does not know yet how far readers saw.
            await asyncio.sleep(_AGAIN_S_MAX)

    def _keep(self, key: Key, said: PartitionReading) -> None:
        if said.next_offset <= key[0] or not len(said.batches):
            return
        batches = Batches([said.batches], len(said.batches), said.next_offset)
        self._drop(key)
        self._pieces[key] = _Piece(batches, self._steady_ms())
        self._reads.keep(self, key, batches.size)
        size = sum(piece.batches.size for piece in self._pieces.values())
        while size > limits.AWAY_READ_BYTES_MAX and len(self._pieces) > 1:
            oldest = next(iter(self._pieces))
            size -= self._pieces[oldest].batches.size
            self._drop(oldest)

    def _drop(self, key: Key) -> None:
        if self._pieces.pop(key, None) is not None:
            self._reads.drop(self, key)

    def forget(self, key: Key) -> None:
        """There is no room for a piece any more."""
        self._pieces.pop(key, None)


Source = PartitionLog | DistantLog
"""What a partition is read from."""


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("a partition on another node is not followed any more", exc_info=task.exception())
