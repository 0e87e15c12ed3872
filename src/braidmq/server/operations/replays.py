"""Replays of pipelines that somebody asked for: asking, and what a run does with them."""

from __future__ import annotations

from collections.abc import Iterable

from braidmq.broker.pipeline_replays import Replay
from braidmq.server.operations.calling import Answer, Caller, note, respond
from braidmq.wire import flymq


async def pipeline_replay(caller: Caller, request: flymq.PipelineReplay) -> Answer:
    replay = await caller.broker.pipelines.ask_replay(request.pipeline, caller.principal.name, request.wish)
    note(caller, "pipeline.replay", request.pipeline, "ask", number=str(replay.number), wish=replay.wish)
    return _answer(caller, request, [replay])


def pipeline_replay_list(caller: Caller, request: flymq.PipelineReplayList) -> Answer:
    return _answer(caller, request, caller.broker.pipelines.table.get(request.pipeline).replays.all)


async def pipeline_replay_take(caller: Caller, request: flymq.PipelineReplayTake) -> Answer:
    replay = await caller.broker.pipelines.take_replay(request.pipeline, request.run)
    return _answer(caller, request, [] if replay is None else [replay])


async def pipeline_replay_end(caller: Caller, request: flymq.PipelineReplayEnd) -> Answer:
    await caller.broker.pipelines.end_replay(request.pipeline, request.number, request.state, request.result)
    note(caller, "pipeline.replay", request.pipeline, request.state, number=str(request.number))
    return respond(caller, request, flymq.Ok())


def _answer(
    caller: Caller, request: flymq.PipelineReplay | flymq.PipelineReplayList | flymq.PipelineReplayTake, replays: Iterable[Replay]
) -> Answer:
    pipelines = caller.broker.pipelines
    pipeline = pipelines.table.get(request.pipeline)
    entries = tuple(
        flymq.ReplayEntry(
            each.number, each.state, each.by, each.wish.encode(), each.asked_ms, each.run, each.started_ms, each.ended_ms,
            each.result, pipelines.outlook(pipeline, each),
        )
        for each in replays
    )  # fmt: skip
    return respond(caller, request, flymq.PipelineReplays(entries))
