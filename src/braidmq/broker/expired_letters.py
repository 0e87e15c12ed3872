"""Expired records that become dead letters, for topics that ask for it (`dlq_expired`).

Expiry happens to a record without anybody touching it, so somebody has to look. Once a second each partition of such a topic
is read on from where the last look ended, batch headers and expiry columns only; a heap knows which batch has something
expiring next. What expired becomes letters in the order of (expiry, offset), and the decision that makes them moves the
partition's mark in that order: a crash neither loses nor repeats one. At a start the partition is looked through once from
its beginning.

A record that retention takes before its time is over is no letter: it did not expire.
"""

from __future__ import annotations

import heapq
import logging
from typing import TYPE_CHECKING, Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.topics import Topic
from braidmq.hot import layout
from braidmq.hot.expiring import expiry_column
from braidmq.log.partition import PartitionLog
from braidmq.log.partition_reads import Cold

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

_READ_BYTES: Final = 1 * limits.MIB

logger = logging.getLogger("braidmq.expiry")


class _Scan:
    """How far a partition was looked at, and which batches have records that are yet to expire."""

    def __init__(self) -> None:
        self.offset = 0
        self.heap: list[tuple[int, int]] = []
        """(when the next record of a batch expires, offset of the batch)."""


class ExpiredLetters:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._scans: dict[tuple[int, int], _Scan] = {}
        self._topics: list[Topic] = []
        self._topics_seen = (0, 0)

    def look_again(self) -> None:
        """Some topic has other properties now."""
        self._topics_seen = (0, 0)

    def _asking(self) -> list[Topic]:
        """The topics that ask for it; found anew only when topics came or went."""
        topics = self._broker.topics
        seen = (topics.next_id, len(topics))
        if seen != self._topics_seen:
            self._topics_seen = seen
            self._topics = [topic for topic in topics.all() if topic.properties.get("dlq_expired") == "true"]
            live = {topic.id for topic in self._topics}
            self._scans = {place: scan for place, scan in self._scans.items() if place[0] in live}
        return self._topics

    async def sweep(self) -> int:
        """Make letters of what expired by now; returns how many."""
        count = 0
        for topic in self._asking():
            for partition in range(topic.partitions):
                place = (topic.id, partition)
                try:
                    log = self._broker.log_of(topic, partition)
                    count += await self._sweep(topic, log, self._scans.setdefault(place, _Scan()))
                except BraidError as error:
                    logger.error("expired records of %s/%d: %s", topic.name, partition, error)
                    # Looked at anew next time; the mark knows what is done.
                    self._scans.pop(place, None)
        return count

    async def _sweep(self, topic: Topic, log: PartitionLog, scan: _Scan) -> int:
        scan.offset = max(scan.offset, log.log_start)
        while scan.offset < log.high_watermark:
            await self._look(log, scan, scan.offset)
        now_ms = self._broker.steady.now_ms()
        mark = self._broker.work.table.letters.expired_to(topic.id, log.partition)
        due: list[tuple[int, int]] = []
        while scan.heap and scan.heap[0][0] <= now_ms:
            _, base_offset = heapq.heappop(scan.heap)
            if base_offset >= log.log_start:
                due += await self._expired(log, scan, base_offset, now_ms)
        due = sorted(entry for entry in due if entry > mark)
        for at in range(0, len(due), limits.DELIVERY_RECORDS_MAX):
            await self._bury(topic, log, due[at : at + limits.DELIVERY_RECORDS_MAX])
        return len(due)

    async def _look(self, log: PartitionLog, scan: _Scan, offset: int) -> None:
        """Look at some batches from `offset` on."""
        data = await self._read(log, offset, _READ_BYTES)
        at = 0
        while at < len(data):
            head = layout.read_header(data, at)
            if head.flags & layout.FLAG_EXPIRY:
                column = expiry_column(data, head, at)
                column = column[column > 0]
                if len(column):
                    heapq.heappush(scan.heap, (int(column.min()), head.base_offset))
            scan.offset = head.next_offset
            at += head.length

    async def _expired(self, log: PartitionLog, scan: _Scan, base_offset: int, now_ms: int) -> list[tuple[int, int]]:
        """(expiry, offset) of what expired of a batch; it is looked at again when the next of its records does."""
        data = await self._read(log, base_offset, 1)
        head = layout.read_header(data)
        column = expiry_column(data, head)
        later = column[column > now_ms]
        if len(later):
            heapq.heappush(scan.heap, (int(later.min()), base_offset))
        return [(expiry, head.base_offset + index) for index, expiry in enumerate(column.tolist()) if 0 < expiry <= now_ms]

    async def _read(self, log: PartitionLog, offset: int, bytes_max: int) -> bytes:
        read = log.read_batches(offset, bytes_max, raw=True)
        if isinstance(read, Cold):
            await self._broker.warm(read)
            read = log.read_batches(offset, bytes_max, warmed=True, raw=True)
            assert not isinstance(read, Cold)
        return b"".join(read.slices)

    async def _bury(self, topic: Topic, log: PartitionLog, due: list[tuple[int, int]]) -> None:
        letters = self._broker.dead_letters
        records = await letters.records(log, [offset for _, offset in due])
        made = [
            letters.letter_of(records[offset], topic.name, log.partition, offset, "expired", "time to live is over", 0, expiry)
            for expiry, offset in due if offset in records
        ]  # fmt: skip
        expiry, offset = due[-1]
        if made:
            await letters.send(
                topic.name, made, lambda number, targets: ["expire", number, topic.id, log.partition, expiry, offset, targets]
            )
