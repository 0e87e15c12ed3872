"""What one connection may cost the broker, and the others: memory, time, places."""

from __future__ import annotations

import contextlib
import resource
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded_broker import EmbeddedBroker
from flymq_peer import DOCUMENTED, Peer, batch, new_topic, open_sockets, rss_bytes, until
from running_broker import RunningBroker, StartBroker

from braidmq.base import limits
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.wire import flymq
from braidmq.wire.flymq import Commit, DeleteTopic, ErrorReply, Fetch, FetchBatches, Metadata, Ok, Op, Produce, ProduceBatch

MIB = 1 << 20
LONG_MS = 20_000


def _send_until_blocked(peer: Peer, data: bytes, most_bytes: int, quiet_s: float = 0.5) -> int:
    """Send `data` over and over until the broker takes no more for a while; how many bytes went."""
    peer.socket.setblocking(False)
    sent = 0
    view = memoryview(data)
    while sent < most_bytes:
        _, writable, _ = select.select([], [peer.socket], [], quiet_s)
        if not writable:
            break
        sent += peer.socket.send(view[sent % len(data) :])
    peer.socket.settimeout(20)
    return sent


# --- memory


def test_an_announced_length_costs_nothing(start_broker: StartBroker) -> None:
    broker = start_broker("--durability", "os")
    header = b"\xaf\x01\x01\x01" + limits.FRAME_PAYLOAD_BYTES_MAX.to_bytes(4, "big")
    with contextlib.ExitStack() as open_peers, Peer(broker.address) as other:
        other.create("other")
        other.produce("other", b"warm")
        before = rss_bytes(broker.pid)
        peers = [open_peers.enter_context(Peer(broker.address)) for _ in range(200)]
        for number, peer in enumerate(peers):
            peer.send(header + bytes(1000 if number % 2 else 100_000))
        assert other.produce("other", b"served")[0].offset == 1
        # What really arrived is 10 MB; what was announced is 6.7 GB.
        assert rss_bytes(broker.pid) - before < 60 * MIB


def test_noise_behind_a_long_poll_is_not_collected(start_broker: StartBroker) -> None:
    """Bytes that arrive while a request runs are looked at when it ends; a header that announces 4 GiB ends it there."""
    broker = start_broker("--durability", "os")
    with Peer(broker.address) as peer:
        topic = peer.create(new_topic())
        poll = peer.encode(FetchBatches(topic, 0, 0, 100, 1, 300))
        peer.send(poll + b"\xff" * 200_000)
        assert peer.receive_frame()[2] == Op.FETCH_BATCHES
        assert peer.rest() == b""


def _large_topic(address: str, mebibytes: int) -> str:
    with Peer(address) as peer:
        topic = peer.create(new_topic("large"))
        for number in range(mebibytes):
            peer.produce(topic, bytes([number % 256]) * (MIB - 16))
    return topic


@pytest.mark.parametrize("what", ["fetch", "batches", "produce"])
def test_a_client_that_never_reads_costs_little_and_only_itself(start_broker: StartBroker, what: str) -> None:
    broker = start_broker("--durability", "os")
    topic = _large_topic(broker.address, 16)
    request: flymq.Request = {
        "fetch": Fetch(topic, 0, 0, 1000),
        "batches": FetchBatches(topic, 0, 0, 8 * MIB, 1, 0),
        "produce": Produce(topic, b"", b"x", 0),
    }[what]
    frame = flymq.encode_request(request, DOCUMENTED)
    with Peer(broker.address, receive_buffer=4096) as mute, Peer(broker.address) as other:
        other.produce(other.create("other"), b"warm")
        before = rss_bytes(broker.pid)
        sent = _send_until_blocked(mute, frame, 200 * MIB)
        assert sent < 100 * MIB, "its requests never had to wait"
        assert rss_bytes(broker.pid) - before < 64 * MIB
        began = time.monotonic()
        assert other.produce("other", b"served")[0].offset == 1
        assert other.ask(Fetch("other", 0, 0, 1)).items[0].value == b"warm"
        assert time.monotonic() - began < 10
        # It thinks better of it: its first answers are there, whole and in order.
        for _ in range(3):
            reply = mute.decode(request.op, mute.receive_frame())
            if what == "fetch":
                assert [item.value[:1] for item in reply.items] == [bytes([n]) for n in range(len(reply.items))] and reply.items
            assert not isinstance(reply, ErrorReply)


