"""Who has which partition of which topic, and which brokers there are: a state machine of the metadata journal.

It lies in the journal and not in the quorum because it has to be large and change at once: when a node with three thousand
leaders dies, all of them move by one command, and every node that applies the journal knows it. What the quorum holds
is only who may write this journal (`node.py`).

    register NODE GENERATION ABOUT            a broker is here; one that was here before under another generation was restarted
    fence NODE GENERATION                     it is not here any more: others lead, and nobody waits for it
    retire NODE [true|false]                  nothing new is placed on it, or again
    unregister NODE                           it is gone for good
    place TOPIC MIN_INSYNC [REPLICAS...] FACTOR WANTED
                                              a new topic's partitions; each is to have FACTOR replicas, and WANTED is to be the
                                              min_insync, as soon as there are nodes enough
    require TOPIC FACTOR MIN_INSYNC           other numbers for a topic; 0 leaves one as it is
    ensure TOPIC MIN_INSYNC                   the min_insync that is wanted holds from now on: as many are in sync everywhere
    isr TOPIC PARTITION EPOCH VERSION ISR     the leader says who has everything
    settle TOPIC PARTITION EPOCH VERSION      what was said from this version and is not known to have happened never does
    lead TOPIC PARTITION EPOCH VERSION NODE   another one is to lead
    replicas TOPIC PARTITION EPOCH VERSION REPLICAS TARGET [FACTOR]
                                              others have it; while TARGET is not empty, it is on its way there. Somebody who
                                              chose its nodes by hand also chose how many it is to have: FACTOR
    remove TOPIC                              a topic is deleted

Commands that name epoch and version change nothing unless the partition is still as they say: the answer is the state as it is.
`apply` depends on nothing but the commands before: it never asks who is reachable now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from braidmq.base.json_pieces import Deferred
from braidmq.cluster.partition_state import (
    LogKey,
    PartitionState,
    created,
    elected,
    moved,
    offline,
    successors,
    with_isr,
)


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A broker as the cluster knows it."""

    generation: int
    live: bool
    about: dict[str, str]
    """What it says of itself: addresses, rack."""
    retired: bool = False
    """Whether it is being emptied."""


