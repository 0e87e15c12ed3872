"""Replays of pipelines that somebody asked for, D4 to D7: our own operations.

Pipelines run elsewhere. A wish is kept by the broker, taken by a run between two batches, and ended by it with what became of it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from braidmq.wire.flymq.answers import OK
from braidmq.wire.flymq.layout import BYTES, I64, STR, U32, Layout, Many, WireType
from braidmq.wire.flymq.opcodes import Op
from braidmq.wire.shape import shape


@shape
class PipelineReplay:
    """Ask for records, or dead letters, to be processed once more; `wish` is a JSON object."""

    op: ClassVar[Op] = Op.PIPELINE_REPLAY
    pipeline: str
    wish: bytes


@shape
class PipelineReplayList:
    op: ClassVar[Op] = Op.PIPELINE_REPLAY_LIST
    pipeline: str


@shape
class PipelineReplayTake:
    """A run takes the oldest that waits, or learns which one it has taken."""

    op: ClassVar[Op] = Op.PIPELINE_REPLAY_TAKE
    pipeline: str
    run: int


@shape
class PipelineReplayEnd:
    """What became of it: `done` or `failed` of one that a run took, `cancelled` of one that waits."""

    op: ClassVar[Op] = Op.PIPELINE_REPLAY_END
    pipeline: str
    number: int
    state: str
    result: str = ""


ReplayRequest = PipelineReplay | PipelineReplayList | PipelineReplayTake | PipelineReplayEnd


@shape
class ReplayEntry:
    number: int
    state: str
    by: str
    wish: bytes
    asked_ms: int
    run: int
    started_ms: int
    ended_ms: int
    result: str
    outlook: str
    """Who will do it, or why nobody does."""


@shape
class PipelineReplays:
    """Those of a pipeline, the oldest first; after a wish or a take the one that it was about, or none."""

    replays: tuple[ReplayEntry, ...]


ReplayResponse = PipelineReplays

_REPLAYS: Final = Layout(
    PipelineReplays,
    replays=Many(
        Layout(
            ReplayEntry, number=U32, state=STR, by=STR, wish=BYTES, asked_ms=I64, run=U32, started_ms=I64, ended_ms=I64, result=STR,
            outlook=STR,
        )
    ),
)  # fmt: skip

REQUESTS: Final[dict[int, WireType[Any]]] = {
    Op.PIPELINE_REPLAY: Layout(PipelineReplay, pipeline=STR, wish=BYTES),
    Op.PIPELINE_REPLAY_LIST: Layout(PipelineReplayList, pipeline=STR),
    Op.PIPELINE_REPLAY_TAKE: Layout(PipelineReplayTake, pipeline=STR, run=U32),
    Op.PIPELINE_REPLAY_END: Layout(PipelineReplayEnd, pipeline=STR, number=U32, state=STR, result=STR),
}

RESPONSES: Final[dict[int, WireType[Any]]] = {
    Op.PIPELINE_REPLAY: _REPLAYS,
    Op.PIPELINE_REPLAY_LIST: _REPLAYS,
    Op.PIPELINE_REPLAY_TAKE: _REPLAYS,
    Op.PIPELINE_REPLAY_END: OK,
}
