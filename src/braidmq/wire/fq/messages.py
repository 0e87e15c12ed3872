"""Messages on data connections: frames back to back, without a length of the whole.

    exchange    u8 length, bytes
    route       u8 length, bytes
    message id  16 bytes
    sender      u8 length, bytes            only in the full form
    hops        u8 count, 4 bytes each      only in the full form, the most recent first
    payload     u32 length, bytes

A client in data mode writes the short form; brokers and peers write the full one. A length that is too large for its field closes
the connection, because nothing says where the next frame begins. A payload over the limit is a message nobody wants, not a
fault: it is passed over as it comes, without being kept, and counted.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from braidmq.base.errors import BraidError
from braidmq.base.limits import FQ_HOPS_MAX, FQ_NAME_BYTES_MAX
from braidmq.wire.fq.modes import NODE_ID_BYTES
from braidmq.wire.shape import shape

MESSAGE_ID_BYTES: Final = 16
NO_SENDER: Final = b"anonymous"
"""Stands for an empty sender: a published client refuses messages from nobody."""
_U32: Final = struct.Struct(">I")

Buffer = bytes | bytearray | memoryview


class Message(NamedTuple):
    """One message. In the short form it has neither sender nor hops."""

    exchange: bytes
    route: bytes
    message_id: bytes
    payload: bytes
    sender: bytes = b""
    hops: tuple[bytes, ...] = ()
    """Node ids of 4 bytes, the most recent first."""


@shape
class Origin:
    """What a message carries besides exchange, route and payload: the data of the record attribute for fq."""

    message_id: bytes
    sender: bytes
    hops: tuple[bytes, ...]


class Measured(NamedTuple):
    """Where the parts of a frame are whose head has come, in the buffer that was measured."""

    route_at: int
    id_at: int
    hops_at: int
    """Where the hops are counted; in the short form where the id ends."""
    payload_at: int
    payload_bytes: int
    end: int
    """Where the payload ends, which may be behind what has come."""


def measure_message(buffer: Buffer, start: int, stop: int, full: bool) -> Measured | None:
    """The lengths of the frame at `start`; None while its head is not complete in `buffer[start:stop]`.

    The frame may end behind `stop`. An impossible length is MALFORMED_FQ, as soon as it can be seen.
    """
    if start >= stop:
        return None
    if buffer[start] > FQ_NAME_BYTES_MAX:
        raise BraidError("MALFORMED_FQ", reason=f"an exchange of {buffer[start]} bytes")
    route_at = start + 1 + buffer[start]
    if route_at >= stop:
        return None
    if buffer[route_at] > FQ_NAME_BYTES_MAX:
        raise BraidError("MALFORMED_FQ", reason=f"a route of {buffer[route_at]} bytes")
    id_at = route_at + 1 + buffer[route_at]
    at = hops_at = id_at + MESSAGE_ID_BYTES
    if full:
        if at >= stop:
            return None
        if buffer[at] > FQ_NAME_BYTES_MAX:
            raise BraidError("MALFORMED_FQ", reason=f"a sender of {buffer[at]} bytes")
        hops_at = at + 1 + buffer[at]
        if hops_at >= stop:
            return None
        if buffer[hops_at] > FQ_HOPS_MAX:
            raise BraidError("MALFORMED_FQ", reason=f"{buffer[hops_at]} hops")
        at = hops_at + 1 + NODE_ID_BYTES * buffer[hops_at]
    if at + 4 > stop:
        return None
    size = int(_U32.unpack_from(buffer, at)[0])
    return Measured(route_at, id_at, hops_at, at + 4, size, at + 4 + size)


def read_message(buffer: Buffer, start: int, measured: Measured, full: bool) -> Message:
    """The frame at `start`, all of which is there, with the lengths that `measure_message` found."""
    route_at, id_at, hops_at, payload_at, size, end = measured
    if type(buffer) is not bytes:
        # The parts of bytes are bytes; those of anything else would have to be made into them one by one.
        moved = Measured(route_at - start, id_at - start, hops_at - start, payload_at - start, size, end - start)
        return read_message(bytes(buffer[start:end]), 0, moved, full)
    after_id = id_at + MESSAGE_ID_BYTES
    exchange, route, message_id = buffer[start + 1 : route_at], buffer[route_at + 1 : id_at], buffer[id_at:after_id]
    if not full:
        return Message(exchange, route, message_id, buffer[payload_at:end])
    hops = _cut_hops(buffer[hops_at + 1 : payload_at - 4])
    return Message(exchange, route, message_id, buffer[payload_at:end], buffer[after_id + 1 : hops_at], hops)


def _cut_hops(raw: bytes) -> tuple[bytes, ...]:
    return tuple([raw[at : at + NODE_ID_BYTES] for at in range(0, len(raw), NODE_ID_BYTES)])


class MessageReader:
    """Cuts a byte stream, however it comes in pieces, into messages.

    `full` says which form is read. Payloads over `payload_max` are counted in `size_dropped` and passed over without being
    kept. A fault raises; messages in front of it are returned first, `failure` is set, and the next call raises.
    """

    __slots__ = ("_full", "_needed", "_payload_max", "_pieces", "_skip", "buffered_bytes", "failure", "octets", "size_dropped")

    def __init__(self, full: bool, payload_max: int) -> None:
        self._full = full
        self._payload_max = payload_max
        self._pieces: list[bytes] = []
        self._needed = 0
        """How many bytes the incomplete frame has, once its head is there; pieces are joined when they have come."""
        self._skip = 0
        self.buffered_bytes = 0
        """Bytes held of a frame that is not complete."""
        self.failure: BraidError | None = None
        self.size_dropped = 0
        """Messages that were too large."""
        self.octets = 0
        """Bytes of all frames that came whole, and of those passed over as far as they came."""

    def receive(self, data: Buffer) -> list[Message]:
        """The messages that `data` completes, in order."""
        if self.failure is not None:
            raise self.failure
        buffer = data if type(data) is bytes else bytes(data)
        if self._pieces:
            self._pieces.append(buffer)
            self.buffered_bytes += len(buffer)
            if self.buffered_bytes < self._needed:
                return []
            buffer = b"".join(self._pieces)
        found: list[Message] = []
        try:
            start = self._cut(buffer, found)
        except BraidError as fault:
            self.failure = fault
            start = len(buffer)
            if not found:
                raise
        self._pieces = [buffer[start:]] if start < len(buffer) else []
        self.buffered_bytes = len(buffer) - start
        return found

    def _cut(self, buffer: bytes, found: list[Message]) -> int:
        """Add the whole messages of `buffer` to `found`; returns where the incomplete one begins."""
        start, stop = 0, len(buffer)
        full, payload_max = self._full, self._payload_max
        self._needed = 0
        while start < stop:
            if self._skip:
                passed = min(self._skip, stop - start)
                self._skip -= passed
                self.octets += passed
                start += passed
                continue
            measured = measure_message(buffer, start, stop, full)
            if measured is None:
                break
            if measured.payload_bytes > payload_max:
                self.size_dropped += 1
                self._skip = measured.end - start
                continue
            if measured.end > stop:
                self._needed = measured.end - start
                break
            found.append(read_message(buffer, start, measured, full))
            self.octets += measured.end - start
            start = measured.end
        return start


# --- encoders


def _str8(raw: bytes, what: str) -> bytes:
    if len(raw) > FQ_NAME_BYTES_MAX:
        raise BraidError("INVALID_ARGUMENT", reason=f"the {what} has {len(raw)} bytes, {FQ_NAME_BYTES_MAX} at most")
    return bytes((len(raw),)) + raw


def encode_tail(sender: bytes, hops: tuple[bytes, ...]) -> bytes:
    """Sender and hops as they stand in a frame and in the record attribute: of more hops than there may be, the most recent."""
    kept = hops[:FQ_HOPS_MAX]
    if any(len(hop) != NODE_ID_BYTES for hop in kept):
        raise BraidError("INVALID_ARGUMENT", reason=f"a hop is {NODE_ID_BYTES} bytes")
    return _str8(sender, "sender") + bytes((len(kept),)) + b"".join(kept)


def encode_head(exchange: bytes, route: bytes) -> bytes:
    """What a frame begins with; the same for all messages that go the same way."""
    return _str8(exchange, "exchange") + _str8(route, "route")


def encode_short(head: bytes, message_id: bytes, payload: bytes) -> bytes:
    """A whole frame in the short form, behind what `encode_head` made."""
    if len(message_id) != MESSAGE_ID_BYTES:
        raise BraidError("INVALID_ARGUMENT", reason=f"a message id of {len(message_id)} bytes, not {MESSAGE_ID_BYTES}")
    if len(payload) > 0xFFFFFFFF:
        raise BraidError("INVALID_ARGUMENT", reason=f"a payload of {len(payload)} bytes")
    return b"".join((head, message_id, _U32.pack(len(payload)), payload))


def encode_message(message: Message, full: bool) -> bytes:
    """A whole frame in one of the two forms; the short one leaves sender and hops out."""
    head = encode_head(message.exchange, message.route)
    short = encode_short(head, message.message_id, message.payload)
    if not full:
        return short
    at = len(head) + MESSAGE_ID_BYTES
    return b"".join((short[:at], encode_tail(message.sender, message.hops), short[at:]))


def encode_origin(message_id: bytes, tail: bytes) -> bytes:
    """The data of the record attribute: the id, then what `encode_tail` made."""
    if len(message_id) != MESSAGE_ID_BYTES:
        raise BraidError("INVALID_ARGUMENT", reason=f"a message id of {len(message_id)} bytes, not {MESSAGE_ID_BYTES}")
    return message_id + tail


def decode_origin(data: bytes) -> Origin | None:
    """The attribute taken apart; None when it is not what `encode_origin` makes, since records also come from other clients."""
    if len(data) < MESSAGE_ID_BYTES + 2:
        return None
    sender_end = MESSAGE_ID_BYTES + 1 + data[MESSAGE_ID_BYTES]
    if data[MESSAGE_ID_BYTES] > FQ_NAME_BYTES_MAX or sender_end >= len(data):
        return None
    hops = data[sender_end]
    if hops > FQ_HOPS_MAX or sender_end + 1 + NODE_ID_BYTES * hops != len(data):
        return None
    return Origin(data[:MESSAGE_ID_BYTES], data[MESSAGE_ID_BYTES + 1 : sender_end], _cut_hops(data[sender_end + 1 :]))
