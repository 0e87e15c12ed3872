"""FlyMQ frames: eight header bytes, then a payload of at most 32 MiB.

    0  u8  magic    AF
    1  u8  version  01
    2  u8  opcode
    3  u8  flags    01 binary (ignored); bits 1 to 3: compression id
    4  u32 length   of the payload, big-endian

A wrong header cannot be answered, since nothing says where the next frame begins: the reader fails for good and the
connection is closed. Memory grows with the bytes that came, never with the length a header announces, and a compressed
payload unpacks to no more than a frame may carry.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from braidmq.base import compression
from braidmq.base.errors import BraidError
from braidmq.base.limits import FRAME_PAYLOAD_BYTES_MAX

HEADER_BYTES: Final = 8
MAGIC: Final = 0xAF
VERSION: Final = 0x01
FLAG_BINARY: Final = 0x01

_HEADER: Final = struct.Struct(">BBBBI")
assert _HEADER.size == HEADER_BYTES

_COMPRESSION_SHIFT: Final = 1
_COMPRESSION_MASK: Final = 0x07


class Frame(NamedTuple):
    """One frame as it came: not decompressed, not decoded."""

    op: int
    flags: int
    payload: bytes | memoryview


def read_header(data: bytes | bytearray | memoryview, position: int = 0) -> tuple[int, int, int]:
    """Opcode, flags and payload length of the header at `position`; the caller has made sure that 8 bytes are there."""
    magic, version, op, flags, length = _HEADER.unpack_from(data, position)
    if magic != MAGIC:
        raise BraidError("MALFORMED_FRAME", reason=f"it begins with byte {magic:02X}, not {MAGIC:02X}")
    if version != VERSION:
        raise BraidError("MALFORMED_FRAME", reason=f"protocol version {version}, not {VERSION}")
    if length > FRAME_PAYLOAD_BYTES_MAX:
        raise BraidError("FRAME_TOO_LARGE", size=length, limit=FRAME_PAYLOAD_BYTES_MAX)
    return op, flags, length


def encode_header(op: int, size: int, flags: int = FLAG_BINARY) -> bytes:
    """The header of a payload of `size` bytes."""
    if size > FRAME_PAYLOAD_BYTES_MAX:
        raise BraidError("FRAME_TOO_LARGE", size=size, limit=FRAME_PAYLOAD_BYTES_MAX)
    return _HEADER.pack(MAGIC, VERSION, op, flags, size)


def encode_frame(op: int, payload: bytes | memoryview, flags: int = FLAG_BINARY) -> bytes:
    """A whole frame around a payload that is encoded already."""
    return b"".join((encode_header(op, len(payload), flags), payload))


def unpack_payload(flags: int, payload: bytes | memoryview) -> bytes | memoryview:
    """The payload as its sender encoded it, before the compression that `flags` names. Uncompressed ones are returned as given."""
    kind = flags >> _COMPRESSION_SHIFT & _COMPRESSION_MASK
    if kind == compression.NONE:
        return payload
    try:
        return compression.decompress(kind, payload, FRAME_PAYLOAD_BYTES_MAX)
    except compression.TooLarge as fault:
        raise BraidError("FRAME_TOO_LARGE", size=str(fault).removesuffix(" bytes"), limit=FRAME_PAYLOAD_BYTES_MAX) from None
    except compression.CompressionFault as fault:
        raise BraidError("MALFORMED_PAYLOAD", reason=f"{compression.NAMES[kind]}: {fault}") from None


class FrameReader:
    """Cuts a byte stream, however it arrives in pieces, into frames.

    A frame that lies whole in one piece is a view of that piece: no byte of it is copied, and it is valid as long as the
    caller leaves the piece unchanged (for ever, if it is `bytes`). A frame that came in several pieces is collected in a
    buffer that the frame then owns.
    """

    __slots__ = ("_partial", "failure")

    def __init__(self) -> None:
        self._partial = bytearray()
        self.failure: BraidError | None = None
        """Why the stream can be read no further. Set by the wrong header, also when frames before it were returned first."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes held of a frame that is not complete. Not zero at the end of a stream means that it was cut short."""
        return len(self._partial)

    def receive(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """The frames that `data` completes, in order.

        A wrong header raises as soon as its eight bytes are there. Frames that came before it in the same piece are
        returned first, so that they can be answered: then `failure` is set and the next call raises.
        """
        if self.failure is not None:
            raise self.failure
        frames: list[Frame] = []
        view = memoryview(data)
        end = len(view)
        try:
            position = self._resume(view, frames) if self._partial else 0
            while end - position >= HEADER_BYTES:
                op, flags, length = read_header(view, position)
                after = position + HEADER_BYTES + length
                if after > end:
                    break
                frames.append(Frame(op, flags, view[position + HEADER_BYTES : after]))
                position = after
        except BraidError as error:
            self.failure = error
            self._partial = bytearray()
            if frames:
                return frames
            raise
        if position < end:
            self._partial += view[position:]
        return frames

    def _resume(self, view: memoryview, frames: list[Frame]) -> int:
        """Go on with the partial frame; returns how many bytes of `view` belong to it."""
        partial = self._partial
        used = 0
        if len(partial) < HEADER_BYTES:
            used = min(HEADER_BYTES - len(partial), len(view))
            partial += view[:used]
            if len(partial) < HEADER_BYTES:
                return used
        op, flags, length = read_header(partial)
        missing = HEADER_BYTES + length - len(partial)
        partial += view[used : used + missing]
        if len(partial) < HEADER_BYTES + length:
            return len(view)
        self._partial = bytearray()
        frames.append(Frame(op, flags, memoryview(partial)[HEADER_BYTES:]))
        return used + missing
