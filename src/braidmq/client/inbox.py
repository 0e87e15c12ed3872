"""What a consumer has fetched and not handed out yet, and how far it is. No I/O, no waiting, no clock.

Each partition has two offsets that move forward: `fetch_offset`, where the next fetch begins, and `position`, the next record
the application gets. A seek moves both and starts a new generation, so that an answer asked for before the seek is
thrown away when it arrives. Fetched bytes are bounded for each partition alone: a busy one cannot starve the others.

Every method is called with `mutex` held.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Final

from braidmq import hot
from braidmq.base.errors import BraidError
from braidmq.base.limits import KIB
from braidmq.client.models import Record, TopicPartition
from braidmq.client.reading import MakeRecord, read_batches

PARTITION_BYTES_MIN: Final = 64 * KIB
"""Prefetch of a partition when there are so many that an even share would be less."""

PIECE_BYTES: Final = 128 * KIB
"""So much is turned into records at a time: enough to make the step cheap, few enough objects that nobody has to collect them."""


class PartitionState:
    """How far one partition has been read."""

    __slots__ = ("buffered_bytes", "committed", "fault", "fetch_offset", "generation", "make", "partition", "position", "topic")

    def __init__(self, topic: str, partition: int, position: int, make: MakeRecord) -> None:
        self.topic = topic
        self.partition = partition
        self.position = position
        self.fetch_offset = position
        self.committed = -1
        """What was committed last, as far as this consumer knows."""
        self.generation = 0
        self.buffered_bytes = 0
        self.fault: BraidError | None = None
        self.make = make

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Chunk:
    """What one fetch brought. It stays as bytes, which are compact, until its records are wanted, piece by piece."""

    __slots__ = ("_at", "_data", "_records", "generation", "next_offset", "offset", "part", "size_bytes")

    def __init__(
        self,
        part: PartitionState,
        generation: int,
        offset: int,
        next_offset: int,
        data: bytes = b"",
        records: list[Record] | None = None,
        size_bytes: int = 0,
    ) -> None:
        self.part = part
        self.generation = generation
        self.offset = offset
        """Where the next piece begins."""
        self.next_offset = next_offset
        """Where the fetch after this one begins."""
        self.size_bytes = size_bytes or len(data)
        self._data = data
        self._at = 0
        self._records = records

    @property
    def current(self) -> bool:
        """Whether no seek has made it void."""
        return self.generation == self.part.generation

    def read(self) -> list[Record]:
        """The records of the next piece; none at the end. Raises what is wrong with the data."""
        if self._records is not None:
            records, self._records = self._records, []
            self.offset = self.next_offset
            return records
        records = []
        while not records and self.offset < self.next_offset:
            begin, end, after, _ = hot.span_batches(self._data, self._at, len(self._data), self.offset, PIECE_BYTES)
            records, self.offset = read_batches(memoryview(self._data)[begin:end], self.offset, self.part.make)
            if records and self.offset < after:
                self._at = begin
            else:
                self._at, self.offset = end, after
        return records


class Inbox:
    def __init__(self, prefetch_bytes: int, fetch_bytes: int) -> None:
        self.mutex = threading.Lock()
        self.parts: dict[TopicPartition, PartitionState] = {}
        self._prefetch_bytes = prefetch_bytes
        self._fetch_bytes_max = fetch_bytes
        self._chunks: deque[Chunk] = deque()
        self._fault: BraidError | None = None

    def replace(self, parts: Iterable[PartitionState]) -> None:
        """Read these from now on. What was fetched of others, or is still on its way, is void."""
        for old in self.parts.values():
            old.generation += 1
        # A new table each time: whoever goes through the old one is not disturbed.
        self.parts = {part.key: part for part in parts}
        self._chunks.clear()

    @property
    def fetch_bytes(self) -> int:
        """How much one fetch asks for: at most half a partition's share, so that one chunk is read while the next one comes."""
        return min(self._fetch_bytes_max, self._share_bytes() // 2)

    def _share_bytes(self) -> int:
        return max(PARTITION_BYTES_MIN, self._prefetch_bytes // max(1, len(self.parts)))

    # --- the fetching side

    def wanting(self, parts: Iterable[PartitionState]) -> list[PartitionState]:
        """Those with room for one more fetch."""
        most = self._share_bytes() - self.fetch_bytes
        return [part for part in parts if part.buffered_bytes <= most and part.fault is None]

    def deliver(self, chunk: Chunk) -> None:
        part = chunk.part
        if not chunk.current:
            return
        part.fetch_offset = chunk.next_offset
        part.buffered_bytes += chunk.size_bytes
        self._chunks.append(chunk)

    def fail(self, part: PartitionState | None, generation: int, fault: BraidError) -> None:
        """The application hears of it once it has got everything before it. Without a partition it concerns them all."""
        if part is None:
            self._fault = fault
        elif generation == part.generation:
            part.fault = fault

    # --- the reading side

    def put_back(self, fault: BraidError) -> None:
        """A fault that was taken out too early."""
        self._fault = fault

    def take(self) -> Chunk | None:
        """The next chunk, in order of arrival. Raises a fault when nothing that came before it is left."""
        while self._chunks:
            chunk = self._chunks.popleft()
            if chunk.current:
                chunk.part.buffered_bytes -= chunk.size_bytes
                return chunk
        for part in self.parts.values():
            if part.fault is not None:
                fault, part.fault = part.fault, None
                raise fault
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        return None

    def seek(self, part: PartitionState, offset: int) -> None:
        part.generation += 1
        part.position = offset
        part.fetch_offset = offset
        part.buffered_bytes = 0
        part.fault = None
