"""The messages of BlipMQ's schema as FlatBuffers, read in any layout and written in one.

Reading checks, before any field is used: root, tables and vtables inside the buffer, fields inside their tables, everything
an offset leads to inside the buffer, required fields present. What breaks one of these is `Malformed`. Texts that are no
UTF-8 and metadata past its limits are `Refused`: the frame was whole, and the next one will be too.

Writing puts everything in one order, each number at a multiple of its size counted from the first byte after the length, so
that verifiers which check alignment accept it:

    envelope, body table, strings of the body, payload; then the metadata, if there is any

All offsets of a body are relative, so the same bytes follow the short envelope and the longer one that has metadata.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from braidmq.base import limits
from braidmq.hot import flatbuffer
from braidmq.hot.flatbuffer import ENVELOPE, OFFSET, PUBLISH, U8, U64, Damaged, Shape, follow, octets, span, string
from braidmq.wire.blipmq.faults import Malformed, Refused
from braidmq.wire.blipmq.messages import (
    Ack,
    AnyMessage,
    Envelope,
    ErrorMessage,
    Message,
    Metadata,
    Ping,
    Pong,
    Publish,
    Subscribe,
    Unsubscribe,
)

_SUBSCRIBE = Shape("Subscribe", OFFSET, U8, OFFSET)
_UNSUBSCRIBE = Shape("Unsubscribe", OFFSET, OFFSET)
_MESSAGE = Shape("Message", OFFSET, OFFSET, OFFSET, U64, U8)
_ACK = Shape("Ack", OFFSET, U8)
_PING = Shape("Ping", U64)
_ERROR = Shape("Error", U8, OFFSET, OFFSET)
_PAIR = Shape("Metadata", OFFSET, OFFSET)

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


# --- reading


def decode_body(data: bytes) -> Envelope:
    """The envelope of a frame, without its length. Raises `Malformed` or `Refused`."""
    sequence = kind = table = 0
    try:
        root = _U32.unpack_from(data)[0] if len(data) >= limits.BLIPMQ_FRAME_BYTES_MIN else 0
        _, kind_at, message_at, sequence_at, timestamp_at, metadata_at = ENVELOPE.places(data, root)
        sequence = _U64.unpack_from(data, root + sequence_at)[0] if sequence_at else 0
        timestamp = _U64.unpack_from(data, root + timestamp_at)[0] if timestamp_at else 0
        if not kind_at or not message_at or not data[root + kind_at]:
            raise Damaged("an envelope without a message")
        kind = data[root + kind_at]
        table = follow(data, root + message_at)
        # Texts are looked at when all offsets are known to be sound: what is damaged is not taken for what is only refused.
        pairs = _pairs(data, root + metadata_at, sequence) if metadata_at else None
        reader = _READERS.get(kind)
        if reader is None:
            raise Refused("INVALID_MESSAGE", sequence, reason=f"messages of type {kind} are not known")
        message = reader(data, table)
        metadata = () if pairs is None else _texts(data, pairs, sequence)
    except Damaged as fault:
        raise Malformed("MALFORMED_MESSAGE", sequence, reason=str(fault)) from None
    except UnicodeDecodeError as fault:
        code = "INVALID_TOPIC" if fault.object == _topic_of(kind, data, table) else "INVALID_MESSAGE"
        raise Refused(code, sequence, reason=f"not UTF-8 at byte {fault.start}") from None
    return Envelope(message, sequence, timestamp, metadata)


def _required(data: bytes, table: int, at: int, name: str) -> bytes:
    if not at:
        raise Damaged(f"{name} is missing")
    return octets(data, table + at)


def _signed(value: int) -> int:
    return value - 256 if value > 127 else value


def _read_subscribe(data: bytes, table: int) -> AnyMessage:
    _, topic_at, qos_at, client_at = _SUBSCRIBE.places(data, table)
    topic = _required(data, table, topic_at, "Subscribe.topic")
    client = octets(data, table + client_at) if client_at else None
    qos = _signed(data[table + qos_at]) if qos_at else 0
    return Subscribe(topic.decode(), qos, None if client is None else client.decode())


def _read_unsubscribe(data: bytes, table: int) -> AnyMessage:
    _, topic_at, client_at = _UNSUBSCRIBE.places(data, table)
    topic = _required(data, table, topic_at, "Unsubscribe.topic")
    client = octets(data, table + client_at) if client_at else None
    return Unsubscribe(topic.decode(), None if client is None else client.decode())


def _read_publish(data: bytes, table: int) -> AnyMessage:
    _, topic_at, payload_at, qos_at, ttl_at, id_at = PUBLISH.places(data, table)
    topic = _required(data, table, topic_at, "Publish.topic")
    payload = _required(data, table, payload_at, "Publish.payload")
    own = octets(data, table + id_at) if id_at else None
    qos = _signed(data[table + qos_at]) if qos_at else 0
    ttl_ms = _U64.unpack_from(data, table + ttl_at)[0] if ttl_at else 0
    return Publish(topic.decode(), payload, qos, ttl_ms, None if own is None else own.decode())


def _read_message(data: bytes, table: int) -> AnyMessage:
    _, topic_at, payload_at, id_at, timestamp_at, qos_at = _MESSAGE.places(data, table)
    topic = _required(data, table, topic_at, "Message.topic")
    payload = _required(data, table, payload_at, "Message.payload")
    own = octets(data, table + id_at) if id_at else None
    timestamp = _U64.unpack_from(data, table + timestamp_at)[0] if timestamp_at else 0
    qos = _signed(data[table + qos_at]) if qos_at else 0
    return Message(topic.decode(), payload, None if own is None else own.decode(), timestamp, qos)


def _read_ack(data: bytes, table: int) -> AnyMessage:
    _, id_at, code_at = _ACK.places(data, table)
    own = _required(data, table, id_at, "Ack.message_id")
    return Ack(own.decode(), data[table + code_at] if code_at else 0)


def _read_ping(data: bytes, table: int) -> AnyMessage:
    _, timestamp_at = _PING.places(data, table)
    return Ping(_U64.unpack_from(data, table + timestamp_at)[0] if timestamp_at else 0)


def _read_pong(data: bytes, table: int) -> AnyMessage:
    _, timestamp_at = _PING.places(data, table)
    return Pong(_U64.unpack_from(data, table + timestamp_at)[0] if timestamp_at else 0)


def _read_error(data: bytes, table: int) -> AnyMessage:
    _, code_at, message_at, details_at = _ERROR.places(data, table)
    code = data[table + code_at] if code_at else 0
    message = octets(data, table + message_at) if message_at else None
    details = octets(data, table + details_at) if details_at else None
    return ErrorMessage(code, None if message is None else message.decode(), None if details is None else details.decode())


_READERS: Final[dict[int, Callable[[bytes, int], AnyMessage]]] = {
    1: _read_subscribe,
    2: _read_unsubscribe,
    3: _read_publish,
    4: _read_message,
    5: _read_ack,
    6: _read_ping,
    7: _read_pong,
    8: _read_error,
}
"""By the schema's number for the kind of message."""
_WITH_TOPIC: Final = {1: _SUBSCRIBE, 2: _UNSUBSCRIBE, 3: PUBLISH, 4: _MESSAGE}


