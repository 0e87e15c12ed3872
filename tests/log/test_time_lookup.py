"""Offsets for times and times for offsets, against a list that is searched from its start."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proof_length import length

from braidmq import hot
from braidmq.base import limits
from braidmq.base.clock import ManualClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError
from braidmq.hot import layout
from braidmq.log.batch_codec import BatchCodec
from braidmq.log.commit import GroupCommit, InlineSyncer, SyncJob
from braidmq.log.partition import LogSettings, PartitionLog
from braidmq.log.partition_reads import Cold
from braidmq.log.recovery import recover
from braidmq.log.segment import Segment
from braidmq.log.time_lookup import ColdIndexes, offset_for_time, timestamp_at

DIRECTORY = "/data/topics/1/0"


def batch_of(base_offset: int, stamps: list[int], value_bytes: int, *, column: bool) -> bytes:
    """A stored batch; with `column` each record has its own timestamp, else all have the first."""
    made = hot.encode_batch([None] * len(stamps), [bytes(value_bytes)] * len(stamps))
    plain = bytes(hot.stamp_batch(made, base_offset, 0, stamps[0]))
    if not column:
        return plain
    head = layout.read_header(plain)
    at = layout.HEADER_BYTES + 3 * layout.padded(4 * head.records)
    more = 8 * len(stamps)
    head = head._replace(
        flags=head.flags | layout.FLAG_TIMESTAMPS, length=head.length + more, rows_at=head.rows_at + more,
        attrs_at=head.attrs_at + more, plain_length=head.plain_length + more, max_timestamp=max(stamps),
    )
    body = plain[layout.HEADER_BYTES : at] + np.array(stamps, "<i8").tobytes() + plain[at:]
    start = layout.HEADER.pack(*head)
    checksum = hot.crc32c(body, hot.crc32c(start[layout.CHECKSUM_FROM :]))
    return layout.HEADER.pack(*head._replace(checksum=checksum)) + body


class StoredLog:
    """A log that was written batch by batch, as the next process finds it."""

    def __init__(self, disk: FaultyDisk, codec: BatchCodec | None = None) -> None:
        self.disk = disk
        self.codec = codec
        self.stamps: list[int] = []
        disk.make_directory(DIRECTORY)
        self._path = ""

    def begin_segment(self) -> None:
        self._path = f"{DIRECTORY}/{len(self.stamps):020d}.log"

    def add(self, stamps: list[int], value_bytes: int = 10, *, column: bool = False) -> None:
        batch = batch_of(len(self.stamps), stamps, value_bytes, column=column)
        if self.codec is not None:
            batch = bytes(self.codec.encode(batch))
        if not self._path:
            self.begin_segment()
        file = self.disk.open_append(self._path)
        file.append([batch])
        file.close()
        self.stamps += stamps if column else [stamps[0]] * len(stamps)

    def open(self) -> PartitionLog:
        log = PartitionLog(self.disk, DIRECTORY, "topic", 0, LogSettings(), self.codec)
        recover(self.disk, log, None)
        assert log.high_watermark == len(self.stamps)
        return log

    def first_at_least(self, timestamp: int, start: int = 0) -> int:
        """What the lookup is to find."""
        return next((offset for offset in range(start, len(self.stamps)) if self.stamps[offset] >= timestamp), len(self.stamps))


Found = TypeVar("Found", int, tuple[int, int])


def warmed(look: Callable[[bool], Found | Cold | ColdIndexes]) -> Found:
    """The answer of a lookup, warming up what it asks for; it may ask for indexes and for data."""
    for attempt in (False, False, True):
        found = look(attempt)
        if not isinstance(found, Cold | ColdIndexes):
            return found
        found.warm_up()
    raise AssertionError("a lookup that may wait has to answer")


def offset_of(log: PartitionLog, timestamp: int) -> int:
    return warmed(lambda attempt: offset_for_time(log, timestamp, warmed=attempt))


def time_of(log: PartitionLog, offset: int) -> int:
    return warmed(lambda attempt: timestamp_at(log, offset, warmed=attempt))[0]


def check(stored: StoredLog, log: PartitionLog) -> None:
    for timestamp in {stamp + nearby for stamp in stored.stamps for nearby in (-1, 0, 1)} | {0, 1 << 62, -5}:
        assert offset_of(log, timestamp) == stored.first_at_least(timestamp, log.log_start), timestamp
    for offset in range(log.log_start, log.high_watermark):
        stamp, until = warmed(lambda attempt, offset=offset: timestamp_at(log, offset, warmed=attempt))  # type: ignore[misc]
        assert until > offset and stored.stamps[offset:until] == [stamp] * (until - offset), offset


stamp_lists = st.lists(st.integers(1000, 1040), min_size=1, max_size=6)
seldom = st.sampled_from([False, False, False, True])
batches = st.tuples(stamp_lists, st.sampled_from([0, 10, 700, 3000, 9000]), st.booleans(), seldom)


@settings(max_examples=length(40, 120), deadline=None)
@given(st.lists(batches, max_size=14), st.booleans())
def test_lookups_agree_with_a_search_from_the_start(parts: list[tuple[list[int], int, bool, bool]], resident: bool) -> None:
    """Timestamps that rise and fall, in and between batches, over several segments, in memory and cold."""
    stored = StoredLog(FaultyDisk(resident=resident))
    for stamps, value_bytes, column, new_segment in parts:
        if new_segment and stored.stamps:
            stored.begin_segment()
        stored.add(stamps, value_bytes, column=column)
    check(stored, stored.open())


@settings(max_examples=30, deadline=None)
@given(st.lists(batches, min_size=1, max_size=8))
def test_compressed_batches_are_searched_too(parts: list[tuple[list[int], int, bool, bool]]) -> None:
    stored = StoredLog(FaultyDisk(), BatchCodec("gzip"))
    for stamps, value_bytes, column, _ in parts:
        stored.add(stamps, value_bytes, column=column)
    log = stored.open()
    for timestamp in {stamp + nearby for stamp in stored.stamps for nearby in (0, 1)}:
        assert offset_of(log, timestamp) == stored.first_at_least(timestamp)


def test_an_empty_log_has_only_its_end() -> None:
    log = StoredLog(FaultyDisk()).open()
    assert offset_of(log, 0) == 0


def test_what_retention_took_is_not_found() -> None:
    stored = StoredLog(FaultyDisk())
    stored.add([5000])
    for stamp in (1000, 3000):
        stored.begin_segment()
        stored.add([stamp])
    log = stored.open()
    assert offset_of(log, 2000) == 0, "the oldest record is from a time when the clock was ahead"
    log.drop_segments(log.segments[:1])
    assert offset_of(log, 2000) == 2
    assert offset_of(log, 4000) == 3
    check(stored, log)


def test_an_index_that_is_lost_is_made_beside_the_loop() -> None:
    stored = StoredLog(FaultyDisk())
    for stamp in range(100, 130):
        if stamp % 10 == 0 and stamp > 100:
            stored.begin_segment()
        stored.add([stamp], 2000)
    stored.open().close()
    for name in stored.disk.list_directory(DIRECTORY):
        if name.endswith(".idx"):
            stored.disk.remove_file(f"{DIRECTORY}/{name}")
    log = PartitionLog(stored.disk, DIRECTORY, "topic", 0, LogSettings())
    from_disk = stored.open()
    log.adopt([Segment(stored.disk, DIRECTORY, segment.base_offset, segment.size) for segment in from_disk.segments], 30)
    first = offset_for_time(log, 115)
    assert isinstance(first, ColdIndexes) and first.segments == log.segments
    first.warm_up()
    names = stored.disk.list_directory(DIRECTORY)
    assert sum(name.endswith(".idx") for name in names) == 3
    assert all(segment.has_index for segment in log.segments), "nothing is left to be read"
    check(stored, log)


def test_records_that_nobody_may_see_yet_are_not_found() -> None:
    """The index knows a batch as soon as it is written, readers only after the sync."""
    disk, clock = FaultyDisk(), ManualClock(1000)
    disk.make_directory("/data/topics")
    held: list[SyncJob] = []

    class Held(InlineSyncer):
        def submit(self, job: SyncJob) -> None:
            held.append(job)

    commit = GroupCommit(clock, Held(disk), lambda _: None)
    log = PartitionLog(disk, DIRECTORY, "topic", 0, LogSettings())
    for _ in range(3):
        log.accumulator.append(None, b"value")
        commit.touch(log)
        commit.flush()
        clock.advance(1)
    assert (log.log_end, offset_of(log, 1000), offset_of(log, 2000)) == (3, 0, 0)
    job = held.pop(0)
    job.run(disk)
    job.done(job)
    assert (log.high_watermark, offset_of(log, 1000), offset_of(log, 2000)) == (1, 0, 1)


def test_a_lookup_reads_little_of_a_large_segment() -> None:
    """Thousands of batches, and only those of one index interval are looked at."""
    stored = StoredLog(FaultyDisk())
    data = b"".join(batch_of(n, [n], 100, column=False) for n in range(5000))
    stored.begin_segment()
    stored.disk.write_file(f"{DIRECTORY}/{0:020d}.log", data)
    stored.stamps = list(range(5000))
    log = stored.open()
    seen: list[int] = []
    window = Segment.window

    def counted(segment: Segment, position: int, likely: int, stop: int) -> tuple[memoryview, int]:
        seen.append(position)
        return window(segment, position, likely, stop)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Segment, "window", counted)
        for wanted in (0, 1, 2500, 4999):
            seen.clear()
            assert offset_of(log, wanted) == wanted
            assert time_of(log, wanted) == wanted
            assert len(seen) <= 2 * (limits.INDEX_INTERVAL_BYTES // 100 + 3), "two walks of one interval each"


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("place", [0, 4, 12, 17, 40, 41, 90])
def test_damage_is_an_error_and_never_another_offset(place: int, bit: int) -> None:
    """A flipped bit in the magic, length, version, offset, time or rows of the batch that would be the answer."""
    stored = StoredLog(FaultyDisk())
    stored.add([1000])
    stored.add([2000])
    stored.add([3000])
    good = stored.open().segments[0]
    good.rebuild_index()
    length = good.size // 3
    stored.disk.flip_bit(good.log_path, length + place, bit)
    log = PartitionLog(stored.disk, DIRECTORY, "topic", 0, LogSettings())
    log.adopt([Segment(stored.disk, DIRECTORY, 0, good.size)], 3)
    assert offset_of(log, 1000) == 0
    with pytest.raises(BraidError, match=f"CORRUPT_LOG.*byte {length} "):
        offset_of(log, 1500)


def test_the_age_of_a_damaged_place_is_an_error() -> None:
    stored = StoredLog(FaultyDisk())
    stored.add([1000])
    stored.add([2000])
    good = stored.open().segments[0]
    good.rebuild_index()
    stored.disk.flip_bit(good.log_path, good.size // 2, 0)
    log = PartitionLog(stored.disk, DIRECTORY, "topic", 0, LogSettings())
    log.adopt([Segment(stored.disk, DIRECTORY, 0, good.size)], 2)
    assert time_of(log, 0) == 1000
    with pytest.raises(BraidError, match="CORRUPT_LOG"):
        time_of(log, 1)
