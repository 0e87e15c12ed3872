"""Dead letters: how records become letters, what a letter tells, and how it gets back or goes away."""

from __future__ import annotations

import asyncio
import random
import struct
from functools import partial
from itertools import pairwise

import pytest
from work_bench import all_values, expect, records_in, rows_of, run_broker, values_in

from braidmq import hot
from braidmq.base import limits
from braidmq.base.clock import ManualClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.letter_table import LetterTable, Runs
from braidmq.log.attrs import TAG_FAILURES, TAG_ORIGIN_PLACE, TAG_ORIGIN_TOPIC, encode_attrs, encode_headers
from braidmq.log.letter_id import place_in


async def bury(broker: Broker, topic: str, *offsets: int, error: str = "boom") -> None:
    for offset in offsets:
        while not (await broker.dead_letters.fail(topic, 0, offset, "group", "processing_error", error)).dead_lettered:
            pass


def test_a_record_is_tried_again_after_growing_pauses_and_then_buried() -> None:
    disk, clock = FaultyDisk(), ManualClock()
    headers = encode_headers({"trace": b"1"})

    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        await broker.append(topic, 0, b"", b"fine")
        await broker.append(topic, 0, b"key", b"bad", attrs=headers)
        first = await broker.dead_letters.fail("a", 0, 1, "group", "processing_error", "one")
        assert (first.attempts, first.retry_at_ms, first.dead_lettered) == (1, clock.now_ms() + 1000, False)
        other = await broker.dead_letters.fail("a", 0, 1, "another group", "processing_error", "one")
        assert other.attempts == 1, "groups fail for themselves"

    run_broker(script, disk, clock=clock, stop=False)
    disk = disk.crash()
    clock.advance(1)

    async def later(broker: Broker) -> None:
        second = await broker.dead_letters.fail("a", 0, 1, "group", "processing_error", "two")
        assert (second.attempts, second.retry_at_ms) == (2, clock.now_ms() + 2000), "the count survived"
        assert await broker.dead_letters.letters("a") == []
        clock.advance(2)
        third = await broker.dead_letters.fail("a", 0, 1, "group", "max_retries_exceeded", "three")
        assert (third.attempts, third.dead_lettered) == (3, True)
        again = await broker.dead_letters.fail("a", 0, 1, "group", "max_retries_exceeded", "three")
        assert again.dead_lettered, "whoever asks again makes no second letter"
        (letter,) = await broker.dead_letters.letters("a")
        assert (letter.key, letter.value, letter.attrs) == (b"key", b"bad", headers)
        assert (letter.origin_topic, letter.origin_partition, letter.origin_offset) == ("a", 0, 1)
        assert (letter.reason, letter.error, letter.attempts) == ("max_retries_exceeded", "three", 3)
        assert letter.last_ms - letter.first_ms == 3000
        assert letter.id == f"a-0-{letter.last_ms * 1_000_000}"
        assert broker.topic("a.dlq").partitions == 1 and values_in(broker, "a.dlq") == [b"bad"], "an ordinary topic"

    run_broker(later, disk, clock=clock)


def test_pauses_stop_growing_and_attempts_are_a_setting() -> None:
    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        await broker.append(topic, 0, b"", b"bad")
        broker.dead_letters._attempts_max = 12
        pauses = []
        for _ in range(11):
            failed = await broker.dead_letters.fail("a", 0, 0, "group", "processing_error", "")
            pauses.append((failed.retry_at_ms - broker.clock.now_ms()) // 1000)
        assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60]

    run_broker(script)


def test_a_failure_that_is_reported_again_is_counted_once() -> None:
    disk, clock = FaultyDisk(), ManualClock()

    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        await broker.append(topic, 0, b"", b"bad")
        fail = partial(broker.dead_letters.fail, "a", 0, 0, "group", "processing_error", "boom")
        first = await fail(7)
        clock.advance(1)
        assert await fail(7) == first, "with the time of the first report"
        assert (await fail(8)).attempts == 2

    run_broker(script, disk, clock=clock, stop=False)

    async def afterwards(broker: Broker) -> None:
        fail = partial(broker.dead_letters.fail, "a", 0, 0, "group", "processing_error", "boom")
        assert (await fail(8)).attempts == 2, "after a crash too"
        await broker.work.journal.save_snapshot_beside(broker.beside)

    disk = disk.crash()
    run_broker(afterwards, disk, clock=clock)

    async def at_last(broker: Broker) -> None:
        fail = partial(broker.dead_letters.fail, "a", 0, 0, "group", "processing_error", "boom")
        both = await asyncio.gather(fail(9), fail(9))
        assert [failed.attempts for failed in both] == [3, 3] and all(failed.dead_lettered for failed in both)
        assert (await fail(9)).dead_lettered and all_values(broker, "a.dlq") == [b"bad"]

    run_broker(at_last, disk, clock=clock)


