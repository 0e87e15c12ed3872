"""`braid serve` in a process of its own, started as cheaply as can be: the one place where tests start brokers from.

On Linux it is a fork of a process that has imported everything already (`serve_forks.py`), one for each process that runs tests. It
is a real process: it has sockets and a process id of its own, and is killed with SIGKILL like any other. Elsewhere, and where
something is asked for that a fork cannot have, it is the command itself. Tests of the start itself, of what it imports and of the
installed command run that command, and not this.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from serve_forks import MESSAGE_BYTES_MAX

_FORKS = Path(__file__).with_name("serve_forks.py")
_END_SECONDS_MAX = 30.0
_HEARD_SECONDS = 0.1
_READ_EARLY = ("BRAID_PURE", "PYTHON", "LD_", "MALLOC_", "TZ")
"""How variables begin that are read before a command runs: brokers that differ in one of them are forks of different processes."""


class ServeProcess(Protocol):
    """What tests use of `subprocess.Popen`."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


def start_serve(
    arguments: Sequence[str], *, env: Mapping[str, str], output: IO[bytes], through: Sequence[str] = ()
) -> ServeProcess:
    """Start `braid serve`, with `output` for all that it prints. `through` is a command that starts another one, elsewhere."""
    words = ["serve", *arguments]
    if through or not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        command = [*through, sys.executable, "-m", "braidmq", *words]
        return subprocess.Popen(command, env=dict(env), stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    return _forks_with(env).start(words, env, output)


class _Forks:
    """The process that forks, as the tests see it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(_FORKS), str(theirs.fileno())],
                env=dict(env), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
            )  # fmt: skip
        self._running: dict[int, _Fork] = {}
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(self._control, selectors.EVENT_READ)
        atexit.register(self.close)

    def start(self, words: list[str], env: Mapping[str, str], output: IO[bytes]) -> _Fork:
        message = json.dumps({"arguments": words, "env": dict(env), "cwd": str(Path.cwd())}).encode()
        assert len(message) <= MESSAGE_BYTES_MAX
        with self._lock:
            socket.send_fds(self._control, [message], [output.fileno(), output.fileno()])
            while "started" not in (told := self._receive()):
                self._note_end(told)
            fork = self._running[told["started"]] = _Fork(self, told["started"])
        return fork

    def note_ends(self, timeout_s: float | None = 0.0) -> None:
        """Take what is told about forks that ended; wait so long where nothing is."""
        with self._lock:
            while self._waiting.select(timeout_s):
                self._note_end(self._receive())
                timeout_s = 0.0

    def _note_end(self, told: dict[str, int]) -> None:
        self._running.pop(told["ended"]).returncode = told["status"]

    def _receive(self) -> dict[str, int]:
        message = self._control.recv(MESSAGE_BYTES_MAX)
        assert message, f"the process that forks brokers ended with status {self._process.wait(_END_SECONDS_MAX)}"
        told: dict[str, int] = json.loads(message)
        return told

    def close(self) -> None:
        self._control.close()
        self._waiting.close()
        self._process.wait(_END_SECONDS_MAX)


class _Fork:
    def __init__(self, forks: _Forks, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._forks = forks
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            # It has ended already, and with which status is about to be told.
            self._descriptor: int | None = None
        else:
            self._descriptor = descriptor
            weakref.finalize(self, os.close, descriptor)

    def poll(self) -> int | None:
        if self.returncode is None:
            self._forks.note_ends()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self._descriptor is not None and self.returncode is None:
            with selectors.DefaultSelector() as waiting:
                waiting.register(self._descriptor, selectors.EVENT_READ)
                if not waiting.select(timeout):
                    raise subprocess.TimeoutExpired(f"braid serve, process {self.pid}", timeout or 0.0)
        while self.returncode is None:
            # It is gone; another thread may be the one that hears of it.
            self._forks.note_ends(_HEARD_SECONDS)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send a signal to this process, and never to another one that got its number later."""
        if self._descriptor is None or self.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


_forks: dict[tuple[tuple[str, str], ...], _Forks] = {}
_forks_lock = threading.Lock()


def _forks_with(env: Mapping[str, str]) -> _Forks:
    early = tuple(sorted((name, value) for name, value in env.items() if name.startswith(_READ_EARLY)))
    with _forks_lock:
        found = _forks.get(early)
        if found is None:
            found = _forks[early] = _Forks(env)
        return found
