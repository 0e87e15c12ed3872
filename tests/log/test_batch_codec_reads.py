"""Partitions whose batches lie in every form: reads equal a model, crashes lose nothing, damage is never data."""

from __future__ import annotations

import random

import pytest
from codec_bench import DIRECTORY, KEYS, NEW_KEY, OLD_KEY, OTHER_KEY, CodecBench, records_of, rows_of

from braidmq import hot
from braidmq.base import compression, limits
from braidmq.base.disk_faulty import FaultyDisk, SimulatedCrash
from braidmq.base.errors import BraidError
from braidmq.base.key_ring import KeyRing, shown_key_id
from braidmq.hot import layout
from braidmq.log.batch_codec import BatchCodec
from braidmq.log.partition import LogSettings
from braidmq.log.partition_reads import Batches, Cold, Rows

NAMES = [compression.NAMES[kind] for kind in (1, 2, 3, 4) if compression.is_installed(kind)]
ROTATED = KeyRing([OLD_KEY, NEW_KEY])
FORMS = [("none", False), *((name, False) for name in NAMES), ("none", True), *((name, True) for name in NAMES)]
SMALL = LogSettings(segment_bytes=8000)


def form(number: int, keys: KeyRing = ROTATED) -> BatchCodec:
    name, encrypt = FORMS[number % len(FORMS)]
    return BatchCodec(name, keys, encrypt=encrypt)


def mixed(rng: random.Random, rounds: int, disk: FaultyDisk | None = None) -> tuple[CodecBench, list[bytes]]:
    """A partition that changed its form again and again, in the hands of a process that wrote none of it."""
    bench = CodecBench(form(0), disk, SMALL)
    model: list[bytes] = []
    for _ in range(rounds):
        bench.log.codec = form(rng.randrange(100), rng.choice((KEYS, ROTATED)))
        for _ in range(rng.randint(1, 3)):
            values = [bytes([rng.randrange(256)]) * rng.choice((0, 3, 50, 700)) for _ in range(rng.choice((1, 2, 20)))]
            (bench.add if rng.random() < 0.5 else bench.stage)(*values)
            model += values
        bench.turn()
    return bench.reopened(form(0)), model


def batch_flags(bench: CodecBench) -> list[int]:
    found = []
    stored, at = bench.stored(), 0
    while at < len(stored):
        head = layout.read_header(stored, at)
        found.append(head.flags & layout.FLAGS_OPAQUE)
        at += head.length
    return found


# --- reads against a model