def _topic_of(kind: int, data: bytes, table: int) -> bytes | None:
    """The topic of a message whose offsets are sound."""
    shape = _WITH_TOPIC.get(kind)
    return None if shape is None else octets(data, table + shape.places(data, table)[1])


_Spans = list[tuple[int, int, int, int]]


def _pairs(data: bytes, field: int, sequence: int) -> _Spans:
    """Where the names and values of an envelope begin and end."""
    at = follow(data, field)
    count = _U32.unpack_from(data, at)[0]
    if at + 4 + 4 * count > len(data):
        raise Damaged(f"{count} metadata entries run past the end")
    if count > limits.BLIPMQ_METADATA_ENTRIES_MAX:
        most = limits.BLIPMQ_METADATA_ENTRIES_MAX
        raise Refused("INVALID_MESSAGE", sequence, reason=f"{count} metadata entries, more than {most}")
    spans: _Spans = []
    for entry in range(at + 4, at + 4 + 4 * count, 4):
        table = follow(data, entry)
        _, key_at, value_at = _PAIR.places(data, table)
        if not key_at:
            raise Damaged("Metadata.key is missing")
        spans.append((*span(data, table + key_at), *(span(data, table + value_at) if value_at else (0, 0))))
    return spans


def _texts(data: bytes, spans: _Spans, sequence: int) -> Metadata:
    """The pairs themselves. Many entries may point at one long text, so nothing is copied before the sum is known."""
    longest = max((key_end - key for key, key_end, _, _ in spans), default=0)
    if longest > limits.BLIPMQ_METADATA_KEY_BYTES_MAX:
        most = limits.BLIPMQ_METADATA_KEY_BYTES_MAX
        raise Refused("INVALID_MESSAGE", sequence, reason=f"a metadata key of {longest} bytes, more than {most}")
    total = sum(key_end - key + value_end - value for key, key_end, value, value_end in spans)
    if total > limits.BLIPMQ_METADATA_BYTES_MAX:
        most = limits.BLIPMQ_METADATA_BYTES_MAX
        raise Refused("INVALID_MESSAGE", sequence, reason=f"{total} bytes of metadata, more than {most}")
    return tuple(
        (data[key:key_end].decode(), data[value:value_end].decode()) for key, key_end, value, value_end in spans
    )


# --- writing

