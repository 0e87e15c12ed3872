"""The client with a server that knows only the documented opcodes: the same API, without what batches make possible."""

from __future__ import annotations

import asyncio
import time

import pytest
from relay import Relay, only_documented

from braidmq.client import BraidError, Record, connect, sync
from braidmq.client.models import NO_TIMESTAMP
from braidmq.wire.flymq import Op


def test_produce_and_consume_fall_back(server: str, topic: str) -> None:
    async def scenario() -> None:
        with Relay(server, rejects=only_documented) as relay:
            async with connect(relay.address) as client:
                await client.create_topic(topic, 3)
                async with client.producer(linger_ms=1) as producer:
                    deliveries = [await producer.send(topic, b"%d" % n, key=b"%d" % (n % 7)) for n in range(2000)]
                    written = [await delivery for delivery in deliveries]
                async with client.consumer(topic, group="g") as consumer:
                    records: dict[tuple[int, int], Record] = {}
                    while len(records) < 2000:
                        for record in await consumer.poll(timeout_s=10):
                            records[record.partition, record.offset] = record
                    late = await client.produce(topic, b"late", partition=1)
                    assert [r.offset for r in await consumer.poll(timeout_s=10)] == [late.offset]
                for number, metadata in enumerate(written):
                    found = records[metadata.partition, metadata.offset]
                    assert (found.value, found.key) == (b"%d" % number, b"%d" % (number % 7))
                    assert found.timestamp == NO_TIMESTAMP
                    assert metadata.timestamp > 0
                assert sum([await client.committed(topic, "g", n) for n in range(3)]) == 2001
            assert relay.seen.count(Op.PRODUCE) == 2001
            assert 1 <= relay.seen.count(Op.PRODUCE_BATCH) <= 3, "it is asked once, by what is in flight at first"
            assert Op.FETCH_BATCHES not in relay.seen, "what the producer found out, the consumer knows"

    asyncio.run(scenario())


def test_the_blocking_client_falls_back_too(server: str, topic: str) -> None:
    with Relay(server, rejects=only_documented) as relay, sync.connect(relay.address) as client:
        with client.producer(linger_ms=1, batch_bytes=4096) as producer:
            deliveries = [producer.send(topic, b"%d" % number, partition=0) for number in range(500)]
            assert [delivery.result(10).offset for delivery in deliveries] == list(range(500))
        found = client.fetch(topic, 0, 490)
        assert [record.value for record in found.records] == [b"%d" % number for number in range(490, 500)]
        assert found.next_offset == 500
        with sync.connect(relay.address) as other, other.consumer({topic: [0]}) as consumer:
            records: list[Record] = []
            while len(records) < 500:
                records += consumer.poll(timeout_s=10)
            assert [record.offset for record in records] == list(range(500))
        with pytest.raises(BraidError, match="UNKNOWN_OPCODE"):
            client.fetch_batches(topic, 0, 0)


def test_headers_are_refused_clearly(server: str, topic: str) -> None:
    with Relay(server, rejects=only_documented) as relay, sync.connect(relay.address) as client, client.producer() as producer:
        with pytest.raises(BraidError, match=r"INVALID_ARGUMENT.*headers need a server that takes batches"):
            producer.send(topic, b"x", headers={"a": b"b"})
        client.create_topic(topic, 1)
        refused = producer.send(topic, b"x", headers={"a": b"b"})
        with pytest.raises(BraidError, match=r"INVALID_ARGUMENT.*headers need a server that takes batches"):
            refused.result(10)
        assert producer.send(topic, b"without").result(10).offset == 0
        with pytest.raises(BraidError, match=r"INVALID_ARGUMENT.*headers need a server that takes batches"):
            client.produce(topic, b"x", headers={"a": b"b"})


def test_times_to_live_are_refused_clearly_by_a_producer(server: str, topic: str) -> None:
    with Relay(server, rejects=only_documented) as relay, sync.connect(relay.address) as client, client.producer() as producer:
        with pytest.raises(BraidError, match=r"INVALID_ARGUMENT.*a time to live needs a server that takes batches"):
            producer.send(topic, b"x", ttl_ms=1000)
        client.create_topic(topic, 1)
        refused = producer.send(topic, b"x", ttl_ms=1000)
        with pytest.raises(BraidError, match=r"INVALID_ARGUMENT.*a time to live needs a server that takes batches"):
            refused.result(10)
        assert client.produce(topic, b"one by one", ttl_ms=60_000).offset == 0


def test_a_loss_with_unknown_outcome_is_reported_not_repeated(server: str, topic: str) -> None:
    with Relay(server, rejects=only_documented) as relay, sync.connect(relay.address) as client:
        client.create_topic(topic, 1)
        with client.producer(linger_ms=0) as producer:
            producer.send(topic, b"known").result(10)
            relay.lose_answers()
            unknown = producer.send(topic, b"unknown")
            with sync.connect(server) as direct:
                deadline = time.monotonic() + 10
                while direct.metadata(topic).records < 2 and time.monotonic() < deadline:
                    time.sleep(0.005)
            relay.cut()
            with pytest.raises(BraidError, match="CONNECTION_LOST"):
                unknown.result(10)
            assert producer.send(topic, b"after").result(10).offset == 2, "stored once, and the producer goes on"


def test_a_loss_is_repeated_when_duplicates_are_fine(server: str, topic: str) -> None:
    with Relay(server, rejects=only_documented) as relay, sync.connect(relay.address) as client:
        client.create_topic(topic, 1)
        with client.producer(linger_ms=0, retries_may_duplicate=True) as producer:
            producer.send(topic, b"known").result(10)
            relay.lose_answers()
            repeated = producer.send(topic, b"twice")
            with sync.connect(server) as direct:
                deadline = time.monotonic() + 10
                while direct.metadata(topic).records < 2 and time.monotonic() < deadline:
                    time.sleep(0.005)
            relay.cut()
            assert repeated.result(10).offset == 2
        assert [record.value for record in client.fetch(topic, 0, 1).records] == [b"twice", b"twice"]
