"""Disks of nodes that are full under load: others lead what such a node led, producers go on, and when there is space again and
the node was restarted, it comes back in sync. Nothing that was acknowledged is lost, nothing is there twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from etcd_bench import needs_etcd
from node_processes import Processes, until
from small_disk import fill, make_room, small_disk, why_not
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
from tests.proof_length import length


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("nodes")
    with ExitStack() as mounted:
        made = Processes(directory)
        for node in made.nodes.values():
            mounted.enter_context(small_disk(node.data_dir))
        with made as running:
            yield running


def fill_and_come_back(nodes: Processes, topic: str, partitions: int, choose: Callable[[], str]) -> None:
    with connect(nodes.addresses) as client:
        client.create_topic(topic, partitions)
    until(lambda: whole(nodes, topic))
    name = choose()
    node = nodes.nodes[name]
    with Load(nodes.addresses, topic) as load:
        fill(node.data_dir)
        try:
            until(lambda: led_without(nodes, topic, name))
            load.wait_for_more(2000)
        finally:
            make_room(node.data_dir)
        node.kill()
        load.wait_for_more()
        restart(nodes, name)
        until(lambda: whole(nodes, topic))
        load.wait_for_more()
    check_kept(nodes.addresses, topic, load)
    check_replicas_are_the_same(nodes, topic)
    print(f"{topic}, node {name}: longest pause {load.gap_s:.2f} s, {len(load.acked)} records")


@needs_etcd
@pytest.mark.parametrize("number", range(length(1, 4)))
def test_a_follower_whose_disk_is_full_comes_back(nodes: Processes, number: int) -> None:
    topic = f"follower-{number}"

    def follower() -> str:
        return next(name for name in nodes.nodes if name not in (leader_of(nodes, topic), coordinator(nodes)))

    fill_and_come_back(nodes, topic, 1, follower)


@needs_etcd
@pytest.mark.parametrize("number", range(length(1, 4)))
def test_a_leader_whose_disk_is_full_lets_others_lead(nodes: Processes, number: int) -> None:
    topic = f"leader-{number}"
    fill_and_come_back(nodes, topic, PARTITIONS, lambda: next(name for name in nodes.nodes if name != coordinator(nodes)))


@needs_etcd
@pytest.mark.parametrize("number", range(length(1, 4)))
def test_a_coordinator_whose_disk_is_full_lets_others_coordinate(nodes: Processes, number: int) -> None:
    fill_and_come_back(nodes, f"coordinator-{number}", PARTITIONS, lambda: coordinator(nodes))
