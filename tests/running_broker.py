"""A broker as users run it: `braid serve` in a process of its own, on ports of its own, ready when its ready file says so."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from held_port import HeldPort
from serve_process import ServeProcess, start_serve

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
_POLL_SECONDS = 0.01
_ANY_PORT = "127.0.0.1:0"

WEB = ("admin", "metrics", "health")
NO_WEB = tuple(f"--no-{name}-enabled" for name in WEB)
"""Flags of a broker without HTTP ports, which are fixed ones by default; tests that want one ask for it, at any free port."""


@dataclass
class RunningBroker:
    """`braid serve` in a process of its own."""

    data_dir: Path
    flags: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    """What the ready file says, by protocol."""
    _process: ServeProcess | None = None
    _ports: list[HeldPort] = field(default_factory=list)
    """Its own for as long as this object lives, also between two runs of the broker."""

    @property
    def address(self) -> str:
        """Where it speaks FlyMQ, as host:port."""
        return self.addresses["flymq"]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """All that it printed so far, over restarts."""
        return self._log_path.read_text(errors="backslashreplace") if self._log_path.exists() else ""

    @property
    def _log_path(self) -> Path:
        return self.data_dir.with_name(self.data_dir.name + ".log")

    def start(self) -> None:
        """Start it and wait until it accepts connections. Where a flag asks for any port, it is the same one every time."""
        ready_file = self.data_dir.with_name(self.data_dir.name + ".ready")
        ready_file.unlink(missing_ok=True)
        listen = () if any(flag.startswith("--listen") for flag in self.flags) else ("--listen", f"flymq://{_ANY_PORT}")
        if "flymq" in self.addresses and listen:
            listen = ("--listen", f"flymq://{self.addresses['flymq']}")
        listen = tuple(self._with_ports(flag) for flag in listen)
        self.flags = tuple(self._with_ports(flag) for flag in self.flags)
        command = ["--data-dir", str(self.data_dir), "--ready-file", str(ready_file)]
        for name in WEB:
            if not any(flag.startswith(f"--{name}-") for flag in self.flags):
                command.append(f"--no-{name}-enabled")
        # Settings of the person who runs the tests are none of the tests' business.
        env = {name: value for name, value in os.environ.items() if not name.startswith(("BRAID_", "FLYMQ_"))}
        with self._log_path.open("ab") as log:
            self._process = start_serve([*command, *listen, *self.flags], env=env | self.env, output=log)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not ready_file.exists():
            if self._process.poll() is not None:
                pytest.fail(f"the broker ended with status {self._process.returncode} instead of starting:\n{self.log}")
            if time.monotonic() > deadline:
                self.kill()
                pytest.fail(f"the broker was not ready after {START_SECONDS_MAX:g} s:\n{self.log}")
            time.sleep(_POLL_SECONDS)
        self.addresses = json.loads(ready_file.read_text())

    def _with_ports(self, flag: str) -> str:
        while _ANY_PORT in flag:
            self._ports.append(HeldPort())
            flag = flag.replace(_ANY_PORT, self._ports[-1].address, 1)
        return flag

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, seconds: float = STOP_SECONDS_MAX) -> int:
        """The exit status, once it ended by itself or by a signal."""
        assert self._process is not None
        return self._process.wait(seconds)

    def kill(self) -> None:
        """End it as a power button would end the process: SIGKILL, no goodbye."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> None:
        """End it as an operator does, and hold it to ending well."""
        self.signal(signal.SIGTERM)
        status = self.wait()
        assert status == 0, f"the broker ended with status {status}:\n{self.log}"

    def restart(self, *flags: str) -> None:
        """Start it again on the same data and the same port; a running one is stopped first. `flags` replace the old ones."""
        if self.running:
            self.stop()
        if flags:
            self.flags = flags
        self.start()


StartBroker = Callable[..., RunningBroker]
"""`start(*flags, name="data", env={...})`: a broker that accepts connections, with its data below the test's directory."""
