"""Nodes that are cut off from the others under load, while one producer is on either side of the cut.

The side of the majority elects other leaders and goes on. A leader that is cut off acknowledges nothing from then on, whatever it
believes; its producer waits, and goes on after the cut is healed. In the end nothing that was acknowledged on either side is lost,
nothing is there twice, and all replicas are the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from cut_network import CLIENTS, Network, why_not
from etcd_bench import needs_etcd
from node_processes import Processes, until
from steady_load import PARTITIONS, Load, check_kept, check_replicas_are_the_same, coordinator, led_without, whole

from braidmq.client.sync import connect
from tests.proof_length import length


class Cut(NamedTuple):
    receives: bool = False
    sends: bool = False
    clients: bool = False


CUTS = {
    "whole": Cut(),
    "deaf": Cut(sends=True),
    "mute": Cut(receives=True),
    "from-nodes": Cut(clients=True),
}
"""What still passes: nothing, what the node sends, what it receives, or all but what goes between nodes."""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Network("abc") as joined, joined.within(CLIENTS):
        yield joined


@pytest.fixture(scope="module")
def nodes(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("nodes"), places=network.places) as running:
        yield running


def cut_and_heal(network: Network, nodes: Processes, topic: str, name: str, cut: Cut) -> None:
    with connect(nodes.addresses) as client:
        client.create_topic(topic, PARTITIONS)
    until(lambda: whole(nodes, topic))
    others = [node.address for other, node in nodes.nodes.items() if other != name]
    majority = Load(others, topic, name=b"majority-")
    side = CLIENTS if cut.clients else name
    minority = Load([nodes.nodes[name].address, *others], topic, name=b"minority-", within=lambda: network.within(side))
    with majority, minority:
        network.cut(name, **cut._asdict())
        try:
            until(lambda: led_without(nodes, topic, name))
            majority.wait_for_more()
            stored = len(minority.acked)
            majority.wait_for_more()
            if not cut.clients:
                assert len(minority.acked) == stored, "a node without the others acknowledged records"
        finally:
            network.heal(name)
        until(lambda: whole(nodes, topic))
        majority.wait_for_more()
        minority.wait_for_more()
    check_kept(nodes.addresses, topic, majority, minority)
    check_replicas_are_the_same(nodes, topic)
    print(
        f"{topic}, node {name}: longest pause {majority.gap_s:.2f} s with the majority, {minority.gap_s:.2f} s without; "
        f"{len(majority.acked)} and {len(minority.acked)} records"
    )


@needs_etcd
@pytest.mark.parametrize("kind", CUTS)
def test_a_coordinator_that_is_cut_off_loses_nothing(network: Network, nodes: Processes, kind: str) -> None:
    cut_and_heal(network, nodes, f"coordinator-{kind}", coordinator(nodes), CUTS[kind])


@needs_etcd
@pytest.mark.parametrize("number", range(length(1, 12)))
def test_a_leader_that_is_cut_off_loses_nothing(network: Network, nodes: Processes, number: int) -> None:
    chance = random.Random(number)
    name = chance.choice([name for name in nodes.nodes if name != coordinator(nodes)])
    kind = chance.choice(list(CUTS))
    cut_and_heal(network, nodes, f"leader-{number}-{kind}", name, CUTS[kind])
