"""Segments roll by size and age, and retention takes the oldest, never the one that grows."""

from __future__ import annotations

import pytest
from log_bench import DIRECTORY, Bench

from braidmq.base.errors import BraidError
from braidmq.log.attrs import TAG_HEADER, decode_attrs, decode_headers, encode_attrs, encode_headers
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings


def test_segments_roll_by_size() -> None:
    bench = Bench(settings=LogSettings(segment_bytes=5000))
    for number in range(20):
        bench.write(bytes([number]) * 1000)
    sizes = [segment.size for segment in bench.log.segments]
    assert len(sizes) == 5 and all(size <= 5000 for size in sizes)
    assert [segment.base_offset for segment in bench.log.segments] == [0, 4, 8, 12, 16]
    assert bench.disk.list_directory(DIRECTORY) == sorted(
        [f"{base:020d}.log" for base in (0, 4, 8, 12, 16)] + [f"{base:020d}.idx" for base in (0, 4, 8, 12)]
    )


def test_a_batch_larger_than_a_segment_gets_one_of_its_own() -> None:
    bench = Bench(settings=LogSettings(segment_bytes=4096))
    bench.write(b"small")
    bench.write(bytes(50_000))
    bench.write(b"small")
    assert [segment.base_offset for segment in bench.log.segments] == [0, 1, 2]
    assert bench.values() == [b"small", bytes(50_000), b"small"]


def test_segments_roll_by_age() -> None:
    bench = Bench(settings=LogSettings(segment_age_ms=60_000))
    bench.write(b"a")
    bench.clock.advance(59)
    bench.write(b"b")
    assert len(bench.log.segments) == 1
    bench.clock.advance(1)
    bench.write(b"c")
    assert [segment.base_offset for segment in bench.log.segments] == [0, 2]
    forever = Bench(settings=LogSettings(segment_age_ms=0))
    forever.write(b"a")
    forever.clock.advance(1e9)
    forever.write(b"b")
    assert len(forever.log.segments) == 1


def test_the_age_of_a_segment_survives_a_restart() -> None:
    bench = Bench(settings=LogSettings(segment_age_ms=60_000))
    bench.write(b"a")
    bench.clock.advance(40)
    bench.write(b"b")
    known = bench.checkpoint()
    bench.log.close()
    after = bench.reopened(known)
    after.clock.advance(20)
    after.write(b"c")
    assert [segment.base_offset for segment in after.log.segments] == [0, 2]


def test_a_quiet_segment_is_closed_when_it_is_old() -> None:
    bench = Bench(settings=LogSettings(segment_age_ms=60_000))
    now = bench.clock.now_ms
    assert not bench.log.roll_if_old(now() + 10**9), "there is nothing to close"
    bench.write(b"a")
    assert not bench.log.roll_if_old(now())
    bench.clock.advance(61)
    waiting = bench.add(b"b")
    assert not bench.log.roll_if_old(now()), "rows are on their way into it"
    bench.turn()
    assert waiting.good and len(bench.log.segments) == 2, "which closes it all the same"
    bench.clock.advance(61)
    assert bench.log.roll_if_old(now())
    assert not bench.log.roll_if_old(now() + 10**9), "an empty segment has no age"
    assert [segment.base_offset for segment in bench.log.segments] == [0, 1, 2]
    assert bench.values() == [b"a", b"b"]
    bench.write(b"c")
    assert bench.values() == [b"a", b"b", b"c"] and len(bench.log.segments) == 3
    assert bench.crashed(3).values() == [b"a", b"b", b"c"]


def test_a_segment_is_not_closed_while_a_sync_is_under_way() -> None:
    bench = Bench(settings=LogSettings(segment_age_ms=60_000), hold_syncs=True)
    bench.write(b"a")
    bench.clock.advance(100)
    assert not bench.log.roll_if_old(bench.clock.now_ms())
    bench.sync()
    assert bench.log.roll_if_old(bench.clock.now_ms())


def test_retention_by_bytes_keeps_at_least_what_was_asked_for() -> None:
    bench = Bench(settings=LogSettings(segment_bytes=5000, retention_bytes=12_000, retention_age_ms=0))
    for number in range(40):
        bench.write(bytes([number]) * 1000)
        before = bench.log.size_bytes
        bench.retain()
        assert min(before, 12_000) <= bench.log.size_bytes < 12_000 + 5000
    assert bench.log.log_start > 20
    assert bench.values() == [bytes([number]) * 1000 for number in range(bench.log.log_start, 40)]


