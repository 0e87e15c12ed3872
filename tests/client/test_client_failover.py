"""Several addresses: the client finds one that answers, and another one when that stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from held_port import HeldPort
from relay import Relay

from braidmq.client import BraidError, connect, sync


@pytest.fixture
def dead() -> Iterator[str]:
    """An address that refuses connections, and that nobody else gets in the meantime."""
    held = HeldPort()
    yield held.address
    held.close()


def test_a_dead_address_is_passed_over(server: str, topic: str, dead: str) -> None:
    async def scenario() -> None:
        async with connect([dead, server]) as client:
            await client.produce(topic, b"x", partition=0)
            async with client.producer() as producer:
                assert (await (await producer.send(topic, b"y", partition=0))).offset == 1
            async with client.consumer({topic: [0]}) as consumer:
                assert [record.value for record in await consumer.poll(timeout_s=10)] == [b"x", b"y"]

    asyncio.run(scenario())
    with sync.connect(f"{dead},{server}") as client:
        assert topic in client.list_topics()


def test_when_one_server_goes_the_next_takes_over(server: str, topic: str) -> None:
    async def scenario() -> None:
        with Relay(server) as second:
            with Relay(server) as first:
                client = connect([first.address, second.address])
                await client.open()
                await client.create_topic(topic, 1)
                producer = client.producer(linger_ms=0)
                consumer = client.consumer(topic, group="g")
                assert (await (await producer.send(topic, b"0"))).offset == 0
                assert (await consumer.poll(timeout_s=10))[0].value == b"0"
                assert not second.seen
            # The first one is gone now, with everything that was connected to it.
            delivery = await producer.send(topic, b"1")
            assert (await asyncio.wait_for(delivery, 10)).offset == 1
            assert (await consumer.poll(timeout_s=10))[0].value == b"1"
            await consumer.commit()
            assert (await client.metadata(topic)).records == 2
            await client.close()
            assert second.seen
            async with connect(server) as direct:
                assert await direct.committed(topic, "g", 0) == 2

    asyncio.run(scenario())


def test_nobody_there_is_said_with_all_addresses(dead: str) -> None:
    async def scenario() -> None:
        begun = time.monotonic()
        with pytest.raises(BraidError) as caught:
            async with connect([dead, "flymq://127.0.0.1:1"], timeout_s=0.4):
                pytest.fail("there is nobody to connect to")
        assert time.monotonic() - begun >= 0.35, "it tried for as long as it was allowed"
        assert caught.value.code == "UNREACHABLE"
        assert dead in caught.value.text and "127.0.0.1:1" in caught.value.text
        assert "braid serve" in caught.value.hint

    asyncio.run(scenario())
    with pytest.raises(BraidError, match="UNREACHABLE"), sync.connect(dead, timeout_s=0.2):
        pytest.fail("there is nobody to connect to")


def test_a_request_outlives_a_broken_connection(server: str, topic: str) -> None:
    with Relay(server) as relay, sync.connect(relay.address, pool_size=1) as client:
        client.create_topic(topic, 1)
        for number in range(3):
            relay.cut()
            assert client.metadata(topic).records == number
            relay.cut()
            assert client.produce(topic, b"x").offset == number, "a dead connection is noticed before it is used"


def test_a_single_produce_is_not_repeated(server: str, topic: str) -> None:
    async def scenario() -> None:
        with Relay(server) as relay:
            async with connect(relay.address) as client:
                await client.create_topic(topic, 1)
                relay.lose_answers()
                lost = asyncio.create_task(client.produce(topic, b"x"))
                async with connect(server) as direct:
                    while (await direct.metadata(topic)).records < 1:  # noqa: ASYNC110  (the broker has no event to wait for)
                        await asyncio.sleep(0.005)
                    relay.cut()
                    with pytest.raises(BraidError, match="CONNECTION_LOST"):
                        await lost
                    assert (await direct.metadata(topic)).records == 1

    asyncio.run(scenario())