def test_only_what_is_there_can_fail() -> None:
    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        await broker.append(topic, 0, b"", b"v")
        places = (("b", 0, 0, "TOPIC"), ("a", 1, 0, "PARTITION"), ("a", 0, 1, "OFFSET"), ("a", 0, -1, "OFFSET"))
        for name, partition, offset, code in places:
            with pytest.raises(BraidError, match=code):
                await broker.dead_letters.fail(name, partition, offset, "group", "manual", "")
        with expect("INVALID_ARGUMENT"):
            await broker.dead_letters.fail("a", 0, 0, "group", "because", "")
        assert broker.topics.get("a.dlq") is None

    run_broker(script)


def test_failures_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    table = LetterTable(failures_remembered=2)
    for offset in (1, 2, 1, 3):
        table.fail(5, "group", 0, offset, 100)
    assert table.failure(5, "group", 0, 2) is None, "the one that failed longest ago"
    known = table.failure(5, "group", 0, 1)
    assert known is not None and known.attempts == 2
    assert LetterTable()._failures_remembered == limits.FAILURES_REMEMBERED
    table.forget_topic(5)
    assert table.failure(5, "group", 0, 1) is None


def test_a_record_that_was_refused_is_kept() -> None:
    async def script(broker: Broker) -> None:
        for value in (b"{", b""):
            error = "invalid JSON " + "x" * 9999
            assert (await broker.dead_letters.dead_letter("a", b"key", value, "validation_failed", error))[0] == 0
        one, two = await broker.dead_letters.letters("a")
        assert (one.value, two.value, one.key, one.reason, one.origin_offset) == (b"{", b"", b"key", "validation_failed", -1)
        assert one.error.startswith("invalid JSON") and len(one.error) == limits.ERROR_TEXT_BYTES_MAX
        assert one.id != two.id and broker.topics.get("a") is None
        await broker.dead_letters.replay_id("a", one.id)
        assert all_values(broker, "a") == [b"{"]

    run_broker(script)


def test_the_list_is_of_what_was_asked_for() -> None:
    async def script(broker: Broker) -> None:
        assert await broker.dead_letters.letters("nobody's") == []
        await broker.create_topic("a.dlq", 2)
        for number in range(25):
            await broker.dead_letters.dead_letter("a", b"", b"value %d" % number, "validation_failed", f"error {number % 3}")
        assert len(await broker.dead_letters.letters("a")) == 10 and len(await broker.dead_letters.letters("a", 7)) == 7
        everything = await broker.dead_letters.letters("a", 100)
        assert sorted(letter.partition for letter in everything) == [0] * 13 + [1] * 12, "the topic was there, with two partitions"
        assert len({letter.id for letter in everything}) == 25
        assert await broker.dead_letters.letters("a.dlq", 100) == everything, "either name will do"
        assert len(await broker.dead_letters.letters("a", 100, matching="ERROR 1")) == 8
        assert len(await broker.dead_letters.letters("a", 100, matching="Value 2")) == 6
        assert len(await broker.dead_letters.letters("a", 100, matching="validation")) == 25
        assert await broker.dead_letters.letters("a", 100, matching="nothing like it") == []

    run_broker(script)


