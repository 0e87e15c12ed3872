"""A disk in memory that fails in the ways real disks fail, and the same way again for the same seed.

It exists so that a test can ask "and if the power went at exactly this step?" for every step, in milliseconds. Code that
takes a `Disk` cannot tell it from `RealDisk`; the same conformance tests run on both.

The model. A file has two contents: what processes see (the page cache) and what the platters hold; between them lies a
list of unsynced changes. A directory has its entries in the same two forms (`disk_platter.py`). Then:

* **Loss of power** (`crash()`) keeps what was synced. Every unsynced write is lost, kept, or torn: any subset of its
  512-byte sectors survives, a later write may survive an earlier one, and what is missing below a survivor reads as zeros.
  An unsynced truncation may not have happened. A name created, renamed or removed since its directory was synced may
  be found in its old state; a rename is never half done.
* **Death of the process** (`crash(power=False)`) keeps everything written, synced or not, and drops all locks. What was
  unsynced stays so, and a later loss of power may still take it.
* **A failed sync** drops the dirty pages, as Linux does: reads still show them, a later sync succeeds without writing
  them, and the loss of power then reveals some or none of them.
* **A lying sync** (`lying_syncs`) returns and makes nothing durable.
* **A full disk** (`capacity_bytes`) or a failing write leaves a part of the bytes behind and raises.
* **Rot** (`flip_bit`) and unreadable bytes (`fail("read")`) hit what is stored already.

`crash_after(n)` lets n more changing operations happen and raises `SimulatedCrash` in the next one, possibly after part of
a write. From then on the disk is dead, as it is for a process that was killed, until `crash` hands out its successor.

Two simplifications: a map is a copy taken when it was made, and a removed file gives its space back at once.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from braidmq.base.disk import AppendFile, Buffer
from braidmq.base.disk_platter import (
    Directory,
    File,
    NameChange,
    Node,
    TreeCopy,
    Truncate,
    Unsynced,
    Write,
    count_names,
    files_below,
    overwrite,
    power_up,
    resize,
    settle_names,
    settle_writes,
    sync_names,
)

_PAGE_BYTES: Final = 4096
_PLENTY_BYTES: Final = 1 << 50

Operation = Literal[
    "create", "write", "sync", "truncate", "rename", "link", "remove", "make_directory", "sync_directory", "read", "map"
]
_UNCHANGING: Final = frozenset({"read", "map"})


class SimulatedCrash(BaseException):
    """The process died at this operation. Not an Exception, so that no handler mistakes it for a fault to survive."""


@dataclass(slots=True)
class _Fault:
    operation: Operation
    path: str | None
    position: int | None
    skip: int
    times: int
    code: int
    written_bytes: int | None


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


class FaultyAppendFile:
    """A file that grows at its end, on a `FaultyDisk`."""

    def __init__(self, disk: FaultyDisk, path: str, file: File) -> None:
        self._disk = disk
        self._path = path
        self._file = file
        self._size = len(file.seen)

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    def append(self, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        self._disk._write(self._path, self._file, self._size, data)
        self._size += len(data)

    def read_at(self, position: int, length: int) -> bytes:
        return self._disk._read(self._path, self._file, position, length)

    def sync(self) -> None:
        self._disk._sync(self._path, self._file)

    def truncate(self, size: int) -> None:
        self._disk._truncate(self._path, self._file, size)
        self._size = size

    def close(self) -> None:
        """Nothing to give back; allowed on a dead disk too, so that cleaning up never hides a crash."""


class FaultyFileMap:
    """A copy of the first bytes of a file, cold until prefaulted when the disk says so."""

    def __init__(self, disk: FaultyDisk, path: str, data: bytes) -> None:
        self._disk = disk
        self._path = path
        self._warm_pages: set[int] = set()
        self.view = memoryview(data)

    def resident(self, start: int, stop: int) -> bool:
        return self._disk.resident or self._warm_pages.issuperset(_pages(start, stop))

    def prefault(self, start: int, stop: int) -> None:
        self._disk._enter("read", self._path, start, stop)
        self._warm_pages.update(_pages(start, stop))


def _pages(start: int, stop: int) -> range:
    return range(start // _PAGE_BYTES, -(-stop // _PAGE_BYTES))


class FaultyLock:
    def __init__(self, held: set[int], key: int) -> None:
        self._held = held
        self._key = key

    def release(self) -> None:
        self._held.discard(self._key)


class FaultyDisk:
    """The whole disk. Everything it does follows from `seed` and the calls made."""

    def __init__(self, seed: int = 0, *, capacity_bytes: int | None = None, resident: bool = True) -> None:
        self.seed = seed
        self.capacity_bytes = capacity_bytes
        self.resident = resident
        """Whether maps claim to be in memory; when False only what was prefaulted is."""
        self.lying_syncs = False
        """Whether syncs return without making anything durable."""
        self.operations = 0
        """Changing operations so far: what `crash_after` counts."""
        self.counts: Counter[Operation] = Counter()
        """How often each operation was called, including calls that failed."""
        self.on_operation: Callable[[Operation, str], None] | None = None
        """Called before each operation, without the disk's lock held; may block, to hold an operation where a test wants it."""
        self._root = Directory()
        self._name_changes: list[NameChange] = []
        self._faults: list[_Fault] = []
        self._held: set[int] = set()
        self._crash_at: int | None = None
        self._dead = False
        self._used_bytes = 0
        self._guard = threading.RLock()

    # --- faults

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def dead(self) -> bool:
        """Whether the crash that was asked for has happened."""
        return self._dead

    def fail(
        self,
        operation: Operation,
        nth: int = 1,
        *,
        path: str | None = None,
        position: int | None = None,
        times: int = 1,
        code: int = errno.EIO,
        written_bytes: int | None = None,
    ) -> None:
        """Make the `nth` such operation from now on (and the `times` - 1 after it) raise OSError with `code`.

        `path` and `position` limit the fault to one file and to reads that cover one byte. A failing write leaves
        `written_bytes` behind, or a number of them drawn from the seed.
        """
        self._faults.append(_Fault(operation, path and _normal(path), position, nth - 1, times, code, written_bytes))

    def heal(self) -> None:
        """Forget every fault that was asked for; what they did stays."""
        self._faults.clear()
        self.lying_syncs = False

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Let one stored bit rot, both as seen and on the platter."""
        file = self._file(path)
        file.seen[position] ^= 1 << bit
        if position < len(file.durable):
            file.durable[position] ^= 1 << bit

    def crash_after(self, n_operations: int) -> None:
        """Let `n_operations` more changing operations happen and die in the one after them."""
        self._crash_at = self.operations + n_operations

    def crash(self, seed: int | None = None, *, power: bool = True, unsynced: Unsynced = "random") -> FaultyDisk:
        """The disk as the next process finds it. This one is dead afterwards, but may be asked again with another seed.

        `unsynced` says what the loss of power does to unsynced changes. At random, one crash in four loses all of
        them and one in four keeps all, since a mixture of fates is unlikely to be either.
        """
        with self._guard:
            self._dead = True
            rng = random.Random(f"{self.seed}:{self.operations}:{seed}")
            mode: Unsynced = unsynced
            if mode == "random":
                modes: tuple[Unsynced, ...] = ("lost", "kept", "random", "random")
                mode = rng.choice(modes)
            successor = FaultyDisk(rng.getrandbits(32), capacity_bytes=self.capacity_bytes, resident=self.resident)
            copied = TreeCopy(self._root, self._name_changes)
            successor._root = copied.root
            if power:
                settle_names(copied.changes, mode, rng)
                power_up(successor._root, mode, rng)
                count_names(successor._root)
            else:
                successor._name_changes = copied.changes
            found = {id(file): len(file.seen) for file in files_below(successor._root)}
            successor._used_bytes = sum(found.values())
            return successor

    # --- files for appending

    def open_append(self, path: str) -> FaultyAppendFile:
        if not self.exists(path):
            self._enter("create", path)
        with self._guard:
            node = self._find(path)
            if node is None:
                parent, name = self._parent(path)
                node = File()
                self._change_names(NameChange(((parent, name, node),)))
            if isinstance(node, Directory):
                raise _error(errno.EISDIR, path)
            return FaultyAppendFile(self, path, node)

    def sync_files(self, files: Iterable[AppendFile]) -> None:
        for file in files:
            file.sync()

    # --- reading

    def map_file(self, path: str, length: int) -> FaultyFileMap:
        self._enter("map", path)
        with self._guard:
            file = self._file(path)
            if not 0 < length <= len(file.seen):
                raise ValueError(f"cannot map {length} of {len(file.seen)} bytes")
            return FaultyFileMap(self, path, bytes(memoryview(file.seen)[:length]))

    def read_file(self, path: str) -> bytes:
        file = self._file(path)
        return self._read(path, file, 0, len(file.seen))

    # --- whole files

    def replace_file(self, path: str, data: bytes) -> None:
        temporary = path + ".new"
        self._sync(temporary, self._write_whole(temporary, data))
        self.rename(temporary, path)
        self.sync_directory(os.path.dirname(path))

    def write_file(self, path: str, data: bytes) -> None:
        temporary = path + ".new"
        self._write_whole(temporary, data)
        self.rename(temporary, path)

    def _write_whole(self, path: str, data: bytes) -> File:
        handle = self.open_append(path)
        if handle.size:
            self._truncate(path, handle._file, 0)
        self._write(path, handle._file, 0, data)
        return handle._file

    def truncate_file(self, path: str, size: int) -> None:
        file = self._file(path)
        self._truncate(path, file, size)
        self._sync(path, file)

    # --- names

    def exists(self, path: str) -> bool:
        with self._guard:
            self._check_alive()
            return self._find(path) is not None

    def file_size(self, path: str) -> int:
        with self._guard:
            self._check_alive()
            return len(self._file(path).seen)

    def list_directory(self, path: str) -> list[str]:
        with self._guard:
            self._check_alive()
            node = self._find(path)
            if isinstance(node, File):
                raise _error(errno.ENOTDIR, path)
            return [] if node is None else sorted(node.seen)

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        parts = _parts(path)
        for depth in range(1, len(parts) + 1):
            part = "/".join(parts[:depth])
            node = self._find(part)
            if isinstance(node, File):
                raise _error(errno.EEXIST if depth == len(parts) else errno.ENOTDIR, path)
            if node is None:
                self._enter("make_directory", part)
                with self._guard:
                    parent, name = self._parent(part)
                    self._change_names(NameChange(((parent, name, Directory()),)))
            if durable and (node is None or depth == len(parts)):
                self.sync_directory("/".join(parts[: depth - 1]))

    def sync_directory(self, path: str) -> None:
        self._enter("sync_directory", path)
        with self._guard:
            directory = self._directory(path)
            if not self.lying_syncs:
                self._name_changes = sync_names(self._name_changes, directory)

    def rename(self, old: str, new: str) -> None:
        self._enter("rename", old)
        with self._guard:
            node = self._find(old)
            if node is None:
                raise _error(errno.ENOENT, old)
            target = self._find(new)
            if node is target:
                return
            if isinstance(target, Directory):
                if isinstance(node, File):
                    raise _error(errno.EISDIR, new)
                if target.seen:
                    raise _error(errno.ENOTEMPTY, new)
            elif target is not None and isinstance(node, Directory):
                raise _error(errno.ENOTDIR, new)
            old_parent, old_name = self._parent(old)
            new_parent, new_name = self._parent(new)
            if isinstance(target, File):
                self._unlink(target)
            self._change_names(NameChange(((old_parent, old_name, None), (new_parent, new_name, node))))

    def link(self, old: str, new: str) -> None:
        file = self._file(old)
        self._enter("link", old)
        with self._guard:
            if self._find(new) is not None:
                raise _error(errno.EEXIST, new)
            parent, name = self._parent(new)
            file.names += 1
            self._change_names(NameChange(((parent, name, file),)))

    def remove_file(self, path: str) -> None:
        if not self.exists(path):
            return
        node = self._file(path)
        self._enter("remove", path)
        with self._guard:
            self._unlink(node)
            parent, name = self._parent(path)
            self._change_names(NameChange(((parent, name, None),)))

    def remove_tree(self, path: str) -> None:
        for name in self.list_directory(path):
            below = f"{path}/{name}"
            if isinstance(self._find(below), Directory):
                self.remove_tree(below)
            else:
                self.remove_file(below)
        if self.exists(path):
            self._enter("remove", path)
            with self._guard:
                parent, name = self._parent(path)
                self._change_names(NameChange(((parent, name, None),)))

    def free_bytes(self, path: str) -> int:
        with self._guard:
            self._check_alive()
            if self._find(path) is None:
                raise _error(errno.ENOENT, path)
            return max(0, (_PLENTY_BYTES if self.capacity_bytes is None else self.capacity_bytes) - self._used_bytes)

    def lock(self, path: str) -> FaultyLock:
        file = self.open_append(path)._file
        with self._guard:
            if id(file) in self._held:
                raise _error(errno.EWOULDBLOCK, path)
            self._held.add(id(file))
            return FaultyLock(self._held, id(file))

    # --- what every operation passes through

    def _check_alive(self) -> None:
        if self._dead:
            raise SimulatedCrash("the process that used this disk is dead")

    def _enter(self, operation: Operation, path: str, start: int = 0, stop: int = 0) -> _Fault | None:
        """Count the operation, die if it is time, raise the fault that waits for it.

        The fault of a write is returned instead: a part of the bytes comes first.
        """
        if self.on_operation is not None:
            self.on_operation(operation, path)
        with self._guard:
            self._check_alive()
            self.counts[operation] += 1
            if operation not in _UNCHANGING:
                if self._crash_at is not None and self.operations >= self._crash_at and operation != "write":
                    self._die(operation, path)
                self.operations += 1
            fault = self._due_fault(operation, path, start, stop)
            if fault is not None and operation not in ("write", "sync"):
                raise _error(fault.code, path)
            return fault

    def _die(self, operation: Operation, path: str) -> None:
        self._dead = True
        raise SimulatedCrash(f"at operation {self.operations}: {operation} {path}")

    def _due_fault(self, operation: Operation, path: str, start: int, stop: int) -> _Fault | None:
        due = None
        for fault in self._faults:
            if fault.operation != operation or (fault.path is not None and fault.path != _normal(path)):
                continue
            if fault.position is not None and not start <= fault.position < stop:
                continue
            if fault.skip:
                fault.skip -= 1
            elif fault.times and due is None:
                fault.times -= 1
                due = fault
        return due

    # --- contents

    def _write(self, path: str, file: File, position: int, data: bytes) -> None:
        fault = self._enter("write", path)
        with self._guard:
            dies = self._crash_at is not None and self.operations > self._crash_at
            rng = random.Random(f"{self.seed}:{self.operations}:write")
            fits = len(data)
            code = errno.ENOSPC
            if self.capacity_bytes is not None and file.linked:
                growth = max(0, position + len(data) - len(file.seen))
                fits = len(data) - max(0, min(growth, self._used_bytes + growth - self.capacity_bytes))
            if fault is not None:
                code = fault.code
                asked = fault.written_bytes
                fits = rng.randint(0, max(0, len(data) - 1)) if asked is None else min(len(data), asked)
            if dies:
                fits = min(fits, rng.randint(0, len(data)))
            if fits:
                before = len(file.seen)
                overwrite(file.seen, position, data[:fits])
                file.unsynced.append(Write(position, data[:fits]))
                self._account(file, len(file.seen) - before)
            if dies:
                self._die("write", path)
            if fits < len(data) or fault is not None:
                raise _error(code, path)

    def _read(self, path: str, file: File, position: int, length: int) -> bytes:
        self._enter("read", path, position, position + length)
        with self._guard:
            return bytes(file.seen[position : position + length])

    def _truncate(self, path: str, file: File, size: int) -> None:
        self._enter("truncate", path)
        with self._guard:
            before = len(file.seen)
            resize(file.seen, size)
            file.unsynced.append(Truncate(size))
            self._account(file, size - before)

    def _sync(self, path: str, file: File) -> None:
        fault = self._enter("sync", path)
        with self._guard:
            if fault is not None:
                settle_writes(file, "random", random.Random(f"{self.seed}:{self.operations}:sync"))
                raise _error(fault.code, path)
            if not self.lying_syncs:
                settle_writes(file, "kept", random.Random(0))

    def _account(self, file: File, growth: int) -> None:
        if file.linked:
            self._used_bytes += growth

    # --- the tree

    def _find(self, path: str) -> Node | None:
        node: Node | None = self._root
        for part in _parts(path):
            if not isinstance(node, Directory):
                return None
            node = node.seen.get(part)
        return node

    def _file(self, path: str) -> File:
        with self._guard:
            self._check_alive()
            node = self._find(path)
            if isinstance(node, Directory):
                raise _error(errno.EISDIR, path)
            if node is None:
                raise _error(errno.ENOENT, path)
            return node

    def _directory(self, path: str) -> Directory:
        node = self._find(path)
        if isinstance(node, File):
            raise _error(errno.ENOTDIR, path)
        if node is None:
            raise _error(errno.ENOENT, path)
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        parts = _parts(path)
        return self._directory("/".join(parts[:-1])), parts[-1]

    def _change_names(self, change: NameChange) -> None:
        change.make_seen()
        self._name_changes.append(change)

    def _unlink(self, file: File) -> None:
        file.names -= 1
        if not file.names:
            self._account(file, -len(file.seen))
            file.linked = False


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _normal(path: str) -> str:
    return "/".join(_parts(path))
