"""The framing of the first published releases: big-endian lengths around two small FlatBuffers.

    client   u32 length, ClientCommand { action, topic, payload, ttl_ms }
    server   u32 length, u8 kind, SubAck { topic, info } or Message { id, payload, timestamp, ttl_ms }

There is no envelope, no quality of service, no error and no key. What is wrong is `Malformed`, and all that can be done about
it is to close.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from braidmq.base import limits
from braidmq.hot.flatbuffer import OFFSET, U8, U64, Damaged, Shape, octets, string
from braidmq.wire.blipmq.faults import Malformed
from braidmq.wire.blipmq.frames import FRAME_BYTES_MAX, Buffer, LengthReader, TooLarge
from braidmq.wire.shape import shape

INFO_SUBSCRIBED: Final = "subscribed"
_SUB_ACK: Final = 0
_MESSAGE: Final = 1

_COMMAND_SHAPE = Shape("ClientCommand", U8, OFFSET, OFFSET, U64)
_SUB_ACK_SHAPE = Shape("SubAck", OFFSET, OFFSET)
_MESSAGE_SHAPE = Shape("Message", U64, OFFSET, U64, U64)

_LENGTH = struct.Struct(">I")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_COMMAND_HEAD = struct.Struct("<I6HiIQIB3x")
_SUB_ACK_HEAD = struct.Struct("<I4HiII")
_MESSAGE_HEAD = struct.Struct("<I6HiIQQQ")


class Action(IntEnum):
    PUB = 0
    SUB = 1
    UNSUB = 2
    QUIT = 3


@shape
class Command:
    action: Action
    topic: str = ""
    payload: bytes = b""
    ttl_ms: int = 0


@shape
class SubAck:
    topic: str
    info: str = INFO_SUBSCRIBED


@shape
class Message:
    id: int
    payload: bytes
    timestamp: int
    """In milliseconds, whatever the other framings use."""
    ttl_ms: int = 0


class Reader:
    """Cuts a stream into frames without their lengths, for `decode_command` or `decode_reply`."""

    __slots__ = ("_lengths",)

    def __init__(self, frame_max: int = FRAME_BYTES_MAX) -> None:
        def measure(data: Buffer, position: int) -> int:
            size = int.from_bytes(data[position : position + 4])
            if size < limits.BLIPMQ_FRAME_BYTES_MIN:
                raise Malformed("MALFORMED_MESSAGE", reason=f"a legacy frame of {size} bytes")
            if size > frame_max:
                raise Malformed("FRAME_TOO_LARGE", size=size, limit=frame_max)
            return size

        self._lengths = LengthReader(measure)

    def receive(self, data: Buffer) -> list[memoryview]:
        """The frames that `data` completes, in order."""
        return [body for body in self._lengths.receive(data) if not isinstance(body, TooLarge)]


def decode_command(body: Buffer) -> Command:
    """What a client's frame says."""
    data = bytes(body)
    try:
        root = _root(data)
        _, action_at, topic_at, payload_at, ttl_at = _COMMAND_SHAPE.places(data, root)
        return Command(
            Action(data[root + action_at] if action_at else 0),
            octets(data, root + topic_at).decode() if topic_at else "",
            octets(data, root + payload_at) if payload_at else b"",
            _number(data, root, ttl_at),
        )
    except (Damaged, ValueError) as fault:
        # Bytes that are no UTF-8 and unknown actions are both a ValueError.
        raise Malformed("MALFORMED_MESSAGE", reason=str(fault)) from None


def decode_reply(body: Buffer) -> SubAck | Message:
    """What a server's frame says."""
    kind, data = body[0], bytes(body[1:])
    try:
        root = _root(data)
        if kind == _SUB_ACK:
            _, topic_at, info_at = _SUB_ACK_SHAPE.places(data, root)
            return SubAck(_text(data, root, topic_at), _text(data, root, info_at))
        if kind == _MESSAGE:
            _, id_at, payload_at, timestamp_at, ttl_at = _MESSAGE_SHAPE.places(data, root)
            payload = octets(data, root + payload_at) if payload_at else b""
            return Message(_number(data, root, id_at), payload, _number(data, root, timestamp_at), _number(data, root, ttl_at))
    except (Damaged, ValueError) as fault:
        raise Malformed("MALFORMED_MESSAGE", reason=str(fault)) from None
    raise Malformed("MALFORMED_MESSAGE", reason=f"replies have no kind {kind}")


def _root(data: bytes) -> int:
    return int(_U32.unpack_from(data)[0]) if len(data) >= 8 else 0


def _number(data: bytes, table: int, at: int) -> int:
    return int(_U64.unpack_from(data, table + at)[0]) if at else 0


def _text(data: bytes, table: int, at: int) -> str:
    return octets(data, table + at).decode() if at else ""


def encode_command(command: Command) -> bytes:
    """A client's whole frame."""
    topic = string(command.topic.encode())
    head = _COMMAND_HEAD.pack(16, 12, 24, 20, 4, 16, 8, 12, 20, command.ttl_ms, 8 + len(topic), command.action)
    body = b"".join((head, topic, _U32.pack(len(command.payload)), command.payload))
    return _LENGTH.pack(len(body)) + body


def encode_reply(reply: SubAck | Message) -> bytes:
    """A server's whole frame."""
    if isinstance(reply, SubAck):
        topic = string(reply.topic.encode())
        kind = _SUB_ACK
        body = _SUB_ACK_HEAD.pack(12, 8, 12, 4, 8, 8, 8, 4 + len(topic)) + topic + string(reply.info.encode())
    else:
        kind = _MESSAGE
        head = _MESSAGE_HEAD.pack(16, 12, 32, 8, 4, 16, 24, 12, 28, reply.id, reply.timestamp, reply.ttl_ms)
        body = b"".join((head, _U32.pack(len(reply.payload)), reply.payload))
    return _LENGTH.pack(1 + len(body)) + bytes((kind,)) + body
