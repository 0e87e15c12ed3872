"""Time to live: expired records vanish from every way of reading, offsets stay, and what lives is served as before."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from types import ModuleType

import pytest
from work_bench import expect, records_in, rows_of, run_broker, values_in

from braidmq import hot
from braidmq.base import limits
from braidmq.base.clock import ManualClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.hot import expiring, layout, pure
from braidmq.log.partition_reads import Batches, Cold, Rows

NOW = 1_000_000
ATTRS = b"\x02\0\0\0ab"
Row = tuple[int, bytes, int]
"""Offset, value, expiry."""


def random_log(rng: random.Random, twin: ModuleType, batches: int) -> tuple[bytes, list[Row]]:
    """Batches of all kinds, some of whose records expire before, at, or after NOW."""
    log = bytearray()
    rows: list[Row] = []
    for _ in range(batches):
        records = rng.choice((1, 1, 2, 3, 8, 30))
        expires = rng.random() < 0.7
        accumulator = twin.Accumulator(None, len(rows))
        for _ in range(records):
            expiry = rng.choice((0, 1, NOW - 1, NOW, NOW + 1, 2 * NOW)) if expires else 0
            value = rng.randbytes(rng.choice((0, 3, 50, 5000)))
            accumulator.append(rng.choice((None, b"key")), value, expiry, ATTRS if rng.random() < 0.3 else None)
            rows.append((len(rows), value, expiry))
        log += accumulator.take(77, 0)
    return bytes(log), rows


def lives(row: Row) -> bool:
    return row[2] == 0 or row[2] > NOW


def parsed(slices: list[object]) -> list[tuple[int, bytes]]:
    data = b"".join(slices)  # type: ignore[arg-type]
    rows = Rows([data], len(data), 0, 0)
    rows.count = _count(data)
    return [(offset, value) for offset, _, value in rows_of(rows)]


def _count(data: bytes) -> int:
    at = count = 0
    while at < len(data):
        key_size = struct.unpack_from(">I", data, at)[0]
        at += 16 + key_size + struct.unpack_from(">I", data, at + 4 + key_size)[0]
        count += 1
    return count


# --- both twins


def test_collecting_passes_over_what_is_expired(implementation: ModuleType, rounds: Callable[[int, int], int]) -> None:
    """Against a model that knows each row: any start, any record limit, any byte limit."""
    rng = random.Random(21)
    for _ in range(rounds(60, 3000)):
        log, rows = random_log(rng, implementation, rng.randint(1, 6))
        offset, records_max, bytes_max = rng.randint(0, len(rows)), rng.choice((1, 2, 5, 100)), rng.choice((0, 60, 5100, 1 << 20))
        asked = (offset, records_max, bytes_max)
        slices, size, count, following, end, status = implementation.collect_rows(log, 0, len(log), *asked, lambda: NOW)
        found = parsed(slices)
        assert count == len(found) and size == sum(map(len, slices))
        living = [(row[0], row[1]) for row in rows[offset:] if lives(row)]
        assert found == living[: len(found)], "a prefix of what lives, in order"
        assert len(found) <= records_max and (size <= bytes_max or len(found) == 1)
        passed_over = rows[found[-1][0] + 1 if found else offset : following]
        assert not any(lives(row) for row in passed_over), "nothing alive is passed over"
        if status == hot.COLLECTED:
            assert (following, end, len(found)) == (max(offset, len(rows)), len(log), len(living))
        else:
            assert status == hot.LIMITED
            after = living[len(found)][1] if len(found) < len(living) else None
            assert len(found) == records_max or after is not None


def test_without_a_clock_nothing_that_may_expire_is_served(implementation: ModuleType) -> None:
    accumulator = implementation.Accumulator(None, 0)
    accumulator.append(None, b"v", 2 * NOW)
    log = accumulator.take(1, 0)
    assert implementation.collect_rows(log, 0, len(log), 0, 9, 999)[2:] == (0, 0, 0, hot.SPECIAL)
    assert implementation.span_batches(log, 0, len(log), 0, 999) == (0, len(log), 1, hot.COLLECTED)


def test_the_clock_is_asked_only_when_something_may_expire(implementation: ModuleType) -> None:
    plain = bytes(implementation.stamp_batch(implementation.encode_batch([None] * 3, [b"v"] * 3), 0, 0, 1))
    calls: list[int] = []

    def now() -> int:
        calls.append(1)
        return NOW

    implementation.collect_rows(plain, 0, len(plain), 0, 9, 999, now)
    implementation.span_batches(plain, 0, len(plain), 0, 999, now)
    assert calls == []
    log, _ = random_log(random.Random(1), implementation, 30)
    implementation.collect_rows(log, 0, len(log), 0, 999, 1 << 30, now)
    assert calls == [1]

    def broken() -> int:
        raise LookupError("no time")

    with pytest.raises(LookupError):
        implementation.collect_rows(log, 0, len(log), 0, 999, 1 << 30, broken)


def test_spanning_stops_before_a_batch_that_must_be_cut(implementation: ModuleType) -> None:
    batches = []
    for base, expiry in ((0, 0), (1, 2 * NOW), (2, NOW), (3, 0)):
        accumulator = implementation.Accumulator(None, base)
        accumulator.append(None, b"v", expiry)
        batches.append(accumulator.take(1, 0))
    log = b"".join(batches)
    ends = [sum(map(len, batches[: n + 1])) for n in range(4)]
    assert implementation.span_batches(log, 0, len(log), 0, 9999, lambda: NOW) == (0, ends[1], 2, hot.EXPIRED)
    assert implementation.span_batches(log, ends[1], len(log), 2, 9999, lambda: NOW) == (ends[1], ends[1], 2, hot.EXPIRED)
    assert implementation.span_batches(log, 0, len(log), 3, 9999, lambda: NOW) == (ends[2], ends[3], 4, hot.COLLECTED)
    assert implementation.span_batches(log, 0, len(log), 0, 9999, lambda: NOW - 1)[3] == hot.COLLECTED


def test_a_batch_is_cut_into_what_lives_and_gaps(implementation: ModuleType, rounds: Callable[[int, int], int]) -> None:
    rng = random.Random(5)
    take = lambda offset, stamp, key, value, attrs: (offset, stamp, key, value, attrs)  # noqa: E731
    for _ in range(rounds(80, 3000)):
        log, rows = random_log(rng, implementation, 1)
        head = layout.read_header(log)
        if not head.flags & layout.FLAG_EXPIRY:
            continue
        whole, _ = implementation.decode_records(log, 0, 999, take)
        parts = list(expiring.living(memoryview(log), NOW))
        served = b"".join(parts)
        assert implementation.verify_batches(served, 0, len(served)) == (len(served), "")
        found, following = implementation.decode_records(served, 0, 999, take)
        assert found == [record for record, row in zip(whole, rows, strict=True) if lives(row)], "all of it, and nothing else"
        assert following == len(rows), "a reader goes on behind the gap"
        assert implementation.scan_batches(served, 0, len(served), 0, 1)[1:3] == (len(rows), ""), "no offset is missing"
        dead = [row[1] for row in rows if not lives(row) and len(row[1]) >= 50]
        assert not any(value in served for value in dead), "nothing of what expired is in there"
        attrs = sum(record[4] == ATTRS for record in found)
        assert served.count(ATTRS) == attrs or not attrs


def test_gaps_join_and_have_a_limit(implementation: ModuleType) -> None:
    head = layout.read_header(implementation.encode_batch([None], [b""]))
    one, two, far = (expiring.gap(base, count, head) for base, count in ((5, 3), (8, 2), (11, 1)))
    joined = expiring.extended_gap(one, two)
    assert joined is not None
    assert implementation.decode_records(joined, 5, 9, lambda *record: record) == ([], 10)
    assert implementation.decode_records(joined, 99, 9, lambda *record: record) == ([], 99)
    assert expiring.extended_gap(one, far) is None
    assert expiring.extended_gap(one, implementation.encode_batch([None], [b""])) is None
    most = expiring.gap(0, limits.BATCH_RECORDS_MAX, head)
    assert expiring.extended_gap(most, expiring.gap(limits.BATCH_RECORDS_MAX, 1, head)) is None
    with pytest.raises(BraidError, match="not for producers"):
        implementation.stamp_batch(one, 0, 0, 0)


def test_a_time_to_live_for_all_keeps_what_a_record_has_of_its_own(implementation: ModuleType) -> None:
    rng = random.Random(8)
    for _ in range(100):
        log, rows = random_log(rng, implementation, 1)
        dated = expiring.with_expiry(log, 3 * NOW)
        assert implementation.verify_batches(dated, 0, len(dated)) == (len(dated), "")
        head = layout.read_header(dated)
        assert expiring.expiry_column(dated, head).tolist() == [row[2] or 3 * NOW for row in rows]
        take = lambda *record: record  # noqa: E731
        assert implementation.decode_records(dated, 0, 999, take) == implementation.decode_records(log, 0, 999, take)


def test_times_to_live_of_a_producers_batch(implementation: ModuleType) -> None:
    rng = random.Random(21)
    for _ in range(100):
        n = rng.randint(1, 9)
        keys = [rng.choice((None, b"key")) for _ in range(n)]
        attrs = [rng.choice((b"", ATTRS)) for _ in range(n)] if rng.random() < 0.5 else None
        plain = implementation.encode_batch(keys, [rng.randbytes(rng.randint(0, 30)) for _ in range(n)], attrs, 7, 0, 3)
        ttls = [rng.choice((0, 1, 5000, 1 << 62)) for _ in range(n)]
        sent = expiring.with_times_to_live(plain, ttls)
        assert expiring.has_times_to_live(sent) and not expiring.has_times_to_live(plain)
        assert implementation.verify_batches(sent, 0, len(sent)) == (len(sent), "")
        again, column = expiring.split_times_to_live(sent)
        assert again == plain and column.tolist() == ttls
        stored = expiring.living_for(implementation.stamp_batch(again, 5, 0, NOW), column, NOW)
        dates = expiring.expiry_column(stored, layout.read_header(stored)).tolist()
        assert dates == [NOW + min(ttl, limits.TTL_MS_MAX) if ttl else 0 for ttl in ttls]
    assert not expiring.has_times_to_live(b"") and not expiring.has_times_to_live(bytes(79))


def test_times_to_live_that_cannot_be(implementation: ModuleType) -> None:
    good = expiring.with_times_to_live(implementation.encode_batch([None, None], [b"a", b"b"]), [1, 2])

    def sealed(data: bytes, **fields: int) -> bytes:
        head = layout.read_header(data)._replace(**fields)
        return expiring._sealed(head, [data[layout.HEADER_BYTES :]])

    damaged = bytearray(good)
    damaged[-1] ^= 1
    wrong = {
        "record 1 lives for -1 ms": expiring.with_times_to_live(good, [1, -1]),
        "checksum mismatch": bytes(damaged),
        "more than one batch": good + good,
        "batch cut short": good[:-8],
        "flags 0x0024 are not for producers": sealed(good, flags=layout.FLAG_EXPIRY | layout.FLAG_TRANSACTIONAL),
        "columns do not fit the record count": sealed(good, flags=layout.FLAG_EXPIRY | layout.FLAG_ATTRS),
    }
    for reason, batch in wrong.items():
        with pytest.raises(BraidError, match=reason):
            expiring.split_times_to_live(batch)


def test_a_batch_brings_times_to_live() -> None:
    disk, clock = FaultyDisk(), ManualClock()
    values = [b"a second", b"the topic's", b"an hour", b"unfit"]

    def batch(sequence: int) -> bytes:
        plain = hot.encode_batch([None] * 4, [b'{"a":"%s"}' % value for value in values], None, 7, 0, sequence)
        return expiring.with_times_to_live(plain, [1000, 0, 3_600_000, 9000])

    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("open", 1, {"ttl_ms": "60000"})
        staged = broker.stage_batch(topic, 0, batch(0))
        await broker.durable(staged.log, 4)
        assert broker.stage_batch(topic, 0, batch(0)).duplicate
        with pytest.raises(BraidError, match="INVALID_BATCH"):
            broker.stage_batch(topic, 0, batch(4)[:-8])
        await broker.schemas.register("s", "json", b'{"properties":{"a":{"not":{"const":"unfit"}}}}')
        bound = await broker.create_topic("bound", 1, {"schema": "s", "schema_rule": "dead-letter"})
        await broker.admission.produce_batch(bound, 0, batch(0))
        assert (await broker.admission.produce_batch(bound, 0, batch(0))).duplicate
        with pytest.raises(BraidError, match="INVALID_BATCH"):
            await broker.admission.produce_batch(bound, 0, batch(4)[:-8])

    run_broker(script, disk, clock=clock, stop=False)

    async def afterwards(broker: Broker) -> None:
        def readable() -> tuple[list[bytes], list[bytes]]:
            found = [[value[6:-2] for value in values_in(broker, topic)] for topic in ("open", "bound")]
            return found[0], found[1]

        assert readable() == (values, values[:3])
        clock.advance(1)
        assert readable() == (values[1:], values[1:3])
        clock.advance(8)
        assert readable() == (values[1:3], values[1:3])
        clock.advance(51)
        assert readable() == (values[2:3], values[1:3])
        clock.advance(3600)
        assert readable() == ([], [values[1]])

    run_broker(afterwards, disk.crash(), clock=clock)


def test_the_twins_read_expiring_batches_alike(rounds: Callable[[int, int], int]) -> None:
    """Also damaged ones that carry a good checksum."""
    native = pytest.importorskip("braidmq.hot._native", exc_type=ImportError)
    rng = random.Random(13)
    for _ in range(rounds(1500, 30_000)):
        log = bytearray(random_log(rng, pure, rng.randint(1, 4))[0])
        for _ in range(rng.randint(0, 3)):
            at = rng.randrange(len(log) - 4)
            log[at : at + 4] = rng.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", rng.randbytes(4)))
        arguments = (rng.randint(0, 60), rng.choice((1, 3, 99)), rng.choice((0, 100, 1 << 20)))
        ours, theirs = ([
            [bytes(part) for part in found[0]], *found[1:]
        ] for found in (twin.collect_rows(bytes(log), 0, len(log), *arguments, lambda: NOW) for twin in (pure, native)))
        assert ours == theirs
        spans = [twin.span_batches(bytes(log), 0, len(log), arguments[0], arguments[2], lambda: NOW) for twin in (pure, native)]
        assert spans[0] == spans[1]


# --- a broker


def test_expired_records_vanish_from_every_read_and_offsets_stay() -> None:
    disk, clock = FaultyDisk(), ManualClock()

    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        log = broker.log_of(topic, 0)
        for number in range(12):
            await broker.append(topic, 0, b"k", b"value %d" % number, ttl_ms=(0, 1000, 2000)[number % 3])
        assert len(values_in(broker, "a")) == 12
        clock.advance(0.999)
        assert len(values_in(broker, "a")) == len(records_in(broker, "a")) == 12
        clock.advance(0.001)
        await check(broker, [0, 2, 3, 5, 6, 8, 9, 11])
        clock.advance(1)
        await check(broker, [0, 3, 6, 9])
        assert (log.log_start, log.high_watermark) == (0, 12)
        # Whoever begins to read behind the last that lives is taken to the end.
        rows = log.read_rows(10, 10, 9999)
        assert isinstance(rows, Rows) and (rows.count, rows.next_offset) == (0, 12)
        batches = log.read_batches(10, 9999)
        assert isinstance(batches, Batches) and batches.next_offset == 12
        assert hot.decode_records(b"".join(batches.slices), 10, 99, lambda *record: record) == ([], 12)
        await broker.append(topic, 0, b"", b"after")
        assert values_in(broker, "a")[-1] == b"after"

    async def check(broker: Broker, living: list[int]) -> None:
        log = broker.partition("a", 0)
        values = [b"value %d" % number for number in living]
        rows = log.read_rows(0, 100, 1 << 20)
        assert isinstance(rows, Rows) and [value for _, _, value in rows_of(rows)] == values and rows.next_offset == 12
        assert [record[0] for record in records_in(broker, "a")] == living
        for wanted, found in ((b"VALUE", living), (b"value 6", [6])):
            filtered = await broker.filtered(log, 0, 100, wanted.decode())
            assert [offset for offset, _, _ in rows_of(filtered)] == found and filtered.next_offset == 12
        reordered = hot.reorder_rows(rows.slices, rows.size)
        assert int.from_bytes(reordered[:8], "big") == living[0]
        for offset in range(12):
            one = log.read_rows(offset, 1, 1 << 20)
            assert isinstance(one, Rows)
            if offset in living:
                assert bytes(broker.row_at(log, one, offset))[-8:] == offset.to_bytes(8, "big")
            else:
                with pytest.raises(BraidError, match="message expired"):
                    broker.row_at(log, one, offset)

    run_broker(script, disk, clock=clock, stop=False)
    found = disk.crash()

    async def again(broker: Broker) -> None:
        assert values_in(broker, "a") == [b"value 0", b"value 3", b"value 6", b"value 9", b"after"], "a restart brings nothing back"

    run_broker(again, found, clock=clock)


@pytest.mark.parametrize("way", ["append", "parsed", "batch", "transaction", "delayed"])
def test_a_topic_gives_every_record_its_time_to_live_whichever_way_it_comes(way: str) -> None:
    clock = ManualClock()

    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1, {"ttl_ms": "1000"})
        log = broker.log_of(topic, 0)
        if way == "append":
            await broker.append(topic, 0, b"", b"v")
        elif way == "parsed":
            body = struct.pack(">H1sII1si", 1, b"a", 0, 1, b"v", 0)
            frame = b"\xaf\x01\x01\x01" + struct.pack(">I", len(body)) + body
            broker.route(topic)
            out = hot.ByteBuffer()
            assert hot.parse_produce(frame, 0, len(frame), broker.routes, 5, broker.commit.dirty, out)[1] == 1
            broker.commit.flush()
        elif way == "batch":
            log.accumulator.append(None, b"before")
            await broker.durable(log, broker.stage_batch(topic, 0, hot.encode_batch([None], [b"v"])).base_offset + 1)
        elif way == "transaction":
            begun = await broker.transactions.begin(None)
            await broker.transactions.produce(begun.id, "a", b"", b"v")
            await broker.transactions.commit(begun.id)
        else:
            await broker.delayed.produce("a", b"", b"v", 500)
            clock.advance(0.5)
            await broker.delayed.deliver_due()
        own = await broker.append(topic, 0, b"", b"own", ttl_ms=5000)
        clock.advance(0.99)
        assert values_in(broker, "a")[-2:] == [b"v", b"own"]
        clock.advance(0.02)
        assert values_in(broker, "a") == [b"own"] and own[1] == log.high_watermark - 1
        clock.advance(5)
        assert values_in(broker, "a") == []

    run_broker(script, clock=clock)


@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_a_clock_that_is_set_expires_nothing_early_or_late(jump_s: int) -> None:
    clock = ManualClock()

    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        for seconds in (60, 1800, 5400):
            await broker.append(topic, 0, b"", b"%d" % seconds, ttl_ms=seconds * 1000)
        clock.jump(jump_s)
        assert len(values_in(broker, "a")) == 3
        clock.advance(59)
        assert len(values_in(broker, "a")) == 3
        clock.advance(2)
        assert values_in(broker, "a") == [b"1800", b"5400"]
        await broker.append(topic, 0, b"", b"new", ttl_ms=10_000)
        clock.advance(9)
        assert values_in(broker, "a") == [b"1800", b"5400", b"new"]
        clock.advance(1800)
        assert values_in(broker, "a") == [b"5400"]

    run_broker(script, clock=clock)


def test_a_long_expired_stretch_does_not_hold_up_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read passes over so much and no more; who asks is led on in steps, and published clients get a record in one answer."""
    monkeypatch.setattr(limits, "EXPIRED_SCAN_BYTES_MAX", 10_000)
    clock = ManualClock()

    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        log = broker.log_of(topic, 0)
        for _ in range(400):
            await broker.append(topic, 0, b"", bytes(1000), ttl_ms=10)
        await broker.append(topic, 0, b"", b"alive")
        clock.advance(1)
        assert log.size_bytes > 20 * limits.EXPIRED_SCAN_BYTES_MAX
        cold = log.read_rows(0, 10, 1 << 20)
        assert isinstance(cold, Cold) and 0 < cold.resume_at < 400
        rows = await broker.finish_rows(log, cold, 0, 10, 1 << 20)
        assert rows_of(rows) == [(400, b"", b"alive")] and rows.next_offset == 401
        assert (await broker.filtered(log, 0, 10, "alive")).count == 1
        monkeypatch.setattr(limits, "FILTER_SCAN_SECONDS_MAX", 0.0)
        part = await broker.finish_rows(log, cold, 0, 10, 1 << 20)
        assert part.count == 0 and cold.resume_at < part.next_offset <= 400
        offset, asked = 0, 0
        while offset < 401:
            batches = await broker.read_batches(log, offset, 1 << 20, 1, 0)
            assert batches.next_offset > offset, "a gap leads on"
            assert batches.size < 1500, "gaps are joined"
            found, offset = hot.decode_records(b"".join(batches.slices), offset, 99, lambda *record: record[3])
            asked += 1
        assert found == [b"alive"] and 3 < asked < 200

    run_broker(script, clock=clock)


def test_limits_of_a_time_to_live() -> None:
    async def script(broker: Broker) -> None:
        for wrong in ({"ttl_ms": "x"}, {"ttl_ms": "-1"}, {"ttl_ms": str(limits.TTL_MS_MAX + 1)}, {"dlq_expired": "maybe"}):
            with expect("INVALID_ARGUMENT"):
                await broker.create_topic("wrong", 1, wrong)
        topic = await broker.create_topic("a", 1, {"ttl_ms": str(limits.TTL_MS_MAX)})
        await broker.append(topic, 0, b"", b"v", ttl_ms=1 << 62)
        assert values_in(broker, "a") == [b"v"]
        small = hot.encode_batch([None] * 990_000, [b""] * 990_000)
        assert len(small) < limits.RECORD_BYTES_MAX
        with pytest.raises(BraidError, match="do not fit a frame"):
            broker.stage_batch(topic, 0, small)
        assert values_in(broker, "a") == [b"v"]

    run_broker(script)
