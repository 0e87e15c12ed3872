"""Some nodes on one machine, to try a cluster: each a program of its own, as anybody would start it.

They run an etcd themselves. Nothing here takes part in the cluster: it starts the nodes, says what can be tried, starts one again
some time after it was killed, and ends them all.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from pathlib import Path
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.cli.dev_processes import Child

PORTS: Final = {
    "blipmq": 0, "fq": 1, "flymq": 2, "cluster": 3, "metrics": 4, "health": 5, "admin": 6, "etcd": 7, "etcd_peers": 8,
}  # fmt: skip
"""What a node listens on, counted from its first port."""
_STEP: Final = 100
_START_S_MAX: Final = 90.0
_STOP_S_MAX: Final = 30.0
_POLL_S: Final = 0.1


class Node:
    """One node: where everything of it is, and its program."""

    def __init__(self, directory: Path, name: str, first_port: int, peers: list[str]) -> None:
        self.name = name
        self.directory = directory / name
        self.ports = {what: first_port + number for what, number in PORTS.items()}
        self.ready = self.directory / "ready.json"
        self.lost_s: float | None = None
        """When its end was noticed."""
        self.child: Child | None = None
        self._peers = peers
        self._token = directory / "join-token"

    def at(self, what: str) -> str:
        return f"127.0.0.1:{self.ports[what]}"

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.ready.unlink(missing_ok=True)
        words = [
            "serve", "--data-dir", str(self.directory / "data"), "--node-id", self.name, "--durability", "quorum",
            "--listen", f"flymq://{self.at('flymq')}", "--listen", f"blipmq://{self.at('blipmq')}",
            "--listen", f"fq://{self.at('fq')}", "--admin-listen", self.at("admin"), "--metrics-listen", self.at("metrics"),
            "--health-listen", self.at("health"), "--cluster-listen", self.at("cluster"), "--join-token-file", str(self._token),
            "--quorum", "managed", "--etcd-client-listen", self.at("etcd"), "--etcd-peer-listen", self.at("etcd_peers"),
            "--ready-file", str(self.ready),
        ]  # fmt: skip
        for peer in self._peers:
            words += ["--peers", peer]
        self.lost_s = None
        self.child = Child(words, self.directory / "broker.log")

    def check_runs(self) -> None:
        assert self.child is not None
        if self.child.status is not None:
            raise BraidError("CHILD_ENDED", what=f"node {self.name}", status=self.child.status, words=self.child.last_words)

    def stop(self) -> int:
        return 0 if self.child is None or self.child.status is not None else self.child.stop(_STOP_S_MAX)


def run_nodes(data_dir: str, count: int, first_port: int, restart_after_s: float) -> int:
    directory = Path(data_dir).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    token = directory / "join-token"
    if not token.exists():
        with os.fdopen(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(16))
    firsts = [first_port + number * _STEP for number in range(count)]
    peers = [f"127.0.0.1:{first + PORTS['cluster']}" for first in firsts]
    nodes = [Node(directory, f"node{number}", first, peers) for number, first in enumerate(firsts, 1)]
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for node in nodes:
            node.start()
        if _all_ready(nodes, ended):
            _say(directory, nodes, restart_after_s)
            _mind(nodes, ended, restart_after_s)
    finally:
        # All at once: each lets others lead first, and the last ones find nobody who could.
        stopping = [threading.Thread(target=node.stop) for node in reversed(nodes)]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _all_ready(nodes: list[Node], ended: threading.Event) -> bool:
    """Wait until each serves; False when Ctrl-C comes first."""
    deadline_s = time.monotonic() + _START_S_MAX
    while not all(node.ready.exists() for node in nodes):
        for node in nodes:
            node.check_runs()
        if time.monotonic() > deadline_s:
            raise BraidError("TIMED_OUT", what="starting the nodes", seconds=_START_S_MAX)
        if ended.wait(_POLL_S):
            return False
    return True


def _say(directory: Path, nodes: list[Node], restart_after_s: float) -> None:
    servers = ",".join(node.at("flymq") for node in nodes)
    print(f"{len(nodes)} nodes are one broker; their data and logs are in {directory}")
    for node in nodes:
        assert node.child is not None
        ports = f"FlyMQ {node.at('flymq')}, BlipMQ {node.at('blipmq')}, fq {node.at('fq')}"
        print(f"  {node.name}  pid {node.child.pid:<7}  {ports}, console http://{node.at('admin')}/")
    last = nodes[-1]
    assert last.child is not None
    again = f"; it comes back {restart_after_s:g} s later" if restart_after_s else ""
    print(f"""
Try, in another terminal:
  export BRAID_SERVERS={servers}
  braid topic create orders --partitions 6
  braid cluster status
  braid consume orders --follow &
  seq 1 100000 | braid produce orders
  kill -9 {last.child.pid}   # others lead what {last.name} led: a pause, no error, nothing lost{again}
  braid cluster metadata --topic orders
  braid cluster rebalance

Ctrl-C ends all of it.""", flush=True)


def _mind(nodes: list[Node], ended: threading.Event, restart_after_s: float) -> None:
    while not ended.wait(_POLL_S):
        for node in nodes:
            assert node.child is not None
            if node.child.status is None:
                continue
            if node.lost_s is None:
                node.lost_s = time.monotonic()
                print(f"{node.name} ended with status {node.child.status}; {node.child.log} is its log", flush=True)
            elif restart_after_s and time.monotonic() - node.lost_s >= restart_after_s:
                node.start()
                print(f"{node.name} is started again, pid {node.child.pid}", flush=True)
