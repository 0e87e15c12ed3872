"""`braid backup`, `verify` and `restore`: a copy of one moment while the broker works, restored whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import braidmq.testing
from braidmq.base import limits
from braidmq.base.disk_faulty import FaultyDisk, SimulatedCrash
from braidmq.base.errors import BraidError
from braidmq.cli.backup import check_restorable, restore_archive
from braidmq.cli.backup_archive import Archive, Manifest, new_target
from braidmq.cli.backup_check import check_backup
from braidmq.cli.exits import Exit
from braidmq.cli.main import main
from braidmq.testing.thread_broker import ThreadBroker
from braidmq.wire import flymq

Captured = pytest.CaptureFixture[str]
KEY = "00" * 31 + "01"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("BRAID_", "FLYMQ_")):
            monkeypatch.delenv(name)


def run(capsys: Captured, *words: str, status: Exit = Exit.OK) -> str:
    ended = main(list(words))
    out, err = capsys.readouterr()
    assert ended == status, err
    return out + err


def fill(braid: ThreadBroker) -> None:
    client = braid.client()
    braid.create("orders", 3)
    for number in range(60):
        client.produce("orders", b"order %d" % number, key=b"%d" % number)
    client.schema.put("orders", b'{"type": "object"}')
    client.commit("orders", "billing", 1, 5)
    client.produce("later", b"delayed", delay_ms=3_600_000)


def assert_filled(braid: ThreadBroker) -> None:
    client = braid.client()
    assert sorted(braid.values("orders")) == sorted(b"order %d" % number for number in range(60))
    assert client.committed("orders", "billing", 1) == 5
    assert [found.id for found in client.schema.ls()] == ["orders-v1"]
    braid.clock.advance(3601)
    assert braid.values("later") == [b"delayed"]


@pytest.mark.parametrize("name", ["copy", "copy.tar"])
def test_a_running_broker_is_copied_and_comes_back(braid: ThreadBroker, tmp_path: Path, capsys: Captured, name: str) -> None:
    fill(braid)
    backup, restored = str(tmp_path / name), tmp_path / "restored"
    assert "written" in run(capsys, "backup", backup, "--server", braid.address)
    assert not (braid.data_dir / "backups").exists() or not os.listdir(braid.data_dir / "backups")
    said = json.loads(run(capsys, "verify", backup, "-o", "json"))
    assert said["report"]["whole"] and said["report"]["records"] > 60 and said["checked"]["online"]
    run(capsys, "restore", backup, str(restored), "--dry-run")
    assert not restored.exists()
    run(capsys, "restore", backup, str(restored))
    with braidmq.testing.broker(restored) as again:
        assert_filled(again)


def test_a_stopped_directory_is_copied_and_comes_back(tmp_path: Path, capsys: Captured) -> None:
    with braidmq.testing.broker(tmp_path / "data") as braid:
        fill(braid)
        run(capsys, "backup", str(tmp_path / "b"), "--data-dir", str(tmp_path / "data"), status=Exit.FAILED)
        assert not (tmp_path / "b.partial").exists(), "nothing is left of a backup that failed"
    run(capsys, "backup", str(tmp_path / "b"), "--data-dir", str(tmp_path / "data"))
    run(capsys, "restore", str(tmp_path / "b"), str(tmp_path / "new"))
    with braidmq.testing.broker(tmp_path / "new") as again:
        assert_filled(again)


def test_writers_go_on_and_a_backup_is_one_moment(braid: ThreadBroker, tmp_path: Path, capsys: Captured) -> None:
    """Whatever is in the copy of the second topic was written after what is in the copy of the first: no gap between them."""
    braid.create("first")
    braid.create("second")
    done = threading.Event()
    client = braid.client()

    def write() -> None:
        number = 0
        while not done.is_set():
            client.produce("first", b"%d" % number)
            client.produce("second", b"%d" % number)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for round_ in range(3):
            run(capsys, "backup", str(tmp_path / f"{round_}.tar"), "--server", braid.address)
    finally:
        done.set()
        writer.join()
    for round_ in range(3):
        restored = tmp_path / f"data-{round_}"
        run(capsys, "restore", str(tmp_path / f"{round_}.tar"), str(restored))
        with braidmq.testing.broker(restored) as again:
            first, second = again.values("first"), again.values("second")
            assert first == [b"%d" % number for number in range(len(first))]
            assert second == first[: len(second)] and len(first) - len(second) in (0, 1)


def test_what_goes_meanwhile_stays_in_the_backup(braid: ThreadBroker) -> None:
    braid.create("gone", 2)
    braid.produce("gone", [b"x" * 1000] * 5)
    client = braid.client()
    begun = client.upkeep.begin_backup()
    client.delete_topic("gone")
    braid.run(_apply_retention)
    topics = [file for file in begun.files if file.path.startswith("topics/") and file.size]
    assert topics and sum(len(b"".join(client.upkeep.read_backup(begun.backup, file))) for file in topics) > 5000
    with pytest.raises(BraidError, match="no file"):
        list(client.upkeep.read_backup(begun.backup, flymq.BackupFile("topics/9/9", 1)))
    client.upkeep.end_backup(begun.backup)
    client.upkeep.end_backup(begun.backup)
    assert os.listdir(braid.data_dir / "backups") == []
    with pytest.raises(BraidError, match="BACKUP_NOT_FOUND"):
        list(client.upkeep.read_backup(begun.backup, topics[0]))


async def _apply_retention(server: Any) -> None:
    await server.broker.apply_retention()


def test_backups_are_bounded_and_end_when_nobody_reads_them(braid: ThreadBroker) -> None:
    client = braid.client()
    begun = [client.upkeep.begin_backup() for _ in range(limits.BACKUPS_MAX)]
    with pytest.raises(BraidError, match="BACKUP_LIMIT"):
        client.upkeep.begin_backup()
    braid.clock.advance(limits.BACKUP_IDLE_SECONDS_MAX / 2)
    file = next(file for file in begun[0].files if file.path == "FORMAT")
    list(client.upkeep.read_backup(begun[0].backup, file))
    braid.clock.advance(limits.BACKUP_IDLE_SECONDS_MAX / 2 + 1)
    assert b"".join(client.upkeep.read_backup(begun[0].backup, file)), "this one was read meanwhile"
    with pytest.raises(BraidError, match="BACKUP_NOT_FOUND"):
        list(client.upkeep.read_backup(begun[1].backup, file))
    assert client.upkeep.begin_backup().files
    with pytest.raises(BraidError, match="at a time"):
        request = flymq.BackupRead(begun[0].backup, file.path, 0, limits.BACKUP_PIECE_BYTES_MAX + 1)
        client._asker.ask(request, flymq.BackupPiece)


def test_a_start_removes_what_a_killed_broker_left_of_its_backups(tmp_path: Path) -> None:
    with braidmq.testing.broker(tmp_path / "data") as braid:
        braid.produce("t", [b"x"])
    (tmp_path / "data/backups/old").mkdir(parents=True)
    os.link(tmp_path / "data/FORMAT", tmp_path / "data/backups/old/0")
    with braidmq.testing.broker(tmp_path / "data") as braid:
        assert braid.values("t") == [b"x"]
        assert not (tmp_path / "data/backups").exists()


def test_an_encrypted_broker_stays_encrypted(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_ENCRYPTION_KEYS", KEY)
    with braidmq.testing.broker(tmp_path / "data", encryption_enabled=True) as braid:
        braid.produce("t", [b"a very secret value"])
        said = run(capsys, "backup", str(tmp_path / "b.tar"), "--server", braid.address)
    assert "keep the keys" in said
    copied = (tmp_path / "b.tar").read_bytes()
    assert b"very secret" not in copied and KEY.encode() not in copied
    run(capsys, "verify", str(tmp_path / "b.tar"))
    run(capsys, "restore", str(tmp_path / "b.tar"), str(tmp_path / "new"))
    with braidmq.testing.broker(tmp_path / "new", encryption_enabled=True) as again:
        assert again.values("t") == [b"a very secret value"]


# --- what is wrong is found


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory of a stopped broker."""
    data = tmp_path_factory.mktemp("good") / "data"
    with braidmq.testing.broker(data) as braid:
        braid.produce("t", [b"value %d" % number for number in range(50)])
    return data


