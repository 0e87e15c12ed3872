"""Where new partitions go: pure functions from what is known of the nodes to a list of replicas a partition.

The first replica of a partition is the one that should lead it.

    round-robin    one node after the other, beginning where the topic before ended; replicas are the nodes that follow
    least-loaded   each replica on the node that has least so far, leaders counted before replicas
    rack-aware     round-robin over nodes that are sorted so that neighbours are in different racks, and replicas of a partition
                   in as many racks as there are

Each gives every partition as many different nodes as asked for, or all there are, and spreads leaders and replicas evenly.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from braidmq.cluster.partition_state import PartitionState


@dataclass(slots=True)
class Load:
    """What each node has already."""

    leaders: Counter[str] = field(default_factory=Counter)
    replicas: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, states: Iterable[PartitionState]) -> Load:
        load = cls()
        for state in states:
            load.leaders[state.replicas[0]] += 1
            load.replicas.update(state.replicas)
        return load


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    rack: str = ""


Strategy = Callable[[Sequence[Node], int, int, Load, int], list[list[str]]]


def round_robin(nodes: Sequence[Node], partitions: int, factor: int, load: Load, begin: int) -> list[list[str]]:
    names = [node.name for node in nodes]
    return [_ring(names, begin + partition, factor) for partition in range(partitions)]


def least_loaded(nodes: Sequence[Node], partitions: int, factor: int, load: Load, begin: int) -> list[list[str]]:
    leaders, replicas = Counter(load.leaders), Counter(load.replicas)
    names = [node.name for node in nodes]
    placed = []
    for _ in range(partitions):
        first = min(names, key=lambda name: (leaders[name], replicas[name], name))
        rest = sorted((name for name in names if name != first), key=lambda name: (replicas[name], leaders[name], name))
        chosen = [first, *rest[: max(0, factor - 1)]]
        leaders[first] += 1
        replicas.update(chosen)
        placed.append(chosen)
    return placed


def rack_aware(nodes: Sequence[Node], partitions: int, factor: int, load: Load, begin: int) -> list[list[str]]:
    names = _by_racks(nodes)
    racks = {node.name: node.rack for node in nodes}
    placed = []
    for partition in range(partitions):
        ring = _ring(names, begin + partition, len(names))
        chosen: list[str] = []
        while len(chosen) < min(factor, len(names)):
            used = Counter(racks[name] for name in chosen)
            left = [name for name in ring if name not in chosen]
            # The first of a rack that is used least: the order of the ring decides among equals.
            chosen.append(min(left, key=lambda name, used=used: used[racks[name]]))  # type: ignore[misc]
        placed.append(chosen)
    return placed


STRATEGIES: Final[dict[str, Strategy]] = {
    "round-robin": round_robin, "least-loaded": least_loaded, "rack-aware": rack_aware,
}  # fmt: skip


def _ring(names: Sequence[str], begin: int, count: int) -> list[str]:
    return [names[(begin + step) % len(names)] for step in range(min(count, len(names)))]


def _by_racks(nodes: Sequence[Node]) -> list[str]:
    """The names, one of each rack in turn."""
    racks: dict[str, deque[str]] = {}
    for node in sorted(nodes, key=lambda node: (node.rack, node.name)):
        racks.setdefault(node.rack, deque()).append(node.name)
    names = []
    waiting = deque(racks.values())
    while waiting:
        rack = waiting.popleft()
        names.append(rack.popleft())
        if rack:
            waiting.append(rack)
    return names


def leaders_to_move(
    states: Sequence[tuple[tuple[int, int], PartitionState]], live: Sequence[str], threshold: float = 0.0
) -> list[tuple[tuple[int, int], str]]:
    """(partition, new leader) of leaders that should move, so that those who are in sync lead about as many each.

    First back to the replica that should lead; then from whoever leads most to whoever leads least. Nothing moves while
    the busiest node leads no more than `threshold` over the average.
    """
    counts: Counter[str] = Counter({node: 0 for node in live})
    now: dict[tuple[int, int], str] = {}
    for key, state in states:
        if state.leader in counts:
            counts[state.leader] += 1
            now[key] = state.leader
    if not counts or not now:
        return []
    average = len(now) / len(counts)
    if threshold and max(counts.values()) <= max(average * (1 + threshold), average + 1):
        return []
    wanted: dict[tuple[int, int], str] = {}
    for key, state in states:
        first = state.replicas[0]
        if key in now and now[key] != first and first in state.isr and first in counts and counts[now[key]] > counts[first]:
            counts[now[key]] -= 1
            counts[first] += 1
            now[key] = wanted[key] = first
    moved = True
    while moved:
        moved = False
        for key, state in states:
            if key not in now:
                continue
            able = [node for node in state.isr if node in counts and node in state.replicas and node != now[key]]
            best = min(able, key=lambda node: (counts[node], node), default="")
            if best and counts[now[key]] > counts[best] + 1:
                counts[now[key]] -= 1
                counts[best] += 1
                now[key] = wanted[key] = best
                moved = True
    before = {key: state.leader for key, state in states}
    return [(key, node) for key, node in wanted.items() if before[key] != node]
