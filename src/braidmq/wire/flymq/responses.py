"""Responses of the core operations, the table that says how each response of any area lies on the wire, and the ERROR frame.

A new operation's answer is a row of `RESPONSES`, under the opcode of its request, in the module of its area. Bytes after
the last field are ignored, so that answers can grow. For the reader of a response a malformed one is the server's fault:
UNEXPECTED_REPLY.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from braidmq.base.errors import BraidError
from braidmq.base.limits import ERROR_TEXT_BYTES_MAX
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
from braidmq.wire.flymq.answers import OFFSET, OK, RECORD_METADATA, Offset, Ok, RecordMetadata
from braidmq.wire.flymq.dialect import Dialect
from braidmq.wire.flymq.frames import encode_frame
from braidmq.wire.flymq.layout import BOOL, BYTES, I32, I64, STR, U32, U64, ByDialect, Choice, Layout, Many, Sink, Source, WireType
from braidmq.wire.flymq.opcodes import Op, answer_op
from braidmq.wire.shape import shape


@shape
class Message:
    """One record; an empty key is no key."""

    key: bytes
    value: bytes


@shape
class PartitionMetadata:
    id: int
    leader: int
    oldest: int
    newest: int
    """The next offset to be written."""


@shape
class TopicMetadata:
    topic: str
    partitions: tuple[PartitionMetadata, ...]


@shape
class FetchedItem:
    key: bytes
    value: bytes
    offset: int


@shape
class Fetched:
    items: tuple[FetchedItem, ...]
    next_offset: int
    """Where to go on; past the last item when records were filtered out."""


@shape
class TopicList:
    topics: tuple[str, ...]


@shape
class BatchProduced:
    """Where a batch was written; for a duplicate, where its original was."""

    topic: str
    partition: int
    base_offset: int
    timestamp: int
    count: int
    duplicate: bool


@shape
class FetchedBatches:
    """Whole batches as stored. The first may begin before the offset that was asked for; the reader skips."""

    topic: str
    partition: int
    high_watermark: int
    log_start: int
    batches: bytes


@shape
class ErrorReply:
    """What the server said was wrong."""

    text: str


CoreResponse = (
    RecordMetadata
    | Message
    | Ok
    | TopicMetadata
    | Offset
    | Fetched
    | TopicList
    | BatchProduced
    | FetchedBatches
    | ErrorReply
)
Response = (
    CoreResponse
    | schemas.SchemaResponse
    | dead_letters.DeadLetterResponse
    | delays.DelayResponse
    | transactions.TransactionResponse
    | stages.StageResponse
    | cluster.ClusterResponse
    | groups.GroupResponse
    | pipelines.PipelineResponse
    | replays.ReplayResponse
    | roles.RoleResponse
    | users.UserResponse
    | audit.AuditResponse
    | upkeep.UpkeepResponse
)


class _FetchedV126:
    """FETCH's answer in v126, where next_offset stands between the count and the items it counts."""

    _HEAD: Final = struct.Struct(">IQ")
    _ITEMS: Final = Many(Layout(FetchedItem, offset=U64, key=BYTES, value=BYTES))
    size_min = _HEAD.size

    def read(self, source: Source) -> Fetched:
        count, next_offset = source.unpack(self._HEAD)
        return Fetched(self._ITEMS.read_items(source, count), next_offset)

    def write(self, sink: Sink, value: Fetched, name: str) -> None:
        U32.write(sink, len(value.items), "count")
        U64.write(sink, value.next_offset, "next_offset")
        self._ITEMS.write_items(sink, value.items, "items")


_MESSAGE: Final = Layout(Message, key=BYTES, value=BYTES)
_FETCHED: Final = ByDialect[Fetched](
    documented=Layout(Fetched, items=Many(Layout(FetchedItem, key=BYTES, value=BYTES, offset=U64)), next_offset=U64),
    v126=_FetchedV126(),
)

_CORE: Final[dict[int, WireType[Any]]] = {
    Op.PRODUCE: RECORD_METADATA,
    Op.CONSUME: _MESSAGE,
    Op.CREATE_TOPIC: OK,
    Op.METADATA: Layout(
        TopicMetadata, topic=STR, partitions=Many(Layout(PartitionMetadata, id=I32, leader=I32, oldest=U64, newest=U64))
    ),
    Op.SUBSCRIBE: OFFSET,
    Op.COMMIT: OK,
    Op.FETCH: _FETCHED,
    Op.LIST_TOPICS: Layout(TopicList, topics=Many(STR)),
    Op.DELETE_TOPIC: OK,
    Op.CONSUME_ZERO_COPY: _MESSAGE,
    Op.FETCH_BINARY: _FETCHED,
    Op.PRODUCE_BATCH: Layout(
        BatchProduced, topic=STR, partition=I32, base_offset=U64, timestamp=I64, count=U32, duplicate=BOOL
    ),
    Op.FETCH_BATCHES: Layout(
        FetchedBatches, topic=STR, partition=I32, high_watermark=U64, log_start=U64, batches=BYTES
    ),
}

