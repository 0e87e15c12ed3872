"""Consumer groups: how far they are, how far behind in records and in time, and moving them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from braidmq.admin.call import Call, Nothing, PageQuery
from braidmq.admin.shapes import Bounds
from braidmq.base import limits
from braidmq.broker.group_lag import GroupLag
from braidmq.broker.groups import GroupInfo
from braidmq.broker.pace import Pace
from braidmq.security.rules import Rule


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """How far a group is in a partition."""

    partition: int
    offset: Annotated[int, "the next one to be read; 0 where nothing was committed"]
    committed: Annotated[bool, "whether the group ever committed here"]
    lag: Annotated[int | None, "records that are not read yet; missing while the partition's leader does not say"] = None
    newest_offset: Annotated[int | None, "the next one to be written; missing like the lag"] = None
    lag_ms: Annotated[int | None, "age of the oldest record that is not read yet; missing like the lag"] = None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group of a topic."""

    name: str
    topic: str
    members: int
    state: Annotated[str, "empty, active or rebalancing"]
    lag: Annotated[int, "records, of all partitions together"]
    partitions: list[GroupPartition]
    lag_ms: Annotated[int, "age of the oldest record that is not read yet"]
    member_ids: list[str]
    generation: int
    protocol: Annotated[str, "who keeps its place by it: flymq, blipmq, fq or spark"]
    unknown: Annotated[list[int], "partitions whose leaders do not answer: what the group has not read of them is not in its lag"]


@dataclass(frozen=True, slots=True)
class GroupQuery(PageQuery):
    """Which groups."""

    topic: Annotated[str, "only groups of this topic"] = ""
    search: Annotated[str, "only groups whose names hold this"] = ""


@dataclass(frozen=True, slots=True)
class Reset:
    """Where a group is to go."""

    mode: Literal["earliest", "latest", "offset", "timestamp"]
    value: Annotated[int, Bounds(0, (1 << 63) - 1), "the offset, or the time in milliseconds"] = 0
    partition: Annotated[int, Bounds(-1, limits.PARTITIONS_MAX), "-1 is all of them"] = -1
    dry_run: Annotated[bool, "only say what would change"] = False


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """What a reset does to one partition."""

    partition: int
    after: int
    records: Annotated[int, "how many records that is forward; negative is back"]
    before: int | None = None


@dataclass(frozen=True, slots=True)
class ResetOutcome:
    """What a reset did, or would do."""

    topic: str
    group: str
    dry_run: bool
    changes: list[OffsetMove]


async def list_groups(call: Call[GroupQuery, Nothing]) -> list[GroupRow]:
    """Groups of the topics that the caller may read, by topic and name. A header `Link` leads to the next page where there is
    one."""
    query = call.query
    may_read: dict[str, bool] = {}
    infos: list[GroupInfo] = []
    pace = Pace()
    for info in call.broker.coordinator.each_group():
        await pace.step()
        if (query.topic and info.topic != query.topic) or query.search not in info.group:
            continue
        if info.topic not in may_read:
            may_read[info.topic] = call.may(Rule.READ_TOPIC, info.topic)
        if may_read[info.topic]:
            infos.append(info)
    shown, cursor = call.page(infos, lambda info: (info.topic, info.group), query)
    call.link_next(cursor)
    lags = await call.broker.coordinator.lags_of([(info.topic, info.group) for info in shown])
    known = {(lag.topic, lag.group): lag for lag in lags}
    return [_row(info, known[info.topic, info.group]) for info in shown if (info.topic, info.group) in known]


async def get_group(call: Call[Nothing, Nothing]) -> GroupRow:
    """One group, named `group` or `topic:group`."""
    topic, group = _named(call)
    call.require(Rule.READ_TOPIC, topic, what="get_group")
    return await _described(call, topic, group)


async def delete_group(call: Call[Nothing, Nothing]) -> None:
    """Delete a group, named `group` or `topic:group`, with its offsets."""
    topic, group = _named(call)
    for gone in await call.broker.coordinator.delete(topic, group):
        call.note("group.delete", f"{gone}:{group}", "delete")


async def get_topic_group(call: Call[Nothing, Nothing]) -> GroupRow:
    """One group of a topic."""
    return await _described(call, call.path["topic"], call.path["group"])


async def delete_topic_group(call: Call[Nothing, Nothing]) -> None:
    """Delete a group of a topic with its offsets."""
    topic, group = call.path["topic"], call.path["group"]
    await call.broker.coordinator.delete(topic, group)
    call.note("group.delete", f"{topic}:{group}", "delete")


async def reset_group(call: Call[Nothing, Reset]) -> ResetOutcome:
    """Move a group to the beginning, the end, an offset or a time; with `dry_run` only say what would change."""
    topic, group, wanted = call.path["topic"], call.path["group"], call.body
    partition = None if wanted.partition < 0 else wanted.partition
    is_new = call.broker.coordinator.is_new(topic, group)
    changes = await call.broker.coordinator.reset(topic, group, partition, wanted.mode, wanted.value, dry_run=wanted.dry_run)
    if not wanted.dry_run:
        if is_new:
            call.note("group.create", f"{topic}:{group}", "reset")
        for change in changes:
            call.note(
                "offset.reset", f"{topic}:{group}", wanted.mode, "success", partition=str(change.partition),
                before="" if change.before is None else str(change.before), after=str(change.after),
            )  # fmt: skip
    moves = [OffsetMove(each.partition, each.after, each.after - (each.before or 0), each.before) for each in changes]
    return ResetOutcome(topic, group, wanted.dry_run, moves)


def _named(call: Call[Nothing, Nothing]) -> tuple[str, str]:
    """Topic and group of a name, which may hold colons on either side."""
    name = call.path["group"]
    coordinator = call.broker.coordinator
    at = name.find(":")
    while at >= 0:
        topic, group = name[:at], name[at + 1 :]
        if call.broker.topics.get(topic) is not None and not coordinator.is_new(topic, group):
            return topic, group
        at = name.find(":", at + 1)
    return coordinator.topics_of(name)[0], name


async def _described(call: Call[Nothing, Nothing], topic: str, group: str) -> GroupRow:
    coordinator = call.broker.coordinator
    return _row(coordinator.describe(topic, group), await coordinator.group_lag(topic, group))


def _row(info: GroupInfo, lag: GroupLag) -> GroupRow:
    committed = dict(info.offsets)
    partitions = [
        GroupPartition(each.partition, each.committed, each.partition in committed, each.records, each.latest, each.ms)
        if each.fault is None
        else GroupPartition(each.partition, each.committed, each.partition in committed)
        for each in lag.partitions
    ]
    return GroupRow(
        info.group, info.topic, len(info.members), info.state, lag.records, partitions, lag.ms, list(info.members), info.generation,
        _protocol(info.group), lag.unknown,
    )  # fmt: skip


def _protocol(group: str) -> str:
    prefix, colon, _ = group.partition(":")
    return prefix if colon and prefix in ("fq", "blipmq", "spark") else "flymq"
