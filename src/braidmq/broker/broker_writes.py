"""Taking records in, for everything but the hot path: where a record goes, and when it is durable.

A record for a partition that another node of the cluster leads goes there (`away.py`); whoever waits for it cannot tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.base.steady_clock import SteadyClock
from braidmq.broker.away import Away
from braidmq.broker.peers import Peers
from braidmq.broker.staged import StagedBatch
from braidmq.broker.topics import Topic
from braidmq.log.commit import GroupCommit
from braidmq.log.partition import PartitionLog


class BrokerWrites:
    """What of a broker taking in needs; `Broker` keeps it."""

    _loop: asyncio.AbstractEventLoop
    commit: GroupCommit
    steady: SteadyClock
    peers: Peers | None
    away: Away

    def route(self, topic: Topic) -> hot.Route:
        raise NotImplementedError

    def _log(self, topic: Topic, partition: int) -> PartitionLog:
        raise NotImplementedError

    def led_elsewhere(self, topic: Topic, partition: int) -> bool:
        """Whether another node has to be asked for a partition."""
        return self.peers is not None and not self.peers.leads(topic.id, partition)

    def goes_away(self, topic: Topic, partition: int) -> bool:
        """Whether a record that `stage` takes is stored by another node, or behind others that waited for one."""
        return self.peers is not None and (self.led_elsewhere(topic, partition) or self.away.busy(topic, partition))

    def leads_nothing_of(self, topic: Topic) -> bool:
        """Whether every partition of a topic is led elsewhere."""
        return self.peers is not None and not any(self.peers.leads(topic.id, number) for number in range(topic.partitions))

    def choose_partition(self, route: hot.Route, key: bytes, partition: int) -> int:
        """Where a record goes: as asked, else by its key, else in turn."""
        partitions = len(route.accumulators)
        if partition >= partitions:
            raise BraidError("PARTITION_NOT_FOUND", partition=partition)
        if partition >= 0:
            return partition
        if partitions == 1:
            return 0
        if key:
            return hot.fnv1a(key) % partitions
        for _ in range(partitions):
            chosen: int = route.counter % partitions
            route.counter += 1
            if self.peers is None or route.accumulators[chosen].writable:
                # In a cluster those that are led here come first: anybody may have a record without a key.
                break
        return chosen

    async def durable(self, log: PartitionLog, end_offset: int) -> None:
        """Wait until everything below `end_offset` is as durable as its topic promises."""
        await self.durability(log, end_offset)

    def durability(self, log: PartitionLog, end_offset: int) -> asyncio.Future[None]:
        """What `durable` waits for. To be asked for in the turn that brings the records: a write may fail at its end."""
        return StagedBatch(log, end_offset, 0, 0, False).durability()

    async def append(
        self, topic: Topic, partition: int, key: bytes, value: bytes, *, ttl_ms: int = 0, attrs: bytes = b""
    ) -> tuple[int, int, int]:
        """Store one record; returns partition, offset and timestamp once it is durable. A `ttl_ms` of 0 is the topic's."""
        staged = self.stage(topic, partition, key, value, ttl_ms=ttl_ms, attrs=attrs)
        await staged.durability()
        return staged.log.partition, staged.base_offset, staged.timestamp

    def stage(
        self, topic: Topic, partition: int, key: bytes, value: bytes, *, ttl_ms: int = 0, attrs: bytes = b""
    ) -> StagedBatch:
        """Take one record in; it is written at the end of this turn."""
        if len(key) + len(value) + len(attrs) > limits.RECORD_BYTES_MAX:
            raise BraidError("RECORD_TOO_LARGE", size=len(key) + len(value) + len(attrs), limit=limits.RECORD_BYTES_MAX)
        partition = self.choose_partition(self.route(topic), key, partition)
        if self.goes_away(topic, partition):
            return self.away.stage(topic, partition, key, value, ttl_ms, attrs)
        expiry = self.steady.now_ms() + min(ttl_ms, limits.TTL_MS_MAX) if ttl_ms > 0 else 0
        log = self._writable(topic, partition)
        timestamp = self.commit.now_ms()
        if log.pending_bytes + len(key) + len(value) > limits.FLUSH_BYTES_TARGET:
            self.commit.flush()
            timestamp = self.commit.now_ms()
        offset = log.accumulator.append(key or None, value, expiry, attrs or None)
        self.commit.touch(log)
        return StagedBatch(log, offset, 1, timestamp, False)

    def stage_batch(
        self, topic: Topic, partition: int, batch: bytes | memoryview, hidden: Collection[int] = ()
    ) -> StagedBatch:
        """Take a whole batch in; it is written at the end of this turn. `batch` is copied, its `hidden` records are for nobody."""
        if len(batch) > limits.RECORD_BYTES_MAX:
            raise BraidError("INVALID_BATCH", reason=f"{len(batch)} bytes do not fit a frame with their answer")
        route = self.route(topic)
        if partition < 0:
            partition = self.choose_partition(route, b"", -1)
        elif partition >= topic.partitions:
            raise BraidError("PARTITION_NOT_FOUND", partition=partition)
        log = self._writable(topic, partition)
        if log.pending_bytes + len(batch) > limits.FLUSH_BYTES_TARGET:
            self.commit.flush()
        base_offset, records, timestamp, duplicate = log.stage_batch(batch, self.commit.now_ms(), hidden)
        if not duplicate:
            self.commit.touch(log)
        return StagedBatch(log, base_offset, records, timestamp, duplicate)

    def _writable(self, topic: Topic, partition: int) -> PartitionLog:
        if self.peers is not None and not self.peers.leads(topic.id, partition):
            raise self.peers.not_leader(topic.id, partition)
        log = self._log(topic, partition)
        log.check_writable()
        return log

