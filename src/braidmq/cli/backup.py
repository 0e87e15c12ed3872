"""`braid backup`, `braid verify`, `braid restore`: a copy of everything that a broker keeps, and the way back.

A backup holds topics with their records, groups, schemas, users, roles, ACLs, queues, subscribers, what waits and what is decided:
all that lies in a data directory, as it was at one moment. From a running broker it comes over the wire, and nobody has to stop
writing; from a stopped one it is read off its directory. Keys of encryption are not part of it.

`restore` makes a data directory beside the one that was asked for and gives it its name when everything is there and synced. A
backup that is not what was written is refused.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_output_option

if TYPE_CHECKING:
    from braidmq.base.disk import Disk
    from braidmq.cli.backup_archive import Archive, Manifest, Target
    from braidmq.cli.backup_check import BackupReport
    from braidmq.cli.terminal import Progress

_PIECE_BYTES: Final = 1 << 20
_LEFT_OUT: Final = ("LOCK", "backups/")
_ENDINGS_LEFT_OUT: Final = (".idx", ".new")
"""Indexes are made again, and what ends in `.new` was never finished."""

_EPILOG = """examples:
  braid backup nightly.tar
  braid backup /mnt/backup/monday --data-dir /var/lib/braidmq
  braid verify nightly.tar
  braid restore nightly.tar /var/lib/braidmq"""


def register(commands: Subparsers) -> None:
    about = "Copy everything that a broker keeps, while it runs or from its directory."
    backup = commands.add_parser(
        "backup", help=about, epilog=_EPILOG,
        description=f"{about} Needs the admin permission. Status {int(Exit.DAMAGED)} when what was copied is damaged.",
    )  # fmt: skip
    backup.add_argument("target", metavar="PATH", help="a directory that does not exist, or a file whose name ends in .tar")
    backup.add_argument("--data-dir", metavar="DIR", help="copy this directory of a stopped broker instead of asking a running one")
    backup.add_argument("--no-verify", action="store_true", help="do not check the batches of what was copied")
    add_output_option(backup)
    add_server_options(backup)
    backup.set_defaults(run=run_backup)

    about = "Check a backup: every file, every batch, every snapshot."
    verify = commands.add_parser(
        "verify", help=about, description=f"{about} Only reads. Status {int(Exit.DAMAGED)} when something is wrong with it."
    )
    verify.add_argument("backup", metavar="PATH", help="a backup: a directory or a .tar file")
    add_output_option(verify)
    verify.set_defaults(run=run_verify)

    about = "Make a data directory out of a backup, all of it or nothing."
    restore = commands.add_parser("restore", help=about, description=f"{about} A backup that is not whole is refused.")
    restore.add_argument("backup", metavar="PATH", help="a backup: a directory or a .tar file")
    restore.add_argument("data_dir", metavar="DIR", help="data directory to make; it must not exist, or be empty")
    restore.add_argument(
        "--damaged-too", action="store_true",
        help="restore a backup of damaged data as well; one that changed since it was written is refused all the same",
    )  # fmt: skip
    restore.add_argument("--dry-run", action="store_true", help="check everything, and write nothing")
    add_output_option(restore)
    restore.set_defaults(run=run_restore)


# --- backup


def run_backup(args: argparse.Namespace) -> int:
    from braidmq.base.disk_real import RealDisk
    from braidmq.cli.backup_archive import Archive, new_target
    from braidmq.cli.output import note

    disk = RealDisk()
    target = new_target(disk, args.target)
    try:
        manifest = _copy_directory(disk, args.data_dir, target) if args.data_dir else _copy_broker(args, target)
        target.finish(manifest)
    except BaseException:
        target.abandon()
        raise
    if manifest.encrypted:
        note("what is encrypted stays encrypted: keep the keys too, elsewhere")
    if args.no_verify:
        return _tell(args, "written", manifest, None)
    return _tell(args, "written", manifest, _checked(Archive(disk, args.target)))


def _copy_broker(args: argparse.Namespace, target: Target) -> Manifest:
    from braidmq.cli.terminal import Progress

    with open_client(args) as client:
        begun = client.upkeep.begin_backup()
        progress = Progress("bytes", sum(file.size for file in begun.files))
        try:
            manifest = _new_manifest(begun.version, True, begun.encrypted)
            done = 0
            for file in begun.files:
                pieces = _counted(client.upkeep.read_backup(begun.backup, file), progress, done)
                manifest.files[file.path] = target.add(file.path, file.size, pieces)
                done += file.size
        finally:
            progress.close()
            client.upkeep.end_backup(begun.backup)
    return manifest


def _counted(pieces: Iterable[bytes], progress: Progress, done: int) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        done += len(piece)
        progress.update(done)


def _new_manifest(version: str, online: bool, encrypted: bool) -> Manifest:
    from datetime import UTC, datetime

    from braidmq.cli.backup_archive import Manifest

    return Manifest(version, datetime.now(UTC).isoformat(timespec="seconds"), online, encrypted)


def _copy_directory(disk: Disk, data_dir: str, target: Target) -> Manifest:
    """The directory of a stopped broker, held meanwhile so that none starts."""
    from braidmq import __version__
    from braidmq.base.key_ring import is_encrypted
    from braidmq.cli.backup_archive import files_below

    data_dir = data_dir.rstrip("/")
    if not disk.exists(f"{data_dir}/FORMAT"):
        raise BraidError("DATA_DIR_INVALID", path=data_dir, reason="there is no broker's data in it")
    with _held(disk, data_dir):
        manifest = _new_manifest(__version__, False, is_encrypted(disk, data_dir))
        for path in files_below(disk, data_dir):
            if not path.startswith(_LEFT_OUT) and not path.endswith(_ENDINGS_LEFT_OUT):
                size = disk.file_size(f"{data_dir}/{path}")
                manifest.files[path] = target.add(path, size, _pieces(disk, f"{data_dir}/{path}", size))
    return manifest


def _pieces(disk: Disk, path: str, size: int) -> Iterator[bytes]:
    view = disk.map_file(path, size).view if size else memoryview(b"")
    for position in range(0, size, _PIECE_BYTES):
        yield bytes(view[position : position + _PIECE_BYTES])


@contextmanager
def _held(disk: Disk, data_dir: str) -> Iterator[None]:
    try:
        lock = disk.lock(f"{data_dir}/LOCK")
    except BlockingIOError:
        raise BraidError("DATA_DIR_LOCKED", path=data_dir) from None
    try:
        yield
    finally:
        lock.release()


# --- verify


def run_verify(args: argparse.Namespace) -> int:
    from braidmq.base.disk_real import RealDisk
    from braidmq.cli.backup_archive import Archive

    archive = Archive(RealDisk(), args.backup)
    return _tell(args, "checked", archive.manifest, _checked(archive))


def _checked(archive: Archive) -> BackupReport:
    from braidmq.cli.backup_check import check_backup
    from braidmq.cli.terminal import Progress

    progress = Progress("bytes checked", archive.manifest.total_bytes)
    try:
        return check_backup(archive, progress.update)
    finally:
        progress.close()


def _tell(args: argparse.Namespace, verb: str, manifest: Manifest, report: BackupReport | None) -> int:
    """Say what was done and what was found; the answer is the status."""
    from dataclasses import asdict

    from braidmq.cli.output import note, print_json, printable

    if args.output == "json":
        about = {"version": manifest.version, "created": manifest.created, "online": manifest.online}
        summary = {**about, "encrypted": manifest.encrypted, "files": len(manifest.files), "bytes": manifest.total_bytes}
        print_json({verb: summary, "report": None if report is None else asdict(report) | {"whole": report.whole}})
    else:
        kind = "running" if manifest.online else "stopped"
        print(f"{verb}: {len(manifest.files)} files, {manifest.total_bytes:,} bytes of a {kind} broker, {manifest.created}")
        if report is not None:
            print(f"partitions {report.partitions:,}, batches {report.batches:,}, records {report.records:,}")
    if report is None:
        return Exit.OK
    for line in (*report.changed, *report.damaged):
        note(f"DAMAGED {printable(line)}")
    for line in report.notes:
        note(printable(line))
    return Exit.OK if report.whole else Exit.DAMAGED


# --- restore


def run_restore(args: argparse.Namespace) -> int:
    from braidmq.base.disk_real import RealDisk
    from braidmq.cli.backup_archive import Archive
    from braidmq.cli.output import note

    disk = RealDisk()
    archive = Archive(disk, args.backup)
    data_dir = args.data_dir.rstrip("/")
    check_restorable(disk, data_dir)
    report = _checked(archive)
    if report.changed or (report.damaged and not args.damaged_too):
        _tell(args, "refused", archive.manifest, report)
        raise BraidError("BACKUP_INVALID", path=archive.path, reason="it is damaged; nothing was restored")
    if not args.dry_run:
        restore_archive(disk, archive, data_dir)
    status = _tell(args, "would be restored" if args.dry_run else "restored", archive.manifest, report)
    if not args.dry_run and args.output == "text":
        note(f"start it with: braid serve --data-dir {data_dir}")
    return status


def check_restorable(disk: Disk, data_dir: str) -> None:
    """Nothing that is there may be lost."""
    try:
        taken = bool(disk.list_directory(data_dir))
    except NotADirectoryError:
        taken = True
    if taken:
        raise BraidError("INVALID_ARGUMENT", reason=f"{data_dir} is not empty; restore into a directory that does not exist")
    if os.path.ismount(data_dir):
        reason = f"{data_dir} is a mount point and cannot be replaced; restore into a directory below it"
        raise BraidError("INVALID_ARGUMENT", reason=reason)


def restore_archive(disk: Disk, archive: Archive, data_dir: str) -> None:
    """The files of the backup under `data_dir`: all of them or none, whatever happens meanwhile."""
    from braidmq.cli.backup_archive import DirectoryTarget

    target = DirectoryTarget(disk, data_dir, prefix="")
    try:
        for path, entry in sorted(archive.manifest.files.items()):
            content = archive.content(path)
            pieces = _slices(content if content is not None else memoryview(b""))
            if target.add(path, entry.bytes, pieces) != entry:
                raise BraidError("BACKUP_INVALID", path=archive.path, reason=f"{path} changed while it was read")
        target.give_name()
    except BaseException:
        target.abandon()
        raise


def _slices(content: memoryview) -> Iterator[bytes]:
    for position in range(0, len(content), _PIECE_BYTES):
        yield bytes(content[position : position + _PIECE_BYTES])
