"""One BlipMQ connection: requests and messages out, replies and deliveries in.

A reply repeats the sequence number of its request, so replies are matched by that and may come in any order with deliveries between
them. The first frame is a Ping with the API key: its answer tells that somebody is there who speaks BlipMQ and lets this
client in. After that, whenever there was silence for a while, another Ping asks the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

from braidmq.base.errors import BraidError
from braidmq.base.limits import BLIPMQ_FRAME_SPARE_BYTES, RECORD_BYTES_MAX
from braidmq.client._backend import asyncio as backend
from braidmq.client.addresses import Address
from braidmq.client.blipmq_buffers import refusal
from braidmq.client.blipmq_settings import BlipMQSettings
from braidmq.wire.blipmq import (
    META_API_KEY,
    META_KEEPALIVE,
    Ack,
    AnyMessage,
    Envelope,
    ErrorMessage,
    FrameReader,
    Message,
    Metadata,
    Ping,
    Pong,
    TooLarge,
    decode,
    encode,
)

SEND_BYTES_TARGET: Final = 256 * 1024
"""Frames are handed to the socket in pieces of about this size."""
_FRAME_BYTES_MAX: Final = RECORD_BYTES_MAX + BLIPMQ_FRAME_SPARE_BYTES
"""Records of other protocols may be larger than what BlipMQ takes in."""

R = TypeVar("R", bound=AnyMessage)


class Outgoing(Protocol):
    """What a link sends, and who is told what became of it."""

    def next_frames(self, link: Link) -> list[bytes]: ...
    def frames_done(self, count: int) -> None: ...


class Incoming(Protocol):
    """Who takes what a link receives."""

    def delivered(self, link: Link, envelope: Envelope, message: Message) -> None: ...
    def answered(self, sequence: int, fault: BraidError | None) -> None:
        """The broker's word about a publish."""

    async def wait_for_room(self, link: Link, timeout_s: float) -> None: ...


class _Turn:
    """Somebody who waits for a reply."""

    __slots__ = ("fault", "kind", "ready", "reply")

    def __init__(self, kind: type[object]) -> None:
        self.kind = kind
        self.ready = backend.Signal()
        self.reply: AnyMessage | None = None
        self.fault: BraidError | None = None


