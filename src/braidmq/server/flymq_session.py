"""One FlyMQ connection: what its frames mean, and what they are answered.

A run of PRODUCE frames is taken all at once, by the parser; a batch, or a record that its topic checks, joins the same group
commit. Anything else waits until every earlier answer is out, so a FETCH behind a PRODUCE sees its record. Every frame is
authorized before it runs, and one that waited for something to read once more before it is answered. Fetched data are slices of
the log. What all connections have in common is in `session.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, ClassVar, Final

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.log.partition import PartitionLog
from braidmq.security.authorizer import Principal
from braidmq.server.authorization import authorize, refuse_stranger
from braidmq.server.operations import OPERATIONS, Answer, stage_batch, stage_checked
from braidmq.server.session import Session
from braidmq.wire import flymq
from braidmq.wire.flymq import Dialect, Op

if TYPE_CHECKING:
    from braidmq.server.flymq_listener import FlyMQListener

_COMPRESSED: Final = 0x0E
"""The bits of a frame's flags that say how its payload is compressed."""

_PRODUCING: Final = frozenset(
    (Op.PRODUCE, Op.PRODUCE_BATCH, Op.PRODUCE_WITH_SCHEMA, Op.PRODUCE_WITH_TTL, Op.TXN_PRODUCE, Op.STAGE_BATCH)
)
"""What leads to records in the log, and is traced as that, when it goes the general way."""

logger = logging.getLogger("braidmq.flymq")


