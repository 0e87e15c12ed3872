"""Staged writes: batches that many connections prepare and one request publishes; and where topics begin and end."""

from __future__ import annotations

from contextlib import ExitStack

from braidmq.broker.peers import Peers
from braidmq.broker.stages import StageState
from braidmq.server.authorization import owner_of, owner_text
from braidmq.server.operations.calling import Answer, Caller, Outcome, account, note, respond
from braidmq.server.operations.group_notes import NotedCommit
from braidmq.wire import flymq


async def stage_batch(caller: Caller, request: flymq.StageBatch) -> Answer:
    state = await caller.broker.stages.stage(
        request.writer, request.epoch, request.task, request.attempt, request.sequence, request.topic, request.partition,
        request.batch, user=owner_text(caller.principal), by=account(caller),
    )  # fmt: skip
    return respond(caller, request, _state(state))


async def stage_publish(caller: Caller, request: flymq.StagePublish) -> Answer:
    places = [(place.topic, place.partition, place.offset) for place in request.offsets]
    tasks = [(choice.task, choice.attempt, choice.batches) for choice in request.tasks]
    with ExitStack() as notes:
        places = places or caller.broker.stages.planned(request.group, owner_text(caller.principal))
        if places:
            notes.enter_context(NotedCommit(caller, request.group, places, "stage"))
        first = await caller.broker.stages.publish(request.writer, request.epoch, tasks, request.group, places)
    if first:
        note(caller, "txn.commit", request.writer, "publish", epoch=str(request.epoch))
    return respond(caller, request, flymq.StagePublished(first))


async def stage_abort(caller: Caller, request: flymq.StageAbort) -> Answer:
    if await caller.broker.stages.abort(request.writer, request.epoch):
        note(caller, "txn.abort", request.writer, "abort", epoch=str(request.epoch))
    return respond(caller, request, _state(caller.broker.stages.status(request.writer, request.epoch)))


def stage_status(caller: Caller, request: flymq.StageStatus) -> Answer:
    return respond(caller, request, _state(caller.broker.stages.status(request.writer, request.epoch)))


def stage_list(caller: Caller, request: flymq.StageList) -> Answer:
    rows = (
        flymq.StagedEpoch(
            writer, epoch, owner_of(found.user).name, found.touched_ms, len(found.attempts), found.batches, found.size
        )
        for writer, epoch, found in caller.broker.stages.epochs()
    )
    return respond(caller, request, flymq.StagedEpochs(tuple(rows)))


def group_plan(caller: Caller, request: flymq.GroupPlan) -> Answer:
    places = [(place.topic, place.partition, place.offset) for place in request.offsets]
    caller.broker.stages.plan(request.group, owner_text(caller.principal), places)
    return respond(caller, request, flymq.Ok())


def topic_places(caller: Caller, request: flymq.TopicPlaces) -> Outcome:
    broker = caller.broker
    if broker.peers is not None:
        return _cluster_places(caller, request, broker.peers)
    found = []
    for topic in filter(None, map(broker.topics.get, request.topics)):
        logs = [broker.log_of(topic, number) for number in range(topic.partitions)]
        places = tuple(flymq.PartitionPlace(log.log_start, log.high_watermark, log.size_bytes) for log in logs)
        found.append(flymq.TopicPlace(topic.name, topic.id, places))
    return respond(caller, request, flymq.Places(tuple(found)))


async def _cluster_places(caller: Caller, request: flymq.TopicPlaces, peers: Peers) -> Answer:
    """Whoever asks plans a read by the answer, so it is what leaders say, of the topics that there are now, or an error."""
    await peers.look_at_journals()
    topics = list(filter(None, map(caller.broker.topics.get, request.topics)))
    found = [
        flymq.TopicPlace(topic.name, topic.id, tuple(flymq.PartitionPlace(*place) for place in places))
        for topic, places in zip(topics, await peers.leader_places(topics), strict=True)
    ]
    return respond(caller, request, flymq.Places(tuple(found)))


def _state(found: StageState) -> flymq.StageState:
    return flymq.StageState(found.published, found.stages, found.batches, found.size_bytes)
