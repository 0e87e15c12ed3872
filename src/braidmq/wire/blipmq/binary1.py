"""The binary framing of the published BlipMQ clients: "binary 1".

    0  u32  length of what follows (9 to 16 MiB), big-endian like everything here
    4  u8   type
    5  u64  correlation id; an answer repeats that of its request
   13       payload

| Type | Name | From | Payload |
|---|---|---|---|
| 1 | HELLO | client | u16 version |
| 2 | AUTH | client | u16 length, key |
| 3 | PUBLISH | both | u8 QoS, u16 length, topic, message |
| 4 | SUBSCRIBE | client | u16 length, topic, u8 QoS; what follows is ignored |
| 5 | ACK | both | u64 subscription |
| 6 | NACK | server | u16 code, u16 length, text |
| 7 | PING | client | ignored |
| 8 | PONG | server | ignored |
| 9 | POLL | client | u64 subscription |

A length outside its range, or a type that is not in the table, is `Malformed`: these clients expect the connection to be
closed without a word. A payload that does not fit its type is `Refused` with the text for the NACK.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.wire.blipmq.faults import Malformed, Refused
from braidmq.wire.blipmq.frames import Buffer, LengthReader, TooLarge
from braidmq.wire.blipmq.messages import ErrorCode
from braidmq.wire.shape import shape

VERSION: Final = 1
HEAD_BYTES: Final = 9
"""Type and correlation id."""

NACK_BAD_REQUEST: Final = 400
NACK_UNAUTHENTICATED: Final = 401
NACK_NOT_FOUND: Final = 404
NACK_VERSION: Final = 426
_NACK_CODES: Final = {
    ErrorCode.INVALID_TOPIC: 400,
    ErrorCode.TOPIC_NOT_FOUND: 404,
    ErrorCode.MESSAGE_TOO_LARGE: 400,
    ErrorCode.QUEUE_FULL: 503,
    ErrorCode.AUTHENTICATION_FAILED: 401,
    ErrorCode.AUTHORIZATION_FAILED: 403,
    ErrorCode.SERVER_ERROR: 500,
    ErrorCode.PROTOCOL_ERROR: 400,
    ErrorCode.TTL_EXPIRED: 500,
}

_HEAD = struct.Struct(">IBQ")
_TYPE_AND_ID = struct.Struct(">BQ")
_U16 = struct.Struct(">H")
_U64 = struct.Struct(">Q")
_NACK = struct.Struct(">HH")
_TEXT_BYTES_MAX: Final = 0xFFFF


class Type(IntEnum):
    HELLO = 1
    AUTH = 2
    PUBLISH = 3
    SUBSCRIBE = 4
    ACK = 5
    NACK = 6
    PING = 7
    PONG = 8
    POLL = 9


@shape
class Hello:
    version: int = VERSION


@shape
class Auth:
    key: bytes


@shape
class Publish:
    """From a client a message to publish; from the server the answer to a POLL."""

    topic: str
    payload: bytes
    qos: int = 0


@shape
class Subscribe:
    topic: str
    qos: int = 0


@shape
class Ack:
    """From the server: done, with the id of a new subscription or 0. From a client: the correlation id is the tag of a delivery."""

    subscription: int = 0


@shape
class Nack:
    code: int
    text: str


@shape
class Ping:
    """Are you there?"""


@shape
class Pong:
    """Yes."""


@shape
class Poll:
    """One message of a subscription, please."""

    subscription: int


Message = Hello | Auth | Publish | Subscribe | Ack | Nack | Ping | Pong | Poll


@shape
class Frame:
    message: Message
    correlation: int = 0


def body_length(data: Buffer, position: int = 0) -> int:
    """How many bytes follow the length at `position`; `Malformed` for one out of range."""
    size = int.from_bytes(data[position : position + 4])
    if size < HEAD_BYTES:
        raise Malformed("MALFORMED_MESSAGE", reason=f"a binary frame of {size} bytes")
    if size > limits.BLIPMQ_SKIPPED_BYTES_MAX:
        raise Malformed("FRAME_TOO_LARGE", size=size, limit=limits.BLIPMQ_SKIPPED_BYTES_MAX)
    return size


class Reader:
    """Cuts a stream into the bodies of frames, for `decode`."""

    __slots__ = ("_lengths",)

    def __init__(self) -> None:
        self._lengths = LengthReader(body_length)

    @property
    def failure(self) -> BraidError | None:
        """Why the stream can be read no further."""
        return self._lengths.failure

    def receive(self, data: Buffer) -> list[memoryview]:
        """The frames that `data` completes, in order."""
        return [body for body in self._lengths.receive(data) if not isinstance(body, TooLarge)]


def decode(body: Buffer) -> Frame:
    """What a frame says; `body` is the frame without its length, at least nine bytes."""
    data = body if type(body) is bytes else bytes(body)
    kind, correlation = _TYPE_AND_ID.unpack_from(data)
    try:
        name = Type(kind)
    except ValueError:
        raise Malformed("MALFORMED_MESSAGE", correlation, reason=f"binary frames have no type {kind}") from None
    message = _read(name, data)
    if message is None:
        raise Refused("INVALID_MESSAGE", correlation, reason=f"invalid {name.name} payload")
    return Frame(message, correlation)


def _read(kind: Type, data: bytes) -> Message | None:
    """The message, or None when the payload does not fit its type."""
    size = len(data) - HEAD_BYTES
    match kind:
        case Type.HELLO:
            return Hello(_U16.unpack_from(data, HEAD_BYTES)[0]) if size == 2 else None
        case Type.AUTH:
            key = _counted(data, HEAD_BYTES)
            return Auth(key) if key is not None and len(key) == size - 2 else None
        case Type.PUBLISH:
            name = _counted(data, HEAD_BYTES + 1)
            topic = None if name is None else _text(name)
            if name is None or topic is None:
                return None
            return Publish(topic, data[HEAD_BYTES + 3 + len(name) :], data[HEAD_BYTES])
        case Type.SUBSCRIBE:
            name = _counted(data, HEAD_BYTES)
            topic = None if name is None else _text(name)
            if name is None or topic is None or size < 3 + len(name):
                return None
            return Subscribe(topic, data[HEAD_BYTES + 2 + len(name)])
        case Type.ACK:
            return Ack(_U64.unpack_from(data, HEAD_BYTES)[0]) if size == 8 else None
        case Type.POLL:
            return Poll(_U64.unpack_from(data, HEAD_BYTES)[0]) if size == 8 else None
        case Type.NACK:
            text = _counted(data, HEAD_BYTES + 2)
            if text is None:
                return None
            return Nack(_U16.unpack_from(data, HEAD_BYTES)[0], text.decode(errors="replace"))
        case Type.PING:
            return Ping()
        case Type.PONG:
            return Pong()


def _counted(data: bytes, at: int) -> bytes | None:
    """The bytes behind a length of two bytes at `at`, if they are all there."""
    if at + 2 > len(data):
        return None
    end = at + 2 + _U16.unpack_from(data, at)[0]
    return data[at + 2 : end] if end <= len(data) else None


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def encode(frame: Frame) -> bytes:
    """A whole frame, with its length."""
    kind, payload = _write(frame.message)
    return _HEAD.pack(HEAD_BYTES + len(payload), kind, frame.correlation) + payload


def _write(message: Message) -> tuple[Type, bytes]:
    match message:
        case Hello(version):
            return Type.HELLO, _U16.pack(version)
        case Auth(key):
            return Type.AUTH, _U16.pack(len(key)) + key
        case Publish(topic, payload, qos):
            name = topic.encode()
            return Type.PUBLISH, b"".join((bytes((qos,)), _U16.pack(len(name)), name, payload))
        case Subscribe(topic, qos):
            name = topic.encode()
            return Type.SUBSCRIBE, _U16.pack(len(name)) + name + bytes((qos,))
        case Ack(subscription):
            return Type.ACK, _U64.pack(subscription)
        case Nack(code, text):
            raw = text.encode()[:_TEXT_BYTES_MAX]
            return Type.NACK, _NACK.pack(code, len(raw)) + raw
        case Ping():
            return Type.PING, b""
        case Pong():
            return Type.PONG, b""
        case Poll(subscription):
            return Type.POLL, _U64.pack(subscription)


def nack(error: BraidError) -> Nack:
    """What a client of this framing is told about `error`."""
    code = _NACK_CODES[ErrorCode(error.spec.blipmq)]
    # The published clients know these sentences; our code would only be in their way.
    text = str(error.fields["reason"]) if error.code == "INVALID_MESSAGE" else error.text
    return Nack(code, text)