def test_letters_go_back_once_by_id_by_offset_by_filter_and_all() -> None:
    disk = FaultyDisk()

    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        for number in range(8):
            await broker.append(topic, 0, b"k", b"%d" % number, attrs=encode_headers({"n": b"%d" % number}))
        await bury(broker, "a", 0, 1, error="first kind")
        await bury(broker, "a", *range(2, 8), error="second kind")
        letters = await broker.dead_letters.letters("a")
        assert len(letters) == 8
        await broker.dead_letters.replay_id("a", letters[3].id)
        await broker.dead_letters.replay_offset("a", 4)
        assert values_in(broker, "a")[8:] == [b"3", b"4"]
        assert records_in(broker, "a")[8][1:] == (b"k", b"3", encode_headers({"n": b"3"})), "as it was, without its story"
        assert [letter.value for letter in await broker.dead_letters.letters("a")] == [b"0", b"1", b"2", b"5", b"6", b"7"]
        for again in (broker.dead_letters.replay_id("a", letters[3].id), broker.dead_letters.replay_offset("a", 4)):
            with expect("MESSAGE_NOT_FOUND"):
                await again
        assert await broker.dead_letters.replay_matching("a", "first") == 2
        assert await broker.dead_letters.replay_matching("a", "", 3) == 3
        # Everybody at once: still once.
        counts = await asyncio.gather(*(broker.dead_letters.replay_matching("a") for _ in range(5)))
        assert sum(counts) == 1 and values_in(broker, "a")[8:] == [b"3", b"4", b"0", b"1", b"2", b"5", b"6", b"7"]
        assert await broker.dead_letters.letters("a") == []
        # What fails again is a new letter.
        await bury(broker, "a", 8)
        assert [letter.value for letter in await broker.dead_letters.letters("a")] == [b"3"]

    run_broker(script, disk)

    async def afterwards(broker: Broker) -> None:
        assert [letter.value for letter in await broker.dead_letters.letters("a")] == [b"3"]
        assert await broker.dead_letters.replay_matching("a") == 1

    run_broker(afterwards, disk)


def test_what_is_no_letter_cannot_be_replayed() -> None:
    async def script(broker: Broker) -> None:
        for letter_id in ("", "a", "a-0", "a-0-0", "a-x-1", "a--1-1", "a-" + "9" * 40 + "-1"):
            with expect("MESSAGE_NOT_FOUND"):
                await broker.dead_letters.replay_id("a", letter_id)
        await broker.dead_letters.dead_letter("a", b"", b"v", "manual", "")
        (letter,) = await broker.dead_letters.letters("a")
        with expect("MESSAGE_NOT_FOUND"):
            await broker.dead_letters.replay_id("a", letter.id + "1")
        for offset in (-1, 1, 1 << 60):
            with expect("MESSAGE_NOT_FOUND"):
                await broker.dead_letters.replay_offset("a", offset)
        assert await broker.dead_letters.replay_matching("b") == 0
        assert len(await broker.dead_letters.letters("a")) == 1

    run_broker(script)


def test_what_anyone_wrote_into_the_topic_is_a_letter_and_goes_nowhere_else() -> None:
    """A letter may be forged by whoever may write to its topic: it must neither break the list nor reach another topic."""

    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a.dlq", 1)
        secret = await broker.create_topic("secret", 1)
        forged = encode_attrs([(TAG_ORIGIN_TOPIC, b"secret"), (TAG_ORIGIN_PLACE, b"\0"), (TAG_FAILURES, b""), (18, b"\xff")])
        await broker.append(topic, 0, b"", b"by hand")
        await broker.append(topic, 0, b"", b"forged", attrs=forged)
        batch = hot.encode_batch([None], [b"batch"], [encode_attrs([(32, bytes(8)), (33, bytes(9))])])
        broker.stage_batch(topic, 0, batch)
        await broker.durable(broker.log_of(topic, 0), 3)
        letters = await broker.dead_letters.letters("a")
        assert [letter.reason for letter in letters] == ["manual", "�", "manual"]
        assert await broker.dead_letters.replay_matching("a") == 3
        assert values_in(broker, "secret") == [] and broker.log_of(secret, 0).log_end == 0
        assert sorted(all_values(broker, "a")) == [b"batch", b"by hand", b"forged"]

    run_broker(script)


def test_many_letters_are_replayed_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DELIVERY_RECORDS_MAX", 7)

    async def script(broker: Broker) -> None:
        for number in range(30):
            await broker.dead_letters.dead_letter("a", b"", b"%d" % number, "manual", "")
        assert await broker.dead_letters.replay_matching("a") == 30
        assert sorted(all_values(broker, "a"), key=int) == [b"%d" % number for number in range(30)]

    run_broker(script)


