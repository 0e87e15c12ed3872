"""The partition log without faults: what goes in comes out, at every limit and across every boundary."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from log_bench import Ack, Bench, records_of, rows_of

from braidmq import hot
from braidmq.base import limits
from braidmq.base.clock import ManualClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.disk_real import RealDisk
from braidmq.base.errors import BraidError
from braidmq.hot import layout
from braidmq.log import segment as segment_module
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings
from braidmq.log.partition_reads import Cold


@pytest.fixture(params=["faulty", "cold", "real"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Bench]:
    """`bench(settings)` on a disk in memory, on one whose maps are never in memory at first, and on the real one."""

    def make(settings: LogSettings | None = None) -> Bench:
        if request.param == "real":
            return Bench(RealDisk(), settings, directory=str(tmp_path / "topics/1/0"))
        return Bench(FaultyDisk(resident=request.param == "faulty"), settings)

    return make


def check_reads(bench: Bench, model: list[bytes], rng: random.Random, reads: int) -> None:
    """Random reads of both kinds against the list of values that the log should hold."""
    start, end = bench.log.log_start, bench.log.high_watermark
    sizes = [len(value) + 16 for value in model]
    for _ in range(reads):
        offset = rng.randint(start, end)
        records_max = rng.choice((1, 2, 5, 50, 1000))
        bytes_max = rng.choice((1, 100, 1000, 70_000, 1 << 22))
        rows = bench.rows(offset, records_max, bytes_max)
        found = rows_of(rows)
        assert [o for o, _, _ in found] == list(range(offset, offset + len(found)))
        assert [v for _, _, v in found] == model[offset : offset + len(found)]
        assert rows.next_offset == offset + len(found), "the next offset to ask for"
        assert len(found) <= records_max
        assert rows.size <= bytes_max or len(found) == 1, "only the first row may be larger than asked for"
        cold = isinstance(bench.disk, FaultyDisk) and not bench.disk.resident
        full = cold or len(found) == records_max or offset + len(found) == end or rows.size + sizes[offset + len(found)] > bytes_max
        assert full, "an answer stops only at a limit, at the end, or before what is cold"
        batches = bench.batches(offset, bytes_max)
        records = records_of(batches, offset)
        assert [o for o, _, _ in records] == list(range(offset, batches.next_offset))
        assert [v for _, _, v in records] == model[offset : batches.next_offset]
        assert bool(records) == (offset < end)
        if len(batches.slices) and batches.size > bytes_max:
            first = layout.read_header(b"".join(batches.slices))
            assert first.length == batches.size, "only the first batch may be larger than asked for"


@pytest.mark.parametrize("segment_bytes", [4096, 256 * limits.MIB])
def test_what_is_written_is_read(bench: Callable[..., Bench], segment_bytes: int, rounds: Callable[[int, int], int]) -> None:
    """Rows and whole batches mixed, in batches of all sizes, over many segments or in one."""
    rng = random.Random(segment_bytes)
    log = bench(LogSettings(segment_bytes=segment_bytes))
    model: list[bytes] = []
    for _ in range(80):
        acks: list[Ack] = []
        for _ in range(rng.randint(1, 3)):
            values = [rng.randbytes(rng.choice((0, 3, 100, 900))) for _ in range(rng.choice((1, 1, 2, 9)))]
            acks.append(log.add(*values) if rng.random() < 0.5 else log.stage(*values))
            model += values
            assert acks[-1].end == len(model)
        assert not any(ack.told for ack in acks)
        log.turn()
        assert all(ack.good for ack in acks)
    assert log.values() == model
    assert (len(log.log.segments) > 5) == (segment_bytes == 4096)
    check_reads(log, model, rng, rounds(60, 2000))


def test_reads_follow_the_growing_tail(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    """Mapped and not yet mapped bytes, with a map that grows while the segment does."""
    monkeypatch.setattr(segment_module, "_REMAP_BYTES", 3000)
    monkeypatch.setattr(segment_module, "_WARM_TAIL_BYTES", 0)
    rng = random.Random(2)
    log = bench(LogSettings())
    model: list[bytes] = []
    for _ in range(60):
        values = [rng.randbytes(rng.choice((10, 200, 1500))) for _ in range(rng.randint(1, 3))]
        log.write(*values)
        model += values
        check_reads(log, model, rng, 4)
    assert log.log.segments[0]._mapped > 3000, "the test is about maps"
    assert log.values() == model


@pytest.mark.parametrize("sizes", [(70_000, 70_000, 70_000), (10, 200_000, 10), (65_536 - 16, 1, 65_537), (30_000,) * 9])
def test_batches_larger_than_a_window_are_read(bench: Callable[..., Bench], sizes: tuple[int, ...]) -> None:
    log = bench()
    model = [bytes([number]) * size for number, size in enumerate(sizes)]
    for value in model:
        log.write(value)
    log.write(*model)
    assert log.values() == model + model
    for offset in range(len(model)):
        assert rows_of(log.rows(offset, 1, 1))[0][2] == model[offset]
        assert records_of(log.batches(offset, 1), offset)[0][2] == model[offset]
    reopened = log.reopened()
    assert reopened.values() == model + model


def test_a_segment_that_grows_by_megabytes_is_read_throughout(bench: Callable[..., Bench]) -> None:
    """Past the size at which the real limits make a growing segment be mapped anew."""
    log = bench(LogSettings(level=Level.OS))
    for number in range(40):
        log.write(*(bytes([number]) * 1000 for _ in range(100)))
        if number % 7 == 0:
            assert rows_of(log.rows(number * 100 + 99, 1))[0][2] == bytes([number]) * 1000
    assert log.log.segments[0].size > 3 * limits.MIB
    assert log.values() == [bytes([number]) * 1000 for number in range(40) for _ in range(100)]
    assert [value[0] for _, _, value in rows_of(log.rows(3800, 500, 150_000))] == [38] * 100 + [39] * 47


def test_the_next_answer_does_not_begin_with_a_row_that_no_longer_fits(bench: Callable[..., Bench]) -> None:
    """A large row right behind a window that filled the answer must wait: together they would not fit a frame."""
    log = bench()
    for _ in range(20):
        log.write(*(bytes(990) for _ in range(10)))
    log.write(bytes(500_000))
    rows = log.rows(0, 1000, 300_000)
    assert (rows.count, rows.size) == (200, 200 * 1006)
    assert log.rows(rows.next_offset, 1000, 300_000).size == 500_016


def test_reading_at_and_past_the_end_gives_nothing(bench: Callable[..., Bench]) -> None:
    log = bench()
    assert (log.rows(0).count, log.batches(0).size) == (0, 0)
    log.write(b"a", b"b")
    for offset in (2, 3, 1 << 40):
        rows = log.rows(offset)
        assert (rows.count, rows.size, rows.next_offset, rows.slices) == (0, 0, offset, [])
        assert log.batches(offset).next_offset == offset


def test_reading_what_retention_took_is_an_error_not_another_record(bench: Callable[..., Bench]) -> None:
    log = bench(LogSettings(segment_bytes=4096, retention_bytes=4096))
    for number in range(12):
        log.write(bytes([number]) * 2000)
    log.retain()
    assert log.log.log_start > 0
    for read in (log.rows, log.batches):
        with pytest.raises(BraidError, match="OFFSET_OUT_OF_RANGE") as caught:
            read(log.log.log_start - 1)
        assert caught.value.fields["oldest"] == log.log.log_start
    assert log.values() == [bytes([number]) * 2000 for number in range(log.log.log_start, 12)]


def test_records_are_not_seen_before_they_are_durable() -> None:
    """Between the write and the end of the sync a reader finds nothing."""
    log = Bench()
    log.write(b"first")
    seen: list[int] = []
    log.faulty.on_operation = lambda operation, path: seen.append(log.rows(1).count) if operation == "sync" else None
    ack = log.add(b"second")
    log.turn()
    assert seen == [0] and ack.good and log.rows(1).count == 1


def test_at_lower_levels_records_are_seen_once_written() -> None:
    for level in (Level.NONE, Level.OS):
        log = Bench(settings=LogSettings(level=level))
        ack = log.write(b"value")
        assert ack.good and log.values() == [b"value"]
        assert log.faulty.counts["sync"] == 0


def test_records_of_one_turn_share_a_batch_and_a_sync() -> None:
    log = Bench()
    before = log.faulty.counts.copy()
    for _ in range(50):
        log.add(b"value")
    log.turn()
    made = log.faulty.counts - before
    assert (made["write"], made["sync"]) == (1, 1)
    assert layout.read_header(b"".join(log.batches().slices)).records == 50


def test_batches_carry_the_time_of_their_own_turn() -> None:
    log = Bench()
    log.write(b"a")
    log.clock.advance(5)
    log.write(b"b")
    log.clock.advance(5)
    log.stage(b"c")
    log.turn()
    found, _ = hot.decode_records(b"".join(log.batches().slices), 0, 9, lambda _o, time, *_: time)
    now = ManualClock().now_ms()
    assert found == [now, now + 5000, now + 10_000]


def test_cold_data_is_asked_for_and_then_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_module, "_WARM_TAIL_BYTES", 0)
    log = Bench(FaultyDisk(resident=False), LogSettings(segment_bytes=4096))
    for number in range(10):
        log.write(bytes([number]) * 1000)
    for read in (lambda: log.log.read_rows(0, 100, 1 << 20), lambda: log.log.read_batches(0, 1 << 20)):
        cold = log.reopened().log.read_rows(0, 100, 1 << 20)
        assert isinstance(cold, Cold)
        assert isinstance(read(), Cold)
    cold = log.log.read_rows(0, 100, 1 << 20)
    assert isinstance(cold, Cold)
    cold.warm_up()
    again = log.log.read_rows(0, 100, 1 << 20)
    assert not isinstance(again, Cold) and again.count, "what is warm now is served; what lies behind it is asked for in turn"


def test_a_tail_that_is_not_mapped_yet_is_not_cold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A map that lags behind the file must not be asked about bytes it does not cover."""
    monkeypatch.setattr(segment_module, "_WARM_TAIL_BYTES", 0)
    monkeypatch.setattr(segment_module, "_REMAP_BYTES", 20_000)
    log = Bench(RealDisk(), LogSettings(level=Level.OS), directory=str(tmp_path / "topics/1/0"))
    log.write(bytes(30_000))
    assert log.rows(0).count == 1
    for _ in range(4):
        log.write(bytes(4000))
    assert log.log.segments[0]._mapped < 31_000
    for offset in range(5):
        assert isinstance(log.log.read_rows(offset, 1, 1 << 20), Cold) is False


