"""Batches of which some records do not fit their topic's schema, under the rule `dead-letter`: stored once, known after a crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from work_bench import all_values, crash_points, expect, fates, run_broker

from braidmq import hot
from braidmq.base import limits
from braidmq.base.clock import ManualClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError
from braidmq.broker.admission import StoredBatch
from braidmq.broker.broker import Broker
from braidmq.broker.letter_table import LetterTable
from braidmq.log.attrs import decode_headers, encode_headers
from braidmq.log.partition_reads import Batches

SCHEMA = b'{"type":"object","required":["a"]}'


def good(number: int) -> bytes:
    return b'{"a":%d}' % number


def bad(number: int) -> bytes:
    return b'{"b":%d}' % number


def batch(*values: bytes, producer: int = 7, sequence: int = 0, attrs: list[bytes] | None = None) -> bytes:
    return hot.encode_batch([None] * len(values), list(values), attrs, producer, -1 if producer < 0 else 0, sequence)


async def bound(broker: Broker, rule: str = "dead-letter", **properties: str) -> None:
    await broker.schemas.register("s", "json", SCHEMA)
    await broker.create_topic("a", 1, {"schema": "s", "schema_rule": rule, **properties})


async def produce(broker: Broker, data: bytes) -> StoredBatch:
    return await broker.admission.produce_batch(broker.topic("a"), 0, data)


class Producing:
    """An idempotent producer whose three batches fit in part, or not at all, with a checkpoint between them."""

    batches = (
        (0, (good(0), bad(1), good(2))),
        (3, (bad(3), bad(4))),
        (5, (bad(5), good(6), good(7), bad(8))),
        (9, (good(9),)),
    )

    def __init__(self) -> None:
        self.answered = 0

    async def __call__(self, broker: Broker) -> None:
        await bound(broker)
        for number, (sequence, values) in enumerate(self.batches):
            stored = await produce(broker, batch(*values, sequence=sequence))
            assert (stored.base_offset, stored.records, stored.duplicate) == (sequence, len(values), False)
            self.answered += 1
            if number == 1:
                await broker.checkpoint()

    async def check(self, broker: Broker) -> None:
        """The producer did not hear how its last batch ended: it sends that one again, and goes on."""
        topic = broker.topics.get("a")
        if topic is None:
            return
        for number, (sequence, values) in enumerate(self.batches[self.answered :], self.answered):
            stored = await produce(broker, batch(*values, sequence=sequence))
            assert stored.base_offset == sequence and stored.records == len(values), "its offsets are what they were"
            assert number == self.answered or not stored.duplicate
        wanted = [value for _, values in self.batches for value in values]
        assert all_values(broker, "a") == [value for value in wanted if b'"a"' in value], "what fits, once and in order"
        letters = Counter(letter.value for letter in await broker.dead_letters.letters("a", 100))
        assert letters == Counter(value for value in wanted if b'"b"' in value), "and a letter of each other, once"


def test_a_crash_at_any_step_leaves_a_batch_that_can_be_repeated(rounds: Callable[[int, int], int]) -> None:
    scripts: list[Producing] = []

    def script() -> Producing:
        scripts.append(Producing())
        return scripts[-1]

    outcomes = 0
    for disk, clock, _ in crash_points(script, step=rounds(5, 1)):
        for found in fates(disk, rounds(1, 6)):
            run_broker(scripts[-1].check, found, clock=clock)
            outcomes += 1
    assert outcomes > 50


def test_without_knowing_how_far_the_letters_came_they_come_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: the same check finds letters that are made again."""
    monkeypatch.setattr(LetterTable, "refused_of", lambda *_: 0)
    with pytest.raises(AssertionError, match="a letter of each other"):
        test_a_crash_at_any_step_leaves_a_batch_that_can_be_repeated(lambda short, _: short)