RESPONSES: Final[dict[int, WireType[Any]]] = {
    **_CORE,
    **schemas.RESPONSES,
    **dead_letters.RESPONSES,
    **delays.RESPONSES,
    **transactions.RESPONSES,
    **stages.RESPONSES,
    **cluster.RESPONSES,
    **groups.RESPONSES,
    **pipelines.RESPONSES,
    **replays.RESPONSES,
    **roles.RESPONSES,
    **users.RESPONSES,
    **audit.RESPONSES,
    **upkeep.RESPONSES,
}


def encode_response(op: int, response: Response, dialect: Dialect) -> bytes:
    """The whole frame that answers a request of opcode `op`. Raises INVALID_ARGUMENT or FRAME_TOO_LARGE."""
    if isinstance(response, ErrorReply):
        return encode_error(response.text, dialect)
    sink = Sink(dialect)
    RESPONSES[op].write(sink, response, "")
    return sink.frame(answer_op(op))


def decode_response(
    request_op: int, op: int, payload: bytes | memoryview, dialect: Dialect, expect: type[Response] | None = None
) -> Response:
    """What the server answered to a request of opcode `request_op` with a frame of opcode `op`. Raises UNEXPECTED_REPLY.

    `expect` is needed only where the request chose between forms of the answer: a `DescribeGroup` with `group_only`.
    """
    if op == Op.ERROR:
        return ErrorReply(_decode_error_text(bytes(payload), dialect))
    if op != answer_op(request_op):
        raise BraidError("UNEXPECTED_REPLY", reason=f"opcode {op:02X} to a request of opcode {request_op:02X}")
    layout = RESPONSES[request_op]
    if expect is not None and isinstance(layout, Choice):
        layout = layout.form(expect)
    try:
        response: Response = layout.read(Source(payload, dialect))
    except BraidError as error:
        raise BraidError("UNEXPECTED_REPLY", reason=f"opcode {op:02X} with a payload that cannot be read: {error.text}") from None
    return response


# The two forms of an ERROR payload. In v126 the frame is one that both kinds of decoder accept: published clients read
# `i32 code, str message`, and to a documented one the same bytes are `bool false, str message` with three bytes too many in front.
_ERROR: Final = struct.Struct(">?H")
_ERROR_V126: Final = struct.Struct(">?HBH")
_ERROR_V126_INNER_BYTES: Final = 3
_SPACE: Final = 0x20
assert ERROR_TEXT_BYTES_MAX % 0x100 == 0, "else padding a v126 text could pass the limit"


def encode_error(error: str | BraidError, dialect: Dialect) -> bytes:
    """The whole ERROR frame. It never fails: text that is too long is cut, text that is not UTF-8 is escaped."""
    if dialect is Dialect.V126:
        text = _error_bytes(error.v126_text if isinstance(error, BraidError) else error)
        # A documented decoder reads the inner length as text, so its low byte has to be ASCII.
        if len(text) & 0x80:
            text = text.ljust((len(text) | 0xFF) + 1)
        payload = _ERROR_V126.pack(False, len(text) + _ERROR_V126_INNER_BYTES, _SPACE, len(text)) + text
    else:
        text = _error_bytes(str(error))
        payload = _ERROR.pack(False, len(text)) + text
    return encode_frame(Op.ERROR, payload)


def _error_bytes(text: str) -> bytes:
    data = text.encode(errors="backslashreplace")
    if len(data) <= ERROR_TEXT_BYTES_MAX:
        return data
    end = ERROR_TEXT_BYTES_MAX
    while data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end]


def _decode_error_text(payload: bytes, dialect: Dialect) -> str:
    """The text of an ERROR payload. Where the layout does not fit the text is all of it, as the published server sends it bare."""
    form = _ERROR_V126 if dialect is Dialect.V126 else _ERROR
    if len(payload) >= form.size:
        size = form.unpack_from(payload)[-1]
        if form.size + size == len(payload):
            text = payload[form.size :].decode(errors="replace")
            return text.rstrip(" ") if dialect is Dialect.V126 else text
    return payload.decode(errors="replace")
