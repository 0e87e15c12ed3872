"""Recovery: a tail torn at every byte, a bit flipped in every byte, and indexes and checkpoints that lie or are gone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from log_bench import DIRECTORY, Bench, Record, records_of, rows_of

from braidmq.base.clock import ManualClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.disk_real import RealDisk
from braidmq.base.errors import BraidError
from braidmq.hot import layout
from braidmq.log.checkpoint import Checkpoint, PartitionCheckpoint
from braidmq.log.expiry_cursor import ExpiryCursor
from braidmq.log.index import SparseIndex
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings
from braidmq.log.recovery import RecoveryReport, open_clean
from braidmq.log.segment import Segment

FIRST = f"{DIRECTORY}/{0:020d}"


def grown(values: list[list[bytes]], settings: LogSettings | None = None, disk: FaultyDisk | None = None) -> Bench:
    bench = Bench(disk, settings)
    for batch in values:
        bench.write(*batch)
    return bench


# --- a torn tail


@pytest.mark.parametrize("kind", ["cut", "zeros", "garbage"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_tail_torn_at_any_byte_is_cut_back_to_the_batch_before(kind: str, checkpointed: bool) -> None:
    """Whatever is left of the last batch, the log ends before it and goes on from there with dense offsets."""
    bench = grown([[b"first", b"second"], [b"third"]])
    whole = bench.log.segments[0].size
    known = bench.checkpoint() if checkpointed else None
    bench.write(b"torn", b"away")
    data = bench.disk.read_file(FIRST + ".log")
    rng = random.Random(1)
    for cut in range(whole, len(data)):
        lost = len(data) - cut
        tail = {"cut": b"", "zeros": bytes(lost), "garbage": rng.randbytes(lost)}[kind]
        if data[:cut] + tail == data:
            continue
        disk = FaultyDisk(cut)
        disk.make_directory(DIRECTORY)
        disk.replace_file(FIRST + ".log", data[:cut] + tail)
        found = Bench(disk, known=known)
        assert found.values() == [b"first", b"second", b"third"]
        assert found.log.log_end == 3
        torn = cut + len(tail) - whole
        assert found.found.truncated_bytes == torn
        assert bool(found.found.reason) == bool(torn)
        assert found.found.truncated_at == (f"{FIRST}.log:{whole}" if torn else "")
        assert found.found.checked_bytes == (0 if checkpointed else whole)
        assert disk.file_size(FIRST + ".log") == whole
        assert found.write(b"next").end == 4
        assert found.crashed(cut).values() == [b"first", b"second", b"third", b"next"]


def test_a_torn_tail_on_the_real_disk(tmp_path: Path) -> None:
    directory = str(tmp_path / "topics/1/0")
    bench = Bench(RealDisk(), directory=directory)
    bench.write(b"a", b"b")
    whole = bench.log.segments[0].size
    bench.write(b"c")
    bench.log.close()
    file = Path(directory, f"{0:020d}.log")
    data = file.read_bytes()
    for cut in range(whole, len(data), 5):
        file.write_bytes(data[:cut])
        found = Bench(RealDisk(), directory=directory)
        assert (found.values(), found.log.log_end) == ([b"a", b"b"], 2)
        found.write(b"d")
        assert found.values() == [b"a", b"b", b"d"]
        found.log.close()


def test_a_first_batch_that_is_torn_leaves_an_empty_log() -> None:
    bench = grown([[b"only"]])
    data = bench.disk.read_file(FIRST + ".log")
    for cut in range(0, len(data), 7):
        disk = FaultyDisk()
        disk.make_directory(DIRECTORY)
        disk.replace_file(FIRST + ".log", data[:cut])
        found = Bench(disk)
        assert (found.values(), found.log.log_end) == ([], 0)
        assert found.write(b"again").good and found.values() == [b"again"]


def test_a_batch_that_does_not_continue_the_offsets_is_cut_off() -> None:
    """A whole batch from elsewhere in the log is not what comes next."""
    bench = grown([[b"a"], [b"b"], [b"c"]])
    data = bench.disk.read_file(FIRST + ".log")
    size = layout.read_header(data).length
    for behind in (data[:size], data[2 * size :]):
        disk = FaultyDisk()
        disk.make_directory(DIRECTORY)
        disk.replace_file(FIRST + ".log", data[:size] + behind)
        found = Bench(disk)
        assert found.values() == [b"a"]
        assert "comes next" in found.found.reason


# --- damage


def reads_truly(bench: Bench, model: list[bytes]) -> str:
    """Read everything from every offset, both ways: only what was written, or an error that names the place."""
    told = ""
    for offset in range(len(model)):
        for read in ("rows", "batches"):
            found: list[Record]
            try:
                found = rows_of(bench.rows(offset)) if read == "rows" else records_of(bench.batches(offset), offset)
            except BraidError as error:
                assert error.code == "CORRUPT_LOG"
                assert FIRST + ".log" in error.text and f"(offset {offset})" in error.text and "byte" in error.text
                told = error.text
                continue
            assert found, f"nothing at {offset} and no error"
            assert found == [(offset + number, b"", model[offset + number]) for number in range(len(found))]
    return told


def closed_segment(disk: FaultyDisk) -> tuple[Bench, list[bytes], int]:
    """A log whose first segment is closed and small, and the size of that segment."""
    bench = Bench(disk, LogSettings(segment_bytes=4096))
    model: list[bytes] = []
    for number in range(3):
        batch = [b"%d-%d" % (number, n) * 20 for n in range(4)]
        bench.write(*batch)
        model += batch
    bench.write(bytes(4000))
    model.append(bytes(4000))
    assert len(bench.log.segments) == 2
    return bench, model, bench.log.segments[0].size


@pytest.mark.parametrize("index", ["kept", "gone"])
def test_a_bit_flipped_in_any_byte_of_a_closed_segment_never_gives_wrong_data(
    index: str, rounds: Callable[[int, int], int]
) -> None:
    bench, model, size = closed_segment(FaultyDisk())
    known = bench.checkpoint()
    rng = random.Random(9)
    for position in range(size):
        for bit in range(8) if position % rounds(120, 1) == 0 else (rng.randrange(8),):
            disk = bench.faulty.crash(power=False)
            disk.flip_bit(FIRST + ".log", position, bit)
            if index == "gone":
                disk.remove_file(FIRST + ".idx")
            after = bench.reopened(known, disk)
            assert after.log.log_end == len(model)
            told = reads_truly(after, model)
            assert told, f"a flip of bit {bit} of byte {position} was not noticed"


def test_a_flip_in_a_closed_segment_is_kept_by_recovery_and_reported() -> None:
    """Records behind the damage were acknowledged, so nothing is cut off in the middle of the log."""
    bench, model, size = closed_segment(FaultyDisk())
    for position in range(0, size, 31):
        disk = bench.faulty.crash(power=False)
        disk.flip_bit(FIRST + ".log", position)
        after = bench.reopened(None, disk)
        assert "in the middle of the log" in after.found.reason and "nothing was removed" in after.found.reason
        assert after.found.truncated_bytes == 0
        assert after.log.log_end == len(model)
        assert disk.file_size(FIRST + ".log") == size
        assert reads_truly(after, model)
        assert rows_of(after.rows(len(model) - 1)) == [(len(model) - 1, b"", model[-1])]
        assert after.write(b"goes on").good


def test_damage_before_the_checkpoint_is_not_cut_off() -> None:
    """It was synced and whole once: cutting there would delete acknowledged records."""
    bench = grown([[b"a"], [b"b"], [b"c"]])
    known = bench.checkpoint()
    disk = bench.faulty.crash(power=False)
    disk.flip_bit(FIRST + ".log", 100)
    after = bench.reopened(known, disk)
    assert after.found.truncated_bytes == 0 and after.log.log_end == 3
    with pytest.raises(BraidError, match="CORRUPT_LOG"):
        after.rows(0)


def test_rot_in_what_was_evicted_from_memory_is_noticed_when_it_comes_back() -> None:
    """Bytes were checked once; read from the disk again they are checked again."""
    disk = FaultyDisk(resident=False)
    bench, _, _ = closed_segment(disk)
    after = bench.reopened(bench.checkpoint())
    assert after.rows(0).count
    first = after.log.segments[0]
    flipped = bytearray(first._map.view)  # type: ignore[union-attr]
    flipped[200] ^= 1
    first._map.view = memoryview(bytes(flipped))  # type: ignore[misc, union-attr]
    first._map._warm_pages.clear()  # type: ignore[union-attr]
    first._warm_from = first._warm_to = 0
    with pytest.raises(BraidError, match="CORRUPT_LOG"):
        after.rows(0)


# --- the index


def indexed() -> tuple[Bench, list[bytes]]:
    bench = Bench(settings=LogSettings(level=Level.OS, segment_bytes=30_000))
    model = [bytes([number % 251]) * 700 for number in range(80)]
    for number in range(0, 80, 2):
        bench.clock.advance(1)
        bench.write(*model[number : number + 2])
    assert len(bench.log.segments) > 1
    assert len(bench.log.segments[0].index) >= 4
    return bench, model


def test_an_index_finds_the_place_without_a_walk_from_the_start() -> None:
    bench, model = indexed()
    for segment in bench.log.segments[:-1]:
        data = bench.disk.read_file(segment.log_path)
        places = {}
        at = 0
        while at < len(data):
            head = layout.read_header(data, at)
            for offset in range(head.base_offset, head.next_offset):
                places[offset] = at
            at += head.length
        for offset, place in places.items():
            found = segment.index.position_of(offset)
            assert found <= place < found + 2 * 4096
            assert layout.read_header(data, found).magic == layout.MAGIC
        start = ManualClock().now_ms()
        for seconds in range(0, 45, 3):
            found = segment.index.position_of_time(start + 1000 * seconds)
            later = [at for at in set(places.values()) if layout.read_header(data, at).base_timestamp >= start + 1000 * seconds]
            assert not later or found <= min(later)
    assert len(model) == 80


@pytest.mark.parametrize("how", ["deleted", "emptied", "torn", "flipped", "foreign"])
def test_an_index_that_is_not_right_is_made_anew(how: str) -> None:
    bench, model = indexed()
    known = bench.checkpoint()
    index = bench.disk.read_file(FIRST + ".idx")
    spoiled: list[bytes | None] = {
        "deleted": [None],
        "emptied": [b""],
        "torn": [index[:cut] for cut in range(len(index))],
        "flipped": [index[:at] + bytes([index[at] ^ 1 << bit]) + index[at + 1 :] for at in range(len(index)) for bit in (0, 7)],
        "foreign": [SparseIndex().encode(bench.log.segments[0].size - 8), b"\0" * len(index), index + bytes(24)],
    }[how]
    for content in spoiled:
        disk = bench.faulty.crash(power=False)
        if content is None:
            disk.remove_file(FIRST + ".idx")
        else:
            disk.write_file(FIRST + ".idx", content)
        after = bench.reopened(known, disk)
        first = after.log.segments[0]
        assert rows_of(after.rows(17, 3))[0] == (17, b"", model[17])
        assert [first.index.position_of(offset) for offset in range(first.base_offset, 40)] == [
            bench.log.segments[0].index.position_of(offset) for offset in range(40)
        ]
        assert disk.read_file(FIRST + ".idx") == index, "and stored, so that the next start has it"
    assert after.values() == model


def test_an_index_of_what_was_cut_off_is_not_used_for_what_takes_its_place() -> None:
    """The new end may by chance have the size that the old index was made for."""
    bench = Bench()
    bench.write(b"a" * 5000)
    whole = bench.log.segments[0].size
    bench.write(b"b" * 5000)
    bench.write(b"c" * 6000)
    size = bench.log.segments[0].size
    bench.log.close()
    disk = bench.faulty.crash(power=False)
    disk.flip_bit(FIRST + ".log", whole + 50)
    after = bench.reopened(None, disk)
    assert after.log.log_end == 1
    known = after.checkpoint()
    after.write(b"d" * 6000)
    after.write(b"e" * 5000)
    assert after.log.segments[0].size == size
    again = after.crashed(power=False, known=known)
    assert again.values() == [b"a" * 5000, b"d" * 6000, b"e" * 5000]
    assert rows_of(again.rows(2)) == [(2, b"", b"e" * 5000)]


def test_an_index_that_cannot_be_written_stops_nobody() -> None:
    """On a full disk a segment is still closed, and records are still read."""
    bench = Bench(FaultyDisk(), LogSettings(segment_bytes=4096))
    bench.write(bytes(3000))
    bench.faulty.fail("create", path=FIRST + ".idx.new", times=99, code=28)
    assert bench.write(bytes(3000)).good
    assert len(bench.log.segments) == 2
    assert bench.values() == [bytes(3000)] * 2
    assert not bench.disk.exists(FIRST + ".idx")
    assert bench.reopened().values() == [bytes(3000)] * 2


def test_asking_for_a_new_index_says_when_it_cannot_be_stored() -> None:
    bench = grown([[b"a"]])
    segment = Segment(bench.disk, DIRECTORY, 0, bench.log.segments[0].size)
    bench.faulty.fail("create", path=FIRST + ".idx.new")
    with pytest.raises(OSError):
        segment.rebuild_index()
    assert len(segment.rebuild_index()) == 1


# --- the checkpoint


def test_a_checkpoint_survives_only_whole() -> None:
    disk = FaultyDisk()
    disk.make_directory("/data")
    saved = Checkpoint(
        {"topics/1/0": PartitionCheckpoint(0, 800, 12, [[7, 0, [[0, 2, 10, 99]]]]), "internal/x": PartitionCheckpoint(5, 6, 7)}
    )
    saved.save(disk, "/data/checkpoint")
    assert Checkpoint.load(disk, "/data/checkpoint") == saved
    data = disk.read_file("/data/checkpoint")
    for position in range(len(data)):
        for bit in range(8):
            disk.flip_bit("/data/checkpoint", position, bit)
            loaded = Checkpoint.load(disk, "/data/checkpoint")
            # The checksum is written in hexadecimal: a letter in the other case is the same number.
            same = disk.read_file("/data/checkpoint")[:8].lower() + data[8:] == data and position < 8
            assert loaded == (saved if same else Checkpoint())
            disk.flip_bit("/data/checkpoint", position, bit)
    for cut in range(len(data)):
        disk.write_file("/data/checkpoint", data[:cut])
        assert Checkpoint.load(disk, "/data/checkpoint") == Checkpoint()
    assert Checkpoint.load(disk, "/data/none") == Checkpoint()


def test_what_was_found_to_expire_is_believed_as_far_as_the_log_is_what_it_was() -> None:
    bench = Bench(settings=LogSettings(segment_bytes=4096))
    for number in range(30):
        bench.write(b"%d" % number * 200)
    known = bench.checkpoint()
    assert known is not None
    cursor = ExpiryCursor()
    cursor.look(0, 10, 99, 500)
    known.expiring = cursor.dump()
    saved = Checkpoint({"topics/1/0": known, "topics/1/1": PartitionCheckpoint(0, 1, 2)})
    saved.save(bench.disk, "/checkpoint")
    assert Checkpoint.load(bench.disk, "/checkpoint") == saved
    bench.write(b"after it")
    same = bench.crashed(power=False, known=known).log.expiry_cursor
    assert same is not None and same.dump() == cursor.dump() == [10, [[0, 10, 99, 500]]]
    assert bench.crashed(power=False).log.expiry_cursor is None
    for wrong in (replace(known, position=1 << 30), replace(known, segment=777)):
        assert bench.crashed(power=False, known=wrong).log.expiry_cursor is None


def test_a_stale_checkpoint_costs_a_walk_and_nothing_else() -> None:
    bench = Bench(settings=LogSettings(segment_bytes=4096))
    seen = []
    for number in range(30):
        bench.write(b"%d" % number * 200)
        seen.append(bench.checkpoint())
    values = bench.values()
    for known in [None, *seen[::3]]:
        after = bench.crashed(power=False, known=known)
        assert after.values() == values and not after.found.reason
    beyond = PartitionCheckpoint(0, 1 << 30, 1000, [])
    elsewhere = PartitionCheckpoint(777, 100, 1000, [])
    for known in (beyond, elsewhere):
        after = bench.crashed(power=False, known=known)
        assert after.values() == values and after.log.log_end == 30


def test_a_partition_whose_files_are_gone_goes_on_after_its_checkpoint() -> None:
    """Offsets are never given twice, even when somebody removed the data."""
    bench = grown([[b"a"], [b"b"]])
    known = bench.checkpoint()
    bench.disk.remove_tree(DIRECTORY)
    after = bench.reopened(known)
    assert (after.log.log_start, after.log.log_end) == (2, 2)
    assert after.write(b"c").end == 3 and after.values() == [b"c"]


def test_a_clean_opening_reads_nothing_and_is_refused_when_the_files_say_otherwise() -> None:
    bench = Bench(settings=LogSettings(segment_bytes=4096))
    for number in range(9):
        bench.write(b"%d" % number * 300)
    known = bench.checkpoint()
    assert known is not None
    bench.log.close()
    values = bench.values()

    def opened(disk: FaultyDisk, known: PartitionCheckpoint | None) -> tuple[bool, Bench]:
        fresh = Bench(FaultyDisk(), bench.settings)
        fresh.disk = fresh.log._disk = disk
        return open_clean(disk, fresh.log, known), fresh

    disk = bench.faulty.crash(power=False)
    clean, after = opened(disk, known)
    assert clean and disk.counts["read"] == disk.counts["map"] == 0
    assert after.values() == values
    newest = bench.log.segments[-1]
    for how in ("shorter", "longer", "no newest", "unknown"):
        disk = bench.faulty.crash(power=False)
        if how == "shorter":
            disk.truncate_file(newest.log_path, newest.size - 1)
        elif how == "longer":
            disk.open_append(newest.log_path).append([b"x"])
        elif how == "no newest":
            disk.remove_file(newest.log_path)
        assert opened(disk, None if how == "unknown" else known)[0] is False
    assert opened(FaultyDisk(), None)[0] is True


def test_files_that_are_no_segments_are_not_taken_for_some() -> None:
    bench = grown([[b"a"]])
    for name in (
        "notes.log",
        "0.log",
        "-0000000000000000001.log",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٥.log",
        f"{7:020d}.log.bak",
        f"{7:020d}.idx",
    ):
        bench.disk.write_file(f"{DIRECTORY}/{name}", b"what is this")
    after = bench.reopened()
    assert after.values() == [b"a"] and len(after.log.segments) == 1
    assert len(bench.disk.list_directory(DIRECTORY)) == 7, "and they are left alone"


def test_the_report_tells_what_was_found() -> None:
    bench = grown([[b"a"], [b"b"]])
    report = RecoveryReport()
    report.add(bench.crashed(power=False).found)
    assert report.partitions == [] and report.bytes_checked == bench.log.segments[0].size
    disk = bench.faulty.crash(power=False)
    disk.open_append(FIRST + ".log").append([b"half a batch"])
    report.add(bench.reopened(None, disk).found)
    document = report.document()
    assert document["bytes_truncated"] == 12
    partitions = document["partitions"]
    assert isinstance(partitions, list) and partitions[0]["topic"] == "topic"
    assert partitions[0] | {"topic": "", "truncated_at": ""} == {
        "topic": "", "partition": 0, "checked_bytes": bench.log.segments[0].size, "records_found": 2, "truncated_bytes": 12,
        "truncated_at": "", "reason": "header cut short", "next_offset": 2,
    }  # fmt: skip


def test_a_gap_between_segments_is_reported() -> None:
    bench = Bench(settings=LogSettings(segment_bytes=4096))
    for number in range(9):
        bench.write(b"%d" % number * 1500)
    middle = bench.log.segments[2]
    bench.disk.remove_file(middle.log_path)
    after = bench.crashed(power=False)
    assert "does not continue" in after.found.reason
    assert after.log.log_end == 9
    with pytest.raises(BraidError, match="are missing"):
        after.rows(middle.base_offset)
