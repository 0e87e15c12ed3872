"""FlatBuffers as far as BlipMQ needs them: any layout read with every bound checked, one layout written.

A table begins with the distance back to its vtable, and the vtable says where in the table each field is. Peers choose both
freely, so reading looks the places up and checks each of them; what a vtable says is remembered by its bytes, since a peer uses
a handful of different ones. Nothing is followed twice: a buffer whose offsets overlap or go round in circles costs no more than
its length.

Writing uses one fixed order, from front to back, in which a frame's head is a single `pack`. The plain twin of the hot
loops and the codec (`braidmq.wire.blipmq`) share this module; the compiled twin does the same by hand.
"""

from __future__ import annotations

import struct
from typing import Final

from braidmq.base import limits

U8: Final = 1
U64: Final = 8
OFFSET: Final = 4
"""Bytes that a field of each kind takes in its table."""

_VTABLE_BYTES_KNOWN_MAX: Final = 64
"""Longer vtables belong to nobody's schema, and are read without being remembered."""

_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_SIZES = struct.Struct("<HH")


class Damaged(Exception):
    """The bytes are no FlatBuffer of the expected kind."""


class Shape:
    """A kind of table: how many bytes each of its fields takes."""

    __slots__ = ("_known", "name", "sizes")

    def __init__(self, name: str, *sizes: int) -> None:
        self.name = name
        self.sizes = sizes
        self._known: dict[bytes, tuple[int, ...]] = {}

    def places(self, data: bytes, table: int) -> tuple[int, ...]:
        """Size of the table at `table`, then where in it each field is (0 for one that is left out), every place checked."""
        end = len(data)
        if table < 4 or table + 4 > end:
            raise Damaged(f"{self.name} lies outside the buffer")
        vtable = table - _I32.unpack_from(data, table)[0]
        if vtable < 0 or vtable + 4 > end:
            raise Damaged(f"the vtable of {self.name} lies outside the buffer")
        raw = data[vtable : vtable + (data[vtable] | data[vtable + 1] << 8)]
        places = self._known.get(raw)
        if places is None:
            places = self._read(raw, data, vtable)
        if table + places[0] > end:
            raise Damaged(f"{self.name} runs past the end")
        return places

    def _read(self, raw: bytes, data: bytes, vtable: int) -> tuple[int, ...]:
        size, table_size = _SIZES.unpack_from(data, vtable)
        if size < 4 or size & 1 or len(raw) != size:
            raise Damaged(f"the vtable of {self.name} has {size} bytes")
        if table_size < 4:
            raise Damaged(f"{self.name} has {table_size} bytes")
        found = struct.unpack(f"<{size // 2}H", raw)[2:]
        places = [table_size]
        for index, width in enumerate(self.sizes):
            at = found[index] if index < len(found) else 0
            if at and not 4 <= at <= table_size - width:
                raise Damaged(f"field {index} of {self.name} lies outside its table")
            places.append(at)
        read = tuple(places)
        if size <= _VTABLE_BYTES_KNOWN_MAX:
            if len(self._known) >= limits.BLIPMQ_VTABLES_KNOWN_MAX:
                self._known.clear()
            self._known[raw] = read
        return read

    @property
    def known(self) -> int:
        """How many vtables are remembered."""
        return len(self._known)


def follow(data: bytes, field: int) -> int:
    """Where the offset stored at `field` leads: at least four bytes are there."""
    distance = int(_U32.unpack_from(data, field)[0])
    if distance < 4 or field + distance + 4 > len(data):
        raise Damaged(f"an offset of {distance} leads outside the buffer")
    return field + distance


def span(data: bytes, field: int) -> tuple[int, int]:
    """Where the string or vector of bytes begins and ends that the offset at `field` leads to."""
    at = follow(data, field) + 4
    size = int(_U32.unpack_from(data, at - 4)[0])
    if at + size > len(data):
        raise Damaged(f"{size} bytes run past the end")
    return at, at + size


