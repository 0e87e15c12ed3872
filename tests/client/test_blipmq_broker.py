"""The BlipMQ client against the broker itself: settling, dead letters, filters, durable subscribers, kills, keys."""

from __future__ import annotations

import asyncio

import pytest
from running_broker import RunningBroker, StartBroker
from test_client_security import Certificates, certificates  # noqa: F401  (a fixture)

from braidmq.client import blipmq
from braidmq.client import sync as flymq
from braidmq.client.blipmq import BlipMQClient, BraidError, ReceivedMessage

LISTEN = ("--listen", "flymq://127.0.0.1:0", "--listen", "blipmq://127.0.0.1:0")
PATIENT = ("--blipmq-ack-timeout", "60s")
"""However slow the machine is, nothing comes again because its acknowledgement takes long."""
QUICK = ("--blipmq-ack-timeout", "50ms")
"""Redelivery after a moment, where a test waits for it."""


@pytest.fixture
def served(start_broker: StartBroker) -> RunningBroker:
    return start_broker(*LISTEN, "--durability", "os", *PATIENT)


async def taken(client: BlipMQClient, count: int) -> list[ReceivedMessage]:
    """So many messages, however they come."""
    found: list[ReceivedMessage] = []
    while len(found) < count:
        more = await client.poll(count - len(found), timeout_s=20)
        assert more, f"only {len(found)} of {count} came"
        found += more
    return found


@pytest.mark.parametrize("qos", [0, 1])
def test_messages_there_and_back(served: RunningBroker, qos: int) -> None:
    async def scenario() -> None:
        async with blipmq.connect(served.addresses["blipmq"]) as client:
            await client.subscribe("sensor/+/temperature", qos=qos)
            for number in range(500):
                await client.send("sensor/7/temperature", b"%d" % number, qos)
            await client.publish("sensor/7", b"not wanted", qos=1)
            found = await taken(client, 500)
            for message in found:
                await message.ack()
            assert [int(message.payload) for message in found] == list(range(500)), "in the publisher's order"
            assert {(message.topic, message.qos, message.attempt) for message in found} == {("sensor/7/temperature", qos, 1)}
            assert len({message.sequence for message in found}) == 500
            await client.flush()
            assert await client.poll(timeout_s=0.3) == []

    asyncio.run(scenario())


def test_metadata_and_compression_travel(served: RunningBroker) -> None:
    async def scenario() -> None:
        address = served.addresses["blipmq"]
        async with blipmq.connect(address) as client, blipmq.connect(address) as packed:
            await client.subscribe("t")
            await packed.subscribe("t", accept_compression=["gzip"])
            await client.publish("t", b"hello " * 500, qos=1, compression="gzip", metadata={"x-b": "1", "x-a": "2"})
            for reader in (client, packed):
                (message,) = await taken(reader, 1)
                assert message.payload == b"hello " * 500
                assert [pair for pair in message.metadata.items() if pair[0].startswith("x-")] == [("x-a", "2"), ("x-b", "1")]
            assert message.metadata.get("compression") == "gzip"

    asyncio.run(scenario())


def test_a_filter_is_evaluated_by_the_broker(served: RunningBroker) -> None:
    async def scenario() -> None:
        async with blipmq.connect(served.addresses["blipmq"]) as client:
            await client.subscribe("t/#", qos=1, filter='payload.n >= 3 and meta.x-site = "oslo"')
            for number in range(6):
                await client.publish("t/1", b'{"n": %d}' % number, qos=1, metadata={"x-site": "oslo" if number % 2 else "rome"})
            found = await taken(client, 2)
            assert [message.payload for message in found] == [b'{"n": 3}', b'{"n": 5}']

    asyncio.run(scenario())


def test_retry_comes_again_and_reject_becomes_a_dead_letter(start_broker: StartBroker) -> None:
    broker = start_broker(*LISTEN, "--durability", "os", "--blipmq-ack-timeout", "1s")

    async def scenario() -> None:
        async with blipmq.connect(broker.addresses["blipmq"], client_id="worker") as client:
            await client.subscribe("jobs", qos=1)
            await client.publish("jobs", b"job", qos=1, message_id="job-1")
            (first,) = await taken(client, 1)
            await first.retry()
            (second,) = await taken(client, 1)
            assert (second.sequence, second.attempt, second.message_id) == (first.sequence, 2, "job-1")
            await second.reject(200)
            await client.flush()
            await client.subscribe("$DLQ/jobs", qos=1)
            (letter,) = await taken(client, 1)
            assert (letter.topic, letter.payload, letter.message_id) == ("$DLQ/jobs", b"job", "job-1")
            assert (letter.metadata["dlq_topic"], letter.metadata["dlq_code"]) == ("jobs", "200")
            await letter.ack()

    asyncio.run(scenario())


