"""BlipMQ frames: a little-endian length, then a FlatBuffer.

    0  u32  length of what follows, little-endian
    4       FlatBuffer with the root table ProtocolMessage

| length | what happens |
|---|---|
| below 16 | `Malformed` |
| up to the frame limit | a frame |
| up to 16 MiB | `Refused` with FRAME_TOO_LARGE; the frame is read past without being kept |
| above | `Malformed` with FRAME_TOO_LARGE |

Memory grows with the bytes that came, never with the length a frame announces.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from braidmq.base import limits
from braidmq.wire.blipmq.faults import Malformed, Refused, WireFault
from braidmq.wire.blipmq.flatbuffer import decode_body, encode_frame
from braidmq.wire.blipmq.messages import Envelope

Buffer = bytes | bytearray | memoryview

LENGTH_BYTES: Final = 4
FRAME_BYTES_MAX: Final = limits.BLIPMQ_PAYLOAD_BYTES_MAX + limits.BLIPMQ_FRAME_SPARE_BYTES
"""The frame limit that goes with the default limit of payloads."""

_LENGTH = struct.Struct("<I")


class TooLarge(Refused):
    """A frame over the limit, which is to be read past."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__("FRAME_TOO_LARGE", size=size, limit=limit)
        self.frame_bytes = LENGTH_BYTES + size
        """Bytes to skip, counted from the first of the length."""

    def __reduce__(self) -> tuple[object, ...]:
        return TooLarge, (self.fields["size"], self.fields["limit"])


def body_length(data: Buffer, position: int = 0, frame_max: int = FRAME_BYTES_MAX) -> int:
    """How many bytes follow the length at `position`; the caller has made sure that its four bytes are there.

    Raises `Malformed` (close) or `TooLarge` (skip `frame_bytes` from `position` on, then go on).
    """
    size = int(_LENGTH.unpack_from(data, position)[0])
    if size < limits.BLIPMQ_FRAME_BYTES_MIN:
        raise Malformed("MALFORMED_MESSAGE", reason=f"{size} bytes cannot hold an envelope")
    if size <= frame_max:
        return size
    if size > limits.BLIPMQ_SKIPPED_BYTES_MAX:
        raise Malformed("FRAME_TOO_LARGE", size=size, limit=frame_max)
    raise TooLarge(size, frame_max)


def decode(body: Buffer) -> Envelope:
    """What a frame says; `body` is the frame without its length. Raises `Malformed` or `Refused`."""
    return decode_body(body if type(body) is bytes else bytes(body))


def encode(envelope: Envelope) -> bytes:
    """A whole frame, with its length."""
    return encode_frame(envelope)


class LengthReader:
    """Cuts a byte stream, however it arrives in pieces, into frames of four bytes of length and a body.

    `measure` reads the length at a position, and raises what `body_length` raises. A body that lies whole in one piece is a
    view of that piece; one that came in several pieces owns its bytes.
    """

    __slots__ = ("_measure", "_partial", "_skip", "failure")

    def __init__(self, measure: Callable[[Buffer, int], int]) -> None:
        self._measure = measure
        self._partial = bytearray()
        self._skip = 0
        self.failure: WireFault | None = None
        """Why the stream can be read no further. Set by the wrong length, also when frames before it were returned first."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes held of a frame that is not complete."""
        return len(self._partial)

    @property
    def within_frame(self) -> bool:
        """Whether the stream stopped inside a frame, kept or not."""
        return bool(self._partial or self._skip)

    def receive(self, data: Buffer) -> list[memoryview | TooLarge]:
        """The frames that `data` completes, in order; a `TooLarge` stands where a frame over the limit began.

        A length that ends the stream raises as soon as its four bytes are there. Frames that came before it in the same
        piece are returned first: then `failure` is set, and the next call raises.
        """
        if self.failure is not None:
            raise self.failure
        frames: list[memoryview | TooLarge] = []
        view = memoryview(data)
        end = len(view)
        position = 0
        try:
            if self._partial:
                position = self._resume(view, frames)
            while position < end:
                if self._skip:
                    step = min(self._skip, end - position)
                    self._skip -= step
                    position += step
                    continue
                if end - position < LENGTH_BYTES:
                    break
                try:
                    after = position + LENGTH_BYTES + self._measure(view, position)
                except TooLarge as fault:
                    frames.append(fault)
                    self._skip = fault.frame_bytes
                    continue
                if after > end:
                    break
                frames.append(view[position + LENGTH_BYTES : after])
                position = after
        except WireFault as fault:
            self.failure = fault
            self._partial = bytearray()
            if frames:
                return frames
            raise
        if position < end:
            self._partial += view[position:]
        return frames

    def _resume(self, view: memoryview, frames: list[memoryview | TooLarge]) -> int:
        """Go on with the partial frame; returns how many bytes of `view` belong to it."""
        partial = self._partial
        used = 0
        if len(partial) < LENGTH_BYTES:
            used = min(LENGTH_BYTES - len(partial), len(view))
            partial += view[:used]
            if len(partial) < LENGTH_BYTES:
                return used
        try:
            size = LENGTH_BYTES + self._measure(partial, 0)
        except TooLarge as fault:
            frames.append(fault)
            self._partial = bytearray()
            self._skip = fault.frame_bytes - len(partial)
            return used
        missing = size - len(partial)
        partial += view[used : used + missing]
        if len(partial) < size:
            return len(view)
        self._partial = bytearray()
        frames.append(memoryview(partial)[LENGTH_BYTES:])
        return used + missing


class FrameReader(LengthReader):
    """Cuts a stream into the bodies of BlipMQ frames, for `decode`."""

    __slots__ = ()

    def __init__(self, frame_max: int = FRAME_BYTES_MAX) -> None:
        super().__init__(lambda data, position: body_length(data, position, frame_max))
