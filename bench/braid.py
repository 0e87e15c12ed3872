"""Our own broker as a server under test, and the bare C server that marks the ceiling."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from processes import BENCH, BUILD, Server, ports_in_file, running

SOURCES: Final = BENCH.parent / "src"


def braid_environment(pure: bool) -> dict[str, str]:
    """This process's environment with the sources of this tree, and without settings that somebody left in it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("BRAID_", "FLYMQ_"))}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SOURCES), env.get("PYTHONPATH")]))
    if pure:
        env["BRAID_PURE"] = "1"
    return env


@contextmanager
def braid(
    directory: Path,
    *,
    durability: Literal["none", "os", "fsync"],
    pure: bool = False,
    protocols: Sequence[str] = ("flymq",),
) -> Iterator[Server]:
    """`braid serve` on free ports. Retention is off: a run may write more than the default keeps."""
    ready = directory / "ready.json"
    command: list[str | Path] = [
        sys.executable, "-m", "braidmq.cli.main", "serve", "--data-dir", directory / "data", "--durability", durability,
        "--ready-file", ready, "--retention-bytes", "0",
        "--admin-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0",
    ]  # fmt: skip
    for protocol in protocols:
        command += ["--listen", f"{protocol}://127.0.0.1:0"]
    name = f"BraidMQ {durability}" + (" plain Python" if pure else "")
    with running(name, command, directory, lambda: ports_in_file(ready), braid_environment(pure)) as server:
        yield server


@contextmanager
def ceiling(directory: Path, *, echo: bool = False) -> Iterator[Server]:
    """The bare C server: it says where it listens in the first line it prints."""
    command: list[str | Path] = [BUILD / "ceiling", "echo"] if echo else [BUILD / "ceiling", "store", directory]
    name = "bare C echo" if echo else "bare C store"
    with running(name, command, directory, lambda: ports_in_file(directory / "server.log")) as server:
        yield server
