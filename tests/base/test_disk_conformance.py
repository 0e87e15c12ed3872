"""What the log may rely on, held against the real disk and the model alike."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from braidmq.base import limits
from braidmq.base.disk import Disk
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.disk_real import RealDisk
from braidmq.testing.unsynced_disk import UnsyncedDisk


@pytest.fixture(params=[RealDisk, FaultyDisk, UnsyncedDisk], ids=lambda kind: kind.__name__)
def disk(request: pytest.FixtureRequest) -> Disk:
    kind: Callable[[], Disk] = request.param
    return kind()


@pytest.fixture
def base(disk: Disk, tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "data")
    disk.make_directory(path)
    yield path


def test_appends_are_seen_at_once_and_counted(disk: Disk, base: str) -> None:
    file = disk.open_append(f"{base}/a")
    assert (file.path, file.size) == (f"{base}/a", 0)
    file.append([b"one", bytearray(b"two"), memoryview(b"three")])
    file.append([])
    file.append([b""])
    assert file.size == 11
    assert disk.read_file(f"{base}/a") == b"onetwothree"
    assert disk.file_size(f"{base}/a") == 11
    file.sync()
    file.close()


def test_more_buffers_than_one_system_call_takes(disk: Disk, base: str) -> None:
    file = disk.open_append(f"{base}/a")
    pieces = [i.to_bytes(2, "big") for i in range(3000)]
    file.append([b"x"])
    file.append(pieces)
    assert file.size == 6001
    assert disk.read_file(f"{base}/a") == b"x" + b"".join(pieces)


def test_read_at_is_short_only_at_the_end(disk: Disk, base: str) -> None:
    file = disk.open_append(f"{base}/a")
    file.append([b"0123456789"])
    assert file.read_at(2, 3) == b"234"
    assert file.read_at(8, 100) == b"89"
    assert file.read_at(10, 1) == b""
    assert file.read_at(99, 1) == b""


def test_a_reopened_file_goes_on_at_its_end(disk: Disk, base: str) -> None:
    first = disk.open_append(f"{base}/a")
    first.append([b"one"])
    first.close()
    again = disk.open_append(f"{base}/a")
    assert again.size == 3
    again.append([b"two"])
    assert disk.read_file(f"{base}/a") == b"onetwo"


def test_a_closed_file_opens_itself_again(disk: Disk, base: str) -> None:
    file = disk.open_append(f"{base}/a")
    file.append([b"one"])
    file.close()
    file.close()
    file.append([b"two"])
    file.sync()
    assert file.read_at(0, 6) == b"onetwo"


def test_truncate_cuts_and_the_next_append_starts_there(disk: Disk, base: str) -> None:
    file = disk.open_append(f"{base}/a")
    file.append([b"0123456789"])
    file.truncate(4)
    assert file.size == 4
    file.append([b"x"])
    assert disk.read_file(f"{base}/a") == b"0123x"
    disk.truncate_file(f"{base}/a", 2)
    assert disk.read_file(f"{base}/a") == b"01"
    disk.truncate_file(f"{base}/a", 5)
    assert disk.read_file(f"{base}/a") == b"01\0\0\0"


def test_a_file_needs_its_directory(disk: Disk, base: str) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open_append(f"{base}/missing/a")
    with pytest.raises(FileNotFoundError):
        disk.replace_file(f"{base}/missing/a", b"x")
    with pytest.raises(FileNotFoundError):
        disk.write_file(f"{base}/missing/a", b"x")
    assert disk.list_directory(base) == []


def test_a_directory_is_no_file(disk: Disk, base: str) -> None:
    disk.make_directory(f"{base}/d")
    with pytest.raises(IsADirectoryError):
        disk.open_append(f"{base}/d")
    with pytest.raises(IsADirectoryError):
        disk.read_file(f"{base}/d")
    with pytest.raises(IsADirectoryError):
        disk.remove_file(f"{base}/d")


def test_a_file_is_no_directory(disk: Disk, base: str) -> None:
    disk.write_file(f"{base}/f", b"x")
    with pytest.raises(NotADirectoryError):
        disk.list_directory(f"{base}/f")
    with pytest.raises(NotADirectoryError):
        disk.sync_directory(f"{base}/f")
    with pytest.raises(FileExistsError):
        disk.make_directory(f"{base}/f")


def test_missing_files_say_so(disk: Disk, base: str) -> None:
    path = f"{base}/missing"
    assert not disk.exists(path)
    for call in (
        lambda: disk.read_file(path),
        lambda: disk.file_size(path),
        lambda: disk.map_file(path, 1),
        lambda: disk.truncate_file(path, 0),
        lambda: disk.rename(path, path + "2"),
        lambda: disk.sync_directory(path),
        lambda: disk.free_bytes(path),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    assert disk.list_directory(path) == []
    disk.remove_file(path)
    disk.remove_tree(path)


def test_a_map_shows_the_first_bytes_and_outlives_the_file(disk: Disk, base: str) -> None:
    file = disk.open_append(f"{base}/a")
    data = bytes(range(256)) * 64
    file.append([data])
    mapped = disk.map_file(f"{base}/a", 10_000)
    assert len(mapped.view) == 10_000
    assert mapped.view.readonly
    assert mapped.view == data[:10_000]
    file.append([b"more"])
    file.close()
    disk.remove_file(f"{base}/a")
    assert mapped.view[5000:5010] == data[5000:5010]


def test_what_was_prefaulted_is_resident(disk: Disk, base: str) -> None:
    file = disk.open_append(f"{base}/a")
    file.append([bytes(100_000)])
    mapped = disk.map_file(f"{base}/a", 100_000)
    for start, stop in ((0, 100_000), (4095, 4097), (99_999, 100_000), (5, 5)):
        mapped.prefault(start, stop)
        assert mapped.resident(start, stop)


def test_a_map_has_at_least_one_byte_and_no_more_than_the_file(disk: Disk, base: str) -> None:
    disk.write_file(f"{base}/a", b"four")
    for length in (0, 5):
        with pytest.raises(ValueError, match="map"):
            disk.map_file(f"{base}/a", length)


@pytest.mark.parametrize("method", ["replace_file", "write_file"])
def test_whole_files_are_written_and_replaced(disk: Disk, base: str, method: str) -> None:
    for content in (b"a longer first version", b"second", b""):
        getattr(disk, method)(f"{base}/a", content)
        assert disk.read_file(f"{base}/a") == content
    assert disk.list_directory(base) == ["a"]


@pytest.mark.parametrize("method", ["replace_file", "write_file"])
def test_a_map_keeps_the_old_version_of_a_replaced_file(disk: Disk, base: str, method: str) -> None:
    getattr(disk, method)(f"{base}/a", b"o" * 10_000)
    mapped = disk.map_file(f"{base}/a", 10_000)
    getattr(disk, method)(f"{base}/a", b"n")
    assert mapped.view == b"o" * 10_000
    assert disk.read_file(f"{base}/a") == b"n"


def test_a_leftover_of_an_interrupted_replacement_does_no_harm(disk: Disk, base: str) -> None:
    left = disk.open_append(f"{base}/a.new")
    left.append([b"half of something longer"])
    left.close()
    disk.replace_file(f"{base}/a", b"short")
    assert disk.read_file(f"{base}/a") == b"short"


def test_directories_list_sorted_names(disk: Disk, base: str) -> None:
    disk.make_directory(f"{base}/x/y/z")
    disk.make_directory(f"{base}/x/y/z")
    for name in ("b", "a", "10", "9"):
        disk.write_file(f"{base}/x/{name}", b"")
    assert disk.list_directory(f"{base}/x") == ["10", "9", "a", "b", "y"]
    assert disk.exists(f"{base}/x/y/z")
    disk.sync_directory(f"{base}/x")


def test_rename_moves_files_and_whole_directories(disk: Disk, base: str) -> None:
    disk.make_directory(f"{base}/d/e")
    disk.write_file(f"{base}/d/e/f", b"1")
    disk.rename(f"{base}/d", f"{base}/moved")
    assert disk.list_directory(base) == ["moved"]
    assert disk.read_file(f"{base}/moved/e/f") == b"1"
    disk.write_file(f"{base}/g", b"2")
    disk.rename(f"{base}/g", f"{base}/moved/e/f")
    assert disk.read_file(f"{base}/moved/e/f") == b"2"
    disk.rename(f"{base}/moved/e/f", f"{base}/moved/e/f")
    assert disk.list_directory(f"{base}/moved/e") == ["f"]


def test_rename_refuses_what_would_lose_something(disk: Disk, base: str) -> None:
    disk.make_directory(f"{base}/full/e")
    disk.make_directory(f"{base}/empty")
    disk.write_file(f"{base}/f", b"")
    with pytest.raises(OSError, match="not empty"):
        disk.rename(f"{base}/empty", f"{base}/full")
    with pytest.raises(IsADirectoryError):
        disk.rename(f"{base}/f", f"{base}/empty")
    with pytest.raises(NotADirectoryError):
        disk.rename(f"{base}/empty", f"{base}/f")
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{base}/f", f"{base}/missing/f")
    assert disk.list_directory(base) == ["empty", "f", "full"]


def test_removing(disk: Disk, base: str) -> None:
    disk.make_directory(f"{base}/d/e")
    disk.write_file(f"{base}/d/e/f", b"1")
    disk.write_file(f"{base}/d/g", b"1")
    disk.remove_file(f"{base}/d/g")
    disk.remove_file(f"{base}/d/g")
    assert disk.list_directory(f"{base}/d") == ["e"]
    disk.remove_tree(f"{base}/d")
    disk.remove_tree(f"{base}/d")
    assert disk.list_directory(base) == []


def test_a_removed_file_can_still_be_written_and_does_not_come_back(disk: Disk, base: str) -> None:
    file = disk.open_append(f"{base}/a")
    file.append([b"one"])
    disk.remove_file(f"{base}/a")
    file.append([b"two"])
    file.sync()
    assert file.read_at(0, 6) == b"onetwo"
    assert not disk.exists(f"{base}/a")


def test_a_second_name_shows_what_is_appended_and_outlives_the_first(disk: Disk, base: str) -> None:
    file = disk.open_append(f"{base}/a")
    file.append([b"one"])
    disk.link(f"{base}/a", f"{base}/b")
    file.append([b"two"])
    assert disk.read_file(f"{base}/b") == b"onetwo"
    disk.remove_file(f"{base}/a")
    assert disk.list_directory(base) == ["b"] and disk.map_file(f"{base}/b", 6).view == b"onetwo"
    disk.remove_file(f"{base}/b")
    with pytest.raises(FileNotFoundError):
        disk.link(f"{base}/a", f"{base}/c")
    disk.write_file(f"{base}/d", b"")
    disk.write_file(f"{base}/e", b"")
    with pytest.raises(FileExistsError):
        disk.link(f"{base}/d", f"{base}/e")


@pytest.mark.parametrize("count", [1, limits.SYNC_FILES_ONE_BY_ONE_MAX, limits.SYNC_FILES_ONE_BY_ONE_MAX + 1])
def test_sync_files_takes_few_and_many(disk: Disk, base: str, count: int) -> None:
    files = [disk.open_append(f"{base}/{i}") for i in range(count)]
    for file in files:
        file.append([b"x"])
    disk.sync_files(files)
    if isinstance(disk, FaultyDisk):
        disk.sync_directory(base)
        after = disk.crash(unsynced="lost")
        assert [after.read_file(f"{base}/{i}") for i in range(count)] == [b"x"] * count
    else:
        assert not any(file.unsynced for file in files)  # type: ignore[attr-defined]
    disk.sync_files([])


def test_a_lock_is_held_once_and_can_be_taken_again(disk: Disk, base: str) -> None:
    lock = disk.lock(f"{base}/lock")
    with pytest.raises(BlockingIOError):
        disk.lock(f"{base}/lock")
    other = disk.lock(f"{base}/other")
    lock.release()
    lock.release()
    disk.lock(f"{base}/lock").release()
    other.release()


def test_free_bytes_is_a_size(disk: Disk, base: str) -> None:
    assert disk.free_bytes(base) > 0


def test_syncing_beside_appending_loses_nothing(disk: Disk, base: str) -> None:
    file = disk.open_append(f"{base}/a")
    done = threading.Event()
    failures: list[BaseException] = []

    def keep_syncing() -> None:
        try:
            while not done.is_set():
                file.sync()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=keep_syncing)
    thread.start()
    for number in range(500):
        file.append([number.to_bytes(4, "big")])
    done.set()
    thread.join()
    assert not failures
    assert disk.read_file(f"{base}/a") == b"".join(n.to_bytes(4, "big") for n in range(500))
