"""Ten thousand partitions on three nodes: changes of metadata, a kill, restarts.

Every partition has records, so that each has files on every node and a restart has something to open. Asked for: a change of
metadata under 1 s, the restart of a node under 30 s. How long a loss takes to be noticed is a setting and not a matter of scale; it
is told apart by the log of a node that is left, which says when it missed the other one.
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from cluster_nodes import addresses, kill, logged_s, three_nodes, until, wait_ready

from braidmq.cli.cluster_nodes import Node
from braidmq.client import sync

EACH: Final = 1000
"""Partitions of one topic."""
_MISSED: Final = "WARNING braidmq.cluster: node {} (?:does not answer|is away)"


def measure(directory: Path, port: int, partitions: int) -> dict[str, Any]:
    with three_nodes(directory, port) as nodes, sync.connect(addresses(nodes), timeout_s=300) as client:
        found: dict[str, Any] = {"partitions": partitions}
        topics = [f"many{number}" for number in range(partitions // EACH)]
        began_s = time.perf_counter()
        for topic in topics:
            client.create_topic(topic, EACH)
        found["create_all_s"] = _since(began_s)
        began_s = time.perf_counter()
        _fill(client, topics)
        found["fill_s"] = _since(began_s)
        began_s = time.perf_counter()
        client.create_topic("one", 1)
        found["create_one_s"] = _since(began_s)
        place = client.cluster.metadata("one")[0].partitions[0]
        other = next(name for name in place.in_sync if name != place.leader)
        began_s = time.perf_counter()
        client.cluster.lead("one", 0, other)
        found["move_one_leader_s"] = _since(began_s)
        found["kill"] = _kill(client, nodes, topics)
        found["restart"] = _restart(client, nodes, topics)
        return found


def _since(began_s: float) -> float:
    return round(time.perf_counter() - began_s, 3)


def _fill(client: sync.Client, topics: list[str]) -> None:
    with client.producer() as producer:
        for topic in topics:
            for partition in range(EACH):
                producer.send(topic, b"a record that is there", partition=partition)


def _led_by(client: sync.Client, topics: list[str], name: str) -> list[tuple[str, int]]:
    return [
        (topic.topic, part.partition)
        for topic in client.cluster.metadata()
        if topic.topic in topics
        for part in topic.partitions
        if part.leader in (name, "")
    ]


def _in_sync(client: sync.Client) -> bool:
    return all(len(part.in_sync) == 3 for topic in client.cluster.metadata() for part in topic.partitions)


def _kill(client: sync.Client, nodes: list[Node], topics: list[str]) -> dict[str, Any]:
    """The coordinator dies: the journals get another leader first, then everything that it led."""
    coordinator = client.cluster.status().leader
    node = next(node for node in nodes if node.name == coordinator)
    rest = [other for other in nodes if other is not node]
    led = _led_by(client, topics, node.name)
    with sync.connect(addresses(rest), timeout_s=300) as survivors:
        survivors.cluster.status()
        began_s, began = time.perf_counter(), datetime.now().astimezone()
        kill(node)
        until(lambda: not _led_by(survivors, topics, node.name))
        moved_s = _since(began_s)
        with survivors.producer(linger_ms=0) as producer:
            for delivery in [producer.send(*place[:1], b"after", partition=place[1]) for place in led]:
                delivery.result(120)
        acked_s = _since(began_s)
        noticed_s = logged_s(rest, _MISSED.format(node.name), began)
        found = {"leaders": len(led), "noticed_s": noticed_s, "moved_s": moved_s, "all_acked_s": acked_s}
        began_s = time.perf_counter()
        node.start()
        wait_ready([node])
        found["restart_s"] = _since(began_s)
        until(lambda: _in_sync(survivors), 0.2)
        found["in_sync_s"] = _since(began_s)
    return found


def _restart(client: sync.Client, nodes: list[Node], topics: list[str]) -> dict[str, Any]:
    """An orderly restart of a node that does not coordinate."""
    coordinator = client.cluster.status().leader
    node = next(node for node in nodes if node.name != coordinator)
    led = len(_led_by(client, topics, node.name))
    began_s = time.perf_counter()
    status = node.stop()
    stopped_s = _since(began_s)
    node.start()
    wait_ready([node])
    found = {"leaders": led, "status": status, "stopped_s": stopped_s, "restart_s": _since(began_s)}
    until(lambda: _in_sync(client), 0.2)
    return found | {"in_sync_s": _since(began_s)}
