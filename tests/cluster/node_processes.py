"""Real nodes: `braid serve` processes, each with a directory and an etcd of its own: on loopback, or each in a network namespace
(`cut_network.py`)."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from serve_process import ServeProcess, start_serve

PATIENCE_S = 60.0
TOKEN = "a token that nobody guesses"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at now."""
    held = []
    for _ in range(count):
        probe = socket.socket()
        probe.bind(("127.0.0.1", 0))
        held.append(probe)
    ports = [probe.getsockname()[1] for probe in held]
    for probe in held:
        probe.close()
    return ports


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node runs."""

    host: str = "127.0.0.1"
    through: tuple[str, ...] = ()
    """The command that starts another one there."""


HERE = Place()


class NodeProcess:
    def __init__(
        self,
        name: str,
        directory: Path,
        ports: list[int],
        peers: list[str],
        settings: dict[str, str],
        protocols: tuple[str, ...] = (),
        place: Place = HERE,
    ) -> None:
        self.name = name
        self.ports = {protocol: f"{place.host}:{port}" for protocol, port in zip(protocols, ports[4:], strict=True)}
        """Where it serves protocols other than FlyMQ."""
        self.directory = directory
        self._place = place
        self.address = f"{place.host}:{ports[0]}"
        self.cluster_address = f"{place.host}:{ports[1]}"
        self.etcd_client = f"{place.host}:{ports[2]}"
        self._ready = directory / "ready.json"
        self.data_dir = directory / "data"
        served = {"flymq": self.address, **self.ports}
        options = {
            "data-dir": str(self.data_dir), "node-id": name, "ready-file": str(self._ready),
            "listen": ",".join(f"{protocol}://{address}" for protocol, address in served.items()),
            "cluster-listen": self.cluster_address, "etcd-client-listen": f"{place.host}:{ports[2]}",
            "etcd-peer-listen": f"{place.host}:{ports[3]}", "durability": "quorum", "admin-enabled": "false",
            "metrics-enabled": "false", "health-enabled": "false", "gossip": "false", "session-timeout-s": "3s",
            "replica-lag-s": "3s", **settings,
        }  # fmt: skip
        if peers:
            options["peers"] = ",".join(peers)
        self._settings = {f"BRAID_{key.replace('-', '_').upper()}": value for key, value in options.items()}
        self.process: ServeProcess | None = None

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._ready.unlink(missing_ok=True)
        environ = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environ |= self._settings | {"BRAID_JOIN_TOKEN": TOKEN}
        with (self.directory / "log").open("ab") as log:
            self.process = start_serve([], env=environ, output=log, through=self._place.through)

    def wait_ready(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not self._ready.exists():
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                raise AssertionError(f"node {self.name} did not start:\n{self.log()[-4000:]}")
            time.sleep(0.02)
        json.loads(self._ready.read_text())

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE_S)


class Processes:
    """`with Processes(tmp_path) as nodes:` has three nodes that serve clients."""

    def __init__(
        self,
        directory: Path,
        names: str = "abc",
        protocols: tuple[str, ...] = (),
        places: Mapping[str, Place] | None = None,
        **settings: str,
    ) -> None:
        """`protocols` are served besides FlyMQ; a node has its place here unless `places` has another."""
        each = 4 + len(protocols)
        ports = free_ports(each * len(names))
        hosts = dict.fromkeys(names, HERE) | dict(places or {})
        peers = [f"{hosts[name].host}:{ports[each * number + 1]}" for number, name in enumerate(names)]
        taken = [ports[each * number : each * (number + 1)] for number in range(len(names))]
        self.nodes = {
            name: NodeProcess(name, directory / name, taken[number], peers, settings, protocols, hosts[name])
            for number, name in enumerate(names)
        }

    def __enter__(self) -> Processes:
        try:
            for node in self.nodes.values():
                node.start()
            for node in self.nodes.values():
                node.wait_ready()
        except BaseException:
            self._kill_all()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._kill_all()
        if kind is not None:
            for node in self.nodes.values():
                print(f"--- {node.name}\n{node.log()[-3000:]}")

    def _kill_all(self) -> None:
        for node in self.nodes.values():
            if node.process is not None and node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
                node.kill()

    @property
    def addresses(self) -> list[str]:
        return [node.address for node in self.nodes.values()]


def until(reached: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + patience_s
    while not reached():
        assert time.monotonic() < deadline_s, "it took too long"
        time.sleep(0.05)
