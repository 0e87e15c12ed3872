"""The producer against a real broker: partitions, batches, a full buffer, lost connections and restarts."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable

import pytest
from relay import Relay
from running_broker import RunningBroker, StartBroker

from braidmq import hot
from braidmq.base.limits import RECORD_BYTES_MAX
from braidmq.client import BraidError, Client, Record, connect, sync
from braidmq.wire.flymq import Op


async def read_all(client: Client, topic: str) -> list[list[Record]]:
    """All records of a topic, by partition."""
    found: list[list[Record]] = []
    for part in (await client.metadata(topic)).partitions:
        records: list[Record] = []
        while part.oldest + len(records) < part.newest:
            records += (await client.fetch(topic, part.partition, part.oldest + len(records), max_records=10_000)).records
        found.append(records)
    return found


async def written_to(client: Client, topic: str, count: int) -> None:
    """Wait until the broker holds so many records."""
    while (await client.metadata(topic)).records < count:  # noqa: ASYNC110  (the broker has no event to wait for)
        await asyncio.sleep(0.005)


def test_each_record_goes_where_it_should_and_says_where(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server) as client:
            await client.create_topic(topic, 5)
            async with client.producer(linger_ms=2) as producer:
                keyed = [await producer.send(topic, b"%d" % n, key=b"k%d" % (n % 17), headers={"n": b"%d" % n}) for n in range(300)]
                explicit = await producer.send(topic, b"here", partition=3)
                assert (await explicit).partition == 3
                with pytest.raises(BraidError, match="PARTITION_NOT_FOUND"):
                    await producer.send(topic, b"nowhere", partition=5)
                written = [await delivery for delivery in keyed]
            stored = await read_all(client, topic)
            for number, metadata in enumerate(written):
                assert metadata.partition == hot.fnv1a(b"k%d" % (number % 17)) % 5
                record = stored[metadata.partition][metadata.offset]
                assert (record.value, record.key, record.headers) == (b"%d" % number, b"k%d" % (number % 17), {"n": b"%d" % number})
                assert record.timestamp == metadata.timestamp
            for partition in stored:
                values = [int(record.value) for record in partition if record.key]
                assert values == sorted(values), "order within a partition"

    asyncio.run(scenario())


def test_records_without_a_key_fill_partitions_in_turn(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server, batch_bytes=1024) as client:
            await client.create_topic(topic, 3)
            async with client.producer(linger_ms=1000) as producer:
                for number in range(300):
                    await producer.send(topic, b"%04d" % number)
            counts = [len(partition) for partition in await read_all(client, topic)]
            assert sum(counts) == 300
            assert max(counts) - min(counts) <= 1024 // 32

    asyncio.run(scenario())


def test_a_missing_topic_is_created_by_its_first_record(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server) as client, client.producer() as producer:
            first = await producer.send(topic, b"1", key=b"user-123", headers={"h": b"1"})
            second = await producer.send(topic, b"2", key=b"user-123")
            assert [(await d).offset for d in (first, second)] == [0, 1]
            assert (await first).partition == hot.fnv1a(b"user-123") % 3
            assert (await client.metadata(topic)).records == 2
            with pytest.raises(BraidError, match="INVALID_TOPIC"):
                await producer.send("..", b"1")

    asyncio.run(scenario())


def test_a_lingering_batch_leaves_by_itself(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server) as client, client.producer(linger_ms=30) as producer:
            for round_number in range(3):
                begun = time.monotonic()
                deliveries = [await producer.send(topic, b"x", partition=0) for _ in range(5)]
                offsets = [(await delivery).offset for delivery in deliveries]
                assert offsets == list(range(5 * round_number, 5 * round_number + 5))
                assert time.monotonic() - begun >= 0.029
                assert deliveries[0].done()
            raw = await client.fetch_batches(topic, 0, 0)
            assert raw.batches.count(b"BRD1") == 3, "five records, one batch"

    asyncio.run(scenario())


def test_without_linger_a_record_leaves_at_once(server: str, topic: str) -> None:
    with sync.connect(server) as client, client.producer(linger_ms=0) as producer:
        for number in range(50):
            assert producer.send(topic, b"x", partition=0).result(10).offset == number


def test_flush_waits_for_everything_and_close_flushes(server: str, topic: str) -> None:
    with sync.connect(server) as client:
        producer = client.producer(linger_ms=60_000)
        deliveries = [producer.send(topic, b"%d" % number) for number in range(10)]
        assert not deliveries[0].wait(0.05)
        with pytest.raises(TimeoutError):
            deliveries[0].result(0.01)
        producer.flush()
        assert all(delivery.done() for delivery in deliveries)
        last = producer.send(topic, b"last")
        producer.close()
        producer.close()
        assert last.result().offset >= 0
        with pytest.raises(BraidError, match="CLIENT_CLOSED: the producer is closed"):
            producer.send(topic, b"too late")
        assert client.metadata(topic).records == 11


def test_a_full_buffer_makes_send_wait_and_nothing_is_lost(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()
    value = bytes(10_000)

    async def scenario() -> None:
        async with connect(broker.address) as client, client.producer(buffer_bytes=65536, linger_ms=0) as producer:
            await (await producer.send(topic, value, partition=0))
            broker.signal(signal.SIGSTOP)
            try:
                deliveries = [await producer.send(topic, value, partition=0) for _ in range(6)]
                waiting = asyncio.create_task(producer.send(topic, value, partition=0))
                done, _ = await asyncio.wait([waiting], timeout=0.2)
                assert not done, "the buffer is full"
            finally:
                broker.signal(signal.SIGCONT)
            deliveries.append(await asyncio.wait_for(waiting, 10))
            assert [(await delivery).offset for delivery in deliveries] == list(range(1, 8))

    asyncio.run(scenario())


def test_a_buffer_that_stays_full_is_an_error(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()
    with sync.connect(broker.address) as client:
        producer = client.producer(buffer_bytes=65536, delivery_timeout_s=0.5)
        producer.send(topic, b"first").result(10)
        broker.signal(signal.SIGSTOP)
        try:
            with pytest.raises(BraidError, match="TIMED_OUT: waiting for room in the producer's buffer"):
                for _ in range(7):
                    producer.send(topic, bytes(10_000))
        finally:
            broker.signal(signal.SIGCONT)
        producer.flush()


def test_a_record_that_can_never_be_sent_is_refused_at_once(server: str, topic: str) -> None:
    with sync.connect(server) as client, client.producer(buffer_bytes=64 << 20) as producer:
        with pytest.raises(BraidError, match="RECORD_TOO_LARGE"):
            producer.send(topic, bytes(RECORD_BYTES_MAX))
        with pytest.raises(TypeError):
            producer.send(topic, "text")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            producer.send(topic, 7)  # type: ignore[arg-type]
        small = producer.send(topic, b"small", partition=0)
        large = producer.send(topic, bytes(20 << 20), partition=0)
        after = producer.send(topic, bytearray(b"after"), partition=0, key=memoryview(b"k"))  # type: ignore[arg-type]
        assert [delivery.result(30).offset for delivery in (small, large, after)] == [0, 1, 2]
        assert len(client.consume(topic, 0, 1).value) == 20 << 20
        assert client.consume(topic, 0, 2).key == b"k"


def test_an_unreachable_broker_fails_deliveries_in_time(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()

    async def scenario() -> None:
        async with connect(broker.address, timeout_s=1) as client:
            producer = client.producer(delivery_timeout_s=0.6)
            await (await producer.send(topic, b"first"))
            broker.kill()
            delivery = await producer.send(topic, b"second")
            with pytest.raises(BraidError, match="TIMED_OUT: delivering a record"):
                await asyncio.wait_for(delivery, 10)
            await producer.send(topic, b"third")
            with pytest.raises(BraidError, match="TIMED_OUT"):
                await producer.close()

    asyncio.run(scenario())


def test_flush_raises_only_what_nobody_has_seen(server: str, topic: str) -> None:
    with sync.connect(server) as client, client.producer() as producer:
        producer.send(topic, b"x").result(10)
        client.delete_topic(topic)
        client.create_topic(topic, 1)
        refused = producer.send(topic, b"x", partition=2)
        with pytest.raises(BraidError, match="PARTITION_NOT_FOUND"):
            refused.result(10)
        producer.flush()
        producer.send(topic, b"x", partition=2)
        with pytest.raises(BraidError, match="PARTITION_NOT_FOUND"):
            producer.flush()
        producer.flush()


def test_threads_share_a_producer(server: str, topic: str) -> None:
    with sync.connect(server) as client:
        client.create_topic(topic, 2)
        with client.producer(batch_bytes=2048, linger_ms=1, buffer_bytes=65536) as producer:

            def work(name: int) -> None:
                for number in range(2000):
                    producer.send(topic, b"%d %d" % (name, number), partition=name % 2)

            threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            producer.flush()
        assert client.metadata(topic).records == 8000
        with client.consumer(topic) as consumer:
            read: list[Record] = []
            while len(read) < 8000:
                read += consumer.poll(timeout_s=10)
        for name in range(4):
            mine = [int(record.value.split()[1]) for record in read if record.value.startswith(b"%d " % name)]
            assert mine == list(range(2000)), "each thread's records, once and in order"


def test_closing_the_client_closes_what_it_made(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server) as client:
            await client.create_topic(topic, 1)
            failing, working = client.producer(linger_ms=60_000), client.producer(linger_ms=60_000)
            consumer = client.consumer(topic, group="g")
            await failing.send(topic + "/gone", b"x")
            delivery = await working.send(topic, b"x")
            await client.delete_topic(topic + "/gone")
            await client.create_topic(topic + "/gone", 1)
            await failing.send(topic + "/gone", b"x", partition=2)
            await consumer.start()
            with pytest.raises(BraidError, match="PARTITION_NOT_FOUND"):
                await client.close()
            assert (await delivery).offset == 0
            assert failing.closed and working.closed and consumer.closed

    asyncio.run(scenario())


# --- lost connections and restarts


def check_stored(records: list[Record], written: list[int], values: list[bytes]) -> None:
    """Every acknowledged record is there once, where its delivery said, and nothing else is."""
    assert [records[offset].value for offset in written] == values
    assert sorted(record.value for record in records) == sorted(values)


def kill_and_start(broker: RunningBroker) -> None:
    broker.kill()
    broker.start()


@pytest.mark.parametrize("restart", [RunningBroker.restart, kill_and_start])
def test_a_restart_loses_and_doubles_nothing(
    start_broker: StartBroker, topic: str, restart: Callable[[RunningBroker], None]
) -> None:
    broker = start_broker()
    values = [b"%06d" % number for number in range(20_000)]

    async def scenario() -> None:
        async with connect(broker.address) as client:
            await client.create_topic(topic, 1)
            async with client.producer(batch_bytes=4096, linger_ms=1) as producer:
                deliveries = []
                restarting: asyncio.Future[None] | None = None
                for number, value in enumerate(values):
                    deliveries.append(await producer.send(topic, value))
                    if number == 5000:
                        restarting = asyncio.get_running_loop().run_in_executor(None, restart, broker)
                    if number % 100 == 0:
                        await asyncio.sleep(0.001)
                assert restarting is not None
                await restarting
                written = [(await asyncio.wait_for(delivery, 30)).offset for delivery in deliveries]
            assert written == list(range(len(values)))
            check_stored((await read_all(client, topic))[0], written, values)

    asyncio.run(scenario())


def test_the_blocking_producer_survives_a_restart_too(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()
    values = [b"%06d" % number for number in range(20_000)]
    with sync.connect(broker.address) as client, client.producer(batch_bytes=4096, linger_ms=1) as producer:
        client.create_topic(topic, 1)
        deliveries = [producer.send(topic, value) for value in values[:5000]]
        restarting = threading.Thread(target=broker.restart)
        restarting.start()
        deliveries += [producer.send(topic, value) for value in values[5000:]]
        restarting.join()
        written = [delivery.result(30).offset for delivery in deliveries]
        assert written == list(range(len(values)))
        with client.consumer(topic) as consumer:
            read: list[Record] = []
            while len(read) < len(values):
                read += consumer.poll(timeout_s=10)
        check_stored(read, written, values)


def test_answers_that_get_lost_make_no_duplicates(server: str, topic: str) -> None:
    """The broker stores batches and its answers never arrive: the worst moment for a connection to break."""

    async def scenario() -> None:
        with Relay(server) as relay:
            async with connect(relay.address) as client:
                await client.create_topic(topic, 1)
                async with client.producer(linger_ms=0) as producer:
                    await (await producer.send(topic, b"first"))
                    relay.lose_answers()
                    deliveries = [await producer.send(topic, b"%d" % number) for number in range(20)]
                    async with connect(server) as direct:
                        await written_to(direct, topic, 6)
                    relay.cut()
                    written = [(await asyncio.wait_for(delivery, 10)).offset for delivery in deliveries]
                    assert written == list(range(1, 21))
                stored = (await read_all(client, topic))[0]
                assert [record.value for record in stored[1:]] == [b"%d" % number for number in range(20)]
            assert relay.seen.count(Op.PRODUCE_BATCH) >= 1 + 5 + 5, "the batches in flight went again"

    asyncio.run(scenario())


def test_an_idle_producer_survives_a_cut(server: str, topic: str) -> None:
    with Relay(server) as relay, sync.connect(relay.address) as client, client.producer(linger_ms=0) as producer:
        for number in range(3):
            assert producer.send(topic, b"x", partition=0).result(10).offset == number
            relay.cut()
