"""The disk, as an interface: what the log may ask of it, and what it may rely on.

All files of the broker are reached through a `Disk`. `RealDisk` (`disk_real.py`) is the operating system; `FaultyDisk`
(`disk_faulty.py`) is an in-memory model that loses and tears unsynced writes, fills up, fails syncs and flips bits. Code
above this line cannot tell them apart, which is what makes crash tests cheap and repeatable.

What the log relies on, and nothing more:

* After `AppendFile.append` returned, the bytes survive the death of the process. After `sync` returned, they survive
  the loss of power. Before that, any part of them may be missing or torn, in any order of pages.
* After `append` raised, `size` is unchanged and bytes past `size` may exist; `truncate(size)` removes them.
* After `sync` raised, nothing written since the last good sync may be trusted, and trying again proves nothing.
* `replace_file` is atomic and durable: a reader finds the old content or the new one, whole.
* A file's name survives the loss of power once `sync_directory` of its directory returned.
* A `FileMap` stays readable after its file was removed. A file is never truncated below what was mapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class AppendFile(Protocol):
    """A file that grows at its end."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int:
        """Bytes appended so far; what `append` adds to only when all of it was written."""
        ...

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Write all of `buffers` at the end, or raise OSError."""
        ...

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end of the file."""
        ...

    def sync(self) -> None:
        """Make everything appended so far survive the loss of power. Callable from another thread than `append`."""
        ...

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class FileMap(Protocol):
    """A read-only view of the first bytes of a file."""

    @property
    def view(self) -> memoryview: ...

    def resident(self, start: int, stop: int) -> bool:
        """Whether reading these bytes needs no disk access now."""
        ...

    def prefault(self, start: int, stop: int) -> None:
        """Bring these bytes into memory. May block: call it off the event loop."""
        ...


class Lock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    def open_append(self, path: str) -> AppendFile:
        """Open `path` for appending, creating it when missing."""
        ...

    def map_file(self, path: str, length: int) -> FileMap:
        """Map the first `length` bytes (at least one, at most the file's size)."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def replace_file(self, path: str, data: bytes) -> None:
        """Atomically and durably make `data` the content of `path`."""
        ...

    def write_file(self, path: str, data: bytes) -> None:
        """Write a file whose loss or tearing costs nothing, such as an index."""
        ...

    def exists(self, path: str) -> bool: ...

    def file_size(self, path: str) -> int: ...

    def list_directory(self, path: str) -> list[str]:
        """Names in the directory, sorted; empty when it does not exist."""
        ...

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        """Create the directory and its parents; with `durable` their names survive the loss of power afterwards."""
        ...

    def sync_directory(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def link(self, old: str, new: str) -> None:
        """Give a file a second name on the same file system: it grows under both, and stays until both are gone."""
        ...

    def remove_file(self, path: str) -> None:
        """Remove the file; fine when it is already gone."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove the directory and all below it; fine when it is already gone."""
        ...

    def truncate_file(self, path: str, size: int) -> None: ...

    def sync_files(self, files: Iterable[AppendFile]) -> None:
        """Sync several files at once, the cheapest way there is. Raises the first failure."""
        ...

    def free_bytes(self, path: str) -> int:
        """Space left on the file system that holds `path`."""
        ...

    def lock(self, path: str) -> Lock:
        """Hold `path` exclusively until released or the process ends; raises BlockingIOError when held elsewhere."""
        ...
