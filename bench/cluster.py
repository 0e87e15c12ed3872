"""A cluster of three nodes on this machine, in ratios: `python bench/cluster.py --help`.

    acks        produce at level `quorum` with three nodes, beside level `fsync` on one: asked for is 0.3 x
    failover    kill -9 of the leader until the first record is acknowledged again: asked for is under 3 s
    partitions  10,000 partitions: how long a change of metadata takes (under 1 s), and the restart of a node (under 30 s)

Nodes are programs, started as `braid cluster start` does it, each with an etcd of its own. All of it shares the cores of one
machine, so rates are good for comparing and for nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from braidmq.cli.cluster_nodes import PORTS, Node
from braidmq.cli.dev_processes import Child
from braidmq.client import sync

RECORD = b"x" * 200
SECONDS = 5.0


def start(directory: Path, first_port: int, count: int) -> list[Node]:
    (directory / "join-token").write_text("a token of sixteen and more")
    firsts = [first_port + 100 * number for number in range(count)]
    peers = [f"127.0.0.1:{first + PORTS['cluster']}" for first in firsts]
    nodes = [Node(directory, f"node{number}", first, peers) for number, first in enumerate(firsts, 1)]
    for node in nodes:
        node.start()
    wait_ready(nodes)
    return nodes


def wait_ready(nodes: list[Node]) -> None:
    while not all(node.ready.exists() for node in nodes):
        for node in nodes:
            node.check_runs()
        time.sleep(0.05)


def rate(servers: str, topic: str, seconds: float) -> float:
    """Records a second that one producer has acknowledged."""
    with sync.connect(servers) as client:
        client.create_topic(topic, 6)
        with client.producer() as producer:
            for _ in range(1000):
                producer.send(topic, RECORD)
            producer.flush()
            began, sent = time.perf_counter(), 0
            while time.perf_counter() - began < seconds:
                for _ in range(500):
                    producer.send(topic, RECORD)
                sent += 500
            producer.flush()
            return sent / (time.perf_counter() - began)


def measure_acks(directory: Path, port: int) -> dict[str, float]:
    ready = directory / "alone.json"
    words = [
        "serve", "--data-dir", str(directory / "alone"), "--listen", f"flymq://127.0.0.1:{port}", "--durability", "fsync",
        "--no-admin-enabled", "--no-metrics-enabled", "--no-health-enabled", "--ready-file", str(ready),
    ]  # fmt: skip
    alone = Child(words, directory / "alone.log")
    try:
        while not ready.exists():
            assert alone.status is None, alone.last_words
            time.sleep(0.05)
        single = rate(f"127.0.0.1:{port}", "acks", SECONDS)
    finally:
        alone.stop(30)
    nodes = start(directory, port + 100, 3)
    try:
        three = rate(nodes[0].at("flymq"), "acks", SECONDS)
    finally:
        for node in nodes:
            node.stop()
    return {"single_fsync_per_s": round(single), "three_quorum_per_s": round(three), "ratio": round(three / single, 3)}


def measure_failover(directory: Path, port: int, times: int) -> dict[str, object]:
    nodes = start(directory, port, 3)
    gaps = []
    try:
        with sync.connect(",".join(node.at("flymq") for node in nodes)) as client:
            client.create_topic("failover", 1)
            for _ in range(times):
                with client.producer(linger_ms=0) as producer:
                    producer.send("failover", RECORD).result(60)
                    document = client.upkeep.document("cluster")
                    leader = next(row["leader"] for row in document["partitions"] if row["topic"] == "failover")
                    node = next(node for node in nodes if node.name == leader)
                    assert node.child is not None
                    began = time.perf_counter()
                    os.kill(node.child.pid, signal.SIGKILL)
                    producer.send("failover", RECORD).result(60)
                    gaps.append(round(time.perf_counter() - began, 3))
                node.child.stop(10)
                node.start()
                wait_ready([node])
                while any(len(row["isr"]) < 3 for row in client.upkeep.document("cluster")["partitions"]):
                    time.sleep(0.2)
    finally:
        for node in nodes:
            node.stop()
    return {"seconds": gaps, "worst": max(gaps)}


def measure_partitions(directory: Path, port: int, partitions: int) -> dict[str, object]:
    nodes = start(directory, port, 3)
    try:
        with sync.connect(",".join(node.at("flymq") for node in nodes), timeout_s=300) as client:
            began = time.perf_counter()
            each = 1000
            for number in range(partitions // each):
                client.create_topic(f"many{number}", each)
            creating = time.perf_counter() - began
            began = time.perf_counter()
            client.create_topic("one", 1)
            creation = time.perf_counter() - began
            leader = client.cluster.metadata("one")[0].partitions[0]
            other = next(name for name in leader.in_sync if name != leader.leader)
            began = time.perf_counter()
            client.cluster.lead("one", 0, other)
            change = time.perf_counter() - began
            node = nodes[-1]
            began = time.perf_counter()
            node.stop()
            node.start()
            wait_ready([node])
            restart = time.perf_counter() - began
    finally:
        for node in nodes:
            node.stop()
    return {
        "partitions": partitions, "create_all_s": round(creating, 2), "create_one_s": round(creation, 3),
        "move_leader_s": round(change, 3), "restart_s": round(restart, 2),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/cluster.py", description="Measure a cluster of three nodes on this machine.")
    parser.add_argument("--only", action="append", choices=("acks", "failover", "partitions"), help="run this one; repeatable")
    parser.add_argument("--partitions", type=int, default=10_000, help="how many partitions [10000]")
    parser.add_argument("--kills", type=int, default=3, help="how many leaders are killed [3]")
    parser.add_argument("--first-port", type=int, default=21090, help="first port; 400 from there on are used [21090]")
    args = parser.parse_args()
    chosen = args.only or ["acks", "failover", "partitions"]
    for number, name in enumerate(chosen):
        directory = Path(tempfile.mkdtemp(prefix="braid-bench-cluster-"))
        port = args.first_port + 1000 * number
        try:
            if name == "acks":
                found: dict[str, object] = dict(measure_acks(directory, port))
            elif name == "failover":
                found = measure_failover(directory, port, args.kills)
            else:
                found = measure_partitions(directory, port, args.partitions)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        print(json.dumps({name: found}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