def test_a_warm_up_survives_a_map_that_grew_meanwhile(tmp_path: Path) -> None:
    """It runs beside the loop: the map it began with may be shorter than the segment's newest."""
    log = Bench(RealDisk(), LogSettings(level=Level.OS), directory=str(tmp_path / "topics/1/0"))
    log.write(bytes(8000))
    segment = log.reopened().log.segments[0]
    segment.window(0, 80, 80)
    segment._mapped += 1 << 20
    Cold(segment, 0, 1 << 20).warm_up()


def test_slices_stay_valid_while_segments_are_removed(bench: Callable[..., Bench]) -> None:
    log = bench(LogSettings(segment_bytes=4096, retention_bytes=1))
    for number in range(10):
        log.write(bytes([number]) * 5000)
    held = log.rows(0)
    whole = log.batches(0)
    log.retain()
    assert log.log.log_start == 9
    assert held.count and whole.size
    for _ in range(2):
        assert [value for _, _, value in rows_of(held)] == [bytes([number]) * 5000 for number in range(held.count)]
        assert [value for _, _, value in records_of(whole, 0)] == [bytes([number]) * 5000 for number in range(whole.next_offset)]
        log.remove()
    assert log.rows(9).count == 0


def test_a_batch_that_needs_what_this_build_lacks_is_named() -> None:
    log = Bench()
    log.write(b"plain")
    log.log.accumulator.append(b"k", b"v", 1_800_000_000_000)
    log.commit.touch(log.log)
    log.turn()
    log.write(b"behind")
    assert rows_of(log.rows(0)) == [(0, b"", b"plain")]
    with pytest.raises(BraidError, match=r"FORMAT_UNSUPPORTED.*00000000000000000000\.log at byte \d+ needs"):
        log.rows(1)
    assert rows_of(log.rows(2)) == [(2, b"", b"behind")]


