"""The consumer against a real broker: order, positions, groups, commits, seeking, and what it survives."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Sequence

import pytest
from relay import Relay
from running_broker import StartBroker

from braidmq import hot
from braidmq.client import BraidError, Client, Record, TopicPartition, connect, sync
from braidmq.client.inbox import Chunk, Inbox, PartitionState
from braidmq.client.reading import record_maker


async def fill(client: Client, topic: str, count: int, partitions: int = 3) -> None:
    """Records 0 to count-1, number n in partition n mod partitions."""
    await client.create_topic(topic, partitions)
    async with client.producer(linger_ms=1) as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number, partition=number % partitions)


def check_complete(records: Sequence[Record], count: int, partitions: int = 3) -> None:
    assert sorted(int(record.value) for record in records) == list(range(count))
    for partition in range(partitions):
        offsets = [record.offset for record in records if record.partition == partition]
        assert offsets == list(range(len(offsets))), "each once, in order"


def test_all_partitions_are_read_in_order(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server) as client:
            await fill(client, topic, 3000)
            async with client.consumer(topic) as consumer:
                records = []
                async for record in consumer:
                    records.append(record)
                    if len(records) == 1000:
                        break
                assert sum(consumer.position(topic, partition) for partition in range(3)) == 1000
                async for record in consumer:
                    records.append(record)
                    if len(records) == 3000:
                        break
                check_complete(records, 3000)
                assert consumer.assignment == [TopicPartition(topic, partition) for partition in range(3)]
                assert all(record.timestamp > 1_600_000_000_000 for record in records)

    asyncio.run(scenario())


def test_poll_returns_what_there_is_and_no_more_than_asked(server: str, topic: str) -> None:
    with sync.connect(server) as client:
        asyncio.run(_fill(server, topic, 1200))
        with client.consumer(topic) as consumer:
            assert len(consumer.poll(7, timeout_s=10)) == 7
            records: list[Record] = []
            while len(records) < 1193:
                found = consumer.poll(timeout_s=10)
                assert 0 < len(found) <= 500
                records += found
            begun = time.monotonic()
            assert consumer.poll(timeout_s=0.2) == []
            assert 0.19 < time.monotonic() - begun < 5


async def _fill(server: str, topic: str, count: int) -> None:
    async with connect(server) as client:
        await fill(client, topic, count)


def test_a_waiting_consumer_gets_a_record_as_it_is_written(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server) as client:
            await client.create_topic(topic, 2)
            async with client.consumer(topic, fetch_wait_ms=20_000) as consumer:
                for number in range(5):
                    waiting = asyncio.create_task(consumer.poll(timeout_s=10))
                    await asyncio.sleep(0)
                    await client.produce(topic, b"%d" % number, partition=number % 2)
                    assert [record.value for record in await waiting] == [b"%d" % number]

    asyncio.run(scenario())


def test_partitions_share_connections_when_there_are_more(server: str, topic: str) -> None:
    async def scenario() -> None:
        with Relay(server) as relay:
            async with connect(relay.address, fetch_connections=2) as client:
                await fill(client, topic, 2000, partitions=10)
                async with client.consumer(topic) as consumer:
                    records: list[Record] = []
                    while len(records) < 2000:
                        records += await consumer.poll(timeout_s=10)
                    check_complete(records, 2000, partitions=10)
                    for number in range(10):
                        await client.produce(topic, b"late", partition=number)
                        assert [record.partition for record in await consumer.poll(timeout_s=10)] == [number]

    asyncio.run(scenario())


def test_some_partitions_of_some_topics(server: str, topic: str) -> None:
    async def scenario() -> None:
        other = topic + "/other"
        async with connect(server) as client:
            await fill(client, topic, 9)
            await fill(client, other, 6)
            async with client.consumer({topic: [1], other: [0, 2]}) as consumer:
                records: list[Record] = []
                while len(records) < 7:
                    records += await consumer.poll(timeout_s=10)
                assert {(record.topic, record.partition) for record in records} == {(topic, 1), (other, 0), (other, 2)}
            with pytest.raises(BraidError, match="PARTITION_NOT_FOUND"):
                await client.consumer({topic: [3]}).start()
            with pytest.raises(BraidError, match="TOPIC_NOT_FOUND"):
                await client.consumer([topic, "no such topic"]).start()

    asyncio.run(scenario())


@pytest.mark.parametrize("arguments", [{"start": "sideways"}, {"start": "committed"}, {"topics": []}])
def test_what_makes_no_sense_is_refused(server: str, topic: str, arguments: dict[str, object]) -> None:
    with sync.connect(server) as client, pytest.raises(BraidError, match="INVALID_ARGUMENT"):
        client.consumer(**({"topics": topic} | arguments))  # type: ignore[arg-type]


# --- groups and commits


def test_a_group_goes_on_where_it_committed(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server) as client:
            await fill(client, topic, 30, partitions=1)
            async with client.consumer(topic, group="g", auto_commit=False) as consumer:
                assert [record.offset for record in await consumer.poll(10, timeout_s=10)] == list(range(10))
                await consumer.commit()
                await consumer.poll(10, timeout_s=10)
            assert await client.committed(topic, "g", 0) == 10
            async with client.consumer(topic, group="g") as consumer:
                assert (await consumer.poll(1, timeout_s=10))[0].offset == 10
                assert await consumer.committed(topic, 0) == 10
                await consumer.commit({TopicPartition(topic, 0): 25})
            assert await client.committed(topic, "g", 0) == 11, "closing commits what was handed out last"
            async with client.consumer(topic, group="g", start="earliest") as consumer:
                assert (await consumer.poll(1, timeout_s=10))[0].offset == 0
            async with client.consumer(topic, group="h", start="latest") as consumer:
                assert await consumer.poll(1, timeout_s=0.1) == []
                await client.produce(topic, b"new", partition=0)
                assert (await consumer.poll(1, timeout_s=10))[0].offset == 30

    asyncio.run(scenario())


def test_automatic_commits_never_run_ahead_of_the_application(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server) as client:
            await fill(client, topic, 30, partitions=1)

            async def committed(at_least: int) -> int:
                while (offset := await client.committed(topic, "g", 0)) < at_least:  # noqa: ASYNC110  (nothing to wait for)
                    await asyncio.sleep(0.01)
                # It stays there: were it to run ahead, the next few commits would show it.
                await asyncio.sleep(0.06)
                assert await client.committed(topic, "g", 0) == offset
                return offset

            consumer = client.consumer(topic, group="g", auto_commit_interval_s=0.02)
            stream = aiter(consumer)
            for number in range(5):
                assert (await anext(stream)).offset == number
            assert await committed(4) == 4, "the record in hand is not processed yet"
            assert (await anext(stream)).offset == 5
            assert await committed(5) == 5
            assert len(await consumer.poll(10, timeout_s=10)) == 10
            assert await committed(6) == 6, "nor are the records of a poll, until the next one"
            await consumer.poll(1, timeout_s=10)
            assert await committed(16) == 16
            await consumer.close()
            assert await client.committed(topic, "g", 0) == 17

    asyncio.run(scenario())


def test_an_exception_leaves_the_record_in_hand_uncommitted(server: str, topic: str) -> None:
    with sync.connect(server) as client:
        asyncio.run(_fill(server, topic, 90))
        group = "g"
        with pytest.raises(ZeroDivisionError), client.consumer({topic: [0]}, group=group) as consumer:
            for record in consumer:
                if record.offset == 7:
                    raise ZeroDivisionError
        assert client.committed(topic, group, 0) == 7
        with client.consumer({topic: [0]}, group=group) as consumer:
            for record in consumer:
                assert record.offset >= 7
                if record.offset == 9:
                    break
        assert client.committed(topic, group, 0) == 10
        with pytest.raises(ZeroDivisionError), client.consumer({topic: [0]}, group=group) as consumer:
            consumer.poll(5, timeout_s=10)
            consumer.poll(5, timeout_s=10)
            raise ZeroDivisionError
        assert client.committed(topic, group, 0) == 15


def test_without_a_group_nothing_is_committed(server: str, topic: str) -> None:
    with sync.connect(server) as client:
        client.create_topic(topic, 1)
        with client.consumer(topic) as consumer, pytest.raises(BraidError, match="INVALID_ARGUMENT"):
            consumer.commit()


# --- seeking


def test_seeking_while_reading(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server) as client:
            await fill(client, topic, 3000)
            begun = time.monotonic()
            async with client.consumer({topic: [1]}, fetch_wait_ms=20_000) as consumer:
                offsets = []
                async for record in consumer:
                    offsets.append(record.offset)
                    if len(offsets) == 3:
                        consumer.seek(topic, 1, 900)
                        assert consumer.position(topic, 1) == 900
                    if len(offsets) == 5:
                        break
                assert offsets == [0, 1, 2, 900, 901]
                await consumer.seek_to_beginning()
                assert (await consumer.poll(2, timeout_s=10))[-1].offset == 1
                await consumer.seek_to_end(topic)
                assert consumer.position(topic, 1) == 1000
                assert await consumer.poll(timeout_s=0.05) == []
                consumer.seek(topic, 1, 999)
                assert [record.offset for record in await consumer.poll(timeout_s=10)] == [999]
                for wrong in ((topic, 0, 0), (topic, 1, -1), ("other", 1, 0)):
                    with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
                        consumer.seek(*wrong)
                with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
                    await consumer.seek_to_end("other")
            assert time.monotonic() - begun < 10, "a fetch that waits at the end does not hold up a seek"
            with pytest.raises(BraidError, match="not started"):
                client.consumer(topic).seek(topic, 0, 0)

    asyncio.run(scenario())


def test_an_offset_that_is_not_there_is_left_for_the_nearest(server: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    with sync.connect(server) as client:
        client.create_topic(topic, 1)
        client.produce(topic, b"0", partition=0)
        with client.consumer(topic, fetch_wait_ms=20) as consumer:
            consumer.poll(timeout_s=10)
            consumer.seek(topic, 0, 12345)
            while consumer.position(topic, 0) == 12345:
                assert consumer.poll(timeout_s=0.05) == []
            client.produce(topic, b"1", partition=0)
            assert [record.offset for record in consumer.poll(timeout_s=10)] == [1]
    assert "has no offset 12345; going on at 1" in caplog.text


# --- trouble


def test_a_restart_of_the_broker_is_not_noticed(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()
    with sync.connect(broker.address) as client, client.producer(linger_ms=1) as producer:
        client.create_topic(topic, 2)
        with client.consumer(topic, group="g", auto_commit_interval_s=0.05) as consumer:
            records: list[Record] = []
            for number in range(3):
                for value in range(1000):
                    producer.send(topic, b"%d" % (1000 * number + value), partition=value % 2)
                producer.flush()
                if number == 1:
                    broker.restart()
                while len(records) < 1000 * (number + 1):
                    records += consumer.poll(timeout_s=20)
            values = [int(record.value) for record in records]
            assert sorted(values) == list(range(3000))
            for partition in range(2):
                assert [record.offset for record in records if record.partition == partition] == list(range(1500))
        assert [client.committed(topic, "g", partition) for partition in range(2)] == [1500, 1500]


def test_a_cut_connection_repeats_and_skips_nothing(server: str, topic: str) -> None:
    async def scenario() -> None:
        with Relay(server) as relay:
            async with connect(relay.address) as client:
                await fill(client, topic, 3000)
                async with client.consumer(topic, fetch_bytes=1024, prefetch_bytes=65536) as consumer:
                    records: list[Record] = []
                    for number in itertools.count():
                        records += await consumer.poll(50, timeout_s=10)
                        if number % 10 == 5:
                            relay.cut()
                        if len(records) >= 3000:
                            break
                    check_complete(records, 3000)

    asyncio.run(scenario())


def test_a_broker_that_is_gone_is_reported(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()

    async def scenario() -> None:
        async with connect(broker.address, timeout_s=0.5) as client:
            await client.create_topic(topic, 1)
            consumer = client.consumer(topic, group="g", auto_commit=False)
            await consumer.start()
            broker.kill()
            with pytest.raises(BraidError, match="UNREACHABLE"):
                await consumer.poll(timeout_s=20)
            broker.start()
            await client.produce(topic, b"back", partition=0)
            while not (records := await consumer.poll(timeout_s=10)):
                pass
            assert records[0].value == b"back"
            await consumer.close()

    asyncio.run(scenario())


def test_a_deleted_topic_is_an_error_for_its_reader(server: str, topic: str) -> None:
    with sync.connect(server) as client:
        asyncio.run(_fill(server, topic, 3))
        with client.consumer(topic) as consumer:
            while consumer.poll(timeout_s=0.1):
                pass
            client.delete_topic(topic)
            with pytest.raises(BraidError, match="TOPIC_NOT_FOUND"):
                consumer.poll(timeout_s=20)


def test_a_closed_consumer_says_so_and_wakes_its_reader(server: str, topic: str) -> None:
    with sync.connect(server) as client:
        client.create_topic(topic, 1)
        consumer = client.consumer(topic)
        consumer.start()
        closing = threading.Timer(0.1, consumer.close)
        closing.start()
        with pytest.raises(BraidError, match="CLIENT_CLOSED"):
            consumer.poll(timeout_s=30)
        closing.join()


# --- book-keeping without a network


def test_prefetch_is_bounded_for_each_partition() -> None:
    inbox = Inbox(prefetch_bytes=1 << 20, fetch_bytes=1 << 20)
    parts = [PartitionState("t", number, 0, record_maker("t", number, None)) for number in range(2)]
    inbox.replace(parts)
    assert inbox.fetch_bytes == 1 << 18
    inbox.deliver(Chunk(parts[0], 0, 0, 10, bytes(1 << 18)))
    assert inbox.wanting(parts) == parts
    inbox.deliver(Chunk(parts[0], 0, 10, 20, bytes(1 << 18)))
    assert inbox.wanting(parts) == [parts[1]]
    chunk = inbox.take()
    assert chunk is not None and chunk.next_offset == 10
    assert inbox.wanting(parts) == parts
    inbox.seek(parts[0], 3)
    inbox.deliver(Chunk(parts[0], 0, 20, 30))
    assert parts[0].fetch_offset == 3, "an answer from before the seek is void"
    assert inbox.take() is None, "and so is what was buffered"
    fault = BraidError("TOPIC_NOT_FOUND", topic="t")
    inbox.fail(parts[1], 0, fault)
    assert inbox.wanting(parts) == [parts[0]]
    with pytest.raises(BraidError, match="TOPIC_NOT_FOUND"):
        inbox.take()
    assert inbox.wanting(parts) == parts


def test_a_chunk_is_read_in_pieces_of_whole_batches() -> None:
    batches = []
    for base_offset in range(0, 100, 10):
        batch = hot.encode_batch([None] * 10, [b"%d" % (base_offset + n) + bytes(4000) for n in range(10)])
        batches.append(bytes(hot.stamp_batch(batch, base_offset, 0, 7)))
    part = PartitionState("t", 0, 5, record_maker("t", 0, None))
    chunk = Chunk(part, 0, 5, 100, b"".join(batches))
    pieces = []
    while piece := chunk.read():
        pieces.append(piece)
        assert chunk.offset == piece[-1].offset + 1
    assert len(pieces) == 4, "three batches of 40 kB fit a piece"
    assert [record.offset for piece in pieces for record in piece] == list(range(5, 100))
    assert chunk.read() == []


def test_what_was_read_is_committed_by_a_close_between_two_shares(start_broker: StartBroker, topic: str) -> None:
    """The broker forgets its members in a restart. One that has given its partitions up, uncommitted, and closes before its next
    share is there, commits with that share."""
    broker = start_broker()

    async def scenario() -> None:
        async with connect(broker.address) as client:
            await fill(client, topic, 100)
            consumer = client.consumer(topic, group="g", start="earliest", auto_commit_interval_s=600)
            records: list[Record] = []
            while len(records) < 100:
                records += await consumer.poll(timeout_s=20)
            parts = consumer.assignment
            membership = consumer._membership
            assert membership is not None
            join, may_join = membership._join, asyncio.Event()

            async def held_back() -> object:
                await may_join.wait()
                return await join()

            membership._join = held_back  # type: ignore[method-assign, assignment]
            broker.restart()
            while consumer._kept is None:
                assert not await consumer.poll(timeout_s=0.1)
            assert consumer.assignment == []
            may_join.set()
            await consumer.close()
            committed = [await client.committed(name, "g", partition) for name, partition in parts]
            ends = [max(r.offset for r in records if r.partition == partition) + 1 for _, partition in parts]
            assert committed == ends

    asyncio.run(scenario())
