"""Single requests against a real broker, in both worlds."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading

import pytest

from braidmq import hot
from braidmq.client import BraidError, TopicPartition, connect, sync
from braidmq.client.models import NO_TIMESTAMP


def test_topics_come_and_go(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server) as client:
            await client.create_topic(topic, 4)
            await client.create_topic(topic, 9)
            await client.create_topic(topic + "/own", 1, {"durability": "none"})
            with pytest.raises(BraidError, match="durability"):
                await client.create_topic(topic + "/wrong", 1, {"durability": "perhaps"})
            assert topic in await client.list_topics()
            info = await client.metadata(topic)
            assert [(part.partition, part.oldest, part.newest) for part in info.partitions] == [(n, 0, 0) for n in range(4)]
            await client.delete_topic(topic)
            await client.delete_topic(topic)
            assert topic not in await client.list_topics()
            with pytest.raises(BraidError) as caught:
                await client.metadata(topic)
            assert caught.value.code == "TOPIC_NOT_FOUND"
            assert topic in caught.value.text
            assert "braid topic ls" in caught.value.hint

    asyncio.run(scenario())


def test_one_record_there_and_back(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server) as client:
            written = await client.produce(topic, b"value", key=b"key")
            assert written.topic == topic
            assert written.partition == hot.fnv1a(b"key") % 3
            assert written.offset == 0
            read = await client.consume(topic, written.partition, 0)
            assert (read.key, read.value, read.timestamp) == (b"key", b"value", NO_TIMESTAMP)
            with pytest.raises(BraidError) as caught:
                await client.consume(topic, written.partition, 1)
            assert caught.value.code == "EOF"
            assert caught.value.retriable
            assert (await client.produce(topic, b"", partition=2)).partition == 2
            with pytest.raises(BraidError, match="PARTITION_NOT_FOUND"):
                await client.produce(topic, b"x", partition=3)

    asyncio.run(scenario())


def test_headers_travel_with_a_record(server: str, topic: str) -> None:
    headers = {"trace": b"\x00\xff", "empty": b""}

    async def scenario() -> None:
        async with connect(server) as client:
            written = await client.produce(topic, b"v", key=b"user-123", headers=headers)
            assert written.partition == hot.fnv1a(b"user-123") % 3
            found = await client.fetch(topic, written.partition, 0)
            assert found.records[0].headers == headers
            assert found.records[0].timestamp == written.timestamp
            await client.produce(topic, b"w", headers=headers, partition=written.partition)
            assert [r.value for r in (await client.fetch(topic, written.partition, 0)).records] == [b"v", b"w"]

    asyncio.run(scenario())


def test_fetch_reads_from_an_offset_to_the_end(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server) as client:
            await client.create_topic(topic, 1)
            async with client.producer() as producer:
                for number in range(100):
                    await producer.send(topic, b"%d" % number)
            found = await client.fetch(topic, 0, 40, max_records=10)
            assert [int(record.value) for record in found.records] == list(range(40, 50))
            assert found.next_offset == 50
            assert (await client.fetch(topic, 0, 100)).records == []
            assert (await client.metadata(topic)).records == 100
            raw = await client.fetch_batches(topic, 0, 40, max_bytes=1)
            assert (raw.high_watermark, raw.log_start) == (100, 0)
            with pytest.raises(BraidError, match="OFFSET_OUT_OF_RANGE"):
                await client.fetch_batches(topic, 0, 101)

    asyncio.run(scenario())


def test_a_fetch_may_wait_and_holds_up_nobody(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server, pool_size=1) as client:
            await client.create_topic(topic, 1)
            waiting = asyncio.create_task(client.fetch(topic, 0, 0, max_wait_ms=20_000))
            await client.list_topics()
            await client.produce(topic, b"now", partition=0)
            found = await asyncio.wait_for(waiting, 10)
            assert [record.value for record in found.records] == [b"now"]

    asyncio.run(scenario())


def test_an_offset_is_found_by_time(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server) as client:
            await client.create_topic(topic, 1)
            assert await client.offset_for_time(topic, 0, 0) == 0
            stamps = []
            for number in range(20):
                stamps.append((await client.produce(topic, b"%d" % number, partition=0)).timestamp)
                if number == 9:
                    await asyncio.sleep(0.01)
            for stamp in {*stamps, stamps[9] + 1}:
                wanted = next((number for number, other in enumerate(stamps) if other >= stamp), 20)
                assert await client.offset_for_time(topic, 0, stamp) == wanted
            assert await client.offset_for_time(topic, 0, 0) == 0
            assert await client.offset_for_time(topic, 0, stamps[-1] + 1) == 20
            with pytest.raises(BraidError, match="PARTITION_NOT_FOUND"):
                await client.offset_for_time(topic, 1, 0)

    asyncio.run(scenario())


def test_groups_remember(server: str, topic: str) -> None:
    with sync.connect(server) as client:
        client.create_topic(topic, 2)
        client.produce(topic, b"a", partition=1)
        assert client.committed(topic, "g", 1) == 0
        client.commit(topic, "g", 1, 1)
        assert client.committed(topic, "g", 1) == 1
        assert client.subscribe(topic, "g", 1, "earliest") == 0
        assert client.subscribe(topic, "g", 1, "latest") == 1
        with pytest.raises(BraidError, match="INVALID_MODE"):
            client.subscribe(topic, "g", 1, "sideways")


def test_many_tasks_share_one_connection(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server, pool_size=1) as client:
            await client.create_topic(topic, 1)
            written = await asyncio.gather(*(client.produce(topic, b"%d" % number, partition=0) for number in range(200)))
            for number, metadata in enumerate(written):
                assert (await client.consume(topic, 0, metadata.offset)).value == b"%d" % number

    asyncio.run(scenario())


def test_a_task_that_is_cancelled_harms_no_other(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server, pool_size=1) as client:
            await client.create_topic(topic, 1)
            for round_number in range(20):
                tasks = [asyncio.create_task(client.produce(topic, b"%d" % number, partition=0)) for number in range(10)]
                for _ in range(round_number % 5):
                    await asyncio.sleep(0)
                for task in tasks[::3]:
                    task.cancel()
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
                for number, outcome in enumerate(outcomes):
                    if isinstance(outcome, asyncio.CancelledError):
                        assert number % 3 == 0
                        continue
                    assert not isinstance(outcome, BaseException), outcome
                    assert (await client.consume(topic, 0, outcome.offset)).value == b"%d" % number

    asyncio.run(scenario())


def test_many_threads_share_one_client(server: str, topic: str) -> None:
    with sync.connect(server, pool_size=2) as client:
        client.create_topic(topic, 1)
        wrong: list[str] = []

        def work(name: int) -> None:
            for number in range(50):
                value = b"%d/%d" % (name, number)
                offset = client.produce(topic, value, partition=0).offset
                if client.consume(topic, 0, offset).value != value:
                    wrong.append(f"{value!r} at {offset}")

        threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert client.metadata(topic).records == 300


def test_a_server_that_does_not_answer_is_a_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"

        async def scenario() -> None:
            async with connect(address, timeout_s=0.3) as client:
                with pytest.raises(BraidError, match=r"TIMED_OUT: the answer of .* took longer than 0\.3 s"):
                    await client.list_topics()

        asyncio.run(scenario())
        with sync.connect(address, timeout_s=0.3) as client, pytest.raises(BraidError, match="TIMED_OUT"):
            client.list_topics()


def test_a_server_that_speaks_something_else_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.recv(100)

        thread = threading.Thread(target=answer)
        thread.start()
        client = sync.connect(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=5)
        with pytest.raises(BraidError, match=r"CONNECTION_LOST.*no FlyMQ.*48"):
            client.produce("t", b"v")
        client.close()
        thread.join()


def test_a_closed_client_says_so(server: str) -> None:
    client = sync.connect(server)
    client.open()
    client.close()
    with pytest.raises(BraidError, match="CLIENT_CLOSED"):
        client.list_topics()


def test_frames_are_dumped_at_debug_level(server: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "braidmq.client"), sync.connect(server) as client:
        client.produce(topic, b"look at me")
    dumped = "\n".join(caplog.messages)
    assert f"-> {server} PRODUCE (01)" in dumped
    assert f"<- {server} PRODUCE (01)" in dumped
    assert "6f 6f 6b 20 61 74 20 6d 65" in dumped


def test_positions_are_keyed_by_plain_tuples() -> None:
    assert {TopicPartition("t", 1): 5}[("t", 1)] == 5  # type: ignore[index]
