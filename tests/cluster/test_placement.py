"""Where partitions go: as many replicas as asked for, none twice, spread evenly, over racks where there are any."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.cluster.partition_state import PartitionState
from braidmq.cluster.placement import STRATEGIES, Load, Node, leaders_to_move

_NODES = st.integers(1, 9).flatmap(
    lambda count: st.lists(st.sampled_from(["a", "b", "c"]), min_size=count, max_size=count).map(
        lambda racks: [Node(f"n{number}", rack) for number, rack in enumerate(racks)]
    )
)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@given(nodes=_NODES, partitions=st.integers(1, 60), factor=st.integers(1, 5), begin=st.integers(0, 100))
def test_every_partition_has_its_replicas_and_leaders_are_spread(
    strategy: str, nodes: list[Node], partitions: int, factor: int, begin: int
) -> None:
    placed = STRATEGIES[strategy](nodes, partitions, factor, Load(), begin)
    assert len(placed) == partitions
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == min(factor, len(nodes))
        assert set(replicas) <= {node.name for node in nodes}
    leaders = Counter(replicas[0] for replicas in placed)
    counts = [leaders[node.name] for node in nodes]
    assert max(counts) - min(counts) <= 1


@given(nodes=_NODES, partitions=st.integers(1, 30), factor=st.integers(1, 5), begin=st.integers(0, 100))
def test_replicas_are_in_as_many_racks_as_there_are(nodes: list[Node], partitions: int, factor: int, begin: int) -> None:
    racks = {node.name: node.rack for node in nodes}
    for replicas in STRATEGIES["rack-aware"](nodes, partitions, factor, Load(), begin):
        assert len({racks[name] for name in replicas}) == min(len(set(racks.values())), len(replicas))


def test_least_loaded_fills_up_the_node_that_has_least() -> None:
    load = Load(Counter(a=9, b=9), Counter(a=9, b=9))
    placed = STRATEGIES["least-loaded"]([Node("a"), Node("b"), Node("c")], 9, 1, load, 0)
    assert Counter(replicas[0] for replicas in placed) == {"c": 9}


@st.composite
def _states(draw: st.DrawFn) -> list[tuple[tuple[int, int], PartitionState]]:
    states = []
    for number in range(draw(st.integers(1, 40))):
        replicas = tuple(draw(st.permutations(["a", "b", "c", "d"])))[: draw(st.integers(1, 4))]
        isr = tuple(draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True)))
        leader = draw(st.sampled_from(isr))
        states.append(((1, number), PartitionState(leader, 1, replicas, isr, (), 1)))
    return states


@given(states=_states())
def test_leaders_move_only_to_those_in_sync_and_never_make_it_worse(states: list[tuple[tuple[int, int], PartitionState]]) -> None:
    live = ["a", "b", "c", "d"]
    moves = leaders_to_move(states, live)
    known = dict(states)
    before = Counter({node: 0 for node in live})
    before.update(state.leader for _, state in states)
    after = Counter(before)
    for key, node in moves:
        assert node in known[key].isr and node != known[key].leader
        after[known[key].leader] -= 1
        after[node] += 1
    assert max(after.values()) - min(after.values()) <= max(before.values()) - min(before.values())


def test_little_imbalance_is_left_alone_when_nobody_asked() -> None:
    states = [((1, n), PartitionState("a" if n < 4 else "b", 1, ("a", "b"), ("a", "b"), (), 1)) for n in range(7)]
    assert leaders_to_move(states, ["a", "b"], 0.2) == []
    uneven = [((1, n), PartitionState("a", 1, ("a", "b"), ("a", "b"), (), 1)) for n in range(10)]
    assert len(leaders_to_move(uneven, ["a", "b"], 0.2)) == 5
