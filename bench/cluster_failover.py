"""Leaders that die: from kill -9 until a record is acknowledged again, with nodes as `braid cluster start` starts them and every
setting at its default.

A topic has several partitions, all led by the node that is killed, so a loss is over when the last of them has a new leader. Kills
go in turns over what makes a difference: a node that coordinates has to be replaced as coordinator first, and the metadata quorum
loses a member with each, sometimes its own leader. Asked for is less than 3 s until the first record, every time.

    seconds    from the kill until the first record is acknowledged, which is sent right after it
    all        until one of each partition is
    noticed    until a node that is left misses it
    moved      until a coordinator has said who leads instead

The last two are from the logs of the nodes that are left.

The same with leaders that hang (SIGSTOP) in place of those that die: their connections stay, and nothing but their silence says
that they are gone.
"""

from __future__ import annotations

import signal
import statistics
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from cluster_nodes import addresses, kill, logged_s, send_signal, three_nodes, until, wait_ready

from braidmq.cli.cluster_nodes import Node
from braidmq.client import sync

TOPIC: Final = "failover"
PARTITIONS: Final = 6
RECORD: Final = b"x" * 200


def measure(directory: Path, port: int, times: int, *, hang: bool = False) -> dict[str, Any]:
    losses = []
    with three_nodes(directory, port) as nodes, sync.connect(addresses(nodes)) as client:
        client.create_topic(TOPIC, PARTITIONS)
        for number in range(times):
            coordinator = client.cluster.status().leader
            name = coordinator if number % 2 else next(node.name for node in nodes if node.name != coordinator)
            node = next(node for node in nodes if node.name == name)
            _lead_all(client, name)
            losses.append({"coordinates": name == coordinator, **_lose(nodes, node, hang)})
            if hang:
                send_signal(node, signal.SIGCONT)
            else:
                node.start()
                wait_ready([node])
            until(lambda: _whole(client), 0.2)
    found: dict[str, Any] = {"losses": losses}
    for what in ("seconds", "all"):
        figures = [row[what] for row in losses]
        found[f"{what}_median"], found[f"{what}_worst"] = round(statistics.median(figures), 3), max(figures)
    return found


def _whole(client: sync.Client) -> bool:
    """Whether everything, the journals included, is in sync everywhere."""
    document = client.upkeep.document("cluster")
    return all(len(row["isr"]) == 3 for row in [*document["partitions"], document["journals"]])


def _lead_all(client: sync.Client, name: str) -> None:
    for part in client.cluster.metadata(TOPIC)[0].partitions:
        if part.leader != name:
            client.cluster.lead(TOPIC, part.partition, name)


def _lose(nodes: list[Node], node: Node, hang: bool) -> dict[str, Any]:
    with sync.connect(addresses(nodes)) as client, client.producer(linger_ms=0) as producer:
        for partition in range(PARTITIONS):
            producer.send(TOPIC, RECORD, partition=partition).result(60)
        began_s, began = time.perf_counter(), datetime.now().astimezone()
        if hang:
            send_signal(node, signal.SIGSTOP)
        else:
            kill(node)
        deliveries = [producer.send(TOPIC, RECORD, partition=partition) for partition in range(PARTITIONS)]
        acked = []
        for delivery in deliveries:
            delivery.result(120)
            acked.append(round(time.perf_counter() - began_s, 3))
    rest = [other for other in nodes if other is not node]
    noticed_s = logged_s(rest, rf"WARNING braidmq.cluster: node {node.name} does not answer", began)
    moved_s = logged_s(rest, rf"WARNING braidmq.cluster: node {node.name} is away", began)
    return {"seconds": acked[0], "all": acked[-1], "noticed": noticed_s, "moved": moved_s}
