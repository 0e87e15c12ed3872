"""The operating system's disk.

Files are opened when first used and closed, oldest first, when too many are open; a file with unsynced bytes is never
closed, because the kernel reports a failed write-back only to descriptors that were open when it happened.

A file may be appended to on one thread, synced on a second and closed by a third that needs room, so a descriptor is
an object: it is closed when the last call that uses it is over, and its number can never mean another file meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import shutil
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from braidmq.base import limits
from braidmq.base.disk import AppendFile, Buffer

_PAGE_BYTES: Final = mmap.PAGESIZE
_IOV_MAX: Final = 1024
_POPULATE_READ: Final = 22
"""Of `madvise`, since Linux 5.14."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_libc.syncfs.argtypes = [ctypes.c_int]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class _Descriptor:
    """An open file, closed when nothing refers to it any more."""

    __slots__ = ("number",)

    def __init__(self, path: str, flags: int) -> None:
        self.number = -1
        self.number = os.open(path, flags | os.O_CLOEXEC, 0o640)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class RealAppendFile:
    """An append-only file; `size` counts only bytes whose write succeeded as a whole."""

    __slots__ = ("_clean_to", "_descriptor", "_disk", "_path", "_size", "_written_to")

    def __init__(self, disk: RealDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._descriptor: _Descriptor | None = None
        descriptor = self._open(os.O_CREAT)
        self._size = os.fstat(descriptor.number).st_size
        # `_written_to` moves before a write begins and `_clean_to` after a sync ended, each on its own thread: when they
        # are equal, nothing that this process wrote waits for a sync.
        self._written_to = self._size
        self._clean_to = self._size

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    @property
    def unsynced(self) -> bool:
        return self._written_to != self._clean_to

    def _open(self, flags: int = 0) -> _Descriptor:
        # Only the first opening may create the file: later ones must not bring a removed file back.
        descriptor = self._descriptor
        if descriptor is None:
            descriptor = self._descriptor = _Descriptor(self._path, os.O_RDWR | flags)
            self._disk._opened(self)
        return descriptor

    def append(self, buffers: Sequence[Buffer]) -> None:
        position = self._size
        total = sum(map(len, buffers))
        self._written_to = position + total
        descriptor = self._open()
        written = os.pwritev(descriptor.number, buffers, position) if len(buffers) <= _IOV_MAX else 0
        if written != total:
            # A short write means that the disk is about to be full or that a signal came; trying again tells which.
            _write_fully(descriptor.number, memoryview(b"".join(buffers))[written:], position + written)
        self._size = position + total

    def read_at(self, position: int, length: int) -> bytes:
        descriptor = self._open()
        return os.pread(descriptor.number, length, position)

    def sync(self) -> None:
        covered = self._size
        descriptor = self._open()
        os.fdatasync(descriptor.number)
        self._clean_to = covered

    def truncate(self, size: int) -> None:
        descriptor = self._open()
        os.ftruncate(descriptor.number, size)
        self._clean_to = -1
        self._size = self._written_to = size

    def close(self) -> None:
        if self._descriptor is not None:
            self._disk._closed(self)
            self._descriptor = None


def _write_fully(fd: int, data: memoryview, position: int) -> None:
    while data:
        written = os.pwrite(fd, data, position)
        if written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data = data[written:]
        position += written


class RealFileMap:
    __slots__ = ("_address", "view")

    def __init__(self, fd: int, length: int) -> None:
        mapped = mmap.mmap(fd, length, prot=mmap.PROT_READ)
        self.view = memoryview(mapped)
        # mincore wants the address; a read-only map hands it out only through the buffer protocol.
        self._address = _buffer_address(self.view)

    def resident(self, start: int, stop: int) -> bool:
        first = start & ~(_PAGE_BYTES - 1)
        pages = (stop - first + _PAGE_BYTES - 1) // _PAGE_BYTES
        vector = ctypes.create_string_buffer(pages)
        if _libc.mincore(self._address + first, stop - first, vector) != 0:
            return False
        return vector.raw.count(b"\x00") == 0

    def prefault(self, start: int, stop: int) -> None:
        first = start & ~(_PAGE_BYTES - 1)
        if first >= stop:
            return
        # One call that lets other threads run while the disk is waited for. Touching a page holds them up.
        if _libc.madvise(self._address + first, stop - first, _POPULATE_READ) != 0:
            view = self.view
            for position in range(first, stop, _PAGE_BYTES):
                view[position]


class _PyBuffer(ctypes.Structure):
    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def _buffer_address(view: memoryview) -> int:
    raw = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(raw), 0)
    address = int(raw.buf)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(raw))
    return address


