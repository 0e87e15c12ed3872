"""Dead letters, 20 to 22, and our own DLQ_FAIL, with which a consumer says that it could not process a record."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from braidmq.base.errors import BraidError
from braidmq.wire.flymq.answers import OK
from braidmq.wire.flymq.layout import (
    BOOL,
    BYTES,
    I32,
    I64,
    STR,
    TRAILING_STR,
    U32,
    U64,
    Extended,
    Layout,
    Many,
    Sink,
    Source,
    WireType,
)
from braidmq.wire.flymq.opcodes import Op
from braidmq.wire.shape import shape


@shape
class FetchDlq:
    op: ClassVar[Op] = Op.FETCH_DLQ
    topic: str
    """The topic the records came from, here and in the other requests."""
    max: int
    start: str = ""
    """Our own addition: the id of the letter to begin with; when it is gone, with the one that follows."""


@shape
class ReplayDlq:
    """Send dead letters back to where they came from: one by its id, one by its offset in the dead-letter topic, or many.

    The last three fields are our own addition. With one of them set the request is for many, and the id is empty.
    """

    op: ClassVar[Op] = Op.REPLAY_DLQ
    topic: str
    id: str = ""
    offset: int | None = None
    filter: str = ""
    """Only those that match, in the language of FETCH's filter; it is tried on reason and error too."""
    all: bool = False
    """Without a filter, every one of them. It has to be said, so that a forgotten filter replays nothing."""
    max: int = 0
    """At most so many; 0 means no limit."""

    @property
    def many(self) -> bool:
        return bool(self.filter or self.all or self.max)


@shape
class PurgeDlq:
    op: ClassVar[Op] = Op.PURGE_DLQ
    topic: str


@shape
class DlqDiscard:
    """Let one letter go."""

    op: ClassVar[Op] = Op.DLQ_DISCARD
    topic: str
    id: str


@shape
class DlqFail:
    """A group could not process a record: try it again later, or, after the last attempt, make it a dead letter."""

    op: ClassVar[Op] = Op.DLQ_FAIL
    topic: str
    partition: int
    offset: int
    group: str
    reason: str
    error: str
    token: int = 0
    """A number that the client chose for this failure. A report that comes again with it, because its answer got lost, is counted
    once; 0 is counted each time."""


DeadLetterRequest = FetchDlq | ReplayDlq | PurgeDlq | DlqDiscard | DlqFail


@shape
class DeadLetter:
    id: str
    data: bytes
    error: str
    retries: int


@shape
class DeadLetters:
    items: tuple[DeadLetter, ...]


@shape
class DlqReplayed:
    """An `Ok` that says how many, unless it is the one that was asked for."""

    success: bool = True
    message: str = "OK"
    count: int = 1


@shape
class FailureRecorded:
    dead_lettered: bool
    attempts: int
    retry_at_ms: int
    """When to try again, in milliseconds since the Unix epoch; 0 for a dead letter."""


DeadLetterResponse = DeadLetters | DlqReplayed | FailureRecorded


class _ReplayDlq:
    """REPLAY_DLQ, in three forms after the topic.

        str id
        u64 offset                                 what published re-inject calls send
        str id, str filter, bool all, u32 max      our own

    Exactly eight bytes are an offset, unless they begin with the length of an id that fills them. Our own form takes nine or more.
    """

    size_min = 4
    _ID_BYTES_OF_EIGHT: Final = 6

    def read(self, source: Source) -> ReplayDlq:
        topic = STR.read(source)
        if source.left == U64.size_min:
            head = source.data[source.position : source.position + 2]
            if int.from_bytes(head, "big") != self._ID_BYTES_OF_EIGHT:
                return ReplayDlq(topic, offset=U64.read(source))
        letter = STR.read(source)
        if not source.left:
            return ReplayDlq(topic, letter)
        pattern = STR.read(source)
        everything = BOOL.read(source)
        return ReplayDlq(topic, letter, None, pattern, everything, U32.read(source))

    def write(self, sink: Sink, value: ReplayDlq, name: str) -> None:
        STR.write(sink, value.topic, "topic")
        if value.offset is not None:
            if value.id or value.many:
                raise BraidError("INVALID_ARGUMENT", reason="offset names one dead letter, so nothing else can name any")
            if value.offset >> 48 == self._ID_BYTES_OF_EIGHT:
                raise BraidError("INVALID_ARGUMENT", reason=f"offset {value.offset} would be read as an id")
            U64.write(sink, value.offset, "offset")
            return
        STR.write(sink, value.id, "id")
        if value.many:
            STR.write(sink, value.filter, "filter")
            BOOL.write(sink, value.all, "all")
            U32.write(sink, value.max, "max")


REQUESTS: Final[dict[int, WireType[Any]]] = {
    Op.FETCH_DLQ: Extended(FetchDlq, {"start": STR}, topic=STR, max=I32),
    Op.REPLAY_DLQ: _ReplayDlq(),
    Op.PURGE_DLQ: Layout(PurgeDlq, topic=STR),
    Op.DLQ_DISCARD: Layout(DlqDiscard, topic=STR, id=STR),
    Op.DLQ_FAIL: Extended(
        DlqFail, {"token": U64}, topic=STR, partition=I32, offset=U64, group=STR, reason=STR, error=STR
    ),
}

RESPONSES: Final[dict[int, WireType[Any]]] = {
    Op.FETCH_DLQ: Layout(DeadLetters, items=Many(Layout(DeadLetter, id=STR, data=BYTES, error=STR, retries=I32))),
    Op.REPLAY_DLQ: Extended(DlqReplayed, {"count": U32}, success=BOOL, message=TRAILING_STR),
    Op.PURGE_DLQ: OK,
    Op.DLQ_DISCARD: OK,
    Op.DLQ_FAIL: Layout(FailureRecorded, dead_lettered=BOOL, attempts=U32, retry_at_ms=I64),
}