_ENVELOPE = struct.Struct("<II6HiIQQBB")
_ENVELOPE_WITH_PAIRS = struct.Struct("<II7HHiQQIIBB")
_BODY_AT: Final = _ENVELOPE.size
_BODY_WITH_PAIRS_AT: Final = _ENVELOPE_WITH_PAIRS.size
assert _BODY_WITH_PAIRS_AT - _BODY_AT == 8, "a body keeps its alignment behind either envelope"
_TWO_TEXTS = struct.Struct("<5HiIIB3x")
_UNSUBSCRIBE_HEAD = struct.Struct("<5HiII")
_PING_BODY = struct.Struct("<3H4xiQ")
_PAIR_TABLE = struct.Struct("<iII")
_PAIR_VTABLE = struct.pack("<4H", 8, 12, 4, 8)


def encode_frame(envelope: Envelope) -> bytes:
    """A whole frame, with its length."""
    kind, distance, frame = _write(envelope.message, envelope.sequence, envelope.timestamp)
    if not envelope.metadata:
        return frame
    body = frame[_BODY_AT:] + bytes(-(len(frame) - 4) & 3)
    pairs = _write_pairs(envelope.metadata)
    at = _BODY_WITH_PAIRS_AT - 4 + len(body)
    head = _ENVELOPE_WITH_PAIRS.pack(
        at + len(pairs), 20, 14, 30, 28, 20, 4, 12, 24, 0, 16, envelope.sequence, envelope.timestamp, 10 + distance, at - 44,
        kind, 0,
    )  # fmt: skip
    return b"".join((head, body, pairs))


def _write(message: AnyMessage, sequence: int, timestamp: int) -> tuple[int, int, bytes]:
    """The schema's number for the message, how far behind the envelope its table begins, and the frame without metadata."""
    match message:
        case Publish(topic, payload, qos, ttl_ms, own):
            encoded = string(topic.encode())
            return 3, 14, flatbuffer.publish_frame(encoded, payload, _maybe(own), sequence, timestamp, ttl_ms, qos & 0xFF)
        case Message(topic, payload, own, accepted, qos):
            encoded = string(topic.encode())
            return 4, 14, flatbuffer.message_frame(encoded, payload, _maybe(own), sequence, timestamp, accepted, qos & 0xFF)
        case Ack(own, code):
            return 5, 10, flatbuffer.ack_frame(own.encode(), sequence, timestamp, code)
        case Subscribe(topic, qos, client_id):
            body = _two_texts(topic, client_id, qos & 0xFF, lambda first, second: (first, 12, second))
            kind = 1
        case Unsubscribe(topic, client_id):
            encoded, client = string(topic.encode()), _string(client_id)
            client_at = 4 + len(encoded) if client else 0
            body = _UNSUBSCRIBE_HEAD.pack(8, 12, 4, 8 if client else 0, 0, 10, 8, client_at) + encoded + client
            kind = 2
        case Ping(own_timestamp):
            body = _PING_BODY.pack(6, 12, 4, 10, own_timestamp)
            kind = 6
        case Pong(own_timestamp):
            body = _PING_BODY.pack(6, 12, 4, 10, own_timestamp)
            kind = 7
        case ErrorMessage(code, text, details):
            body = _two_texts(text, details, code, lambda first, second: (12, first, second))
            kind = 8
    head = _ENVELOPE.pack(_BODY_AT - 4 + len(body), 16, 12, 28, 24, 4, 8, 16, 12, 32, sequence, timestamp, kind, 0)
    return kind, 10, head + body


def _maybe(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _string(text: str | None) -> bytes:
    return b"" if text is None else string(text.encode())


def _two_texts(first: str | None, second: str | None, octet: int, fields: Callable[[int, int], tuple[int, int, int]]) -> bytes:
    """A table of two strings and a small number; `fields` puts their places into the order of the schema."""
    one, two = _string(first), _string(second)
    places = fields(4 if one else 0, 8 if two else 0)
    return _TWO_TEXTS.pack(10, 16, *places, 10, 12 if one else 0, 8 + len(one) if two else 0, octet) + one + two


def _write_pairs(metadata: Metadata) -> bytes:
    """A vector of tables: their offsets, the vtable they share, then each with its texts."""
    count = len(metadata)
    vtable = 4 + 4 * count
    offsets = [count]
    parts: list[bytes] = []
    at = vtable + len(_PAIR_VTABLE)
    for index, (key, value) in enumerate(metadata):
        own = string(key.encode())
        text = string(value.encode())
        offsets.append(at - 4 - 4 * index)
        parts += (_PAIR_TABLE.pack(at - vtable, 8, 4 + len(own)), own, text)
        at += 12 + len(own) + len(text)
    return b"".join((struct.pack(f"<{count + 1}I", *offsets), _PAIR_VTABLE, *parts))
