"""A cluster as those who run it look at it: its nodes, who has what, how far behind replicas are, and whether anything is wrong.

States are known to every node. How far a replica is behind is known to the leader alone, so the others are asked, each once for all
that it leads; a node that does not answer in time leaves a gap and not an error.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.cluster.messages import pack, unpack
from braidmq.cluster.partition_state import LogKey
from braidmq.cluster.transport import ClusterOp

if TYPE_CHECKING:
    from braidmq.cluster.node import ClusterNode

_ANSWER_S: Final = 3.0

Lags = dict[LogKey, dict[str, int]]
"""Records that each replica lacks."""


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """Numbers of this node, and of the cluster as it knows it."""

    nodes: int
    live: int
    coordinates: bool
    has_coordinator: bool
    leaders: int
    """Partitions of topics that this node leads."""
    replicas: int
    """Partitions of topics that this node has."""
    isr: Counter[int]
    """Of partitions that this node leads: how many have how many replicas in sync."""
    under_replicated: int
    """Of partitions that this node leads: those with fewer replicas in sync than there are to be, or as there are nodes."""
    under_min_insync: int
    offline: int
    """Partitions that nobody leads, of the whole cluster."""
    reassigning: int
    journals_replicas: int
    """Nodes that have the broker's own journals."""
    journals_isr: int
    journals_min_insync: int
    elections: int
    isr_shrinks: int
    isr_expansions: int
    lag: dict[str, int]
    """Of partitions that this node leads: records that a replica lacks, at most, by its node."""


class Overview:
    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        node.transport.serve(ClusterOp.PROGRESS, self._asked)

    # --- numbers

    def figures(self) -> ClusterFigures:
        node, table = self._node, self._node.table
        leaders = replicas = under = below = offline = 0
        lasting = len(table.lasting())
        isr: Counter[int] = Counter()
        lag: dict[str, int] = {}
        for key, state in table.items():
            offline += not state.leader
            replicas += node.node in state.replicas
            if state.leader != node.node:
                continue
            leaders += 1
            isr[len(state.isr)] += 1
            under += len(state.isr) < max(len(state.replicas), min(table.factor(key), lasting))
            below += len(state.isr) < min(table.min_insync(key[0]), len(state.replicas))
            for name, missing in self._lags_of(key).items():
                lag[name] = max(lag.get(name, 0), missing)
        journals = node.journals.state
        return ClusterFigures(
            journals_replicas=0 if journals is None else len(journals.replicas),
            journals_isr=0 if journals is None else len(journals.isr), journals_min_insync=node.journals.min_insync,
            nodes=len(table.brokers), live=len(table.live()), coordinates=node.coordinates,
            has_coordinator=node.coordinator_node() in node.live(), leaders=leaders, replicas=replicas, isr=isr,
            under_replicated=under, under_min_insync=below, offline=offline, reassigning=len(table.targets),
            elections=table.elections, isr_shrinks=table.isr_shrinks, isr_expansions=table.isr_expansions, lag=lag,
        )  # fmt: skip

    def _lags_of(self, key: LogKey) -> dict[str, int]:
        """Of a partition that this node leads: what each of its replicas lacks."""
        found = self._node.replication.progress(key).get("replicas", {})
        return {name: max(0, row["lag"]) for name, row in sorted(found.items())}

    # --- how far replicas are

    async def lags(self, topic_id: int | None = None) -> Lags:
        """How far behind the replicas of all partitions are, or of one topic's, as their leaders say."""
        node = self._node
        leaders = {state.leader for key, state in node.table.items() if topic_id in (None, key[0])}
        others = sorted(leaders & node.live() - {node.node})
        found = self._own(topic_id)
        for answer in await asyncio.gather(*(self._ask(name, topic_id) for name in others)):
            found.update(answer)
        return found

    def _own(self, topic_id: int | None) -> Lags:
        node = self._node
        return {
            key: self._lags_of(key)
            for key, state in node.table.items()
            if state.leader == node.node and topic_id in (None, key[0])
        }

    async def _ask(self, name: str, topic_id: int | None) -> Lags:
        try:
            answer = await self._node.transport.call(name, ClusterOp.PROGRESS, pack({"topic": topic_id}), _ANSWER_S)
        except BraidError:
            return {}
        return {(topic, partition): lags for topic, partition, lags in unpack(answer)[0]}

    async def _asked(self, node: str, payload: memoryview) -> Sequence[Buffer]:
        found = self._own(unpack(payload)[0]["topic"])
        return pack([[topic, partition, lags] for (topic, partition), lags in found.items()])

    # --- everything

    async def document(self) -> dict[str, Any]:
        """The whole cluster, for `braid cluster` and the console."""
        node = self._node
        lags = await self.lags()
        leaders = Counter(state.leader for _, state in node.table.items())
        replicas = Counter(name for _, state in node.table.items() for name in state.replicas)
        journals = node.journals.state
        # A cluster of two has what it is to have with two replicas.
        lasting = len(node.table.lasting())
        partitions = []
        for key, state in node.table.items():
            topic = node.broker.topics.by_id(key[0])
            if topic is None:
                continue
            info = node.partition_info(*key)
            partitions.append({
                "topic": topic.name, "partition": key[1], "leader": state.leader, "epoch": state.epoch, "state": info.state,
                "replicas": list(state.replicas), "isr": list(state.isr), "elr": list(state.elr), "target": list(info.target),
                "factor": min(node.table.factor(key), lasting), "lag": lags.get(key, {}),
                "min_insync": min(node.table.min_insync(key[0]), len(state.replicas)),
                "min_insync_wanted": node.table.min_insync_wanted(key[0]),
            })  # fmt: skip
        partitions.sort(key=lambda row: (str(row["topic"]), int(str(row["partition"]))))
        return {
            "cluster_id": node.cluster_id,
            "node": node.node,
            "coordinator": node.coordinator_node(),
            "epoch": journals.epoch if journals is not None else 0,
            "journals": {} if journals is None else {
                "replicas": list(journals.replicas), "isr": list(journals.isr), "min_insync": node.journals.min_insync,
            },
            "trouble": node.trouble,
            "nodes": [
                {
                    "node": row.name, "status": row.status, "client": row.client_address, "cluster": row.cluster_address,
                    "rack": row.about.get("rack", ""), "coordinates": row.coordinates, "leaders": leaders[row.name],
                    "replicas": replicas[row.name],
                }
                for row in node.nodes()
            ],
            "partitions": partitions,
        }  # fmt: skip
