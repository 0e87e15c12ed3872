"""The model of a failing disk: each fault does what its description says, and the same seed does it again."""

from __future__ import annotations

import errno
import itertools
import threading
from collections.abc import Callable

import pytest

from braidmq.base.disk_faulty import FaultyDisk, SimulatedCrash
from braidmq.base.disk_platter import SECTOR_BYTES


def _with_file(content: bytes = b"", **settings: object) -> FaultyDisk:
    """A disk with the durable directory /d and, in it, the durable file `a`."""
    disk = FaultyDisk(**settings)  # type: ignore[arg-type]
    disk.make_directory("/d")
    file = disk.open_append("/d/a")
    file.append([content])
    file.sync()
    disk.sync_directory("/d")
    return disk


# --- loss of power


def test_what_was_synced_survives_and_the_rest_is_lost() -> None:
    disk = _with_file(b"durable")
    disk.open_append("/d/a").append([b" and gone"])
    assert disk.crash(unsynced="lost").read_file("/d/a") == b"durable"
    assert disk.crash(unsynced="kept").read_file("/d/a") == b"durable and gone"


def test_a_write_is_torn_by_sector_with_zeros_in_the_holes() -> None:
    disk = _with_file(b"x" * 100)
    disk.open_append("/d/a").append([b"y" * (5 * SECTOR_BYTES)])
    total = 100 + 5 * SECTOR_BYTES
    shapes = set()
    for seed in range(200):
        data = disk.crash(seed, unsynced="torn").read_file("/d/a")
        assert data[:100] == b"x" * 100
        # Sector borders are those of the file, so the first piece is what was left of the sector begun before.
        bounds = [100, *range(SECTOR_BYTES, total, SECTOR_BYTES), total]
        pieces = [data[start:stop] for start, stop in itertools.pairwise(bounds)]
        assert all(set(piece) in ({ord("y")}, {0}, set()) for piece in pieces)
        shapes.add(tuple(piece[:1] for piece in pieces))
    assert (b"y",) * 6 in shapes
    assert (b"\0", b"\0", b"\0", b"\0", b"\0", b"y") in shapes, "a later sector survives alone"
    assert (b"",) * 6 in shapes
    assert any(shape[-1] == b"\0" for shape in shapes), "the size survives without the data"


def test_a_later_write_may_survive_an_earlier_one() -> None:
    disk = _with_file()
    file = disk.open_append("/d/a")
    file.append([b"1" * SECTOR_BYTES])
    file.append([b"2" * SECTOR_BYTES])
    found = {disk.crash(seed).read_file("/d/a") for seed in range(60)}
    assert bytes(SECTOR_BYTES) + b"2" * SECTOR_BYTES in found
    assert b"1" * SECTOR_BYTES in found
    assert b"1" * SECTOR_BYTES + b"2" * SECTOR_BYTES in found
    assert b"" in found


def test_an_unsynced_truncation_may_not_have_happened() -> None:
    disk = _with_file(b"0123456789")
    disk.open_append("/d/a").truncate(4)
    assert disk.read_file("/d/a") == b"0123"
    assert {disk.crash(seed).read_file("/d/a") for seed in range(30)} == {b"0123", b"0123456789"}


def test_truncate_file_is_durable() -> None:
    disk = _with_file(b"0123456789")
    disk.truncate_file("/d/a", 4)
    assert {disk.crash(seed).read_file("/d/a") for seed in range(30)} == {b"0123"}


def test_a_synced_file_vanishes_when_its_directory_was_not_synced() -> None:
    disk = _with_file()
    file = disk.open_append("/d/new")
    file.append([b"x"])
    file.sync()
    assert {disk.crash(seed).exists("/d/new") for seed in range(30)} == {True, False}
    disk = disk.crash(power=False)
    disk.sync_directory("/d")
    after = [disk.crash(seed) for seed in range(30)]
    assert {found.read_file("/d/new") for found in after} == {b"x"}


