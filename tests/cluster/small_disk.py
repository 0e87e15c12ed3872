"""A file system that is small enough to be filled: a tmpfs of its own for each node's data directory."""

from __future__ import annotations

import errno
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZE_BYTES = 320 << 20
"""etcd alone sets 64 MiB aside for its next write-ahead log."""

_BALLAST = "ballast"
_STEPS_BYTES = (1 << 20, 4096)


@contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """Have a small file system at `directory`; OSError where mounting is not permitted."""
    directory.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "braid-small-disk", str(directory)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise OSError(f"mounting is not permitted: {done.stderr.strip()}")
    try:
        yield
    finally:
        # A process that was killed a moment ago may still hold a file: the mount goes when that does.
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def why_not() -> str:
    """Why nothing can be mounted here; empty where it can."""
    try:
        with tempfile.TemporaryDirectory() as directory, small_disk(Path(directory)):
            return ""
    except OSError as error:
        return str(error)


def fill(directory: Path) -> None:
    """Leave no space on the file system of a directory."""
    with (directory / _BALLAST).open("ab", buffering=0) as ballast:
        for step in _STEPS_BYTES:
            try:
                while True:
                    ballast.write(bytes(step))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def make_room(directory: Path) -> None:
    (directory / _BALLAST).unlink()
