"""One pair of fq connections: commands on one, messages on the other.

Replies come in the order of the commands, so whoever asks gets in line. One task reads the command connection and answers the
broker's heartbeats; three missing ones mean that the broker is gone. Whatever breaks one connection breaks both: a pair is
thrown away whole, and the client makes a new one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from braidmq.base.errors import BraidError
from braidmq.client._backend import asyncio as backend
from braidmq.client.addresses import Address
from braidmq.client.faults import ServerError, server_error
from braidmq.client.fq_buffers import Binding, Incoming, Outgoing
from braidmq.client.fq_settings import FqSettings
from braidmq.client.tracing import log
from braidmq.wire.fq.commands import (
    REFUSED,
    AuthAccepted,
    Bind,
    Bound,
    Command,
    ErrorReply,
    Heartbeat,
    HeartbeatRequest,
    Reply,
    ReplyReader,
    encode_command,
)
from braidmq.wire.fq.messages import MessageReader
from braidmq.wire.fq.modes import Mode, encode_opening

SEND_BYTES_TARGET = 256 * 1024
"""Messages are handed to the socket in pieces of about this size."""

R = TypeVar("R", bound=Reply)


class _Turn:
    """A place in the line of those who wait for a reply."""

    __slots__ = ("ready", "reply")

    def __init__(self) -> None:
        self.ready = backend.Signal()
        self.reply: Reply | None = None


class Link:
    def __init__(self, settings: FqSettings, server: Address, command: backend.Stream, on_break: Callable[[], None]) -> None:
        self.server = server
        self.fault: BraidError | None = None
        """Why the pair is of no use any more."""
        self.sent = 0
        """Messages that the socket has taken."""
        self.doubtful = 0
        """Messages handed to the socket of which nobody knows whether the broker has read them."""
        self.broken = backend.Signal()
        self._settings = settings
        self._command = command
        self._data: backend.Stream | None = None
        self._replies = ReplyReader()
        self._pending: deque[Reply] = deque()
        self._line: deque[_Turn] = deque()
        self._mutex = backend.Mutex()
        self._asking = backend.Lock()
        self._finished = False
        self._on_break = on_break
        self._waking: list[backend.Signal] = []
        """What the tasks of this pair wait for."""

    # --- making it

    @classmethod
    async def dial(cls, settings: FqSettings, server: Address, bindings: Sequence[Binding], on_break: Callable[[], None]) -> Link:
        """A pair that is ready: signed in, bound, and with messages going both ways. Raises what the broker says, or OSError.

        `on_break` is called once, when the pair is of no use any more.
        """
        deadline_s = time.monotonic() + settings.connect_timeout_s
        link = cls(settings, server, await _connect(settings, server, deadline_s), on_break)
        try:
            await link._sign_in(bindings, deadline_s)
        except BaseException:
            await link.close()
            raise
        return link

    async def _sign_in(self, bindings: Sequence[Binding], deadline_s: float) -> None:
        settings = self._settings
        await self._send_commands(encode_opening(Mode.COMMAND) + encode_command(settings.auth), deadline_s)
        key = (await self._expect(AuthAccepted, deadline_s)).key
        commands: list[Command] = [Bind(binding.flags, binding.exchange, binding.program) for binding in bindings]
        if settings.heartbeat_ms:
            commands.append(HeartbeatRequest(settings.heartbeat_ms))
        if commands:
            await self._send_commands(b"".join(map(encode_command, commands)), deadline_s)
        for binding in bindings:
            binding.route_id = (await self._expect(Bound, deadline_s)).route_id
            if binding.route_id == REFUSED:
                log.error("%s no longer takes the binding of %r with %r", self.server, binding.exchange, binding.program)
        self._data = await _connect(settings, self.server, deadline_s)
        await self._data.send([encode_opening(Mode.DATA, key)], deadline_s - time.monotonic())

    async def _send_commands(self, raw: bytes, deadline_s: float) -> None:
        await self._command.send([raw], max(0.001, deadline_s - time.monotonic()))

    async def _expect(self, kind: type[R], deadline_s: float) -> R:
        """The next reply that is no heartbeat, before anybody else reads."""
        while True:
            while self._pending:
                reply = self._pending.popleft()
                if isinstance(reply, kind):
                    return reply
                if isinstance(reply, ErrorReply):
                    raise _refusal(reply)
                if not isinstance(reply, Heartbeat):
                    raise BraidError("UNEXPECTED_REPLY", reason=f"{type(reply).__name__} in place of {kind.__name__}")
            self._pending.extend(await self._receive(max(0.0, deadline_s - time.monotonic())))

    async def _receive(self, timeout_s: float | None) -> list[Reply]:
        data = await self._command.receive(timeout_s)
        if not data:
            raise ConnectionResetError("the server closed the command connection")
        try:
            found = self._replies.receive(data)
        except BraidError as fault:
            raise BraidError("UNEXPECTED_REPLY", reason=fault.text) from None
        return found

    # --- using it

    async def ask(self, command: Command, kind: type[R], timeout_s: float) -> R:
        """The reply to a command. Raises CONNECTION_LOST, TIMED_OUT, or what the broker said when it broke off."""
        turn = _Turn()
        async with self._asking:
            with self._mutex:
                if self.fault is not None:
                    raise self.fault
                self._line.append(turn)
            await self._send(self._command, encode_command(command), timeout_s)
        # A send that failed has woken the line already.
        if not await turn.ready.wait(timeout_s):
            # The line is of no use without it: nobody can tell whose the next reply is.
            self.fail("a reply took too long")
            raise BraidError("TIMED_OUT", what=f"the answer of {self.server}", seconds=round(timeout_s, 3))
        if turn.reply is None:
            raise self.fault or self.fail("it broke")
        if not isinstance(turn.reply, kind):
            raise BraidError("UNEXPECTED_REPLY", reason=f"{type(turn.reply).__name__} in place of {kind.__name__}")
        return turn.reply

    async def serve(self) -> None:
        """Read the command connection until it breaks."""
        silence_s = 3 * self._settings.heartbeat_s or None
        while self.fault is None:
            while self._pending:
                await self._take(self._pending.popleft())
            if self._replies.failure is not None:
                self.fail(f"the server sent no fq ({self._replies.failure.text})")
                return
            try:
                self._pending.extend(await self._receive(silence_s))
            except TimeoutError:
                self.fail(f"the server was silent for {silence_s:g} s")
            except OSError as fault:
                self.fail(str(fault))
            except BraidError as fault:
                self.fail(fault.text)

    async def _take(self, reply: Reply) -> None:
        if isinstance(reply, Heartbeat):
            if self._settings.heartbeat_ms:
                await self._send(self._command, encode_command(Heartbeat()), self._settings.connect_timeout_s)
            return
        if isinstance(reply, ErrorReply):
            self._break(_refusal(reply))
            return
        with self._mutex:
            turn = self._line.popleft() if self._line else None
        if turn is None:
            self.fail(f"the server sent a {type(reply).__name__} that nobody asked for")
            return
        turn.reply = reply
        turn.ready.set()

    async def send_messages(self, outgoing: Outgoing, wanted: backend.Signal, moved: Callable[[], None]) -> None:
        """Send what is there and what comes, until the pair breaks. `moved` is called when some was taken, and when it is gone."""
        self._waking.append(wanted)
        assert self._data is not None
        while self.fault is None:
            wanted.clear()
            with outgoing.mutex:
                frames = outgoing.take(SEND_BYTES_TARGET)
            if not frames:
                if self.fault is None:
                    await wanted.wait()
                continue
            # There is room for more while these are sent.
            moved()
            self.doubtful += len(frames)
            if await self._send(self._data, b"".join(frames), None):
                self.sent += len(frames)
            with outgoing.mutex:
                outgoing.done(len(frames))
            moved()

    async def receive_messages(self, incoming: Incoming, room: backend.Signal, arrived: backend.Signal) -> None:
        """Read messages until the pair breaks, and no more of them than there is room for."""
        self._waking.append(room)
        reader = MessageReader(full=True, payload_max=self._settings.payload_bytes_max)
        assert self._data is not None
        while True:
            try:
                data = await self._data.receive(None)
                messages = reader.receive(data)
            except OSError as fault:
                self.fail(str(fault))
                return
            except BraidError as fault:
                self.fail(f"the server sent no fq ({fault.text})")
                return
            if not data:
                self.fail("the server closed the data connection")
                return
            if self._finished:
                continue
            with incoming.mutex:
                incoming.add(messages)
            arrived.set()
            if reader.failure is not None:
                self.fail(f"the server sent no fq ({reader.failure.text})")
                return
            await self._wait_for_room(incoming, room)

    async def _wait_for_room(self, incoming: Incoming, room: backend.Signal) -> None:
        while True:
            room.clear()
            if not incoming.full or self._finished or self.fault is not None:
                return
            await room.wait()

    async def _send(self, stream: backend.Stream, raw: bytes, timeout_s: float | None) -> bool:
        """Send all of it, and say whether that worked; what goes wrong breaks the pair."""
        try:
            await stream.send([raw], timeout_s)
            if stream is self._data:
                await stream.drain(timeout_s)
        except TimeoutError:
            self.fail(f"it took nothing for {timeout_s or 0:g} s")
        except OSError as error:
            self.fail(str(error))
        else:
            return True
        return False

    # --- the end

    def fail(self, reason: str) -> BraidError:
        """The pair is of no use any more; everyone who waits hears why."""
        return self._break(BraidError("CONNECTION_LOST", server=self.server, reason=reason))

    def _break(self, fault: BraidError) -> BraidError:
        with self._mutex:
            first = self.fault is None
            if first:
                self.fault = fault
            waiting = list(self._line)
            self._line.clear()
        for turn in waiting:
            turn.ready.set()
        self._command.abort()
        if self._data is not None:
            self._data.abort()
        for signal in self._waking:
            signal.set()
        self.broken.set()
        if first:
            self._on_break()
        return self.fault or fault

    async def finish(self, timeout_s: float) -> bool:
        """Let out what was sent: tell the broker that no more comes, and wait until it has read all of it and closes too.

        Closing at once would not do: with unread deliveries around, the system would throw away what is still to be sent. False
        where the connection cannot say so, as with TLS.
        """
        self._finished = True
        for signal in self._waking:
            signal.set()
        if self.fault is not None or self._data is None:
            return True
        if not self._data.finish():
            return False
        await self.broken.wait(timeout_s)
        return True

    async def close(self) -> None:
        self.fail("it was closed on this side")
        await self._command.close()
        if self._data is not None:
            await self._data.close()


async def _connect(settings: FqSettings, server: Address, deadline_s: float) -> backend.Stream:
    left_s = max(0.001, deadline_s - time.monotonic())
    name = settings.tls_server_name or server.host
    return await backend.Stream.connect(server.host, server.port, settings.context_for(server), name, left_s)


def _refusal(reply: ErrorReply) -> ServerError:
    return server_error(reply.text.decode("utf-8", "backslashreplace").rstrip("\n"))
