"""Transactions: what they promise to producers and readers, and every way one can end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from work_bench import all_values, expect, records_in, run_broker, settings_of, values_in

from braidmq.base import limits
from braidmq.base.clock import ManualClock, SystemClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.disk_real import RealDisk
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker, BrokerSettings
from braidmq.log.attrs import encode_headers
from braidmq.log.partition import LogSettings


def test_records_are_invisible_until_the_commit_and_all_there_after_it() -> None:
    async def script(broker: Broker) -> None:
        await broker.create_topic("a", 3)
        transactions = broker.transactions
        begun = await transactions.begin("connection")
        headers = encode_headers({"trace": b"7"})
        for number in range(6):
            await transactions.produce(begun.id, "a", b"", b"%d" % number)
        await transactions.produce(begun.id, "a", b"key", b"keyed", attrs=headers)
        await transactions.produce(begun.id, "a", b"key", b"placed", partition=1)
        await transactions.produce(begun.id, "made/by/producing", b"", b"")
        assert all_values(broker, "a") == [] and all_values(broker, "made/by/producing") == []
        assert [known.id for known in transactions.open_transactions()] == [begun.id] and len(transactions) == 1
        await transactions.commit(begun.id)
        assert values_in(broker, "a", 0)[:2] == [b"0", b"3"] and values_in(broker, "a", 2)[:2] == [b"2", b"5"], "in turn, in order"
        assert values_in(broker, "a", 1) == [b"1", b"4", b"keyed", b"placed"]
        assert all_values(broker, "made/by/producing") == [b""], "an empty value is one"
        keyed = [record for number in range(3) for record in records_in(broker, "a", number) if record[2] == b"keyed"]
        assert [(key, attrs) for _, key, _, attrs in keyed] == [(b"key", headers)], "attributes travel"
        assert len(transactions) == 0
        # The next keyless record goes on in turn.
        assert (await broker.append(broker.topic("a"), -1, b"", b"after"))[0] == 0

    run_broker(script)


def test_how_a_transaction_ends_is_told_afterwards() -> None:
    disk, clock = FaultyDisk(), ManualClock()

    async def script(broker: Broker) -> str:
        transactions = broker.transactions
        for unknown in ("", "nope", "txn-", "txn-999", "txn-01", "txn-٣", "txn-" + "9" * 30):
            with expect("TRANSACTION_NOT_FOUND"):
                await transactions.produce(unknown, "a", b"", b"")
            with expect("TRANSACTION_NOT_FOUND"):
                await transactions.commit(unknown)
            await transactions.abort(unknown)
        aborted = await transactions.begin("connection")
        await transactions.produce(aborted.id, "a", b"", b"never")
        await transactions.abort(aborted.id)
        await transactions.abort(aborted.id)
        for attempt in (transactions.produce(aborted.id, "a", b"", b""), transactions.commit(aborted.id)):
            with pytest.raises(BraidError, match="transaction is not active: aborted"):
                await attempt
        committed = await transactions.begin("connection")
        await transactions.produce(committed.id, "a", b"", b"once")
        await transactions.commit(committed.id)
        await transactions.commit(committed.id)
        with pytest.raises(BraidError, match="transaction is not active: committed"):
            await transactions.produce(committed.id, "a", b"", b"")
        with pytest.raises(BraidError, match="cannot abort committed transaction"):
            await transactions.abort(committed.id)
        assert all_values(broker, "a") == [b"once"]
        return committed.id

    committed = run_broker(script, disk, clock=clock)

    async def afterwards(broker: Broker) -> None:
        await broker.transactions.commit(committed)
        with expect("TRANSACTION_COMMITTED"):
            await broker.transactions.abort(committed)
        assert all_values(broker, "a") == [b"once"]
        fresh = await broker.transactions.begin(None)
        assert fresh.id != committed, "ids are never used again"

    run_broker(afterwards, disk, clock=clock)


def test_a_transaction_ends_with_its_time_and_with_its_connection() -> None:
    clock = ManualClock()

    async def script(broker: Broker) -> None:
        transactions = broker.transactions
        late = await transactions.begin("one")
        patient = await transactions.begin("one", timeout_s=100)
        gone = await transactions.begin("two")
        await transactions.produce(gone.id, "a", b"", b"gone")
        transactions.abort_owner("two")
        transactions.abort_owner("nobody")
        with expect("TRANSACTION_NOT_ACTIVE"):
            await transactions.commit(gone.id)
        clock.advance(59.9)
        transactions.abort_overdue()
        await transactions.produce(late.id, "a", b"", b"late")
        clock.jump(-3600)
        clock.advance(0.2)
        with expect("TRANSACTION_NOT_ACTIVE"):
            await transactions.commit(late.id)
        transactions.abort_overdue()
        await transactions.produce(patient.id, "a", b"", b"patient")
        await transactions.commit(patient.id)
        assert all_values(broker, "a") == [b"patient"]
        forgotten = await transactions.begin("three")
        clock.advance(61)
        transactions.abort_overdue()
        assert len(transactions) == 0 and transactions.get(forgotten.id).state == "aborted"
        for wrong in (-1.0, limits.TRANSACTION_TIMEOUT_S_MAX + 1):
            with expect("INVALID_ARGUMENT"):
                await transactions.begin("one", timeout_s=wrong)

    run_broker(script, clock=clock)


def test_a_newer_producer_of_the_same_name_fences_the_older() -> None:
    disk, clock = FaultyDisk(), ManualClock()

    async def script(broker: Broker) -> tuple[int, int]:
        transactions = broker.transactions
        old = await transactions.begin("one", name="payments")
        await transactions.produce(old.id, "a", b"", b"old")
        other = await transactions.begin("one", name="something else")
        new = await transactions.begin("two", name="payments")
        assert new.epoch > old.epoch
        for attempt in (transactions.produce(old.id, "a", b"", b""), transactions.commit(old.id)):
            with expect("FENCED_PRODUCER"):
                await attempt
        await transactions.abort(old.id)
        await transactions.produce(new.id, "a", b"", b"new")
        await transactions.commit(new.id)
        again = await transactions.begin("two", name="payments", epoch=new.epoch)
        assert again.epoch == new.epoch
        with expect("FENCED_PRODUCER"):
            await transactions.begin("one", name="payments", epoch=old.epoch)
        assert transactions.get(again.id).state == "active", "a zombie ends nothing"
        follower = await transactions.begin("two", name="payments", epoch=new.epoch)
        assert (transactions.get(again.id).state, transactions.get(follower.id).state) == ("aborted", "active")
        await transactions.commit(other.id)
        assert all_values(broker, "a") == [b"new"]
        with expect("INVALID_ARGUMENT"):
            await transactions.begin("one", name="n" * (limits.TRANSACTIONAL_ID_BYTES_MAX + 1))
        return old.epoch, new.epoch

    old_epoch, new_epoch = run_broker(script, disk, clock=clock)

    async def afterwards(broker: Broker) -> None:
        with expect("FENCED_PRODUCER"):
            await broker.transactions.begin("one", name="payments", epoch=old_epoch)
        assert (await broker.transactions.begin("two", name="payments", epoch=new_epoch)).epoch == new_epoch

    run_broker(afterwards, disk, clock=clock)


def test_a_name_that_was_forgotten_is_remembered_with_whoever_goes_on_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTIONAL_IDS_REMEMBERED", 1)

    async def script(broker: Broker) -> None:
        transactions = broker.transactions
        old = await transactions.begin("one", name="payments")
        new = await transactions.begin("two", name="payments")
        await transactions.begin("three", name="something else")
        assert "payments" not in broker.work.table.producers
        again = await transactions.begin("one", name="payments", epoch=old.epoch)
        assert broker.work.table.producers == {"payments": old.epoch}, "nobody knows better"
        await transactions.begin("two", name="payments", epoch=new.epoch)
        assert broker.work.table.producers == {"payments": new.epoch}, "the newest is the one that counts"
        with expect("FENCED_PRODUCER"):
            await transactions.commit(again.id)
        with expect("FENCED_PRODUCER"):
            await transactions.begin("one", name="payments", epoch=old.epoch)
        for never in (new.epoch + 1000, 1 << 62):
            with expect("INVALID_ARGUMENT"):
                await transactions.begin("one", name="new", epoch=never)
        assert (await transactions.begin("one", name="new")).epoch > new.epoch

    run_broker(script)


def test_a_take_over_between_commit_and_decision_wins() -> None:
    """Whichever is first in the journal is first, and the take-over gets there sooner: it has nothing to wait for."""

    async def script(broker: Broker) -> None:
        transactions = broker.transactions
        await broker.create_topic("a", 1)
        for order in (0, 1):
            old = await transactions.begin("one", name="name")
            await transactions.produce(old.id, "a", b"", b"%d" % order)
            calls = [transactions.commit(old.id), transactions.begin("two", name="name")]
            outcomes = await asyncio.gather(*(calls if order else reversed(calls)), return_exceptions=True)
            refused = [outcome for outcome in outcomes if isinstance(outcome, BraidError)]
            assert [error.code for error in refused] == ["FENCED_PRODUCER"]
            assert transactions.get(old.id).state == "fenced" and all_values(broker, "a") == []

    run_broker(script)


def test_names_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTIONAL_IDS_REMEMBERED", 3)
    monkeypatch.setattr(limits, "TRANSACTIONS_REMEMBERED", 4)

    async def script(broker: Broker) -> None:
        transactions = broker.transactions
        first = await transactions.begin(None)
        await transactions.abort(first.id)
        for number in range(6):
            begun = await transactions.begin(None, name=f"name {number}")
            await transactions.commit(begun.id)
            await transactions.abort((await transactions.begin(None)).id)
        assert list(broker.work.table.producers) == ["name 3", "name 4", "name 5"][-limits.TRANSACTIONAL_IDS_REMEMBERED :]
        assert len(broker.work.table.committed) == len(transactions._ended) == limits.TRANSACTIONS_REMEMBERED
        with expect("TRANSACTION_NOT_FOUND"):
            await transactions.commit(first.id)

    run_broker(script)


def test_limits_of_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_RECORDS_MAX", 3)
    monkeypatch.setattr(limits, "TRANSACTION_BYTES_MAX", 100)
    monkeypatch.setattr(limits, "TRANSACTIONS_OPEN_MAX", 2)

    async def script(broker: Broker) -> None:
        transactions = broker.transactions
        await broker.create_topic("a", 1)
        begun = await transactions.begin(None)
        with pytest.raises(BraidError, match=f"{limits.TRANSACTION_BYTES_MAX} bytes"):
            await transactions.produce(begun.id, "a", b"k", bytes(100))
        for _ in range(3):
            await transactions.produce(begun.id, "a", b"", b"v")
        with pytest.raises(BraidError, match=f"{limits.TRANSACTION_RECORDS_MAX} records"):
            await transactions.produce(begun.id, "a", b"", b"v")
        transactions.add_offsets(begun.id, "group", [("a", 0, 1)])
        await broker.create_topic("many", 3)
        with pytest.raises(BraidError, match="3 offsets"):
            transactions.add_offsets(begun.id, "group", [("many", partition, 5) for partition in range(3)])
        await transactions.begin(None)
        with pytest.raises(BraidError, match=f"{limits.TRANSACTIONS_OPEN_MAX} open transactions"):
            await transactions.begin(None)
        await transactions.commit(begun.id)
        assert values_in(broker, "a") == [b"v"] * 3

    run_broker(script)


def test_a_record_that_is_too_large_or_has_nowhere_to_go_is_refused() -> None:
    async def script(broker: Broker) -> None:
        transactions = broker.transactions
        await broker.create_topic("a", 2)
        begun = await transactions.begin(None)
        with expect("PARTITION_NOT_FOUND"):
            await transactions.produce(begun.id, "a", b"", b"", partition=2)
        with expect("INVALID_TOPIC"):
            await transactions.produce(begun.id, "__internal", b"", b"")
        with expect("RECORD_TOO_LARGE"):
            await transactions.produce(begun.id, "a", b"k", bytes(limits.RECORD_BYTES_MAX))
        for wrong in (("b", 0, 1), ("a", 2, 1), ("a", 0, -1), ("a", 0, 1 << 63)):
            with pytest.raises(BraidError):
                transactions.add_offsets(begun.id, "group", [wrong])
        with expect("INVALID_GROUP"):
            transactions.add_offsets(begun.id, "", [("a", 0, 1)])
        await transactions.commit(begun.id)
        assert all_values(broker, "a") == []

    run_broker(script)


def test_offsets_are_committed_with_the_records_and_not_without() -> None:
    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a", 2)
        transactions = broker.transactions
        for end in (transactions.abort, transactions.commit):
            begun = await transactions.begin(None)
            await transactions.produce(begun.id, "a", b"", b"v")
            transactions.add_offsets(begun.id, "group", [("a", 0, 5), ("a", 1, 6)])
            transactions.add_offsets(begun.id, "group", [("a", 0, 7)])
            assert broker.groups.committed(topic.id, "group", 0) is None
            await end(begun.id)
        assert (broker.groups.committed(topic.id, "group", 0), broker.groups.committed(topic.id, "group", 1)) == (7, 6)

    run_broker(script)


@pytest.mark.parametrize("durability", [("fsync", "fsync"), ("os", "os"), ("fsync", "os"), ("none", "fsync")])
def test_readers_that_never_pause_see_all_of_a_commit_or_nothing(durability: tuple[str, str], tmp_path: Path) -> None:
    """10,000 records over two topics with three partitions each, on a real disk, and readers in every turn of the loop."""
    settings = BrokerSettings(str(tmp_path), LogSettings())

    async def script(broker: Broker) -> int:
        logs = []
        for name, level in zip("ab", durability, strict=True):
            topic = await broker.create_topic(name, 3, {"durability": level})
            logs += [broker.log_of(topic, number) for number in range(3)]
        looks: list[tuple[int, ...]] = []

        def look() -> None:
            looks.append(tuple(log.high_watermark for log in logs))

        async def read(order: int) -> None:
            while True:
                look()
                rows = logs[order].read_rows(0, 100_000, 1 << 30)
                assert getattr(rows, "count", 0) == looks[-1][order]
                await asyncio.sleep(0)

        readers = [asyncio.create_task(read(number)) for number in range(6)]
        for round_number in range(2):
            begun = await broker.transactions.begin(None)
            for number in range(10_000):
                await broker.transactions.produce(begun.id, "ab"[number % 2], b"", b"%d" % number)
            done = (round_number + 1) * 10_000
            for log in logs:
                log.when_visible(log.high_watermark + 1, lambda _: look())
            await broker.transactions.commit(begun.id)
            look()
            assert sum(looks[-1]) == done
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        assert {sum(seen) for seen in looks} == {0, 10_000, 20_000}, "nobody ever saw a part, whoever was told first"
        assert sorted(int(value) for name in "ab" for value in all_values(broker, name)) == sorted(2 * list(range(10_000)))
        return len(looks)

    assert run_broker(script, RealDisk(), clock=SystemClock(), settings=settings, threads=True) > 100


def test_a_commit_larger_than_a_batch_is_still_one_moment() -> None:
    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        log = broker.log_of(topic, 0)
        begun = await broker.transactions.begin(None)
        values = [bytes([number]) * 3_000_000 for number in range(7)]
        for value in values:
            await broker.transactions.produce(begun.id, "a", b"", value)
        seen: list[int] = []
        log.watch_tail("test", lambda: seen.append(log.high_watermark))
        await broker.transactions.commit(begun.id)
        assert seen == [7] and [record[2] for record in records_in(broker, "a")] == values

    run_broker(script)


def test_producers_are_not_forgotten_for_the_sake_of_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_PER_PARTITION_MAX", 2)
    from braidmq import hot

    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        batch = hot.encode_batch([None], [b"mine"], None, 77, 0, 0)
        assert not broker.stage_batch(topic, 0, batch).duplicate
        for _ in range(10):
            begun = await broker.transactions.begin(None)
            await broker.transactions.produce(begun.id, "a", b"", b"v")
            await broker.transactions.commit(begun.id)
        assert broker.stage_batch(topic, 0, batch).duplicate
        log = broker.log_of(topic, 0)
        assert log.producers.work_numbers() == [] and len(log.producers) == 1
        with pytest.raises(BraidError, match="without epoch"):
            broker.stage_batch(topic, 0, hot.encode_batch([None], [b"forged"], None, 1, -1, 0))

    run_broker(script)


# --- faults


def test_a_disk_that_is_full_while_staging_fails_the_commit() -> None:
    disk = FaultyDisk()

    async def script(broker: Broker) -> None:
        await broker.create_topic("a", 1)
        begun = await broker.transactions.begin(None)
        await broker.transactions.produce(begun.id, "a", b"", b"fits")
        disk.capacity_bytes = disk.used_bytes + 2000
        await broker.transactions.produce(begun.id, "a", b"", bytes(5000))
        with expect("STORAGE_FULL"):
            await broker.transactions.commit(begun.id)
        disk.capacity_bytes = None
        with pytest.raises(BraidError, match="transaction is not active: aborted"):
            await broker.transactions.commit(begun.id)
        assert all_values(broker, "a") == []

    run_broker(script, disk)


def test_a_disk_that_is_full_after_the_decision_delays_what_was_decided() -> None:
    disk, clock = FaultyDisk(), ManualClock()

    async def script(broker: Broker) -> None:
        topics = [await broker.create_topic(name, 1) for name in "ab"]
        for topic in topics:
            await broker.append(topic, 0, b"", b"first")
        begun = await broker.transactions.begin(None)
        for name in "ab":
            await broker.transactions.produce(begun.id, name, b"", b"second")
        path = broker.log_of(topics[1], 0).segments[-1].log_path
        disk.fail("write", path=path, times=2, code=28)
        with expect("STORAGE_FULL"):
            await broker.transactions.commit(begun.id)
        with expect("TRANSACTION_COMMITTED"):
            await broker.transactions.abort(begun.id)
        await broker.work.tick()
        assert values_in(broker, "b") == [b"first"], "not before a second has passed"
        with expect("STORAGE_FULL"):
            await broker.transactions.commit(begun.id)
        clock.advance(5)
        await broker.work.tick()
        assert values_in(broker, "a") == values_in(broker, "b") == [b"first", b"second"]
        await broker.transactions.commit(begun.id)
        assert not broker.work.table.work

    run_broker(script, disk, clock=clock)


def test_a_decision_that_may_or_may_not_be_on_the_disk_is_left_to_the_next_start() -> None:
    disk = FaultyDisk()

    async def script(broker: Broker) -> None:
        await broker.create_topic("a", 1)
        begun = await broker.transactions.begin(None)
        await broker.transactions.produce(begun.id, "a", b"", b"v")
        await asyncio.sleep(0)
        disk.fail("sync", path=broker.work.journal._log.segments[-1].log_path)
        for attempt in (broker.transactions.commit, broker.transactions.commit, broker.transactions.abort):
            with expect("STORAGE_FAILED"):
                await attempt(begun.id)
        assert all_values(broker, "a") == []

    run_broker(script, disk, stop=False)

    async def afterwards(broker: Broker) -> None:
        assert all_values(broker, "a") in ([], [b"v"])

    run_broker(afterwards, disk.crash(power=False))


def test_a_topic_deleted_under_a_transaction() -> None:
    async def script(broker: Broker) -> None:
        begun = await broker.transactions.begin(None)
        for name in ("stays", "goes"):
            await broker.transactions.produce(begun.id, name, b"", b"v", partition=1)
        await broker.delete_topic("goes")
        await broker.transactions.commit(begun.id)
        assert all_values(broker, "stays") == all_values(broker, "goes") == [b"v"], "it is made anew, as producing makes it"

    run_broker(script, settings=settings_of())


def test_whoever_asked_for_a_commit_may_go_away() -> None:
    async def script(broker: Broker) -> None:
        await broker.create_topic("a", 1)
        begun = await broker.transactions.begin("connection")
        await broker.transactions.produce(begun.id, "a", b"", b"v")
        asking = asyncio.create_task(broker.transactions.commit(begun.id))
        await asyncio.sleep(0)
        broker.transactions.abort_owner("connection")
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await broker.transactions.commit(begun.id)
        assert values_in(broker, "a") == [b"v"]

    run_broker(script, threads=True)


def test_staged_records_are_let_go_when_nobody_needs_them() -> None:
    async def script(broker: Broker) -> None:
        staging = broker.work.staging.log
        kept = await broker.transactions.begin(None)
        await broker.transactions.produce(kept.id, "a", b"", b"kept")
        for number in range(4):
            begun = await broker.transactions.begin(None)
            await broker.transactions.produce(begun.id, "a", b"", bytes(1_500_000))
            await (broker.transactions.commit if number % 2 else broker.transactions.abort)(begun.id)
        await broker.work.tick()
        assert staging.log_start == 0 and staging.size_bytes > 6_000_000
        await broker.transactions.commit(kept.id)
        await broker.work.tick()
        assert staging.log_start == staging.log_end and staging.size_bytes == 0
        assert all_values(broker, "a").count(b"kept") == 1

    disk = FaultyDisk()
    run_broker(script, disk)
    run_broker(lambda broker: broker.work.tick(), disk)