def test_a_removed_file_may_be_back() -> None:
    disk = _with_file(b"old")
    disk.remove_file("/d/a")
    outcomes = {disk.crash(seed).exists("/d/a") for seed in range(30)}
    assert outcomes == {True, False}
    assert disk.crash(unsynced="lost").read_file("/d/a") == b"old"
    disk = disk.crash(power=False)
    disk.sync_directory("/d")
    assert {disk.crash(seed).exists("/d/a") for seed in range(30)} == {False}


def test_a_rename_is_never_half_done() -> None:
    disk = _with_file(b"content")
    disk.rename("/d/a", "/d/b")
    disk.rename("/d/b", "/d/c")
    for seed in range(60):
        names = disk.crash(seed).list_directory("/d")
        assert names in (["a"], ["b"], ["c"])
    disk = disk.crash(power=False)
    disk.sync_directory("/d")
    assert {tuple(disk.crash(seed).list_directory("/d")) for seed in range(20)} == {("c",)}


def test_a_rename_between_directories_is_never_half_done() -> None:
    disk = _with_file(b"content")
    disk.make_directory("/e")
    disk.rename("/d/a", "/e/a")
    disk.rename("/e/a", "/e/b")
    for seed in range(60):
        after = disk.crash(seed)
        assert len(after.list_directory("/d") + after.list_directory("/e")) == 1
    disk = disk.crash(power=False)
    disk.sync_directory("/e")
    for seed in range(20):
        after = disk.crash(seed)
        assert (after.list_directory("/d"), after.list_directory("/e")) == ([], ["b"])


def test_made_directories_are_durable_and_their_files_are_not() -> None:
    disk = FaultyDisk()
    disk.make_directory("/a/b/c")
    disk.open_append("/a/b/c/file").sync()
    after = disk.crash(unsynced="lost")
    assert after.exists("/a/b/c")
    assert after.list_directory("/a/b/c") == []


def test_directories_made_without_care_vanish_until_their_parents_are_synced() -> None:
    disk = FaultyDisk()
    disk.make_directory("/a/b", durable=False)
    assert disk.counts["sync_directory"] == 0
    assert disk.exists("/a/b")
    assert not disk.crash(unsynced="lost").exists("/a")
    disk = disk.crash(power=False)
    disk.sync_directory("/a")
    disk.sync_directory("/")
    assert disk.crash(unsynced="lost").exists("/a/b")
    disk = FaultyDisk()
    disk.make_directory("/a/b", durable=False)
    disk.make_directory("/a")
    after = disk.crash(unsynced="lost")
    assert (after.exists("/a"), after.exists("/a/b")) == (True, False)


@pytest.mark.parametrize("old", [None, b"old version"])
def test_replace_file_is_atomic_at_every_step(old: bytes | None) -> None:
    new = b"n" * 2000
    steps = 0
    while True:
        disk = FaultyDisk(seed=steps)
        disk.make_directory("/d")
        if old is not None:
            disk.replace_file("/d/a", old)
        disk.crash_after(steps)
        try:
            disk.replace_file("/d/a", new)
        except SimulatedCrash:
            for power in (False, True):
                for seed in range(20):
                    after = disk.crash(seed, power=power)
                    assert (after.read_file("/d/a") if after.exists("/d/a") else None) in (old, new)
            steps += 1
            continue
        break
    assert steps == 5, "create, write, sync, rename, sync the directory"
    assert {disk.crash(seed).read_file("/d/a") for seed in range(20)} == {new}


def test_write_file_promises_nothing() -> None:
    disk = _with_file(b"o" * 1000)
    disk.write_file("/d/a", b"n" * 1000)
    assert disk.read_file("/d/a") == b"n" * 1000
    found = {disk.crash(seed).read_file("/d/a") for seed in range(300)}
    assert {b"o" * 1000, b"n" * 1000, b""} <= found
    assert len(found) > 3, "torn versions too"


# --- death of the process


def test_kill_keeps_what_was_written_and_releases_locks() -> None:
    disk = _with_file(b"one")
    disk.open_append("/d/a").append([b"two"])
    disk.open_append("/d/new").append([b"three"])
    disk.lock("/d/lock")
    after = disk.crash(power=False)
    assert after.read_file("/d/a") == b"onetwo"
    assert after.read_file("/d/new") == b"three"
    after.lock("/d/lock")
    # What the dead process left unsynced is still unsynced.
    gone = after.crash(unsynced="lost")
    assert gone.read_file("/d/a") == b"one"
    assert not gone.exists("/d/new")