class Link:
    def __init__(
        self, settings: BlipMQSettings, server: Address, stream: backend.Stream, number: int, next_sequence: Callable[[], int],
        on_break: Callable[[], None],
    ) -> None:  # fmt: skip
        self.server = server
        self.number = number
        """Counts the connections of a client."""
        self.fault: BraidError | None = None
        """Why the connection is of no use any more."""
        self.wanted = backend.Signal()
        """There is something to send."""
        self.room = backend.Signal()
        """There may be a reason to read on."""
        self.broken = backend.Signal()
        self._settings = settings
        self._stream = stream
        self._next_sequence = next_sequence
        self._on_break = on_break
        self._reader = FrameReader(_FRAME_BYTES_MAX)
        self._asked: dict[int, _Turn] = {}
        self._mutex = backend.Mutex()
        self._sent_s = self._heard_s = time.monotonic()
        self._pinged_s = 0.0
        """When a Ping was sent that nothing was heard after; 0 for none."""

    # --- making it

    @classmethod
    async def dial(
        cls, settings: BlipMQSettings, server: Address, number: int, next_sequence: Callable[[], int], on_break: Callable[[], None]
    ) -> Link:
        """A connection that is not logged in. Raises OSError. `on_break` is called once, when it is of no use any more."""
        name = settings.tls_server_name or server.host
        context = settings.context_for(server)
        stream = await backend.Stream.connect(server.host, server.port, context, name, settings.connect_timeout_s)
        return cls(settings, server, stream, number, next_sequence, on_break)

    async def log_in(self, requests: Iterable[tuple[AnyMessage, Metadata]], deadline_s: float) -> None:
        """Say who we are, then make all of `requests`. Raises the first refusal, or what is wrong with the connection."""
        interval_s = self._settings.keepalive_s
        metadata: Metadata = ((META_KEEPALIVE, str(max(1, round(interval_s)))),)
        if self._settings.api_key:
            metadata = ((META_API_KEY, self._settings.api_key), *metadata)
        await self.ask(Ping(), Pong, deadline_s - time.monotonic(), metadata)
        for message, more in requests:
            await self.ask(message, Ack, deadline_s - time.monotonic(), more)

    # --- using it

    async def ask(self, message: AnyMessage, kind: type[R], timeout_s: float, metadata: Metadata = ()) -> R:
        """The reply to a request. Raises what the broker has against it, CONNECTION_LOST or TIMED_OUT."""
        turn = _Turn(kind)
        sequence = self._next_sequence()
        with self._mutex:
            if self.fault is not None:
                raise self.fault
            self._asked[sequence] = turn
        # A reader that stands still, because nobody takes messages, has to read this answer.
        self.room.set()
        try:
            await self._send([encode(Envelope(message, sequence, 0, metadata))], timeout_s)
            if not await turn.ready.wait(timeout_s):
                raise BraidError("TIMED_OUT", what=f"the answer of {self.server}", seconds=round(max(0.0, timeout_s), 3))
        finally:
            with self._mutex:
                self._asked.pop(sequence, None)
        if turn.fault is not None:
            raise turn.fault
        if not isinstance(turn.reply, kind):
            raise self.fault or self.fail("it broke")
        return turn.reply

    @property
    def awaits(self) -> bool:
        """Whether somebody waits for a reply."""
        return bool(self._asked)

    async def send_all(self, outgoing: Outgoing) -> None:
        """Send what is there and what comes, until the connection breaks."""
        while True:
            self.wanted.clear()
            if self.fault is not None:
                return
            frames = outgoing.next_frames(self)
            if not frames:
                await self.wanted.wait()
                continue
            await self._send([b"".join(frames)], None)
            outgoing.frames_done(len(frames))

    async def receive_all(self, incoming: Incoming) -> None:
        """Read until the connection breaks, asking after the broker when it is silent."""
        while self.fault is None:
            timeout_s = await self._keep_alive()
            if timeout_s is None:
                return
            try:
                data = await self._stream.receive(timeout_s)
            except TimeoutError:
                continue
            except OSError as fault:
                self.fail(str(fault))
                return
            if not data:
                self.fail("the server closed it")
                return
            self._heard_s = time.monotonic()
            self._pinged_s = 0.0
            try:
                self._take(self._reader.receive(data), incoming)
            except BraidError as fault:
                self.fail(f"the server sent no BlipMQ ({fault.text})")
                return
            if self._reader.failure is not None:
                self.fail(f"the server sent no BlipMQ ({self._reader.failure.text})")
                return
            await incoming.wait_for_room(self, self._settings.keepalive_s / 2)

    async def _keep_alive(self) -> float | None:
        """Ask whether the broker is there, if it is time. Returns how long to wait before it is time again, None for a dead one."""
        now_s = time.monotonic()
        interval_s = self._settings.keepalive_s
        if self._pinged_s and now_s - self._pinged_s >= interval_s:
            self.fail(f"the server was silent for {now_s - self._heard_s:.1f} s")
            return None
        quiet_s = now_s - min(self._sent_s, self._heard_s)
        if quiet_s >= interval_s and not self._pinged_s:
            # It also tells the broker that we are there, which closes connections that are silent for too long.
            self._pinged_s = now_s
            await self._send([encode(Envelope(Ping(), self._next_sequence()))], None)
            quiet_s = 0.0
        since_s = now_s - self._pinged_s if self._pinged_s else quiet_s
        return max(0.001, interval_s - since_s)

    async def ping(self) -> None:
        """Tell the broker that we are there, while nothing of what it says is read."""
        if time.monotonic() - self._sent_s >= self._settings.keepalive_s / 2:
            await self._send([encode(Envelope(Ping(), self._next_sequence()))], None)

    def _take(self, frames: list[memoryview | TooLarge], incoming: Incoming) -> None:
        for frame in frames:
            if isinstance(frame, TooLarge):
                raise frame
            envelope = decode(frame)
            message = envelope.message
            if isinstance(message, Message):
                incoming.delivered(self, envelope, message)
            elif isinstance(message, ErrorMessage):
                self._refused(envelope, refusal(message), incoming)
            elif isinstance(message, Ack | Pong):
                turn = self._asked.get(envelope.sequence)
                if turn is None:
                    if isinstance(message, Ack):
                        incoming.answered(envelope.sequence, None)
                elif isinstance(message, turn.kind):
                    turn.reply = message
                    turn.ready.set()

    def _refused(self, envelope: Envelope, fault: BraidError, incoming: Incoming) -> None:
        turn = self._asked.get(envelope.sequence)
        if turn is not None:
            turn.fault = fault
            turn.ready.set()
        else:
            incoming.answered(envelope.sequence, fault)

    async def _send(self, frames: list[bytes], timeout_s: float | None) -> None:
        """Send all of it; what goes wrong breaks the connection, and whoever waits hears it."""
        self._sent_s = time.monotonic()
        try:
            await self._stream.send(frames, None if timeout_s is None else max(0.001, timeout_s))
        except TimeoutError:
            self.fail(f"it took nothing for {timeout_s or 0:g} s")
        except OSError as error:
            self.fail(str(error))

    # --- the end

    def fail(self, reason: str) -> BraidError:
        """The connection is of no use any more; everyone who waits hears why."""
        return self.break_off(BraidError("CONNECTION_LOST", server=self.server, reason=reason))

    def break_off(self, fault: BraidError) -> BraidError:
        with self._mutex:
            first = self.fault is None
            if first:
                self.fault = fault
            waiting = list(self._asked.values())
        for turn in waiting:
            if turn.reply is None and turn.fault is None:
                turn.fault = self.fault
                turn.ready.set()
        self._stream.abort()
        self.wanted.set()
        self.room.set()
        self.broken.set()
        if first:
            self._on_break()
        return self.fault or fault

    async def close(self) -> None:
        self.fail("it was closed on this side")
        await self._stream.close()
