"""What leaders say of their partitions to those who mind groups: where they begin and end, how old is what somebody has not
read, and where in them a time is.

Groups and dead letters are minded by the coordinator, and shown by any node; neither need have a replica. What is asked for many
groups at once goes to each leader in a few calls, and one that is away costs no more than a limit. Who leads says no end before it
knows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.broker.peers import PartitionLook
from braidmq.broker.topics import Topic
from braidmq.cluster.messages import pack, unpack
from braidmq.cluster.partition_state import LogKey
from braidmq.cluster.transport import ClusterOp
from braidmq.cluster.transport_tcp import decode_fault, encode_fault

if TYPE_CHECKING:
    from braidmq.cluster.node import ClusterNode

_SINCE_S: Final = 30.0
"""A time may have to be looked up in indexes that are on the disk."""
_ROWS: Final = 5_000
"""Offsets and partitions of one call, so that none keeps a loop for long."""

Row = tuple[int, int, list[int]]
"""Topic id, partition, offsets."""


class LeaderLooks:
    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        node.transport.serve(ClusterOp.PARTITION_LOOK, self._look_asked)
        node.transport.serve(ClusterOp.PARTITION_SINCE, self._since_asked)

    # --- asking

    async def look(
        self, wanted: Mapping[LogKey, Collection[int]], wait_s: float
    ) -> dict[LogKey, PartitionLook | BraidError]:
        found: dict[LogKey, PartitionLook | BraidError] = {}
        asked: dict[str, dict[LogKey, Collection[int]]] = {}
        for key, offsets in wanted.items():
            try:
                asked.setdefault(self._node.leader_of(*key), {})[key] = offsets
            except BraidError as nobody:
                found[key] = nobody

        async def ask(leader: str, wanted: Mapping[LogKey, Collection[int]]) -> None:
            try:
                async with asyncio.timeout(wait_s):
                    for rows in _some(wanted):
                        for (topic_id, partition, _), said in zip(rows, await self._said(leader, rows, wait_s), strict=True):
                            _add(found, (topic_id, partition), said)
            except (BraidError, TimeoutError) as fault:
                why = f"no answer within {wait_s:g} s"
                error = fault if isinstance(fault, BraidError) else BraidError("NODE_UNREACHABLE", node=leader, reason=why)
                found.update(dict.fromkeys(wanted, error))

        await asyncio.gather(*(ask(leader, wanted) for leader, wanted in asked.items()))
        return found

    async def _said(self, leader: str, rows: list[Row], wait_s: float) -> list[Any]:
        if leader == self._node.node:
            return await self._look(rows)
        said: list[Any] = unpack(await self._node.transport.call(leader, ClusterOp.PARTITION_LOOK, pack(rows), wait_s))[0]
        return said

    async def offsets_since(self, topic: Topic, partitions: Collection[int], timestamp_ms: int) -> list[int]:
        asked: dict[str, list[int]] = {}
        for partition in partitions:
            asked.setdefault(self._node.leader_of(topic.id, partition), []).append(partition)
        found: dict[int, int] = {}

        async def ask(leader: str, partitions: list[int]) -> None:
            document = [topic.id, partitions, timestamp_ms]
            if leader == self._node.node:
                said = await self._since(document)
            else:
                said = unpack(await self._node.transport.call(leader, ClusterOp.PARTITION_SINCE, pack(document), _SINCE_S))[0]
            found.update(zip(partitions, said, strict=True))

        await asyncio.gather(*(ask(leader, partitions) for leader, partitions in asked.items()))
        return [found[partition] for partition in partitions]

    # --- being asked

    async def _look_asked(self, node: str, payload: memoryview) -> Sequence[Buffer]:
        return pack(await self._look(unpack(payload)[0]))

    async def _look(self, rows: Sequence[Row]) -> list[Any]:
        """For each row where its partition begins and ends, and offsets with ages; or why not."""
        coordinator, topics = self._node.broker.coordinator, self._node.broker.topics
        found: list[Any] = []
        for topic_id, partition, offsets in rows:
            try:
                self._node.place_led(topic_id, partition)
                topic = topics.by_id(topic_id)
                assert topic is not None, "nobody leads a partition of none"
                seen = await coordinator.look_here(topic, partition, offsets)
                _, _, size_bytes = self._node.place_led(topic_id, partition)
                found.append([seen.log_start, seen.high_watermark, list(seen.ages_ms.items()), size_bytes])
            except BraidError as error:
                found.append([encode_fault(error).decode()])
        return found

    async def _since_asked(self, node: str, payload: memoryview) -> Sequence[Buffer]:
        return pack(await self._since(unpack(payload)[0]))

    async def _since(self, document: Sequence[Any]) -> list[int]:
        topic_id, partitions, timestamp_ms = document
        broker = self._node.broker
        found = []
        for partition in partitions:
            self._node.place_led(topic_id, partition)
            topic = broker.topics.by_id(topic_id)
            assert topic is not None, "nobody leads a partition of none"
            found.append(await broker.coordinator.offset_here(topic, partition, timestamp_ms))
            self._node.place_led(topic_id, partition)
        return found


def _some(wanted: Mapping[LogKey, Collection[int]]) -> Iterator[list[Row]]:
    """All that is wanted, so much of it at a time as one call carries."""
    rows: list[Row] = []
    count = 0
    for (topic_id, partition), offsets in wanted.items():
        ordered = sorted(offsets)
        for first in range(0, max(1, len(ordered)), _ROWS):
            part = ordered[first : first + _ROWS]
            if rows and count + 1 + len(part) > _ROWS:
                yield rows
                rows, count = [], 0
            rows.append((topic_id, partition, part))
            count += 1 + len(part)
    if rows:
        yield rows


def _add(found: dict[LogKey, PartitionLook | BraidError], key: LogKey, said: list[Any]) -> None:
    """What a leader says of a partition, with what it said before of other offsets; where it cannot, why."""
    if len(said) == 1:
        found[key] = decode_fault(memoryview(said[0].encode()))
        return
    start, end, ages, size_bytes = said
    before = found.get(key)
    if before is None:
        found[key] = PartitionLook(start, end, dict(ages), size_bytes)
    elif isinstance(before, PartitionLook):
        found[key] = PartitionLook(start, end, {**before.ages_ms, **dict(ages)}, size_bytes)
