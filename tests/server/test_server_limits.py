"""Limits of a connection, each exceeded over a real socket."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from embedded_broker import EmbeddedBroker
from flymq_peer import Peer, batch, new_topic, rss_bytes, until
from running_broker import RunningBroker

from braidmq.base import limits
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.wire.flymq import (
    Dialect,
    Fetch,
    FetchBatches,
    Fetched,
    FetchedBatches,
    ListTopics,
    Op,
    Produce,
    ProduceBatch,
    RecordMetadata,
    TopicList,
)


def test_a_fetch_that_names_no_number_gets_the_default(peer: Peer) -> None:
    topic = peer.create(new_topic())
    peer.produce(topic, *(b"%d" % n for n in range(limits.FETCH_RECORDS_DEFAULT + 5)))
    for asked in (0, -1):
        assert len(peer.ask(Fetch(topic, 0, 0, asked)).items) == limits.FETCH_RECORDS_DEFAULT


def test_a_frame_larger_than_the_receive_buffer_arrives_whole(peer: Peer) -> None:
    topic = peer.create(new_topic())
    value = bytes(range(256)) * (limits.RECEIVE_BUFFER_BYTES // 256 + 3)
    small = Produce(topic, b"", b"behind", 0)
    first, second = peer.ask_all(Produce(topic, b"", value, 0), small)
    assert isinstance(first, RecordMetadata) and isinstance(second, RecordMetadata)
    assert [item.value for item in peer.fetch_all(topic)] == [value, b"behind"]


def test_requests_behind_a_long_poll_wait_and_the_socket_is_not_read_past_the_backlog(compiled_broker: RunningBroker) -> None:
    with Peer(compiled_broker.address) as peer, Peer(compiled_broker.address) as other:
        topic = peer.create(new_topic())
        peer.send(peer.encode(FetchBatches(topic, 0, 0, 100, 1, 30_000)))
        before = rss_bytes(compiled_broker.pid)
        frame = peer.encode(Produce(topic, b"", bytes(100_000), 0))
        sent = threading.Thread(target=lambda: [peer.send(frame) for _ in range(300)], daemon=True)
        sent.start()
        sent.join(1.0)
        assert sent.is_alive(), "30 MB were taken in behind a request that waits"
        assert rss_bytes(compiled_broker.pid) - before < 8 * limits.REQUEST_BACKLOG_BYTES_MAX
        other.produce(topic, b"wake up")
        assert isinstance(peer.decode(FetchBatches.op, peer.receive_frame()), FetchedBatches)
        for _ in range(300):
            assert isinstance(peer.decode(Produce.op, peer.receive_frame()), RecordMetadata)
        sent.join()


def test_answers_nobody_reads_stop_the_requests_and_reading_them_starts_these_again(compiled_broker: RunningBroker) -> None:
    assert limits.WRITE_BUFFER_BYTES_LOW < limits.WRITE_BUFFER_BYTES_HIGH
    with Peer(compiled_broker.address, receive_buffer=4096) as peer, Peer(compiled_broker.address) as other:
        topic = other.create(new_topic())
        other.ask_all(*(Produce(topic, b"", bytes(1 << 20), 0) for _ in range(4)))
        asked = 25
        before = rss_bytes(compiled_broker.pid)
        peer.send(peer.encode(Fetch(topic, 0, 0, 4)) * asked)
        assert isinstance(other.ask(ListTopics()), TopicList)
        assert rss_bytes(compiled_broker.pid) - before < 4 * limits.WRITE_BUFFER_BYTES_HIGH, "100 MB of answers wait in memory"
        for _ in range(asked):
            reply = peer.decode(Op.FETCH, peer.receive_frame())
            assert isinstance(reply, Fetched) and len(reply.items) == 4


def test_a_long_poll_never_waits_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.LONG_POLL_SECONDS_MAX == 30.0
    monkeypatch.setattr(limits, "LONG_POLL_SECONDS_MAX", 0.2)
    with EmbeddedBroker(FaultyDisk()) as broker, Peer(broker.address) as peer:
        topic = peer.create(new_topic())
        began = time.monotonic()
        reply = peer.ask(FetchBatches(topic, 0, 0, 100, 1, 3_600_000))
        assert isinstance(reply, FetchedBatches) and reply.batches == b""
        assert time.monotonic() - began < 10


def test_a_filter_that_finds_nothing_answers_in_time_and_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.FILTER_SCAN_SECONDS_MAX == 1.0
    monkeypatch.setattr(limits, "FILTER_SCAN_SECONDS_MAX", 0.0)
    with EmbeddedBroker(FaultyDisk()) as broker, Peer(broker.address) as peer:
        topic = peer.create(new_topic())
        for _ in range(5):
            peer.ask(ProduceBatch(topic, 0, batch(*(b"hay" for _ in range(1000)))))
        with Peer(broker.address, Dialect.V126) as searcher:
            reply = searcher.ask(Fetch(topic, 0, 0, 10, "needle"))
            assert isinstance(reply, Fetched) and reply.items == () and 0 < reply.next_offset < 5000


def test_a_burst_of_connects_is_not_refused(compiled_broker: RunningBroker) -> None:
    assert limits.LISTEN_BACKLOG > 100, "asyncio's own default"
    host, _, port = compiled_broker.address.rpartition(":")
    sockets = [socket.socket() for _ in range(400)]
    try:
        for connecting in sockets:
            connecting.setblocking(False)
            connecting.connect_ex((host, int(port)))
        began = time.monotonic()
        for connecting in sockets:
            until(lambda one=connecting: one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0, "connected")  # type: ignore[misc]
            connecting.settimeout(20)
            connecting.sendall(b"\xaf\x01\x08\x01\x00\x00\x00\x00")
        for connecting in sockets:
            assert connecting.recv(8)[:3] == b"\xaf\x01\x08"
        assert time.monotonic() - began < 20, "a connect that was dropped is tried again after a second, then three, then seven"
    finally:
        for connecting in sockets:
            connecting.close()
