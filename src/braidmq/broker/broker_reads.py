"""Reading, whichever protocol asks: cold data comes in beside the loop, and who waits for new records is woken.

What lies in memory is read from the partition at once (`log/partition_reads.py`); here is what takes longer than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.peers import Elsewhere, Peers
from braidmq.broker.record_filter import compile_filter, keep_matching
from braidmq.broker.topics import Topic
from braidmq.log.partition import PartitionLog
from braidmq.log.partition_reads import Batches, Cold, Rows

if TYPE_CHECKING:
    from braidmq.broker.push.distant_log import Source

_FILTER_STEP_RECORDS: Final = 2000
_ELSEWHERE_S: Final = 10.0
"""How long to try to read what lies on another node."""


class BrokerReads:
    """What of a broker reading needs; `Broker` keeps it."""

    _loop: asyncio.AbstractEventLoop
    _io: ThreadPoolExecutor
    _polls: set[asyncio.Event]
    """Long polls that wait now."""
    _stopping: bool
    peers: Peers | None

    def topic(self, name: str) -> Topic:
        raise NotImplementedError

    def log_of(self, topic: Topic, partition: int) -> PartitionLog:
        raise NotImplementedError

    def partition(
        self, name: str, partition: int, error: str = "PARTITION_OUT_OF_RANGE", *, replica: bool = False
    ) -> PartitionLog:
        """The partition's log, or the error that says what is missing. With `replica` a copy will do that readers may see."""
        topic = self.topic(name)
        if not 0 <= partition < topic.partitions:
            raise BraidError(error, partition=partition)
        peers = self.peers
        if peers is None or peers.leads(topic.id, partition) or (replica and peers.serves_readers(topic.id, partition)):
            return self.log_of(topic, partition)
        raise peers.not_leader(topic.id, partition)

    async def warm(self, cold: Cold | Elsewhere) -> None:
        """Bring a cold range into memory without holding up the loop, or try to bring one from another node."""
        if isinstance(cold, Elsewhere):
            await cold.bring()
        else:
            await self._loop.run_in_executor(self._io, cold.warm_up)

    async def read_whole(self, log: Source, offset: int, bytes_max: int, *, raw: bool) -> Batches:
        """Whole batches from `offset` on, or from where the log begins by now; with expired records where `raw` is asked for."""
        read = log.read_batches(offset, bytes_max, raw=raw)
        deadline_s = self._loop.time() + _ELSEWHERE_S
        while not isinstance(read, Batches):
            if self._loop.time() >= deadline_s:
                raise BraidError("NODE_UNREACHABLE", node=f"that leads {log.topic}/{log.partition}", reason="it does not answer")
            await self.warm(read)
            read = log.read_batches(max(offset, log.log_start), bytes_max, warmed=True, raw=raw)
        return read

    def row_at(self, log: PartitionLog, rows: Rows, offset: int) -> memoryview:
        """The row of exactly `offset` from a read that began there; MESSAGE_EXPIRED where that passed over it."""
        row = memoryview(rows.slices[0]) if rows.count else memoryview(b"")
        if int.from_bytes(row[-8:], "big") != offset or not rows.count:
            raise BraidError("MESSAGE_EXPIRED", offset=offset, topic=log.topic, partition=log.partition)
        return row

    async def finish_rows(self, log: PartitionLog, cold: Cold, offset: int, records_max: int, bytes_max: int) -> Rows:
        """Read rows that were cold at first, or that come after many expired ones."""
        deadline = self._loop.time() + limits.FILTER_SCAN_SECONDS_MAX
        while True:
            if cold.resume_at >= 0:
                offset = cold.resume_at
            await self.warm(cold)
            # Retention may have moved on meanwhile.
            rows = log.read_rows(max(offset, log.log_start), records_max, bytes_max, warmed=cold.resume_at < 0)
            if isinstance(rows, Rows):
                return rows
            cold = rows
            if cold.resume_at >= 0 and self._loop.time() >= deadline:
                return Rows([], 0, 0, cold.resume_at)

    async def read_batches(
        self, log: PartitionLog, offset: int, bytes_max: int, bytes_min: int, wait_s: float
    ) -> Batches:
        """Whole batches from `offset` on, waiting up to `wait_s` for at least `bytes_min` of them."""
        deadline = self._loop.time() + wait_s
        while True:
            read = log.read_batches(offset, bytes_max)
            if isinstance(read, Cold):
                await self.warm(read)
                read = log.read_batches(offset, bytes_max, warmed=True)
                assert not isinstance(read, Cold)
            left = deadline - self._loop.time()
            # More that does not fit any more is no reason to wait: the answer cannot grow.
            full = read.size > 0 and read.next_offset < log.high_watermark
            if read.size >= bytes_min or full or left <= 0 or log.removed or self._stopping:
                return read
            await self.tail_moved(log, left)
            offset = max(offset, log.log_start)

    async def tail_moved(self, log: PartitionLog, timeout_s: float) -> None:
        """Wait until there may be more of a partition to see, or the time is over, or the broker stops."""
        await self.tails_moved((log,), timeout_s)

    async def tails_moved(self, logs: Collection[PartitionLog], timeout_s: float) -> None:
        """The same, for any of several partitions."""
        moved = asyncio.Event()
        for log in logs:
            log.watch_tail(moved, moved.set)
        self._polls.add(moved)
        timer = self._loop.call_later(timeout_s, moved.set)
        try:
            await moved.wait()
        finally:
            timer.cancel()
            self._polls.discard(moved)
            for log in logs:
                log.unwatch_tail(moved)

    def end_polls(self) -> None:
        """Let every long poll answer now with what it has: the broker is about to stop."""
        self._stopping = True
        for poll in self._polls:
            poll.set()

    async def filtered(self, log: PartitionLog, offset: int, records_max: int, text: str) -> Rows:
        """Rows that match a filter; `next_offset` is after the last record looked at."""
        matches = compile_filter(text)
        deadline = self._loop.time() + limits.FILTER_SCAN_SECONDS_MAX
        result = Rows([], 0, 0, offset)
        while True:
            result.next_offset = max(result.next_offset, log.log_start)
            rows = log.read_rows(result.next_offset, _FILTER_STEP_RECORDS, limits.FETCH_BYTES_TARGET)
            if isinstance(rows, Cold):
                rows = await self.finish_rows(log, rows, result.next_offset, _FILTER_STEP_RECORDS, limits.FETCH_BYTES_TARGET)
            if rows.count == 0:
                result.next_offset = rows.next_offset
                break
            room_left = await self._loop.run_in_executor(self._io, partial(keep_matching, rows, matches, result, records_max))
            if not room_left or self._loop.time() >= deadline:
                break
        return result
