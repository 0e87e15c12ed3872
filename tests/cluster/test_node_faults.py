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
from node_processes import Processes, until
from steady_load import (
    PARTITIONS,
    Load,
    check_kept,
    check_replicas_are_the_same,
    coordinator,
    leader_of,
    led_without,
    restart,
    whole,
)

from braidmq.client.sync import connect


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("nodes"), **{"follower-reads": "true"}) as running:
        yield running


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
    check_kept(nodes.addresses, "killed", load)
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
    check_kept(nodes.addresses, "headless", load)
    print(f"longest pause {load.gap_s:.2f} s, {len(load.acked)} records")


@needs_etcd
def test_a_node_that_sleeps_past_its_session_does_no_harm(nodes: Processes) -> None:
    with connect(nodes.addresses) as client:
        client.create_topic("asleep", PARTITIONS)
    with Load(nodes.addresses, "asleep") as load:
        name = leader_of(nodes, "asleep")
        nodes.nodes[name].signal(signal.SIGSTOP)
        until(lambda: led_without(nodes, "asleep", name))
        load.wait_for_more()
        nodes.nodes[name].signal(signal.SIGCONT)
        until(lambda: whole(nodes, "asleep"))
        load.wait_for_more()
    check_kept(nodes.addresses, "asleep", load)


class _Reader:
    """A consumer that reads from replicas, and goes on whatever happens to them."""

    def __init__(self, addresses: list[str], topic: str) -> None:
        self._addresses = addresses
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.values: Counter[bytes] = Counter()
        self.gap_s = 0.0
        """The longest time without a record."""
        self.fault: BaseException | None = None

    def _run(self) -> None:
        try:
            with connect(self._addresses, read_from="nearest") as client, client.consumer(self._topic) as consumer:
                last_s = time.monotonic()
                while not self._stop.is_set():
                    found = consumer.poll(timeout_s=0.5)
                    self.values.update(record.value for record in found)
                    if found:
                        now_s = time.monotonic()
                        self.gap_s, last_s = max(self.gap_s, now_s - last_s), now_s
        except BaseException as fault:
            self.fault = fault

    def __enter__(self) -> _Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self.fault is None, self.fault

    def catch_up(self, values: list[bytes]) -> None:
        """Wait until all of `values` were read."""
        until(lambda: self.fault is not None or all(value in self.values for value in values))
        assert self.fault is None, self.fault


@needs_etcd
def test_whoever_reads_from_replicas_goes_on_when_one_sleeps_or_dies(nodes: Processes) -> None:
    with connect(nodes.addresses) as client:
        client.create_topic("copied", PARTITIONS)
    until(lambda: whole(nodes, "copied"))
    with _Reader(nodes.addresses, "copied") as reader:
        with Load(nodes.addresses, "copied") as load:
            load.wait_for_more()
            reader.catch_up(list(load.acked))
            for name in nodes.nodes:
                nodes.nodes[name].signal(signal.SIGSTOP)
                until(lambda name=name: led_without(nodes, "copied", name))  # type: ignore[misc]
                load.wait_for_more()
                reader.catch_up(list(load.acked))
                nodes.nodes[name].signal(signal.SIGCONT)
                until(lambda: whole(nodes, "copied"))
                nodes.nodes[name].kill()
                load.wait_for_more()
                reader.catch_up(list(load.acked))
                restart(nodes, name)
                until(lambda: whole(nodes, "copied"))
        reader.catch_up(load.acked)
    assert max(reader.values.values()) == 1, "nothing is read twice"
    print(f"longest pause of the reader {reader.gap_s:.2f} s, of the producer {load.gap_s:.2f} s, {len(load.acked)} records")


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
    check_kept(nodes.addresses, "rolling", load)
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
    check_kept(nodes.addresses, "dark", load)
    check_replicas_are_the_same(nodes, "dark")
