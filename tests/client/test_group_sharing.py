"""Members of a group share its partitions: they divide, rebalance, lose nothing, and late commits are refused."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable

import pytest
from relay import Relay
from running_broker import StartBroker

from braidmq.client import BraidError, Client, ConsumedRecord, Consumer, TopicPartition, connect, sync
from braidmq.wire.flymq import Op

SESSION_S = 2.0
WAIT_S = 30.0


async def until(condition: Callable[[], bool], *consumers: Consumer) -> list[ConsumedRecord]:
    """Poll the consumers in turn until the condition holds, as applications would; returns what they read."""
    records: list[ConsumedRecord] = []
    async with asyncio.timeout(WAIT_S):
        while not condition():
            for consumer in consumers:
                records += await consumer.poll(timeout_s=0.05)
    return records


def shares(*consumers: Consumer) -> list[int]:
    return [len(consumer.assignment) for consumer in consumers]


def disjoint(*consumers: Consumer) -> bool:
    owned = [part for consumer in consumers for part in consumer.assignment]
    return len(owned) == len(set(owned))


async def fill(client: Client, topic: str, first: int, count: int, partitions: int) -> None:
    async with client.producer(linger_ms=1) as producer:
        for number in range(first, first + count):
            await producer.send(topic, b"%d" % number, partition=number % partitions)


@pytest.mark.parametrize("assignment", ["range", "roundrobin"])
def test_members_divide_the_partitions_and_every_record_is_read_once(server: str, topic: str, assignment: str) -> None:
    async def scenario() -> None:
        async with connect(server, assignment=assignment, session_timeout_s=SESSION_S) as client:  # type: ignore[arg-type]
            await client.create_topic(topic, 4)
            await fill(client, topic, 0, 400, 4)
            one = client.consumer(topic, group="g")
            records = await until(lambda: shares(one) == [4], one)
            two = client.consumer(topic, group="g")
            joining = asyncio.create_task(two.start())
            records += await until(joining.done, one)
            await joining
            records += await until(lambda: shares(one, two) == [2, 2], one, two)
            assert disjoint(one, two)
            await fill(client, topic, 400, 400, 4)
            seen: Counter[int] = Counter(int(record.value) for record in records)
            async with asyncio.timeout(WAIT_S):
                while len(seen) < 800:
                    for consumer in (one, two):
                        seen.update(int(record.value) for record in await consumer.poll(timeout_s=0.05))
            assert set(seen) == set(range(800))
            assert max(seen.values()) == 1, "a rebalance that everybody takes part in repeats nothing"
            assert sum(info.members for info in await client.group.ls() if info.topic == topic) == 2
            await two.close()
            await until(lambda: shares(one) == [4], one)
            await one.close()
            assert [await client.committed(topic, "g", number) for number in range(4)] == [200] * 4

    asyncio.run(scenario())


def test_a_member_that_dies_is_replaced(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker("--durability", "os")

    async def scenario() -> None:
        with Relay(broker.address) as relay:
            async with (
                connect(broker.address, session_timeout_s=0.6) as client,
                connect(relay.address, session_timeout_s=0.6, timeout_s=1, backoff_first_s=5, backoff_most_s=5) as doomed,
            ):
                await client.create_topic(topic, 2)
                lost = doomed.consumer(topic, group="g", auto_commit=False)
                await lost.start()
                one = client.consumer(topic, group="g")
                joining = asyncio.create_task(one.start())
                await until(joining.done, lost)
                await joining
                await until(lambda: shares(one, lost) == [1, 1], one, lost)
                # From here on it is silent: its connections break, and it waits for long before it comes back.
                relay.cut()
                await until(lambda: shares(one) == [2], one)
                with contextlib.suppress(BraidError):
                    await lost.close()
                await one.close()

    asyncio.run(scenario())


def test_a_late_commit_of_a_member_that_was_left_behind_is_refused(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker("--durability", "os")

    async def scenario() -> None:
        async with connect(broker.address, session_timeout_s=0.5) as client:
            await client.create_topic(topic, 1)
            await fill(client, topic, 0, 10, 1)
            slow = client.consumer(topic, group="g", auto_commit=False)
            assert len(await slow.poll(4, timeout_s=WAIT_S)) == 4
            # The other joins while the first one processes, and the broker's patience with the first one ends.
            quick = client.consumer(topic, group="g")
            async with asyncio.timeout(WAIT_S):
                await quick.start()
                owner = quick if quick.assignment else slow
                assert owner is quick, "the one that came back in time has it all"
                with pytest.raises(BraidError, match=r"FENCED_MEMBER|UNKNOWN_MEMBER"):
                    await slow.commit()
            assert await client.committed(topic, "g", 0) == 0
            records = await quick.poll(timeout_s=WAIT_S)
            assert records[0].offset == 0, "what was never committed comes again"
            await slow.close()
            await quick.close()

    asyncio.run(scenario())


def test_the_loop_gives_partitions_up_between_two_records(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server, session_timeout_s=SESSION_S) as client:
            await client.create_topic(topic, 2)
            await fill(client, topic, 0, 2000, 2)
            one, two = client.consumer(topic, group="loop"), client.consumer(topic, group="loop")
            seen: Counter[tuple[int, int]] = Counter()
            under_way, done = asyncio.Event(), asyncio.Event()

            async def read(consumer: Consumer) -> None:
                async for record in consumer:
                    seen[record.partition, record.offset] += 1
                    await asyncio.sleep(0.0005)
                    if len(seen) >= 50:
                        under_way.set()
                    if len(seen) == 2000:
                        done.set()

            tasks = [asyncio.create_task(read(one))]
            async with asyncio.timeout(WAIT_S):
                await under_way.wait()
                tasks.append(asyncio.create_task(read(two)))
                await done.wait()
            assert shares(one, two) == [1, 1]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert max(seen.values()) == 1
            await one.close()
            await two.close()

    asyncio.run(scenario())


def test_a_restart_of_the_broker_brings_the_members_back(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()

    async def scenario() -> None:
        async with connect(broker.address, session_timeout_s=SESSION_S) as client:
            await client.create_topic(topic, 2)
            one, two = client.consumer(topic, group="g"), client.consumer(topic, group="g")
            first = asyncio.create_task(one.start())
            await first
            second = asyncio.create_task(two.start())
            await until(second.done, one)
            await second
            await until(lambda: shares(one, two) == [1, 1], one, two)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            await fill(client, topic, 0, 100, 2)
            seen: Counter[int] = Counter()
            async with asyncio.timeout(WAIT_S):
                while len(seen) < 100:
                    for consumer in (one, two):
                        seen.update(int(record.value) for record in await consumer.poll(timeout_s=0.05))
            await until(lambda: shares(one, two) == [1, 1] and disjoint(one, two), one, two)
            await one.close()
            await two.close()

    asyncio.run(scenario())


def test_a_member_that_the_broker_forgot_commits_on_close_all_the_same(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()
    with sync.connect(broker.address, auto_commit_interval_s=3600) as client:
        client.create_topic(topic, 2)
        for number in range(10):
            client.produce(topic, b"%d" % number, partition=number % 2)
        consumer = client.consumer(topic, group="g")
        records = 0
        while records < 10:
            records += len(consumer.poll(timeout_s=WAIT_S))
        broker.restart()
        consumer.close()
        assert [client.committed(topic, "g", number) for number in range(2)] == [5, 5]


def test_blocking_members_share_too(server: str, topic: str) -> None:
    with sync.connect(server, session_timeout_s=SESSION_S) as client:
        client.create_topic(topic, 2)
        for number in range(100):
            client.produce(topic, b"%d" % number, partition=number % 2)
        with client.consumer(topic, group="sync") as one:
            seen: Counter[int] = Counter()
            while len(seen) < 100:
                seen.update(int(record.value) for record in one.poll(timeout_s=5))
            assert len(one.assignment) == 2
            with sync.connect(server, session_timeout_s=SESSION_S) as other:
                two = other.consumer(topic, group="sync")
                started = threading.Thread(target=two.start)
                started.start()
                while started.is_alive():
                    one.poll(timeout_s=0.05)
                started.join()
                while [len(one.assignment), len(two.assignment)] != [1, 1]:
                    assert not one.poll(timeout_s=0.05)
                    assert not two.poll(timeout_s=0.05)
                two.close()
            while len(one.assignment) != 2:
                assert not one.poll(timeout_s=0.05)
        assert [client.committed(topic, "sync", number) for number in range(2)] == [50, 50]


def test_all_means_that_everybody_reads_everything(server: str, topic: str) -> None:
    async def scenario() -> None:
        with Relay(server) as relay:
            async with connect(relay.address) as client:
                await client.create_topic(topic, 3)
                async with (
                    client.consumer(topic, group="g", assignment="all") as one,
                    client.consumer(topic, group="g", assignment="all") as two,
                    client.consumer({topic: [0, 1, 2]}, group="g") as three,
                ):
                    assert shares(one, two, three) == [3, 3, 3]
            assert Op.GROUP_JOIN not in relay.seen

    asyncio.run(scenario())


def test_a_server_that_divides_nothing_is_read_whole(server: str, topic: str) -> None:
    async def scenario() -> None:
        with Relay(server, rejects=lambda op: op == Op.GROUP_JOIN) as relay:
            async with connect(relay.address) as client:
                await client.create_topic(topic, 2)
                await fill(client, topic, 0, 10, 2)
                async with client.consumer(topic, group="g") as consumer:
                    assert shares(consumer) == [2]
                    records = await consumer.poll(timeout_s=WAIT_S)
                    while len(records) < 10:
                        records += await consumer.poll(timeout_s=WAIT_S)
                assert await client.committed(topic, "g", 0) == 5
            assert Op.COMMIT in relay.seen and Op.GROUP_COMMIT not in relay.seen

    asyncio.run(scenario())


def test_more_members_than_partitions_wait_for_their_turn(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server, session_timeout_s=SESSION_S) as client:
            await client.create_topic(topic, 1)
            one, two = client.consumer(topic, group="g"), client.consumer(topic, group="g")
            await one.start()
            joining = asyncio.create_task(two.start())
            await until(joining.done, one)
            await joining
            await until(lambda: sorted(shares(one, two)) == [0, 1], one, two)
            reader, waiter = (one, two) if one.assignment else (two, one)
            assert await waiter.poll(timeout_s=0.1) == []
            await client.produce(topic, b"a", partition=0)
            assert [record.value for record in await reader.poll(timeout_s=WAIT_S)] == [b"a"]
            await reader.close()
            await client.produce(topic, b"b", partition=0)
            records = await until(lambda: shares(waiter) == [1], waiter)
            while not records:
                records += await waiter.poll(timeout_s=WAIT_S)
            assert [record.value for record in records] == [b"b"], "it goes on where the other one committed"
            await waiter.close()

    asyncio.run(scenario())


def test_a_member_commits_only_what_it_reads(server: str, topic: str) -> None:
    with sync.connect(server) as client:
        client.create_topic(topic, 1)
        with client.consumer(topic, group="g") as consumer:
            with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
                consumer.commit({TopicPartition(topic, 7): 1})
            consumer.commit({TopicPartition(topic, 0): 0})
            assert consumer.positions() == {TopicPartition(topic, 0): 0}
