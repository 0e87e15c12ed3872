"""Consumer groups: offsets, lag, administration, and members that share partitions."""

from __future__ import annotations

from functools import partial

from braidmq.broker.group_lag import GroupLag
from braidmq.broker.groups import GroupInfo
from braidmq.broker.pace import Pace
from braidmq.server.operations.calling import Answer, Caller, Outcome, note, respond
from braidmq.server.operations.group_notes import NotedCommit, note_move, noted_groups
from braidmq.wire import flymq
from braidmq.wire.flymq import TopicPartition

# --- published clients


def subscribe(caller: Caller, request: flymq.Subscribe) -> Outcome:
    broker = caller.broker
    if broker.peers is not None:
        return _subscribe_in_cluster(caller, request)
    with noted_groups(caller, request.group, (request.topic,), "subscribe"):
        offset = broker.subscribe(request.topic, request.group, request.partition, request.mode, caller, caller.address)
    if request.group:
        caller.remember_membership(broker.topic(request.topic).id, request.group)
    return respond(caller, request, flymq.Offset(offset))


async def _subscribe_in_cluster(caller: Caller, request: flymq.Subscribe) -> Answer:
    with noted_groups(caller, request.group, (request.topic,), "subscribe"):
        offset = await caller.broker.coordinator.subscribe_in_cluster(
            request.topic, request.group, request.partition, request.mode, caller, caller.address
        )
    if request.group:
        caller.remember_membership(caller.broker.topic(request.topic).id, request.group)
    return respond(caller, request, flymq.Offset(offset))


async def commit(caller: Caller, request: flymq.Commit) -> Answer:
    with NotedCommit(caller, request.group, [(request.topic, request.partition, request.offset)], "commit"):
        await caller.broker.commit_offset(request.topic, request.group, request.partition, request.offset)
    return respond(caller, request, flymq.Ok())


def get_offset(caller: Caller, request: flymq.GetOffset) -> Answer:
    offset = caller.broker.coordinator.committed(request.topic, request.group, request.partition)
    return respond(caller, request, flymq.Offset(offset))


async def reset_offset(caller: Caller, request: flymq.ResetOffset) -> Answer:
    with noted_groups(caller, request.group, (request.topic,), "reset"):
        changes = await caller.broker.coordinator.reset(
            request.topic, request.group, request.partition, request.mode, request.offset or 0
        )
    for change in changes:
        note_move(caller, request.topic, request.group, change.partition, change.before, change.after, request.mode)
    return respond(caller, request, flymq.Ok())


async def list_groups(caller: Caller, request: flymq.ListGroups) -> Answer:
    """A few at a time, and put into bytes beside the loop: all of them may take a second."""
    rows: list[flymq.GroupInfo] = []
    pace = Pace()
    for info in caller.broker.coordinator.each_group():
        rows.append(_info(info))
        await pace.step(1 + len(info.offsets))
    answer: Answer = await caller.broker.compute(partial(respond, caller, request, flymq.Groups(tuple(rows))))
    return answer


def describe_group(caller: Caller, request: flymq.DescribeGroup) -> Answer:
    coordinator = caller.broker.coordinator
    if not request.group_only:
        return respond(caller, request, _info(coordinator.describe(request.topic, request.group)))
    found = [coordinator.describe(topic, request.group) for topic in coordinator.topics_of(request.group)]
    members = tuple(dict.fromkeys(member for info in found for member in info.members))
    states = {info.state for info in found}
    state = next(state for state in ("rebalancing", "active", "empty") if state in states)
    topics = tuple(info.topic for info in found)
    return respond(caller, request, flymq.GroupDetail(request.group, state, members, topics, ""))


def _info(found: GroupInfo) -> flymq.GroupInfo:
    offsets = tuple(flymq.GroupOffset(partition, offset) for partition, offset in found.offsets)
    return flymq.GroupInfo(found.topic, found.group, len(found.members), offsets)


async def get_lag(caller: Caller, request: flymq.GetLag) -> Answer:
    lag = await caller.broker.coordinator.lag(request.topic, request.group, request.partition)
    return respond(caller, request, flymq.Lag(lag.committed, lag.committed, lag.latest, lag.records))


def group_lag(caller: Caller, request: flymq.GroupLag) -> Outcome:
    lag = caller.broker.coordinator.group_lag_at_hand(request.topic, request.group)
    return _group_lag_read(caller, request) if lag is None else _lag_answer(caller, request, lag)


async def _group_lag_read(caller: Caller, request: flymq.GroupLag) -> Answer:
    lag = await caller.broker.coordinator.group_lag(request.topic, request.group)
    return _lag_answer(caller, request, lag.complete())


def _lag_answer(caller: Caller, request: flymq.GroupLag, lag: GroupLag) -> Answer:
    rows = (flymq.PartitionLag(each.partition, each.committed, each.latest, each.records, each.ms) for each in lag.partitions)
    return respond(caller, request, flymq.PartitionLags(tuple(rows)))


async def delete_group(caller: Caller, request: flymq.DeleteGroup) -> Answer:
    for topic in await caller.broker.coordinator.delete(request.topic, request.group):
        note(caller, "group.delete", f"{topic}:{request.group}", "delete")
    return respond(caller, request, flymq.Ok())


async def seek_to_timestamp(caller: Caller, request: flymq.SeekToTimestamp) -> Answer:
    coordinator = caller.broker.coordinator
    before = coordinator.position(request.topic, request.group, request.partition)
    with noted_groups(caller, request.group, (request.topic,), "seek"):
        offset = await coordinator.seek(request.topic, request.group, request.partition, request.timestamp)
    if request.group:
        note_move(caller, request.topic, request.group, request.partition, before, offset, "timestamp")
    return respond(caller, request, flymq.Offset(offset))


# --- members that share partitions


async def group_join(caller: Caller, request: flymq.GroupJoin) -> Answer:
    with noted_groups(caller, request.group, request.topics, "join"):
        joined = await caller.broker.coordinator.members.join(
            request.group, request.member, request.topics, request.strategy, request.session_timeout_ms, caller, caller.address
        )
    share = tuple(
        TopicPartition(topic, partition) for topic, partitions in sorted(joined.assignment.items()) for partition in partitions
    )
    return respond(caller, request, flymq.GroupAssignment(joined.member, joined.generation, share))


def group_heartbeat(caller: Caller, request: flymq.GroupHeartbeat) -> Answer:
    beat = caller.broker.coordinator.members.heartbeat(request.group, request.member, request.generation, caller)
    return respond(caller, request, flymq.HeartbeatReply(beat.generation, beat.rebalance))


def group_leave(caller: Caller, request: flymq.GroupLeave) -> Answer:
    caller.broker.coordinator.members.leave(request.group, request.member)
    return respond(caller, request, flymq.Ok())


async def group_commit(caller: Caller, request: flymq.GroupCommit) -> Answer:
    offsets = [(place.topic, place.partition, place.offset) for place in request.offsets]
    with NotedCommit(caller, request.group, offsets, "commit"):
        await caller.broker.coordinator.commit(request.group, request.member, request.generation, offsets)
    return respond(caller, request, flymq.Ok())
