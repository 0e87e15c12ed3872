"""One connection between two nodes: frames in both directions, each with a number that ties an answer to its call.

    FlyMQ header   magic, version, opcode E0 to EF, flags, length
    u32            number of the call
    ...            payload

A frame that does not come at once is received into a buffer of its own, from the socket to where it stays: a batch of megabytes is
copied by nobody. Memory follows what a node that proved itself announces; before that, frames are small.

Both sides send something at least once a beat, whatever else happens. A side that hears nothing for some beats gives the
connection up: a process that was stopped, a host that is gone and a cable that is cut look alike. Beats are counted, not
measured, so that a process that was itself stopped does not blame the others.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from enum import IntFlag
from typing import Final, cast

from braidmq.base import limits
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.cluster.transport import ClusterOp
from braidmq.wire.flymq.frames import HEADER_BYTES, encode_header, read_header

_NUMBER: Final = struct.Struct(">I")
_HEAD_BYTES: Final = HEADER_BYTES + _NUMBER.size
_STAGING_BYTES: Final = 64 * limits.KIB
_OWN_BUFFER_BYTES: Final = 4 * limits.KIB
"""A frame from this size on that is not whole yet gets a buffer of its own."""


class Kind(IntFlag):
    """The flags of a frame."""

    CALL = 0x01
    ANSWER = 0x10
    FAULT = 0x20
    BEAT = 0x40


Frame = Callable[[int, int, int, memoryview], None]
"""Told opcode, flags, number and payload, which is the receiver's to keep."""


class Link(asyncio.BufferedProtocol):
    def __init__(self, on_made: Callable[[Link], None], on_lost: Callable[[Link, str], None]) -> None:
        self._on_made = on_made
        self._on_lost = on_lost
        self.on_frame: Frame | None = None
        self.answers = False
        """Whether calls come here: they wait while their answers pile up. The other side always reads, or both would wait."""
        self.payload_bytes_max = limits.CLUSTER_HELLO_BYTES_MAX
        """Raised when the other side has proved itself."""
        self._transport: asyncio.Transport
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        self._have = 0
        self._own: memoryview | None = None
        self._own_head = (0, 0, 0)
        self._own_have = 0
        self._why = "the connection was closed"
        self.closed = False
        self._heard = True
        self._silent_beats = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._holds = 0
        self.peer_address = ""

    # --- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(limits.WRITE_BUFFER_BYTES_HIGH, limits.WRITE_BUFFER_BYTES_LOW)
        name = transport.get_extra_info("peername")
        self.peer_address = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._own is not None:
            return self._own[self._own_have :]
        return self._staging[self._have :]

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = True
        try:
            if self._own is None:
                self._have += nbytes
                self._cut()
                return
            self._own_have += nbytes
            if self._own_have == len(self._own):
                payload, self._own = self._own, None
                self._deliver(*self._own_head, payload)
        except BraidError as fault:
            self.abort(fault.text)

    def _cut(self) -> None:
        """Deliver the frames that are whole."""
        position = 0
        while self._have - position >= _HEAD_BYTES and not self.closed:
            op, flags, length = read_header(self._staging, position)
            if length < _NUMBER.size or length > self.payload_bytes_max + _NUMBER.size:
                raise BraidError("MALFORMED_FRAME", reason=f"a frame of {length} bytes between nodes")
            (number,) = _NUMBER.unpack_from(self._staging, position + HEADER_BYTES)
            after = position + HEADER_BYTES + length
            if after <= self._have:
                payload = memoryview(bytes(self._staging[position + _HEAD_BYTES : after]))
                position = after
                self._deliver(op, flags, number, payload)
            elif length >= _OWN_BUFFER_BYTES:
                own = memoryview(bytearray(length - _NUMBER.size))
                self._own_have = self._have - position - _HEAD_BYTES
                own[: self._own_have] = self._staging[position + _HEAD_BYTES : self._have]
                self._own, self._own_head = own, (op, flags, number)
                position = self._have
            else:
                break
        rest = self._have - position
        if position and rest:
            self._staging[:rest] = bytes(self._staging[position : self._have])
        self._have = rest

    def _deliver(self, op: int, flags: int, number: int, payload: memoryview) -> None:
        if not flags & Kind.BEAT and self.on_frame is not None:
            self.on_frame(op, flags, number, payload)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, fault: Exception | None) -> None:
        self.closed = True
        if fault is not None:
            self._why = str(fault) or type(fault).__name__
        self._writable.set()
        self._on_lost(self, self._why)

    def pause_writing(self) -> None:
        self._writable.clear()
        if self.answers:
            self.hold()

    def resume_writing(self) -> None:
        self._writable.set()
        if self.answers:
            self.release()

    # --- sending

    def send(self, op: int, flags: int, number: int, parts: Sequence[Buffer]) -> None:
        """Raises FRAME_TOO_LARGE, and sends nothing then."""
        size = _NUMBER.size + sum(map(len, parts))
        head = encode_header(op, size, flags) + _NUMBER.pack(number)
        if not self.closed:
            self._transport.writelines([head, *parts])

    async def writable(self) -> None:
        """Wait until what was sent before has mostly left."""
        await self._writable.wait()

    # --- not reading for a while

    def hold(self) -> None:
        """Read nothing until everybody who holds has released."""
        self._holds += 1
        if self._holds == 1 and not self.closed:
            self._transport.pause_reading()

    def release(self) -> None:
        self._holds -= 1
        if self._holds == 0 and not self.closed:
            self._transport.resume_reading()

    # --- being there

    def beat(self, silent_beats_max: int) -> None:
        """Say that we are here; give up when the other side has not said so for too long."""
        if self.closed:
            return
        if self._heard or self._holds:
            self._silent_beats = 0
        else:
            self._silent_beats += 1
            if self._silent_beats >= silent_beats_max:
                self.abort("it is silent")
                return
        self._heard = False
        self.send(ClusterOp.HELLO, Kind.BEAT, 0, ())

    def abort(self, why: str) -> None:
        if not self.closed:
            self._why = why
            self.closed = True
            self._transport.abort()

    def close(self) -> None:
        """Send what was written, then close."""
        if not self.closed:
            self._why = "it was closed here"
            self.closed = True
            self._transport.close()