def test_a_slow_reader_of_a_large_answer_gets_all_of_it(start_broker: StartBroker) -> None:
    broker = start_broker("--durability", "os")
    topic = _large_topic(broker.address, 8)
    with Peer(broker.address, receive_buffer=4096) as slow, Peer(broker.address) as other:
        other.create("other")
        slow.send(slow.encode(Fetch(topic, 0, 0, 1000)) + slow.encode(Metadata("missing")))
        received = b""
        for number in range(60):
            received += slow.socket.recv(20_000)
            assert other.produce("other", b"%d" % number)[0].offset == number
        # New records and the end of the topic do not touch what is on its way.
        assert other.ask(DeleteTopic(topic)) == Ok()
        slow._received += received
        reply = slow.decode(Op.FETCH, slow.receive_frame())
        assert [item.value for item in reply.items] == [bytes([n]) * (MIB - 16) for n in range(len(reply.items))]
        assert len(reply.items) >= 7
        assert slow.decode(Op.METADATA, slow.receive_frame()) == ErrorReply("TOPIC_NOT_FOUND: topic not found: missing")


class _HeldSyncs:
    """A disk whose syncs wait until they are let go."""

    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self._free = threading.Event()
        self._free.set()
        self.waiting = threading.Event()
        self.disk.on_operation = self._operation

    def _operation(self, operation: str, path: str) -> None:
        if operation == "sync" and not self._free.is_set():
            self.waiting.set()
            assert self._free.wait(60)

    def hold(self) -> None:
        self._free.clear()
        self.waiting.clear()

    def release(self) -> None:
        self._free.set()


@pytest.fixture
def held_syncs() -> Iterator[_HeldSyncs]:
    syncs = _HeldSyncs()
    yield syncs
    syncs.release()


@pytest.mark.parametrize("stalled", [False, True], ids=["produce-only", "behind-a-fetch"])
def test_a_slow_disk_slows_its_clients_and_fills_no_memory(held_syncs: _HeldSyncs, stalled: bool) -> None:
    """While a sync takes its time, a connection may send on only as long as what it left unanswered is bounded."""
    with EmbeddedBroker(held_syncs.disk) as broker, Peer(broker.address) as peer, Peer(broker.address) as other:
        peer.create("t")
        peer.create("bulk")
        peer.produce("t", b"first")
        held_syncs.hold()
        first = peer.encode(Produce("t", b"", b"second", 0)) + (peer.encode(Fetch("t", 0, 0, 10)) if stalled else b"")
        peer.send(first)
        assert held_syncs.waiting.wait(20)
        flood = peer.encode(Produce("t", b"", b"v" * 20, 0)) * 1000
        sent = _send_until_blocked(peer, flood, 128 * MIB, quiet_s=1.0)
        assert sent < 100 * MIB, "the broker takes in whatever comes"
        # Reading goes on, for others and of what was durable before.
        assert [item.value for item in other.ask(Fetch("t", 0, 0, 10)).items] == [b"first"]
        held_syncs.release()
        assert peer.decode(Op.PRODUCE, peer.receive_frame()).offset == 1
        if stalled:
            assert [item.value for item in peer.decode(Op.FETCH, peer.receive_frame()).items] == [b"first", b"second"]
        for number in range(1000):
            assert peer.decode(Op.PRODUCE, peer.receive_frame()).offset == number + 2
        peer.reset()


# --- time


