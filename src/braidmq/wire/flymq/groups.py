"""Consumer groups: offsets and administration, 60 to 66, and our own assignment of partitions by the broker, 54 to 58.

Published clients disagree about some requests. RESET_OFFSET has a mode with a length of one or two bytes, DESCRIBE_GROUP and
DELETE_GROUP come with and without a topic, SEEK_TO_TIMESTAMP with and without a group; the forms are told apart by their bytes, and
all mean the same in both dialects.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from braidmq.base.errors import BraidError
from braidmq.wire.flymq.answers import OFFSET, OK
from braidmq.wire.flymq.layout import BOOL, I32, I64, STR, STR8, U32, U64, Choice, Layout, Many, Sink, Source, WireType, asked
from braidmq.wire.flymq.opcodes import Op
from braidmq.wire.flymq.places import TOPIC_OFFSET, TOPIC_PARTITION, TopicOffset, TopicPartition
from braidmq.wire.shape import shape


@shape
class GetOffset:
    op: ClassVar[Op] = Op.GET_OFFSET
    topic: str
    group: str
    partition: int


@shape
class ResetOffset:
    op: ClassVar[Op] = Op.RESET_OFFSET
    topic: str
    group: str
    partition: int
    mode: str
    offset: int | None = None
    """Needed by mode `offset`; some clients send one with every mode."""


@shape
class ListGroups:
    op: ClassVar[Op] = Op.LIST_GROUPS


@shape
class DescribeGroup:
    op: ClassVar[Op] = Op.DESCRIBE_GROUP
    topic: str
    """Empty means the first topic by name that has the group."""
    group: str
    group_only: bool = False
    """Asked without a topic field, as the published Java client does, which then wants a `GroupDetail`."""


@shape
class GetLag:
    op: ClassVar[Op] = Op.GET_LAG
    topic: str
    group: str
    partition: int


@shape
class DeleteGroup:
    op: ClassVar[Op] = Op.DELETE_GROUP
    topic: str
    """Empty means all topics."""
    group: str


@shape
class SeekToTimestamp:
    """Find the first offset at or after a time, and commit it unless the group is empty."""

    op: ClassVar[Op] = Op.SEEK_TO_TIMESTAMP
    topic: str
    group: str
    partition: int
    timestamp: int
    """Milliseconds since the Unix epoch."""


@shape
class GroupJoin:
    """Become a member, or say that one still is, and take a share of the partitions."""

    op: ClassVar[Op] = Op.GROUP_JOIN
    group: str
    member: str
    """Empty for a new one: the broker makes an id."""
    topics: tuple[str, ...]
    strategy: str
    """`range` or `roundrobin`."""
    session_timeout_ms: int


@shape
class GroupHeartbeat:
    op: ClassVar[Op] = Op.GROUP_HEARTBEAT
    group: str
    member: str
    generation: int


@shape
class GroupLeave:
    op: ClassVar[Op] = Op.GROUP_LEAVE
    group: str
    member: str


@shape
class GroupCommit:
    """COMMIT by a member of a generation; a stale one is refused."""

    op: ClassVar[Op] = Op.GROUP_COMMIT
    group: str
    member: str
    generation: int
    offsets: tuple[TopicOffset, ...]


@shape
class GroupLag:
    """The lag of every partition, in records and in time."""

    op: ClassVar[Op] = Op.GROUP_LAG
    topic: str
    group: str


GroupRequest = (
    GetOffset
    | ResetOffset
    | ListGroups
    | DescribeGroup
    | GetLag
    | DeleteGroup
    | SeekToTimestamp
    | GroupJoin
    | GroupHeartbeat
    | GroupLeave
    | GroupCommit
    | GroupLag
)


@shape
class GroupOffset:
    partition: int
    offset: int


@shape
class GroupInfo:
    """A group on one topic."""

    topic: str
    group: str
    members: int
    offsets: tuple[GroupOffset, ...]


@shape
class Groups:
    groups: tuple[GroupInfo, ...]


@shape
class GroupDetail:
    """A group on all its topics: the answer to a `DescribeGroup` with `group_only`."""

    group: str
    state: str
    members: tuple[str, ...]
    topics: tuple[str, ...]
    coordinator: str


@shape
class Lag:
    current: int
    committed: int
    latest: int
    """The next offset to be written."""
    lag: int


@shape
class GroupAssignment:
    member: str
    generation: int
    partitions: tuple[TopicPartition, ...]


@shape
class HeartbeatReply:
    generation: int
    rebalance: bool
    """The assignment changed: join again."""


@shape
class PartitionLag:
    partition: int
    committed: int
    latest: int
    lag: int
    lag_ms: int
    """Age of the oldest unread record; 0 without one."""


@shape
class PartitionLags:
    partitions: tuple[PartitionLag, ...]


GroupResponse = GroupInfo | Groups | GroupDetail | Lag | GroupAssignment | HeartbeatReply | PartitionLags


class _ResetOffset:
    """RESET_OFFSET. A mode's length has one byte, or two from clients that took the documents' word for text.

    No mode is longer than 255 bytes, so a first byte of zero is the first half of a length of two.
    """

    _HEAD: Final = Layout(GetOffset, topic=STR, group=STR, partition=I32)
    size_min = _HEAD.size_min + 1

    def read(self, source: Source) -> ResetOffset:
        head = self._HEAD.read(source)
        wide = source.left > 1 and source.data[source.position] == 0
        mode = (STR if wide else STR8).read(source)
        offset = U64.read(source) if source.left or mode == "offset" else None
        return ResetOffset(head.topic, head.group, head.partition, mode, offset)

    def write(self, sink: Sink, value: ResetOffset, name: str) -> None:
        if value.mode == "offset" and value.offset is None:
            raise BraidError("INVALID_ARGUMENT", reason="mode `offset` needs an offset")
        self._HEAD.write(sink, GetOffset(value.topic, value.group, value.partition))
        (STR8 if value.mode else STR).write(sink, value.mode, "mode")
        if value.offset is not None:
            U64.write(sink, value.offset, "offset")


class _DescribeGroup:
    """Topic and group, or the group alone."""

    size_min = 2

    def read(self, source: Source) -> DescribeGroup:
        first = STR.read(source)
        return DescribeGroup(first, STR.read(source)) if source.left else DescribeGroup("", first, group_only=True)

    def write(self, sink: Sink, value: DescribeGroup, name: str) -> None:
        if not value.group_only:
            STR.write(sink, value.topic, "topic")
        elif value.topic:
            raise BraidError("INVALID_ARGUMENT", reason="group_only with a topic")
        STR.write(sink, value.group, "group")


class _DeleteGroup:
    """Topic and group, or the group alone, which means the same as an empty topic."""

    size_min = 2

    def read(self, source: Source) -> DeleteGroup:
        first = STR.read(source)
        return DeleteGroup(first, STR.read(source)) if source.left else DeleteGroup("", first)

    def write(self, sink: Sink, value: DeleteGroup, name: str) -> None:
        STR.write(sink, value.topic, "topic")
        STR.write(sink, value.group, "group")


class _SeekToTimestamp:
    """With a group at least 14 bytes follow the topic; exactly 12 are the form without."""

    _FULL: Final = Layout(SeekToTimestamp, topic=STR, group=STR, partition=I32, timestamp=I64)
    _BARE_BYTES: Final = I32.size_min + I64.size_min
    size_min = 2 + _BARE_BYTES

    def read(self, source: Source) -> SeekToTimestamp:
        topic = STR.read(source)
        group = "" if source.left == self._BARE_BYTES else STR.read(source)
        partition = I32.read(source)
        return SeekToTimestamp(topic, group, partition, I64.read(source))

    def write(self, sink: Sink, value: SeekToTimestamp, name: str) -> None:
        self._FULL.write(sink, value)


_PLACE: Final[dict[str, WireType[Any]]] = {"topic": STR, "group": STR, "partition": I32}
_GROUP: Final = Layout(
    GroupInfo, topic=STR, group=STR, members=U32, offsets=Many(Layout(GroupOffset, partition=U32, offset=U64))
)
_DETAIL: Final = Layout(GroupDetail, group=STR, state=STR, members=Many(STR), topics=Many(STR), coordinator=STR)

REQUESTS: Final[dict[int, WireType[Any]]] = {
    Op.GET_OFFSET: Layout(GetOffset, **_PLACE),
    Op.RESET_OFFSET: _ResetOffset(),
    Op.LIST_GROUPS: Layout(ListGroups),
    Op.DESCRIBE_GROUP: _DescribeGroup(),
    Op.GET_LAG: Layout(GetLag, **_PLACE),
    Op.DELETE_GROUP: _DeleteGroup(),
    Op.SEEK_TO_TIMESTAMP: _SeekToTimestamp(),
    Op.GROUP_JOIN: Layout(GroupJoin, group=STR, member=STR, topics=asked(STR), strategy=STR, session_timeout_ms=U32),
    Op.GROUP_HEARTBEAT: Layout(GroupHeartbeat, group=STR, member=STR, generation=U32),
    Op.GROUP_LEAVE: Layout(GroupLeave, group=STR, member=STR),
    Op.GROUP_COMMIT: Layout(GroupCommit, group=STR, member=STR, generation=U32, offsets=asked(TOPIC_OFFSET)),
    Op.GROUP_LAG: Layout(GroupLag, topic=STR, group=STR),
}

RESPONSES: Final[dict[int, WireType[Any]]] = {
    Op.GET_OFFSET: OFFSET,
    Op.RESET_OFFSET: OK,
    Op.LIST_GROUPS: Layout(Groups, groups=Many(_GROUP)),
    Op.DESCRIBE_GROUP: Choice[GroupInfo | GroupDetail](GroupInfo=_GROUP, GroupDetail=_DETAIL),
    Op.GET_LAG: Layout(Lag, current=U64, committed=U64, latest=U64, lag=U64),
    Op.DELETE_GROUP: OK,
    Op.SEEK_TO_TIMESTAMP: OFFSET,
    Op.GROUP_JOIN: Layout(GroupAssignment, member=STR, generation=U32, partitions=Many(TOPIC_PARTITION)),
    Op.GROUP_HEARTBEAT: Layout(HeartbeatReply, generation=U32, rebalance=BOOL),
    Op.GROUP_LEAVE: OK,
    Op.GROUP_COMMIT: OK,
    Op.GROUP_LAG: Layout(
        PartitionLags,
        partitions=Many(Layout(PartitionLag, partition=I32, committed=U64, latest=U64, lag=U64, lag_ms=I64)),
    ),
}