def test_retention_by_age_takes_whole_segments_only() -> None:
    bench = Bench(settings=LogSettings(segment_bytes=5000, retention_bytes=0, retention_age_ms=60_000))
    for number in range(12):
        bench.write(bytes([number]) * 1000)
        bench.clock.advance(10)
    # Segments of 4 records: the newest record of the first is 90 s old, of the second 50 s.
    assert bench.retain() == 1
    assert bench.log.log_start == 4
    bench.clock.advance(11)
    assert bench.retain() == 1
    assert bench.log.log_start == 8
    bench.clock.advance(10**6)
    assert bench.retain() == 0, "the segment that grows stays"
    assert bench.values() == [bytes([number]) * 1000 for number in range(8, 12)]


@pytest.mark.parametrize("settings", [LogSettings(retention_bytes=1), LogSettings(retention_age_ms=1)])
def test_retention_never_touches_the_active_segment(settings: LogSettings) -> None:
    bench = Bench(settings=settings)
    bench.write(bytes(100_000))
    bench.clock.advance(10**7)
    assert bench.retain() == 0
    assert bench.values() == [bytes(100_000)]
    after = bench.reopened(bench.checkpoint())
    assert after.retain() == 0 and after.values() == [bytes(100_000)]


def test_no_retention_keeps_everything() -> None:
    bench = Bench(settings=LogSettings(Level.OS, 4096, 0, 0, 0))
    for _ in range(30):
        bench.write(bytes(2000))
    bench.clock.advance(1e9)
    assert bench.retain() == 0 and len(bench.values()) == 30


def test_retention_does_not_take_what_is_not_durable_yet() -> None:
    bench = Bench(settings=LogSettings(segment_bytes=4096, retention_bytes=1), hold_syncs=True)
    for _ in range(5):
        bench.write(bytes(3000))
    assert bench.retain() == 0
    bench.sync()
    assert bench.retain() == 4


def test_a_damaged_segment_is_not_taken_for_an_old_one() -> None:
    """Without a timestamp that can be read nobody knows its age; deleting it could not be explained."""
    bench = Bench(settings=LogSettings(segment_bytes=4096, retention_bytes=0, retention_age_ms=60_000))
    for _ in range(4):
        bench.write(bytes(3000))
    known = bench.checkpoint()
    disk = bench.faulty.crash(power=False)
    first = f"{DIRECTORY}/{0:020d}"
    disk.remove_file(first + ".idx")
    disk.flip_bit(first + ".log", 20)
    after = bench.reopened(known, disk)
    assert after.retain() == 0 and disk.exists(first + ".log")


def test_what_retention_took_is_gone_after_a_restart() -> None:
    bench = Bench(settings=LogSettings(segment_bytes=4096, retention_bytes=1))
    for number in range(6):
        bench.write(bytes([number]) * 3000)
    bench.retain()
    assert bench.disk.list_directory(DIRECTORY) == [f"{5:020d}.log"]
    for known in (None, bench.checkpoint()):
        after = bench.crashed(power=False, known=known)
        assert (after.log.log_start, after.log.log_end) == (5, 6)
        assert after.write(b"next").end == 7


def test_reading_goes_on_where_retention_left_off() -> None:
    bench = Bench(settings=LogSettings(segment_bytes=4096, retention_bytes=1))
    held = []
    for number in range(20):
        bench.write(bytes([number]) * 3000)
        held.append(bench.rows(bench.log.high_watermark - 1))
        bench.retain()
        assert bench.log.log_start == number
    assert [bytes(rows.slices[0])[8:9] for rows in held] == [bytes([number]) for number in range(20)]


# --- attributes of records


def test_attributes_come_back() -> None:
    assert encode_attrs([]) == encode_headers({}) == b""
    assert decode_attrs(b"") == []
    entries = [(TAG_HEADER, b"\x01\0nv"), (77, b"unknown to this version"), (TAG_HEADER, b"\0\0")]
    assert decode_attrs(encode_attrs(entries)) == entries
    assert decode_headers(encode_attrs(entries)) == {"n": b"v", "": b""}
    headers = {"é": b"\0\xff", "trace": b"", "x" * 65535: b"long"}
    assert decode_headers(encode_headers(headers)) == headers


def test_a_header_name_has_a_limit() -> None:
    with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
        encode_headers({"x" * 65536: b""})


def test_attributes_cut_or_changed_anywhere_are_refused_or_read() -> None:
    block = encode_headers({"name": b"value", "other": b""})
    for cut in range(1, len(block)):
        with pytest.raises(BraidError, match="INVALID_BATCH"):
            decode_headers(block[:cut])
    for position in range(len(block)):
        for value in (0, 1, 0x7F, 0xFF):
            try:
                decode_headers(block[:position] + bytes([value]) + block[position + 1 :])
            except BraidError as error:
                assert error.code == "INVALID_BATCH"
