"""The fq client against a scripted server on real sockets: what it sends, what it makes of the answers, and what it survives."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator

import pytest
from fq_scripted import HOST, OWN, FqPeer

from braidmq.client import fq
from braidmq.client.fq import BraidError, Message
from braidmq.client.fq_buffers import Incoming, Outgoing
from braidmq.client.fq_settings import fq_settings
from braidmq.wire.fq.auth import Auth
from braidmq.wire.fq.commands import Bind, ErrorReply, Heartbeat, HeartbeatRequest, StatusRequest, Unbind, encode_reply
from braidmq.wire.fq.messages import encode_message


@pytest.fixture
def peer() -> Iterator[FqPeer]:
    with FqPeer() as peer:
        yield peer


# --- what it says, and what it gets


def test_a_conversation(peer: FqPeer) -> None:
    async def scenario() -> None:
        async with fq.connect(f"fq://{peer.address}", user="alice", password="secret", queue="mine", heartbeat_s=7) as client:
            assert client.queue == b"mine"
            binding = await client.bind("ex", 'prefix:"a."', fq.FLAG_TRANSIENT)
            assert binding.route_id == 1
            await client.publish("ex", "a.b", b"hello", message_id=bytes(range(16)))
            await client.publish("ex", "z", b"not for us")
            await client.publish("ex", b"a.\xff", b"", None)
            first = await anext(aiter(client))
            assert first == Message(b"ex", b"a.b", bytes(range(16)), b"hello", b"alice", (OWN, HOST))
            (second,) = await client.poll(timeout_s=10)
            assert (second.route, second.payload, second.sender) == (b"a.\xff", b"", b"alice")
            await client.flush(confirm=True)
            assert (await client.status())["msgs_in"] == 3
            assert await client.unbind(binding)
            assert not await client.unbind(binding)
            assert client.bindings == ()
        with pytest.raises(BraidError, match="CLIENT_CLOSED"):
            await client.publish("ex", "a", b"")

    asyncio.run(scenario())
    commands = [command for command in peer.commands if not isinstance(command, Heartbeat | StatusRequest)]
    assert commands == [
        Auth(b"alice", b"mine\0mem:public,drop", b"secret"),
        HeartbeatRequest(7000),
        Bind(0x100, b"ex", b'prefix:"a."'),
        Unbind(1, b"ex"),
        Unbind(1, b"ex"),
    ]
    ids = [message.message_id for message in peer.received[1:]]
    assert len(set(ids)) == 2 and all(len(identity) == 16 for identity in ids)
    assert peer.data_ends == 1, "it said good-bye on the data connection and waited for the answer"


def test_the_blocking_twin(peer: FqPeer) -> None:
    with fq.sync.connect(peer.address, queue="q") as client:
        client.bind("ex")
        for number in range(2000):
            client.publish("ex", f"r{number}", b"%d" % number)
        client.flush(confirm=True)
        assert len(peer.received) == 2000
        found = [int(message.payload) for message in itertools.islice(client, 1500)]
        while len(found) < 2000:
            found += [int(message.payload) for message in client.poll(max_messages=7, timeout_s=10)]
        assert found == list(range(2000))
        assert client.poll(timeout_s=0) == []
    assert list(client) == []
    assert peer.data_ends == 1


def test_a_queue_without_a_name_gets_one() -> None:
    settings = fq_settings("localhost", "", "", "", "disk:private", {})
    assert settings.queue.startswith(b"q-") and len(settings.queue) == 38
    assert settings.auth.queue == settings.queue + b"\0disk:private"
    assert [str(server) for server in fq_settings("a:1, fqs://b", "", "", "q", "", {}).servers] == ["a:1", "b:8765"]


@pytest.mark.parametrize(
    ("address", "queue_type", "arguments", "code"),
    [
        ("flymq://x", "", {}, "CONFIG_INVALID_VALUE"),
        ("", "", {}, "CONFIG_INVALID_VALUE"),
        ("x:y", "", {}, "CONFIG_INVALID_VALUE"),
        ("x", "tape", {}, "INVALID_QUEUE_TYPE"),
        ("x", "mem:loud", {}, "INVALID_QUEUE_PARAM"),
        ("x", "", {"heartbeat_s": 66}, "CONFIG_INVALID_VALUE"),
        ("x", "", {"timeout_s": 0}, "CONFIG_INVALID_VALUE"),
        ("x", "", {"buffer_bytes": 1}, "CONFIG_INVALID_VALUE"),
    ],
)
def test_settings_that_are_refused(address: str, queue_type: str, arguments: fq.sync.FqArguments, code: str) -> None:
    with pytest.raises(BraidError) as caught:
        fq_settings(address, "", "", "q", queue_type, arguments)
    assert caught.value.code == code


# --- refusals


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"requested queue is private and in use\n", "QUEUE_IN_USE"),
        (b"requested type disk, queue is mem", "QUEUE_TYPE_DIFFERS"),
        (b"request block, queue is drop", "QUEUE_POLICY_DIFFERS"),
        (b"invalid username or password", "INVALID_CREDENTIALS"),
        (b"something else", "SERVER_ERROR"),
    ],
)
def test_a_server_that_says_no(peer: FqPeer, text: bytes, code: str) -> None:
    peer.refusal = text
    with pytest.raises(BraidError) as caught, fq.sync.connect(peer.address):
        raise AssertionError("it was let in")
    assert (caught.value.code, caught.value.text) == (code, text.decode().strip())


def test_nobody_there() -> None:
    with FqPeer() as gone:
        address = gone.address
    begun = time.monotonic()
    with pytest.raises(BraidError, match="UNREACHABLE"), fq.sync.connect(address, timeout_s=0.2):
        raise AssertionError("it connected to nobody")
    assert time.monotonic() - begun < 5


def test_the_next_server_is_tried(peer: FqPeer) -> None:
    with FqPeer() as gone:
        address = gone.address
    with fq.sync.connect(f"{address},{peer.address}") as client:
        assert client.status()["msgs_in"] == 0


def test_a_program_that_makes_no_sense_is_explained(peer: FqPeer) -> None:
    with fq.sync.connect(peer.address) as client:
        with pytest.raises(BraidError, match=r"INVALID_PROGRAM: .*unknown function `nosuch` at byte 8"):
            client.bind("ex", "prefix: nosuch()")
        assert client.bindings == ()


def test_a_refusal_that_nobody_can_explain_names_what_was_refused(peer: FqPeer) -> None:
    """A server refuses a good program when the user may not read the exchange."""
    peer.closed_exchanges = {b"ex"}
    with fq.sync.connect(peer.address) as client:
        with pytest.raises(BraidError, match="BIND_REFUSED: the server refused to bind ex with prefix:a"):
            client.bind("ex", "prefix:a")
        assert client.bind("other").route_id == 1


def test_a_client_has_to_be_opened() -> None:
    with pytest.raises(BraidError, match="not open"):
        fq.sync.connect("127.0.0.1:1").publish("ex", "r", b"")


def test_names_that_are_too_long_are_refused_before_they_are_sent(peer: FqPeer) -> None:
    with fq.sync.connect(peer.address) as client:
        for exchange, route, identity in (("e" * 128, "r", None), ("e", "r" * 128, None), ("e", "r", b"short")):
            with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
                client.publish(exchange, route, b"", identity)
        client.flush()
    assert peer.received == []


# --- life and death


def test_heartbeats_are_asked_for_and_answered(peer: FqPeer) -> None:
    with fq.sync.connect(peer.address, heartbeat_s=5):
        peer.wait_for(lambda peer: peer.counted(Heartbeat) >= 2)
        peer.tell(encode_reply(Heartbeat()))
        peer.wait_for(lambda peer: peer.counted(Heartbeat) >= 3)
    assert HeartbeatRequest(5000) in peer.commands


def test_without_heartbeats_it_stays_silent(peer: FqPeer) -> None:
    with fq.sync.connect(peer.address, heartbeat_s=0) as client:
        client.status()
    assert [type(command) for command in peer.commands] == [Auth, StatusRequest]


def test_a_silent_server_is_left(peer: FqPeer) -> None:
    with fq.sync.connect(peer.address, heartbeat_s=0.1) as client:
        # The peer never sends a heartbeat by itself, so the client finds it dead again and again.
        peer.wait_for(lambda peer: peer.counted(Auth) >= 2)
        assert client.status()["msgs_in"] == 0
        assert client.reconnects >= 1


def test_bindings_are_made_again(peer: FqPeer) -> None:
    async def scenario() -> None:
        async with fq.connect(peer.address, queue="q") as client:
            one = await client.bind("one", "prefix:a")
            two = await client.bind("two", 'exact:"x"', fq.FLAGS_PERMANENT)
            assert await client.bind("one", "prefix:a") is one
            await client.unbind(await client.bind("three"))
            for turn in range(3):
                peer.forget_ids()
                peer.cut()
                await asyncio.to_thread(peer.wait_for, lambda peer, turn=turn: peer.counted(Auth) == turn + 2)
                await client.publish("one", f"a{turn}", b"one")
                await client.publish("two", "x", b"two")
                found = [await anext(aiter(client)) for _ in range(2)]
                assert [message.payload for message in found] == [b"one", b"two"]
            assert client.reconnects == 3
            assert one.route_id > 300 and two.route_id > 300
            assert await client.unbind(one)
            assert [binding.exchange for binding in client.bindings] == [b"two"]

    asyncio.run(scenario())
    assert peer.commands[-1] == Unbind(peer.commands[-1].route_id, b"one")  # type: ignore[union-attr]
    assert {command.queue for command in peer.commands if isinstance(command, Auth)} == {b"q\0mem:public,drop"}
    assert sum(command == Bind(0x110, b"two", b'exact:"x"') for command in peer.commands) == 4


def test_what_was_published_while_the_server_was_away_is_sent_later(peer: FqPeer) -> None:
    with fq.sync.connect(peer.address, backoff_most_s=0.05) as client:
        peer.refusal = b"requested queue is private and in use\n"
        peer.cut()
        while client._link is not None and client._link.fault is None:
            time.sleep(0.001)
        for number in range(100):
            client.publish("ex", "r", b"%d" % number)
        with pytest.raises(BraidError, match="TIMED_OUT"):
            client.flush(timeout_s=0.05)
        peer.refusal = None
        client.flush(confirm=True, timeout_s=10)
        assert [int(message.payload) for message in peer.received] == list(range(100))


def test_messages_that_may_be_lost_are_told_of_once(peer: FqPeer) -> None:
    with fq.sync.connect(peer.address) as client:
        client.publish("ex", "r", b"1")
        client.flush()
        peer.wait_for(lambda peer: len(peer.received) == 1)
        peer.cut()
        peer.wait_for(lambda peer: peer.counted(Auth) == 2)
        client.publish("ex", "r", b"2")
        with pytest.raises(BraidError, match="CONNECTION_LOST"):
            client.flush(confirm=True)
        client.flush(confirm=True)
        client.publish("ex", "r", b"3")
        client.flush(confirm=True)
        peer.cut()
        peer.wait_for(lambda peer: peer.counted(Auth) == 3)
        client.flush(confirm=True)


def test_an_error_that_stays_ends_the_client(peer: FqPeer) -> None:
    async def scenario() -> None:
        client = fq.connect(peer.address)
        await client.open()
        await client.bind("ex")
        await client.publish("ex", "r", b"last")
        await client.flush(confirm=True)
        peer.refusal = b"invalid username or password"
        peer.cut()
        seen: list[bytes] = []
        with pytest.raises(BraidError, match="INVALID_CREDENTIALS"):
            async for message in client:
                seen.append(message.payload)
        assert seen in ([b"last"], [])
        for attempt in (client.publish("ex", "r", b""), client.status(), client.flush()):
            with pytest.raises(BraidError, match="INVALID_CREDENTIALS"):
                await attempt
        await client.close()

    asyncio.run(scenario())


def test_a_server_that_breaks_off_with_a_word(peer: FqPeer) -> None:
    with fq.sync.connect(peer.address) as client:
        peer.tell(encode_reply(ErrorReply(b"client heartbeat failed")))
        peer.wait_for(lambda peer: peer.counted(Auth) == 2)
        assert client.status()["msgs_in"] == 0


NONSENSE = [("tell", b"\xde\xad"), ("tell", b"\xbe\xa7\xde\xad"), ("tell", b"\xb1\x71\0\0\0\1"), ("deliver", b"\xff")]


@pytest.mark.parametrize(("where", "raw"), NONSENSE)
def test_a_server_that_talks_nonsense_is_left(peer: FqPeer, where: str, raw: bytes) -> None:
    with fq.sync.connect(peer.address) as client:
        client.publish("ex", "r", b"x")
        client.flush(confirm=True)
        getattr(peer, where)(raw)
        peer.wait_for(lambda peer: peer.counted(Auth) == 2)
        assert client.status()["msgs_in"] == 0


def test_an_answer_that_does_not_come(peer: FqPeer) -> None:
    with fq.sync.connect(peer.address, timeout_s=0.2, heartbeat_s=0) as client:
        peer.answering.clear()
        with pytest.raises(BraidError, match="TIMED_OUT"):
            client.status()
        peer.answering.set()
        # The connection whose line was broken is not used again.
        peer.wait_for(lambda peer: peer.counted(Auth) == 2)


# --- pressure


def test_publishing_waits_when_the_server_does_not_read(peer: FqPeer) -> None:
    async def scenario() -> None:
        async with fq.connect(peer.address, buffer_bytes=64 * 1024) as client:
            peer.reading.clear()
            sent = 0

            async def publish() -> None:
                nonlocal sent
                while True:
                    await client.publish("ex", "r", b"p" * 10_000)
                    sent += 1

            publishing = asyncio.create_task(publish())
            # It comes to rest, whatever the sockets hold.
            before = -1
            while before != sent:
                before = sent
                await asyncio.sleep(0.3)
            assert not publishing.done()
            assert len(client._outgoing) * 10_000 <= 64 * 1024 + 2 * 256 * 1024 + 20_000
            publishing.cancel()
            peer.reading.set()
            await client.flush(confirm=True)
            assert len(peer.received) == sent

    asyncio.run(scenario())


def test_a_waiting_publisher_hears_of_the_end(peer: FqPeer) -> None:
    failed: list[str] = []
    client = fq.sync.connect(peer.address, buffer_bytes=4096, close_timeout_s=0.3)
    client.open()
    peer.reading.clear()

    def publish() -> None:
        try:
            while True:
                client.publish("ex", "r", b"p" * 100_000)
        except BraidError as fault:
            failed.append(fault.code)

    publishers = [threading.Thread(target=publish) for _ in range(3)]
    for publisher in publishers:
        publisher.start()
    # Full for good, not only until the sockets have taken more.
    sent = -1
    while not client._outgoing.full or client._link is None or sent != client._link.sent:
        sent = client._link.sent if client._link is not None else -1
        time.sleep(0.2)
    with pytest.raises(BraidError, match=r"TIMED_OUT: sending the last \d+ messages"):
        client.close()
    for publisher in publishers:
        publisher.join(10)
    assert failed == ["CLIENT_CLOSED"] * 3


def test_reading_stops_when_nobody_takes(peer: FqPeer) -> None:
    with fq.sync.connect(peer.address, prefetch_bytes=64 * 1024) as client:
        messages = (Message(b"ex", b"r", bytes(16), b"%05d" % number * 2000, b"s", (OWN,)) for number in range(3000))
        client.publish("ex", "r", b"so that the data connection is known")
        client.flush(confirm=True)
        delivering = threading.Thread(target=peer.deliver, args=(b"".join(encode_message(message, True) for message in messages),))
        delivering.start()
        while not client._incoming.full:
            time.sleep(0.001)
        assert client._incoming._size < 64 * 1024 + 3 * 1024 * 1024
        assert [int(message.payload[:5]) for message in itertools.islice(client, 3000)] == list(range(3000))
        delivering.join(10)


def test_closing_lets_everything_out(peer: FqPeer) -> None:
    """Even with deliveries that nobody read, which would make the system throw away what is unsent."""
    for connect in (fq.connect, fq.sync.connect):

        async def scenario() -> None:
            async with fq.connect(peer.address) as client:
                await client.bind("ex")
                for number in range(5000):
                    await client.publish("ex", "r", b"%d" % number)

        before = len(peer.received)
        if connect is fq.connect:
            asyncio.run(scenario())
        else:
            with fq.sync.connect(peer.address) as client:
                client.bind("ex")
                for number in range(5000):
                    client.publish("ex", "r", b"%d" % number)
        assert [int(message.payload) for message in peer.received[before:]] == list(range(5000))


def test_many_threads_share_one_client(peer: FqPeer) -> None:
    with fq.sync.connect(peer.address, buffer_bytes=8192) as client:

        def work(number: int) -> None:
            for turn in range(300):
                client.publish("ex", f"{number}", b"%d" % turn)
                if turn % 100 == 0:
                    client.flush()
                    assert client.bind(f"e{number}").route_id > 0

        workers = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(30)
            assert not worker.is_alive()
        client.flush(confirm=True)
    for number in range(6):
        mine = [int(message.payload) for message in peer.received if message.route == b"%d" % number]
        assert mine == list(range(300))


# --- buffers


def test_buffers_count_what_they_hold() -> None:
    outgoing = Outgoing(100)
    for size in (40, 40, 40):
        outgoing.add(b"x" * size)
    assert outgoing.full and len(outgoing) == 3
    taken = outgoing.take(50)
    assert len(taken) == 2 and len(outgoing) == 3 and not outgoing.full
    outgoing.done(2)
    assert len(outgoing) == 1 and outgoing.take(1) == [b"x" * 40] and outgoing.take(1) == []
    incoming = Incoming(100)
    incoming.add([Message(b"", b"", bytes(16), b"x" * 40)])
    assert incoming.full
    incoming.fault = BraidError("CLIENT_CLOSED", what="x")
    assert len(incoming.take(5)) == 1 and not incoming.full
    with pytest.raises(BraidError, match="CLIENT_CLOSED"):
        incoming.take(1)
