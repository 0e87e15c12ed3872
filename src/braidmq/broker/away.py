"""Records for partitions that other nodes of the cluster lead: gathered here, appended there, each once.

Whoever brings a record to this broker need not know who leads. What comes for a partition while a batch is on its way there
goes with the next one, so that order is kept and batches grow under load. Each lane is an idempotent producer: a batch whose answer
was lost is sent again, to whichever node leads by then, and is stored once. A leader that is gone costs a pause; only when nobody
leads for longer than `_PATIENCE_S` is it an error.

What waits is bounded, for a partition and for all. Whoever takes records in asks first (`is_full`), and reads no more from its
publisher until there is room (`room`): a leader that is slow or gone slows publishers down, and costs no memory.

It may be this node that leads by then. What waits here came before what comes now, so as long as anything does, records of the
partition still join the end of the line (`busy`), and the parser, which knows no lines, appends nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.staged import StagedBatch
from braidmq.broker.topics import Topic
from braidmq.hot.expiring import with_times_to_live
from braidmq.log.partition import PartitionLog

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

_PATIENCE_S: Final = 30.0
_AGAIN_S: Final = 0.05
_RETRIED: Final = frozenset({"NOT_LEADER", "LEADER_MOVED", "NODE_UNREACHABLE", "COORDINATOR_MOVED", "NOT_ENOUGH_REPLICAS"})
_SEQUENCE_MAX: Final = 0x3FFFFFFF
_BATCH_BYTES_TARGET: Final = 4 * limits.MIB
_RECORD_BYTES: Final = 1000
"""What a record takes that waits, besides its bytes: about so much, measured."""


class AwayRecord(StagedBatch):
    """A record on its way to another node. Where it lies there is known when it is durable."""

    __slots__ = ("_outcome",)

    _outcome: asyncio.Future[None]

    def when_durable(self, callback: Callable[[BraidError | None], None]) -> None:
        self._outcome.add_done_callback(lambda outcome: callback(_error_of(outcome)))


def _error_of(outcome: asyncio.Future[None]) -> BraidError | None:
    error = outcome.exception()
    assert error is None or isinstance(error, BraidError)
    return error


class _Lane:
    """What goes to one partition."""

    def __init__(self, broker: Broker, topic: Topic, partition: int, number: int) -> None:
        self._broker = broker
        self._topic = topic
        self._partition = partition
        node = broker.security.settings.node_id
        text = f"{node} {broker.clock.now_ms()} {topic.id} {partition} {number}"
        self._producer = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
        self._sequence = 0
        self._waiting: list[tuple[AwayRecord, bytes, bytes, int, bytes]] = []
        self.waiting_bytes = 0
        """What is not stored yet, on its way or not."""
        self._sending: asyncio.Task[None] | None = None
        self._kept_in_line: list[PartitionLog] = []
        """The partition's log here. It is another one when the partition went and came back."""
        self.failed = False
        """Whether a batch of it may be stored or not: nothing can follow it under the same name."""

    @property
    def used_up(self) -> bool:
        # One that is busy goes on: what waits in it has to come first. The numbers reach far behind that mark.
        return self.failed or (self._sequence > _SEQUENCE_MAX and not self.busy)

    @property
    def busy(self) -> bool:
        return self._sending is not None

    def add(self, key: bytes, value: bytes, ttl_ms: int, attrs: bytes) -> AwayRecord:
        log = self._broker.log_of(self._topic, self._partition)
        if not log.in_line:
            log.keep_in_line(True)
            self._kept_in_line.append(log)
        record = AwayRecord(log, -1, 1, 0, False)
        record._outcome = asyncio.get_running_loop().create_future()
        # Nobody has to wait for it.
        record._outcome.add_done_callback(_error_of)
        self._waiting.append((record, key, value, ttl_ms, attrs))
        self.waiting_bytes += _size(key, value, attrs)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        return record

    async def _send(self) -> None:
        # The rest of this turn comes along.
        await asyncio.sleep(0)
        try:
            while self._waiting and not self.failed:
                batch, self._waiting = self._next()
                await self._send_batch(batch)
                self._settled(sum(_size(row[1], row[2], row[4]) for row in batch))
        finally:
            self._sending = None
            # What a lane that failed still had is gone with it.
            self._settled(self.waiting_bytes)
            for log in self._kept_in_line:
                log.keep_in_line(False)
            self._kept_in_line.clear()

    def _settled(self, size: int) -> None:
        """So much does not wait any more."""
        self.waiting_bytes -= size
        self._broker.away.settled(size)

    def _next(self) -> tuple[list[tuple[AwayRecord, bytes, bytes, int, bytes]], list[tuple[AwayRecord, bytes, bytes, int, bytes]]]:
        """What fits one batch, and the rest."""
        size = count = 0
        for _, key, value, _, attrs in self._waiting:
            size += _size(key, value, attrs)
            if count and size > _BATCH_BYTES_TARGET:
                break
            count += 1
        return self._waiting[:count], self._waiting[count:]

    async def _send_batch(self, rows: list[tuple[AwayRecord, bytes, bytes, int, bytes]]) -> None:
        keys, values = [row[1] or None for row in rows], [row[2] for row in rows]
        attrs = [row[4] for row in rows] if any(row[4] for row in rows) else None
        batch = hot.encode_batch(keys, values, attrs, self._producer, 0, self._sequence)
        if any(row[3] for row in rows):
            batch = with_times_to_live(batch, [min(max(row[3], 0), limits.TTL_MS_MAX) for row in rows])
        try:
            offset, timestamp = await self._deliver(batch)
        except BraidError as error:
            self.failed = True
            for row in (*rows, *self._waiting):
                row[0]._outcome.set_exception(error)
            self._waiting = []
            return
        self._sequence += len(rows)
        for number, row in enumerate(rows):
            row[0].base_offset, row[0].timestamp = offset + number, timestamp
            row[0]._outcome.set_result(None)

    async def _deliver(self, batch: bytes) -> tuple[int, int]:
        broker = self._broker
        deadline_s = broker.clock.monotonic() + _PATIENCE_S
        while True:
            try:
                if not broker.led_elsewhere(self._topic, self._partition):
                    # It came here meanwhile.
                    staged = broker.stage_batch(self._topic, self._partition, batch)
                    await staged.durability()
                    return staged.base_offset, staged.timestamp
                assert broker.peers is not None
                offset, _, timestamp, _ = await broker.peers.produce(self._topic, self._partition, batch)
                return offset, timestamp
            except BraidError as error:
                # A topic that is here was made, and a leader that does not know it is about to learn of it.
                behind = error.code == "TOPIC_NOT_FOUND" and broker.topics.by_id(self._topic.id) is not None
                if not (behind or error.code in _RETRIED) or broker.clock.monotonic() >= deadline_s:
                    raise
            await asyncio.sleep(_AGAIN_S)