def test_one_letter_is_discarded_and_the_others_stay() -> None:
    disk = FaultyDisk()

    async def refused(broker: Broker, topic: str, name: str) -> None:
        with pytest.raises(BraidError) as caught:
            await broker.dead_letters.discard(topic, name)
        assert caught.value.code == "MESSAGE_NOT_FOUND"

    async def script(broker: Broker) -> None:
        letters = broker.dead_letters
        for number in range(5):
            await letters.dead_letter("a", b"", b"%d" % number, "manual", "")
        ids = [letter.id for letter in await letters.letters("a")]
        await letters.discard("a", ids[1])
        for topic, name in (("a", ids[1]), ("a", "nonsense"), ("a", ids[0] + "0"), ("b", ids[0])):
            await refused(broker, topic, name)
        # Sent back and discarded at once: one of both happens.
        outcomes = await asyncio.gather(letters.replay_id("a", ids[2]), letters.discard("a", ids[2]), return_exceptions=True)
        assert sum(isinstance(each, BraidError) for each in outcomes) == 1, outcomes
        back = [value for value in all_values(broker, "a") if value == b"2"]
        assert len(back) == (0 if isinstance(outcomes[0], BraidError) else 1)
        assert [letter.value for letter in await letters.letters("a")] == [b"0", b"3", b"4"]
        await letters.discard("a.dlq", ids[4])

    run_broker(script, disk, stop=False)

    async def afterwards(broker: Broker) -> None:
        assert [letter.value for letter in await broker.dead_letters.letters("a")] == [b"0", b"3"]
        assert await broker.dead_letters.replay_matching("a") == 2

    run_broker(afterwards, disk.crash())


def test_a_purge_leaves_nothing_but_what_came_after() -> None:
    disk = FaultyDisk()

    async def script(broker: Broker) -> None:
        assert await broker.dead_letters.purge("nobody's") == 0
        for number in range(5):
            await broker.dead_letters.dead_letter("a", b"", bytes(30_000), "manual", str(number))
        before = disk.used_bytes
        assert await broker.dead_letters.purge("a") == 5
        assert await broker.dead_letters.letters("a") == [] and await broker.dead_letters.purge("a") == 0
        assert disk.used_bytes < before - 140_000, "the disk gets its space back"
        await broker.dead_letters.dead_letter("a", b"", b"new", "manual", "")

    run_broker(script, disk, stop=False)

    async def afterwards(broker: Broker) -> None:
        assert [letter.value for letter in await broker.dead_letters.letters("a")] == [b"new"]
        assert [record[0] for record in records_in(broker, "a.dlq")] == [5], "offsets go on"

    run_broker(afterwards, disk.crash())


def test_a_filter_is_that_of_fetch_and_knows_the_story_too() -> None:
    records = {
        b"plain RED text": "missing field",
        b'{"order": {"id": 1}}': "missing field",
        b"abc-123": "timeout after 30 s",
        b"$.order.id": "",
    }
    wanted = {
        "red": [b"plain RED text"],
        "$.order.id": [b'{"order": {"id": 1}}', b"$.order.id"],
        "$.order.no": [],
        "^abc-[0-9]+$": [b"abc-123"],
        "after [0-9]+ s$": [b"abc-123"],
        "FIELD": [b"plain RED text", b'{"order": {"id": 1}}'],
        "validation_failed": [*records],
        "(": [],
        "k2": [b"abc-123"],
    }

    async def script(broker: Broker) -> None:
        await broker.create_topic("a", 1)
        for number, (value, error) in enumerate(records.items()):
            await broker.dead_letters.dead_letter("a", b"k%d" % number, value, "validation_failed", error)
        log = broker.partition("a.dlq", 0)
        for text, expected in wanted.items():
            found = [letter.value for letter in await broker.dead_letters.letters("a", 100, matching=text)]
            assert found == expected, text
            fetched = [value for _, _, value in rows_of(await broker.filtered(log, 0, 100, text))]
            assert set(fetched) <= set(found), "what FETCH finds there, a replay finds too"
        assert await broker.dead_letters.replay_matching("a", "^abc-[0-9]+$") == 1
        assert await broker.dead_letters.replay_matching("a", "$.order.id", most=1) == 1
        assert all_values(broker, "a") == [b"abc-123", b'{"order": {"id": 1}}']

    run_broker(script)


