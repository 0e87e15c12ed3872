"""Pipelines and their runs, C8 to CF: our own operations.

A definition is text that the broker keeps and does not read; a report is a JSON object of the run's own making.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from braidmq.wire.flymq.answers import OK
from braidmq.wire.flymq.layout import BOOL, BYTES, I64, PAIR, STR, U32, Extended, Layout, Many, WireType, asked
from braidmq.wire.flymq.opcodes import Op
from braidmq.wire.shape import shape


@shape
class PipelinePut:
    """Make a pipeline, or give it another definition."""

    op: ClassVar[Op] = Op.PIPELINE_PUT
    pipeline: str
    format: str
    definition: bytes


@shape
class PipelineList:
    op: ClassVar[Op] = Op.PIPELINE_LIST


@shape
class PipelineGet:
    op: ClassVar[Op] = Op.PIPELINE_GET
    pipeline: str


@shape
class PipelineSteer:
    """Say what it is meant to do: `run`, `pause` or `stop`."""

    op: ClassVar[Op] = Op.PIPELINE_STEER
    pipeline: str
    desired: str


@shape
class PipelineRemove:
    op: ClassVar[Op] = Op.PIPELINE_REMOVE
    pipeline: str


@shape
class PipelineStart:
    """A run begins."""

    op: ClassVar[Op] = Op.PIPELINE_START
    pipeline: str
    mode: str
    where: str
    replace: bool = False
    token: str = ""
    """The same in each try to begin one run, so that a try whose answer was lost may be repeated; empty where none will be."""


@shape
class PipelineReport:
    """How far a run is, and what happened; may be empty, to show that it is there."""

    op: ClassVar[Op] = Op.PIPELINE_REPORT
    pipeline: str
    run: int
    progress: bytes = b""
    events: tuple[tuple[str, str], ...] = ()
    """Level and text."""


@shape
class PipelineEnd:
    op: ClassVar[Op] = Op.PIPELINE_END
    pipeline: str
    run: int
    outcome: str
    reason: str = ""


PipelineRequest = (
    PipelinePut
    | PipelineList
    | PipelineGet
    | PipelineSteer
    | PipelineRemove
    | PipelineStart
    | PipelineReport
    | PipelineEnd
)


@shape
class PipelineSummary:
    name: str
    owner: str
    state: str
    desired: str
    mode: str
    """Of the last run; empty before the first."""
    changed_ms: int
    started_ms: int
    progress: bytes
    """The last report; empty when there is none."""


@shape
class PipelineSummaries:
    pipelines: tuple[PipelineSummary, ...]


@shape
class PipelineRun:
    number: int
    mode: str
    where: str
    started_ms: int
    ended_ms: int
    outcome: str
    """Empty while it is under way."""
    reason: str
    progress: bytes


@shape
class PipelineEvent:
    time_ms: int
    run: int
    level: str
    text: str


@shape
class PipelineProgress:
    time_ms: int
    progress: bytes


@shape
class PipelineDetail:
    name: str
    owner: str
    state: str
    desired: str
    format: str
    definition: bytes
    changed_ms: int
    runs: tuple[PipelineRun, ...]
    events: tuple[PipelineEvent, ...]
    reports: tuple[PipelineProgress, ...]


@shape
class PipelineStarted:
    run: int
    desired: str


@shape
class PipelineDesired:
    desired: str


PipelineResponse = PipelineSummaries | PipelineDetail | PipelineStarted | PipelineDesired

REQUESTS: Final[dict[int, WireType[Any]]] = {
    Op.PIPELINE_PUT: Layout(PipelinePut, pipeline=STR, format=STR, definition=BYTES),
    Op.PIPELINE_LIST: Layout(PipelineList),
    Op.PIPELINE_GET: Layout(PipelineGet, pipeline=STR),
    Op.PIPELINE_STEER: Layout(PipelineSteer, pipeline=STR, desired=STR),
    Op.PIPELINE_REMOVE: Layout(PipelineRemove, pipeline=STR),
    Op.PIPELINE_START: Extended(PipelineStart, {"token": STR}, pipeline=STR, mode=STR, where=STR, replace=BOOL),
    Op.PIPELINE_REPORT: Layout(PipelineReport, pipeline=STR, run=U32, progress=BYTES, events=asked(PAIR)),
    Op.PIPELINE_END: Layout(PipelineEnd, pipeline=STR, run=U32, outcome=STR, reason=STR),
}

RESPONSES: Final[dict[int, WireType[Any]]] = {
    Op.PIPELINE_PUT: OK,
    Op.PIPELINE_LIST: Layout(
        PipelineSummaries,
        pipelines=Many(
            Layout(
                PipelineSummary, name=STR, owner=STR, state=STR, desired=STR, mode=STR, changed_ms=I64, started_ms=I64,
                progress=BYTES,
            )
        ),
    ),
    Op.PIPELINE_GET: Layout(
        PipelineDetail, name=STR, owner=STR, state=STR, desired=STR, format=STR, definition=BYTES, changed_ms=I64,
        runs=Many(
            Layout(
                PipelineRun, number=U32, mode=STR, where=STR, started_ms=I64, ended_ms=I64, outcome=STR, reason=STR, progress=BYTES
            )
        ),
        events=Many(Layout(PipelineEvent, time_ms=I64, run=U32, level=STR, text=STR)),
        reports=Many(Layout(PipelineProgress, time_ms=I64, progress=BYTES)),
    ),
    Op.PIPELINE_STEER: OK,
    Op.PIPELINE_REMOVE: OK,
    Op.PIPELINE_START: Layout(PipelineStarted, run=U32, desired=STR),
    Op.PIPELINE_REPORT: Layout(PipelineDesired, desired=STR),
    Op.PIPELINE_END: OK,
}  # fmt: skip
