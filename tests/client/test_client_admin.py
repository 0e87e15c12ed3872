"""Groups, schemas, dead letters, delays, time to live and transactions through the client, against a real broker."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from typing import Any

import pytest
from relay import Relay
from running_broker import StartBroker

from braidmq.client import BraidError, Client, ConsumedRecord, TopicPartition, connect, provenance, sync
from braidmq.wire import flymq

WAIT_S = 30.0
SCHEMA = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}).encode()


@pytest.fixture
def name() -> str:
    return f"name-{uuid.uuid4().hex}"


async def values(client: Client, topic: str, partition: int = 0) -> list[bytes]:
    return [record.value for record in (await client.fetch(topic, partition, 0)).records]


async def until_value(client: Client, topic: str, value: bytes, partition: int = 0) -> None:
    async with asyncio.timeout(WAIT_S):
        while value not in await values(client, topic, partition):  # noqa: ASYNC110  (the broker tells nobody)
            await asyncio.sleep(0.02)


# --- groups


def test_groups_are_listed_measured_moved_and_removed(server: str, topic: str, name: str) -> None:
    async def scenario() -> None:
        async with connect(server) as client:
            await client.create_topic(topic, 2)
            stamps = [(await client.produce(topic, b"%d" % number, partition=0)).timestamp for number in range(3)]
            await asyncio.sleep(0.02)
            late = await client.produce(topic, b"late", partition=0)
            await client.commit(topic, name, 0, 1)

            found = [info for info in await client.group.ls() if info.group == name]
            assert [(info.topic, info.members, [(o.partition, o.offset) for o in info.offsets]) for info in found] == [
                (topic, 0, [(0, 1)])
            ]
            lag = await client.group.lag(name)
            assert [(part.topic, part.partition, part.committed, part.latest, part.lag) for part in lag] == [
                (topic, 0, 1, 4, 3), (topic, 1, 0, 0, 0),
            ]  # fmt: skip
            assert 0 < lag[0].lag_ms < 60_000 and lag[1].lag_ms == 0
            assert await client.group.lag(name, topic) is not None
            state = await client.group.show(name)
            assert (state.state, state.members, state.lag) == ("empty", (), 3)

            planned = await client.group.seek(name, topic, "latest", dry_run=True)
            assert [(change.before, change.after) for change in planned] == [(1, 4), (0, 0)]
            assert await client.committed(topic, name, 0) == 1, "a dry run changes nothing"
            assert await client.group.seek(name, topic, "latest") == planned
            assert await client.committed(topic, name, 0) == 4
            await client.group.seek(name, topic, offset=2, partitions=[0])
            assert await client.committed(topic, name, 0) == 2
            await client.group.seek(name, topic, offset=99, partitions=[0])
            assert await client.committed(topic, name, 0) == 4, "no further than there is anything"
            await client.group.seek(name, topic, timestamp_ms=late.timestamp)
            assert await client.committed(topic, name, 0) == 3
            await client.group.seek(name, topic, timestamp_ms=stamps[0])
            assert await client.committed(topic, name, 0) == 0
            for arguments in ({}, {"to": "earliest", "offset": 1}):
                with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
                    await client.group.seek(name, topic, **arguments)  # type: ignore[arg-type]
            with pytest.raises(BraidError, match="INVALID_RESET_MODE"):
                await client.group.seek(name, topic, "sideways")  # type: ignore[arg-type]
            with pytest.raises(BraidError, match="PARTITION_NOT_FOUND"):
                await client.group.seek(name, topic, "latest", partitions=[5])

            await client.group.rm(name)
            assert name not in [info.group for info in await client.group.ls()]
            with pytest.raises(BraidError, match="GROUP_NOT_FOUND"):
                await client.group.show(name)

    asyncio.run(scenario())


# --- schemas


def test_schemas_from_the_first_version_to_the_last(server: str, topic: str, name: str) -> None:
    pytest.importorskip("jsonschema_rs")

    async def scenario() -> None:
        async with connect(server) as client:
            first = await client.schema.put(name, SCHEMA)
            assert (first.name, first.type, first.version) == (name, "json", 1)
            assert (await client.schema.put(name, SCHEMA)).version == 1, "the same again is the same version"
            wider = json.loads(SCHEMA)
            wider["properties"]["note"] = {"type": "string"}
            assert (await client.schema.put(name, json.dumps(wider).encode(), compatibility="backward")).version == 2
            narrower = {**wider, "required": ["n", "more"]}
            with pytest.raises(BraidError, match="SCHEMA_INCOMPATIBLE"):
                await client.schema.put(name, json.dumps(narrower).encode())
            assert [entry.version for entry in await client.schema.ls(name)] == [1, 2]
            assert (await client.schema.get(name, 1)).definition == SCHEMA
            assert (await client.schema.get(name)).compatibility == "backward"
            difference = await client.schema.diff(name, 1)
            assert '+    "note": {' in difference and "-    " not in difference.replace("---", "")
            assert await client.schema.diff(name, 1, 1) == ""

            assert (await client.schema.check(name, b'{"n": 1}')).valid
            wrong = await client.schema.check(name, b'{"n": "one"}')
            assert not wrong.valid and wrong.errors

            await client.create_topic(topic, 1)
            await client.produce(topic, b'{"n": 1}', schema=name, key=b"k")
            with pytest.raises(BraidError, match="SCHEMA_VALIDATION_FAILED"):
                await client.produce(topic, b"{}", schema=name)
            await client.produce(topic, b"unchecked")
            bound = await client.schema.bind(topic, name)
            assert bound["schema"] == name
            with pytest.raises(BraidError, match="SCHEMA_VALIDATION_FAILED"):
                await client.produce(topic, b"unchecked")
            await client.schema.bind(topic, name, "dead-letter")
            await client.produce(topic, b"buried")
            letters = await client.dlq.ls(topic)
            assert [letter.data for letter in letters] == [b"buried"]
            assert "schema" not in await client.schema.bind(topic, "")
            await client.produce(topic, b"free again")
            assert await values(client, topic) == [b'{"n": 1}', b"unchecked", b"free again"]

            await client.schema.rm(name, 1)
            assert [entry.version for entry in await client.schema.ls(name)] == [2]
            await client.schema.rm(name)
            with pytest.raises(BraidError, match="SCHEMA_NOT_FOUND"):
                await client.schema.get(name)

    asyncio.run(scenario())


# --- dead letters


def test_a_record_that_fails_comes_again_and_is_a_dead_letter_in_the_end(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker("--durability", "os", "--dlq-retry", "100ms")

    async def scenario() -> None:
        async with connect(broker.address) as client:
            await client.create_topic(topic, 1)
            for number in range(5):
                await client.produce(topic, b"%d" % number, key=b"k", partition=0)
            seen: list[bytes] = []
            async with client.consumer(topic, group="g") as consumer, asyncio.timeout(WAIT_S):
                async for record in consumer:
                    seen.append(record.value)
                    if record.value == b"1":
                        failure = await record.fail("processing_error", "it is odd")
                        if failure.dead_lettered:
                            break
                        assert failure.attempts == seen.count(b"1")
                        if failure.attempts == 2:
                            await consumer.commit()
                            assert await client.committed(topic, "g", 0) == 1, "nothing past a record that comes again"
            assert seen == [b"0", b"1", b"2", b"3", b"4", b"1", b"1"]
            assert failure.attempts == 3
            assert await client.committed(topic, "g", 0) == 5, "a dead letter holds nothing back"

            letters = await client.dlq.ls(topic)
            assert [(letter.data, letter.error, letter.retries) for letter in letters] == [(b"1", "it is odd", 3)]
            record_, story = await client.dlq.show(topic, letters[0].id)
            assert (record_.key, record_.value) == (b"k", b"1")
            assert story is not None and story == provenance(record_)
            assert (story.topic, story.partition, story.offset) == (topic, 0, 1)
            assert (story.reason, story.attempts) == ("processing_error", 3)
            assert story.first_failure_ms <= story.last_failure_ms
            with pytest.raises(BraidError, match="MESSAGE_NOT_FOUND"):
                await client.dlq.show(topic, "nothing-1-2")

            assert await client.dlq.retry(topic, letters[0].id) == 1
            assert (await values(client, topic))[-1] == b"1"
            with pytest.raises(BraidError, match="MESSAGE_NOT_FOUND"):
                await client.dlq.retry(topic, letters[0].id)
            assert await client.dlq.ls(topic) == []

    asyncio.run(scenario())


def test_a_poll_brings_failed_records_again_after_a_restart_of_the_consumer_too(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker("--durability", "os", "--dlq-retry", "50ms")
    with sync.connect(broker.address) as client:
        client.create_topic(topic, 1)
        for number in range(6):
            client.produce(topic, b"%d" % number, partition=0)
        with client.consumer(topic, group="g") as consumer:
            records: list[sync.ConsumedRecord] = []
            while len(records) < 6:
                records += consumer.poll(timeout_s=WAIT_S)
            assert not records[2].fail(error="try later").dead_lettered
        assert client.committed(topic, "g", 0) == 2, "the failed record is the first that the group reads again"
        with client.consumer(topic, group="g") as consumer:
            again: list[sync.ConsumedRecord] = []
            while len(again) < 4:
                again += consumer.poll(timeout_s=WAIT_S)
            assert [record.value for record in again] == [b"2", b"3", b"4", b"5"]
            assert not again[0].fail().dead_lettered
            once_more = consumer.poll(timeout_s=WAIT_S)
            assert [record.value for record in once_more] == [b"2"]
        assert client.committed(topic, "g", 0) == 6, "it was processed at last"
        with client.consumer(topic) as consumer:
            record = consumer.poll(1, timeout_s=WAIT_S)[0]
            with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
                record.fail()


def test_a_failure_whose_answer_is_lost_is_counted_once(server: str, topic: str) -> None:
    async def answer_lost(relay: Relay) -> None:
        relay.lost.clear()
        relay.lose_answers()
        async with asyncio.timeout(WAIT_S):
            while flymq.Op.DLQ_FAIL not in relay.lost:  # noqa: ASYNC110  (another thread sees it)
                await asyncio.sleep(0.01)
        relay.cut()

    async def scenario() -> None:
        with Relay(server) as relay:
            async with connect(relay.address, timeout_s=10) as client:
                await client.produce(topic, b"bad", partition=0)
                async with client.consumer({topic: [0]}, group="g") as consumer:
                    (record,) = await consumer.poll(timeout_s=WAIT_S)
                    failure, _ = await asyncio.gather(record.fail(), answer_lost(relay))
                    assert (failure.attempts, failure.dead_lettered) == (1, False), "asked again, counted once"
                    assert (await record.fail()).attempts == 2
            async with connect(relay.address, timeout_s=0.5) as client, client.consumer({topic: [0]}, group="g") as consumer:
                (record,) = await consumer.poll(timeout_s=WAIT_S)
                relay.lose_answers()
                with pytest.raises(BraidError, match="TIMED_OUT"):
                    await record.fail()
                relay.cut()
                failure = await record.fail()
                assert (failure.attempts, failure.dead_lettered) == (3, True), "the same failure, although it raised"
            async with connect(server) as client:
                (letter,) = await client.dlq.ls(topic)
                assert (letter.data, letter.retries) == (b"bad", 3)

    asyncio.run(scenario())


def test_dead_letters_are_sent_back_by_what_they_contain_or_all_or_purged(server: str, topic: str) -> None:
    pytest.importorskip("jsonschema_rs")

    async def scenario() -> None:
        schema = f"schema-{uuid.uuid4().hex}"
        async with connect(server) as client:
            await client.create_topic(topic, 1)
            await client.schema.put(schema, SCHEMA)
            await client.schema.bind(topic, schema, "dead-letter")
            for value in (b"red 1", b"red 2", b"blue", b"green"):
                await client.produce(topic, value)
            await client.schema.bind(topic, "")
            assert len(await client.dlq.ls(topic)) == 4
            assert len(await client.dlq.ls(topic, 2)) == 2
            assert await client.dlq.retry(topic, matching="red") == 2
            assert await client.dlq.retry(topic, everything=True, max_count=1) == 1
            assert await values(client, topic) == [b"red 1", b"red 2", b"blue"]
            await client.dlq.purge(topic)
            assert await client.dlq.ls(topic) == []
            assert await client.dlq.retry(topic, everything=True) == 0
            for most in (0, 3):
                with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
                    await client.dlq.retry(topic, max_count=most)
            with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
                await client.dlq.retry(topic, "an-id-1-2", everything=True)

    asyncio.run(scenario())


def test_a_list_of_letters_may_be_longer_than_an_answer(server: str, topic: str) -> None:
    with sync.connect(server) as client:
        client.create_topic(topic, 1)
        for number in range(12):
            client.produce(topic + ".dlq", b"%d" % number + bytes(1_000_000), partition=0)
        listed = client.dlq.ls(topic)
        assert [letter.data[:2].strip(b"\0") for letter in listed] == [b"%d" % number for number in range(12)]
        assert client.dlq.ls(topic, 11) == listed[:11] and client.dlq.ls(topic, 0) == []
        assert client.dlq.find(topic, listed[10].id) == listed[10]
        assert client.dlq.retry(topic, listed[10].id) == 1
        for missing in (listed[10].id, "nothing", f"{topic}-99-0"):
            with pytest.raises(BraidError, match="MESSAGE_NOT_FOUND"):
                client.dlq.find(topic, missing)


# --- delay and time to live


def test_a_delayed_record_comes_in_time_or_is_cancelled(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server) as client:
            await client.create_topic(topic, 2)
            soon = await client.produce(topic, b"soon", delay_ms=150, key=b"k", partition=1)
            later = await client.produce(topic, b"later", delay_ms=60_000)
            assert soon.delayed_id and later.delayed_id != soon.delayed_id
            waiting = [message.id for message in await client.delayed.ls(topic)]
            assert waiting == [soon.delayed_id, later.delayed_id], "the soonest first"
            assert await values(client, topic, 1) == []
            await until_value(client, topic, b"soon", 1)
            await client.delayed.cancel(later.delayed_id)
            assert await client.delayed.ls(topic) == []
            with pytest.raises(BraidError, match="MESSAGE_NOT_FOUND"):
                await client.delayed.cancel(later.delayed_id)
            with pytest.raises(BraidError, match="DELAY_TOO_LONG"):
                await client.produce(topic, b"next year", delay_ms=365 * 24 * 3_600_000)

    asyncio.run(scenario())


def test_a_record_with_a_time_to_live_vanishes(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server) as client:
            await client.create_topic(topic, 1)
            await client.produce(topic, b"short", ttl_ms=200)
            await client.produce(topic, b"long", ttl_ms=60_000)
            async with asyncio.timeout(WAIT_S):
                while await values(client, topic) != [b"long"]:  # noqa: ASYNC110  (the broker tells nobody)
                    await asyncio.sleep(0.02)
            async with client.consumer(topic) as consumer:
                assert [(record.value, record.offset) for record in await consumer.poll(timeout_s=WAIT_S)] == [(b"long", 1)]

    asyncio.run(scenario())


def test_records_of_a_producer_have_times_to_live_of_their_own(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server) as client:
            await client.create_topic(topic, 1)
            async with client.producer(linger_ms=10_000) as producer:
                await producer.send(topic, b"stays")
                for number in range(50):
                    await producer.send(topic, b"short %d" % number, key=b"k", headers={"n": b"1"}, ttl_ms=300)
                await producer.send(topic, b"long", ttl_ms=60_000)
                with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
                    await producer.send(topic, b"never", ttl_ms=-1)
            await client.produce(topic, b"with headers", headers={"h": b"1"}, ttl_ms=300)
            assert (await client.metadata(topic)).partitions[0].newest == 53
            async with asyncio.timeout(WAIT_S):
                while b"with headers" in await values(client, topic):  # noqa: ASYNC110  (time passes, nobody tells)
                    await asyncio.sleep(0.02)
            assert await values(client, topic) == [b"stays", b"long"]

    asyncio.run(scenario())


def test_what_cannot_go_together_is_refused(server: str, topic: str) -> None:
    with sync.connect(server) as client:
        pairs: list[dict[str, Any]] = [
            {"schema": "s", "ttl_ms": 1}, {"delay_ms": 1, "ttl_ms": 1}, {"delay_ms": 1, "headers": {"a": b"b"}},
        ]  # fmt: skip
        for arguments in pairs:
            with pytest.raises(BraidError, match="exclude each other"):
                client.produce(topic, b"x", **arguments)
    with sync.connect(server, encryption_key="00" * 32) as client, pytest.raises(BraidError, match="an encrypted value"):
        client.produce(topic, b"x", schema="s")


# --- transactions


def test_a_transaction_is_seen_whole_or_not_at_all(server: str, topic: str) -> None:
    async def scenario() -> None:
        other = topic + "/other"
        async with connect(server) as client:
            await client.create_topic(topic, 1)
            await client.create_topic(other, 2)
            await client.produce(topic, b"input", partition=0)
            async with client.transaction() as t:
                await t.produce(topic, b"one", key=b"k")
                written = await t.produce(other, b"two", partition=1)
                assert (written.topic, written.partition) == (other, 1)
                await t.commit_offsets("copier", {TopicPartition(topic, 0): 1})
                assert await values(client, other, 1) == []
                assert t.id in [each.id for each in await client.txn.ls()]
                assert await client.committed(topic, "copier", 0) == 0
            assert t.state == "committed"
            assert await values(client, topic) == [b"input", b"one"]
            assert await values(client, other, 1) == [b"two"]
            assert await client.committed(topic, "copier", 0) == 1

            with pytest.raises(ZeroDivisionError):
                async with client.transaction() as t:
                    await t.produce(other, b"never", partition=1)
                    raise ZeroDivisionError
            assert t.state == "rolled back"
            assert await values(client, other, 1) == [b"two"]
            for call in (t.commit, t.rollback, t.begin):
                with pytest.raises(BraidError, match="TRANSACTION_NOT_ACTIVE"):
                    await call()

            async with client.transaction() as t:
                await t.produce(other, b"never", partition=1)
                await t.rollback()
            assert await values(client, other, 1) == [b"two"]

    asyncio.run(scenario())


def test_an_administrator_or_time_ends_a_transaction(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server) as client:
            with pytest.raises(BraidError, match="TRANSACTION_NOT_ACTIVE"):
                async with client.transaction() as t:
                    await t.produce(topic, b"x", partition=0)
                    await client.txn.abort(t.id)
            assert t.state == "rolled back"
            async with asyncio.timeout(WAIT_S):
                with pytest.raises(BraidError, match=r"TRANSACTION_NOT_ACTIVE|TRANSACTION_NOT_FOUND"):
                    async with client.transaction(timeout_s=0.05) as t:
                        while True:
                            await t.produce(topic, b"x", partition=0)
                            await asyncio.sleep(0.01)

    asyncio.run(scenario())


def test_a_newer_producer_of_the_same_name_shuts_the_older_one_out(server: str, topic: str, name: str) -> None:
    with sync.connect(server) as zombie, sync.connect(server) as successor:
        zombie.create_topic(topic, 1)
        with zombie.transaction(name) as first:
            first.produce(topic, b"first")
        with zombie.transaction(name) as second:
            second.produce(topic, b"second")
        old = zombie.transaction(name)
        old.begin()
        old.produce(topic, b"zombie")
        with successor.transaction(name) as new:
            new.produce(topic, b"new")
        with pytest.raises(BraidError, match="FENCED_PRODUCER"):
            old.produce(topic, b"zombie")
        with pytest.raises(BraidError, match="FENCED_PRODUCER"):
            old.commit()
        for _ in range(2):
            with pytest.raises(BraidError, match="FENCED_PRODUCER: producer"):
                zombie.transaction(name).begin()
        with successor.transaction(name) as newer:
            newer.produce(topic, b"newer")
        with sync.connect(server) as another, another.transaction(name) as last:
            last.produce(topic, b"last")
        with pytest.raises(BraidError, match="FENCED_PRODUCER"), successor.transaction(name):
            pass
        found = [record.value for record in zombie.fetch(topic, 0, 0).records]
        assert found == [b"first", b"second", b"new", b"newer", b"last"]


def test_the_last_transaction_of_a_client_under_a_name_counts(server: str, topic: str, name: str) -> None:
    with sync.connect(server) as client:
        client.create_topic(topic, 1)
        forgotten = client.transaction(name)
        forgotten.begin()
        forgotten.produce(topic, b"forgotten")
        with client.transaction(name) as t:
            t.produce(topic, b"there")
        with pytest.raises(BraidError, match="TRANSACTION_NOT_ACTIVE"):
            forgotten.commit()
        assert [record.value for record in client.fetch(topic, 0, 0).records] == [b"there"]


def test_a_commit_whose_answer_is_lost_is_asked_for_again(server: str, topic: str) -> None:
    async def scenario() -> None:
        with Relay(server) as relay:
            async with connect(relay.address, timeout_s=10) as client:
                await client.create_topic(topic, 1)
                t = client.transaction()
                await t.begin()
                await t.produce(topic, b"once")
                relay.lose_answers()
                committing = asyncio.create_task(t.commit())
                async with connect(server) as direct:
                    await until_value(direct, topic, b"once")
                relay.cut()
                await committing
                assert t.state == "committed"
                async with connect(server) as direct:
                    assert await values(direct, topic) == [b"once"]

    asyncio.run(scenario())


def test_a_broken_connection_ends_a_transaction(server: str, topic: str) -> None:
    async def scenario() -> None:
        with Relay(server) as relay:
            async with connect(relay.address, timeout_s=5) as client:
                await client.create_topic(topic, 1)
                t = client.transaction()
                await t.begin()
                await t.produce(topic, b"lost")
                relay.cut()
                async with connect(server) as direct, asyncio.timeout(WAIT_S):
                    while t.id in [each.id for each in await direct.txn.ls()]:  # noqa: ASYNC110  (the broker tells nobody)
                        await asyncio.sleep(0.02)
                with pytest.raises(BraidError, match="TRANSACTION_NOT_ACTIVE"):
                    await t.commit()
                assert t.state == "rolled back"

    asyncio.run(scenario())


def test_read_process_write_exactly_once(server: str, topic: str) -> None:
    async def scenario() -> None:
        output = topic + "/output"
        async with connect(server) as client:
            await client.create_topic(topic, 1)
            await client.create_topic(output, 1)
            for number in range(20):
                await client.produce(topic, b"%d" % number, partition=0)
            done = 0
            while done < 20:
                async with client.consumer(topic, group="eos", auto_commit=False) as consumer:
                    records: list[ConsumedRecord] = await consumer.poll(7, timeout_s=WAIT_S)
                    async with client.transaction("eos-worker") as t:
                        for record in records:
                            await t.produce(output, record.value)
                        await t.commit_offsets("eos", consumer.positions())
                    done += len(records)
            assert await values(client, output) == [b"%d" % number for number in range(20)]

    started = time.monotonic()
    asyncio.run(scenario())
    assert time.monotonic() - started < WAIT_S
