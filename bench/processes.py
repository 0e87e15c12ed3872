"""Servers and the load generator as processes: started on their cores, watched, and stopped by process id.

The server under test has one core to itself and the generator another, so that neither's work is mistaken for the other's.
Nothing started here outlives the harness: every server is a context manager, and one that does not stop when asked to is
killed, by its own process id and no other way.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 15.0
GENERATOR_SPARE_S: Final = 150.0
"""What a run of the generator may take beyond its stated time: filling a log happens within it."""

BENCH: Final = Path(__file__).resolve().parent
BUILD: Final = BENCH / "build"


class RunFailed(Exception):
    """A server or the generator did not do its part; the text says what it said last."""


def cores() -> tuple[int, int]:
    """The server's core and the generator's: the first and the last this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


@contextmanager
def pinned_to(core: int) -> Iterator[None]:
    """Processes started inside run on `core`: they inherit it from this one."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def allow_many_descriptors() -> None:
    """Raise the soft limit on open files to the hard one, for this process and what it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def scratch_directory(root: Path) -> Iterator[Path]:
    """A directory for one run's data, gone afterwards, with nothing of it left to write back during the next run."""
    root.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=root))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.sync()


def touch_memory(root: Path, size_bytes: int) -> None:
    """Write and delete a file of that size (at most a quarter of the free memory).

    Writing to a new file was seen to be several times slower after a pause than right after another large write, probably
    because a virtual machine's host has to provide the memory again. Whoever ran first would look slow.
    """
    available = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    left = min(size_bytes, int(available.split()[1]) * 1024 // 4)
    chunk = bytes(1 << 20)
    with tempfile.TemporaryFile(dir=root, buffering=0) as file:
        while left > 0:
            left -= file.write(chunk)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server under test."""

    name: str
    process: subprocess.Popen[bytes]
    ports: Mapping[str, int]
    """By protocol; a peer has one, named ""."""
    log: Path

    @property
    def port(self) -> int:
        """The first of its ports: a peer's only one, or our broker's FlyMQ."""
        return next(iter(self.ports.values()))

    @property
    def pid(self) -> int:
        return self.process.pid

    def rss_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def last_words(self) -> str:
        """The end of what it printed, for error messages."""
        return self.log.read_text(errors="replace")[-800:].strip() or "(it printed nothing)"


@contextmanager
def running(
    name: str,
    command: Sequence[str | Path],
    directory: Path,
    find_ports: Callable[[], Mapping[str, int] | None],
    env: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Start `command` on the server's core, wait until `find_ports` knows where it listens, and stop it at the end."""
    log = directory / "server.log"
    with log.open("wb") as output, pinned_to(cores()[0]):
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=None if env is None else dict(env),
        )
    try:
        ports = _wait_for_ports(name, process, log, find_ports)
        yield Server(name, process, ports, log)
    finally:
        _stop(process)


def _wait_for_ports(
    name: str, process: subprocess.Popen[bytes], log: Path, find_ports: Callable[[], Mapping[str, int] | None]
) -> Mapping[str, int]:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        ports = find_ports()
        if ports:
            return ports
        if process.poll() is not None:
            raise RunFailed(f"{name} ended with status {process.returncode}: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.02)
    raise RunFailed(f"{name} did not listen within {START_TIMEOUT_S:.0f} s: {log.read_text(errors='replace')[-2000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            print(f"  process {process.pid} did not stop within {STOP_TIMEOUT_S:.0f} s and was killed", file=sys.stderr)
            process.kill()
            process.wait()


def free_port() -> int:
    """A port nobody listens on now, for servers that cannot choose one themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answering(port: int) -> dict[str, int] | None:
    """The port of a server that was told where to listen, as soon as somebody does."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return {"": port} if probe.connect_ex(("127.0.0.1", port)) == 0 else None


def ports_in_file(path: Path) -> dict[str, int] | None:
    """The ports that a ready file names, FlyMQ's first, or None while it is not there or not complete."""
    try:
        addresses = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return {name: int(addresses[name].rpartition(":")[2]) for name in sorted(addresses, key=lambda name: name != "flymq")}


def on_generator_core(command: Sequence[str | Path], timeout_s: float, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a program that prints one line of JSON, on the generator's core, and return what it printed."""
    with pinned_to(cores()[1]):
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=None if env is None else dict(env),
        )
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"{Path(command[0]).name} was not done after {timeout_s:.0f} s") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode != 0:
        raise RunFailed(errors.strip()[-2000:] or f"{Path(command[0]).name} ended with status {process.returncode}")
    answer: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return answer


def load(server: Server, mode: str, **options: float | str | bool) -> dict[str, Any]:
    """Run the load generator against `server`, at the port of the protocol that `mode` names; options are its flags with
    underscores."""
    port = server.ports.get(mode.rpartition("-")[2], server.port)
    words: list[str | Path] = [BUILD / "load", mode, "--port", str(port), "--watch-pid", str(server.pid)]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not False:
            words += [flag, str(value)]
    timeout_s = float(options.get("warmup", 1)) + float(options.get("duration", 3)) + GENERATOR_SPARE_S
    try:
        return on_generator_core(words, timeout_s)
    except RunFailed as failure:
        raise RunFailed(f"{server.name}, {mode}: {failure}\n  the server's last words: {server.last_words()}") from None
