"""The cluster, for those who look at it or run it: `client.cluster`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from braidmq.base.errors import BraidError
from braidmq.wire import flymq

from .asking import Asker


class Cluster:
    """`client.cluster`."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def status(self) -> flymq.ClusterState:
        """The nodes, and which of them coordinates."""
        return await self._asker.ask(flymq.ClusterStatus(), flymq.ClusterState)

    async def metadata(self, topic: str = "") -> list[flymq.ClusterTopic]:
        """Who has and who leads the partitions of a topic, or of all that may be read."""
        return list((await self._asker.ask(flymq.ClusterMap(topic), flymq.ClusterTopics)).topics)

    async def rebalance(self) -> int:
        """Spread leaders evenly over the replicas in sync; how many moved."""
        return int((await self.steer("rebalance"))["moved"])

    async def lead(self, topic: str, partition: int, node: str) -> None:
        """Let a replica in sync lead a partition."""
        await self.steer("lead", topic, str(partition), node)

    async def reassign(self, topic: str, partition: int, nodes: Sequence[str]) -> None:
        """Let these nodes have a partition; it stays served on the way there. `progress` says how far it is."""
        await self.steer("reassign", topic, str(partition), *nodes)

    async def decommission(self, node: str) -> int:
        """Move everything away from a node; how many partitions are on their way."""
        return int((await self.steer("decommission", node))["moving"])

    async def recommission(self, node: str) -> None:
        """Let a node get something again."""
        await self.steer("recommission", node)

    async def forget(self, node: str) -> int:
        """A node does not come back: others get what it had, and the cluster goes on without it. How many partitions these are."""
        return int((await self.steer("forget", node))["moving"])

    async def require(self, topic: str, *, replicas: int = 0, min_insync: int = 0) -> None:
        """How many replicas a topic's partitions are to have, and how many of them have to be in sync for an acknowledgement."""
        await self.steer("require", topic, str(replicas), str(min_insync))

    async def progress(self) -> list[dict[str, Any]]:
        """Partitions that are on their way to other nodes, and whom they wait for."""
        return list((await self.steer("progress"))["moves"])

    async def steer(self, verb: str, *words: str) -> dict[str, Any]:
        """Any of the above, with all that the cluster says to it."""
        answer = await self._asker.ask(flymq.ClusterSteer(verb, words), flymq.Steered)
        try:
            found = json.loads(answer.document)
        except ValueError as fault:
            raise BraidError("UNEXPECTED_REPLY", reason=f"{verb} was answered with no JSON: {fault}") from None
        if not isinstance(found, dict):
            raise BraidError("UNEXPECTED_REPLY", reason=f"{verb} was answered with no JSON object")
        return found
