"""What every protocol's connection can rely on, shown by a protocol of lines that is no more than its connection.

Each line is a request. Deliveries, and everything that FlyMQ's own tests cannot show because FlyMQ never speaks unasked, are
driven from the broker's loop.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
from embedded_broker import EmbeddedBroker
from flymq_peer import until

from braidmq import hot
from braidmq.base import limits
from braidmq.base.config import Config, Listen
from braidmq.base.disk import Buffer
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError
from braidmq.log.level import Level
from braidmq.log.partition import PartitionLog
from braidmq.server.listener import ConnectionCount, Listener
from braidmq.server.session import Session

LOG = "/data/topics/1/0/00000000000000000000.log"
PIECE = bytes(16 * limits.KIB)
PATIENCE_S = 60.0


class LineSession(Session):
    __slots__ = ("writable_again",)
    write_high = 64 * limits.KIB
    write_low = 16 * limits.KIB
    answers_past_high = 32 * limits.KIB
    listener: LineListener

    def __init__(self, listener: LineListener) -> None:
        super().__init__(listener)
        self.writable_again = 0

    def take(self, data: memoryview, position: int, stop: int) -> int:
        text = bytes(data[:stop])
        quiet = 0
        while (end := text.find(b"\n", position)) >= 0 and not self.blocked:
            line = text[position:end]
            if line.startswith(b"quiet "):
                quiet += 1
                self._store(line)
            else:
                self.send_run(quiet)
                quiet = 0
                if not self._run_line(line):
                    return position
            self.last_frame_at = self.listener.now
            position = end + 1
        self.send_run(quiet)
        return position

    def _store(self, line: bytes) -> None:
        if self.out is None:
            self.out = hot.ByteBuffer()
        self.out.level = Level.FSYNC
        self.log.accumulator.append(None, line)
        self.broker.commit.touch(self.log)

    @property
    def log(self) -> PartitionLog:
        found = self.broker.store.opened(1, 0)
        assert found is not None
        return found

    def _run_line(self, line: bytes) -> bool:
        word, _, rest = line.partition(b" ")
        if word == b"put":
            self._store(line)
            due = self.due(line + b"\n")
            self.broker.commit.join(Level.FSYNC, lambda cycle: self.settle(due))
        elif word == b"now":
            self.answer(line + b"\n")
        elif word == b"bye":
            self.answer(line + b"\n")
            self.close_when_idle()
        elif self.must_wait():
            return False
        elif word == b"end":
            self.answer(b"end %d\n" % self.log.high_watermark)
        elif word == b"size":
            self.write([bytes(int(rest))])
        elif word == b"wait":
            self.run(self._wait())
        elif word == b"refuse":
            self.run(self._refuse(), lambda fault: b"refused " + self.plain_error(fault).code.encode() + b"\n")
        return True

    async def _wait(self) -> Sequence[Buffer]:
        await self.listener.gate.wait()
        return []

    async def _refuse(self) -> Sequence[Buffer]:
        raise BraidError("INVALID_ARGUMENT", reason="it is a test")

    def error_bytes(self, error: BraidError) -> bytes:
        return f"error {error.code}\n".encode()

    def failed_run(self, answers: bytes, failures: Mapping[PartitionLog, BraidError]) -> bytes:
        return b"failed\n"

    def on_writable(self) -> None:
        self.writable_again += 1


class LineListener(Listener[LineSession]):
    logger = logging.getLogger("braidmq.lines")

    def __init__(self, broker: EmbeddedBroker, config: Config, most: int) -> None:
        super().__init__(broker.server.broker, Listen("flymq", "127.0.0.1", 0), ConnectionCount(most), config, None)
        self.gate = asyncio.Event()
        self.silence_s = 0.0

    def make_session(self) -> LineSession:
        return LineSession(self)

    def sweep(self) -> None:
        if self.silence_s:
            self.close_silent(self.silence_s)


class SyncGate:
    """Holds up the syncs of the one log, so that answers stay due."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.free = threading.Event()
        self.waiting = threading.Event()
        disk.on_operation = self._operation

    def _operation(self, operation: str, path: str) -> None:
        if operation == "sync" and path == LOG:
            self.waiting.set()
            assert self.free.wait(PATIENCE_S)


