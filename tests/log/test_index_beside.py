"""The index of a segment is loaded and made beside the loop: whoever appends needs none, whoever reads is told to wait for it."""

from __future__ import annotations

import threading

import pytest
from log_bench import DIRECTORY, Bench, rows_of

from braidmq.base import limits
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.disk_real import RealDisk
from braidmq.hot import layout
from braidmq.log import segment as segment_module
from braidmq.log.partition import LogSettings
from braidmq.log.partition_reads import Cold, Rows
from braidmq.log.segment import Segment
from braidmq.log.time_lookup import ColdIndexes, offset_for_time, timestamp_at

FIRST = f"{DIRECTORY}/{0:020d}"


def filled(batches: int = 40, settings: LogSettings | None = None) -> Bench:
    bench = Bench(FaultyDisk(), settings)
    for number in range(batches):
        bench.write(b"%d" % number * 700)
        bench.clock.advance(1)
    return bench


def reopened(bench: Bench) -> Bench:
    """The same log after a crash, of which a checkpoint knows everything: nothing was walked, so there is no index."""
    again = bench.crashed(power=False, known=bench.checkpoint())
    assert not again.log.segments[-1].has_index
    return again


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads that made an index from the log."""
    seen: list[str] = []
    scan = Segment._scanned_index

    def noting(self: Segment, size: int) -> object:
        seen.append(threading.current_thread().name)
        return scan(self, size)

    monkeypatch.setattr(Segment, "_scanned_index", noting)
    return seen


def beside(cold: Cold | ColdIndexes) -> None:
    thread = threading.Thread(target=cold.warm_up, name="beside")
    thread.start()
    thread.join()


def test_who_appends_needs_no_index(scans: list[str]) -> None:
    again = reopened(filled())
    for number in range(40, 60):
        again.write(b"%d" % number * 700)
    tail = again.log.read_rows(50, 3, 1 << 20)
    assert isinstance(tail, Rows) and [offset for offset, _, _ in rows_of(tail)] == [50, 51, 52], "found by what was appended"
    start = again.log.read_rows(0, 2, 1 << 20)
    assert isinstance(start, Rows) and start.count == 2, "a segment begins where it begins"
    assert isinstance(timestamp_at(again.log, 55), tuple)
    assert scans == []


def test_who_reads_what_was_there_waits_beside_the_loop(scans: list[str]) -> None:
    again = reopened(filled())
    again.write(b"40" * 700)
    cold = again.log.read_rows(20, 3, 1 << 20)
    assert isinstance(cold, Cold) and scans == []
    for number in range(41, 60):
        again.write(b"%d" % number * 700)
    beside(cold)
    rows = again.log.read_rows(20, 3, 1 << 20)
    assert isinstance(rows, Rows) and [offset for offset, _, _ in rows_of(rows)] == [20, 21, 22]
    assert scans == ["beside"]
    fresh = Segment(again.disk, DIRECTORY, 0, again.log.segments[0].size).index
    for offset in range(60):
        # One entry more, where the process began.
        assert again.log.segments[0].index.position_of(offset) >= fresh.position_of(offset)
        found = again.log.read_rows(offset, 1, 1 << 20)
        assert isinstance(found, Rows) and rows_of(found)[0][0] == offset
    assert again.values() == [b"%d" % number * 700 for number in range(60)]


def test_times_are_found_through_both_parts() -> None:
    bench = filled()
    began_ms = bench.clock.now_ms() - 40_000
    again = reopened(bench)
    for number in range(40, 60):
        again.write(b"%d" % number * 700)
        again.clock.advance(1)
    cold = offset_for_time(again.log, began_ms + 30_500)
    assert isinstance(cold, ColdIndexes)
    beside(cold)
    for second in range(60):
        assert offset_for_time(again.log, began_ms + 1000 * second) == second


def test_what_was_prepared_for_another_state_is_not_used(scans: list[str]) -> None:
    again = reopened(filled())
    segment = again.log.segments[-1]
    segment.prepare_index()
    again.write(b"more" * 1000)
    assert segment.has_index, "what is appended has an index of its own"
    again.log.settings = LogSettings(segment_bytes=4096)
    again.write(b"in the next segment")
    assert segment.sealed and not segment.has_index
    assert segment.index.position_of(39) > 0


def test_closing_makes_no_index_that_nobody_needed(scans: list[str]) -> None:
    again = reopened(filled())
    again.write(b"more" * 1000)
    again.log.close()
    assert scans == [] and not again.disk.exists(FIRST + ".idx")
    after = again.reopened(again.checkpoint())
    cold = after.log.read_rows(20, 1, 1 << 20)
    assert isinstance(cold, Cold)
    beside(cold)
    assert scans == ["beside"] and after.disk.exists(FIRST + ".idx")


def test_closing_adds_to_an_index_that_is_there(scans: list[str]) -> None:
    bench = filled()
    bench.log.close()
    again = bench.reopened(bench.checkpoint())
    for number in range(40, 60):
        again.write(b"%d" % number * 700)
    again.log.close()
    kept = Segment(again.disk, DIRECTORY, 0, again.log.segments[0].size)
    assert kept.index.position_of(59) > kept.index.position_of(39) > 0 and scans == []
    assert kept.newest_ms == again.clock.now_ms()


def test_a_segment_that_went_meanwhile_is_nobodys_loss() -> None:
    again = reopened(filled())
    cold = again.log.read_rows(20, 3, 1 << 20)
    assert isinstance(cold, Cold)
    again.disk.remove_file(FIRST + ".log")
    beside(cold)


def test_steps_of_a_scan_are_one_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(FaultyDisk())
    for number in range(60):
        bench.write(*[b"%d" % number * 300] * (number % 7 + 1))
    bench.write(b"large" * 20_000)
    bench.write(b"last")
    size = bench.log.segments[0].size
    data = bench.disk.read_file(FIRST + ".log")
    positions: list[int] = []
    """Of the batch of each offset."""
    at = 0
    while at < size:
        head = layout.read_header(data, at)
        positions += [at] * head.records
        at += head.length
    for step in (size, 10_000, 100):
        monkeypatch.setattr(segment_module, "_SCAN_BYTES", step)
        index = Segment(bench.disk, DIRECTORY, 0, size)._scanned_index(size)
        assert index.max_timestamp == bench.clock.now_ms()
        for offset, position in enumerate(positions):
            assert 0 <= position - index.position_of(offset) < limits.INDEX_INTERVAL_BYTES


def test_retention_reads_the_age_of_a_segment_once(scans: list[str]) -> None:
    bench = filled(40, LogSettings(segment_bytes=8192, retention_bytes=0, retention_age_ms=10_000_000))
    for name in bench.disk.list_directory(DIRECTORY):
        if name.endswith(".idx"):
            bench.disk.remove_file(f"{DIRECTORY}/{name}")
    again = reopened(bench)
    oldest = again.log.segment_of_unknown_age()
    assert oldest is again.log.segments[0]
    oldest.prepare_index()
    assert again.log.segment_of_unknown_age() is None
    assert again.log.expired_segments(again.clock.now_ms()) == []
    for _ in range(3):
        again.log.forget_maps()
    assert again.log.segment_of_unknown_age() is None and len(scans) == 1
    again.log.settings.retention_age_ms = 0
    assert again.log.segment_of_unknown_age() is None


@pytest.mark.parametrize("populates", [True, False])
def test_a_cold_range_is_brought_in_with_old_kernels_too(
    tmp_path_factory: pytest.TempPathFactory, populates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path_factory.mktemp("map") / "file"
    path.write_bytes(bytes(range(256)) * 4096)
    if not populates:
        monkeypatch.setattr("braidmq.base.disk_real._POPULATE_READ", 9999)
    file_map = RealDisk().map_file(str(path), 1 << 20)
    file_map.prefault(100, 100)
    file_map.prefault(5000, 1 << 20)
    assert file_map.resident(5000, 1 << 20) and bytes(file_map.view[:4]) == bytes(range(4))