def octets(data: bytes, field: int) -> bytes:
    """The string or vector of bytes that the offset at `field` leads to."""
    start, end = span(data, field)
    return data[start:end]


ENVELOPE: Final = Shape("ProtocolMessage", U8, OFFSET, U64, U64, OFFSET)
"""message_type, message, sequence_number, timestamp, metadata."""
PUBLISH: Final = Shape("Publish", OFFSET, OFFSET, U8, U64, OFFSET)
"""topic, payload, qos, ttl_ms, message_id."""

# --- writing

MESSAGE_HEAD: Final = struct.Struct("<II6HiIQQBB7HiIQIIB3x")
"""Length of the frame, envelope and table of a Message or Publish, up to where the topic begins."""
MESSAGE_HEAD_BYTES: Final = 88
assert MESSAGE_HEAD.size == MESSAGE_HEAD_BYTES
_ACK_HEAD = struct.Struct("<II6HiIQQBB4HHiIB3x")
ACK_HEAD_BYTES: Final = 68
assert _ACK_HEAD.size == ACK_HEAD_BYTES

TYPE_PUBLISH: Final = 3
TYPE_MESSAGE: Final = 4
TYPE_ACK: Final = 5

_ZEROS = (b"\0\0\0\0", b"\0\0\0", b"\0\0", b"\0")


def string(text: bytes) -> bytes:
    """A string: length, bytes, at least one zero byte, up to a multiple of four."""
    return _U32.pack(len(text)) + text + _ZEROS[len(text) & 3]


def message_frame(
    topic: bytes, payload: bytes, message_id: bytes | None, sequence: int, timestamp: int, accepted: int, qos: int
) -> bytes:
    """A whole Message frame; `topic` is a string as `string` makes it."""
    size = len(topic) + 84
    if message_id is None:
        head = MESSAGE_HEAD.pack(
            size + 4 + len(payload), 16, 12, 28, 24, 4, 8, 16, 12, 36, sequence, timestamp, TYPE_MESSAGE, 0,
            14, 28, 4, 16, 0, 8, 24, 14, 24, accepted, size - 72, 0, qos,
        )  # fmt: skip
        return b"".join((head, topic, _U32.pack(len(payload)), payload))
    own = string(message_id)
    at = size + len(own)
    head = MESSAGE_HEAD.pack(
        at + 4 + len(payload), 16, 12, 28, 24, 4, 8, 16, 12, 36, sequence, timestamp, TYPE_MESSAGE, 0,
        14, 28, 4, 16, 20, 8, 24, 14, 24, accepted, at - 72, size - 76, qos,
    )  # fmt: skip
    return b"".join((head, topic, own, _U32.pack(len(payload)), payload))


def publish_frame(
    topic: bytes, payload: bytes, message_id: bytes | None, sequence: int, timestamp: int, ttl_ms: int, qos: int
) -> bytes:
    """A whole Publish frame; `topic` is a string as `string` makes it."""
    own = b"" if message_id is None else string(message_id)
    at = 84 + len(topic) + len(own)
    head = MESSAGE_HEAD.pack(
        at + 4 + len(payload), 16, 12, 28, 24, 4, 8, 16, 12, 36, sequence, timestamp, TYPE_PUBLISH, 0,
        14, 28, 4, 16, 24, 8, 20 if own else 0, 14, 24, ttl_ms, at - 72, 8 + len(topic) if own else 0, qos,
    )  # fmt: skip
    return b"".join((head, topic, own, _U32.pack(len(payload)), payload))


def ack_frame(message_id: bytes, sequence: int, timestamp: int, code: int = 0) -> bytes:
    """A whole Ack frame."""
    own = string(message_id)
    return _ACK_HEAD.pack(
        64 + len(own), 16, 12, 28, 24, 4, 8, 16, 12, 32, sequence, timestamp, TYPE_ACK, 0, 8, 12, 4, 8, 0, 10, 8, code
    ) + own  # fmt: skip
