"""Clients of a simulated cluster: producers that send again until they are answered, others that never do, and readers."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

from braidmq import hot
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.cluster.messages import pack, unpack
from braidmq.cluster.partition_state import LogKey
from braidmq.sim.history import Sent, value_of
from braidmq.sim.loop import Life

if TYPE_CHECKING:
    from braidmq.sim.world import World

PRODUCE: Final = 0x01
READ: Final = 0x02
COMMIT: Final = 0x03
_NEVER: Final = ("FENCED_PRODUCER", "INVALID_BATCH", "INTERNAL", "CORRUPT_LOG")
_CALL_S: Final = 0.7
_PRODUCERS: Final = 3
_PLAIN: Final = 2
_READERS: Final = 2


class Clients:
    def __init__(self, world: World, nodes: list[str], keys: list[LogKey]) -> None:
        self._world = world
        self._nodes = nodes
        self._keys = keys
        self._busy = 0
        self.finishing = False
        """Whether what is under way is to be the last."""

    def start(self) -> None:
        for number in range(_PRODUCERS):
            self._begin(f"producer-{number}", self._produce(number, self._keys[number % len(self._keys)]))
        self._world.history.plain.update(range(_PRODUCERS, _PRODUCERS + _PLAIN))
        for number in range(_PRODUCERS, _PRODUCERS + _PLAIN):
            self._begin(f"plain-{number}", self._produce_once(number, self._keys[number % len(self._keys)]))
        for number in range(_READERS):
            self._begin(f"reader-{number}", self._consume(f"reader-{number}"))

    def _begin(self, name: str, work: Any) -> None:
        life = Life(name, 1)
        self._world.network.attach(life)
        self._busy += 1
        life.spawn(work).add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._busy -= 1
        if not task.cancelled() and task.exception() is not None:
            self._world.history.complaints.append(f"fault: {task.exception()!r}")

    @property
    def done(self) -> bool:
        return not self._busy

    def standing(self) -> str:
        return f"{self._busy} clients wait"

    async def _call(self, name: str, node: str, op: int, document: Any, *rest: Buffer) -> Any:
        transport = self._world.network.node(name)
        assert transport is not None
        return unpack(await transport.call(node, op, pack(document, *rest), _CALL_S))[0]

    async def _produce(self, producer: int, key: LogKey) -> None:
        """An idempotent producer: each batch is sent until it is answered."""
        world, name = self._world, f"producer-{producer}"
        rng = random.Random(f"{world.seed}:{name}")
        number = 0
        leader = rng.choice(self._nodes)
        while not self.finishing:
            sent = [Sent(producer, number + at) for at in range(rng.choice([1, 1, 3]))]
            values = [value_of(one, rng.choice([30, 30, 300])) for one in sent]
            batch = hot.encode_batch([None] * len(sent), values, None, producer + 1, 0, number)
            world.history.note_sent(key, sent)
            number += len(sent)
            while True:
                try:
                    offset = await self._call(name, leader, PRODUCE, {"key": key, "idempotent": True}, batch)
                    break
                except BraidError as error:
                    # A leader that does not know yet that it is none may miss what came since, and calls that out of order.
                    if error.code in _NEVER:
                        world.history.complaints.append(f"refused: {key} {sent[0]} by {leader}: {error}")
                        return
                    leader = rng.choice(self._nodes)
                    await asyncio.sleep(rng.uniform(0.0, 0.06))
            world.trace(name, "acked", offset, sent[0].number, "by", leader)
            world.history.note_acked(key, offset, sent)
            await asyncio.sleep(rng.expovariate(1 / 0.03))

    async def _produce_once(self, producer: int, key: LogKey) -> None:
        """A producer that cannot tell whether something was stored, and so never sends it again."""
        world, name = self._world, f"plain-{producer}"
        rng = random.Random(f"{world.seed}:{name}")
        number = 0
        leader = rng.choice(self._nodes)
        while not self.finishing:
            sent = [Sent(producer, number)]
            number += 1
            world.history.note_sent(key, sent)
            batch = hot.encode_batch([None], [value_of(sent[0], 40)])
            try:
                offset = await self._call(name, leader, PRODUCE, {"key": key, "idempotent": False}, batch)
            except BraidError:
                leader = rng.choice(self._nodes)
                await asyncio.sleep(0.02)
            else:
                world.trace(name, "acked", offset, sent[0].number, "by", leader)
                world.history.note_acked(key, offset, sent)
            await asyncio.sleep(rng.expovariate(1 / 0.05))

    async def _consume(self, name: str) -> None:
        """A reader that asks any node, and now and then begins anew."""
        world = self._world
        rng = random.Random(f"{world.seed}:{name}")
        places = dict.fromkeys(self._keys, 0)
        while not self.finishing:
            key, node = rng.choice(self._keys), rng.choice(self._nodes)
            try:
                found = await self._call(name, node, READ, {"key": key, "offset": places[key]})
            except BraidError as error:
                if error.code == "CORRUPT_LOG":
                    world.history.complaints.append(f"torn: {key} on {node}: {error}")
                found = []
            if found:
                world.history.note_seen(key, node, [(offset, value.encode("latin-1")) for offset, value in found])
                places[key] = found[-1][0] + 1 if rng.random() < 0.9 else 0
                if rng.random() < 0.3:
                    await self._commit(name, node, key, found[-1][0] + 1)
            await asyncio.sleep(rng.expovariate(1 / 0.05))

    async def _commit(self, name: str, node: str, key: LogKey, offset: int) -> None:
        """Remember a position with the cluster; never one that is before another."""
        history = self._world.history
        if offset <= max(history.committed.get((name, key), 0), history.tried.get((name, key), 0)):
            return
        history.tried[name, key] = offset
        try:
            await self._call(name, node, COMMIT, {"key": key, "group": name, "offset": offset})
        except BraidError as error:
            self._world.trace(name, "commit", error.code)
            history.given_up.setdefault((name, key), set()).add(offset)
        else:
            history.committed[name, key] = offset
