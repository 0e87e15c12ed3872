"""The parts of the real disk that the model has no counterpart for: descriptors, and what the kernel reports."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from braidmq.base import disk_real, limits
from braidmq.base.disk_real import RealDisk


def _open_descriptors_below(path: Path) -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the descriptor that listed the directory
        count += target.startswith(str(path))
    return count


def test_at_most_so_many_files_stay_open(tmp_path: Path) -> None:
    disk = RealDisk(open_files_max=4)
    files = [disk.open_append(str(tmp_path / str(i))) for i in range(20)]
    for round_number in range(3):
        for file in files:
            file.append([bytes([round_number])])
            file.sync()
    assert _open_descriptors_below(tmp_path) <= 4
    assert all(file.read_at(0, 9) == b"\0\1\2" for file in files)
    assert _open_descriptors_below(tmp_path) <= 4
    for file in files:
        file.close()
    assert _open_descriptors_below(tmp_path) == 0


def test_a_file_with_unsynced_bytes_is_closed_for_room_only_after_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(open_files_max=2)
    files = [disk.open_append(str(tmp_path / str(i))) for i in range(6)]
    synced: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr("braidmq.base.disk_real.os.fdatasync", lambda number: (synced.append(number), real(number))[1])
    for file in files:
        file.append([b"x"])
    assert _open_descriptors_below(tmp_path) <= 2
    assert len(synced) == 4, "those that were closed, and no others"
    assert [file.unsynced for file in files] == [False] * 4 + [True] * 2


def test_the_default_leaves_descriptors_for_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = limits.OPEN_FILES_RESERVED + 1000
    monkeypatch.setattr("braidmq.base.disk_real.resource.getrlimit", lambda which: (allowed, allowed))
    assert RealDisk()._open_files_max == 500
    monkeypatch.setattr("braidmq.base.disk_real.resource.getrlimit", lambda which: (100, 100))
    assert RealDisk()._open_files_max == 64


def test_a_file_removed_while_closed_is_not_recreated(tmp_path: Path) -> None:
    disk = RealDisk(open_files_max=1)
    file = disk.open_append(str(tmp_path / "a"))
    disk.open_append(str(tmp_path / "b"))
    disk.remove_file(str(tmp_path / "a"))
    with pytest.raises(FileNotFoundError):
        file.append([b"x"])
    assert disk.list_directory(str(tmp_path)) == ["b"]


def test_an_append_during_a_sync_leaves_the_file_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk()
    file = disk.open_append(str(tmp_path / "a"))
    file.append([b"one"])
    real_fdatasync = os.fdatasync

    def sync_and_let_an_append_in(fd: int) -> None:
        real_fdatasync(fd)
        file.append([b"two"])

    monkeypatch.setattr("braidmq.base.disk_real.os.fdatasync", sync_and_let_an_append_in)
    file.sync()
    assert file.unsynced
    monkeypatch.undo()
    file.sync()
    assert not file.unsynced


def test_closing_for_room_never_pulls_a_descriptor_from_a_running_call(tmp_path: Path) -> None:
    disk = RealDisk(open_files_max=1)
    files = [disk.open_append(str(tmp_path / str(i))) for i in range(4)]
    for number, file in enumerate(files):
        file.append([bytes([number]) * 4096])
        file.sync()
    failures: list[BaseException] = []

    def keep_reading(number: int) -> None:
        try:
            for _ in range(2000):
                assert files[number].read_at(0, 4096) == bytes([number]) * 4096
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=keep_reading, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealDisk().open_append(str(tmp_path / "a"))
    real_pwritev = os.pwritev
    monkeypatch.setattr("braidmq.base.disk_real.os.pwritev", lambda fd, buffers, at: real_pwritev(fd, [buffers[0][:2]], at))
    file.append([b"hello", b"world"])
    assert file.size == 10
    assert (tmp_path / "a").read_bytes() == b"helloworld"


def test_a_failed_append_leaves_the_size_and_truncate_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealDisk().open_append(str(tmp_path / "a"))
    file.append([b"good"])
    real_pwritev = os.pwritev

    def no_space(fd: int, data: memoryview, position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("braidmq.base.disk_real.os.pwritev", lambda fd, buffers, at: real_pwritev(fd, [buffers[0][:2]], at))
    monkeypatch.setattr("braidmq.base.disk_real.os.pwrite", no_space)
    with pytest.raises(OSError, match="No space"):
        file.append([b"lost"])
    assert file.size == 4
    assert (tmp_path / "a").read_bytes() == b"goodlo"
    file.truncate(file.size)
    assert (tmp_path / "a").read_bytes() == b"good"


def test_when_syncing_the_file_system_fails_each_file_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk()
    files = [disk.open_append(str(tmp_path / str(i))) for i in range(limits.SYNC_FILES_ONE_BY_ONE_MAX + 1)]
    for file in files:
        file.append([b"x"])

    class FailingLibc:
        def syncfs(self, fd: int) -> int:
            return -1

    monkeypatch.setattr(disk_real, "_libc", FailingLibc())
    disk.sync_files(files)
    assert not any(file.unsynced for file in files)

    files[3].append([b"y"])
    real_fdatasync = os.fdatasync
    broken = files[3]._open().number

    def fail_for_one(fd: int) -> None:
        if fd == broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real_fdatasync(fd)

    monkeypatch.setattr("braidmq.base.disk_real.os.fdatasync", fail_for_one)
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_files(files)
    assert files[3].unsynced


def test_a_directory_left_by_a_killed_process_gets_a_durable_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk()
    (tmp_path / "d").mkdir()
    synced: list[str] = []
    monkeypatch.setattr(disk, "sync_directory", synced.append)
    disk.make_directory(str(tmp_path / "d"))
    assert synced == [str(tmp_path)]
    disk.make_directory(str(tmp_path / "d"), durable=False)
    disk.make_directory(str(tmp_path / "e/f"), durable=False)
    assert (tmp_path / "e/f").is_dir()
    assert synced == [str(tmp_path)]


def test_a_relative_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    disk = RealDisk()
    disk.make_directory("data/topics")
    disk.replace_file("data/a", b"1")
    disk.replace_file("b", b"2")
    assert disk.list_directory("data") == ["a", "topics"]
    assert (tmp_path / "b").read_bytes() == b"2"


_HOLDER = """
import sys
from braidmq.base.disk_real import RealDisk

held = RealDisk().lock(sys.argv[1])
print("held", flush=True)
input()
"""


def test_the_lock_ends_with_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDER, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError):
            RealDisk().lock(str(tmp_path / "lock"))
        holder.kill()
    RealDisk().lock(str(tmp_path / "lock")).release()


def test_when_every_open_file_waits_for_a_sync_the_oldest_is_synced_and_closed(tmp_path: Path) -> None:
    disk = RealDisk(open_files_max=4)
    files = []
    for number in range(12):
        file = disk.open_append(str(tmp_path / str(number)))
        file.append([b"%d" % number])
        files.append(file)
    assert len(disk._open) <= 4
    assert not files[0].unsynced and files[-1].unsynced
    assert [file.read_at(0, 10) for file in files] == [b"%d" % number for number in range(12)]
