"""The fq client: publish into exchanges, bind a queue to them, and read what the queue gets.

**fq acknowledges nothing.** `publish` returns when the message is on its way; what a connection had taken when it broke may or
may not have arrived, and nobody says which. `flush` waits until the socket has taken everything, and with `confirm=True` until the
broker says that it has read as many messages as were sent. That is as much as the protocol can tell; a program that needs
to know more uses another protocol of the same broker.

The client keeps itself connected. Bindings are made again after reconnecting, messages that no socket had taken are sent then, and
the iteration goes on. It ends when the client is closed, or with an error that trying again would not change.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Unpack

from braidmq.base.errors import BraidError
from braidmq.client._backend import asyncio as backend
from braidmq.client.backoff import Backoff
from braidmq.client.fq_buffers import Binding, Incoming, Outgoing
from braidmq.client.fq_settings import QUEUE_TYPE_DEFAULT, FqArguments, FqSettings, as_bytes, fq_settings
from braidmq.client.tracing import log
from braidmq.wire.fq.commands import REFUSED, Bind, Bound, Command, Status, StatusRequest, Unbind, Unbound
from braidmq.wire.fq.messages import Message, encode_head, encode_short
from braidmq.wire.fq.program import parse_program

from .fq_link import Link, R

JOIN_SECONDS_MAX = 5.0
"""How long `close` waits for the background tasks, which end at once unless something is wrong."""
HEADS_MAX = 1000
"""Ways of messages that are remembered; past it they are forgotten and learnt again."""
CONFIRM_PAUSE_S = 0.005
"""How long `flush` waits before it asks the broker again."""


def connect(
    address: str = "127.0.0.1:8765",
    *,
    user: str | bytes = "",
    password: str | bytes = "",
    queue: str | bytes = "",
    queue_type: str = QUEUE_TYPE_DEFAULT,
    **arguments: Unpack[FqArguments],
) -> FqClient:
    """A client of the broker at `address` (several with commas), to be used as a context manager.

    `queue` is created as `queue_type` says if it does not exist: `mem` or `disk`, then `:` and any of `public`, `private`, `drop`,
    `block`, `backlog=N`, `permanent`, `transient`. Without a name the client makes one up.
    """
    return FqClient(fq_settings(address, user, password, queue, queue_type, arguments))


class FqClient:
    """One client of one queue. Many tasks may publish, bind and ask; one at a time may read."""

    def __init__(self, settings: FqSettings) -> None:
        self.settings = settings
        self.closed = False
        self.reconnects = 0
        """How often a lost connection was replaced."""
        self._outgoing = Outgoing(settings.buffer_bytes)
        self._incoming = Incoming(settings.prefetch_bytes)
        self._bindings: list[Binding] = []
        self._mutex = backend.Mutex()
        self._link: Link | None = None
        self._running: backend.Task | None = None
        self._ids = itertools.count(1)
        self._id_head = os.urandom(8)
        self._heads: dict[tuple[str | bytes, str | bytes], bytes] = {}
        """How frames begin, by exchange and route; most messages go one of a few ways."""
        self._stop = backend.Signal()
        self._wanted = backend.Signal()
        self._waiting: list[backend.Signal] = []
        """Those who wait for messages to be sent; guarded like the messages."""
        self._doubt: BraidError | None = None
        """What broke a connection whose messages may be lost, until somebody asks for them to be confirmed."""
        self._arrived = backend.Signal()
        self._room = backend.Signal()
        self._linked = backend.Signal()
        self._read: list[Message] = []
        """Messages taken from the buffer and not handed out, the next one last."""

    @property
    def queue(self) -> bytes:
        """The name of the queue; the client's own invention where none was given."""
        return self.settings.queue

    @property
    def bindings(self) -> tuple[Binding, ...]:
        return tuple(self._bindings)

    # --- beginning and end

    async def open(self) -> FqClient:
        """Connect. Raises UNREACHABLE, or what the broker says against this user or queue."""
        if self._running is None:
            self._link = await self._dial(time.monotonic() + self.settings.timeout_s)
            self._linked.set()
            self._running = backend.spawn(self._run, "braid-fq")
        return self

    async def close(self) -> None:
        """Send what was published, let it out, and end. Raises TIMED_OUT when that takes too long; then the rest is dropped."""
        if self.closed:
            return
        with self._outgoing.mutex:
            self.closed = True
        self._wake_publishers()
        deadline_s = time.monotonic() + self.settings.close_timeout_s
        unsent = 0
        if self._running is not None:
            await self._sent_by(deadline_s)
            with self._outgoing.mutex:
                unsent = len(self._outgoing)
            self._stop.set()
            link = self._link
            if link is not None:
                if not unsent and not await link.finish(max(0.0, deadline_s - time.monotonic())):
                    await self._see_out(link, deadline_s)
                link.fail("it was closed on this side")
            await self._running.join(JOIN_SECONDS_MAX)
        self._arrived.set()
        self._linked.set()
        if unsent:
            raise BraidError("TIMED_OUT", what=f"sending the last {unsent} messages", seconds=self.settings.close_timeout_s)

    async def _see_out(self, link: Link, deadline_s: float) -> None:
        """Wait until the broker has read what was sent, on a connection that has no other way to tell."""
        doubtful = link.doubtful
        try:
            await self._confirm(link, deadline_s, self.settings.close_timeout_s)
        except BraidError as fault:
            log.warning("%d messages may be lost: %s", doubtful, fault)

    async def __aenter__(self) -> FqClient:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # --- staying connected

    async def _run(self) -> None:
        link = self._link
        while link is not None:
            await self._serve(link)
            if link.doubtful:
                self._doubt = link.fault
            if self._stop.is_set():
                return
            log.warning("%s; %d messages sent over it may be lost", link.fault, link.doubtful)
            self._link = link = await self._redial()
            if link is not None and self._stop.is_set():
                # Nobody else will end it: `close` has looked for the pair before there was this one.
                await link.close()
                return
            if link is not None:
                self.reconnects += 1
                self._linked.set()
                if link.fault is not None:
                    self._linked.clear()

    async def _serve(self, link: Link) -> None:
        """Use a pair until it breaks."""
        sender = backend.spawn(lambda: link.send_messages(self._outgoing, self._wanted, self._wake_publishers), "braid-fq-send")
        receiver = backend.spawn(lambda: link.receive_messages(self._incoming, self._room, self._arrived), "braid-fq-receive")
        await link.serve()
        await sender.join()
        await receiver.join()
        await link.close()

    async def _redial(self) -> Link | None:
        """A new pair, however long it takes; None at the end, or when it is no use to try on."""
        backoff = Backoff(self.settings.backoff_first_s, self.settings.backoff_most_s)
        while not await self._stop.wait(backoff.next()):
            try:
                return await self._dial(time.monotonic() + self.settings.connect_timeout_s)
            except BraidError as fault:
                if not fault.retriable:
                    self._give_up(fault)
                    return None
                log.debug("%s", fault)
        return None

    def _give_up(self, fault: BraidError) -> None:
        with self._outgoing.mutex, self._incoming.mutex:
            self._incoming.fault = fault
        self._wake_publishers()
        self._arrived.set()
        self._linked.set()

    async def _dial(self, deadline_s: float) -> Link:
        """The first server that takes this client. Raises UNREACHABLE when none answers in time."""
        backoff = Backoff(self.settings.backoff_first_s, self.settings.backoff_most_s)
        while True:
            reasons: list[str] = []
            for server in self.settings.servers:
                try:
                    return await Link.dial(self.settings, server, self.bindings, self._linked.clear)
                except TimeoutError:
                    reasons.append(f"{server}: no answer in time")
                except OSError as fault:
                    reasons.append(f"{server}: {fault}")
            delay_s = min(backoff.next(), deadline_s - time.monotonic())
            if delay_s <= 0 or await self._stop.wait(delay_s):
                raise BraidError(
                    "UNREACHABLE", servers=", ".join(map(str, self.settings.servers)), reason="; ".join(reasons)
                )

    async def _current(self, deadline_s: float) -> Link:
        """The pair that is there, or will be in time."""
        while True:
            self._check_open()
            link = self._link
            if link is not None and link.fault is None:
                return link
            if not await self._linked.wait(deadline_s - time.monotonic()):
                raise BraidError("TIMED_OUT", what="reconnecting", seconds=self.settings.timeout_s)

    def _check_open(self) -> None:
        if self.closed:
            raise BraidError("CLIENT_CLOSED", what="fq client")
        if self._running is None:
            raise BraidError("INVALID_ARGUMENT", reason="the fq client is not open; use it in a `with` block")
        if self._incoming.fault is not None:
            raise self._incoming.fault

    # --- commands

    async def bind(self, exchange: str | bytes, program: str | bytes = "prefix:", flags: int = 0) -> Binding:
        """Give the queue those messages of an exchange that a route program chooses; from now on, when this returns.

        The result holds the broker's route id, and is what `unbind` takes. `flags` are those of `braidmq.client.fq`: with
        `FLAGS_PERMANENT` the binding survives a restart of the broker, if the queue does.
        """
        binding = Binding(as_bytes(exchange), as_bytes(program), flags)
        bound = await self._ask(Bind(flags, binding.exchange, binding.program), Bound)
        if bound.route_id == REFUSED:
            parse_program(binding.program)
            shown = (raw.decode("utf-8", "backslashreplace") for raw in (binding.exchange, binding.program))
            raise BraidError("BIND_REFUSED", exchange=next(shown), program=next(shown))
        binding.route_id = bound.route_id
        with self._mutex:
            for known in self._bindings:
                if (known.exchange, known.program) == (binding.exchange, binding.program):
                    known.flags, known.route_id = flags, bound.route_id
                    return known
            self._bindings.append(binding)
        return binding

    async def unbind(self, binding: Binding) -> bool:
        """Take a binding back; False when the broker does not know it any more.

        After CONNECTION_LOST it is still there, with another route id.
        """
        deadline_s = time.monotonic() + self.settings.timeout_s
        link = await self._current(deadline_s)
        # Once only: the id could mean another binding on the next connection.
        command = Unbind(binding.route_id, binding.exchange)
        unbound = await link.ask(command, Unbound, max(0.001, deadline_s - time.monotonic()))
        with self._mutex:
            if binding in self._bindings:
                self._bindings.remove(binding)
        return unbound.route_id != REFUSED

    async def status(self) -> dict[str, int]:
        """The broker's counters for this client's data connection, and for its queue. They wrap at 32 bits."""
        return dict((await self._ask(StatusRequest(), Status)).counters)

    async def _ask(self, command: Command, kind: type[R]) -> R:
        """Ask until somebody answers: a command that is sent twice does no harm."""
        deadline_s = time.monotonic() + self.settings.timeout_s
        while True:
            link = await self._current(deadline_s)
            try:
                return await link.ask(command, kind, max(0.001, deadline_s - time.monotonic()))
            except BraidError as fault:
                if fault.code != "CONNECTION_LOST" or time.monotonic() >= deadline_s:
                    raise

    # --- publishing

    async def publish(
        self, exchange: str | bytes, route: str | bytes, payload: bytes, message_id: bytes | None = None
    ) -> None:
        """Send a message on its way. Nobody acknowledges it; see the head of this module, and `flush`.

        `message_id` is 16 bytes; the client makes one up. It waits while more than `buffer_bytes` are unsent.
        """
        identity = self._id_head + next(self._ids).to_bytes(8, "big") if message_id is None else message_id
        head = self._heads.get((exchange, route))
        if head is None:
            if len(self._heads) == HEADS_MAX:
                self._heads.clear()
            head = self._heads[exchange, route] = encode_head(as_bytes(exchange), as_bytes(route))
        frame = encode_short(head, identity, payload)
        while True:
            with self._outgoing.mutex:
                self._check_open()
                if not self._outgoing.full:
                    self._outgoing.add(frame)
                    break
                moved = self._wait_in_line()
            await moved.wait()
        self._wanted.set()

    def _wait_in_line(self) -> backend.Signal:
        """A signal for when some messages are gone; asked for in the same breath as whether to wait, so that none is missed."""
        signal = backend.Signal()
        self._waiting.append(signal)
        return signal

    def _wake_publishers(self) -> None:
        with self._outgoing.mutex:
            waiting, self._waiting = self._waiting, []
        for signal in waiting:
            signal.set()

    async def flush(self, *, confirm: bool = False, timeout_s: float | None = None) -> None:
        """Wait until the socket has taken everything that was published. Raises TIMED_OUT.

        With `confirm` also until the broker has read it, as far as its counters tell. CONNECTION_LOST says that since the last
        time a connection broke, and that nobody knows what became of the messages on it.
        """
        limit_s = self.settings.timeout_s if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + limit_s
        self._check_open()
        if not await self._sent_by(deadline_s):
            self._check_open()
            raise BraidError("TIMED_OUT", what="sending what was published", seconds=limit_s)
        if confirm:
            link = await self._current(deadline_s)
            doubt, self._doubt = self._doubt, None
            if doubt is not None:
                raise doubt
            await self._confirm(link, deadline_s, limit_s)

    async def _sent_by(self, deadline_s: float) -> bool:
        """Whether everything is sent in time; False at once when there is nobody left to send it."""
        while True:
            with self._outgoing.mutex:
                if not len(self._outgoing):
                    return True
                if self._incoming.fault is not None:
                    return False
                moved = self._wait_in_line()
            if not await moved.wait(deadline_s - time.monotonic()):
                return False

    async def _confirm(self, link: Link, deadline_s: float, limit_s: float) -> None:
        """Wait until the broker's counter has come as far as ours."""
        expected, doubtful = link.sent, link.doubtful
        while True:
            try:
                counters = await link.ask(StatusRequest(), Status, max(0.001, deadline_s - time.monotonic()))
            except BraidError:
                # Whoever asked knows now, and need not hear it again.
                link.doubtful = 0
                raise
            # The counter has 32 bits, and what is still on its way is never half of that.
            if (dict(counters.counters).get("msgs_in", 0) - expected) & 0xFFFFFFFF < 0x80000000:
                link.doubtful -= doubtful
                return
            if time.monotonic() >= deadline_s:
                raise BraidError("TIMED_OUT", what="the broker's reading of what was published", seconds=limit_s)
            await backend.sleep(CONFIRM_PAUSE_S)

    # --- reading

    async def poll(self, max_messages: int = 500, timeout_s: float | None = None) -> list[Message]:
        """Messages of the queue as soon as there are some; none when none came in time, or the client was closed."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        if self._read:
            taken = self._read[-max_messages:][::-1]
            del self._read[-max_messages:]
            return taken
        while True:
            self._arrived.clear()
            with self._incoming.mutex:
                found = self._incoming.take(max_messages)
            self._room.set()
            if found or self.closed:
                return found
            self._check_open()
            if not await self._arrived.wait(None if deadline_s is None else deadline_s - time.monotonic()):
                return []

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        if not self._read:
            self._read = (await self.poll())[::-1]
            if not self._read:
                raise StopAsyncIteration
        return self._read.pop()
