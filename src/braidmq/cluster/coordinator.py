"""What the coordinator of a cluster sees to: who is here, who has what, and who leads.

It runs on the node that leads the journals, and decides nothing by itself: each step is a command of the table of replicas
(`replica_table.py`), or a guarded write of the journals' own state, made from what is known now and refused if that is not so
any more. One loop looks at everything again whenever something may have changed. It needs no memory: a coordinator that takes
over sees what is to be done, and goes on.

    a node announced itself                  register; it gets the journals too while they have too few replicas
    its session is over, or it is suspected  fence: its partitions get other leaders, and nobody waits for it
    a topic has no replicas                  place
    a topic is gone                          remove
    a partition is on its way to others      wait until they are in sync, then let go of those who have it too many
    leaders are spread unevenly              move some, each to a replica in sync
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.errors import BraidError
from braidmq.cluster.partition_state import LogKey
from braidmq.cluster.placement import STRATEGIES, Load, Node, leaders_to_move

if TYPE_CHECKING:
    from braidmq.cluster.node import ClusterNode

_LOOK_AGAIN_S: Final = 1.0
_RETRY_S: Final = 0.2
_REPLICAS: Final = "replicas"

logger = logging.getLogger("braidmq.cluster")


class Coordinator:
    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._balanced_s = 0.0
        self._leaving: dict[str, int] = {}
        """Nodes that are about to stop, and their generations: they are not registered again."""

    def start(self) -> None:
        self._balanced_s = self._node.clock.monotonic()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        self._leaving.clear()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def wake(self) -> None:
        """Something may have changed."""
        self._wake.set()

    async def _submit(self, *command: Any) -> Any:
        return await self._node.broker.submit_metadata(_REPLICAS, list(command))

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._look()
            except BraidError as error:
                logger.warning("the coordinator tries again: %s", error)
                await asyncio.sleep(_RETRY_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await self._wake.wait()

    async def _look(self) -> None:
        await self._mind_brokers()
        await self._mind_topics()
        await self._mind_moves()
        await self._mind_journals()
        await self._mind_balance()

    # --- brokers

    async def _mind_brokers(self) -> None:
        node = self._node
        table = node.table
        for name, session in sorted(node.sessions.items()):
            record = table.brokers.get(name)
            if name in node.suspects:
                continue
            if self._leaving.get(name) == session.generation:
                continue
            about = node.about(name, session)
            if record is None or not record.live or record.generation != session.generation or record.about != about:
                await self._submit("register", name, session.generation, about)
                logger.info("node %s is here, generation %d", name, session.generation)
        live = node.live()
        for name, record in sorted(table.brokers.items()):
            if record.live and name not in live:
                await self._submit("fence", name, record.generation)
                logger.warning("node %s is away: others lead what it led", name)

    async def retire_leaders(self, name: str) -> None:
        """A node is about to stop: let others lead what it leads."""
        record = self._node.table.brokers.get(name)
        if record is not None:
            self._leaving[name] = record.generation
            await self._submit("fence", name, record.generation)
            if name != self._node.node:
                await self._node.journals.drop({name})

    async def move_leaders(self, name: str) -> None:
        """Let others that are in sync lead what a node leads."""
        table = self._node.table
        leaders = Counter(state.leader for _, state in table.items())
        for key, state in list(table.items()):
            other = table.successor(state, leaders) if state.leader == name else ""
            if other in state.isr:
                leaders[other] += 1
                await self.lead(key, other)

    # --- topics

    async def _mind_topics(self) -> None:
        node = self._node
        table, topics = node.table, node.broker.topics
        if len(table.topics()) != len(topics) or any(topics.by_id(topic_id) is None for topic_id in table.topics()):
            for topic_id in table.topics():
                if topics.by_id(topic_id) is None:
                    await self._submit("remove", topic_id)
            for topic in topics.all():
                if not table.partitions_of(topic.id) and table.placeable():
                    await self._place(topic.id, topic.partitions, topic.first_partition)

    async def _place(self, topic_id: int, partitions: int, begin: int) -> None:
        settings = self._node.settings
        table = self._node.table
        nodes = [Node(name, table.brokers[name].about.get("rack", "")) for name in table.placeable()]
        factor = min(settings.replication_factor, len(nodes))
        strategy = STRATEGIES[settings.placement]
        load = Load.of(state for _, state in table.items()) if settings.placement == "least-loaded" else Load()
        placed = strategy(nodes, partitions, factor, load, begin)
        await self._submit("place", topic_id, min(settings.min_insync, factor), placed)

    # --- moves

    async def reassign(self, key: LogKey, replicas: list[str]) -> None:
        """Let other nodes have a partition; it stays served on the way there."""
        table = self._node.table
        state = table.state(key)
        unknown = [name for name in replicas if name not in table.brokers]
        if state is None or unknown or not replicas or len(set(replicas)) != len(replicas):
            reason = f"there is no node {unknown[0]}" if unknown else "name the partition's new nodes, each once"
            raise BraidError("INVALID_ARGUMENT", reason=reason)
        together = [*replicas, *(name for name in state.replicas if name not in replicas)]
        await self._submit("replicas", *key, state.epoch, state.version, together, replicas)
        self.wake()

    async def _mind_moves(self) -> None:
        table = self._node.table
        for key, target in list(table.targets.items()):
            state = table.state(key)
            if state is None or not set(target) <= set(state.isr):
                continue
            if state.leader not in target:
                await self._submit("lead", *key, state.epoch, state.version, target[0])
                state = table.state(key)
                if state is None or state.leader not in target:
                    continue
            await self._submit("replicas", *key, state.epoch, state.version, list(target), [])
            logger.info("partition %s is on %s now", key, ", ".join(target))

    async def lead(self, key: LogKey, name: str) -> None:
        """Let a replica in sync lead."""
        state = self._node.table.state(key)
        if state is None or name not in state.isr:
            able = ", ".join(state.isr) if state is not None else "nobody"
            raise BraidError("INVALID_ARGUMENT", reason=f"{name} is not in sync: {able} may lead")
        await self._submit("lead", *key, state.epoch, state.version, name)

    # --- by hand

    async def steer(self, verb: str, words: list[str]) -> dict[str, Any]:
        """What an administrator asks for, see CLUSTER_STEER."""
        match verb, words:
            case "rebalance", []:
                moves = await self.rebalance()
                return {"moved": len(moves), "moves": moves, "leaders": self._leaders()}
            case "lead", [topic, partition, name]:
                await self.lead(self._key(topic, partition), name)
                return {"leader": name}
            case "reassign", [topic, partition, *names]:
                await self.reassign(self._key(topic, partition), names)
                return {"target": names}
            case "decommission", [name]:
                return {"moving": await self.decommission(name)}
            case "recommission", [name]:
                await self._submit("retire", name, False)
                return {"node": name}
            case "progress", []:
                return {"moves": self.progress()}
        raise BraidError("INVALID_ARGUMENT", reason=f"the cluster cannot {verb} {' '.join(words)}".rstrip())

    def _key(self, topic: str, partition: str) -> LogKey:
        found = self._node.broker.topic(topic)
        if not (partition.isascii() and partition.isdigit() and int(partition) < found.partitions):
            raise BraidError("INVALID_ARGUMENT", reason=f"{topic} has no partition {partition}")
        return found.id, int(partition)

    def progress(self) -> list[dict[str, Any]]:
        """Partitions that are on their way."""
        table, topics = self._node.table, self._node.broker.topics
        moves = []
        for key, target in table.targets.items():
            state, topic = table.state(key), topics.by_id(key[0])
            if state is not None and topic is not None:
                missing = [name for name in target if name not in state.isr]
                moves.append({"topic": topic.name, "partition": key[1], "target": list(target), "waits_for": missing})
        return moves

    # --- decommission

    async def decommission(self, name: str) -> int:
        """Empty a node: everything that it has goes to others. Returns how many partitions are on their way."""
        table = self._node.table
        if name not in table.brokers:
            raise BraidError("INVALID_ARGUMENT", reason=f"there is no node {name}")
        others = [other for other in table.placeable() if other != name]
        if not others:
            raise BraidError("INVALID_ARGUMENT", reason="no other node could have what it has")
        await self._submit("retire", name, True)
        load = Load.of(state for _, state in table.items())
        moving = 0
        for key, state in list(table.items()):
            current = table.targets.get(key, state.replicas)
            if name not in current:
                continue
            free = sorted((other for other in others if other not in current), key=lambda other: (load.replicas[other], other))
            target = [other for other in current if other != name]
            if free:
                target.insert(list(current).index(name), free[0])
                load.replicas[free[0]] += 1
            if not target:
                continue
            await self.reassign(key, target)
            moving += 1
        return moving

    # --- the journals' own replicas

    async def _mind_journals(self) -> None:
        node = self._node
        state = node.journals.state
        if state is None:
            return
        table = node.table
        retired = {name for name, record in table.brokers.items() if record.retired}
        replicas = [name for name in state.replicas if name not in retired or name == node.node]
        spare = [name for name in table.placeable() if name not in replicas]
        # An even number needs as many to agree as the odd one above it, and survives no more; but two are better than one.
        while len(replicas) < node.settings.replication_factor and spare:
            replicas.append(spare.pop(0))
        if tuple(replicas) != state.replicas:
            await node.journals.set_replicas(tuple(replicas))

    # --- balance

    def _leaders(self) -> dict[str, int]:
        """How many partitions each node leads."""
        table = self._node.table
        leaders = dict.fromkeys(sorted(table.live()), 0)
        for _, state in table.items():
            if state.leader in leaders:
                leaders[state.leader] += 1
        return leaders

    async def rebalance(self, threshold: float = 0.0) -> list[tuple[str, int, str, str]]:
        """Spread leaders evenly over those in sync; (topic, partition, from, to) of those that moved."""
        table = self._node.table
        states = [(key, state) for key, state in table.items() if key not in table.targets]
        before = dict(states)
        moved = []
        for key, name in leaders_to_move(states, table.placeable(), threshold):
            topic = self._node.broker.topics.by_id(key[0])
            if topic is None:
                continue
            # One after the other, each when the one before is done: others go on meanwhile.
            await self.lead(key, name)
            moved.append((topic.name, key[1], before[key].leader, name))
        return moved

    async def _mind_balance(self) -> None:
        settings = self._node.settings
        now_s = self._node.clock.monotonic()
        if settings.rebalance_interval_s and now_s - self._balanced_s >= settings.rebalance_interval_s:
            self._balanced_s = now_s
            moved = await self.rebalance(settings.rebalance_threshold)
            if moved:
                logger.info("%d leaders were moved to spread them", len(moved))
