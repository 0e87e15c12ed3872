"""Pipelines and their runs: what `braid pipeline` and a run itself ask for."""

from __future__ import annotations

from braidmq.base.errors import BraidError
from braidmq.broker.pipeline_holds import release_holds
from braidmq.broker.pipeline_table import Pipeline
from braidmq.server.authorization import owner_text
from braidmq.server.operations.calling import Answer, Caller, note, respond
from braidmq.wire import flymq


async def pipeline_put(caller: Caller, request: flymq.PipelinePut) -> Answer:
    try:
        definition = request.definition.decode()
    except UnicodeDecodeError:
        raise BraidError("INVALID_ARGUMENT", reason="a definition is not UTF-8") from None
    await caller.broker.pipelines.put(request.pipeline, owner_text(caller.principal), request.format, definition)
    note(caller, "pipeline.put", request.pipeline, "put")
    return respond(caller, request, flymq.Ok())


def pipeline_list(caller: Caller, request: flymq.PipelineList) -> Answer:
    pipelines = caller.broker.pipelines
    return respond(caller, request, flymq.PipelineSummaries(tuple(_summary(caller, each) for each in pipelines.table.all())))


def _summary(caller: Caller, each: Pipeline) -> flymq.PipelineSummary:
    pipelines = caller.broker.pipelines
    last = each.runs[-1] if each.runs else None
    return flymq.PipelineSummary(
        each.name, _owner(each), pipelines.state(each), each.desired, last.mode if last else "", each.changed_ms,
        last.started_ms if last else 0, pipelines.progress(each).encode(),
    )  # fmt: skip


def pipeline_get(caller: Caller, request: flymq.PipelineGet) -> Answer:
    pipelines = caller.broker.pipelines
    found = pipelines.table.get(request.pipeline)
    runs = (
        flymq.PipelineRun(r.number, r.mode, r.where, r.started_ms, r.ended_ms, r.outcome, r.reason, r.progress.encode())
        for r in found.runs
    )
    events = (flymq.PipelineEvent(e.time_ms, e.run, e.level, e.text) for e in found.events)
    reports = (flymq.PipelineProgress(time_ms, text.encode()) for time_ms, text in pipelines.reports(found))
    return respond(
        caller, request,
        flymq.PipelineDetail(
            found.name, _owner(found), pipelines.state(found), found.desired, found.format, found.definition.encode(),
            found.changed_ms, tuple(runs), tuple(events), tuple(reports),
        ),
    )  # fmt: skip


def _owner(pipeline: Pipeline) -> str:
    """The owner's name, without the number that tells accounts of one name apart."""
    return pipeline.owner.partition(":")[2]


async def pipeline_steer(caller: Caller, request: flymq.PipelineSteer) -> Answer:
    await caller.broker.pipelines.steer(request.pipeline, request.desired)
    note(caller, "pipeline.steer", request.pipeline, request.desired)
    return respond(caller, request, flymq.Ok())


async def pipeline_remove(caller: Caller, request: flymq.PipelineRemove) -> Answer:
    await caller.broker.pipelines.remove(request.pipeline)
    await release_holds(caller.broker, request.pipeline)
    note(caller, "pipeline.remove", request.pipeline, "remove")
    return respond(caller, request, flymq.Ok())


async def pipeline_start(caller: Caller, request: flymq.PipelineStart) -> Answer:
    pipelines = caller.broker.pipelines
    run = await pipelines.start(request.pipeline, request.mode, request.where, replace=request.replace, token=request.token)
    note(caller, "pipeline.start", request.pipeline, "start", run=str(run.number), mode=run.mode)
    return respond(caller, request, flymq.PipelineStarted(run.number, pipelines.table.get(request.pipeline).desired))


async def pipeline_report(caller: Caller, request: flymq.PipelineReport) -> Answer:
    desired = await caller.broker.pipelines.report(request.pipeline, request.run, request.progress, request.events)
    return respond(caller, request, flymq.PipelineDesired(desired))


async def pipeline_end(caller: Caller, request: flymq.PipelineEnd) -> Answer:
    await caller.broker.pipelines.end(request.pipeline, request.run, request.outcome, request.reason)
    note(caller, "pipeline.end", request.pipeline, "end", run=str(request.run), outcome=request.outcome)
    return respond(caller, request, flymq.Ok())
