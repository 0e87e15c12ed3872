"""Staged writes, C0 to C4, TOPIC_PLACES and GROUP_PLAN: for readers and writers that are many processes, as those of Spark are.

A writer writes epochs, each from many tasks; what they stage is published by one request. All of these are our own.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from braidmq.wire.flymq.answers import OK
from braidmq.wire.flymq.layout import BOOL, BYTES_VIEW, I32, I64, STR, U32, U64, Layout, Many, WireType, asked
from braidmq.wire.flymq.opcodes import Op
from braidmq.wire.flymq.places import TOPIC_OFFSET, TopicOffset
from braidmq.wire.shape import shape


@shape
class StageBatch:
    """Stage a whole batch for a partition. The same one again changes nothing."""

    op: ClassVar[Op] = Op.STAGE_BATCH
    writer: str
    epoch: int
    task: int
    attempt: int
    """Any number that no other attempt of the task has, in this run or another."""
    sequence: int
    """How many batches the attempt has staged before."""
    topic: str
    partition: int
    batch: bytes | memoryview


@shape
class StageChoice:
    """An attempt that counts, and how many batches it has staged."""

    task: int
    attempt: int
    batches: int


@shape
class StagePublish:
    """Make an epoch readable, all of it at one moment, and once; commit a group's offsets with it.

    A group without offsets means those that GROUP_PLAN named last.
    """

    op: ClassVar[Op] = Op.STAGE_PUBLISH
    writer: str
    epoch: int
    tasks: tuple[StageChoice, ...]
    group: str = ""
    offsets: tuple[TopicOffset, ...] = ()


@shape
class StageAbort:
    """Give up what was staged for an epoch. One that was published stays published."""

    op: ClassVar[Op] = Op.STAGE_ABORT
    writer: str
    epoch: int


@shape
class StageStatus:
    op: ClassVar[Op] = Op.STAGE_STATUS
    writer: str
    epoch: int


@shape
class StageList:
    op: ClassVar[Op] = Op.STAGE_LIST


@shape
class TopicPlaces:
    """Where topics begin and end, of all their partitions. Those that do not exist are left out."""

    op: ClassVar[Op] = Op.TOPIC_PLACES
    topics: tuple[str, ...]


@shape
class GroupPlan:
    """Where a group will be when the epoch that is being written now is published."""

    op: ClassVar[Op] = Op.GROUP_PLAN
    group: str
    offsets: tuple[TopicOffset, ...]


StageRequest = StageBatch | StagePublish | StageAbort | StageStatus | StageList | TopicPlaces | GroupPlan


@shape
class StageState:
    published: bool
    """Whether the epoch is readable; what is staged for it then is left aside."""
    stages: int
    """Attempts that have something staged."""
    batches: int
    size_bytes: int


@shape
class StagePublished:
    first: bool
    """Whether this request did it; otherwise an earlier one had."""


@shape
class StagedEpoch:
    writer: str
    epoch: int
    owner: str
    touched_ms: int
    stages: int
    batches: int
    size_bytes: int


@shape
class StagedEpochs:
    epochs: tuple[StagedEpoch, ...]


@shape
class PartitionPlace:
    oldest: int
    newest: int
    """The next offset to be written."""
    size_bytes: int
    """As stored."""


@shape
class TopicPlace:
    topic: str
    id: int
    """Never used again: a topic that was deleted and made anew has another."""
    partitions: tuple[PartitionPlace, ...]


@shape
class Places:
    topics: tuple[TopicPlace, ...]


StageResponse = StageState | StagePublished | StagedEpochs | Places

_STATE: Final = Layout(StageState, published=BOOL, stages=U32, batches=U32, size_bytes=U64)
_CHOICE: Final = Layout(StageChoice, task=I32, attempt=I64, batches=U32)
_EPOCH: Final = Layout(
    StagedEpoch, writer=STR, epoch=I64, owner=STR, touched_ms=I64, stages=U32, batches=U32, size_bytes=U64
)
_PLACE: Final = Layout(PartitionPlace, oldest=U64, newest=U64, size_bytes=U64)

REQUESTS: Final[dict[int, WireType[Any]]] = {
    Op.STAGE_BATCH: Layout(
        StageBatch, writer=STR, epoch=I64, task=I32, attempt=I64, sequence=U32, topic=STR, partition=I32, batch=BYTES_VIEW
    ),
    Op.STAGE_PUBLISH: Layout(
        StagePublish, writer=STR, epoch=I64, tasks=asked(_CHOICE), group=STR, offsets=asked(TOPIC_OFFSET)
    ),
    Op.STAGE_ABORT: Layout(StageAbort, writer=STR, epoch=I64),
    Op.STAGE_STATUS: Layout(StageStatus, writer=STR, epoch=I64),
    Op.STAGE_LIST: Layout(StageList),
    Op.TOPIC_PLACES: Layout(TopicPlaces, topics=asked(STR)),
    Op.GROUP_PLAN: Layout(GroupPlan, group=STR, offsets=asked(TOPIC_OFFSET)),
}

RESPONSES: Final[dict[int, WireType[Any]]] = {
    Op.STAGE_BATCH: _STATE,
    Op.STAGE_PUBLISH: Layout(StagePublished, first=BOOL),
    Op.STAGE_ABORT: _STATE,
    Op.STAGE_STATUS: _STATE,
    Op.STAGE_LIST: Layout(StagedEpochs, epochs=Many(_EPOCH)),
    Op.GROUP_PLAN: OK,
    Op.TOPIC_PLACES: Layout(Places, topics=Many(Layout(TopicPlace, topic=STR, id=I64, partitions=Many(_PLACE)))),
}