class _FileLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RealDisk:
    """Files through the operating system, at most `open_files_max` of them open for appending."""

    def __init__(self, open_files_max: int | None = None) -> None:
        if open_files_max is None:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            open_files_max = max(64, (soft - limits.OPEN_FILES_RESERVED) // 2)
        self._open_files_max = open_files_max
        self._open: OrderedDict[int, RealAppendFile] = OrderedDict()
        self._guard = threading.Lock()

    # --- files for appending

    def open_append(self, path: str) -> RealAppendFile:
        return RealAppendFile(self, path)

    def _opened(self, file: RealAppendFile) -> None:
        with self._guard:
            self._open[id(file)] = file
            if len(self._open) <= self._open_files_max:
                return
            others = [other for other in self._open.values() if other is not file]
            victim = next((other for other in others if not other.unsynced), None)
        if victim is None and others:
            # All others wait for a sync. One must go all the same, or the next connection finds no descriptor.
            victim = others[0]
            victim.sync()
        if victim is not None:
            victim.close()

    def _closed(self, file: RealAppendFile) -> None:
        with self._guard:
            self._open.pop(id(file), None)

    def sync_files(self, files: Iterable[AppendFile]) -> None:
        dirty = [file for file in files if isinstance(file, RealAppendFile)]
        if len(dirty) > limits.SYNC_FILES_ONE_BY_ONE_MAX and self._sync_file_system(dirty):
            return
        for file in dirty:
            file.sync()

    def _sync_file_system(self, dirty: list[RealAppendFile]) -> bool:
        """One syncfs in place of many fdatasyncs; False when it failed for a file that the caller has to find.

        The descriptor was opened before anything was written through it, so an error since then is reported on it. That
        may concern somebody else's file; each file remembers its own errors, so asking one by one gives the true answer.
        """
        covered = [(file, file.size) for file in dirty]
        descriptor = dirty[0]._open()
        if _libc.syncfs(descriptor.number) != 0:
            return False
        for file, size in covered:
            file._clean_to = size
        return True

    # --- reading

    def map_file(self, path: str, length: int) -> RealFileMap:
        if length < 1:
            raise ValueError(f"cannot map {length} bytes")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return RealFileMap(fd, length)
        finally:
            os.close(fd)

    def read_file(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    # --- whole files

    def replace_file(self, path: str, data: bytes) -> None:
        temporary = path + ".new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            _write_fully(fd, memoryview(data), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        self.sync_directory(os.path.dirname(path))

    def write_file(self, path: str, data: bytes) -> None:
        # Writing in place would cut the file short under whoever has mapped it.
        temporary = path + ".new"
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, path)

    # --- names

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def list_directory(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        path = os.path.abspath(path)
        parent = os.path.dirname(path)
        made = False
        if not os.path.isdir(path):
            self.make_directory(parent, durable=durable)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o750)
            if not os.path.isdir(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            made = True
        # One that was there already may be the work of a process that died before the name was durable. Where the parent
        # cannot be read, somebody else made it.
        if durable and (made or os.access(parent, os.R_OK)):
            self.sync_directory(parent)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def link(self, old: str, new: str) -> None:
        os.link(old, new)

    def remove_file(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        # A file that somebody else removed meanwhile ends the walk early; the next one goes on.
        while os.path.lexists(path):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path)

    def truncate_file(self, path: str, size: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def lock(self, path: str) -> _FileLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return _FileLock(fd)
