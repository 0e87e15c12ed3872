"""The BlipMQ client against a small broker that does as it is told: outcomes, lost connections, settling, keeping alive."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Awaitable, Callable

import pytest
from blipmq_scripted import BlipMQPeer

from braidmq.base.errors import ERRORS, BraidError
from braidmq.client import blipmq
from braidmq.client.blipmq import BlipMQClient, ReceivedMessage, connect
from braidmq.client.blipmq_buffers import refusal
from braidmq.wire.blipmq import Ack, Envelope, ErrorCode, ErrorMessage, Ping, Publish, Subscribe, encode, error_message

Scenario = Callable[[BlipMQClient], Awaitable[None]]


def with_client(address: str, scenario: Scenario, **arguments: object) -> None:
    async def run() -> None:
        async with connect(address, **arguments) as client:  # type: ignore[arg-type]
            await asyncio.wait_for(scenario(client), 30)

    asyncio.run(run())


async def beside(peer: BlipMQPeer, holds: Callable[[], bool]) -> None:
    """Wait in another thread until the peer has seen something."""
    await asyncio.to_thread(peer.until, holds)


async def taken(client: BlipMQClient, count: int) -> list[ReceivedMessage]:
    """So many messages, however they come."""
    found: list[ReceivedMessage] = []
    while len(found) < count:
        more = await client.poll(count - len(found), timeout_s=10)
        assert more, f"only {len(found)} of {count} came"
        found += more
    return found


# --- publishing


def test_qos_1_returns_when_the_broker_has_it() -> None:
    async def scenario(client: BlipMQClient) -> None:
        await client.publish("orders/eu", b"one", qos=1, ttl_ms=5000, metadata={"x-site": "oslo", "x-a": ""})
        assert [publish.payload for publish in peer.stored] == [b"one"]
        await client.publish("orders/eu", b"two", qos=1, message_id="mine")
        (first, second) = peer.sent(Publish)
        assert first.user_metadata == (("x-site", "oslo"), ("x-a", ""))
        assert isinstance(first.message, Publish) and first.message.ttl_ms == 5000 and first.message.message_id
        assert isinstance(second.message, Publish) and second.message.message_id == "mine"
        assert second.sequence > first.sequence > 0

    with BlipMQPeer() as peer:
        with_client(peer.address, scenario)


def test_many_publishes_are_under_way_at_a_time_and_keep_their_order() -> None:
    async def scenario(client: BlipMQClient) -> None:
        peer.acknowledging = False
        pending = [await client.send("t", b"%d" % number) for number in range(300)]
        await beside(peer, lambda: len(peer.stored) == 300)
        assert not any(publication.done for publication in pending)
        assert [int(publish.payload) for publish in peer.stored] == list(range(300))
        for envelope in peer.sent(Publish):
            assert isinstance(envelope.message, Publish)
            peer.say(encode(Envelope(Ack(envelope.message.message_id or ""), envelope.sequence)))
        for publication in pending:
            await publication.result(10)
        assert len({publication.message_id for publication in pending}) == 300

    with BlipMQPeer() as peer:
        with_client(peer.address, scenario)


def test_qos_0_is_sent_and_forgotten() -> None:
    async def scenario(client: BlipMQClient) -> None:
        for number in range(100):
            await client.publish("t", b"%d" % number)
        publication = await client.send("t", b"last", 0)
        assert publication.done and publication.message_id is None
        await client.flush()
        assert [publish.payload for publish in peer.stored] == [b"%d" % number for number in range(100)] + [b"last"]

    with BlipMQPeer() as peer:
        with_client(peer.address, scenario)


def test_a_refused_publish_says_why() -> None:
    async def scenario(client: BlipMQClient) -> None:
        with pytest.raises(BraidError) as caught:
            await client.publish("t", b"x", qos=1)
        assert caught.value.code == "QUEUE_FULL"
        assert caught.value.text == "queue full: no room"
        assert caught.value.retriable
        await client.publish("t", b"x", qos=0)
        with pytest.raises(BraidError, match="QUEUE_FULL"):
            await client.flush()
        assert client.refused == 1
        await client.flush()

    with BlipMQPeer() as peer:
        peer.refuse = lambda message: BraidError("QUEUE_FULL", reason="no room") if isinstance(message, Publish) else None
        with_client(peer.address, scenario)


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (error_message(BraidError("TOPIC_NOT_FOUND", topic="t")), "TOPIC_NOT_FOUND", "topic not found: t"),
        (ErrorMessage(4, "queue full", "capacity=8192"), "QUEUE_FULL", "queue full: capacity=8192"),
        (ErrorMessage(6, "not authorized"), "UNAUTHORIZED", "not authorized"),
        (ErrorMessage(3, None, "TOPIC_NOT_FOUND: of another kind"), "RECORD_TOO_LARGE", "TOPIC_NOT_FOUND: of another kind"),
        (ErrorMessage(7), "SERVER_ERROR", "error 7"),
        (ErrorMessage(9), "TTL_EXPIRED", "error 9"),
        (ErrorMessage(55, "new"), "SERVER_ERROR", "new"),
    ],
)
def test_errors_of_any_broker_are_errors_of_the_table(message: ErrorMessage, code: str, text: str) -> None:
    fault = refusal(message)
    assert (fault.code, fault.text) == (code, text)
    assert fault.hint == ERRORS[code].hint


def test_what_never_could_be_sent_is_refused_here() -> None:
    async def scenario(client: BlipMQClient) -> None:
        for wrong in (
            client.publish("a/+", b""),
            client.publish("", b""),
            client.publish("$SYS/x", b""),
            client.publish("t", b"", qos=2),
            client.publish("t", bytes(1001)),
            client.publish("t", b"", metadata={"site": "oslo"}),
            client.publish("t", b"", compression="zip"),
            client.publish("t", b"", message_id="i" * 256, qos=1),
            client.subscribe("a/#/b"),
            client.subscribe("a", qos=3),
            client.subscribe("a", filter="payload ="),
            client.subscribe("a", accept_compression=["zstd"]),
            client.unsubscribe("a+"),
        ):
            with pytest.raises(BraidError):
                await wrong
        await client.flush()
        assert peer.stored == [] and not peer.sent(Subscribe)

    with BlipMQPeer() as peer:
        with_client(peer.address, scenario, payload_bytes_max=1000)


def test_publishing_waits_when_too_much_is_under_way() -> None:
    async def scenario(client: BlipMQClient) -> None:
        peer.acknowledging = False
        sent = [await client.send("t", bytes(1000)) for _ in range(4)]
        waiting = asyncio.create_task(client.send("t", b"more"))
        await beside(peer, lambda: len(peer.stored) == 4)
        assert not waiting.done()
        peer.acknowledging = True
        peer.cut()
        await waiting
        for publication in (*sent, waiting.result()):
            await publication.result(10)

    with BlipMQPeer() as peer:
        with_client(peer.address, scenario, buffer_bytes=4096)


def test_a_publish_that_nobody_acknowledges_is_given_up() -> None:
    async def scenario(client: BlipMQClient) -> None:
        peer.acknowledging = False
        with pytest.raises(BraidError, match=r"TIMED_OUT.*0.2 s"):
            await client.publish("t", b"x", qos=1)
        peer.acknowledging = True
        peer.cut()
        await (await client.send("t", b"y")).result(10)
        assert [publish.payload for publish in peer.stored] == [b"x", b"y"], "it was not sent again"

    with BlipMQPeer() as peer:
        with_client(peer.address, scenario, timeout_s=0.2)


# --- lost connections


def test_what_nobody_acknowledged_is_sent_again_in_order() -> None:
    async def scenario(client: BlipMQClient) -> None:
        peer.acknowledging = False
        pending = [await client.send("t", b"%d" % number) for number in range(50)]
        await beside(peer, lambda: len(peer.stored) == 50)
        peer.acknowledging = True
        peer.cut()
        for publication in pending:
            await publication.result(10)
        assert client.reconnects == 1
        again = [envelope.message for envelope in peer.sent(Publish)][50:]
        first = [envelope.message for envelope in peer.sent(Publish)][:50]
        assert again == first, "the same ids, the same order"

    with BlipMQPeer() as peer:
        with_client(peer.address, scenario)


def test_subscriptions_are_made_again() -> None:
    async def scenario(client: BlipMQClient) -> None:
        await client.subscribe("a/#", qos=1, filter="size > 0", durable_expiry_s=60)
        await client.subscribe("b")
        assert [each.pattern for each in client.subscriptions] == ["a/#", "b"]
        peer.cut()
        await beside(peer, lambda: len(peer.sent(Subscribe)) == 4)
        before, again = peer.sent(Subscribe)[:2], peer.sent(Subscribe)[2:]
        assert [envelope.message for envelope in again] == [envelope.message for envelope in before]
        assert again[0].metadata == (("filter", "size > 0"), ("durable_expiry_s", "60"))
        await client.publish("a/b", b"after", qos=1)
        assert (await client.poll(timeout_s=10))[0].payload == b"after"

    with BlipMQPeer() as peer:
        with_client(peer.address, scenario, client_id="me")


def test_a_subscription_that_is_refused_after_reconnecting_ends_the_client_loudly() -> None:
    async def scenario(client: BlipMQClient) -> None:
        await client.subscribe("a")
        peer.refuse = lambda message: BraidError("UNAUTHORIZED") if isinstance(message, Subscribe) else None
        peer.cut()
        with pytest.raises(BraidError, match="UNAUTHORIZED"):
            await client.poll(timeout_s=10)
        with pytest.raises(BraidError, match="UNAUTHORIZED"):
            await client.publish("a", b"", qos=1)

    with BlipMQPeer() as peer:
        with_client(peer.address, scenario)


def test_a_broker_that_is_not_there() -> None:
    with BlipMQPeer() as peer:
        gone = peer.address

    async def scenario() -> None:
        with pytest.raises(BraidError, match="UNREACHABLE"):
            async with connect(gone, timeout_s=0.3):
                raise AssertionError("nobody was there")

    asyncio.run(scenario())


def test_the_next_address_is_tried() -> None:
    async def scenario(client: BlipMQClient) -> None:
        await client.publish("t", b"x", qos=1)

    with BlipMQPeer() as gone:
        dead = gone.address
    with BlipMQPeer() as peer:
        with_client(f"{dead}, {peer.address}", scenario)


def test_a_peer_that_speaks_something_else_is_left() -> None:
    async def scenario(client: BlipMQClient) -> None:
        peer.say(b"\0\0\0\0garbage")
        await beside(peer, lambda: peer.connects == 2)
        await client.publish("t", b"x", qos=1)
        peer.say(struct.pack("<I", 40) + bytes(40))
        await beside(peer, lambda: peer.connects == 3)
        await client.publish("t", b"y", qos=1)

    with BlipMQPeer() as peer:
        with_client(peer.address, scenario)


# --- who the client is


def test_the_key_goes_with_the_first_frame_and_no_other() -> None:
    async def scenario(client: BlipMQClient) -> None:
        await client.publish("t", b"x", qos=1)
        login, *others = peer.seen
        assert login.message == Ping() and login.meta("api_key") == "secret" and login.meta("keepalive_s") == "30"
        assert all(envelope.meta("api_key") is None for envelope in others)
        assert "secret" not in repr(client.settings)

    with BlipMQPeer("secret") as peer:
        with_client(peer.address, scenario, api_key="secret")


@pytest.mark.parametrize("key", ["", "wrong"])
def test_a_wrong_key_is_no_reason_to_try_again(key: str) -> None:
    async def scenario() -> None:
        with pytest.raises(BraidError, match="INVALID_CREDENTIALS"):
            await connect(peer.address, api_key=key).open()

    with BlipMQPeer("secret") as peer:
        asyncio.run(scenario())
        assert peer.connects == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"address": ""},
        {"address": "http://x:1"},
        {"keepalive_s": 0.5},
        {"timeout_s": 0},
        {"buffer_bytes": 1},
        {"payload_bytes_max": 0},
        {"client_id": "c" * 256},
    ],
    ids=str,
)
def test_settings_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(BraidError, match="CONFIG_INVALID_VALUE"):
        connect(**wrong)  # type: ignore[arg-type]


# --- receiving


def test_messages_come_with_all_they_carry() -> None:
    async def scenario(client: BlipMQClient) -> None:
        await client.subscribe("sensor/+", qos=1)
        await client.publish("sensor/1", b"21.5", qos=1, message_id="m-1", metadata={"x-site": "oslo"})
        await client.publish("sensor/2", b"", qos=0)
        await client.publish("other", b"not wanted", qos=1)
        first, second = await taken(client, 2)
        assert (first.topic, first.payload, first.qos, first.message_id) == ("sensor/1", b"21.5", 1, "m-1")
        assert (first.metadata, first.attempt, first.timestamp) == ({"x-site": "oslo"}, 1, 1_700_000_000)
        assert (second.topic, second.payload, second.qos, second.message_id) == ("sensor/2", b"", 0, None)
        assert await client.poll(timeout_s=0) == []
        assert "sensor/1" in repr(first)

    with BlipMQPeer() as peer:
        with_client(peer.address, scenario)


def test_a_delivery_is_settled_once_and_as_the_program_says() -> None:
    async def scenario(client: BlipMQClient) -> None:
        await client.subscribe("t", qos=1)
        for number in range(4):
            await client.publish("t", b"", qos=1, message_id=f"m-{number}")
        await client.publish("t", b"", qos=0, message_id="zero")
        found = await taken(client, 5)
        await found[0].ack()
        await found[0].reject()
        await found[1].retry()
        await found[2].reject()
        await found[3].reject(200)
        await found[4].ack()
        with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
            await found[4].reject(7)
        await client.flush()
        assert peer.settled == [
            ("m-0", ErrorCode.NONE, None),
            ("m-1", ErrorCode.SERVER_ERROR, None),
            ("m-2", blipmq.REJECTED, None),
            ("m-3", 200, None),
        ]

    with BlipMQPeer() as peer:
        with_client(peer.address, scenario)


def test_a_delivery_of_a_lost_connection_is_settled_by_its_number() -> None:
    async def scenario(client: BlipMQClient) -> None:
        await client.subscribe("t", qos=1)
        await client.publish("t", b"x", qos=1, message_id="m")
        (first,) = await client.poll(timeout_s=10)
        peer.cut()
        (again,) = await client.poll(timeout_s=10)
        assert (again.sequence, again.attempt, first.attempt) == (first.sequence, 2, 1)
        await first.ack()
        await client.flush()
        assert peer.settled == [("m", 0, str(first.sequence))]
        assert peer.open == {}

    with BlipMQPeer() as peer:
        with_client(peer.address, scenario, client_id="me")


def test_iteration_ends_when_the_client_is_closed() -> None:
    async def scenario() -> None:
        client = await connect(peer.address).open()
        await client.subscribe("t")
        got: list[bytes] = []

        async def read() -> None:
            async for message in client:
                got.append(message.payload)

        reading = asyncio.create_task(read())
        for number in range(3):
            await client.publish("t", b"%d" % number)
        await client.flush()
        while len(got) < 3:  # noqa: ASYNC110  (the reader has no event to wait for)
            await asyncio.sleep(0.001)
        await client.close()
        await asyncio.wait_for(reading, 10)
        assert got == [b"0", b"1", b"2"]
        with pytest.raises(BraidError, match="CLIENT_CLOSED"):
            await client.publish("t", b"")

    with BlipMQPeer() as peer:
        asyncio.run(scenario())


def test_a_program_that_takes_nothing_still_gets_its_answers() -> None:
    """The inbox is full and nothing is read any more; a publish, a subscribe and a flush get through all the same."""

    async def scenario(client: BlipMQClient) -> None:
        await client.subscribe("t")
        for _ in range(20):
            peer.deliver("t", bytes(1000), 0, None)
        await client.publish("u", b"x", qos=1)
        await client.subscribe("v")
        await client.flush()
        for _ in range(20):
            peer.deliver("t", bytes(1000), 0, None)
        await client.publish("u", b"y", qos=1)
        found = 0
        while found < 40:
            found += len(await client.poll(max_messages=7, timeout_s=10))

    with BlipMQPeer() as peer:
        with_client(peer.address, scenario, prefetch_bytes=4096)


def test_compressed_payloads_come_out_plain() -> None:
    async def scenario(client: BlipMQClient) -> None:
        await client.subscribe("t", accept_compression=["gzip"])
        assert peer.sent(Subscribe)[0].meta("accept_compression") == "gzip"
        await client.publish("t", b"hello " * 200, qos=1, compression="gzip", metadata={"x-a": "b"})
        (stored,) = peer.stored
        assert len(stored.payload) < 100
        (message,) = await client.poll(timeout_s=10)
        assert message.payload == b"hello " * 200
        assert message.metadata["x-a"] == "b"

    with BlipMQPeer() as peer:
        with_client(peer.address, scenario)


def test_unsubscribing_says_whether_there_was_something() -> None:
    async def scenario(client: BlipMQClient) -> None:
        subscription = await client.subscribe("t")
        assert await client.unsubscribe(subscription) is True
        assert await client.unsubscribe("t") is False
        assert client.subscriptions == ()

    with BlipMQPeer() as peer:
        with_client(peer.address, scenario)


# --- keeping alive


def test_a_silent_broker_is_asked_and_then_left() -> None:
    async def scenario(client: BlipMQClient) -> None:
        before = len(peer.sent(Ping))
        await beside(peer, lambda: len(peer.sent(Ping)) > before)
        assert client.reconnects == 0
        peer.fall_silent()
        await beside(peer, lambda: peer.connects == 2)
        await client.publish("t", b"x", qos=1)

    with BlipMQPeer() as peer:
        with_client(peer.address, scenario, keepalive_s=1.0)


# --- the end


def test_closing_waits_for_what_is_owed() -> None:
    async def scenario() -> None:
        client = await connect(peer.address).open()
        peer.acknowledging = False
        publication = await client.send("t", b"x")
        await beside(peer, lambda: len(peer.stored) == 1)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        (envelope,) = peer.sent(Publish)
        peer.say(encode(Envelope(Ack(publication.message_id or ""), envelope.sequence)))
        await asyncio.wait_for(closing, 10)
        await publication.result()

    with BlipMQPeer() as peer:
        asyncio.run(scenario())


def test_closing_does_not_wait_for_ever() -> None:
    async def scenario() -> None:
        client = await connect(peer.address, close_timeout_s=0.2).open()
        peer.acknowledging = False
        publication = await client.send("t", b"x")
        with pytest.raises(BraidError, match=r"TIMED_OUT.*last 1 messages"):
            await client.close()
        with pytest.raises(BraidError, match="CLIENT_CLOSED"):
            await publication.result()

    with BlipMQPeer() as peer:
        asyncio.run(scenario())


def test_nothing_works_before_it_is_open() -> None:
    async def scenario() -> None:
        client = connect("127.0.0.1:1")
        with pytest.raises(BraidError, match="not open"):
            await client.publish("t", b"")
        await client.close()

    asyncio.run(scenario())


# --- the blocking twin


def test_the_blocking_client_does_the_same() -> None:
    with BlipMQPeer("key") as peer, blipmq.sync.connect(peer.address, api_key="key", client_id="me") as client:
        client.subscribe("t/#", qos=1)
        client.publish("t/0", b"0", qos=1)
        pending = [client.send("t/1", b"%d" % number) for number in range(1, 100)]
        for publication in pending:
            publication.result(10)
        got = [message for message, _ in zip(client, range(50), strict=False)]
        peer.cut()
        for message in got[:50]:
            message.ack()
        client.publish("t/2", b"100", qos=1)
        rest: dict[int, bytes] = {}
        while len(rest) < 51:
            for message in client.poll(timeout_s=10):
                message.ack()
                if int(message.payload) >= 50:
                    rest[message.sequence] = message.payload
        assert sorted(map(int, rest.values())) == list(range(50, 101))
        assert client.reconnects >= 1
        client.flush()
        assert not peer.open


def test_many_threads_publish_at_once() -> None:
    with BlipMQPeer() as peer:
        with blipmq.sync.connect(peer.address, buffer_bytes=4096) as client:
            threads = [
                threading.Thread(target=lambda n=n: [client.publish("t", b"%d" % (100 * n + k), qos=1) for k in range(50)])
                for n in range(4)
            ]
            for thread in threads:
                thread.start()
            peer.cut()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()
        stored = [int(publish.payload) for publish in peer.stored]
        assert set(stored) == {100 * n + k for n in range(4) for k in range(50)}
        for n in range(4):
            first = list(dict.fromkeys(number for number in stored if number // 100 == n))
            assert first == sorted(first), "each thread's own order"