class Lines:
    """A listener of lines on a broker, and a client of it."""

    def __init__(self, broker: EmbeddedBroker, disk: FaultyDisk, most: int) -> None:
        self.broker = broker
        self.disk = disk
        broker.create("t")

        async def start() -> str:
            # Opens the partition, as a first record does.
            topic = broker.server.broker.topics.get("t")
            assert topic is not None and topic.id == 1
            broker.server.broker.route(topic)
            self.listener = LineListener(broker, Config(), most)
            return await self.listener.start()

        self.address = broker.run(start)
        self.peer = self.connect()
        self.peer.sendall(b"now\n")
        assert self.line() == b"now\n"

    def connect(self) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        return socket.create_connection((host, int(port)), PATIENCE_S)

    def call(self, function: Callable[[LineSession], object]) -> object:
        """Run `function` with the first connection's session, on the broker's loop."""

        async def running() -> object:
            (session,) = self.listener.sessions
            return function(session)

        return self.broker.run(running)

    def until(self, condition: Callable[[LineSession], object], what: str) -> None:
        """Wait until the broker's loop finds `condition` true."""
        until(lambda: self.call(condition), what)

    def line(self) -> bytes:
        """The next line that the peer receives."""
        found = bytearray()
        while not found.endswith(b"\n"):
            piece = self.peer.recv(1)
            if not piece:
                return bytes(found)
            found += piece
        return bytes(found)

    def receive(self, size: int) -> None:
        while size:
            piece = self.peer.recv(min(size, 1 << 20))
            assert piece, f"closed with {size} bytes missing"
            size -= len(piece)


@contextmanager
def serving(most: int = 100, **settings: object) -> Iterator[Lines]:
    disk = FaultyDisk(seed=3)
    with EmbeddedBroker(disk, **settings) as broker:
        lines = Lines(broker, disk, most)
        try:
            yield lines
        finally:
            lines.peer.close()

            async def stop() -> None:
                lines.listener.stop_accepting()
                await lines.listener.stopped(PATIENCE_S)

            broker.run(stop)


# --- deliveries and answers


def test_deliveries_do_not_wait_behind_answers_that_are_due() -> None:
    with serving() as lines:
        gate = SyncGate(lines.disk)
        lines.peer.sendall(b"put 1\nput 2\n")
        assert gate.waiting.wait(PATIENCE_S)
        lines.call(lambda session: session.push([b"delivered ", b"first\n"]))
        assert lines.line() == b"delivered first\n"
        assert not lines.call(lambda session: session.idle)
        gate.free.set()
        assert [lines.line(), lines.line()] == [b"put 1\n", b"put 2\n"]


def test_answers_keep_the_order_of_their_requests_and_later_requests_wait() -> None:
    with serving() as lines:
        gate = SyncGate(lines.disk)
        lines.peer.sendall(b"put 1\nnow 2\nend\nnow 3\n")
        assert gate.waiting.wait(PATIENCE_S)
        lines.until(lambda session: session.blocked, "the next line waits")
        gate.free.set()
        assert [lines.line() for _ in range(4)] == [b"put 1\n", b"now 2\n", b"end 1\n", b"now 3\n"]


def test_records_that_get_no_answer_are_written_and_waited_for() -> None:
    with serving() as lines:
        lines.peer.sendall(b"quiet 1\nquiet 2\nend\n")
        assert lines.line() == b"end 2\n"


def test_records_that_get_no_answer_fail_as_the_protocol_says() -> None:
    with serving() as lines:
        lines.disk.fail("write", path=LOG)
        lines.peer.sendall(b"quiet 1\n")
        assert lines.line() == b"failed\n"


def test_an_operation_without_an_answer_holds_up_the_next_line() -> None:
    with serving() as lines:
        lines.peer.sendall(b"wait\nnow 1\n")
        lines.until(lambda session: session.blocked, "the next line waits")
        lines.call(lambda session: session.push([b"meanwhile\n"]))
        assert lines.line() == b"meanwhile\n"
        lines.call(lambda session: session.listener.gate.set())
        assert lines.line() == b"now 1\n"


def test_a_protocol_says_a_fault_in_its_own_words() -> None:
    with serving() as lines:
        lines.peer.sendall(b"refuse\nnow 1\n")
        assert [lines.line(), lines.line()] == [b"refused INVALID_ARGUMENT\n", b"now 1\n"]


# --- a peer that does not read