@pytest.mark.parametrize("resident", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize("seed", range(4))
def test_reads_of_every_mix_equal_a_model(seed: int, resident: bool) -> None:
    rng = random.Random(seed)
    bench, model = mixed(rng, 25, FaultyDisk(seed, resident=resident))
    assert set(batch_flags(bench)) == {0, 1, 2, 3} and len(bench.log.segments) > 1
    assert bench.log.high_watermark == len(model)
    assert bench.values() == model
    for _ in range(300):
        offset = rng.randint(0, len(model))
        records_max = rng.choice((1, 2, 7, 100, 1000))
        bytes_max = rng.choice((1, 100, 1000, 20_000, 1 << 22))
        rows = bench.rows(offset, records_max, bytes_max)
        found = rows_of(rows)
        assert [at for at, _, _ in found] == list(range(offset, offset + len(found)))
        assert [value for _, _, value in found] == model[offset : offset + len(found)]
        assert rows.next_offset == offset + len(found) and len(found) <= records_max
        assert rows.size <= bytes_max or len(found) == 1
        assert found or offset == len(model)
        batches = bench.batches(offset, bytes_max)
        records = records_of(batches, offset)
        assert [value for _, _, value in records] == model[offset : batches.next_offset]
        assert records or offset == len(model)
        whole = b"".join(batches.slices)
        assert hot.verify_batches(whole, 0, len(whole))[1] == "", "what is served is whole and has a checksum of its own"


def test_an_answer_holds_as_much_as_was_asked_for() -> None:
    """Limits end an answer in every form at the same record."""
    plain, other = CodecBench(None), CodecBench(BatchCodec("gzip", KEYS))
    for bench in (plain, other):
        for number in range(30):
            bench.write(*[b"%d" % number * 30] * 10)
    for cold in (other, other.reopened(BatchCodec("none", KEYS))):
        for records_max in (1, 9, 10, 11, 299, 300, 1000):
            for bytes_max in (1, 50, 999, 1000, 1 << 20):
                expected, found = plain.rows(5, records_max, bytes_max), cold.rows(5, records_max, bytes_max)
                assert (rows_of(found), found.next_offset) == (rows_of(expected), expected.next_offset)
                whole, decoded = plain.batches(5, bytes_max), cold.batches(5, bytes_max)
                assert b"".join(decoded.slices) == b"".join(whole.slices) and decoded.next_offset == whole.next_offset


def test_without_a_codec_nothing_changes_on_the_disk() -> None:
    one, two = CodecBench(None), CodecBench(BatchCodec())
    for bench in (one, two):
        bench.add(b"a", b"b", key=b"k")
        bench.stage(b"c" * 500)
        bench.turn()
    assert one.stored() == two.stored() and two.values() == [b"a", b"b", b"c" * 500]


def test_what_was_just_written_is_read_without_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = CodecBench(BatchCodec("gzip", KEYS))
    bench.write(*[b"value"] * 100)
    bench.stage(*[b"staged"] * 100)
    bench.turn()
    with monkeypatch.context() as patch:
        patch.setattr(BatchCodec, "decode", lambda *_: pytest.fail("decoded"))
        assert bench.values() == [b"value"] * 100 + [b"staged"] * 100
    assert bench.reopened(BatchCodec("none", KEYS)).values() == bench.values()


def test_a_later_process_decodes_a_batch_once_for_all_its_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = CodecBench(BatchCodec("gzip", KEYS))
    bench.write(*[b"value"] * 100)
    later = bench.reopened(BatchCodec("none", KEYS))
    decoded: list[int] = []
    decode = BatchCodec.decode
    monkeypatch.setattr(BatchCodec, "decode", lambda self, *rest: decoded.append(1) or decode(self, *rest))
    for offset in range(100):
        assert rows_of(later.rows(offset, 1)) == [(offset, b"", b"value")]
    assert len(decoded) == 1


def test_only_batches_with_something_to_read_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = CodecBench(BatchCodec("none", KEYS))
    for number in range(20):
        bench.write(b"%d" % number)
    later = bench.reopened(BatchCodec("none", KEYS))
    decoded: list[int] = []
    decode = BatchCodec.decode
    monkeypatch.setattr(BatchCodec, "decode", lambda self, *rest: decoded.append(1) or decode(self, *rest))
    assert rows_of(later.rows(19)) == [(19, b"", b"19")] and records_of(later.batches(18, 1), 18) == [(18, b"", b"18")]
    assert len(decoded) == 2


def test_what_lies_plain_is_not_kept_twice() -> None:
    bench = CodecBench(BatchCodec("gzip"))
    bench.write(b"too small to compress")
    assert bench.log.codec is not None and bench.log.codec.known(bench.log.segments[0].log_path, 0) is None
    assert bench.values() == [b"too small to compress"]


def test_large_batches_are_decoded_beside_the_loop() -> None:
    bench = CodecBench(BatchCodec("gzip", KEYS))
    large = bytes(limits.DECODED_BYTES_AT_ONCE_MAX)
    bench.write(b"small")
    bench.write(large)
    bench.write(large, b"last")
    later = bench.reopened(BatchCodec("none", KEYS))
    first = later.log.read_rows(0, 1000, 1 << 30)
    assert isinstance(first, Rows) and first.count == 1, "what is at hand is served before the large one"
    assert isinstance(later.log.read_batches(1, 1 << 30), Cold)
    cold = later.log.read_rows(1, 1 << 20, 1 << 30)
    assert isinstance(cold, Cold)
    cold.warm_up()
    warm = later.log.read_rows(1, 1000, 1 << 30, warmed=True)
    assert isinstance(warm, Rows) and warm.count == 3, "the batch behind it was decoded along with it"
    batches = later.log.read_batches(1, 1 << 30)
    assert isinstance(batches, Batches) and batches.next_offset == 4
    assert later.values() == [b"small", large, large, b"last"]


def test_who_cannot_step_aside_decodes_at_once() -> None:
    bench = CodecBench(BatchCodec("gzip", KEYS))
    bench.write(bytes(limits.DECODED_BYTES_AT_ONCE_MAX))
    read = bench.reopened(BatchCodec("none", KEYS)).log.read_batches(0, 1, warmed=True)
    assert isinstance(read, Batches) and read.next_offset == 1


def test_decoding_ahead_stops_before_it_pushes_itself_out() -> None:
    bench = CodecBench(BatchCodec("gzip", KEYS))
    for _ in range(12):
        bench.write(bytes(1 << 20))
    later = bench.reopened(BatchCodec("none", KEYS))
    cold = later.log.read_rows(0, 1 << 20, 1 << 30)
    assert isinstance(cold, Cold)
    cold.warm_up()
    warm = later.log.read_rows(0, 1 << 20, 1 << 30, warmed=True)
    assert isinstance(warm, Rows) and warm.count == limits.DECODED_BYTES_MAX // 4 >> 20


def test_one_read_decodes_a_bounded_amount_on_the_loop() -> None:
    bench = CodecBench(BatchCodec("none", KEYS))
    for _ in range(600):
        bench.write(b"v" * 2000)
    later = bench.reopened(BatchCodec("none", KEYS))
    rows = later.log.read_rows(0, 10_000, 1 << 30)
    assert isinstance(rows, Rows)
    assert 0.5 * limits.DECODED_BYTES_AT_ONCE_MAX < rows.size <= limits.DECODED_BYTES_AT_ONCE_MAX
    assert later.values() == [b"v" * 2000] * 600


# --- writing


def test_a_full_disk_takes_an_encrypted_write_back() -> None:
    bench = CodecBench(BatchCodec("none", KEYS))
    bench.write(b"kept")
    assert isinstance(bench.disk, FaultyDisk)
    bench.disk.fail("write", code=28, written_bytes=50)
    told = bench.write(b"lost")
    assert isinstance(told[0], BraidError) and told[0].code == "STORAGE_FULL"
    assert bench.write(b"after")[0] is None
    assert bench.values() == [b"kept", b"after"]
    assert bench.reopened(BatchCodec("none", KEYS)).values() == [b"kept", b"after"]


def test_a_batch_that_cannot_be_stored_fails_its_producer_only(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = CodecBench(BatchCodec("none", KEYS))
    bench.write(b"kept")
    with monkeypatch.context() as patch:
        patch.setattr(limits, "BATCH_BYTES_MAX", 1000)
        told = bench.write(b"v" * 860)
    assert isinstance(told[0], BraidError) and told[0].code == "INVALID_BATCH"
    assert bench.write(b"after")[0] is None and bench.values() == [b"kept", b"after"]


def test_repeated_batches_are_known_after_a_restart() -> None:
    bench = CodecBench(BatchCodec("gzip", KEYS))
    batch = hot.encode_batch([None] * 50, [b"value"] * 50, None, 7, 0, 0)
    bench.log.stage_batch(batch, 1000)
    bench.commit.touch(bench.log)
    bench.turn()
    later = bench.reopened(BatchCodec("gzip", KEYS))
    assert later.log.stage_batch(batch, 2000) == (0, 50, 1000, True)


# --- crashes


@pytest.mark.parametrize("seed", range(40))
def test_a_crash_loses_nothing_that_was_acknowledged(seed: int) -> None:
    rng = random.Random(seed)
    disk = FaultyDisk(seed)
    bench = CodecBench(form(seed), disk, LogSettings(segment_bytes=8000))
    disk.crash_after(rng.randint(0, 60))
    written: list[bytes] = []
    acknowledged = 0
    with pytest.raises(SimulatedCrash):
        for number in range(100):
            values = [b"%d-%d " % (number, i) * rng.choice((1, 40)) for i in range(rng.choice((1, 10)))]
            written += values
            bench.log.codec = form(rng.randrange(100))
            told = (bench.add if rng.random() < 0.5 else bench.stage)(*values)
            bench.turn()
            if told == [None]:
                acknowledged = len(written)
    later = CodecBench(form(1), disk.crash(seed), LogSettings(segment_bytes=8000))
    found = later.values()
    assert len(found) >= acknowledged and found == written[: len(found)]
    later.write(b"goes on")
    assert later.reopened(form(2)).values() == [*found, b"goes on"]


# --- damage and keys


def test_a_flipped_bit_is_an_error_that_names_the_place() -> None:
    bench = CodecBench(BatchCodec("gzip", KEYS))
    bench.write(*[b"first"] * 100)
    end = bench.log.segments[0].size
    bench.write(*[b"second"] * 100)
    bench.write(*[b"third"] * 100)
    later = bench.reopened(BatchCodec("none", KEYS))
    # Recovery trusted what it checked, so the bit rots under a process that has yet to read.
    assert isinstance(later.disk, FaultyDisk)
    later.disk.flip_bit(f"{DIRECTORY}/{0:020d}.log", end + 100)
    assert rows_of(later.rows(0))[-1] == (99, b"", b"first"), "what lies before it is served"
    for read in (later.rows, later.batches):
        with pytest.raises(BraidError) as caught:
            read(150)
        assert caught.value.code == "CORRUPT_LOG"
        assert f"{0:020d}.log at byte {end} (offset 100)" in caught.value.text
        assert f"key {shown_key_id(KEYS.newest_id)}" in caught.value.text
    assert rows_of(later.rows(200))[0] == (200, b"", b"third"), "and what lies behind it"


def test_a_missing_key_is_an_error_not_data_and_not_damage() -> None:
    bench = CodecBench(BatchCodec("none", KEYS))
    bench.write(b"secret")
    for codec in (BatchCodec(), BatchCodec("none", KeyRing([OTHER_KEY]))):
        later = bench.reopened(codec)
        assert later.found.reason == "" and later.log.high_watermark == 1, "recovery needs no key"
        for read in (later.rows, later.batches):
            with pytest.raises(BraidError, match=f"ENCRYPTION_KEY_MISSING.*key {shown_key_id(KEYS.newest_id)}"):
                read(0)
    assert bench.reopened(BatchCodec("none", KEYS)).values() == [b"secret"]


def test_without_a_codec_an_encrypted_batch_is_refused() -> None:
    bench = CodecBench(BatchCodec("none", KEYS))
    bench.write(b"secret")
    with pytest.raises(BraidError, match="FORMAT_UNSUPPORTED"):
        bench.reopened(None).rows(0)


def test_a_rotation_in_the_middle_of_a_segment() -> None:
    bench = CodecBench(BatchCodec("none", KEYS))
    bench.write(b"old")
    later = bench.reopened(BatchCodec("none", ROTATED))
    later.write(b"new")
    assert later.reopened(BatchCodec("none", ROTATED)).values() == [b"old", b"new"]
    with pytest.raises(BraidError, match="ENCRYPTION_KEY_MISSING"):
        later.reopened(BatchCodec("none", KEYS)).rows(1)


def test_expired_records_vanish_from_every_form_alike() -> None:
    answers = []
    for codec in (None, BatchCodec("none", KEYS), BatchCodec("gzip", KEYS)):
        bench = CodecBench(codec)
        for number in range(60):
            bench.log.accumulator.append(None, b"value", 2000 if number % 2 else 0)
        bench.commit.touch(bench.log)
        bench.turn()
        bench.write(b"last")
        for reader in (bench, bench.reopened(codec)):
            for now_ms in (1000, 3000):
                reader.log._now = lambda now_ms=now_ms: now_ms
                rows, batches = reader.rows(0), reader.batches(0)
                answers.append((now_ms, rows_of(rows), rows.next_offset, records_of(batches, 0), batches.next_offset))
    assert [len(rows) for _, rows, _, _, _ in answers[:2]] == [61, 31]
    assert answers == answers[:2] * 6
