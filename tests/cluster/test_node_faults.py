"""Nodes that are killed, stopped and restarted under load: nothing that was acknowledged is lost, nothing comes twice, clients
go on."""

from __future__ import annotations

import signal
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
    with Processes(tmp_path_factory.mktemp("nodes")) as running:
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