def test_verify_says_what_is_wrong(good: Path, tmp_path: Path, capsys: Captured) -> None:
    backup = tmp_path / "b"
    run(capsys, "backup", str(backup), "--data-dir", str(good))
    segment = next((backup / "data/topics").rglob("*.log"))
    name = segment.relative_to(backup / "data").as_posix()
    content = bytearray(segment.read_bytes())
    content[100] ^= 1
    segment.write_bytes(content)
    (backup / "data/stray").write_text("x")
    (backup / "data/checkpoint").unlink()
    said = run(capsys, "verify", str(backup), status=Exit.DAMAGED)
    assert f"{name}: its content is not what was written" in said
    assert "stray: the manifest does not know it" in said and "checkpoint: missing" in said
    said = run(capsys, "restore", str(backup), str(tmp_path / "new"), "--damaged-too", status=Exit.DAMAGED)
    assert "BACKUP_INVALID" in said and not (tmp_path / "new").exists() and not (tmp_path / "new.partial").exists()


def test_damage_that_was_there_before_is_told_by_byte(good: Path, tmp_path: Path, capsys: Captured) -> None:
    data = tmp_path / "data"
    shutil.copytree(good, data)
    segment = next((data / "topics").rglob("*.log"))
    content = bytearray(segment.read_bytes())
    content[100] ^= 1
    segment.write_bytes(content)
    said = run(capsys, "backup", str(tmp_path / "b.tar"), "--data-dir", str(data), status=Exit.DAMAGED)
    assert "byte 0:" in said
    run(capsys, "restore", str(tmp_path / "b.tar"), str(tmp_path / "new"), status=Exit.DAMAGED)
    assert not (tmp_path / "new").exists()
    run(capsys, "restore", str(tmp_path / "b.tar"), str(tmp_path / "new"), "--damaged-too", status=Exit.DAMAGED)
    assert (tmp_path / "new/FORMAT").exists()