def _size(key: bytes, value: bytes, attrs: bytes) -> int:
    return _RECORD_BYTES + len(key) + len(value) + len(attrs)


class Away:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lanes: dict[tuple[int, int], _Lane] = {}
        self._made = 0
        self.waiting_bytes = 0
        """What waits for leaders elsewhere, of all partitions."""
        self._for_room: list[asyncio.Future[None]] = []

    # --- how much may wait

    def is_full(self, topic: Topic, partition: int) -> bool:
        """Whether whoever brings records for a partition has to wait first (`room`)."""
        lane = self._lanes.get((topic.id, partition))
        if lane is None or not lane.waiting_bytes:
            return False
        return lane.waiting_bytes >= limits.AWAY_LANE_BYTES_MAX or self.waiting_bytes >= limits.AWAY_BYTES_MAX

    async def room(self, topic: Topic, partition: int) -> None:
        """Wait until a record for a partition may be brought."""
        while self.is_full(topic, partition):
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._for_room.append(settled)
            await settled

    def settled(self, size: int) -> None:
        """So much is stored, or never will be."""
        self.waiting_bytes -= size
        waiting, self._for_room = self._for_room, []
        for settled in waiting:
            if not settled.done():
                settled.set_result(None)

    # --- records

    def busy(self, topic: Topic, partition: int) -> bool:
        """Whether records for a partition wait here, behind which others have to queue, whoever leads it."""
        lane = self._lanes.get((topic.id, partition))
        return lane is not None and lane.busy

    def stage(self, topic: Topic, partition: int, key: bytes, value: bytes, ttl_ms: int, attrs: bytes) -> StagedBatch:
        """Take one record in for another node; its offset is known when it is durable."""
        lane = self._lanes.get((topic.id, partition))
        if lane is None or lane.used_up:
            self._made += 1
            lane = self._lanes[topic.id, partition] = _Lane(self._broker, topic, partition, self._made)
        self.waiting_bytes += _size(key, value, attrs)
        return lane.add(key, value, ttl_ms, attrs)
