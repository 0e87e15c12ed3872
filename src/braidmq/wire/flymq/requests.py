"""Requests of the core operations, and the table that says how each request of any area lies on the wire.

A new operation is a dataclass, a row of `REQUESTS` and a row of `RESPONSES`, in the module of its area. Bytes after the last field
of a request are ignored, because published clients append fields nobody reads; the exceptions are requests whose forms are told
apart by where the payload ends.

Topic, group, key and value of a decoded request are copies and outlive the payload. `ProduceBatch.batch` is the exception: it
is a view where the payload was one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import partial
from typing import Any, ClassVar, Final

from braidmq.base.errors import BraidError
from braidmq.base.limits import REQUEST_LIST_ITEMS_MAX
from braidmq.wire.flymq import (
    audit,
    cluster,
    dead_letters,
    delays,
    groups,
    pipelines,
    replays,
    roles,
    schemas,
    stages,
    transactions,
    upkeep,
    users,
)
from braidmq.wire.flymq.dialect import Dialect
from braidmq.wire.flymq.layout import (
    BOOL,
    BYTES,
    BYTES_VIEW,
    I32,
    STR,
    STR8,
    TRAILING_STR,
    U32,
    U64,
    Extended,
    Layout,
    Sink,
    Source,
    WireType,
)
from braidmq.wire.flymq.opcodes import Op
from braidmq.wire.shape import shape


@shape
class Produce:
    """Append one record. An empty key is no key; a negative partition leaves the choice to the broker."""

    op: ClassVar[Op] = Op.PRODUCE
    topic: str
    key: bytes
    value: bytes
    partition: int = -1


@shape
class Consume:
    """Read the one record at an offset."""

    topic: str
    partition: int
    offset: int
    zero_copy: bool = False
    """Asked as CONSUME_ZERO_COPY: the same operation under another opcode."""

    @property
    def op(self) -> Op:
        return Op.CONSUME_ZERO_COPY if self.zero_copy else Op.CONSUME


@shape
class CreateTopic:
    """Create a topic. Properties are BraidMQ's own addition behind the documented fields; others ignore them."""

    op: ClassVar[Op] = Op.CREATE_TOPIC
    topic: str
    partitions: int
    properties: Mapping[str, str] = field(default_factory=dict)


@shape
class Metadata:
    op: ClassVar[Op] = Op.METADATA
    topic: str


@shape
class Subscribe:
    """Join a group and ask where to start reading."""

    op: ClassVar[Op] = Op.SUBSCRIBE
    topic: str
    group: str
    partition: int
    mode: str


@shape
class Commit:
    """Store the next offset that a group will read."""

    op: ClassVar[Op] = Op.COMMIT
    topic: str
    group: str
    partition: int
    offset: int


@shape
class Fetch:
    """Read records from an offset on, without waiting."""

    topic: str
    partition: int
    offset: int
    max_messages: int
    filter: str = ""
    """Empty means none."""
    binary: bool = False
    """Asked as FETCH_BINARY: the same operation under another opcode."""

    @property
    def op(self) -> Op:
        return Op.FETCH_BINARY if self.binary else Op.FETCH


@shape
class ListTopics:
    op: ClassVar[Op] = Op.LIST_TOPICS


@shape
class DeleteTopic:
    op: ClassVar[Op] = Op.DELETE_TOPIC
    topic: str


@shape
class ProduceBatch:
    """Append many records, already in the broker's batch format."""

    op: ClassVar[Op] = Op.PRODUCE_BATCH
    topic: str
    partition: int
    batch: bytes | memoryview
    """Decoded from a view it is a view of the same buffer, and valid only as long as that buffer is left alone."""


@shape
class FetchBatches:
    """Read whole batches as they are stored, waiting up to `max_wait_ms` for `min_bytes` of them."""

    op: ClassVar[Op] = Op.FETCH_BATCHES
    topic: str
    partition: int
    offset: int
    max_bytes: int
    min_bytes: int
    max_wait_ms: int
    from_replica: bool = False
    """Whether a replica in sync may answer, where it serves readers, and not the leader alone."""


CoreRequest = (
    Produce
    | Consume
    | CreateTopic
    | Metadata
    | Subscribe
    | Commit
    | Fetch
    | ListTopics
    | DeleteTopic
    | ProduceBatch
    | FetchBatches
)
Request = (
    CoreRequest
    | schemas.SchemaRequest
    | dead_letters.DeadLetterRequest
    | delays.DelayRequest
    | transactions.TransactionRequest
    | stages.StageRequest
    | cluster.ClusterRequest
    | groups.GroupRequest
    | pipelines.PipelineRequest
    | replays.ReplayRequest
    | roles.RoleRequest
    | users.UserRequest
    | audit.AuditRequest
    | upkeep.UpkeepRequest
)


