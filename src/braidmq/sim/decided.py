"""Clients that ask for what a coordinator decides: transactions over all partitions, and records that come later.

    half          a transaction is in some partitions and not in others
    lost          one that was acknowledged, or a delayed record that was, is nowhere
    duplicate     a record of one is there twice
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.errors import BraidError
from braidmq.cluster.messages import pack, unpack
from braidmq.cluster.partition_state import LogKey
from braidmq.sim.history import Sent, sent_of, value_of
from braidmq.sim.loop import Life

if TYPE_CHECKING:
    from braidmq.sim.world import World

TRANSACT: Final = 0x05
DELAY: Final = 0x06
_FIRST: Final = 100
"""Producers of other clients have lower numbers."""
_TRANSACTORS: Final = 2
_DELAYERS: Final = 1
_CALL_S: Final = 3.0
_DELAY_MS_MAX: Final = 1500


@dataclass(slots=True)
class Asked:
    """What was asked for once."""

    sent: Sent
    keys: list[LogKey]
    """Where its records go."""
    acked: bool = False


class DecidedClients:
    def __init__(self, world: World, nodes: list[str], keys: list[LogKey]) -> None:
        self._world = world
        self._nodes = nodes
        self._keys = keys
        self._busy = 0
        self.finishing = False
        self.asked: list[Asked] = []

    def start(self) -> None:
        for number in range(_FIRST, _FIRST + _TRANSACTORS):
            self._begin(number, TRANSACT)
        for number in range(_FIRST + _TRANSACTORS, _FIRST + _TRANSACTORS + _DELAYERS):
            self._begin(number, DELAY)

    def _begin(self, number: int, op: int) -> None:
        # Nobody promises in which order these come.
        self._world.history.plain.add(number)
        life = Life(f"asker-{number}", 1)
        self._world.network.attach(life)
        self._busy += 1
        life.spawn(self._ask(life.name, number, op)).add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._busy -= 1
        if not task.cancelled() and task.exception() is not None:
            self._world.history.complaints.append(f"fault: {task.exception()!r}")

    @property
    def done(self) -> bool:
        return not self._busy

    async def _ask(self, name: str, producer: int, op: int) -> None:
        world = self._world
        rng = random.Random(f"{world.seed}:{name}")
        transport = world.network.node(name)
        assert transport is not None
        number = 0
        node = rng.choice(self._nodes)
        while not self.finishing:
            keys = list(self._keys) if op == TRANSACT else [rng.choice(self._keys)]
            asked = Asked(Sent(producer, number), keys)
            number += 1
            for key in keys:
                world.history.note_sent(key, [asked.sent])
            self.asked.append(asked)
            value = value_of(asked.sent, 40).decode("latin-1")
            document: dict[str, Any] = {"id": asked.sent, "partitions": [key[1] for key in keys], "value": value}
            if op == DELAY:
                document["delay_ms"] = rng.randint(1, _DELAY_MS_MAX)
            try:
                unpack(await transport.call(node, op, pack(document), _CALL_S))
                asked.acked = True
                world.trace(name, "acked", asked.sent.number, "by", node)
            except BraidError as error:
                # It may have happened or not, and is not asked for again.
                world.trace(name, error.code, asked.sent.number, "by", node)
                node = rng.choice(self._nodes)
            await asyncio.sleep(rng.expovariate(1 / 0.04))

    def check(self, final: dict[LogKey, dict[int, bytes]]) -> None:
        say = self._world.history.complaints.append
        found: dict[LogKey, Counter[Sent | None]] = {
            key: Counter(sent_of(value) for value in values.values()) for key, values in final.items()
        }
        for asked in self.asked:
            times = [found[key][asked.sent] for key in asked.keys]
            if max(times) > 1:
                say(f"duplicate: {asked.sent} is there {times} times")
            elif min(times) != max(times):
                say(f"half: {asked.sent} is there {times} times")
            elif asked.acked and not max(times):
                say(f"lost: {asked.sent} was acknowledged, and is nowhere")
