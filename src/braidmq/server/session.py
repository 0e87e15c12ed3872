"""One connection, whatever it speaks: bytes in, requests in order, answers in order, deliveries in between.

A protocol is a subclass. It says in `take` what the bytes mean; everything around that is here. Requests of a connection run
one after the other, except that a run of records is taken all at once and its answers wait together for the group commit, while
the next run is already being read. Whatever has to see the effect of earlier records asks `must_wait` first, and is offered
again when every earlier answer is out. Deliveries that nobody asked for (`push`) do not wait behind answers that are due.

    reading     frames are parsed as they come
    waiting     an operation runs, answers of records are due before the next frame may run, the peer does not take its
                answers, or its user spent more than a quota allows; what arrives is kept, up to a limit, past
                which the socket is not read
    closing     the peer broke the protocol, or the broker stops: nothing more is read

Memory is bounded: one receive buffer serves all connections of a port, a frame in pieces grows with what really arrived, kept
requests and unsent answers have limits, and deliveries stop at `write_high` (`writable`) until the peer took them (`on_writable`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from braidmq import hot
from braidmq.base import limits
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.base.tracing import Traced
from braidmq.broker.admission import is_open
from braidmq.broker.topics import Topic
from braidmq.log.commit import Outcome
from braidmq.log.level import Level
from braidmq.log.partition import PartitionLog
from braidmq.security.authorizer import ANONYMOUS, Principal
from braidmq.security.certificates import certificate_user

if TYPE_CHECKING:
    from braidmq.server.listener import Listener

_FRONT_BYTES_MAX: Final = limits.RECEIVE_BUFFER_BYTES // 4
"""A kept piece up to this size is moved to the front of the receive buffer; a longer one is grown where it is."""

_LOOK_AGAIN_S: Final = 0.5
_PAID_S: Final = 0.001
"""A debt that is as good as paid: timers are not finer."""


class Due:
    """Answers of one run of requests, due when their records are durable."""

    __slots__ = ("answers", "done", "size")

    def __init__(self, answers: bytes) -> None:
        self.answers = answers
        self.size = len(answers)
        self.done = False


class Session(asyncio.BufferedProtocol, ABC):
    __slots__ = (
        "_closing", "_due", "_due_bytes", "_front", "_full", "_half_closed", "_held", "_owing", "_own_routes", "_past_high",
        "_paused", "_read_paused", "_received", "_refused", "_resuming", "_routes_version", "_running", "_stalled", "address",
        "broker", "ip", "last_frame_at", "listener", "metered", "out", "principal", "reached_at", "transport",
    )  # fmt: skip

    write_high: ClassVar[int] = limits.WRITE_BUFFER_BYTES_HIGH
    """Unsent bytes at which deliveries stop."""
    write_low: ClassVar[int] = limits.WRITE_BUFFER_BYTES_LOW
    """Unsent bytes at which they go on."""
    answers_past_high: ClassVar[int] = 0
    """Bytes of answers that may still be added past `write_high` before requests wait, too: where deliveries fill the
    connection, a peer that sends before it reads is not held up by them."""

    def __init__(self, listener: Listener[Any]) -> None:
        self.listener = listener
        self.broker = listener.broker
        self.principal = ANONYMOUS
        self.address = self.ip = self.reached_at = ""
        self.last_frame_at = 0.0
        """When the peer was last heard, as `listener.now` has it. `take` sets it for what counts as a sign of life."""
        self.transport: asyncio.Transport
        self._received = listener.received
        """What every connection of the port receives into."""
        self._held = bytearray()
        """Bytes received and not yet parsed."""
        self._front = 0
        """How many held bytes were put at the front of the receive buffer for the receive under way."""
        self.out: hot.ByteBuffer | None = None
        """Answers of the run that is being taken."""
        self._due: deque[Due] = deque()
        self._due_bytes = 0
        """Size of the answers that wait for their records."""
        self._resuming = False
        self._running: asyncio.Task[None] | None = None
        self._paused = False
        """The peer does not take what it was sent."""
        self._past_high = 0
        """Bytes of answers added since."""
        self._full = False
        """Requests wait until the peer takes what it was sent."""
        self._read_paused = False
        self._stalled = False
        """The next frame waits until every earlier answer is out."""
        self._half_closed = False
        """The peer sends no more, and still reads."""
        self._refused = False
        """Nothing more is read; answers to what was asked before still go out."""
        self._closing = False
        security = self.broker.security
        self._own_routes = hot.RouteTable() if security.authorizer.enabled else None
        """Topics that this connection may write to with no further question; None where everybody may."""
        self._routes_version = -1
        self.metered = security.metered
        """Whether what is read has to be charged."""
        self._owing: asyncio.TimerHandle | None = None
        """When what was spent beyond a quota is paid."""

    # --- what a protocol supplies

    @abstractmethod
    def take(self, data: memoryview, position: int, stop: int) -> int:
        """Take as many frames of `data[position:stop]` as may run now; returns where the first one begins that may not.

        What is left is kept and offered again, longer or when the wait is over. `data` is valid during the call only.
        """

    @abstractmethod
    def error_bytes(self, error: BraidError) -> bytes:
        """An error as this protocol says it."""

    def awaits_more(self, held: bytearray) -> bool:
        """Whether a frame begins at `held` whose end has not come: then a long one is not looked at for every piece."""
        return False

    @abstractmethod
    def failed_run(self, answers: bytes, failures: Mapping[PartitionLog, BraidError]) -> bytes:
        """The answers of a run when some partitions could not write: an error in place of each that is not true any more."""

    def made(self) -> None:
        """The connection is up: its addresses and, by certificate, its user are known."""

    def lost(self) -> None:
        """The connection is gone."""

    def on_writable(self) -> None:
        """The peer takes data again; called when `writable` has become true."""

    def leave(self) -> None:
        """The broker stops. Called when it begins to and whenever an answer went out since: close as soon as nothing is owed."""
        self.close_when_idle()

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's, but do the same.
        transport = cast(asyncio.Transport, transport)
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self.ip = peer[0] if isinstance(peer, tuple) else str(peer)
        local = transport.get_extra_info("sockname")
        # A peer that is gone already leaves no address behind.
        host, port = local[:2] if isinstance(local, tuple) else ("", 0)
        self.reached_at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if self.broker.security.authorizer.enabled:
            named = certificate_user(transport.get_extra_info("peercert"), self.listener.tls_identity)
            self.principal = self.broker.security.accounts.identify(named, self.ip) or ANONYMOUS
        transport.set_write_buffer_limits(self.write_high, self.write_low)
        self.made()
        self.listener.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._held = bytearray()
        if self._running is not None:
            self._running.cancel()
        if self._owing is not None:
            self._owing.cancel()
        try:
            self.lost()
        finally:
            if not self.principal.anonymous:
                self.broker.security.note("auth.logout", self.principal, self.ip, self.principal.name, "disconnect")
            self.listener.disconnected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        held = len(self._held)
        if held and held <= _FRONT_BYTES_MAX and not self.blocked:
            self._received[:held] = self._held
            self._front = held
            return self._received[held:]
        self._front = 0
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        self.listener.received_bytes += nbytes
        front = self._front
        stop = front + nbytes
        if front:
            self._held.clear()
        elif self._held or self.blocked:
            self._held += self._received[:nbytes]
            if not self.blocked:
                self._parse_held()
            elif len(self._held) > limits.REQUEST_BACKLOG_BYTES_MAX:
                self._pause_reading()
            return
        position = self.take(self._received, 0, stop)
        if position < stop:
            self._keep(self._received, position, stop)

    def eof_received(self) -> bool:
        # Requests that came whole are still answered, and `_resume` closes then; one cut in half never runs.
        waiting = not self.idle or self._resuming or (self.blocked and bool(self._held))
        if not waiting or self.transport.get_extra_info("sslcontext") is not None:
            # TLS has no half-open state: its transport closes either way.
            return False
        self._half_closed = True
        return True

    def pause_writing(self) -> None:
        self._paused = True
        self._full = not self.answers_past_high

    def resume_writing(self) -> None:
        self._paused = self._full = False
        self._past_high = 0
        self._resume()
        if self.writable:
            self.on_writable()

    # --- reading

    @property
    def blocked(self) -> bool:
        """Whether the next frame waits: `take` stops after one that brought this about."""
        return (
            self._running is not None or self._full or self._stalled or self._refused or self._closing
            or self._owing is not None or self._due_bytes > limits.WRITE_BUFFER_BYTES_HIGH
        )

    @property
    def idle(self) -> bool:
        """Whether nothing of this connection is under way."""
        return self._running is None and not self._due

    @property
    def slowed(self) -> bool:
        """Whether the connection waits until its user may spend again."""
        return self._owing is not None

    @property
    def closing(self) -> bool:
        """Whether only answers that the peer has not taken yet keep the connection."""
        return self._closing

    def must_wait(self) -> bool:
        """Whether answers of earlier frames are due; if so, what `take` leaves is offered again as soon as they are out."""
        if self._due:
            self._stalled = True
        return self._stalled

    def _parse_held(self) -> None:
        """Parse what is held, if it may hold a whole frame by now."""
        held = self._held
        if len(held) > _FRONT_BYTES_MAX and self.awaits_more(held):
            return
        self._held = bytearray()
        with memoryview(held) as view:
            self._keep(view, self.take(view, 0, len(held)), len(held))

    def _keep(self, data: memoryview, position: int, stop: int) -> None:
        """Keep what the protocol did not take."""
        if position < stop and not self._closing and not self._refused:
            self._held += data[position:stop]
            if len(self._held) > limits.REQUEST_BACKLOG_BYTES_MAX and self.blocked:
                self._pause_reading()

    def _pause_reading(self) -> None:
        if not self._read_paused and not self._closing:
            self._read_paused = True
            self.transport.pause_reading()

    def _resume_soon(self) -> None:
        """Go on in the next turn: the caller may be in the middle of a parse or a commit."""
        if not self._resuming:
            self._resuming = True
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        """Go on with what was held while something else was under way."""
        self._resuming = False
        if self._refused and self.idle:
            self._finish_closing()
        if self._held and not self.blocked:
            self._parse_held()
        if self.blocked:
            return
        # What is still held is a piece of one frame, however long: only reading brings the rest.
        if self._half_closed:
            self.close_when_idle()
        elif self._read_paused:
            self._read_paused = False
            self.transport.resume_reading()

    # --- rights and quotas

    def routes(self) -> hot.RouteTable:
        """Topics that a parser may write to now without asking.

        Where nobody has to log in these are all that check nothing; where somebody has to, each connection has a table of
        its own, which is empty again as soon as anything changes on which a decision rests.
        """
        own = self._own_routes
        if own is None:
            return self.broker.routes
        version = self.broker.security.authorizer.version + self.broker.routes_version
        if version != self._routes_version:
            self._routes_version = version
            own.clear()
        return own

    def remember_route(self, topic: Topic | None) -> None:
        """Let the parser take what follows for a topic, now that the connection is known to have the right."""
        own = self._own_routes
        if own is not None and topic is not None and is_open(topic):
            if len(own) >= limits.SESSION_ROUTES_MAX:
                own.clear()
            own.add(self.broker.route(topic))

    def logged_in(self, principal: Principal) -> None:
        self.principal = principal
        # What another may do says nothing about this one.
        self._routes_version = -1

    def charge(self, size: int, requests: int) -> None:
        """Note what was spent; beyond a quota, read and deliver nothing until it is paid."""
        owed_s = self._owed_s(size, requests)
        if owed_s > 0 and not self._closing:
            if self._owing is not None:
                self._owing.cancel()
            self._wait_for_payment(owed_s)
            self._pause_reading()

    def _owed_s(self, size: int, requests: int) -> float:
        security = self.broker.security
        principal = security.authorizer.current(self.principal)
        user = "" if principal.anonymous else principal.name
        return security.quotas.charge(user, size, requests, address=self.ip)

    def _wait_for_payment(self, owed_s: float) -> None:
        # Somebody may raise the quota meanwhile: whoever waits for long looks again now and then.
        self._owing = asyncio.get_running_loop().call_later(min(owed_s, _LOOK_AGAIN_S), self._look_again)

    def _look_again(self) -> None:
        owed_s = self._owed_s(0, 0)
        if owed_s > _PAID_S:
            self._wait_for_payment(owed_s)
            return
        self._owing = None
        self.last_frame_at = self.listener.now
        self._resume()
        if self.writable:
            self.on_writable()

    # --- answering

    def send_run(self, unanswered: int = 0) -> None:
        """Let the answers in `out` go out as soon as their records are durable.

        `unanswered` records were taken that get no answer: they are written, and waited for, as the others are.
        """
        out = self.out
        if out is None or not (len(out) or unanswered):
            return
        level = Level(out.level)
        due = self.due(out.take())
        traced = None if self.broker.commit.tracing is None else self.traced_produce()
        # At level `none` nobody waits for the disk either, but a read behind the run must still find its records.
        self.broker.commit.join(level, lambda cycle: self._run_done(due, cycle, level, traced))

    def traced_produce(self, batch: Buffer | None = None) -> Traced:
        """A span of records that were taken in, until their answer."""
        commit = self.broker.commit
        assert commit.tracing is not None
        traced = commit.tracing.produce(self.listener.protocol, self.address, batch)
        commit.cause(traced.context)
        return traced

    def measured(self, operation: str) -> Callable[[], None]:
        """Begin to measure an operation; what is returned is called at its end."""
        histogram, monotonic = self.listener.measure(operation), self.broker.clock.monotonic
        began_s = monotonic()
        return lambda: histogram.observe(monotonic() - began_s)

    def _run_done(self, due: Due, cycle: Outcome, level: Level, traced: Traced | None) -> None:
        if traced is not None:
            traced.end(next((error.code for error in cycle.failures.values()), ""), answer_bytes=due.size)
        (self.listener.produced_s if due.size else self.listener.unanswered_s).observe(cycle.done_s - cycle.joined_s)
        if cycle.failures and level is not Level.NONE:
            due.answers = self.failed_run(due.answers, cycle.failures)
        self.settle(due)

    def due(self, answers: bytes) -> Due:
        """Keep the place of answers that are not true yet; `settle` lets them out."""
        due = Due(answers)
        self._due.append(due)
        self._due_bytes += len(answers)
        return due

    def settle(self, due: Due) -> None:
        """Let the answers out that are ready, in the order of their requests."""
        due.done = True
        waiting = self._due
        # Topics of different levels may finish out of turn; answers may not.
        while waiting and waiting[0].done:
            ready = waiting.popleft()
            self._due_bytes -= ready.size
            if ready.answers:
                self.write([ready.answers])
        if not waiting:
            self._stalled = False
            if self.listener.stopping:
                self.leave()
        if self._held or self._read_paused or self._half_closed or self._refused:
            self._resume_soon()

    def answer(self, data: bytes) -> None:
        """Answer in the order of the requests: behind what is due, or at once."""
        if self._due:
            self.settle(self.due(data))
        else:
            self.write([data])

    def run(
        self, outcome: Awaitable[Sequence[Buffer]], error: Callable[[Exception], bytes] | None = None,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Run an operation; the next frame waits until its answer is out. `error` says how a fault becomes one."""
        self._running = asyncio.get_running_loop().create_task(self._await(outcome, error or self.error, done))
        close = getattr(outcome, "close", None)
        if close is not None:
            # A connection that is lost before the first step leaves a coroutine that nobody will await.
            self._running.add_done_callback(lambda _: close())

    async def _await(
        self, outcome: Awaitable[Sequence[Buffer]], error: Callable[[Exception], bytes], done: Callable[[], None] | None
    ) -> None:
        try:
            answer = await outcome
        except Exception as fault:
            answer = [error(fault)]
        finally:
            self._running = None
        self.write(answer)
        if done is not None:
            done()
        self.last_frame_at = self.listener.now
        if self.listener.stopping:
            self.leave()
        self._resume()

    def error(self, fault: Exception) -> bytes:
        """What the peer is told of a fault."""
        return self.error_bytes(self.plain_error(fault))

    def plain_error(self, fault: Exception) -> BraidError:
        """A fault as the peer may know it; what only the operator can mend is logged."""
        self.broker.figures.failed(fault.code if isinstance(fault, BraidError) else "INTERNAL")
        if not isinstance(fault, BraidError):
            self.listener.logger.error("%s: bug in an operation", self.address, exc_info=fault)
            return BraidError("INTERNAL", reason=type(fault).__name__)
        if fault.code == "CORRUPT_LOG":
            # The client learns it from its answer; whoever runs the broker must learn it too.
            self.listener.logger.error("%s: %s", self.address, fault)
        return fault

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Send now, whatever is due."""
        transport = self.transport
        if transport.is_closing():
            return
        if self.metered:
            self.charge(sum(map(len, buffers)), 0)
        if self._paused:
            self._past_high += sum(map(len, buffers))
            self._full = self._full or self._past_high > self.answers_past_high
        if len(buffers) == 1:
            self.listener.sent_bytes += len(buffers[0])
            transport.write(buffers[0])
        else:
            self.listener.sent_bytes += sum(map(len, buffers))
            transport.writelines(buffers)

    # --- delivering

    @property
    def writable(self) -> bool:
        """Whether deliveries may go out: the peer takes them, and its user may spend."""
        return not (self._paused or self._closing) and self._owing is None

    @property
    def unsent(self) -> int:
        """Bytes that the peer has not taken."""
        return self.transport.get_write_buffer_size()

    push = write
    """Deliver, at once: it does not wait behind answers that are due. Whoever delivers looks at `writable` before."""

    # --- closing

    def _finish_closing(self) -> None:
        self._closing = True
        self._held = bytearray()
        self.transport.close()

    def close_when_idle(self) -> None:
        """Read no more; close now, or as soon as the answers under way are out."""
        if self.idle:
            self._finish_closing()
        else:
            self._refused = True
            self._pause_reading()

    def abort(self) -> None:
        self.transport.abort()
