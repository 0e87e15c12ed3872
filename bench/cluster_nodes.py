"""Nodes of a cluster as processes, for the measurements of `cluster.py`: started as `braid cluster start` does it, each with an
etcd of its own, ended by process id."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

from braidmq.cli.cluster_nodes import PORTS, Node
from braidmq.cli.dev_processes import Child

PATIENCE_S: Final = 300.0


@contextmanager
def three_nodes(directory: Path, first_port: int) -> Iterator[list[Node]]:
    """Three nodes that serve."""
    (directory / "join-token").write_text("a token of sixteen and more")
    firsts = [first_port + 100 * number for number in range(3)]
    peers = [f"127.0.0.1:{first + PORTS['cluster']}" for first in firsts]
    nodes = [Node(directory, f"node{number}", first, peers) for number, first in enumerate(firsts, 1)]
    try:
        for node in nodes:
            node.start()
        wait_ready(nodes)
        yield nodes
    finally:
        for node in nodes:
            if node.child is not None and node.child.status is None:
                send_signal(node, signal.SIGCONT)
            node.stop()


@contextmanager
def single_broker(directory: Path, port: int) -> Iterator[Child]:
    """One broker of level `fsync`, for comparison."""
    ready = directory / "alone.json"
    words = [
        "serve", "--data-dir", str(directory / "alone"), "--listen", f"flymq://127.0.0.1:{port}", "--durability", "fsync",
        "--no-admin-enabled", "--no-metrics-enabled", "--no-health-enabled", "--retention-bytes", "0", "--ready-file", str(ready),
    ]  # fmt: skip
    alone = Child(words, directory / "alone.log")
    try:
        until(lambda: ready.exists() or alone.status is not None)
        assert alone.status is None, alone.last_words
        yield alone
    finally:
        alone.stop(30)


def wait_ready(nodes: list[Node]) -> None:
    def all_ready() -> bool:
        for node in nodes:
            node.check_runs()
        return all(node.ready.exists() for node in nodes)

    until(all_ready)


def until(reached: Callable[[], bool], pause_s: float = 0.02) -> float:
    """Wait; returns how long it took, in seconds."""
    began_s = time.perf_counter()
    while not reached():
        if time.perf_counter() - began_s > PATIENCE_S:
            raise TimeoutError(f"it was not reached within {PATIENCE_S:.0f} s")
        time.sleep(pause_s)
    return time.perf_counter() - began_s


def kill(node: Node) -> None:
    """kill -9, and wait until it is gone."""
    send_signal(node, signal.SIGKILL)
    assert node.child is not None
    node.child.stop(10)


def send_signal(node: Node, number: signal.Signals) -> None:
    assert node.child is not None
    os.kill(node.child.pid, number)


def addresses(nodes: list[Node]) -> str:
    return ",".join(node.at("flymq") for node in nodes)


def logged_s(nodes: list[Node], line: str, began: datetime) -> float | None:
    """When the first of the nodes logged a line, in seconds after `began`; None when none did."""
    pattern = re.compile(rf"^(\S+ \S+) {line}", re.MULTILINE)
    later = []
    for node in nodes:
        assert node.child is not None
        for found in pattern.finditer(node.child.log.read_text(errors="replace")):
            seconds = (datetime.fromisoformat(found.group(1)).astimezone() - began).total_seconds()
            if seconds >= 0:
                later.append(seconds)
    return round(min(later), 3) if later else None