def test_a_tar_that_is_cut_short_or_no_backup_is_refused(good: Path, tmp_path: Path, capsys: Captured) -> None:
    run(capsys, "backup", str(tmp_path / "b.tar"), "--data-dir", str(good))
    whole = (tmp_path / "b.tar").read_bytes()
    for size in (0, 100, 700, len(whole) // 2, len(whole) - 3000):
        (tmp_path / "cut.tar").write_bytes(whole[:size])
        assert "BACKUP_INVALID" in run(capsys, "verify", str(tmp_path / "cut.tar"), status=Exit.DAMAGED)
    assert "BACKUP_INVALID" in run(capsys, "verify", str(tmp_path / "nothing"), status=Exit.DAMAGED)


def test_nothing_that_is_there_is_overwritten(good: Path, tmp_path: Path, capsys: Captured) -> None:
    run(capsys, "backup", str(tmp_path / "b"), "--data-dir", str(good))
    assert "exists" in run(capsys, "backup", str(tmp_path / "b"), "--data-dir", str(good), status=Exit.USAGE)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("x")
    assert "not empty" in run(capsys, "restore", str(tmp_path / "b"), str(tmp_path / "full"), status=Exit.USAGE)
    (tmp_path / "empty").mkdir()
    run(capsys, "restore", str(tmp_path / "b"), str(tmp_path / "empty"))


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", "..", ""])
def test_a_manifest_cannot_choose_where_files_go(name: str) -> None:
    manifest = Manifest("1", "now", False, False, {})
    disk = FaultyDisk()
    target = new_target(disk, "/b")
    manifest.files[name] = target.add("x", 1, [b"x"])
    target.finish(manifest)
    with pytest.raises(BraidError, match="no path inside"):
        Archive(disk, "/b")


# --- a crash after each step

FILES = {"FORMAT": b'{"format": 1}', "internal/metadata/snapshot-0.json": b"", "topics/1/0/00000000000000000000.log": b""}


def write(disk: FaultyDisk, path: str) -> None:
    target = new_target(disk, path)
    manifest = Manifest("1", "now", True, False)
    for name, content in FILES.items():
        manifest.files[name] = target.add(name, len(content), _halves(content))
    target.finish(manifest)


def _halves(content: bytes) -> Iterable[bytes]:
    return [content[:3], content[3:]] if content else []


@pytest.mark.parametrize("path", ["/backups/one", "/backups/one.tar"])
def test_a_backup_is_whole_or_not_there_whenever_power_is_lost(path: str) -> None:
    for step in range(1, 200):
        disk = FaultyDisk(step)
        disk.crash_after(step)
        try:
            write(disk, path)
        except SimulatedCrash:
            after = disk.crash(step)
            if after.exists(path):
                assert check_backup(Archive(after, path)).changed == []
            write(after, path + "-2") if after.exists(path) else write(after, path)
            continue
        assert step > 15, "there were steps to die in"
        assert check_backup(Archive(disk, path)).changed == []
        return
    pytest.fail("it never ended")


def test_a_restore_is_whole_or_not_there_whenever_power_is_lost() -> None:
    for step in range(1, 300):
        disk = FaultyDisk(step)
        write(disk, "/b")
        archive = Archive(disk, "/b")
        disk.crash_after(step)
        try:
            restore_archive(disk, archive, "/srv/data")
        except SimulatedCrash:
            after = disk.crash(step)
            if after.exists("/srv/data"):
                assert {name: after.read_file(f"/srv/data/{name}") for name in FILES} == FILES
            else:
                check_restorable(after, "/srv/data")
                restore_archive(after, Archive(after, "/b"), "/srv/data")
                assert {name: after.read_file(f"/srv/data/{name}") for name in FILES} == FILES
            continue
        assert step > 10
        return
    pytest.fail("it never ended")


def test_a_full_disk_leaves_nothing_behind() -> None:
    disk = FaultyDisk()
    write(disk, "/b")
    archive = Archive(disk, "/b")
    disk.capacity_bytes = disk.used_bytes + 4
    with pytest.raises(OSError, match="space"):
        restore_archive(disk, archive, "/data")
    assert not disk.exists("/data") and not disk.exists("/data.partial")