class ReplicaTable:
    def __init__(self) -> None:
        self.brokers: dict[str, BrokerRecord] = {}
        self._states: dict[LogKey, PartitionState] = {}
        self._partitions: dict[int, int] = {}
        """Topic id to how many of its partitions are placed."""
        self._min_insync: dict[int, int] = {}
        self._factors: dict[int, int] = {}
        self._min_insync_wanted: dict[int, int] = {}
        self._chosen: dict[LogKey, int] = {}
        """Of partitions that were moved by hand to another number of nodes than their topic asks for: that number."""
        self.targets: dict[LogKey, tuple[str, ...]] = {}
        """Partitions that are on their way, and to which replicas."""
        self.placements = 0
        """Grows with whatever may ask for other replicas: nodes, places, numbers."""
        self.elections = 0
        """How often a partition got another leader, as far as this node applied it; likewise the next two."""
        self.isr_shrinks = 0
        self.isr_expansions = 0
        self.on_change: Callable[[LogKey, PartitionState | None], None] = lambda key, state: None
        """Told of every partition that has another state; None when it is gone."""
        self.on_brokers: Callable[[], None] = lambda: None
        """Told when a broker came, went or changed."""

    # --- asking

    def state(self, key: LogKey) -> PartitionState | None:
        return self._states.get(key)

    def items(self) -> Iterator[tuple[LogKey, PartitionState]]:
        return iter(self._states.items())

    def __len__(self) -> int:
        return len(self._states)

    def partitions_of(self, topic_id: int) -> int:
        """How many partitions of a topic are placed; 0 for none."""
        return self._partitions.get(topic_id, 0)

    def topics(self) -> list[int]:
        return list(self._partitions)

    def min_insync(self, topic_id: int) -> int:
        return self._min_insync.get(topic_id, 1)

    def min_insync_wanted(self, topic_id: int) -> int:
        """What a topic's `min_insync` is to be, once there are replicas enough."""
        return self._min_insync_wanted.get(topic_id, 1)

    def factor(self, key: LogKey) -> int:
        """How many replicas a partition is to have."""
        return self._chosen.get(key) or self._factors.get(key[0], 1)

    def live(self) -> list[str]:
        return [node for node, record in self.brokers.items() if record.live]

    def placeable(self) -> list[str]:
        """Brokers that may get something new, in the order of their names."""
        return sorted(node for node, record in self.brokers.items() if record.live and not record.retired)

    def lasting(self) -> list[str]:
        """Brokers that belong here, those that are away too: all but the retired, in the order of their names."""
        return sorted(node for node, record in self.brokers.items() if not record.retired)

    def successor(self, state: PartitionState, leaders: Mapping[str, int]) -> str:
        """Who is to lead after its leader: of those that may, the one that leads least, and the first in the order of the replicas
        where several do. So what a lost node led is spread over those that are left. Empty when nobody may."""
        live = frozenset(node for node in self.live() if node != state.leader)
        able = successors(state, live)
        return min(able, key=lambda node: (self.brokers[node].retired, leaders.get(node, 0)), default="")

    # --- commands

    def apply(self, command: list[Any]) -> Any:
        match command:
            case ["register", str(node), int(generation), dict(about)]:
                self._register(node, generation, about)
            case ["fence", str(node), int(generation)]:
                record = self.brokers.get(node)
                if record is not None and record.live and record.generation <= generation:
                    self._fence(node, record)
            case ["retire", str(node), bool(retired)]:
                record = self.brokers.get(node)
                if record is not None:
                    self.brokers[node] = replace(record, retired=retired)
                    self.placements += 1
                    self.on_brokers()
            case ["unregister", str(node)]:
                record = self.brokers.get(node)
                if record is not None:
                    if record.live:
                        self._fence(node, record)
                    del self.brokers[node]
                    self.placements += 1
                    self.on_brokers()
            case ["place", int(topic_id), int(min_insync), list(placed)]:
                return self._place(topic_id, min_insync, placed, max(map(len, placed), default=1), min_insync)
            case ["place", int(topic_id), int(min_insync), list(placed), int(factor), int(wanted)]:
                return self._place(topic_id, min_insync, placed, factor, wanted)
            case ["require", int(topic_id), int(factor), int(min_insync)]:
                self._require(topic_id, factor, min_insync)
            case ["ensure", int(topic_id), int(min_insync)]:
                if self._min_insync_wanted.get(topic_id) == min_insync:
                    self._min_insync[topic_id] = min_insync
                    self._look_again(topic_id)
            case ["isr", int(topic_id), int(partition), int(epoch), int(version), list(isr)]:
                return self._isr((topic_id, partition), epoch, version, isr)
            case ["settle", int(topic_id), int(partition), int(epoch), int(version)]:
                return self._settle((topic_id, partition), epoch, version)
            case ["lead", int(topic_id), int(partition), int(epoch), int(version), str(node)]:
                return self._lead((topic_id, partition), epoch, version, node)
            case ["replicas", int(topic_id), int(partition), int(epoch), int(version), list(replicas), list(target), *factor]:
                return self._replicas((topic_id, partition), epoch, version, replicas, target, *factor)
            case ["remove", int(topic_id)]:
                self._remove(topic_id)
            case _:
                raise AssertionError(f"unknown command {command[:1]} for replicas")
        return None

    def _set(self, key: LogKey, state: PartitionState) -> None:
        before = self._states.get(key)
        if state.leader and state.elr and len(state.isr) >= self.min_insync(key[0]):
            # The topic needs fewer than it did: readers see more from now on, and whoever is not in sync misses it.
            state = replace(state, elr=())
        if before is not None:
            self.elections += bool(state.leader) and state.leader != before.leader
            self.isr_shrinks += not set(before.isr) <= set(state.isr)
            self.isr_expansions += not set(state.isr) <= set(before.isr)
        self._states[key] = state
        self.on_change(key, state)

    def _register(self, node: str, generation: int, about: dict[str, str]) -> None:
        record = self.brokers.get(node)
        if record is not None and record.generation > generation:
            return
        if record is not None and record.live and record.generation < generation:
            # It was restarted before anybody missed it: what it led goes on under another epoch.
            self._fence(node, record)
        retired = record is not None and record.retired
        self.brokers[node] = BrokerRecord(generation, True, dict(about), retired)
        self.placements += 1
        live = frozenset(self.live())
        for key, state in list(self._states.items()):
            if not state.leader and (node in state.isr or node in state.elr):
                after = elected(state, live)
                if after is not None:
                    self._set(key, after)
        self.on_brokers()

    def _fence(self, node: str, record: BrokerRecord) -> None:
        self.brokers[node] = replace(record, live=False)
        self.placements += 1
        live = frozenset(self.live())
        leaders = Counter(state.leader for state in self._states.values())
        for key, state in list(self._states.items()):
            after = state
            if state.leader == node:
                after = elected(state, live, self.successor(state, leaders)) or offline(state) or state
                leaders[after.leader] += 1
            if node in after.isr and after.leader and len(after.isr) > 1:
                # Nobody waits for it. It comes back when it has caught up.
                rest = [other for other in after.isr if other != node]
                after = with_isr(after, rest, self.min_insync(key[0])) or after
            if after is not state:
                # One command is one step.
                self._set(key, replace(after, version=state.version + 1))
        self.on_brokers()

    def _place(self, topic_id: int, min_insync: int, placed: list[list[str]], factor: int, wanted: int) -> bool:
        if topic_id in self._partitions:
            return False
        live = frozenset(self.live())
        self._partitions[topic_id] = len(placed)
        self._min_insync[topic_id] = min_insync
        self._factors[topic_id] = factor
        self._min_insync_wanted[topic_id] = wanted
        self.placements += 1
        for partition, replicas in enumerate(placed):
            self._set((topic_id, partition), created(replicas, live))
        return True

    def _require(self, topic_id: int, factor: int, min_insync: int) -> None:
        if topic_id not in self._partitions:
            return
        self.placements += 1
        if factor:
            self._factors[topic_id] = factor
            for partition in range(self._partitions[topic_id]):
                self._chosen.pop((topic_id, partition), None)
        if min_insync:
            self._min_insync_wanted[topic_id] = min_insync
            if min_insync < self.min_insync(topic_id):
                self._min_insync[topic_id] = min_insync
                self._look_again(topic_id)

    def _look_again(self, topic_id: int) -> None:
        """Another `min_insync` holds: leaders look again at whom they wait for. What they said for the one before is void."""
        for partition in range(self.partitions_of(topic_id)):
            key = (topic_id, partition)
            self._set(key, replace(self._states[key], version=self._states[key].version + 1))

    def _current(self, key: LogKey, epoch: int, version: int) -> PartitionState | None:
        """The state, if it is still the one that a command was made from."""
        state = self._states.get(key)
        return state if state is not None and (state.epoch, state.version) == (epoch, version) else None

    def _isr(self, key: LogKey, epoch: int, version: int, isr: list[str]) -> PartitionState | None:
        state = self._current(key, epoch, version)
        if state is not None and state.leader in isr:
            # Whoever is not here cannot come in, whatever its leader believes.
            able = [node for node in isr if node in state.isr or self._is_live(node)]
            # What changes nothing is told from what is not known to have happened.
            self._set(key, with_isr(state, able, self.min_insync(key[0])) or replace(state, version=state.version + 1))
        return self._states.get(key)

    def _settle(self, key: LogKey, epoch: int, version: int) -> PartitionState | None:
        state = self._current(key, epoch, version)
        if state is not None:
            self._set(key, replace(state, version=version + 1))
        return self._states.get(key)

    def _is_live(self, node: str) -> bool:
        record = self.brokers.get(node)
        return record is not None and record.live

    def _lead(self, key: LogKey, epoch: int, version: int, node: str) -> PartitionState | None:
        state = self._current(key, epoch, version)
        if state is not None:
            after = elected(state, frozenset(self.live()), node)
            if after is not None and after.leader == node != state.leader:
                self._set(key, after)
        return self._states.get(key)

    def _replicas(
        self, key: LogKey, epoch: int, version: int, replicas: list[str], target: list[str], factor: int = 0
    ) -> PartitionState | None:
        state = self._current(key, epoch, version)
        if state is not None:
            after = moved(state, replicas, frozenset(self.live()))
            if after is not None or tuple(replicas) == state.replicas:
                if target:
                    self.targets[key] = tuple(target)
                else:
                    self.targets.pop(key, None)
                if factor:
                    self._chosen[key] = factor
                    if factor == self._factors.get(key[0]):
                        del self._chosen[key]
                self.placements += 1
            if after is not None:
                self._set(key, after)
        return self._states.get(key)

    def _remove(self, topic_id: int) -> None:
        for partition in range(self._partitions.pop(topic_id, 0)):
            key = (topic_id, partition)
            self._states.pop(key, None)
            self.targets.pop(key, None)
            self._chosen.pop(key, None)
            self.on_change(key, None)
        for numbers in (self._min_insync, self._factors, self._min_insync_wanted):
            numbers.pop(topic_id, None)

    # --- snapshots

    def snapshot(self) -> Any:
        states = list(self._states.items())
        return {
            "brokers": [[node, r.generation, r.live, r.about, r.retired] for node, r in self.brokers.items()],
            "topics": [
                [topic_id, count, self.min_insync(topic_id), self._factors[topic_id], self.min_insync_wanted(topic_id)]
                for topic_id, count in self._partitions.items()
            ],
            "chosen": [[*key, factor] for key, factor in self._chosen.items()],
            "targets": [[*key, list(target)] for key, target in self.targets.items()],
            "states": Deferred(lambda: ([*key, *state.document()] for key, state in states)),
        }

    def restore(self, document: Any) -> None:
        self.brokers = {
            node: BrokerRecord(generation, live, about, retired) for node, generation, live, about, retired in document["brokers"]
        }
        # A table that was kept before topics had a factor says three numbers of each.
        self._partitions = {row[0]: row[1] for row in document["topics"]}
        self._min_insync = {row[0]: row[2] for row in document["topics"]}
        self._factors = {row[0]: row[3] for row in document["topics"] if len(row) > 3}
        self._min_insync_wanted = {row[0]: row[-1] for row in document["topics"]}
        self._chosen = {(topic_id, partition): factor for topic_id, partition, factor in document.get("chosen", ())}
        self.targets = {(topic_id, partition): tuple(target) for topic_id, partition, target in document["targets"]}
        self._states = {(row[0], row[1]): PartitionState.of(row[2:]) for row in document["states"]}
        for (topic_id, _), state in self._states.items():
            if topic_id not in self._factors:
                self._factors[topic_id] = len(state.replicas)
        self.placements += 1
