"""Redis streams with the append-only file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from processes import Server, answering, free_port, running

from peers.programs import find

HINT = "bench/install-peers or Debian redis-server"


def find_redis() -> Path:
    return find("redis-server", HINT)


@contextmanager
def redis(directory: Path, *, fsync: Literal["everysec", "always"]) -> Iterator[Server]:
    """A server that appends every command to its file; rewrites of that file are off, they would disturb the run."""
    port = free_port()
    command: list[str | Path] = [
        find_redis(), "--port", str(port), "--bind", "127.0.0.1", "--dir", directory, "--save", "", "--appendonly", "yes",
        "--appendfsync", fsync, "--auto-aof-rewrite-percentage", "0", "--daemonize", "no",
    ]  # fmt: skip
    with running(f"Redis {fsync}", command, directory, lambda: answering(port)) as server:
        yield server