def test_silent_connections_are_closed_and_waiting_ones_are_not(start_broker: StartBroker) -> None:
    broker = start_broker("--durability", "os", "--idle-timeout", "0.4s")
    with contextlib.ExitStack() as open_peers:
        silent, polling, stuck, busy = (open_peers.enter_context(Peer(broker.address)) for _ in range(4))
        topic = busy.create(new_topic())
        polling.send(polling.encode(FetchBatches(topic, 0, 0, 100, 1, 1200)))
        stuck.send(polling.encode(Produce(topic, b"", b"never sent whole", 0))[:-3])
        silent_closed = stuck_closed = False
        polling.socket.setblocking(False)
        began = time.monotonic()
        while not (silent_closed and stuck_closed):
            assert time.monotonic() - began < 10
            assert isinstance(busy.ask(Metadata(topic)), flymq.TopicMetadata)
            readable, _, _ = select.select([silent.socket, stuck.socket], [], [], 0.05)
            silent_closed = silent_closed or (silent.socket in readable and silent.socket.recv(1) == b"")
            stuck_closed = stuck_closed or (stuck.socket in readable and stuck.socket.recv(1) == b"")
        assert time.monotonic() - began > 0.3
        polling.socket.settimeout(10)
        assert polling.decode(Op.FETCH_BATCHES, polling.receive_frame()).batches == b""
        assert time.monotonic() - began > 1.1
        assert isinstance(polling.ask(Metadata(topic)), flymq.TopicMetadata)


def test_a_client_that_takes_nothing_is_let_go_in_the_end(start_broker: StartBroker) -> None:
    broker = start_broker("--durability", "os", "--idle-timeout", "0.5s")
    idle = open_sockets(broker.pid)
    topic = _large_topic(broker.address, 16)
    before = until(lambda: open_sockets(broker.pid) == idle and idle, "earlier connections are gone")
    with Peer(broker.address, receive_buffer=4096) as mute:
        mute.send(mute.encode(Fetch(topic, 0, 0, 1000)) * 20)
        until(lambda: open_sockets(broker.pid) > before, "the connection is there")
        until(lambda: open_sockets(broker.pid) <= before, "the connection is gone, unread answers and all")


# --- places


def test_the_connection_limit(start_broker: StartBroker) -> None:
    broker = start_broker("--durability", "os", "--max-connections", "3")
    peers = [Peer(broker.address) for _ in range(3)]
    topic = peers[0].create(new_topic())
    for _ in range(3):
        with Peer(broker.address) as refused:
            reply = refused.decode(Op.ERROR, refused.receive_frame())
            assert reply == ErrorReply("CONNECTION_LIMIT: the broker already serves 3 connections")
            assert refused.rest() == b""
    for number, peer in enumerate(peers):
        assert peer.produce(topic, b"v")[0].offset == number
    peers.pop().close()

    def served() -> bool:
        with Peer(broker.address) as fourth:
            return isinstance(fourth.ask(Metadata(topic)), flymq.TopicMetadata)

    until(served, "the place that became free is given to another")
    for peer in peers:
        assert isinstance(peer.ask(Metadata(topic)), flymq.TopicMetadata)
        peer.close()


def _many_peers(address: str, count: int) -> list[socket.socket]:
    host, _, port = address.rpartition(":")
    sockets = []
    for _ in range(count):
        made = socket.socket()
        made.settimeout(20)
        made.connect((host, int(port)))
        sockets.append(made)
    return sockets