# --- the whole life of a partition against a list


class PartitionLife(RuleBasedStateMachine):
    """Appends, reads, rolls, retention, orderly restarts and kills in any order; a list says what must be there."""

    resident = True

    @initialize(level=st.sampled_from([Level.OS, Level.FSYNC]), segment_bytes=st.sampled_from([4096, 8192, 1 << 20]))
    def begin(self, level: Level, segment_bytes: int) -> None:
        self.settings = LogSettings(level, segment_bytes, 3_600_000, 30_000, 0)
        self.bench = Bench(FaultyDisk(resident=self.resident), self.settings)
        self.model: list[bytes] = []
        self.pending: list[bytes] = []
        self.stamp = 0

    def _values(self, sizes: list[int]) -> list[bytes]:
        self.stamp += 1
        return [b"%d." % self.stamp + bytes(size) for size in sizes]

    @rule(sizes=st.lists(st.sampled_from([0, 5, 200, 1500]), min_size=1, max_size=5))
    def add(self, sizes: list[int]) -> None:
        values = self._values(sizes)
        self.bench.add(*values)
        self.pending += values

    @rule(sizes=st.lists(st.sampled_from([0, 5, 200, 3000]), min_size=1, max_size=5))
    def stage(self, sizes: list[int]) -> None:
        values = self._values(sizes)
        ack = self.bench.stage(*values)
        self.pending += values
        assert ack.end == len(self.model) + len(self.pending)

    @rule()
    def flush(self) -> None:
        self.bench.turn()
        self.model += self.pending
        self.pending = []

    @rule(where=st.floats(0, 1), records=st.integers(1, 40), room=st.sampled_from([1, 300, 5000, 1 << 20]))
    def read(self, where: float, records: int, room: int) -> None:
        log = self.bench.log
        offset = log.log_start + int(where * (log.high_watermark - log.log_start))
        found = rows_of(self.bench.rows(offset, records, room))
        assert [(o, v) for o, _, v in found] == [(o, self.model[o]) for o in range(offset, offset + len(found))]
        assert bool(found) == (offset < log.high_watermark)
        again = records_of(self.bench.batches(offset, room), offset)
        assert [(o, v) for o, _, v in again] == [(o, self.model[o]) for o in range(offset, offset + len(again))]
        assert bool(again) == bool(found)

    @rule(hours=st.sampled_from([0.1, 2]))
    def retain(self, hours: float) -> None:
        self.bench.clock.advance(3600 * hours)
        log = self.bench.log
        active = log.segments[-1] if log.segments else None
        log.roll_if_old(self.bench.clock.now_ms())
        kept = log.size_bytes
        self.bench.retain()
        assert active is None or active in log.segments or len(log.segments) >= 1
        assert log.size_bytes >= min(kept, self.settings.retention_bytes)

    @rule()
    def stop_and_start(self) -> None:
        self.flush()
        known = self.bench.checkpoint()
        self.bench.log.close()
        self.bench = self.bench.reopened(known)
        assert self.bench.found.checked_bytes == 0 and not self.bench.found.reason

    @precondition(lambda self: not self.pending)
    @rule(checkpointed=st.booleans())
    def die_and_start(self, checkpointed: bool) -> None:
        known = self.bench.checkpoint() if checkpointed else None
        self.bench = self.bench.crashed(power=False, known=known)
        assert not self.bench.found.reason

    @precondition(lambda self: self.settings.level is Level.FSYNC and not self.pending)
    @rule(seed=st.integers(0, 50))
    def lose_power(self, seed: int) -> None:
        self.bench = self.bench.crashed(seed)

    @invariant()
    def ends_where_the_list_ends(self) -> None:
        if hasattr(self, "bench"):
            log = self.bench.log
            assert log.high_watermark == log.log_end == len(self.model)
            assert log.accumulator.next_offset == len(self.model) + len(self.pending)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.flush()
            assert self.bench.values() == self.model[self.bench.log.log_start :]


class ColdPartitionLife(PartitionLife):
    resident = False


@pytest.mark.parametrize("life", [PartitionLife, ColdPartitionLife])
def test_any_life_of_a_partition_keeps_its_records(life: type[PartitionLife], rounds: Callable[[int, int], int]) -> None:
    run_state_machine_as_test(life, settings=settings(max_examples=rounds(30, 1500), stateful_step_count=30, deadline=None))
