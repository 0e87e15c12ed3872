"""Producers that go on whatever happens to the nodes, and what has to be true of a cluster afterwards: nothing acknowledged is
lost, nothing is there twice, and all replicas are the same bytes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from node_processes import PATIENCE_S, Processes, until

from braidmq.client.sync import Client, connect

PARTITIONS = 6
DELIVERY_S = 120.0
"""How long a producer tries: longer than any fault here lasts."""


class Load:
    """A producer that goes on whatever happens, and remembers what was acknowledged."""

    def __init__(
        self, addresses: list[str], topic: str, *, name: bytes = b"",
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`name` begins every value, so that those of several producers differ; the producer runs inside of `within`."""
        self._addresses = addresses
        self._topic = topic
        self._name = name
        self._within = within
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acked: list[bytes] = []
        self.gap_s = 0.0
        """The longest time without an acknowledgement."""
        self.fault: BaseException | None = None

    def _run(self) -> None:
        try:
            with (
                self._within(),
                connect(self._addresses, delivery_timeout_s=DELIVERY_S, timeout_s=5.0) as client,
                client.producer() as producer,
            ):
                number = 0
                last_s = time.monotonic()
                while not self._stop.is_set():
                    values = [b"%s%d" % (self._name, number + step) for step in range(10)]
                    deliveries = [producer.send(self._topic, value, key=value) for value in values]
                    for value, delivery in zip(values, deliveries, strict=True):
                        delivery.result()
                        self.acked.append(value)
                    now_s = time.monotonic()
                    self.gap_s, last_s = max(self.gap_s, now_s - last_s), now_s
                    number += 10
        except BaseException as fault:
            self.fault = fault

    def __enter__(self) -> Load:
        self._thread.start()
        self.wait_for_more()
        return self

    def wait_for_more(self, count: int = 200) -> None:
        wanted = len(self.acked) + count
        until(lambda: len(self.acked) >= wanted or self.fault is not None)
        if self.fault is not None:
            raise self.fault

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(DELIVERY_S + PATIENCE_S)
        if self.fault is not None:
            raise self.fault


def read_all(client: Client, topic: str, count: int) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    deadline_s = time.monotonic() + PATIENCE_S
    with client.consumer(topic, start="earliest") as consumer:
        while len(found) < count:
            assert time.monotonic() < deadline_s, f"{len(found)} of {count} were read"
            found.update(record.value for record in consumer.poll())
        while more := consumer.poll(timeout_s=0.5):
            found.update(record.value for record in more)
    return found


def check_kept(addresses: list[str], topic: str, *loads: Load) -> None:
    acked = {value for load in loads for value in load.acked}
    with connect(addresses) as client:
        found = read_all(client, topic, len(acked))
    lost = acked - set(found)
    assert not lost, f"{len(lost)} of {len(acked)} acknowledged records are lost"
    twice = {value: times for value, times in found.items() if times > 1}
    assert not twice, f"{len(twice)} records came twice"


def leader_of(nodes: Processes, topic: str) -> str:
    with connect(nodes.addresses) as client:
        return client.cluster.metadata(topic)[0].partitions[0].leader


def coordinator(nodes: Processes) -> str:
    with connect(nodes.addresses) as client:
        return client.cluster.status().leader


def restart(nodes: Processes, name: str) -> None:
    nodes.nodes[name].start()
    nodes.nodes[name].wait_ready()


def whole(nodes: Processes, topic: str) -> bool:
    """Whether every replica of a topic is in sync."""
    with connect(nodes.addresses) as client:
        return all(len(part.in_sync) == 3 for part in client.cluster.metadata(topic)[0].partitions)


def led_without(nodes: Processes, topic: str, name: str) -> bool:
    """Whether nodes other than `name` lead all of a topic, as these say."""
    with connect([node.address for other, node in nodes.nodes.items() if other != name]) as client:
        return all(part.leader not in ("", name) for part in client.cluster.metadata(topic)[0].partitions)


def check_replicas_are_the_same(nodes: Processes, topic: str) -> None:
    """Every node has the same bytes, once it has all of them."""
    until(lambda: whole(nodes, topic))
    with connect(nodes.addresses) as client:
        number = client.places([topic])[topic].id

    def files() -> list[dict[str, bytes]]:
        found = []
        for node in nodes.nodes.values():
            root = node.data_dir / "topics" / str(number)
            found.append({str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*.log"))})
        return found

    until(lambda: (copies := files())[0] == copies[1] == copies[2] and bool(copies[0]))
