"""One FlyMQ connection: bytes in, requests in order, answers in order.

Requests of a connection run one after the other, except that a run of PRODUCE frames is taken all at once and its answers
wait together for the group commit, while the next run is already being read. Anything else waits until every earlier
answer is out, so a FETCH behind a PRODUCE sees its record.

    reading     frames are parsed as they come
    waiting     an operation runs, answers of produced records are due before the next frame may run, the peer does not
                take its answers, or its user spent more than a quota allows; what arrives is kept, up to a limit, past
                which the socket is not read
    closing     the peer broke the protocol, or the broker stops: nothing more is read

Every frame is authorized before it runs, and one that waited for something to read once more before it is answered: rights that
were taken away meanwhile count. Where nobody has to log in, the parser takes PRODUCE for any topic that checks
nothing; where somebody has to, each connection has a table of its own that holds the topics it may write to, and that is
empty again as soon as anything changes on which a decision rests.

Memory is bounded: one shared receive buffer serves all connections, a frame in pieces grows with what really arrived, kept
requests and unsent answers have limits, and fetched data are slices of the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final, cast

from braidmq import hot
from braidmq.base import limits
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.broker.admission import is_open
from braidmq.log.commit import Cycle
from braidmq.log.level import Level
from braidmq.security.authorizer import ANONYMOUS, Principal
from braidmq.security.certificates import certificate_user
from braidmq.server.authorization import authorize, refuse_stranger
from braidmq.server.operations import OPERATIONS, Answer, stage_batch, stage_checked
from braidmq.wire import flymq
from braidmq.wire.flymq import Dialect, Op

if TYPE_CHECKING:
    from braidmq.server.flymq_listener import FlyMQListener

_SHARED: Final = bytearray(limits.RECEIVE_BUFFER_BYTES)
_SHARED_VIEW: Final = memoryview(_SHARED)
_FRONT_BYTES_MAX: Final = limits.RECEIVE_BUFFER_BYTES // 4
"""A kept piece up to this size is moved to the front of the shared buffer; a longer one is grown where it is."""

_COMPRESSED: Final = 0x0E
"""The bits of a frame's flags that say how its payload is compressed."""

_LOOK_AGAIN_S: Final = 0.5
_PAID_S: Final = 0.001
"""A debt that is as good as paid: timers are not finer."""

logger = logging.getLogger("braidmq.flymq")


class _Chunk:
    """Answers of one run of PRODUCE frames, due when their records are durable."""

    __slots__ = ("answers", "done", "size")

    def __init__(self, answers: bytes) -> None:
        self.answers = answers
        self.size = len(answers)
        self.done = False


