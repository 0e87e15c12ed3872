"""Clients that are slow, silent or gone, and a broker that stops: who waits, who misses something, who is closed."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable

import pytest
from blipmq_peer import BlipMQBroker, BlipMQPeer, delivered, new_name, payloads
from flymq_peer import rss_bytes, until
from running_broker import StartBroker

from braidmq.base import limits
from braidmq.wire import blipmq
from braidmq.wire.blipmq import Ack, Envelope, ErrorCode, ErrorMessage, Ping, Pong, Publish, Subscribe


def _numbers(numbers: range) -> list[bytes]:
    return [b"%d" % number for number in numbers]


# --- silence


def test_a_silent_client_is_told_and_closed_and_any_frame_is_a_sign_of_life() -> None:
    with BlipMQBroker(blipmq_keepalive_s=0.3) as broker, broker.peer() as silent, broker.peer() as alive, broker.peer() as patient:
        patient.send(Ping(1), 1, keepalive_s="60")
        assert patient.receive().message == Pong(1)
        began = time.monotonic()
        silent.subscribe("t")
        while time.monotonic() - began < 0.5:
            alive.send(Ack("nothing"))
            time.sleep(0.05)
        (last,) = silent.closed()
        assert isinstance(last.message, ErrorMessage) and last.message.error_code == ErrorCode.PROTOCOL_ERROR
        assert "keepalive timeout" in (last.message.details or "")
        assert 0.5 < time.monotonic() - began < 5
        assert alive.ask(Ping(2)).message == Pong(2)
        assert patient.ask(Ping(3)).message == Pong(3)


def test_keepalive_may_be_switched_off() -> None:
    with BlipMQBroker(blipmq_keepalive_s=0) as broker, broker.peer() as silent:
        silent.subscribe("t")
        silent.nothing(0.5)


# --- slow clients at QoS 0


def _stuff(broker: BlipMQBroker, topic: str, count: int, size: int = 4000) -> None:
    """Publish far more than sockets hold."""
    with broker.peer() as publisher:
        publisher.send_bytes(b"".join(blipmq.encode(Envelope(Publish(topic, b"%d " % n + bytes(size)), n)) for n in range(count)))
        assert publisher.ask(Ping(1)).message == Pong(1)


def _read_all(peer: BlipMQPeer) -> list[int]:
    """The numbers of what arrives until nothing more does."""
    found: list[int] = []
    peer.socket.settimeout(0.4)
    try:
        while True:
            found.append(int(delivered(peer.receive()).payload.split()[0]))
    except TimeoutError:
        return found


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_new"])
def test_a_slow_subscriber_misses_messages_and_nobody_else_does(policy: str) -> None:
    with BlipMQBroker(blipmq_overflow=policy, blipmq_subscriber_capacity=100, default_partitions=1) as broker:
        topic, count = new_name(), 3000
        with broker.peer(receive_buffer=4096) as slow, broker.peer() as quick:
            slow.subscribe(topic)
            quick.subscribe(topic)
            received: list[Envelope] = []

            def read() -> None:
                while len(received) < count:
                    received.append(quick.receive())

            reader = threading.Thread(target=read)
            reader.start()
            for at in range(0, count, 50):
                with broker.peer() as publisher:
                    publisher.send_bytes(
                        b"".join(blipmq.encode(Envelope(Publish(topic, b"%d " % n + bytes(4000)), n)) for n in range(at, at + 50))
                    )
                    assert publisher.ask(Ping(1)).message == Pong(1)
                until(lambda at=at: len(received) >= at, "the quick one keeps up")
            reader.join(20)
            assert len(received) == count
            got = _read_all(slow)
            assert got == sorted(set(got)), "in order and once"
            assert 100 <= len(got) < count
            if policy == "drop_oldest":
                assert got[-1] == count - 1 and got[-100:] == list(range(count - 100, count)), "the newest are there"
            else:
                assert got[:100] == list(range(100)) and got[-1] < count - 1


def test_block_makes_publishers_wait_for_room_and_not_for_ever() -> None:
    settings = {"blipmq_overflow": "block", "blipmq_subscriber_capacity": 50, "blipmq_block_timeout_ms": 300}
    with BlipMQBroker(default_partitions=1, **settings) as broker:
        topic, other = new_name(), new_name()
        with broker.peer(receive_buffer=4096) as slow, broker.peer() as publisher, broker.peer() as elsewhere:
            slow.subscribe(topic)
            # Two megabytes fill what sockets and buffers hold, and the rest waits in the queue.
            waited = 0.0
            for number in range(1500):
                began = time.monotonic()
                publisher.send(Publish(topic, b"%d " % number + bytes(4000)))
                if number % 10 == 9:
                    assert publisher.ask(Ping(1)).message == Pong(1)
                    waited = time.monotonic() - began
                    if waited > 0.25:
                        break
            assert waited > 0.25, "it was held up"
            elsewhere.publish(other, b"x", "m")
            # An impatient message would rather not be than be late.
            publisher.send(Publish(topic, b"%d" % 10_000_000, 1, 100, "short"), 77)
            answer = publisher.receive()
            if isinstance(answer.message, ErrorMessage):
                assert answer.message.error_code == ErrorCode.TTL_EXPIRED and answer.meta("message_id") == "short"
            got = _read_all(slow)
            assert got == sorted(set(got)) and len(got) > 50
            # It takes messages again, so it misses nothing again.
            publisher.publish(topic, b"1", "after")
            slow.socket.settimeout(20)
            assert payloads([slow.receive()]) == [b"1"]


# --- clients that take nothing


def test_a_client_that_writes_and_never_reads_is_closed_and_others_are_not_held_up() -> None:
    with BlipMQBroker(blipmq_write_stall_s=0.6, blipmq_drain_timeout_s=0.1) as broker:
        topic = new_name()
        with broker.peer(receive_buffer=4096) as deaf, broker.peer() as fine:
            fine.subscribe(topic)
            stop = threading.Event()

            def write() -> None:
                frame = blipmq.encode(Envelope(Ping(1), 1)) * 1000
                try:
                    while not stop.is_set():
                        deaf.send_bytes(frame)
                except (OSError, TimeoutError):
                    return

            writer = threading.Thread(target=write)
            writer.start()
            began = time.monotonic()
            while broker.run(lambda: _sessions(broker)) > 1:
                fine.publish(topic, b"x")
                assert payloads([fine.receive()]) == [b"x"]
                assert time.monotonic() - began < 15, "the deaf one is closed"
                time.sleep(0.02)
            stop.set()
            writer.join(20)


async def _sessions(broker: BlipMQBroker) -> int:
    return sum(len(listener.sessions) for listener in broker.server.listeners)


def test_replies_that_nobody_reads_stop_the_reading() -> None:
    """Memory is bounded by what may be unsent, however much is asked."""
    with BlipMQBroker(blipmq_write_stall_s=60, blipmq_drain_timeout_s=0.1) as broker, broker.peer(receive_buffer=4096) as deaf:
        deaf.socket.settimeout(0.5)
        sent = 0
        frame = blipmq.encode(Envelope(Ping(1), 1)) * 1000
        with pytest.raises(TimeoutError):
            while sent < 200 * limits.MIB:
                deaf.send_bytes(frame)
                sent += len(frame)
        unsent = broker.run(lambda: _unsent(broker))
        assert unsent < 3 * limits.MIB


async def _unsent(broker: BlipMQBroker) -> int:
    return max(session.unsent for listener in broker.server.listeners for session in listener.sessions)


# --- many clients


def test_thousands_of_subscribers_cost_little_and_one_slow_one_holds_up_nobody(
    start_broker: StartBroker, rounds: Callable[[int, int], int]
) -> None:
    count, messages = rounds(1000, 5000), rounds(200, 40)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count + 1000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 1000), hard))
    broker = start_broker(
        "--listen", "blipmq://127.0.0.1:0", "--durability", "os", "--blipmq-drain-timeout", "0.1s"
    )
    address = broker.addresses["blipmq"]
    before = rss_bytes(broker.pid)
    subscribe = blipmq.encode(Envelope(Subscribe("crowd"), 1))
    peers = [BlipMQPeer(address) for _ in range(count)]
    try:
        for peer in peers:
            peer.send_bytes(subscribe)
        for peer in peers:
            assert peer.receive().message == Ack("crowd")
        slow, *quick = peers
        with BlipMQPeer(address) as publisher:
            publisher.publish("crowd", b"first", "first")
            for peer in quick:
                assert payloads([peer.receive()]) == [b"first"]
            for number in range(messages):
                publisher.publish("crowd", b"%d " % number + bytes(500), f"m{number}")
            for peer in quick[::50]:
                assert [int(each.split()[0]) for each in payloads(peer.receive_many(messages))] == list(range(messages))
            assert publisher.ask(Ping(1)).message == Pong(1)
        grown = rss_bytes(broker.pid) - before
        assert grown < count * 24 * limits.KIB, f"{grown / count:.0f} bytes a subscriber"
        assert slow is peers[0]
    finally:
        for peer in peers:
            peer.close()


# --- the end


def test_a_stop_delivers_what_is_owed_and_waits_for_acks() -> None:
    broker = BlipMQBroker(blipmq_drain_timeout_s=10, blipmq_max_inflight=3)
    topic = new_name()
    with broker:
        peer, publisher = broker.peer(), broker.peer()
        peer.subscribe(topic, 1)
        for number in range(10):
            publisher.publish(topic, b"%d" % number, f"m{number}")
        first = peer.receive_many(3)
        stopping = threading.Thread(target=broker.stop)
        stopping.start()
        # Who has nothing to get is let go at once.
        assert publisher.closed() == []
        assert peer.refused(Publish(topic, b"late", 1, 0, "late")) == ErrorCode.SERVER_ERROR
        assert peer.refused(Subscribe("other")) == ErrorCode.SERVER_ERROR
        got = payloads(first)
        for each in first:
            peer.ack(each)
        while len(got) < 10:
            delivery = peer.receive()
            got += payloads([delivery])
            peer.ack(delivery)
        assert got == _numbers(range(10))
        assert peer.closed() == [], "no goodbye"
        stopping.join(20)
        assert not stopping.is_alive()
        peer.close()
        publisher.close()
        broker.stop = lambda: None  # type: ignore[method-assign]


def test_a_stop_does_not_wait_for_ever() -> None:
    broker = BlipMQBroker(blipmq_drain_timeout_s=0.5)
    with broker:
        peer = broker.peer()
        peer.subscribe("t", 1, "durable")
        with broker.peer() as publisher:
            publisher.publish("t", b"x", "m")
        peer.receive()
        began = time.monotonic()
    assert time.monotonic() - began < 20
    peer.close()