def test_the_next_process_can_make_it_durable() -> None:
    disk = _with_file(b"one")
    disk.open_append("/d/a").append([b"two"])
    after = disk.crash(power=False)
    after.open_append("/d/a").sync()
    assert after.crash(unsynced="lost").read_file("/d/a") == b"onetwo"


def test_a_dead_disk_does_nothing_more() -> None:
    disk = _with_file(b"one")
    file = disk.open_append("/d/a")
    lock = disk.lock("/d/lock")
    disk.crash()
    assert disk.dead
    calls: list[Callable[[], object]] = [
        lambda: file.append([b"x"]),
        lambda: file.read_at(0, 1),
        lambda: file.truncate(0),
        file.sync,
        lambda: disk.read_file("/d/a"),
        lambda: disk.map_file("/d/a", 1),
        lambda: disk.exists("/d/a"),
        lambda: disk.file_size("/d/a"),
        lambda: disk.list_directory("/d"),
        lambda: disk.make_directory("/e"),
        lambda: disk.sync_directory("/d"),
        lambda: disk.rename("/d/a", "/d/b"),
        lambda: disk.remove_file("/d/a"),
        lambda: disk.remove_tree("/d"),
        lambda: disk.replace_file("/d/a", b""),
        lambda: disk.write_file("/d/a", b""),
        lambda: disk.truncate_file("/d/a", 0),
        lambda: disk.open_append("/d/a"),
        lambda: disk.lock("/d/lock"),
        lambda: disk.free_bytes("/d"),
        lambda: disk.sync_files([file]),
    ]
    for call in calls:
        with pytest.raises(SimulatedCrash):
            call()
    file.close()
    lock.release()


def test_crash_is_no_exception_that_a_handler_would_catch() -> None:
    assert not issubclass(SimulatedCrash, Exception)


# --- stopping at a step


def test_crash_after_enumerates_every_changing_operation() -> None:
    def work(disk: FaultyDisk) -> None:
        disk.make_directory("/d")
        file = disk.open_append("/d/a")
        file.append([b"x" * 1000])
        file.read_at(0, 10)
        file.sync()
        disk.sync_directory("/d")
        disk.remove_tree("/d")

    whole = FaultyDisk()
    work(whole)
    assert whole.operations == 8
    assert dict(whole.counts) == {
        "make_directory": 1, "sync_directory": 2, "create": 1, "write": 1, "read": 1, "sync": 1, "remove": 2,
    }  # fmt: skip
    for step in range(whole.operations):
        disk = FaultyDisk()
        disk.crash_after(step)
        with pytest.raises(SimulatedCrash):
            work(disk)
        assert disk.dead
    disk = FaultyDisk()
    disk.crash_after(whole.operations)
    work(disk)
    assert not disk.dead


def test_a_crash_in_a_write_may_leave_part_of_it() -> None:
    sizes = set()
    for seed in range(100):
        disk = _with_file(b"old", seed=seed)
        disk.crash_after(0)
        with pytest.raises(SimulatedCrash):
            disk.open_append("/d/a").append([b"0123"])
        sizes.add(len(disk.crash(power=False).read_file("/d/a")))
    assert sizes == {3, 4, 5, 6, 7}


def test_a_tree_is_removed_step_by_step() -> None:
    found = []
    for step in range(4):
        disk = _with_file(b"1")
        disk.make_directory("/d/e")
        disk.write_file("/d/e/f", b"")
        disk.crash_after(step)
        with pytest.raises(SimulatedCrash):
            disk.remove_tree("/d")
        after = disk.crash(power=False)
        found.append((after.list_directory("/d"), after.list_directory("/d/e")))
    assert found == [(["a", "e"], ["f"]), (["e"], ["f"]), (["e"], []), ([], [])]


# --- syncs that fail or lie


