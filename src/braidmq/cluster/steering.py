"""What an operator has done to a cluster: another leader, other replicas or more, leaders spread, a node emptied or forgotten.

Any node may be asked. The coordinator does it, and whoever was asked waits for what it says; a move of data goes on after that, and
`overview.py` shows how far it is.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.cluster.messages import pack, unpack
from braidmq.cluster.transport import ClusterOp

if TYPE_CHECKING:
    from braidmq.cluster.node import ClusterNode

_ANSWER_S: Final = 60.0
_PATIENCE_S: Final = 20.0
_AGAIN_S: Final = 0.1


class Steering:
    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        node.transport.serve(ClusterOp.STEER, self._asked)

    async def steer(self, verb: str, words: list[str]) -> dict[str, Any]:
        """Have the coordinator do it. What it says, with a sentence for people, the leaders that moved, and how many each node had
        and has."""
        clock = self._node.clock
        deadline_s = clock.monotonic() + _PATIENCE_S
        while True:
            try:
                if self._node.coordinates:
                    return await self._run(verb, words)
                leader = self._node.coordinator_node()
                if not leader:
                    raise BraidError("NOT_LEADER", reason="no leader elected")
                found: dict[str, Any] = unpack(
                    await self._node.transport.call(leader, ClusterOp.STEER, pack([verb, words]), _ANSWER_S)
                )[0]
                return found
            except BraidError as error:
                if error.code != "NOT_LEADER" or clock.monotonic() >= deadline_s:
                    raise
            await asyncio.sleep(_AGAIN_S)

    async def _asked(self, node: str, payload: memoryview) -> Sequence[Buffer]:
        self._node.check_coordinates()
        verb, words = unpack(payload)[0]
        return pack(await self._run(verb, words))

    async def _run(self, verb: str, words: list[str]) -> dict[str, Any]:
        table, topics = self._node.table, self._node.broker.topics
        if verb == "progress":
            return await self._node.coordinator.steer(verb, words)
        before = {key: state.leader for key, state in table.items()}
        outcome = await self._node.coordinator.steer(*self._led_by_a_stranger(verb, words))
        moves = [
            {"topic": topic.name, "partition": key[1], "from_node": before[key], "to_node": state.leader}
            for key, state in table.items()
            if key in before and before[key] != state.leader and (topic := topics.by_id(key[0])) is not None
        ]
        was = Counter(leader for leader in before.values() if leader)
        now = Counter(state.leader for _, state in table.items() if state.leader)
        leaders = {"old_leaders": dict(sorted(was.items())), "new_leaders": dict(sorted(now.items()))}
        return {"message": _sentence(outcome), **outcome, "moves": moves, **leaders}

    def _led_by_a_stranger(self, verb: str, words: list[str]) -> tuple[str, list[str]]:
        """Who is to lead and has not got a partition yet gets it, in the place of its last replica."""
        if verb != "lead" or len(words) != 3:
            return verb, words
        topic, partition, name = words
        found = self._node.broker.topic(topic)
        state = self._node.table.state((found.id, int(partition))) if partition.isascii() and partition.isdigit() else None
        if state is None or name in state.isr:
            return verb, words
        others = [node for node in state.replicas if node != name]
        kept = others if name in state.replicas else others[: max(0, len(state.replicas) - 1)]
        return "reassign", [topic, partition, name, *kept]


def _sentence(outcome: dict[str, Any]) -> str:
    match outcome:
        case {"moved": 0}:
            return "leaders are spread evenly: nothing to move"
        case {"moved": count}:
            return f"{count} leaders were moved"
        case {"moving": count, "warning": warning, **rest}:
            what = f"{rest['forgotten']} is forgotten when nothing is left on it: " if "forgotten" in rest else ""
            return f"{what}{count} partitions go to other nodes{f'. {warning}' if warning else ''}"
        case {"factor": factor, "min_insync": min_insync}:
            return f"its partitions are to have {factor} replicas, {min_insync} of them in sync for an acknowledgement"
        case {"target": [first, *_] as names}:
            return f"it goes to {', '.join(names)}, and {first} leads as soon as it has everything"
        case {"leader": name}:
            return f"{name} leads"
    return "done"
