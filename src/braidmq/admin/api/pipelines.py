"""Pipelines and their runs, as those who run them tell the broker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from braidmq.admin.call import Call, Nothing
from braidmq.admin.times import rfc3339
from braidmq.broker.pipeline_holds import release_holds
from braidmq.broker.pipeline_table import Pipeline, Run
from braidmq.security.rules import Rule
from braidmq.server.authorization import owner_of


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """A pipeline."""

    name: str
    owner: str
    state: Annotated[str, "stopped, running, paused, stopping, or lost when nothing was heard of a run"]
    desired: Annotated[str, "run, pause or stop"]
    changed_at: str
    runs: int
    progress: Annotated[dict[str, Any], "the latest report of a run"]


@dataclass(frozen=True, slots=True)
class PipelineRunRow:
    """A run of a pipeline."""

    number: int
    mode: str
    where: Annotated[str, "who runs it, and on which Spark"]
    started_at: str
    outcome: Annotated[str, "finished, stopped, failed or replaced; empty while it is under way"]
    reason: str
    progress: Annotated[dict[str, Any], "the last report that was written down"]
    ended_at: str | None = None


@dataclass(frozen=True, slots=True)
class PipelineNote:
    """Something that a run told."""

    time: str
    run: int
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """How far a run was at a time."""

    time_ms: int
    progress: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PipelineDetail:
    """A pipeline with its definition, its runs and what they told."""

    name: str
    owner: str
    state: str
    desired: str
    changed_at: str
    format: str
    definition: str
    runs: Annotated[list[PipelineRunRow], "the oldest first"]
    events: list[PipelineNote]
    reports: Annotated[list[PipelineReport], "of the last minutes, the oldest first"]


@dataclass(frozen=True, slots=True)
class Steering:
    """What a pipeline is to do; a run that is under way follows with its next report."""

    desired: Literal["run", "pause", "stop"]


def list_pipelines(call: Call[Nothing, Nothing]) -> list[PipelineRow]:
    """All pipelines, by name."""
    pipelines = call.broker.pipelines
    return [
        PipelineRow(
            each.name, _owner(each), pipelines.state(each), each.desired, rfc3339(each.changed_ms), len(each.runs),
            document(pipelines.progress(each)),
        )
        for each in pipelines.table.all()
    ]  # fmt: skip


def get_pipeline(call: Call[Nothing, Nothing]) -> PipelineDetail:
    """One pipeline with its definition, its runs, what they told and their latest reports."""
    pipelines = call.broker.pipelines
    found = pipelines.table.get(call.path["pipeline"])
    return PipelineDetail(
        found.name, _owner(found), pipelines.state(found), found.desired, rfc3339(found.changed_ms), found.format, found.definition,
        [_run(run) for run in found.runs],
        [PipelineNote(rfc3339(event.time_ms), event.run, event.level, event.text) for event in found.events],
        [PipelineReport(time_ms, document(text)) for time_ms, text in pipelines.reports(found)],
    )  # fmt: skip


async def steer_pipeline(call: Call[Nothing, Steering]) -> PipelineDetail:
    """Let a pipeline run, pause or stop."""
    name = call.path["pipeline"]
    check_owner(call)
    await call.broker.pipelines.steer(name, call.body.desired)
    call.note("pipeline.steer", name, call.body.desired)
    return get_pipeline(Call(call.server, call.ip, call.path, Nothing(), Nothing(), call.visitor, call.doorkeeper, call.metrics))


async def remove_pipeline(call: Call[Nothing, Nothing]) -> None:
    """Forget a pipeline that does not run."""
    check_owner(call)
    await call.broker.pipelines.remove(call.path["pipeline"])
    await release_holds(call.broker, call.path["pipeline"])
    call.note("pipeline.remove", call.path["pipeline"], "remove")


def check_owner(call: Call[Any, Any]) -> None:
    """Whoever made a pipeline, and administrators, may change what it does."""
    pipeline = call.broker.pipelines.table.get(call.path["pipeline"])
    call.require(Rule.OWNER_OR_ADMIN, owner=owner_of(pipeline.owner), what="pipelines")


def _owner(pipeline: Pipeline) -> str:
    """The owner's name, without the number that tells accounts of one name apart."""
    return pipeline.owner.partition(":")[2]


def _run(run: Run) -> PipelineRunRow:
    ended = rfc3339(run.ended_ms) if run.ended_ms else None
    return PipelineRunRow(
        run.number, run.mode, run.where, rfc3339(run.started_ms), run.outcome, run.reason, document(run.progress), ended
    )


def document(text: str) -> dict[str, Any]:
    """A report, which is a JSON object or empty."""
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}