def test_a_failed_sync_drops_the_pages_and_the_next_one_lies_about_them() -> None:
    fates = set()
    for seed in range(40):
        disk = _with_file(b"old.", seed=seed)
        file = disk.open_append("/d/a")
        file.append([b"lost"])
        disk.fail("sync", code=errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        file.append([b"next"])
        file.sync()
        assert disk.read_file("/d/a") == b"old.lostnext"
        assert disk.crash(power=False).read_file("/d/a") == b"old.lostnext"
        fates.add(disk.crash(unsynced="kept").read_file("/d/a"))
    assert fates == {b"old.\0\0\0\0next", b"old.lostnext"}


def test_the_nth_sync_fails_and_only_it() -> None:
    disk = _with_file()
    file = disk.open_append("/d/a")
    disk.fail("sync", nth=3)
    outcomes = []
    for _ in range(5):
        try:
            file.sync()
            outcomes.append(True)
        except OSError:
            outcomes.append(False)
    assert outcomes == [True, True, False, True, True]


def test_a_lying_sync_makes_nothing_durable() -> None:
    disk = _with_file(b"old")
    disk.lying_syncs = True
    file = disk.open_append("/d/a")
    file.append([b"new"])
    file.sync()
    disk.replace_file("/d/b", b"x")
    after = disk.crash(unsynced="lost")
    assert after.read_file("/d/a") == b"old"
    assert not after.exists("/d/b")
    disk = _with_file(b"old")
    disk.lying_syncs = True
    disk.heal()
    file = disk.open_append("/d/a")
    file.append([b"new"])
    file.sync()
    assert disk.crash(unsynced="lost").read_file("/d/a") == b"oldnew"


# --- writes that fail


def test_a_full_disk_leaves_a_part_behind_and_the_size_alone() -> None:
    disk = _with_file(b"12345678", capacity_bytes=10)
    file = disk.open_append("/d/a")
    assert disk.free_bytes("/d") == 2
    with pytest.raises(OSError) as caught:
        file.append([b"abcd"])
    assert caught.value.errno == errno.ENOSPC
    assert (file.size, disk.read_file("/d/a"), disk.free_bytes("/d")) == (8, b"12345678ab", 0)
    file.truncate(8)
    assert disk.free_bytes("/d") == 2
    file.append([b"ab"])
    with pytest.raises(OSError, match="No space"):
        file.append([b"c"])


def test_removing_makes_room_and_writing_over_takes_none() -> None:
    disk = _with_file(b"x" * 10, capacity_bytes=10)
    disk.open_append("/d/b")
    disk.remove_file("/d/a")
    assert disk.used_bytes == 0
    file = disk.open_append("/d/b")
    file.append([b"y" * 10])
    file.truncate(10)
    disk.capacity_bytes = None
    file.append([b"z"])
    assert disk.used_bytes == 11


def test_a_replacement_that_does_not_fit_keeps_the_old_version() -> None:
    disk = _with_file(b"old", capacity_bytes=8)
    for method in (disk.replace_file, disk.write_file):
        with pytest.raises(OSError, match="No space"):
            method("/d/a", b"far too long")
        assert disk.read_file("/d/a") == b"old"


def test_used_bytes_survive_a_crash() -> None:
    disk = _with_file(b"x" * 10, capacity_bytes=100)
    disk.open_append("/d/b").append([b"y" * 5])
    assert disk.crash(power=False).used_bytes == 15
    assert disk.crash(unsynced="lost").used_bytes == 10
    assert disk.crash(unsynced="lost").capacity_bytes == 100


@pytest.mark.parametrize("written_bytes", [0, 2, 4])
def test_a_failing_append_writes_as_much_as_was_asked(written_bytes: int) -> None:
    disk = _with_file(b"old")
    disk.fail("write", nth=2, written_bytes=written_bytes, path="/d/a")
    file = disk.open_append("/d/a")
    file.append([b"1"])
    disk.open_append("/d/other").append([b"1"])
    with pytest.raises(OSError, match="Input/output"):
        file.append([b"2222"])
    assert file.size == 4
    assert disk.read_file("/d/a") == b"old1" + b"2" * written_bytes
    file.append([b"3333"])
    assert disk.read_file("/d/a") == b"old13333"


def test_a_failing_append_is_short_by_the_seed() -> None:
    sizes = set()
    for seed in range(60):
        disk = _with_file(seed=seed)
        disk.fail("write")
        with pytest.raises(OSError, match="Input/output"):
            disk.open_append("/d/a").append([b"1234"])
        sizes.add(disk.file_size("/d/a"))
    assert sizes == {0, 1, 2, 3}


@pytest.mark.parametrize("operation", ["create", "truncate", "rename", "remove", "make_directory", "sync_directory", "map", "read"])
def test_every_other_operation_can_fail_and_changes_nothing(operation: str) -> None:
    disk = _with_file(b"content")
    disk.fail(operation, code=errno.EROFS)  # type: ignore[arg-type]
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: disk.open_append("/d/new"),
        "truncate": lambda: disk.open_append("/d/a").truncate(0),
        "rename": lambda: disk.rename("/d/a", "/d/b"),
        "remove": lambda: disk.remove_file("/d/a"),
        "make_directory": lambda: disk.make_directory("/e"),
        "sync_directory": lambda: disk.sync_directory("/d"),
        "map": lambda: disk.map_file("/d/a", 1),
        "read": lambda: disk.read_file("/d/a"),
    }
    with pytest.raises(OSError, match="Read-only"):
        calls[operation]()
    assert disk.list_directory("/") == ["d"]
    assert disk.list_directory("/d") == ["a"]
    assert disk.read_file("/d/a") == b"content"


