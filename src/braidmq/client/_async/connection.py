"""One connection: frames out, frames in, strictly in order.

Two ways to use it. A producer or a fetcher owns its connection and calls `send` and `read` as it likes. Single requests
share one through `call`, which many may do at once: requests go out as they come (pipelined), and the answers are read by
whoever is first in line, who then passes that duty on. There is no reader in the background, so a lone caller gets its answer
without waking anybody.

A caller that gives up leaves its place in the line, and the next reader throws its answer away. A time-out, a broken
stream or bytes that are no frame break the connection for everyone: what was in flight has an unknown outcome.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence

from braidmq.base.errors import BraidError
from braidmq.client._backend import asyncio as backend
from braidmq.client.addresses import Address
from braidmq.client.faults import server_error
from braidmq.client.tracing import dump_frame, log
from braidmq.wire.flymq import HEADER_BYTES, Dialect, ErrorReply, Frame, FrameReader, Request, Response, decode_response
from braidmq.wire.flymq import encode_request as encode_for


def encode(request: Request) -> bytes:
    """The frame of a request, in the documented dialect, which is the one this client speaks."""
    return encode_for(request, Dialect.DOCUMENTED)


def decode(request_op: int, frame: Frame, expect: type[Response] | None = None) -> Response:
    """The answer in a frame; raises `ServerError` when it is an error. `expect` is for answers that come in several forms."""
    answer = decode_response(request_op, frame.op, frame.payload, Dialect.DOCUMENTED, expect)
    if isinstance(answer, ErrorReply):
        raise server_error(answer.text)
    return answer


class _Turn:
    """A caller's place in the line."""

    __slots__ = ("abandoned", "frames", "ready", "wanted")

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.frames: list[Frame] = []
        self.ready: backend.Signal | None = None
        """Set when it is up to this caller to read; the one who found nobody reading needs no signal."""
        self.abandoned = False

    def wake(self) -> None:
        if self.ready is not None:
            self.ready.set()


class Connection:
    def __init__(self, stream: backend.Stream, server: Address, tls: bool) -> None:
        self.server = server
        self.tls = tls
        self._answered = False
        self._stream = stream
        self._reader = FrameReader()
        self._frames: deque[Frame] = deque()
        self._fault: BraidError | None = None
        self._mutex = backend.Mutex()
        self._send_lock = backend.Lock()
        self._line: deque[_Turn] = deque()
        self._led = False
        """Whether somebody in the line reads."""

    @property
    def broken(self) -> bool:
        return self._fault is not None

    @property
    def refused(self) -> bool:
        """Whether a server took the TLS session and then broke it off without a word, as one does that wants a certificate."""
        return self.broken and self.tls and not self._answered

    @property
    def load(self) -> int:
        """How many callers wait for answers."""
        return len(self._line)

    def usable(self) -> bool:
        """Whether a request may be sent. Asked of an idle connection, it notices that the server has closed it."""
        return self._fault is None and (bool(self._line) or not self._stream.stale())

    # --- for an owner

    async def send(self, frames: Sequence[bytes], timeout_s: float) -> None:
        """Send all of `frames`. Raises CONNECTION_LOST, and from then on the connection is of no use."""
        if log.isEnabledFor(logging.DEBUG):
            for frame in frames:
                dump_frame("->", self.server, frame[2], memoryview(frame)[HEADER_BYTES:])
        try:
            await self._stream.send(frames, timeout_s)
        except TimeoutError:
            raise self._break(f"it took nothing for {timeout_s:g} s") from None
        except OSError as fault:
            raise self._break(str(fault)) from None

    async def read(self, timeout_s: float) -> Frame | None:
        """The next frame, or None when none came within the time. Raises CONNECTION_LOST."""
        if self._frames:
            return self._frames.popleft()
        deadline_s = time.monotonic() + timeout_s
        while True:
            if self._fault is not None:
                raise self._fault
            try:
                data = await self._stream.receive(max(0.0, deadline_s - time.monotonic()))
            except TimeoutError:
                return None
            except OSError as fault:
                raise self._break(str(fault)) from None
            if not data:
                raise self._break("the server closed it")
            try:
                self._frames.extend(self._reader.receive(data))
            except BraidError as fault:
                raise self._break(f"the server sent no FlyMQ ({fault.text})") from None
            if self._frames:
                self._answered = True
                if log.isEnabledFor(logging.DEBUG):
                    for frame in self._frames:
                        dump_frame("<-", self.server, frame.op, frame.payload)
                return self._frames.popleft()

    def next_buffered(self) -> Frame | None:
        """The next frame if it is here already."""
        return self._frames.popleft() if self._frames else None

    # --- for everybody

    async def call(self, frames: Sequence[bytes], timeout_s: float) -> list[Frame]:
        """Send requests and return their answers, in order. Raises CONNECTION_LOST or TIMED_OUT."""
        deadline_s = time.monotonic() + timeout_s
        turn = _Turn(len(frames))
        try:
            async with self._send_lock:
                self._join(turn)
                await self.send(frames, timeout_s)
            if turn.ready is not None:
                if not await turn.ready.wait(deadline_s - time.monotonic()):
                    raise self._late(timeout_s)
                if self._fault is not None:
                    raise self._fault
            while len(turn.frames) < turn.wanted:
                frame = await self.read(deadline_s - time.monotonic())
                if frame is None:
                    raise self._late(timeout_s)
                head = self._line[0]
                head.frames.append(frame)
                if head is not turn and len(head.frames) == head.wanted:
                    with self._mutex:
                        self._line.popleft()
        finally:
            self._leave(turn)
        return turn.frames

    def _join(self, turn: _Turn) -> None:
        """Get in line. Where nobody reads, it is up to the newcomer."""
        with self._mutex:
            if self._fault is not None:
                raise self._fault
            self._line.append(turn)
            if self._led:
                turn.ready = backend.Signal()
            self._led = True

    def _leave(self, turn: _Turn) -> None:
        """Make place for the next in line, who reads from now on."""
        with self._mutex:
            if len(turn.frames) == turn.wanted and self._line and self._line[0] is turn:
                self._line.popleft()
            else:
                turn.abandoned = True  # Harmless for one that never got in line.
            heir = next((other for other in self._line if not other.abandoned), None)
            if heir is None:
                self._led = False
            else:
                heir.wake()

    def _late(self, timeout_s: float) -> BraidError:
        self._break("an answer took too long")
        return BraidError("TIMED_OUT", what=f"the answer of {self.server}", seconds=round(timeout_s, 3))

    def _break(self, reason: str) -> BraidError:
        """The connection is of no use any more; everyone who waits hears why."""
        if self.tls and not self._answered:
            reason += "; the server may want a client certificate"
        with self._mutex:
            if self._fault is None:
                self._fault = BraidError("CONNECTION_LOST", server=self.server, reason=reason)
            for turn in self._line:
                turn.wake()
        self._stream.abort()
        return self._fault

    # --- the end

    def abort(self) -> None:
        """Break it at once, from anywhere; whoever reads hears it."""
        self._break("it was closed on this side")

    async def close(self) -> None:
        with self._mutex:
            if self._fault is None:
                self._fault = BraidError("CONNECTION_LOST", server=self.server, reason="it was closed on this side")
            for turn in self._line:
                turn.wake()
        await self._stream.close()


def answers(requests: Sequence[Request], frames: Sequence[Frame]) -> list[Response]:
    """The answers to `requests`; raises the first error among them."""
    return [decode(request.op, frame) for request, frame in zip(requests, frames, strict=True)]

