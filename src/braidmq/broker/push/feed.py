"""One partition that somebody waits on.

A feed watches the high watermark and wakes its readers; they pull. Chunks that were read lately are kept, so that readers at
the same place share one. What is not in memory is brought in beside the loop, and the reader is woken when it is there.

In a cluster the log may lie on another node (`distant_log.py`), and come here or go away while somebody reads: readers go on where
they were.

A damaged place ends the feed for readers that come to it: they are told once, everybody before or behind it goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.push.chunk import Chunk
from braidmq.broker.push.distant_log import DistantLog, Source
from braidmq.broker.topics import Topic
from braidmq.hot import layout
from braidmq.log.partition_reads import Batches

if TYPE_CHECKING:
    from braidmq.broker.push.hub import Hub

SEQUENCE_OFFSET_BITS: Final = 40
_WRITES_REMEMBERED: Final = 32
_SEQUENCE_PARTITIONS: Final = 1 << (64 - SEQUENCE_OFFSET_BITS)

logger = logging.getLogger("braidmq.push")


class Reader(Protocol):
    """Whoever waits on a feed."""

    def wake(self, feed: Feed) -> None:
        """There may be something to read."""

    def feed_closed(self, feed: Feed) -> None:
        """The topic was deleted."""

    def feed_failed(self, feed: Feed, error: BraidError) -> None:
        """What the reader asked for cannot be read."""


class Feed:
    def __init__(self, hub: Hub, topic: Topic, log: Source) -> None:
        self._hub = hub
        self.topic = topic
        self.partition = log.partition
        self.log = log
        """Here, or on another node."""
        number = (topic.first_partition + log.partition) % _SEQUENCE_PARTITIONS
        self.sequence_base = (number << SEQUENCE_OFFSET_BITS) + 1
        """Added to an offset it is a number that no other record of the broker has."""
        self.readers: dict[Reader, None] = {}
        self.moved = False
        """Whether the hub will wake the readers in a moment."""
        self.woken_s = 0.0
        self.wakes = 0
        """How often it did since then, as the loop has the time; kept where wake-ups are to be apart."""
        self.woken_at = log.high_watermark
        """What there was at the last one."""
        self.late: asyncio.TimerHandle | None = None
        """A wake-up that waits for more to come."""
        self._written: deque[tuple[int, int, float]] = deque(maxlen=_WRITES_REMEMBERED)
        """What came lately: the first offset, the one behind the last, and when its write began."""
        self._seen = log.high_watermark
        self._chunks: dict[int, Chunk] = {}
        self._large: Chunk | None = None
        """A chunk that was too large to be handed out at once, and of which there is more."""
        self._asking: set[Reader] = set()
        """Readers that wait for something to be brought into memory."""
        log.watch_tail(self, self._tail_moved)

    @property
    def tail(self) -> int:
        return self.log.high_watermark

    @property
    def start(self) -> int:
        return self.log.log_start

    @property
    def known(self) -> bool:
        """Whether it is known where the partition ends."""
        return not isinstance(self.log, DistantLog) or self.log.known

    @property
    def seen(self) -> int:
        """How far readers saw, also of a log that is gone."""
        return self._seen

    def read_from(self, log: Source) -> None:
        """Go on with another log of the same partition, which has everything that readers saw."""
        self._leave_log()
        self.log = log
        log.watch_tail(self, self._tail_moved)
        self._tail_moved()

    def _leave_log(self) -> None:
        self.log.unwatch_tail(self)
        if isinstance(self.log, DistantLog):
            self.log.close()

    # --- readers

    def attach(self, reader: Reader) -> None:
        self.readers[reader] = None

    def detach(self, reader: Reader) -> None:
        """Forget a reader; the feed ends with its last one."""
        self.readers.pop(reader, None)
        self._asking.discard(reader)
        if not self.readers:
            self.close()
            self._hub.forget(self)

    def close(self) -> None:
        self._leave_log()
        self._hub.drop_chunks(self, list(self._chunks))
        self._chunks.clear()
        self._large = None

    def _tail_moved(self) -> None:
        if not self.log.removed:
            tail = self.log.high_watermark
            self._written.append((self._seen, tail, self.log.newest_written_s))
            self._seen = tail
        if not self.moved:
            self.moved = True
            self._hub.feed_moved(self)
        elif self.late is not None:
            self._hub.hurry(self)

    def wake_readers(self) -> None:
        self.moved = False
        if self.log.removed and not self._hub.go_on_elsewhere(self):
            for reader in list(self.readers):
                reader.feed_closed(self)
            return
        for reader in list(self.readers):
            try:
                reader.wake(self)
            except Exception:
                # A bug of ours with one reader is not to hold up the others.
                logger.exception("%s/%d: a reader failed", self.topic.name, self.partition)

    def age_s(self, chunk: Chunk, stop: int) -> float:
        """How long ago the record before `stop` was written, as exactly as is known."""
        clock = self._hub.clock
        for first, end, written_s in reversed(self._written):
            if first < stop <= end and written_s:
                return clock.monotonic() - written_s
            if end < stop:
                break
        # It waited for its reader: milliseconds are fine enough.
        return max(0, clock.now_ms() - layout.read_header(chunk.batches[-1]).max_timestamp) / 1000

    # --- reading

    def read(self, position: int, reader: Reader) -> Chunk | None:
        """The chunk that begins at `position`, at least `start`.

        None when there is none, or not yet: `reader` is woken when it is there, and told when it never will be.
        """
        chunk = self._chunks.get(position)
        if chunk is not None:
            if not chunk.expires or self._hub.steady_ms() - chunk.read_at_ms < limits.PUSH_CHUNK_EXPIRING_MS_MAX:
                return chunk
            self._hub.drop_chunks(self, [position])
            del self._chunks[position]
        if position >= self.log.high_watermark or reader in self._asking:
            return None
        large = self._large
        if large is not None and large.first <= position < large.next_offset:
            return self._part_of(large, position)
        try:
            read = self.log.read_batches(position, limits.PUSH_CHUNK_BYTES)
        except BraidError as error:
            logger.error("%s/%d cannot be pushed from offset %d on: %s", self.topic.name, self.partition, position, error)
            reader.feed_failed(self, error)
            return None
        if not isinstance(read, Batches):
            self._asking.add(reader)
            if len(self._asking) == 1:
                self._hub.warm(self, read)
            return None
        if read.next_offset <= position:
            return None
        chunk = Chunk(position, read.next_offset, read.slices, read.size, self._hub.steady_ms())
        if read.size > 2 * limits.PUSH_CHUNK_BYTES and layout.read_header(read.slices[-1]).base_offset <= position:
            # One large batch: its records go out in several steps, or each subscriber would be handed all of it at once.
            return self._part_of(chunk, position)
        return self._keep(chunk)

    def _part_of(self, large: Chunk, position: int) -> Chunk:
        """A part of a chunk that is one large batch. What is left is kept for the next part, unless it may expire until then."""
        head = layout.read_header(large.batches[-1])
        records = max(1, head.records * limits.PUSH_CHUNK_BYTES // head.length)
        next_offset = min(large.next_offset, position + records)
        self._large = None if large.expires or next_offset == large.next_offset else large
        return self._keep(Chunk(position, next_offset, large.batches, limits.PUSH_CHUNK_BYTES, large.read_at_ms))

    def _keep(self, chunk: Chunk) -> Chunk:
        self._chunks[chunk.first] = chunk
        self._hub.keep_chunk(self, chunk)
        chunk.grew = partial(self._hub.chunk_grew, self, chunk.first)
        return chunk

    def passed(self, chunk: Chunk) -> None:
        """A reader is done with a chunk. When all are, nobody comes back to it, and its memory serves the next one."""
        chunk.passed += 1
        if chunk.passed >= len(self.readers) and self._chunks.get(chunk.first) is chunk:
            del self._chunks[chunk.first]
            self._hub.drop_chunks(self, (chunk.first,))

    def forget_chunk(self, position: int) -> None:
        self._chunks.pop(position, None)

    def warmed(self) -> None:
        """What was cold is in memory."""
        asking, self._asking = self._asking, set()
        for reader in asking:
            if reader in self.readers:
                reader.wake(self)
