"""Backups as files: a directory, or one tar file with the same content.

    data/...     the files of a data directory, as they lie there
    MANIFEST     checksum of the rest of this file; then, as JSON, every file with its size and SHA-256

The manifest is written last, under a name of its own the whole is made and synced, and only then it gets the name that was asked
for: whatever ends the program, there is a whole backup under that name or none. What is encrypted stays encrypted, and keys are
never part of a backup.

Everything goes through a `Disk`, so that a test can end it after each single step.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Final, Protocol

from braidmq.base.disk import AppendFile, Disk
from braidmq.base.errors import BraidError

FORMAT: Final = 1
MANIFEST: Final = "MANIFEST"
PREFIX: Final = "data/"
PARTIAL: Final = ".partial"
_BLOCK: Final = tarfile.BLOCKSIZE


@dataclass(frozen=True, slots=True)
class FileEntry:
    bytes: int
    sha256: str


@dataclass(slots=True)
class Manifest:
    version: str
    """Of the broker whose data this is, or of the program that copied it."""
    created: str
    online: bool
    """Whether the broker was running."""
    encrypted: bool
    files: dict[str, FileEntry] = field(default_factory=dict)
    """By path below the data directory."""

    @property
    def total_bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())

    def encode(self) -> bytes:
        body = json.dumps({"format": FORMAT} | asdict(self), indent=1, sort_keys=True).encode()
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body

    @classmethod
    def decode(cls, data: bytes, path: str) -> Manifest:
        head, _, body = data.partition(b"\n")
        if head != hashlib.sha256(body).hexdigest().encode():
            raise BraidError("BACKUP_INVALID", path=path, reason="the checksum of its manifest is wrong")
        document = json.loads(body)
        if document.pop("format") != FORMAT:
            raise BraidError("BACKUP_INVALID", path=path, reason=f"this version reads manifests of format {FORMAT}")
        document["files"] = {name: FileEntry(**entry) for name, entry in document["files"].items()}
        for name in document["files"]:
            # Whoever wrote the manifest must not choose where restored files go.
            if not name or name != posixpath.normpath(name) or name.startswith(("/", "../")) or name == "..":
                raise BraidError("BACKUP_INVALID", path=path, reason=f"{name} is no path inside a data directory")
        return cls(**document)


# --- writing


class Target(Protocol):
    def add(self, path: str, size: int, pieces: Iterable[bytes]) -> FileEntry:
        """Take a file in; it has to be as long as it was said to be."""
        ...

    def finish(self, manifest: Manifest) -> None: ...

    def abandon(self) -> None:
        """Leave nothing behind."""
        ...


def new_target(disk: Disk, path: str) -> Target:
    """Where a backup goes: a tar file where the name says so, else a directory."""
    path = path.rstrip("/")
    if disk.exists(path):
        raise BraidError("INVALID_ARGUMENT", reason=f"{path} exists; name a backup that does not")
    return TarTarget(disk, path) if path.endswith(".tar") else DirectoryTarget(disk, path)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")


def _append(file: AppendFile, path: str, size: int, pieces: Iterable[bytes]) -> FileEntry:
    digest = hashlib.sha256()
    done = 0
    for piece in pieces:
        file.append([piece])
        digest.update(piece)
        done += len(piece)
    if done != size:
        raise BraidError("BACKUP_INVALID", path=path, reason=f"{done} of {size} bytes came")
    return FileEntry(size, digest.hexdigest())


class DirectoryTarget:
    """Files below a directory, which gets its name at the end. `restore` makes a data directory with it."""

    def __init__(self, disk: Disk, path: str, prefix: str = PREFIX) -> None:
        self._disk = disk
        self._path = path
        self._making = path + PARTIAL
        self._prefix = prefix
        self._folders: set[str] = set()
        disk.remove_tree(self._making)
        disk.make_directory(self._making)

    def add(self, path: str, size: int, pieces: Iterable[bytes]) -> FileEntry:
        return self._write(f"{self._prefix}{path}", size, pieces)

    def _write(self, name: str, size: int, pieces: Iterable[bytes]) -> FileEntry:
        folder = f"{self._making}/{name}".rpartition("/")[0]
        if folder not in self._folders:
            self._disk.make_directory(folder)
            self._folders.add(folder)
        file = self._disk.open_append(f"{self._making}/{name}")
        try:
            entry = _append(file, name, size, pieces)
            file.sync()
        finally:
            file.close()
        return entry

    def finish(self, manifest: Manifest) -> None:
        data = manifest.encode()
        self._write(MANIFEST, len(data), [data])
        self.give_name()

    def give_name(self) -> None:
        """Make everything durable, then give it the name that was asked for."""
        for folder in sorted({*self._folders, self._making}, reverse=True):
            self._disk.sync_directory(folder)
        self._disk.rename(self._making, self._path)
        self._disk.sync_directory(_parent(self._path))

    def abandon(self) -> None:
        self._disk.remove_tree(self._making)


class TarTarget:
    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._making = path + PARTIAL
        disk.make_directory(_parent(path))
        disk.remove_file(self._making)
        self._file = disk.open_append(self._making)

    def add(self, path: str, size: int, pieces: Iterable[bytes]) -> FileEntry:
        return self._write(f"{PREFIX}{path}", size, pieces)

    def _write(self, name: str, size: int, pieces: Iterable[bytes]) -> FileEntry:
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o600
        self._file.append([info.tobuf(tarfile.GNU_FORMAT)])
        entry = _append(self._file, name, size, pieces)
        self._file.append([bytes(-size % _BLOCK)])
        return entry

    def finish(self, manifest: Manifest) -> None:
        data = manifest.encode()
        self._write(MANIFEST, len(data), [data])
        self._file.append([bytes(2 * _BLOCK)])
        self._file.sync()
        self._file.close()
        self._disk.rename(self._making, self._path)
        self._disk.sync_directory(_parent(self._path))

    def abandon(self) -> None:
        self._file.close()
        self._disk.remove_file(self._making)


# --- reading


class Archive:
    """A backup to be read: its manifest, and the bytes of its files wherever they lie."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path.rstrip("/")
        if not disk.exists(self.path):
            raise BraidError("BACKUP_INVALID", path=self.path, reason="there is nothing of that name")
        self._tar: memoryview | None = None
        self._places: dict[str, tuple[int, int]] = {}
        if not disk.exists(f"{self.path}/{MANIFEST}"):
            self._read_tar()
        raw = self._bytes(MANIFEST)
        if raw is None:
            raise BraidError("BACKUP_INVALID", path=self.path, reason="it has no manifest: it was not finished, or is no backup")
        try:
            self.manifest = Manifest.decode(bytes(raw), self.path)
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise BraidError("BACKUP_INVALID", path=self.path, reason=f"its manifest cannot be read: {fault}") from None

    def _read_tar(self) -> None:
        """Find out where the files lie in a tar file. One that is cut short ends early, which the manifest then shows."""
        try:
            size = self._disk.file_size(self.path)
            self._tar = self._disk.map_file(self.path, size).view if size else memoryview(b"")
        except OSError as fault:
            reason = f"neither a directory with a manifest nor a tar file: {fault.strerror}"
            raise BraidError("BACKUP_INVALID", path=self.path, reason=reason) from None
        position = 0
        while position + _BLOCK <= len(self._tar):
            block = bytes(self._tar[position : position + _BLOCK])
            if not block.strip(b"\0"):
                return
            try:
                info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except tarfile.TarError as fault:
                reason = f"its structure is damaged at byte {position}: {fault}"
                raise BraidError("BACKUP_INVALID", path=self.path, reason=reason) from None
            position += _BLOCK
            self._places[info.name] = (position, info.size)
            position += info.size + -info.size % _BLOCK

    def _bytes(self, name: str) -> memoryview | None:
        if self._tar is not None:
            start, size = self._places.get(name, (-1, 0))
            whole = start >= 0 and start + size <= len(self._tar)
            return self._tar[start : start + size] if whole else None
        path = f"{self.path}/{name}"
        if not self._disk.exists(path):
            return None
        size = self._disk.file_size(path)
        return self._disk.map_file(path, size).view if size else memoryview(b"")

    def content(self, path: str) -> memoryview | None:
        """The bytes of a file; None when it is missing or cut short."""
        return self._bytes(PREFIX + path)

    def paths(self) -> Iterator[str]:
        """Every file that is there, whatever the manifest says."""
        if self._tar is not None:
            yield from (name.removeprefix(PREFIX) for name in self._places if name.startswith(PREFIX))
        else:
            yield from files_below(self._disk, f"{self.path}/{PREFIX}".rstrip("/"))


def files_below(disk: Disk, root: str, below: str = "") -> Iterator[str]:
    """Paths of all files below a directory, relative to it. What has entries is a directory; so is what cannot be measured."""
    for name in disk.list_directory(f"{root}/{below}" if below else root):
        path = f"{below}/{name}" if below else name
        if is_directory(disk, f"{root}/{path}"):
            yield from files_below(disk, root, path)
        else:
            yield path


def is_directory(disk: Disk, path: str) -> bool:
    try:
        disk.list_directory(path)
    except NotADirectoryError:
        return False
    return True