class FlyMQSession(asyncio.BufferedProtocol):
    __slots__ = (
        "_chunks", "_closing", "_commits", "_due_bytes", "_front", "_half_closed", "_held", "_listener", "_memberships",
        "_metered", "_out", "_owing", "_own_routes", "_paused", "_read_paused", "_refused", "_resuming", "_routes_version",
        "_running", "_stalled", "_transport", "address", "broker", "dialect", "ip", "last_frame_at", "principal", "reached_at",
    )  # fmt: skip

    def __init__(self, listener: FlyMQListener) -> None:
        self._listener = listener
        self.broker = listener.broker
        self.dialect = listener.first_dialect
        self.principal = ANONYMOUS
        self.address = self.ip = self.reached_at = ""
        self.last_frame_at = 0.0
        self._transport: asyncio.Transport
        self._held = bytearray()
        """Bytes received and not yet parsed."""
        self._front = 0
        """How many held bytes were put at the front of the shared buffer for the receive under way."""
        self._out: hot.ByteBuffer | None = None
        self._chunks: deque[_Chunk] = deque()
        self._due_bytes = 0
        """Size of the answers that wait for their records."""
        self._resuming = False
        self._running: asyncio.Task[None] | None = None
        self._paused = False
        """The peer does not take its answers."""
        self._read_paused = False
        self._stalled = False
        """The next frame waits until every earlier answer is out."""
        self._half_closed = False
        """The peer sends no more, and still reads."""
        self._refused = False
        """The peer broke the protocol; answers to what it asked before still go out."""
        self._closing = False
        self._memberships: set[tuple[int, str]] = set()
        self._commits: set[str] = set()
        """Groups of which the audit trail knows that this connection commits for them."""
        security = self.broker.security
        self._own_routes = hot.RouteTable() if security.authorizer.enabled else None
        """Topics that this connection may produce to with no further question; None where everybody may."""
        self._routes_version = -1
        self._metered = security.metered
        self._owing: asyncio.TimerHandle | None = None
        """When what was spent beyond a quota is paid."""

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's, but do the same.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self.ip = peer[0] if isinstance(peer, tuple) else str(peer)
        local = transport.get_extra_info("sockname")
        # A peer that is gone already leaves no address behind.
        host, port = local[:2] if isinstance(local, tuple) else ("", 0)
        self.reached_at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if self._own_routes is not None:
            named = certificate_user(transport.get_extra_info("peercert"), self._listener.tls_identity)
            self.principal = self.broker.security.accounts.identify(named, self.ip) or ANONYMOUS
        transport.set_write_buffer_limits(limits.WRITE_BUFFER_BYTES_HIGH, limits.WRITE_BUFFER_BYTES_LOW)
        self._listener.connected(self, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._held = bytearray()
        if self._running is not None:
            self._running.cancel()
        if self._owing is not None:
            self._owing.cancel()
        broker = self.broker
        for topic_id, group in self._memberships:
            broker.unsubscribe(topic_id, group, self)
        broker.coordinator.members.owner_lost(self)
        broker.transactions.abort_owner(self)
        if not self.principal.anonymous:
            broker.security.note("auth.logout", self.principal, self.ip, self.principal.name, "disconnect")
        self._listener.disconnected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        held = len(self._held)
        if held and held <= _FRONT_BYTES_MAX and not self._blocked:
            _SHARED_VIEW[:held] = self._held
            self._front = held
            return _SHARED_VIEW[held:]
        self._front = 0
        return _SHARED_VIEW

    def buffer_updated(self, nbytes: int) -> None:
        front = self._front
        if front:
            self._held.clear()
            self._parse(_SHARED_VIEW, front + nbytes)
        elif self._held or self._blocked:
            self._held += _SHARED_VIEW[:nbytes]
            if not self._blocked:
                self._parse_held()
            elif len(self._held) > limits.REQUEST_BACKLOG_BYTES_MAX:
                self._pause_reading()
        else:
            self._parse(_SHARED_VIEW, nbytes)

    def eof_received(self) -> bool:
        # Requests that came whole are still answered, and `_resume` closes then; one cut in half never runs.
        waiting = not self.idle or self._resuming or (self._blocked and bool(self._held))
        if not waiting or self._transport.get_extra_info("sslcontext") is not None:
            # TLS has no half-open state: its transport closes either way.
            return False
        self._half_closed = True
        return True

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._resume()

    # --- reading

    @property
    def _blocked(self) -> bool:
        return (
            self._running is not None or self._paused or self._stalled or self._refused or self._closing
            or self._owing is not None or self._due_bytes > limits.WRITE_BUFFER_BYTES_HIGH
        )

    @property
    def idle(self) -> bool:
        """Whether nothing of this connection is under way."""
        return self._running is None and not self._chunks

    @property
    def slowed(self) -> bool:
        """Whether the connection waits until its user may spend again."""
        return self._owing is not None

    @property
    def closing(self) -> bool:
        """Whether only answers that the peer has not taken yet keep the connection."""
        return self._closing

    def _parse_held(self) -> None:
        """Parse what is held, if it may hold a whole frame by now."""
        held = self._held
        if len(held) > _FRONT_BYTES_MAX and _announces_more(held):
            return
        self._held = bytearray()
        with memoryview(held) as view:
            self._parse(view, len(held))

    def _parse(self, data: memoryview, stop: int) -> None:
        """Take as many frames from `data` as may run now, and keep the rest."""
        commit = self.broker.commit
        out = self._out
        if out is None:
            out = self._out = hot.ByteBuffer()
        position = spent = requests = 0
        while position < stop:
            start = position
            position, count, status = hot.parse_produce(
                data, start, stop, self._routes(), commit.now_ms(), commit.dirty, out
            )
            if count:
                self.last_frame_at = self._listener.now
                spent += position - start
                requests += count
            if status == hot.NEED_MORE:
                break
            if status == hot.FULL:
                self._send_run()
                commit.flush()
                continue
            following = self._run_frame(data, position, stop)
            if following <= position:
                break
            if self._metered:
                self._charge(following - position, 1)
            position = following
            if self._blocked:
                break
        self._send_run()
        if self._metered and requests:
            self._charge(spent, requests)
        if position < stop and not self._closing and not self._refused:
            self._held += data[position:stop]
            if len(self._held) > limits.REQUEST_BACKLOG_BYTES_MAX and self._blocked:
                self._pause_reading()

    def _routes(self) -> hot.RouteTable:
        """What the parser may take now."""
        own = self._own_routes
        if own is None:
            return self.broker.routes
        version = self.broker.security.authorizer.version + self.broker.routes_version
        if version != self._routes_version:
            self._routes_version = version
            own.clear()
        return own

    def _remember_route(self, request: flymq.Request) -> None:
        """Let the parser take what follows, now that the connection is known to have the right."""
        own = self._own_routes
        if own is not None and isinstance(request, flymq.Produce):
            topic = self.broker.topics.get(request.topic)
            if topic is not None and is_open(topic):
                if len(own) >= limits.SESSION_ROUTES_MAX:
                    own.clear()
                own.add(self.broker.route(topic))

    def logged_in(self, principal: Principal) -> None:
        self.principal = principal
        # What another may do, or did, says nothing about this one.
        self._routes_version = -1
        self._commits.clear()

    # --- quotas

    def _charge(self, size: int, requests: int) -> None:
        """Note what was spent; beyond a quota, read nothing until it is paid."""
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
        self.last_frame_at = self._listener.now
        self._resume()

    # --- running frames

    def _run_frame(self, data: memoryview, position: int, stop: int) -> int:
        """Run the one frame at `position`; returns where the next begins, or `position` when it cannot run yet."""
        if stop - position < flymq.HEADER_BYTES:
            return position
        try:
            op, flags, length = flymq.read_header(data, position)
        except BraidError as error:
            # The peer speaks something else: the documents say to close without a reply. What it asked before gets its own.
            logger.info("%s: %s", self.address, error)
            self._send_run()
            self._refused = True
            self.close_when_idle()
            return position
        end = position + flymq.HEADER_BYTES + length
        if end > stop:
            return position
        self._send_run()
        payload = data[position + flymq.HEADER_BYTES : end]
        light = op == Op.PRODUCE and length <= limits.SCHEMA_LIGHT_BYTES_MAX and not flags & _COMPRESSED
        if (light or op == Op.PRODUCE_BATCH) and self._stage(op, flags, bytes(payload) if light else payload):
            return end
        if self._chunks:
            # Earlier records are not answered yet; `_settle` comes back to this frame.
            self._stalled = True
            return position
        self.last_frame_at = self._listener.now
        self._execute(op, flags, bytes(payload))
        return end

    def _pause_reading(self) -> None:
        if not self._read_paused and not self._closing:
            self._read_paused = True
            self._transport.pause_reading()

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
        if self._held and not self._blocked:
            self._parse_held()
        if self._blocked:
            return
        # What is still held is a piece of one frame, however long: only reading brings the rest.
        if self._half_closed:
            self.close_when_idle()
        elif self._read_paused:
            self._read_paused = False
            self._transport.resume_reading()

    # --- answering runs of PRODUCE

    def _send_run(self) -> None:
        """Let the answers gathered so far go out as soon as their records are durable."""
        out = self._out
        if out is None or not len(out):
            return
        level = Level(out.level)
        chunk = self._due(out.take())
        # At level `none` nobody waits for the disk either, but a FETCH behind the run must still find its records.
        self.broker.commit.join(level, lambda cycle: self._chunk_done(chunk, cycle, level))

    def _chunk_done(self, chunk: _Chunk, cycle: Cycle, level: Level) -> None:
        if cycle.failures and level is not Level.NONE:
            chunk.answers = self._with_failures(chunk.answers, cycle)
        self._settle(chunk)

    def _stage(self, op: int, flags: int, payload: bytes | memoryview) -> bool:
        """Take a batch, or a record that its topic checks, into this turn's commit, as a run of PRODUCE is.

        False when it has to go the general way.
        """
        try:
            if flags & _COMPRESSED:
                refuse_stranger(self, op)
            request, _ = flymq.decode_request(op, flymq.unpack_payload(flags, payload), self.dialect)
            authorize(self, request)
            if isinstance(request, flymq.ProduceBatch):
                outcome = stage_batch(self, request)
            else:
                assert isinstance(request, flymq.Produce)
                outcome = stage_checked(self, request)
        except Exception as fault:
            self._settle(self._due(self._error(fault)))
            return True
        if outcome is None:
            return False
        self.last_frame_at = self._listener.now
        staged, answer = outcome
        chunk = self._due(b"".join(answer))

        def durable(error: BraidError | None) -> None:
            if error is not None:
                chunk.answers = self._error(error)
            self._settle(chunk)

        staged.when_durable(durable)
        return True

    def _due(self, answers: bytes) -> _Chunk:
        chunk = _Chunk(answers)
        self._chunks.append(chunk)
        self._due_bytes += len(answers)
        return chunk

    def _settle(self, chunk: _Chunk) -> None:
        """Let the answers out that are ready, in the order of their requests."""
        chunk.done = True
        chunks = self._chunks
        # Topics of different levels may finish out of turn; answers may not.
        while chunks and chunks[0].done:
            ready = chunks.popleft()
            self._due_bytes -= ready.size
            self._write([ready.answers])
        if not chunks:
            self._stalled = False
            if self._listener.stopping:
                self.close_when_idle()
        if self._held or self._read_paused or self._half_closed or self._refused:
            self._resume_soon()

    def _with_failures(self, answers: bytes, cycle: Cycle) -> bytes:
        """The same answers, with an error in place of each record whose partition failed."""
        failed = {(log.topic, log.partition): error for log, error in cycle.failures.items()}
        parts: list[bytes] = []
        position = 0
        while position < len(answers):
            end = position + flymq.HEADER_BYTES + int.from_bytes(answers[position + 4 : position + 8], "big")
            reply = flymq.decode_response(Op.PRODUCE, Op.PRODUCE, answers[position + flymq.HEADER_BYTES : end], self.dialect)
            assert isinstance(reply, flymq.RecordMetadata)
            error = failed.get((reply.topic, reply.partition))
            parts.append(answers[position:end] if error is None else flymq.encode_error(error, self.dialect))
            position = end
        return b"".join(parts)

    # --- running everything else

    def _execute(self, op: int, flags: int, payload: bytes) -> None:
        try:
            if self._listener.detects_dialect and flymq.only_v126(op):
                self.dialect = Dialect.V126
            if flags & _COMPRESSED:
                refuse_stranger(self, op)
            request, spoken = flymq.decode_request(op, flymq.unpack_payload(flags, payload), self.dialect)
            if self._listener.detects_dialect:
                self.dialect = spoken
            authorize(self, request)
            self._remember_route(request)
            outcome = OPERATIONS[request.op](self, request)
            if isinstance(outcome, list):
                self._write(outcome)
                return
        except Exception as fault:
            self._write([self._error(fault)])
            return
        self._running = asyncio.get_running_loop().create_task(self._await(request, outcome))

    async def _await(self, request: flymq.Request, outcome: Awaitable[Answer]) -> None:
        authorizer = self.broker.security.authorizer
        version = authorizer.version
        try:
            answer = await outcome
            if isinstance(request, flymq.FetchBatches) and authorizer.version != version:
                authorize(self, request)
        except Exception as fault:
            answer = [self._error(fault)]
        finally:
            self._running = None
        self._write(answer)
        self.last_frame_at = self._listener.now
        if self._listener.stopping:
            self.close_when_idle()
        else:
            self._resume()

    def _error(self, fault: Exception) -> bytes:
        if not isinstance(fault, BraidError):
            logger.error("%s: bug in an operation", self.address, exc_info=fault)
            fault = BraidError("INTERNAL", reason=type(fault).__name__)
        elif fault.code == "CORRUPT_LOG":
            # The client learns it from its answer; whoever runs the broker must learn it too.
            logger.error("%s: %s", self.address, fault)
        return flymq.encode_error(fault, self.dialect)

    def _write(self, buffers: list[Buffer]) -> None:
        transport = self._transport
        if transport.is_closing():
            return
        if self._metered:
            self._charge(sum(map(len, buffers)), 0)
        if len(buffers) == 1:
            transport.write(buffers[0])
        else:
            transport.writelines(buffers)

    def remember_membership(self, topic_id: int, group: str) -> None:
        self._memberships.add((topic_id, group))

    def first_commit(self, group: str) -> bool:
        if group in self._commits:
            return False
        if len(self._commits) >= limits.SESSION_COMMITS_NOTED_MAX:
            self._commits.clear()
        self._commits.add(group)
        return True

    # --- closing

    def _finish_closing(self) -> None:
        self._closing = True
        self._held = bytearray()
        self._transport.close()

    def close_when_idle(self) -> None:
        """Close now, or as soon as the answers under way are out."""
        if self.idle:
            self._finish_closing()
        else:
            self._pause_reading()

    def abort(self) -> None:
        self._transport.abort()


def _announces_more(held: bytearray) -> bool:
    """Whether a frame begins here whose end has not come. A wrong header does not: it is for the parser to refuse at once."""
    try:
        _, _, length = flymq.read_header(held)
    except BraidError:
        return False
    return len(held) < flymq.HEADER_BYTES + length