# --- rot and unreadable bytes


def test_a_flipped_bit_stays_flipped() -> None:
    disk = _with_file(b"\0\0\0")
    disk.flip_bit("/d/a", 1, 7)
    assert disk.read_file("/d/a") == b"\0\x80\0"
    assert disk.crash().read_file("/d/a") == b"\0\x80\0"


def test_reads_fail_where_the_disk_is_bad() -> None:
    disk = _with_file(b"0123456789", resident=False)
    disk.fail("read", path="/d/a", position=5, times=10**9)
    file = disk.open_append("/d/a")
    assert file.read_at(0, 5) == b"01234"
    assert file.read_at(6, 4) == b"6789"
    mapped = disk.map_file("/d/a", 10)
    for call in (lambda: file.read_at(5, 1), lambda: disk.read_file("/d/a"), lambda: mapped.prefault(0, 10)):
        with pytest.raises(OSError, match="Input/output"):
            call()
    disk.heal()
    assert disk.read_file("/d/a") == b"0123456789"


def test_maps_are_cold_until_prefaulted() -> None:
    disk = _with_file(bytes(10_000), resident=False)
    mapped = disk.map_file("/d/a", 10_000)
    assert not mapped.resident(0, 1)
    mapped.prefault(0, 5000)
    assert mapped.resident(0, 5000)
    assert not mapped.resident(0, 10_000)
    disk.resident = True
    assert mapped.resident(0, 10_000)


# --- determinism, hooks


def test_the_same_seed_gives_the_same_disk() -> None:
    def found(seed: int) -> bytes:
        disk = _with_file(b"x", seed=5)
        for _ in range(4):
            disk.open_append("/d/a").append([b"y" * 3000])
        return disk.crash(seed).read_file("/d/a")

    outcomes = [found(seed) for seed in range(12)]
    assert outcomes == [found(seed) for seed in range(12)]
    assert len(set(outcomes)) > 4


def test_a_successor_shares_nothing_with_its_predecessor() -> None:
    disk = _with_file(b"one")
    disk.open_append("/d/a").append([b"two"])
    first = disk.crash(power=False)
    first.open_append("/d/a").append([b"three"])
    first.open_append("/d/new")
    second = disk.crash(power=False)
    assert second.read_file("/d/a") == b"onetwo"
    assert second.list_directory("/d") == ["a"]


def test_an_operation_can_be_held_from_another_thread() -> None:
    disk = _with_file(b"one")
    file = disk.open_append("/d/a")
    entered, leave = threading.Event(), threading.Event()

    def hold(operation: str, path: str) -> None:
        if operation == "sync":
            entered.set()
            assert leave.wait(10)

    disk.on_operation = hold
    thread = threading.Thread(target=file.sync)
    thread.start()
    assert entered.wait(10)
    file.append([b"two"])
    assert disk.read_file("/d/a") == b"onetwo"
    leave.set()
    thread.join()
