"""Nodes that are killed, stopped and restarted under load: nothing that was acknowledged is lost, nothing comes twice, clients
go on."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from etcd_bench import needs_etcd
from node_processes import PATIENCE_S, Processes, until

from braidmq.client.sync import Client, connect

PARTITIONS = 6


class Load:
    """A producer that goes on whatever happens, and remembers what was acknowledged."""

    def __init__(self, addresses: list[str], topic: str) -> None:
        self._addresses = addresses
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acked: list[bytes] = []
        self.gap_s = 0.0
        """The longest time without an acknowledgement."""
        self.fault: BaseException | None = None

    def _run(self) -> None:
        try:
            with connect(self._addresses, delivery_timeout_s=60.0, timeout_s=5.0) as client, client.producer() as producer:
                number = 0
                last_s = time.monotonic()
                while not self._stop.is_set():
                    values = [b"%d" % (number + step) for step in range(10)]
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
        self._thread.join(PATIENCE_S * 2)
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


def check_kept(addresses: list[str], load: Load, topic: str) -> None:
    with connect(addresses) as client:
        found = read_all(client, topic, len(load.acked))
    lost = set(load.acked) - set(found)
    assert not lost, f"{len(lost)} of {len(load.acked)} acknowledged records are lost"
    twice = {value: times for value, times in found.items() if times > 1}
    assert not twice, f"{len(twice)} records came twice"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("nodes")) as running:
        yield running


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


@needs_etcd
def test_a_killed_leader_costs_a_pause(nodes: Processes) -> None:
    with connect(nodes.addresses) as client:
        client.create_topic("killed", PARTITIONS)
    with Load(nodes.addresses, "killed") as load:
        name = leader_of(nodes, "killed")
        nodes.nodes[name].kill()
        load.wait_for_more()
        restart(nodes, name)
        load.wait_for_more()
    check_kept(nodes.addresses, load, "killed")
    print(f"longest pause {load.gap_s:.2f} s, {len(load.acked)} records")


@needs_etcd
def test_a_killed_coordinator_costs_a_pause(nodes: Processes) -> None:
    with connect(nodes.addresses) as client:
        client.create_topic("headless", PARTITIONS)
    with Load(nodes.addresses, "headless") as load:
        name = coordinator(nodes)
        nodes.nodes[name].kill()
        load.wait_for_more()
        with connect(nodes.addresses) as client:
            client.create_topic("made-without-it", 3)
        restart(nodes, name)
        load.wait_for_more()
    check_kept(nodes.addresses, load, "headless")
    print(f"longest pause {load.gap_s:.2f} s, {len(load.acked)} records")


@needs_etcd
def test_a_node_that_sleeps_past_its_session_does_no_harm(nodes: Processes) -> None:
    with connect(nodes.addresses) as client:
        client.create_topic("asleep", PARTITIONS)
    with Load(nodes.addresses, "asleep") as load:
        name = leader_of(nodes, "asleep")
        nodes.nodes[name].signal(signal.SIGSTOP)
        others = [node.address for other, node in nodes.nodes.items() if other != name]

        def led_by_others() -> bool:
            with connect(others) as client:
                return all(part.leader not in ("", name) for part in client.cluster.metadata("asleep")[0].partitions)

        until(led_by_others)
        load.wait_for_more()
        nodes.nodes[name].signal(signal.SIGCONT)
        until(lambda: whole(nodes, "asleep"))
        load.wait_for_more()
    check_kept(nodes.addresses, load, "asleep")


@needs_etcd
def test_all_nodes_restart_one_after_the_other_under_load(nodes: Processes) -> None:
    with connect(nodes.addresses) as client:
        client.create_topic("rolling", PARTITIONS)
    with Load(nodes.addresses, "rolling") as load:
        for name in nodes.nodes:
            until(lambda: whole(nodes, "rolling"))
            assert nodes.nodes[name].stop() == 0, nodes.nodes[name].log()[-2000:]
            load.wait_for_more(50)
            restart(nodes, name)
            load.wait_for_more(50)
    check_kept(nodes.addresses, load, "rolling")
    print(f"longest pause {load.gap_s:.2f} s, {len(load.acked)} records")


@needs_etcd
def test_all_nodes_are_killed_at_once_and_come_back(nodes: Processes) -> None:
    with connect(nodes.addresses) as client:
        client.create_topic("dark", PARTITIONS)
    with Load(nodes.addresses, "dark") as load:
        for node in nodes.nodes.values():
            node.kill()
        for node in nodes.nodes.values():
            node.start()
        for node in nodes.nodes.values():
            node.wait_ready()
        load.wait_for_more()
    check_kept(nodes.addresses, load, "dark")
    check_replicas_are_the_same(nodes, "dark")


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
