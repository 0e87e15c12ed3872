"""What the coordinator of a cluster sees to: who is here, who has what, and who leads.

It runs on the node that leads the journals, and decides nothing by itself: each step is a command of the table of replicas
(`replica_table.py`), or a guarded write of the journals' own state, made from what is known now and refused if that is not so
any more. One loop looks at everything again whenever something may have changed. It needs no memory: a coordinator that takes
over sees what is to be done, and goes on.

    a node announced itself                  register; it gets the journals too while they have too few replicas
    its session is over, or it is suspected  fence: its partitions get other leaders, and nobody waits for it
    a topic has no replicas                  place
    a topic is gone                          remove
    partitions are to have other replicas    see `moving.py`
    leaders are spread unevenly              move some, each to a replica in sync
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.errors import BraidError
from braidmq.cluster.moving import Moving
from braidmq.cluster.partition_state import LogKey, PartitionState
from braidmq.cluster.placement import STRATEGIES, Load, Node, leaders_to_move

if TYPE_CHECKING:
    from braidmq.cluster.node import ClusterNode

_LOOK_AGAIN_S: Final = 1.0
_RETRY_S: Final = 0.2
_REPLICAS: Final = "replicas"
_LEADERS_AT_ONCE: Final = 16
"""Leaders that one look moves by itself: others wait for what the coordinator sees next."""

logger = logging.getLogger("braidmq.cluster")


class Coordinator:
    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._balanced_s = 0.0
        self.moving = Moving(node, self._submit, self.wake)
        self._leaving: dict[str, int] = {}
        """Nodes that are about to stop, and their generations: they are not registered again."""

    def start(self) -> None:
        self._balanced_s = self._node.clock.monotonic()
        self.moving.begin()
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
        await self._mind_journals()
        await self.moving.mind()
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
        strategy = STRATEGIES[settings.placement]
        load = Load.of(state for _, state in table.items()) if settings.placement == "least-loaded" else Load()
        placed = strategy(nodes, partitions, min(settings.replication_factor, len(nodes)), load, begin)
        # Nodes that are away get what there are too few others for. They belong here, and catch up when they are back.
        away = [name for name in table.lasting() if name not in table.placeable()]
        factor = min(settings.replication_factor, len(nodes) + len(away))
        for partition, replicas in enumerate(placed):
            first = (begin + partition) % max(1, len(away))
            replicas += [*away[first:], *away[:first]][: max(0, factor - len(replicas))]
        wanted = min(settings.min_insync, settings.replication_factor)
        await self._submit("place", topic_id, min(wanted, factor), placed, settings.replication_factor, wanted)

    # --- leaders

    async def lead(self, key: LogKey, name: str) -> None:
        """Let a replica in sync lead; when this returns, it does."""
        table = self._node.table

        async def step(state: PartitionState) -> bool:
            able = [other for other in state.isr if other in table.live()]
            if name not in able:
                reason = f"{name} is not here or not in sync: {', '.join(able) or 'nobody'} may lead"
                raise BraidError("INVALID_ARGUMENT", reason=reason)
            if state.leader != name:
                await self._submit("lead", *key, state.epoch, state.version, name)
            after = table.state(key)
            return after is None or after.leader == name

        await self.moving.insist(key, step)

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
                await self.moving.reassign(self._key(topic, partition), names)
                return {"target": names}
            case "decommission", [name]:
                return await self.moving.decommission(name)
            case "forget", [name]:
                return await self.moving.forget(name)
            case "require", [topic, factor, min_insync]:
                return await self.require(topic, _number(factor), _number(min_insync))
            case "recommission", [name]:
                await self._submit("retire", name, False)
                return {"node": name}
            case "progress", []:
                return {"moves": self.moving.progress()}
        raise BraidError("INVALID_ARGUMENT", reason=f"the cluster cannot {verb} {' '.join(words)}".rstrip())

    def _key(self, topic: str, partition: str) -> LogKey:
        found = self._node.broker.topic(topic)
        if not (partition.isascii() and partition.isdigit() and int(partition) < found.partitions):
            raise BraidError("INVALID_ARGUMENT", reason=f"{topic} has no partition {partition}")
        return found.id, int(partition)

    async def require(self, topic: str, factor: int, min_insync: int) -> dict[str, Any]:
        """How many replicas a topic's partitions are to have, and how many of them have to have a record; 0 leaves it as it is."""
        table, found = self._node.table, self._node.broker.topic(topic)
        nodes = len(table.lasting())
        if factor > nodes:
            raise BraidError("INVALID_ARGUMENT", reason=f"there are {nodes} nodes: a partition cannot have {factor} replicas")
        keys = [(found.id, partition) for partition in range(found.partitions)]
        least = factor or min(map(table.factor, keys))
        if (min_insync or table.min_insync_wanted(found.id)) > least:
            reason = f"of {least} replicas no {min_insync or table.min_insync_wanted(found.id)} can be in sync"
            raise BraidError("INVALID_ARGUMENT", reason=reason)
        await self._submit("require", found.id, factor, min_insync)
        self.wake()
        return {"topic": topic, "factor": max(map(table.factor, keys)), "min_insync": table.min_insync_wanted(found.id)}

    # --- the journals' own replicas

    async def _mind_journals(self) -> None:
        node = self._node
        state = node.journals.state
        if state is None:
            return
        table = node.table
        retired = {name for name, record in table.brokers.items() if record.retired}
        stay = [name for name in state.replicas if name not in retired]
        spare = [name for name in table.placeable() if name not in stay]
        # An even number needs as many to agree as the odd one above it, and survives no more; but two are better than one.
        while len(stay) < node.settings.replication_factor and spare:
            stay.append(spare.pop(0))
        live = node.live()
        here = [name for name in stay if name in live]
        # Whoever is being emptied has them until those who stay are in sync, and are enough.
        enough = len(here) >= min(len(stay), node.journals.min_insync) and set(here) <= set(state.isr)
        kept = [name for name in state.replicas if name in retired and name != node.node and name in state.isr and not enough]
        me = [node.node] if node.node in retired else []
        replicas = (*stay, *kept, *me)
        if set(replicas) != set(state.replicas):
            await node.journals.set_replicas(replicas)
        elif me and enough and here:
            await node.journals.hand_over(set(here), stays=True)

    # --- balance

    def _leaders(self) -> dict[str, int]:
        """How many partitions each node leads."""
        table = self._node.table
        leaders = dict.fromkeys(sorted(table.live()), 0)
        for _, state in table.items():
            if state.leader in leaders:
                leaders[state.leader] += 1
        return leaders

    async def rebalance(self, threshold: float = 0.0, moves_max: int | None = None) -> list[tuple[str, int, str, str]]:
        """Spread leaders evenly over those in sync; (topic, partition, from, to) of those that moved."""
        table = self._node.table
        states = [(key, state) for key, state in table.items() if key not in table.targets]
        before = dict(states)
        moved = []
        for key, name in leaders_to_move(states, table.placeable(), threshold)[:moves_max]:
            topic = self._node.broker.topics.by_id(key[0])
            state = table.state(key)
            # Whoever died or fell behind since this was thought out does not get it.
            if topic is None or state is None or name not in state.isr or name not in self._node.live():
                continue
            # One after the other, each when the one before is done: others go on meanwhile.
            await self.lead(key, name)
            moved.append((topic.name, key[1], before[key].leader, name))
        return moved

    async def _mind_balance(self) -> None:
        settings = self._node.settings
        now_s = self._node.clock.monotonic()
        if settings.rebalance_interval_s and now_s - self._balanced_s >= settings.rebalance_interval_s:
            moved = await self.rebalance(settings.rebalance_threshold, _LEADERS_AT_ONCE)
            if moved:
                logger.info("%d leaders were moved to spread them", len(moved))
            if len(moved) == _LEADERS_AT_ONCE:
                # The others after another look at who is here.
                self.wake()
            else:
                self._balanced_s = now_s


def _number(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < 10):
        raise BraidError("INVALID_ARGUMENT", reason=f"{word} is not a number of replicas")
    return int(word)