class _SubscribeMode:
    """The mode of SUBSCRIBE, the last field: a length of one byte from v126 clients, of two bytes from documented ones.

    The length has to reach exactly to the end, which both forms can never do at once, so the bytes themselves say which one it is.
    """

    size_min = 1

    def read(self, source: Source) -> str:
        left = source.left
        head = source.data[source.position : source.position + 2]
        if left >= 1 and head[0] == left - 1:
            source.dialect = Dialect.V126
            return STR8.read(source)
        if left >= 2 and head[0] << 8 | head[1] == left - 2:
            return STR.read(source)
        raise BraidError("MALFORMED_PAYLOAD", reason=f"the {left} bytes of the subscribe mode do not match its length")

    def write(self, sink: Sink, value: str, name: str) -> None:
        (STR8 if sink.dialect is Dialect.V126 else STR).write(sink, value, name)


class _FetchFilter:
    """The filter of FETCH, which only v126 clients know: they send it even when it is empty."""

    size_min = 0

    def read(self, source: Source) -> str:
        if source.left:
            source.dialect = Dialect.V126
        return TRAILING_STR.read(source)

    def write(self, sink: Sink, value: str, name: str) -> None:
        if sink.dialect is Dialect.V126:
            STR.write(sink, value, name)
        elif value:
            # Sent anyway it would move the connection to v126, and the answer could not be read.
            raise BraidError("INVALID_ARGUMENT", reason=f"{name} exists only in the v126 dialect")


class _Properties:
    """Name and value pairs at the end of CREATE_TOPIC. Bytes that are not exactly that are unused fields of another client."""

    size_min = 0

    def read(self, source: Source) -> dict[str, str]:
        properties: dict[str, str] = {}
        try:
            count = U32.read(source) if source.left >= 4 else 0
            if count > REQUEST_LIST_ITEMS_MAX:
                return {}
            for _ in range(min(count, source.left // 4)):
                name = STR.read(source)
                properties[name] = STR.read(source)
            return properties if len(properties) == count and not source.left else {}
        except BraidError:
            return {}

    def write(self, sink: Sink, value: Mapping[str, str], name: str) -> None:
        if value:
            U32.write(sink, len(value), name)
            for key, text in value.items():
                STR.write(sink, key, name)
                STR.write(sink, text, name)


_PROPERTIES: Final = _Properties()
_MODE: Final = _SubscribeMode()
_FILTER: Final = _FetchFilter()

_CORE: Final[dict[int, WireType[Any]]] = {
    Op.PRODUCE: Layout(Produce, topic=STR, key=BYTES, value=BYTES, partition=I32),
    Op.CONSUME: Layout(Consume, topic=STR, partition=I32, offset=U64),
    Op.CREATE_TOPIC: Layout(CreateTopic, topic=STR, partitions=I32, properties=_PROPERTIES),
    Op.METADATA: Layout(Metadata, topic=STR),
    Op.SUBSCRIBE: Layout(Subscribe, topic=STR, group=STR, partition=I32, mode=_MODE),
    Op.COMMIT: Layout(Commit, topic=STR, group=STR, partition=I32, offset=U64),
    Op.FETCH: Layout(Fetch, topic=STR, partition=I32, offset=U64, max_messages=I32, filter=_FILTER),
    Op.LIST_TOPICS: Layout(ListTopics),
    Op.DELETE_TOPIC: Layout(DeleteTopic, topic=STR),
    Op.CONSUME_ZERO_COPY: Layout(partial(Consume, zero_copy=True), topic=STR, partition=I32, offset=U64),
    Op.FETCH_BINARY: Layout(
        partial(Fetch, binary=True), topic=STR, partition=I32, offset=U64, max_messages=I32, filter=_FILTER
    ),
    Op.PRODUCE_BATCH: Layout(ProduceBatch, topic=STR, partition=I32, batch=BYTES_VIEW),
    Op.FETCH_BATCHES: Extended(
        FetchBatches,
        {"from_replica": BOOL},
        topic=STR,
        partition=I32,
        offset=U64,
        max_bytes=U32,
        min_bytes=U32,
        max_wait_ms=U32,
    ),
}

REQUESTS: Final[dict[int, WireType[Any]]] = {
    **_CORE,
    **schemas.REQUESTS,
    **dead_letters.REQUESTS,
    **delays.REQUESTS,
    **transactions.REQUESTS,
    **stages.REQUESTS,
    **cluster.REQUESTS,
    **groups.REQUESTS,
    **pipelines.REQUESTS,
    **replays.REQUESTS,
    **roles.REQUESTS,
    **users.REQUESTS,
    **audit.REQUESTS,
    **upkeep.REQUESTS,
}


def decode_request(op: int, payload: bytes | memoryview, dialect: Dialect) -> tuple[Request, Dialect]:
    """The request, and the dialect its sender is now known to speak: the given one, or V126 when only such a client sends this.

    The caller decides whether its connection follows. Raises UNKNOWN_OPCODE or MALFORMED_PAYLOAD.
    """
    layout = REQUESTS.get(op)
    if layout is None:
        raise BraidError("UNKNOWN_OPCODE", opcode=int(op))
    source = Source(payload, dialect)
    request: Request = layout.read(source)
    return request, source.dialect


def encode_request(request: Request, dialect: Dialect) -> bytes:
    """The whole frame. Raises INVALID_ARGUMENT for a value that its field cannot hold, FRAME_TOO_LARGE for too many bytes."""
    op = request.op
    sink = Sink(dialect)
    REQUESTS[op].write(sink, request, "")
    return sink.frame(op)