class FlyMQSession(Session):
    __slots__ = ("_commits", "_memberships", "dialect")

    forwarded: ClassVar[bool] = False
    listener: FlyMQListener

    def __init__(self, listener: FlyMQListener) -> None:
        super().__init__(listener)
        self.dialect = listener.first_dialect
        self._memberships: set[tuple[int, str]] = set()
        self._commits: set[str] = set()
        """Groups of which the audit trail knows that this connection commits for them."""

    def lost(self) -> None:
        broker = self.broker
        for topic_id, group in self._memberships:
            broker.unsubscribe(topic_id, group, self)
        broker.coordinator.members.owner_lost(self)
        broker.transactions.abort_owner(self)
        if self.listener.forwarding is not None:
            self.listener.forwarding.session_lost(self)

    def awaits_more(self, held: bytearray) -> bool:
        try:
            _, _, length = flymq.read_header(held)
        except BraidError:
            # A wrong header is for `take` to refuse, at once.
            return False
        return len(held) < flymq.HEADER_BYTES + length

    def remember_membership(self, topic_id: int, group: str) -> None:
        self._memberships.add((topic_id, group))

    def first_commit(self, group: str) -> bool:
        if group in self._commits:
            return False
        if len(self._commits) >= limits.SESSION_COMMITS_NOTED_MAX:
            self._commits.clear()
        self._commits.add(group)
        return True

    def logged_in(self, principal: Principal) -> None:
        super().logged_in(principal)
        # What another did says nothing about this one.
        self._commits.clear()

    def error_bytes(self, error: BraidError) -> bytes:
        return flymq.encode_error(error, self.dialect)

    # --- frames

    def take(self, data: memoryview, position: int, stop: int) -> int:
        commit = self.broker.commit
        out = self.out
        if out is None:
            out = self.out = hot.ByteBuffer()
        spent = requests = 0
        while position < stop:
            start = position
            position, count, status = hot.parse_produce(
                data, start, stop, self.routes(), commit.now_ms(), commit.dirty, out
            )
            if count:
                self.last_frame_at = self.listener.now
                spent += position - start
                requests += count
            if status == hot.NEED_MORE:
                break
            if status == hot.FULL:
                self.send_run()
                commit.flush()
                continue
            following = self._run_frame(data, position, stop)
            if following <= position:
                break
            if self.metered:
                self.charge(following - position, 1)
            position = following
            if self.blocked:
                break
        self.send_run()
        if self.metered and requests:
            self.charge(spent, requests)
        return position

    def _run_frame(self, data: memoryview, position: int, stop: int) -> int:
        """Run the one frame at `position`; returns where the next begins, or `position` when it cannot run yet."""
        if stop - position < flymq.HEADER_BYTES:
            return position
        try:
            op, flags, length = flymq.read_header(data, position)
        except BraidError as error:
            # The peer speaks something else: the documents say to close without a reply. What it asked before gets its own.
            logger.info("%s: %s", self.address, error)
            self.send_run()
            self.close_when_idle()
            return position
        end = position + flymq.HEADER_BYTES + length
        if end > stop:
            return position
        self.send_run()
        payload = data[position + flymq.HEADER_BYTES : end]
        light = op == Op.PRODUCE and length <= limits.SCHEMA_LIGHT_BYTES_MAX and not flags & _COMPRESSED
        if (light or op == Op.PRODUCE_BATCH) and self._stage(op, flags, bytes(payload) if light else payload):
            return end
        if self.must_wait():
            return position
        self.last_frame_at = self.listener.now
        self._execute(op, flags, bytes(payload))
        return end

    def _stage(self, op: int, flags: int, payload: bytes | memoryview) -> bool:
        """Take a batch, or a record that its topic checks, into this turn's commit, as a run of PRODUCE is.

        False when it has to go the general way.
        """
        try:
            if flags & _COMPRESSED:
                refuse_stranger(self, op)
            request, _ = flymq.decode_request(op, flymq.unpack_payload(flags, payload), self.dialect)
            if self.listener.forwarding is not None and self.listener.forwarding.concerns(request):
                return False
            authorize(self, request)
            if isinstance(request, flymq.ProduceBatch):
                outcome = stage_batch(self, request)
            else:
                assert isinstance(request, flymq.Produce)
                outcome = stage_checked(self, request)
        except Exception as fault:
            self.answer(self.error(fault))
            return True
        if outcome is None:
            return False
        self.last_frame_at = self.listener.now
        staged, answer = outcome
        due = self.due(b"".join(answer))
        clock = self.broker.clock
        began_s = clock.monotonic()
        batch = request.batch if isinstance(request, flymq.ProduceBatch) else None
        traced = None if self.broker.commit.tracing is None else self.traced_produce(batch)

        def durable(error: BraidError | None) -> None:
            if traced is not None:
                traced.end("" if error is None else error.code, records=staged.records)
            self.listener.produced_s.observe(clock.monotonic() - began_s)
            if error is not None:
                due.answers = self.error(error)
            self.settle(due)

        staged.when_durable(durable)
        return True

    def failed_run(self, answers: bytes, failures: Mapping[PartitionLog, BraidError]) -> bytes:
        failed = {(log.topic, log.partition): error for log, error in failures.items()}
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
        clock = self.broker.clock
        began_s = clock.monotonic()
        traced = self.traced_produce() if op in _PRODUCING and self.broker.commit.tracing is not None else None

        def done() -> None:
            self.listener.latency(op).observe(clock.monotonic() - began_s)
            if traced is not None:
                traced.end()

        try:
            if self.listener.detects_dialect and flymq.only_v126(op):
                self.dialect = Dialect.V126
            if flags & _COMPRESSED:
                refuse_stranger(self, op)
            request, spoken = flymq.decode_request(op, flymq.unpack_payload(flags, payload), self.dialect)
            if self.listener.detects_dialect:
                self.dialect = spoken
            forwarding = self.listener.forwarding
            if forwarding is not None and forwarding.concerns(request):
                # The node that runs it decides whether it may.
                self.run(forwarding.forward(self, op, flags, payload), done=done)
                return
            authorize(self, request)
            if isinstance(request, flymq.Produce):
                self.remember_route(self.broker.topics.get(request.topic))
            outcome = OPERATIONS[request.op](self, request)
            if isinstance(outcome, list):
                self.write(outcome)
                done()
                return
        except Exception as fault:
            self.write([self.error(fault)])
            done()
            return
        self.run(self._authorized(request, outcome) if isinstance(request, flymq.FetchBatches) else outcome, done=done)

    async def _authorized(self, request: flymq.FetchBatches, outcome: Awaitable[Answer]) -> Answer:
        """The answer to what waited for something to read, if it may still be had: rights that were taken away meanwhile count."""
        authorizer = self.broker.security.authorizer
        version = authorizer.version
        answer = await outcome
        if authorizer.version != version:
            authorize(self, request)
        return answer
