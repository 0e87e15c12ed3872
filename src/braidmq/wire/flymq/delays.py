"""Records that come later or do not stay: delayed delivery and time to live, 30, 31 and 35, and our own DELAYED_LIST.

Key and partition behind the published fields are our own addition; without them a record has no key and the broker chooses.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from braidmq.wire.flymq.answers import OK, RECORD_METADATA
from braidmq.wire.flymq.layout import BYTES, I32, I64, STR, TRAILING_STR, U32, U64, Extended, Layout, Many, Sink, Source, WireType
from braidmq.wire.flymq.opcodes import Op
from braidmq.wire.shape import shape


@shape
class ProduceDelayed:
    op: ClassVar[Op] = Op.PRODUCE_DELAYED
    topic: str
    data: bytes
    delay_ms: int
    key: bytes = b""
    partition: int = -1


@shape
class CancelDelayed:
    op: ClassVar[Op] = Op.CANCEL_DELAYED
    id: str
    topic: str = ""
    """Some clients name it in front of the id; nothing needs it."""


@shape
class ProduceWithTtl:
    op: ClassVar[Op] = Op.PRODUCE_WITH_TTL
    topic: str
    data: bytes
    ttl_ms: int
    key: bytes = b""
    partition: int = -1


@shape
class DelayedList:
    """What waits for its time, the soonest first."""

    op: ClassVar[Op] = Op.DELAYED_LIST
    topic: str
    """Empty means all."""
    max: int


DelayRequest = ProduceDelayed | CancelDelayed | ProduceWithTtl | DelayedList


@shape
class Delayed:
    """Record metadata, as published clients read it, then the id that cancels the record."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key_size: int
    value_size: int
    id: str = ""
    """Empty where there is nothing to cancel any more."""


@shape
class DelayedMessage:
    id: str
    topic: str
    due_ms: int
    size: int


@shape
class DelayedMessages:
    messages: tuple[DelayedMessage, ...]


DelayResponse = Delayed | DelayedMessages


class _CancelDelayed:
    """One text is the id; of two, the first is the topic."""

    size_min = 2

    def read(self, source: Source) -> CancelDelayed:
        first = STR.read(source)
        return CancelDelayed(STR.read(source), first) if source.left else CancelDelayed(first)

    def write(self, sink: Sink, value: CancelDelayed, name: str) -> None:
        if value.topic:
            STR.write(sink, value.topic, "topic")
        STR.write(sink, value.id, "id")


_PLACE: Final[dict[str, WireType[Any]]] = {"key": BYTES, "partition": I32}

REQUESTS: Final[dict[int, WireType[Any]]] = {
    Op.PRODUCE_DELAYED: Extended(ProduceDelayed, _PLACE, topic=STR, data=BYTES, delay_ms=I64),
    Op.CANCEL_DELAYED: _CancelDelayed(),
    Op.PRODUCE_WITH_TTL: Extended(ProduceWithTtl, _PLACE, topic=STR, data=BYTES, ttl_ms=I64),
    Op.DELAYED_LIST: Layout(DelayedList, topic=STR, max=I32),
}

RESPONSES: Final[dict[int, WireType[Any]]] = {
    Op.PRODUCE_DELAYED: Layout(
        Delayed, topic=STR, partition=I32, offset=U64, timestamp=I64, key_size=I32, value_size=I32, id=TRAILING_STR
    ),
    Op.CANCEL_DELAYED: OK,
    Op.PRODUCE_WITH_TTL: RECORD_METADATA,
    Op.DELAYED_LIST: Layout(DelayedMessages, messages=Many(Layout(DelayedMessage, id=STR, topic=STR, due_ms=I64, size=U32))),
}
