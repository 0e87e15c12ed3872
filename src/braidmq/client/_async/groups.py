"""Consumer groups, for administration: what `braid group` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from braidmq.base.errors import BraidError
from braidmq.client.faults import lacks_opcode
from braidmq.client.models import GroupPartition, GroupState, OffsetChange
from braidmq.wire import flymq

from .asking import Asker


class Groups:
    """`client.group`."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def ls(self) -> list[flymq.GroupInfo]:
        """Every group on every topic, with its members and committed offsets."""
        return list((await self._asker.ask(flymq.ListGroups(), flymq.Groups)).groups)

    async def show(self, group: str) -> GroupState:
        """State, members and partitions of a group, on all its topics."""
        detail = await self._asker.ask(flymq.DescribeGroup("", group, group_only=True), flymq.GroupDetail)
        return GroupState(group, detail.state, detail.members, tuple(await self._lags(group, detail.topics)))

    async def lag(self, group: str, topic: str | None = None) -> list[GroupPartition]:
        """How far the group is behind, in records and in time, for each partition of one topic or of all its topics."""
        if topic is not None:
            return await self._lags(group, [topic])
        return list((await self.show(group)).partitions)

    async def _lags(self, group: str, topics: Sequence[str]) -> list[GroupPartition]:
        answers = await self._asker.ask_all([flymq.GroupLag(topic, group) for topic in topics], flymq.PartitionLags)
        return [
            GroupPartition(topic, part.partition, part.committed, part.latest, part.lag, part.lag_ms)
            for topic, answer in zip(topics, answers, strict=True)
            for part in answer.partitions
        ]

    async def committed(self, group: str, topic: str) -> dict[int, int]:
        """The next offset of each partition of which the group has committed something; `lag` says 0 of the others, too."""
        found = await self._asker.ask(flymq.DescribeGroup(topic, group), flymq.GroupInfo)
        return {place.partition: place.offset for place in found.offsets}

    async def commit(self, group: str, offsets: Sequence[tuple[str, int, int]]) -> None:
        """Store positions (topic, partition, next offset) of a group whose members divide nothing, all asked for at once."""
        await self._asker.ask_all([flymq.Commit(topic, group, partition, at) for topic, partition, at in offsets], flymq.Ok)

    async def plan(self, group: str, offsets: Sequence[tuple[str, int, int]]) -> None:
        """Say where a group will be when what it is doing now is published (`client.stage.publish` with the group)."""
        places = tuple(flymq.TopicOffset(*offset) for offset in offsets)
        await self._asker.ask(flymq.GroupPlan(group, places), flymq.Ok)

    async def seek(
        self,
        group: str,
        topic: str,
        to: Literal["earliest", "latest"] | None = None,
        *,
        offset: int | None = None,
        timestamp_ms: int | None = None,
        partitions: Sequence[int] | None = None,
        dry_run: bool = False,
    ) -> list[OffsetChange]:
        """Move a group in some partitions of a topic, or in all: to an end, an offset, or the first record since a time.

        An offset that a partition does not hold becomes the nearest one that it does. A dry run only says what would
        change. Members that are reading commit over it, so stop them first. The group is created when it is missing.
        """
        if sum(given is not None for given in (to, offset, timestamp_ms)) != 1:
            raise BraidError("INVALID_ARGUMENT", reason="give one of earliest or latest, an offset, and a time")
        if to not in (None, "earliest", "latest"):
            raise BraidError("INVALID_RESET_MODE", mode=to)
        ends = await self._ends(topic)
        chosen = range(len(ends)) if partitions is None else list(dict.fromkeys(partitions))
        for number in chosen:
            if not 0 <= number < len(ends):
                raise BraidError("PARTITION_NOT_FOUND", partition=number)
        before = await self._asker.ask_all([flymq.GetLag(topic, group, number) for number in chosen], flymq.Lag)
        if timestamp_ms is not None:
            # Without a group it is only looked up.
            lookups = [flymq.SeekToTimestamp(topic, "", number, timestamp_ms) for number in chosen]
            after = [found.offset for found in await self._asker.ask_all(lookups, flymq.Offset)]
        else:
            parts = [ends[number] for number in chosen]
            if offset is not None:
                after = [min(max(offset, oldest), newest) for oldest, newest in parts]
            else:
                after = [oldest if to == "earliest" else newest for oldest, newest in parts]
        changes = [
            OffsetChange(topic, number, old.committed, new) for number, old, new in zip(chosen, before, after, strict=True)
        ]
        if not dry_run:
            resets = [flymq.ResetOffset(topic, group, change.partition, "offset", change.after) for change in changes]
            await self._asker.ask_all(resets, flymq.Ok)
        return changes

    async def _ends(self, topic: str) -> list[tuple[int, int]]:
        """The oldest offset of each partition and the next one to be written. In a cluster the leaders say it, or it is an error:
        METADATA has what the node that was asked knows."""
        try:
            places = (await self._asker.ask(flymq.TopicPlaces((topic,)), flymq.Places)).topics
        except BraidError as fault:
            if not lacks_opcode(fault):
                raise
            info = await self._asker.ask(flymq.Metadata(topic), flymq.TopicMetadata)
            return [(part.oldest, part.newest) for part in info.partitions]
        if not places:
            raise BraidError("TOPIC_NOT_FOUND", topic=topic)
        return [(part.oldest, part.newest) for part in places[0].partitions]

    async def rm(self, group: str, topic: str | None = None) -> None:
        """Delete a group's offsets, on one topic or on all. Members that live come back and begin without offsets."""
        await self._asker.ask(flymq.DeleteGroup(topic or "", group), flymq.Ok, again=False)
