"""A data connection: messages in, messages out.

In data mode messages come in short frames and are parsed in runs, whatever their number. In the peer modes they come in full frames
with sender and hops, one by one; those that were here before are discarded. Deliveries always are full frames, and the same for
everybody.

A queue hands over what the connection can take at the moment and no more: the transport holds one such piece at a time, so little
is lost with a connection that dies. A publisher that a queue asks to wait is not read.
"""

from __future__ import annotations

from collections.abc import Coroutine

from braidmq import hot
from braidmq.base.errors import BraidError
from braidmq.broker.topics import Topic
from braidmq.log.level import Level
from braidmq.security.authorizer import ANONYMOUS
from braidmq.security.roles import Permission
from braidmq.server.fq_client import FqClient
from braidmq.server.fq_intake import Incoming, Intake
from braidmq.server.fq_session import FqSession, Stream, logger
from braidmq.wire.fq.messages import NO_SENDER, encode_tail, measure_message, read_message
from braidmq.wire.fq.modes import Mode, Opening


class DataStream(Stream):
    __slots__ = ("_level", "_may_read", "_queue", "_rights", "_run_bytes", "_skip", "client", "full", "intake", "skip_node", "tail")

    def __init__(self, session: FqSession, client: FqClient, opening: Opening) -> None:
        super().__init__(session)
        self.client = client
        self.full = opening.mode is not Mode.DATA
        self.skip_node = opening.node_id
        """The broker at the other end, if it said which one it is."""
        listener = session.listener
        self.tail = encode_tail(client.sender, (listener.node, session.hop))
        self.intake = Intake(session.broker, client.principal, session.ip, client.lane)
        self._skip = 0
        """Bytes to pass over, of a message that is too large."""
        self._run_bytes = 0
        self._level = Level.NONE
        self._rights = -1
        self._may_read: dict[int, bool] = {}
        # It says as soon as anything stays behind, and the next piece waits until nothing does. A high mark of 0 would have TLS
        # pause on an empty buffer, which nothing resumes.
        session.transport.set_write_buffer_limits(1, 0)
        session.logged_in(client.principal)
        client.data = self
        self._queue = client.queue
        if self._queue is not None:
            self._queue.add_consumer(self)

    @property
    def established(self) -> bool:
        return True

    def lost(self) -> None:
        self.stop_receiving()
        self.client.data = None
        # Only the end of the command connection is a logout.
        self.session.principal = ANONYMOUS

    # --- publishing

    def take(self, data: memoryview, position: int, stop: int) -> int:
        session = self.session
        intake = self.intake
        commit = session.broker.commit
        payload_max = session.listener.config.fq_payload_bytes_max
        out = session.out
        if out is None:
            out = session.out = hot.ByteBuffer()
        while position < stop:
            if self._skip:
                passed = min(self._skip, stop - position)
                self._skip -= passed
                intake.tally.octets_in += passed
                position += passed
                continue
            if not self.full:
                start = position
                position, count, status, route = hot.parse_messages(
                    data, start, stop, intake.routes(), intake.lane, self.tail, payload_max, commit.dirty, out
                )
                if route is not None:
                    intake.taken(route, count, position - start)
                    self._took(position - start, count, Level(route.level))
                if status == hot.NEED_MORE:
                    break
                if status == hot.FULL:
                    self._commit()
                    commit.flush()
                    continue
                if status == hot.SWITCH:
                    continue
            following = self._take_one(data, position, stop, payload_max)
            if following <= position:
                break
            position = following
            if session.blocked:
                break
        self._commit()
        return position

    def _take_one(self, data: memoryview, position: int, stop: int, payload_max: int) -> int:
        """Take the message at `position`; returns where the next begins, or `position` when that has to wait."""
        session = self.session
        try:
            measured = measure_message(data, position, stop, self.full)
        except BraidError as fault:
            logger.info("%s: %s", session.address, fault)
            self._commit()
            session.close_when_idle()
            return position
        if measured is None:
            return position
        size = measured.end - position
        if measured.payload_bytes > payload_max:
            self.intake.too_large()
            passed = min(size, stop - position)
            self._skip = size - passed
            self._charge(passed, 1)
            return position + passed
        if measured.end > stop:
            return position
        message = read_message(data, position, measured, self.full)
        node = session.listener.node
        if self.full and node in message.hops:
            self._charge(size, 1)
            return measured.end
        topic = self.intake.find(message.exchange)
        if isinstance(topic, Coroutine):
            # The message is offered again when the wait is over.
            self._commit()
            session.wait(topic)
            return position
        self._charge(size, 1)
        if topic is None:
            self.intake.refused(message.exchange)
            return measured.end
        tail = self.tail
        if self.full:
            tail = encode_tail(message.sender or NO_SENDER, (node, *message.hops))
        incoming = Incoming(message.exchange, message.route, message.message_id, message.payload, tail)
        checking = self.intake.offer(incoming, topic)
        self._run_bytes += size
        self._level = max(self._level, Level(session.broker.route(topic).level))
        if checking is not None:
            self._commit()
            session.wait(checking)
        return measured.end

    def _took(self, size: int, count: int, level: Level) -> None:
        self._run_bytes += size
        self._level = max(self._level, level)
        if self.session.metered:
            self.session.charge(size, count)

    def _charge(self, size: int, count: int) -> None:
        self.intake.tally.msgs_in += count
        self.intake.tally.octets_in += size
        if self.session.metered:
            self.session.charge(size, count)

    def _commit(self) -> None:
        """Let what was taken become durable."""
        if self._run_bytes:
            size, level = self._run_bytes, self._level
            self._run_bytes, self._level = 0, Level.NONE
            self.session.commit_run(size, level)

    def awaits_more(self, held: bytearray) -> bool:
        if self._skip:
            return False
        try:
            measured = measure_message(held, 0, len(held), self.full)
        except BraidError:
            # For `take` to refuse, at once.
            return False
        too_large = measured is not None and measured.payload_bytes > self.session.listener.config.fq_payload_bytes_max
        return measured is None or (measured.end > len(held) and not too_large)

    # --- receiving

    @property
    def address(self) -> str:
        return self.session.address

    @property
    def writable(self) -> bool:
        return self.session.writable

    @property
    def unsent(self) -> int:
        return self.session.unsent

    def may_read(self, topic: Topic) -> bool:
        authorizer = self.session.broker.security.authorizer
        if not authorizer.enabled:
            return True
        if self._rights != authorizer.version:
            self._rights = authorizer.version
            self._may_read.clear()
        known = self._may_read.get(topic.id)
        if known is None:
            known = authorizer.decide(self.client.principal, Permission.READ, topic.name) is None
            self._may_read[topic.id] = known
        return known

    def deliver(self, frames: bytes, count: int) -> None:
        tally = self.intake.tally
        tally.msgs_out += count
        tally.octets_out += len(frames)
        self.session.push([frames])

    def on_writable(self) -> None:
        if self._queue is not None:
            self._queue.passed_on(self)

    def stop_receiving(self) -> None:
        """It is no consumer of its queue any more."""
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.remove_consumer(self)
