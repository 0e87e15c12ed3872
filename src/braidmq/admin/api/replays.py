"""Replays of pipelines: asking the run of one to process records, or dead letters, once more, and what became of it.

The broker runs no Spark. A request is kept, taken by a run between two of its batches, and ended by it; `outlook` says who will do
it, or that nobody is there to.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from braidmq.admin.api.pipelines import check_owner
from braidmq.admin.call import Call, Nothing
from braidmq.admin.shapes import Bounds
from braidmq.admin.times import rfc3339
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.pipeline_replays import Replay
from braidmq.broker.pipelines import Pipelines

State = Literal["requested", "running", "done", "failed", "cancelled"]
_INT64_MAX = (1 << 63) - 1
_Time = Annotated[int | None, Bounds(0, (1 << 52) - 1)]


@dataclass(frozen=True, slots=True)
class ReplaySpan:
    """Offsets of a partition that the pipeline has passed."""

    topic: str
    partition: Annotated[int, Bounds(0, limits.PARTITIONS_MAX)]
    first: Annotated[int, Bounds(0, _INT64_MAX)]
    end: Annotated[int, Bounds(0, _INT64_MAX), "the offset behind the last one"]


@dataclass(frozen=True, slots=True)
class ReplayWish:
    """What is to be processed once more: offsets, a time, or the dead letters of the pipeline."""

    offsets: Annotated[list[ReplaySpan], Bounds(0, 100)] = field(default_factory=list)
    since_ms: Annotated[_Time, "records written from this time on"] = None
    until_ms: Annotated[_Time, "and before this time; now without it"] = None
    letters: Annotated[bool, "send the dead letters of the pipeline back, and process them"] = False
    skip: Annotated[list[str], Bounds(0, 100), "sinks to leave alone, as topic:orders.clean"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """A replay that somebody asked for."""

    number: int
    state: State
    asked_by: str
    asked_at: str
    wish: Annotated[dict[str, Any], "what is to be processed; a span is topic, partition, first, end"]
    outlook: Annotated[str, "who will do it, or why nobody does; empty once it has ended"]
    result: Annotated[str, "what became of it"]
    run: Annotated[int | None, "the run that took it"] = None
    started_at: str | None = None
    ended_at: str | None = None


def list_replays(call: Call[Nothing, Nothing]) -> list[ReplayRow]:
    """Replays of a pipeline that somebody asked for, the oldest first."""
    pipelines = call.broker.pipelines
    return replay_rows(pipelines, call.path["pipeline"])


async def ask_replay(call: Call[Nothing, ReplayWish]) -> ReplayRow:
    """Ask the run of a pipeline to process records, or its dead letters, once more, between two of its batches."""
    name, body = call.path["pipeline"], call.body
    check_owner(call)
    wish = {
        "offsets": [[span.topic, span.partition, span.first, span.end] for span in body.offsets], "since_ms": body.since_ms,
        "until_ms": body.until_ms, "letters": body.letters, "skip": body.skip,
    }  # fmt: skip
    replay = await call.broker.pipelines.ask_replay(name, call.principal.name, json.dumps(wish))
    call.note("pipeline.replay", name, "ask", number=str(replay.number), wish=replay.wish)
    return _row(call.broker.pipelines, name, replay)


async def cancel_replay(call: Call[Nothing, Nothing]) -> None:
    """Take back a replay that no run has taken yet."""
    name, number = call.path["pipeline"], call.path["number"]
    check_owner(call)
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise BraidError("INVALID_ARGUMENT", reason="`number` is that of a replay")
    await call.broker.pipelines.end_replay(name, int(number), "cancelled", "")
    call.note("pipeline.replay", name, "cancelled", number=number)


def replay_rows(pipelines: Pipelines, name: str) -> list[ReplayRow]:
    return [_row(pipelines, name, each) for each in pipelines.table.get(name).replays.all]


def _row(pipelines: Pipelines, name: str, replay: Replay) -> ReplayRow:
    state: Any = replay.state
    return ReplayRow(
        replay.number, state, replay.by, rfc3339(replay.asked_ms), json.loads(replay.wish),
        pipelines.outlook(pipelines.table.get(name), replay), replay.result, replay.run or None,
        rfc3339(replay.started_ms) if replay.started_ms else None, rfc3339(replay.ended_ms) if replay.ended_ms else None,
    )  # fmt: skip