def test_what_does_not_fit_keeps_its_offset_and_nothing_else() -> None:
    disk = FaultyDisk()
    headers = [encode_headers({"n": b"%d" % number}) for number in range(3)]

    async def script(broker: Broker) -> None:
        await bound(broker, ttl_ms="60000", dlq_expired="true")
        stored = await produce(broker, batch(good(0), bad(1), good(2), attrs=headers))
        assert (stored.base_offset, stored.records) == (0, 3)
        await produce(broker, batch(bad(3), producer=-1, sequence=-1))

    run_broker(script, disk, stop=False)

    async def afterwards(broker: Broker) -> None:
        clock = broker.clock
        assert isinstance(clock, ManualClock)
        assert all_values(broker, "a") == [good(0), good(2)]
        log = broker.partition("a", 0)
        assert log.high_watermark == 4
        raw = log.read_batches(0, 1 << 20, warmed=True, raw=True)
        assert isinstance(raw, Batches) and b'"b"' not in b"".join(raw.slices), "a letter is not kept twice"
        found = await broker.read_batches(log, 0, 1 << 20, 1, 0)
        records, following = hot.decode_records(
            b"".join(found.slices), 0, 100, lambda offset, _time, _key, value, attrs: (offset, value, decode_headers(attrs))
        )
        assert records == [(0, good(0), {"n": b"0"}), (2, good(2), {"n": b"2"})] and following == 4
        again = await produce(broker, batch(good(0), bad(1), good(2), attrs=headers))
        assert (again.base_offset, again.duplicate) == (0, True), "known from the log alone"
        assert [letter.value for letter in await broker.dead_letters.letters("a")] == [bad(1), bad(3)]
        clock.advance(100)
        assert await broker.expired_letters.sweep() == 2, "what only keeps an offset does not expire"
        assert Counter(all_values(broker, "a.dlq")) == Counter([good(0), bad(1), good(2), bad(3)])

    run_broker(afterwards, disk.crash())


def test_what_is_stored_is_stored_whatever_the_schema_says_later() -> None:
    async def script(broker: Broker) -> None:
        await bound(broker, "reject")
        await produce(broker, batch(good(0)))
        await broker.schemas.register("s", "json", b'{"type":"object","required":["a","b"]}', "none")
        assert (await produce(broker, batch(good(0)))).duplicate
        with expect("SCHEMA_VALIDATION_FAILED"):
            await produce(broker, batch(good(1), sequence=1))
        with expect("OUT_OF_ORDER_SEQUENCE"):
            await produce(broker, batch(good(1), sequence=9))
        with expect("INVALID_BATCH"):
            await produce(broker, hot.encode_batch([None], [bad(1)], None, 7, -1, 0))

    run_broker(script)


def test_letters_of_a_large_batch_come_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DELIVERY_RECORDS_MAX", 2)
    decided: list[int] = []
    disk = FaultyDisk()

    async def script(broker: Broker) -> None:
        await bound(broker)
        await broker.dead_letters.topic_for("a")
        decide = broker.work.decide

        async def failing(command: list[object]) -> object:
            decided.append(command[7])  # type: ignore[arg-type]
            if len(decided) == 3:
                raise BraidError("STORAGE_FULL", topic="a", partition=0)
            return await decide(command)

        monkeypatch.setattr(broker.work, "decide", failing)
        values = [bad(number) for number in range(7)]
        with expect("STORAGE_FULL"):
            await produce(broker, batch(*values))
        assert all_values(broker, "a.dlq") == values[:4] and broker.partition("a", 0).log_end == 0
        await produce(broker, batch(*values))
        assert decided == [2, 4, 6, 6, 7], "it goes on where it was"
        assert all_values(broker, "a.dlq") == values and all_values(broker, "a") == []

    run_broker(script, disk)


def test_the_memory_of_refusals_is_bounded() -> None:
    assert LetterTable()._refusals_remembered == limits.REFUSALS_REMEMBERED
    table = LetterTable(refusals_remembered=2)
    for producer in range(3):
        assert table.refuse(1, 0, producer, 0, 0, 5) and not table.refuse(1, 0, producer, 0, 0, 5)
    assert [table.refused_of(1, 0, producer, 0, 0) for producer in range(3)] == [0, 5, 5]
    assert table.refuse(1, 0, 1, 0, 5, 2) and table.refused_of(1, 0, 1, 0, 0) == 0, "of a producer the newest batch"
    again = LetterTable()
    again.restore(table.snapshot())
    assert again.refused_of(1, 0, 1, 0, 5) == 2 and again.refused_of(1, 0, 2, 0, 0) == 5
    again.forget_topic(1)
    assert again.snapshot()["refused"] == []
    assert table.refuse(1, 0, -1, -1, -1, 1) and table.refuse(1, 0, -1, -1, -1, 1), "nobody can tell whether it came before"