def test_a_durable_subscriber_gets_what_it_missed(served: RunningBroker) -> None:
    async def scenario() -> None:
        address = served.addresses["blipmq"]
        async with blipmq.connect(address, client_id="away") as client:
            await client.subscribe("t", qos=1)
        async with blipmq.connect(address) as other:
            for number in range(20):
                await other.publish("t", b"%d" % number, qos=1)
        async with blipmq.connect(address, client_id="away") as client:
            await client.subscribe("t", qos=1)
            found = await taken(client, 20)
            assert [int(message.payload) for message in found] == list(range(20))
            for message in found:
                await message.ack()
        async with blipmq.connect(address, client_id="away") as client:
            await client.subscribe("t", qos=1)
            assert await client.poll(timeout_s=0.3) == [], "what was settled does not come again"

    asyncio.run(scenario())


def test_nothing_acknowledged_is_lost_when_the_broker_is_killed(start_broker: StartBroker) -> None:
    """Publishes go on through two kills; the client sends again what was not acknowledged, and the subscriber gets everything."""
    broker = start_broker(*LISTEN, *QUICK)

    async def scenario() -> None:
        address = broker.addresses["blipmq"]
        async with (
            blipmq.connect(address, client_id="reader", backoff_most_s=0.1) as reader,
            blipmq.connect(address, backoff_most_s=0.1) as writer,
        ):
            await reader.subscribe("t", qos=1)
            got: set[int] = set()

            async def read() -> None:
                while len(got) < 600:
                    for message in await reader.poll(timeout_s=20):
                        got.add(int(message.payload))
                        await message.ack()

            reading = asyncio.create_task(read())
            for burst in range(3):
                pending = [await writer.send("t", b"%d" % (200 * burst + number)) for number in range(200)]
                await pending[20].result(20)
                if burst < 2:
                    broker.kill()
                    await asyncio.to_thread(broker.start)
                for publication in pending:
                    await publication.result(20)
            await asyncio.wait_for(reading, 40)
            assert got == set(range(600))
            assert writer.reconnects >= 2

    asyncio.run(scenario())


def test_records_of_other_protocols_come_out(served: RunningBroker) -> None:
    with blipmq.sync.connect(served.addresses["blipmq"]) as client, flymq.connect(served.address) as fly:
        fly.create_topic("both", 1)
        client.subscribe("both", qos=1)
        fly.produce("both", b"from flymq", key=b"k")
        message = next(client)
        assert (message.payload, message.qos, message.message_id) == (b"from flymq", 1, str(message.sequence))
        message.ack()
        client.publish("both", b"from blipmq", qos=1)
        assert next(client).payload == b"from blipmq"
        assert [record.value for record in fly.fetch("both", 0, 0).records] == [b"from flymq", b"from blipmq"]


def test_a_key_lets_in_and_nothing_else_does(start_broker: StartBroker) -> None:
    broker = start_broker(*LISTEN, "--blipmq-api-keys", "tester=secret-key")
    address = broker.addresses["blipmq"]
    for key in ("", "wrong"):
        with pytest.raises(BraidError) as caught, blipmq.sync.connect(address, api_key=key, timeout_s=5):
            raise AssertionError("it was let in")
        assert caught.value.spec.blipmq == 5
    with blipmq.sync.connect(address, api_key="secret-key") as client:
        client.publish("t", b"x", qos=1)


def test_refusals_are_errors_of_the_table(served: RunningBroker) -> None:
    with blipmq.sync.connect(served.addresses["blipmq"], payload_bytes_max=2 << 20) as client:
        with pytest.raises(BraidError) as caught:
            client.publish("t", bytes((1 << 20) + 1), qos=1)
        assert caught.value.spec.blipmq == 3
        assert client.publish("t", bytes(1 << 20), qos=1) is None


def test_tls_in_both_worlds(start_broker: StartBroker, certificates: Certificates) -> None:  # noqa: F811
    tls = ("--tls-cert-file", certificates.server_cert, "--tls-key-file", certificates.server_key)
    broker = start_broker("--listen", "flymq://127.0.0.1:0", "--listen", "blipmqs://127.0.0.1:0", *tls)
    address = f"blipmqs://{broker.addresses['blipmqs']}"

    async def scenario() -> None:
        async with blipmq.connect(address, tls_ca_file=certificates.authority) as client:
            await client.subscribe("t", qos=1)
            await client.publish("t", bytes(300_000), qos=1)
            (message,) = await taken(client, 1)
            assert len(message.payload) == 300_000
            await message.ack()

    asyncio.run(scenario())
    with blipmq.sync.connect(address, tls_ca_file=certificates.authority) as client:
        client.publish("t", b"x", qos=1)
    with (
        pytest.raises(BraidError, match="UNREACHABLE"),
        blipmq.sync.connect(address, tls_ca_file=certificates.stranger, timeout_s=0.5),
    ):
        raise AssertionError("a stranger was trusted")
