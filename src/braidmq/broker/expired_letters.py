"""Expired records that become dead letters, for topics that ask for it (`dlq_expired`).

Expiry happens to a record without anybody touching it, so somebody has to look. Once a second each partition of such a topic
is read on from where the last look ended, batch headers and expiry columns only; the partition's cursor (`log/expiry_cursor.py`)
knows where something expires next, and survives a restart. What expired becomes letters in the order of (expiry, offset), and the
decision that makes them moves the partition's mark in that order: a crash neither loses nor repeats one. For that nothing may
appear behind the mark later. Whatever is taken in after a look began expires after it, and what was taken in before is waited
for.

A record that retention takes before its time is over is no letter: it did not expire.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import numpy as np

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.topics import Topic
from braidmq.hot import layout
from braidmq.hot.expiring import HIDDEN_MS, expiry_column
from braidmq.log.expiry_cursor import PIECE_BYTES, ExpiryCursor
from braidmq.log.partition import PartitionLog
from braidmq.log.partition_reads import Cold

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

logger = logging.getLogger("braidmq.expiry")


class ExpiredLetters:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._one_at_a_time = asyncio.Lock()
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
        return self._topics

    async def sweep(self) -> int:
        """Make letters of what expired by now; returns how many."""
        count = 0
        async with self._one_at_a_time:
            for topic in self._asking():
                for partition in range(topic.partitions):
                    try:
                        count += await self._sweep(topic, self._broker.log_of(topic, partition))
                    except BraidError as error:
                        logger.error("expired records of %s/%d: %s", topic.name, partition, error)
        return count

    async def _sweep(self, topic: Topic, log: PartitionLog) -> int:
        now_ms = self._broker.steady.now_ms()
        await _written(log, log.accumulator.next_offset)
        cursor = log.expiry_cursor
        if cursor is None or cursor.offset > log.high_watermark:
            # Nobody has looked yet, or at a log that was longer before it lost its end.
            cursor = log.expiry_cursor = ExpiryCursor()
        cursor.forget_below(log.log_start)
        while cursor.offset < log.high_watermark:
            await self._look(log, cursor)
        mark = self._broker.work.table.letters.expired_to(topic.id, log.partition)
        due: list[tuple[int, int]] = []
        pieces: list[tuple[int, int | None]] = []
        for start, end in cursor.due(now_ms):
            found, following = await self._expired(log, start, end, now_ms)
            due += found
            pieces.append((start, following))
        due = sorted(entry for entry in due if entry > mark)
        for at in range(0, len(due), limits.DELIVERY_RECORDS_MAX):
            await self._bury(topic, log, due[at : at + limits.DELIVERY_RECORDS_MAX])
        # Only now: a checkpoint that was written meanwhile must not say that these are dealt with.
        for start, following in pieces:
            cursor.settle(start, following)
        return len(due)

    async def _look(self, log: PartitionLog, cursor: ExpiryCursor) -> None:
        """Look at some batches more."""
        data = await self._read(log, cursor.offset, PIECE_BYTES)
        start = end = cursor.offset
        expiry_ms: int | None = None
        at = 0
        while at < len(data):
            head = layout.read_header(data, at)
            if head.flags & layout.FLAG_EXPIRY:
                column = expiry_column(data, head, at)
                column = column[column > HIDDEN_MS]
                if len(column):
                    expiry_ms = min(int(column.min()), expiry_ms or int(column.min()))
            end = head.next_offset
            at += head.length
        cursor.look(start, end, expiry_ms, len(data))

    async def _expired(self, log: PartitionLog, start: int, end: int, now_ms: int) -> tuple[list[tuple[int, int]], int | None]:
        """(expiry, offset) of what has expired of a piece, and when its next record does."""
        found: list[tuple[int, int]] = []
        following: int | None = None
        offset = max(start, log.log_start)
        while offset < end:
            data = await self._read(log, offset, PIECE_BYTES)
            at = 0
            while at < len(data) and offset < end:
                head = layout.read_header(data, at)
                if head.flags & layout.FLAG_EXPIRY:
                    column = expiry_column(data, head, at)
                    later = column[column > now_ms]
                    if len(later):
                        following = min(int(later.min()), following or int(later.min()))
                    gone = np.flatnonzero((column > HIDDEN_MS) & (column <= now_ms))
                    found += zip(column[gone].tolist(), (gone + head.base_offset).tolist(), strict=True)
                offset = head.next_offset
                at += head.length
        return found, following

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


async def _written(log: PartitionLog, end_offset: int) -> None:
    """Wait until everything below `end_offset` can be read, or never will be."""
    settled = asyncio.Event()
    log.when_visible(end_offset, lambda _: settled.set())
    await settled.wait()