def test_ten_thousand_idle_connections(start_broker: StartBroker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 11_000:
        pytest.skip(f"the system lets a process open {hard} files, and 10,000 connections need more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sockets: list[socket.socket] = []
    try:
        broker = start_broker("--durability", "os")
        with Peer(broker.address) as peer:
            topic = peer.create(new_topic())
        sockets = _many_peers(broker.address, 10_000)
        frame = flymq.encode_request(Metadata(topic), DOCUMENTED)
        answer = None
        for made in sockets:
            made.sendall(frame)
        for made in sockets:
            received = made.recv(1000)
            assert answer in (None, received)
            answer = received
        status = Path(f"/proc/{broker.pid}/status").read_text()
        resident = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))
        assert resident < 400 * 1000 * 1000
        began = time.monotonic()
        broker.stop()
        assert time.monotonic() - began < 4 * limits.STOP_SECONDS_MAX, "on a machine that does other things as well"
    finally:
        for made in sockets:
            made.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- the end


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_stop_with_a_hundred_clients_of_all_kinds(start_broker: StartBroker, durability: str) -> None:
    broker = start_broker("--durability", durability)
    topic = _large_topic(broker.address, 8)
    with Peer(broker.address) as creator:
        creator.create("empty")
        creator.create("busy")
    with contextlib.ExitStack() as open_peers:
        peers = [open_peers.enter_context(Peer(broker.address, receive_buffer=4096)) for _ in range(100)]
        acked = []
        for number, peer in enumerate(peers):
            match number % 5:
                case 0:
                    peer.send(peer.encode(FetchBatches("empty", 0, 0, 100, 1, LONG_MS)))
                case 1:
                    peer.send(peer.encode(Produce("busy", b"", b"half", 0))[:-2])
                case 2:
                    peer.send(peer.encode(Fetch(topic, 0, 0, 1000)) * 3)
                case 3:
                    acked.append((peer, b"%d" % number))
                    peer.send(peer.encode(Produce("busy", b"", b"%d" % number, 0)) + peer.encode(Commit("busy", "g", 0, number)))
        began = time.monotonic()
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
        assert time.monotonic() - began < 4 * limits.STOP_SECONDS_MAX, "on a machine that does other things as well"
        sure = set()
        for peer, value in acked:
            for frame in flymq.FrameReader().receive(peer.rest()):
                if frame.op == Op.PRODUCE:
                    sure.add(value)
        (poll,) = flymq.FrameReader().receive(peers[0].rest())
        assert poll.op == Op.FETCH_BATCHES, "a long poll is answered with what there is"
        for number in (1, 4):
            assert peers[number].rest() == b"", "nobody asked for this"
    assert "Traceback" not in broker.log, broker.log
    broker.restart()
    assert "clean start" in broker.log.rpartition("stopped")[2], broker.log
    with Peer(broker.address) as peer:
        found = [item.value for item in peer.fetch_all("busy")]
        assert sure <= set(found) and len(set(found)) == len(found)


def test_a_stop_while_records_come_in_loses_no_answer_given(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Peer(broker.address) as peer:
        peer.create("t")
        values = [b"%d" % n for n in range(3000)]
        frames = [
            peer.encode(ProduceBatch("t", 0, batch(value)) if n % 3 else Produce("t", b"", value, 0))
            for n, value in enumerate(values)
        ]

        def send() -> None:
            # The broker hangs up in the middle of it, which is the point.
            with contextlib.suppress(OSError):
                for frame in frames:
                    peer.send(frame)

        sender = threading.Thread(target=send)
        sender.start()
        peer.receive_frames(100)
        broker.signal(signal.SIGTERM)
        answers = flymq.FrameReader().receive(peer.rest())
        sender.join()
        assert broker.wait() == 0
        acked = 100 + len(answers)
    broker.restart()
    with Peer(broker.address) as peer:
        found = [item.value for item in peer.fetch_all("t")]
        assert found == values[: len(found)] and len(found) >= acked


def test_a_client_that_is_reset_leaves_nothing_behind(compiled_broker: RunningBroker) -> None:
    before = open_sockets(compiled_broker.pid)
    with Peer(compiled_broker.address) as peer:
        topic = peer.create(new_topic())
    linger = struct.pack("ii", 1, 0)
    for made in _many_peers(compiled_broker.address, 100):
        made.sendall(flymq.encode_request(Produce(topic, b"", b"v" * 1000, 0), DOCUMENTED) * 50)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        made.close()
    until(lambda: open_sockets(compiled_broker.pid) <= before + 2, "the connections are gone")
    with Peer(compiled_broker.address) as peer:
        assert isinstance(peer.ask(Metadata(topic)), flymq.TopicMetadata)
