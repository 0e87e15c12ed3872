"""Waiting for something to come to many partitions of another node at once; what asks is `broker/push/distant_reads.py`.

An answer has a row for each partition: nothing where nothing came, else where it begins and ends, and a part of what came. Whatever
cannot be said in a row, an error above all, is left to a question about that partition alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from braidmq.base import limits
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.broker.peers import PartitionReading
from braidmq.cluster.messages import pack, unpack
from braidmq.cluster.transport import ClusterOp
from braidmq.log.partition import PartitionLog

if TYPE_CHECKING:
    from braidmq.cluster.node import ClusterNode

_ANSWER_S: Final = 10.0

logger = logging.getLogger("braidmq.cluster")


class WhatComes:
    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        node.transport.serve(ClusterOp.PARTITIONS_COME, self._asked)

    async def ask(
        self, node: str, rows: Sequence[tuple[int, int, int, int]], wait_s: float
    ) -> list[PartitionReading | None]:
        document = [round(wait_s * 1000), rows]
        payload = await self._node.transport.call(node, ClusterOp.PARTITIONS_COME, pack(document), wait_s + _ANSWER_S)
        answers, batches = unpack(payload)
        if len(answers) != len(rows):
            raise BraidError("INVALID_ARGUMENT", reason=f"{node} answers for {len(answers)} of {len(rows)} partitions")
        found: list[PartitionReading | None] = []
        at = 0
        for answer in answers:
            if not answer:
                found.append(None)
                continue
            log_start, high_watermark, next_offset, size = answer
            # Each is kept for a time of its own.
            found.append(PartitionReading(log_start, high_watermark, next_offset, bytes(batches[at : at + size])))
            at += size
        return found

    async def _asked(self, _node: str, payload: memoryview) -> Sequence[Buffer]:
        wait_ms, rows = unpack(payload)[0]
        logs = [self._log(topic_id, partition) for topic_id, partition, _, _ in rows]
        here = [log for log in logs if log is not None]
        if len(here) == len(logs) and all(
            log.high_watermark <= row[2] for log, row in zip(here, rows, strict=True)
        ):
            await self._node.broker.tails_moved(here, wait_ms / 1000)
        left = limits.PUSH_CHUNK_BYTES
        answers: list[list[int]] = []
        found: list[Buffer] = []
        for log, (_, _, offset, bytes_max) in zip(logs, rows, strict=True):
            if log is None or log.removed or log.high_watermark <= offset:
                answers.append([])
                continue
            batches, next_offset = await self._read(log, offset, min(bytes_max, left))
            size = sum(map(len, batches))
            left = max(0, left - size)
            found += batches
            answers.append([log.log_start, log.high_watermark, next_offset, size])
        return pack(answers, b"".join(found))

    def _log(self, topic_id: int, partition: int) -> PartitionLog | None:
        topic = self._node.broker.topics.by_id(topic_id)
        if topic is None or not self._node.holds(topic_id, partition):
            return None
        return self._node.broker.log_of(topic, partition)

    async def _read(self, log: PartitionLog, offset: int, bytes_max: int) -> tuple[list[Any], int]:
        if not bytes_max or offset < log.log_start:
            return [], offset
        try:
            read = await self._node.broker.read_whole(log, offset, bytes_max, raw=False)
        except BraidError as error:
            # Whoever comes to read there is told.
            logger.debug("%s/%d is not read ahead: %s", log.topic, log.partition, error)
            return [], offset
        except Exception:
            # A bug with one partition is not to hold up the others.
            logger.exception("%s/%d is not read ahead", log.topic, log.partition)
            return [], offset
        return read.slices, read.next_offset
