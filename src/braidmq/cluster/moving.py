"""Where replicas go after a topic was made: by hand, away from a node that is being emptied, and to one more node where there are
too few.

Like all that the coordinator does it begins from what the table says now: nothing is forgotten when another node coordinates, and a
move that was refused because the partition changed at that moment is begun again at the next look.

    a partition has a retired replica             another node takes its place, and the retired one lets go when that is in sync
    a partition has fewer than it is to have      it gets one more of the nodes that are here
    everything it was on its way to is in sync    let go of those that have it too many
    a topic's `min_insync` does not hold yet      it does as soon as every partition has so many in sync
    a retired node is gone and has nothing left   it is no part of the cluster any more, nor of the etcd

A retired node keeps what nobody else can take as long as that is needed: no partition gets fewer replicas than its topic wants
while there are nodes that belong here, and none fewer than `min_insync`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.errors import BraidError
from braidmq.cluster.partition_state import LogKey, PartitionState
from braidmq.cluster.placement import Load

if TYPE_CHECKING:
    from braidmq.cluster.node import ClusterNode

_AT_ONCE: Final = 64
"""Moves that one look begins: others wait for what the coordinator sees next."""
_STALE_S: Final = 10.0
"""How long something that is asked for by hand is tried again because the partition changed meanwhile."""
JOURNALS: Final = "the broker's own journals"

logger = logging.getLogger("braidmq.cluster")


class Moving:
    def __init__(self, node: ClusterNode, submit: Callable[..., Awaitable[Any]], wake: Callable[[], None]) -> None:
        self._node = node
        self._submit = submit
        self._wake = wake
        self._seen = -1
        """Up to which of the table's changes everything has begun to move that can."""
        self._gone_s: dict[str, float] = {}
        """Since when retired nodes are not here."""
        self._to_forget: set[str] = set()

    def begin(self) -> None:
        """This node coordinates from now on."""
        self._seen = -1
        self._gone_s.clear()
        self._to_forget.clear()

    async def mind(self) -> None:
        await self._finish()
        await self._begin_moves()
        await self._ensure()
        await self._mind_gone()

    # --- by hand

    async def reassign(self, key: LogKey, replicas: list[str]) -> None:
        """Let other nodes have a partition; it stays served on the way there."""
        table = self._node.table
        unknown = [name for name in replicas if name not in table.brokers]
        if table.state(key) is None or unknown or not replicas or len(set(replicas)) != len(replicas):
            reason = f"there is no node {unknown[0]}" if unknown else "name the partition's new nodes, each once"
            raise BraidError("INVALID_ARGUMENT", reason=reason)
        retired = next((name for name in replicas if table.brokers[name].retired), "")
        if retired:
            raise BraidError("INVALID_ARGUMENT", reason=f"{retired} is being emptied")
        await self.insist(key, lambda state: self._move(key, state, replicas, len(replicas)))
        self._wake()

    async def insist(self, key: LogKey, step: Callable[[PartitionState], Awaitable[bool]]) -> None:
        """Do what is made from a state until it was not too late for it."""
        clock = self._node.clock
        deadline_s = clock.monotonic() + _STALE_S
        while (state := self._node.table.state(key)) is not None:
            if await step(state):
                return
            if clock.monotonic() >= deadline_s:
                break
        raise BraidError("TIMED_OUT", what=f"moving partition {key[1]}, which changes all the time,", seconds=_STALE_S)

    async def _move(self, key: LogKey, state: PartitionState, target: Sequence[str], chosen: int = 0) -> bool:
        """Whether it is on its way now, or there."""
        together = [*target, *(name for name in state.replicas if name not in target)]
        # One that only gets one more has nothing to wait for, unless somebody does.
        on_its_way = list(target) if chosen or len(together) > len(target) else []
        words = [*key, state.epoch, state.version, together, on_its_way]
        await self._submit("replicas", *words, *([chosen] if chosen else []))
        table = self._node.table
        after = table.state(key)
        return after is not None and after.replicas == tuple(together) and table.targets.get(key, ()) == tuple(on_its_way)

    # --- by itself

    async def _finish(self) -> None:
        """Let go of those who have a partition too many."""
        table = self._node.table
        for key, target in list(table.targets.items()):
            state = table.state(key)
            if state is None or not set(target) <= set(state.isr):
                continue
            live = table.live()
            leader = next((name for name in target if name in live), "")
            if leader not in ("", state.leader):
                await self._submit("lead", *key, state.epoch, state.version, leader)
                state = table.state(key)
            if state is None or state.leader not in target:
                continue
            await self._submit("replicas", *key, state.epoch, state.version, list(target), [])
            if key not in table.targets:
                logger.info("partition %s is on %s now", key, ", ".join(target))

    async def _begin_moves(self) -> None:
        table = self._node.table
        seen = table.placements
        if seen == self._seen:
            return
        retired = {name for name, record in table.brokers.items() if record.retired}
        free = table.placeable()
        lasting = len(table.lasting())
        load = Load.of(state for _, state in table.items())
        begun = refused = 0
        for key, state in list(table.items()):
            current = table.targets.get(key, state.replicas)
            leaves = any(name in retired for name in current)
            if not leaves and (key in table.targets or len(current) >= table.factor(key)):
                continue
            target = self._target(key, current, retired, free, lasting, load)
            if target == list(current):
                continue
            if begun == _AT_ONCE:
                self._wake()
                return
            begun += 1
            load.replicas.update(name for name in target if name not in current)
            # The state may have changed while others were moved.
            state = table.state(key) or state
            refused += not await self._move(key, state, target)
        if refused:
            self._wake()
        elif begun == 0:
            self._seen = seen

    def _target(
        self, key: LogKey, current: Sequence[str], retired: set[str], free: list[str], lasting: int, load: Load
    ) -> list[str]:
        """Who is to have a partition, in the order of preference: whoever comes takes the place of one that leaves."""
        table = self._node.table
        wanted = table.factor(key)
        racks = {name: record.about.get("rack", "") for name, record in table.brokers.items()}
        stay = [name for name in current if name not in retired]
        others = [name for name in free if name not in current]
        target = list(current)
        added: list[str] = []
        while others and len(stay) + len(added) < wanted:
            used = [racks.get(name, "") for name in (*stay, *added)]
            best = min(others, key=lambda name: (used.count(racks.get(name, "")), load.replicas[name], name))
            others.remove(best)
            added.append(best)
            leaving = next((name for name in target if name in retired), None)
            if leaving is None:
                target.append(best)
            else:
                target[target.index(leaving)] = best
        # Nobody takes the place of the others that leave. They stay as long as they are needed.
        needed = max(min(wanted, lasting), min(table.min_insync(key[0]), len(current)))
        for name in [name for name in target if name in retired][::-1]:
            if len(target) > needed:
                target.remove(name)
        return target

    async def _ensure(self) -> None:
        """Have the `min_insync` that is wanted hold, where there are replicas for it."""
        table = self._node.table
        for topic_id in table.topics():
            wanted = table.min_insync_wanted(topic_id)
            if table.min_insync(topic_id) < wanted:
                states = (table.state((topic_id, partition)) for partition in range(table.partitions_of(topic_id)))
                if all(state is not None and len(state.isr) >= wanted for state in states):
                    await self._submit("ensure", topic_id, wanted)

    # --- emptying a node, and forgetting it

    def had_by(self, name: str) -> list[LogKey]:
        return [key for key, state in self._node.table.items() if name in state.replicas]

    async def decommission(self, name: str) -> dict[str, Any]:
        """Empty a node: everything that it has goes to others. How many partitions these are, and what is lost by it."""
        warning = self._check_others(name)
        await self._submit("retire", name, True)
        moving = len(self.had_by(name))
        await self._begin_moves()
        self._wake()
        return {"moving": moving, "warning": warning}

    def _check_others(self, name: str) -> str:
        """Whether the other nodes are enough; what they are not enough for, as a sentence."""
        node, table = self._node, self._node.table
        if name not in table.brokers:
            raise BraidError("INVALID_ARGUMENT", reason=f"there is no node {name}")
        if not [other for other in table.placeable() if other != name]:
            raise BraidError("INVALID_ARGUMENT", reason="no other node could have what it has")
        left = len([other for other in table.lasting() if other != name])
        had = self.had_by(name)
        for key in had:
            topic, needed = node.broker.topics.by_id(key[0]), table.min_insync(key[0])
            if topic is not None and left < needed:
                reason = (
                    f"{left} nodes would be left, and {topic.name} needs {needed} replicas in sync: add a node first, or let it "
                    f"need fewer with `braid cluster require`"
                )
                raise BraidError("INVALID_ARGUMENT", reason=reason)
        short = sum(table.factor(key) > left for key in had)
        return f"{short:,} partitions will have fewer replicas than they are to have: {left} nodes are left" if short else ""

    async def forget(self, name: str) -> dict[str, Any]:
        """A node does not come back: others get what it had, and neither the cluster nor the etcd counts it any more."""
        node, table = self._node, self._node.table
        if name in node.sessions or name == node.node:
            raise BraidError("INVALID_ARGUMENT", reason=f"{name} is here: empty it with `decommission`, or stop it first")
        warning = self._check_others(name)
        # First of all, since it may be what keeps the others from a majority with a new one.
        await node.forgotten(name)
        await self._submit("retire", name, True)
        had = self.had_by(name)
        lost = 0
        for key in had:
            state = table.state(key)
            lost += state is not None and set(state.isr) == {name}
        if lost:
            warning = f"{name} alone had all of {lost:,} partitions, which have no leader until it is back or they are deleted"
        self._to_forget.add(name)
        await self._begin_moves()
        self._wake()
        return {"forgotten": name, "moving": len(had), "warning": warning}

    async def _mind_gone(self) -> None:
        node, table = self._node, self._node.table
        now_s = node.clock.monotonic()
        retired = [name for name, record in table.brokers.items() if record.retired and not record.live]
        gone = [name for name in retired if name not in node.sessions]
        self._gone_s = {name: self._gone_s.get(name, now_s) for name in gone}
        self._to_forget &= set(table.brokers)
        for name in gone:
            if name not in self._to_forget and now_s - self._gone_s[name] < node.settings.forget_s:
                continue
            journals = node.journals.state
            if self.had_by(name) or journals is None or name in journals.replicas:
                continue
            try:
                await node.forgotten(name)
            except BraidError as error:
                logger.warning("node %s cannot be forgotten yet: %s", name, error)
                continue
            await self._submit("unregister", name)
            logger.info("node %s had nothing left and is gone: it is no part of the cluster any more", name)

    # --- telling

    def progress(self) -> list[dict[str, Any]]:
        """Partitions that are on their way, or are to be."""
        node, table, topics = self._node, self._node.table, self._node.broker.topics
        retired = {name for name, record in table.brokers.items() if record.retired}
        moves: list[dict[str, Any]] = []
        for key, state in table.items():
            target, leaving = table.targets.get(key, ()), [name for name in state.replicas if name in retired]
            topic = topics.by_id(key[0])
            if (target or leaving) and topic is not None:
                missing = [name for name in target if name not in state.isr]
                row = {"topic": topic.name, "partition": key[1], "target": list(target), "waits_for": missing}
                moves.append(row | {"leaves": leaving})
        journals = node.journals.state
        leaving = [] if journals is None else [name for name in journals.replicas if name in retired]
        if leaving:
            moves.append({"topic": JOURNALS, "partition": 0, "target": [], "waits_for": [], "leaves": leaving})
        return moves