def _fill(session: LineSession) -> int:
    """Deliver until the connection takes no more; how many bytes it took."""
    pushed = 0
    while session.writable:
        session.push([PIECE])
        pushed += len(PIECE)
    return pushed


def test_deliveries_stop_at_the_high_mark_and_go_on_when_the_peer_took_them() -> None:
    with serving() as lines:
        pushed = lines.call(_fill)
        assert isinstance(pushed, int)
        unsent = lines.call(lambda session: session.unsent)
        assert isinstance(unsent, int)
        assert LineSession.write_high < unsent <= LineSession.write_high + len(PIECE)
        assert lines.call(lambda session: session.writable_again) == 0
        lines.receive(pushed)
        lines.until(lambda session: session.writable_again, "deliveries go on")
        assert lines.call(lambda session: (session.writable, session.writable_again)) == (True, 1)


def test_requests_go_on_beside_deliveries_that_are_not_taken_until_their_answers_are_too_many() -> None:
    with serving() as lines:
        pushed = lines.call(_fill)
        assert isinstance(pushed, int)
        lines.peer.sendall(b"put 1\n")
        lines.until(lambda session: session.log.high_watermark == 1, "the record is stored")
        assert not lines.call(lambda session: session.blocked), "the peer may still ask"
        lines.peer.sendall(b"size 32768\nput 2\n")
        lines.until(lambda session: session.blocked, "the next line waits")
        assert lines.call(lambda session: session.log.high_watermark) == 1, "the line behind the large answer waits"
        lines.receive(pushed + len(b"put 1\n") + 32768)
        assert lines.line() == b"put 2\n"


def test_a_full_connection_reads_nothing_where_the_protocol_gives_it_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LineSession, "answers_past_high", 0)
    with serving() as lines:
        pushed = lines.call(_fill)
        assert isinstance(pushed, int)
        assert lines.call(lambda session: session.blocked)
        lines.peer.sendall(b"put 1\n")
        lines.receive(pushed)
        assert lines.line() == b"put 1\n"


# --- quotas


def test_deliveries_count_against_the_quota_and_stop_until_it_is_paid() -> None:
    with serving(quota_bytes_per_s=limits.KIB * 64) as lines:
        lines.call(lambda session: session.push([bytes(limits.KIB * 80)]))
        assert lines.call(lambda session: (session.writable, session.slowed)) == (False, True)
        lines.receive(limits.KIB * 80)
        lines.until(lambda session: session.writable_again, "deliveries go on")
        assert lines.call(lambda session: (session.writable, session.slowed)) == (True, False)


# --- closing


def test_what_is_under_way_is_answered_before_a_connection_closes() -> None:
    with serving() as lines:
        gate = SyncGate(lines.disk)
        lines.peer.sendall(b"put 1\nbye\nnow 3\n")
        assert gate.waiting.wait(PATIENCE_S)
        gate.free.set()
        assert [lines.line(), lines.line(), lines.line()] == [b"put 1\n", b"bye\n", b""]


def test_a_connection_too_many_is_told_in_the_words_of_its_protocol() -> None:
    with serving(most=1) as lines, lines.connect() as other:
        assert other.recv(100) == b"error CONNECTION_LIMIT\n"
        assert other.recv(100) == b""


def test_a_sweep_is_as_fine_as_the_shortest_time_out() -> None:
    with serving() as lines:
        listener = lines.listener

        async def shorten() -> None:
            listener.sweep_within(0)
            assert listener.sweep_interval_s == 1
            listener.silence_s = 0.05
            listener.sweep_within(0.05)
            assert listener.sweep_interval_s == pytest.approx(0.005)

        lines.broker.run(shorten)
        assert lines.line() == b"", "a silent connection is closed"


@pytest.mark.parametrize("patient", [True, False])
def test_a_stop_waits_for_what_is_under_way_but_not_for_ever(patient: bool) -> None:
    with serving() as lines:
        lines.peer.sendall(b"wait\n")
        lines.until(lambda session: session.blocked, "the next line waits")

        async def stop() -> None:
            lines.listener.stop_accepting()
            if patient:
                lines.listener.gate.set()
            await lines.listener.stopped(PATIENCE_S if patient else 0.01)

        lines.broker.run(stop)
        try:
            assert lines.line() == b""
        except ConnectionResetError:
            assert not patient
        assert not lines.listener.sessions or not patient