def test_a_list_goes_on_from_a_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(broker: Broker) -> None:
        letters = broker.dead_letters
        await broker.create_topic("a.dlq", 2)
        for number in range(20):
            await letters.dead_letter("a", b"", b"%d" % number, "manual", "")
        everything = await letters.letters("a", 100)
        assert [place_in(letter.id) for letter in everything] == [(number // 10, number % 10) for number in range(20)]
        for at in (0, 3, 9, 10, 19):
            found = await letters.letters("a", 4, start=everything[at].id)
            assert found == everything[at : at + 4]
        await letters.replay_id("a", everything[3].id)
        assert (await letters.letters("a", 1, start=everything[3].id)) == [everything[4]], "what follows a letter that is gone"
        assert await letters.letters("a", 5, start="a-99-1") == [] and await letters.letters("a", 5, start="a-0-7") == []
        for wrong in ("nothing", "a-x-1", "a-1-x", "a-" + "9" * 20 + "-0"):
            with expect("MESSAGE_NOT_FOUND"):
                await letters.letters("a", 1, start=wrong)
        monkeypatch.setattr(limits, "FETCH_BYTES_TARGET", 3000)
        assert len(await letters.letters("a", 100)) == 2, "an answer has to fit a frame"
        monkeypatch.setattr(limits, "FETCH_BYTES_TARGET", 10)
        assert len(await letters.letters("a", 100)) == 1

    run_broker(script)


def test_a_letter_with_an_impossible_time_has_an_id_all_the_same() -> None:
    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a.dlq", 1)
        story = encode_attrs([(TAG_FAILURES, struct.pack("<Iqq", 1, 0, -1))])
        await broker.append(topic, 0, b"", b"by hand", attrs=story)
        (letter,) = await broker.dead_letters.letters("a")
        assert letter.id == "a-0-0"
        await broker.dead_letters.replay_id("a", letter.id)
        assert all_values(broker, "a") == [b"by hand"]

    run_broker(script)


def test_letters_of_letters_stay_where_they_are() -> None:
    async def script(broker: Broker) -> None:
        await broker.dead_letters.dead_letter("a", b"", b"v", "manual", "")
        await bury(broker, "a.dlq", 0)
        assert [known.name for known in broker.topics.all()] == ["a.dlq"]
        assert len(await broker.dead_letters.letters("a")) == 2

    run_broker(script)


def test_expired_records_become_letters_where_the_topic_asks_for_it() -> None:
    disk, clock = FaultyDisk(), ManualClock()

    async def script(broker: Broker) -> None:
        asking = await broker.create_topic("asking", 1, {"dlq_expired": "true", "ttl_ms": "5000"})
        silent = await broker.create_topic("silent", 1, {"ttl_ms": "5000"})
        for topic in (asking, silent):
            await broker.append(topic, 0, b"k", b"default")
            await broker.append(topic, 0, b"k", b"short", ttl_ms=1000)
            await broker.append(topic, 0, b"k", b"long", ttl_ms=60_000)
        assert await broker.expired_letters.sweep() == 0
        clock.advance(1)
        assert await broker.expired_letters.sweep() == 1
        clock.advance(4)
        assert await broker.expired_letters.sweep() == 1
        one, two = await broker.dead_letters.letters("asking")
        assert (one.value, one.reason, one.origin_offset, two.value) == (b"short", "expired", 1, b"default")
        assert broker.topics.get("silent.dlq") is None and values_in(broker, "asking") == [b"long"]
        await broker.append(asking, 0, b"", b"more", ttl_ms=10)
        await broker.delete_topic("silent")
        clock.advance(1)

    run_broker(script, disk, clock=clock, stop=False)

    async def afterwards(broker: Broker) -> None:
        assert await broker.expired_letters.sweep() == 1
        assert [letter.value for letter in await broker.dead_letters.letters("asking")] == [b"short", b"default", b"more"]
        clock.advance(100)
        assert await broker.expired_letters.sweep() == 1

    run_broker(afterwards, disk.crash(), clock=clock)


def test_a_full_disk_does_not_lose_expired_records() -> None:
    disk, clock = FaultyDisk(), ManualClock()

    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1, {"dlq_expired": "true"})
        for number in range(5):
            await broker.append(topic, 0, b"", b"%d" % number, ttl_ms=10)
        clock.advance(1)
        await broker.dead_letters.dead_letter("a", b"", b"there", "manual", "")
        await broker.work.number()
        disk.fail("write", path=broker.work.journal._log.segments[-1].log_path, code=28)
        assert await broker.expired_letters.sweep() == 0
        assert await broker.expired_letters.sweep() == 5 and await broker.expired_letters.sweep() == 0
        assert sorted(all_values(broker, "a.dlq")) == [b"0", b"1", b"2", b"3", b"4", b"there"]

    run_broker(script, disk, clock=clock)


def test_runs_are_a_set() -> None:
    rng = random.Random(4)
    for _ in range(300):
        runs, model = Runs(), set[int]()
        for _ in range(rng.randint(1, 12)):
            start = rng.randrange(30)
            end = start + rng.randint(1, 6)
            runs.add(start, end)
            model.update(range(start, end))
            assert {offset for offset in range(40) if offset in runs} == model
            assert all(runs.after(offset) == next(n for n in range(offset, 50) if n not in model) for offset in range(40))
            listed = runs.runs()
            assert all(one[1] < other[0] for one, other in pairwise(listed)), "runs that touch are one"
        assert Runs(runs.runs()).runs() == runs.runs()
