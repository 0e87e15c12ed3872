"""The third scenario: whole nodes, whose coordinator has much to do. Clients commit transactions over all partitions and send
records that come later, and an operator has partitions moved to other nodes, and nodes emptied.

Whatever becomes of coordinators, what was decided happens once and everywhere, and a partition that goes from node to node keeps
what it has.
"""

from __future__ import annotations

import asyncio
from typing import Final

from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.cluster.messages import pack, unpack
from braidmq.cluster.partition_state import LogKey
from braidmq.sim.decided import DELAY, TRANSACT, DecidedClients
from braidmq.sim.loop import SimLoop
from braidmq.sim.nodes import TOPIC, NodeWorld, SimNode
from braidmq.sim.scenario import NAMES, Tell, read_values

_STEER_S: Final = 1.0


class MovingNode(SimNode):
    world: MovingWorld

    async def run(self) -> None:
        self.machine.transport.serve(TRANSACT, self._transact)
        self.machine.transport.serve(DELAY, self._delay)
        await super().run()

    def _check_first(self, document: dict[str, object]) -> None:
        """Only who coordinates does it; and the network repeats what a connection of a client does not."""
        node = self.clustering.node
        node.check_coordinates()
        asked = str(document["id"])
        if asked in self.world.begun:
            raise BraidError("NOT_READY", state="asked twice")
        self.world.begun.add(asked)

    async def _transact(self, client: str, payload: memoryview) -> list[Buffer]:
        document, _ = unpack(payload)
        self._check_first(document)
        transactions = self.broker.transactions
        transaction = await transactions.begin(client)
        value = document["value"].encode("latin-1")
        for partition in document["partitions"]:
            await transactions.produce(transaction.id, TOPIC, b"", value, partition=partition)
        await transactions.commit(transaction.id)
        return pack(True)

    async def _delay(self, client: str, payload: memoryview) -> list[Buffer]:
        document, _ = unpack(payload)
        self._check_first(document)
        value = document["value"].encode("latin-1")
        await self.broker.delayed.produce(TOPIC, b"", value, document["delay_ms"], partition=document["partitions"][0])
        return pack(True)


class MovingWorld(NodeWorld):
    node_kind = MovingNode

    def __init__(self, seed: int, loop: SimLoop, tell: Tell | None = None) -> None:
        super().__init__(seed, loop, tell)
        self.begun: set[str] = set()
        """What clients asked for once and some node has begun with."""
        self.moves = 0
        self._asking: DecidedClients
        self._restoring: asyncio.Future[None]

    async def prepare(self) -> None:
        await super().prepare()
        self._asking = DecidedClients(self, list(NAMES), self.keys)
        self._asking.start()

    @property
    def decided(self) -> int:
        """How much of what clients asked for was acknowledged."""
        return sum(asked.acked for asked in self._asking.asked)

    # --- the operator

    def _coordinator(self) -> SimNode | None:
        up = (node for node in self.nodes.values() if node.machine.up and node.clustering.node.coordinates)
        return next(up, None)

    async def move_leader(self) -> None:
        rng = self.rng
        node = self._coordinator()
        if node is None:
            return
        retired = [name for name, record in node.clustering.table.brokers.items() if record.retired]
        match rng.choice(["lead", "reassign", "reassign", "empty"]):
            case "lead":
                await super().move_leader()
            case "reassign":
                replicas = rng.sample(NAMES, rng.choice([2, 3]))
                await self._steer(node, "reassign", [TOPIC, str(rng.choice(self.keys)[1]), *replicas])
            case "empty" if retired:
                await self._steer(node, "recommission", retired[:1])
            case "empty":
                await self._steer(node, "decommission", [rng.choice(NAMES)])

    async def _steer(self, node: SimNode, verb: str, words: list[str]) -> bool:
        self.trace(verb, *words)
        steered = node.machine.life.spawn(node.clustering.node.coordinator.steer(verb, words))
        try:
            await asyncio.wait_for(asyncio.shield(steered), _STEER_S)
        except (BraidError, TimeoutError, asyncio.CancelledError) as error:
            self.trace("operator", repr(error))
            steered.cancel()
            return False
        self.moves += 1
        return True

    async def restore(self) -> None:
        """Every node is to have everything again, also where something that was asked for before happens only now."""
        self._asking.finishing = True
        self._restoring = asyncio.ensure_future(self._restore())

    async def _restore(self) -> None:
        while True:
            node = self._coordinator()
            if node is not None:
                table = node.clustering.table
                for name in [name for name, record in table.brokers.items() if record.retired]:
                    await self._steer(node, "recommission", [name])
                for key, state in list(table.items()):
                    if set(table.targets.get(key, state.replicas)) != set(NAMES):
                        await self._steer(node, "reassign", [TOPIC, str(key[1]), *NAMES])
            await asyncio.sleep(0.2)

    # --- what has to be true

    def settled(self) -> bool:
        """Also nothing that was decided, or is to come, is left."""
        tables = [node.broker.work.table for node in self.nodes.values()]
        left = any(table.work or len(table.delayed) for table in tables)
        return self._asking.done and not left and super().settled()

    def check_more(self) -> None:
        self._restoring.cancel()
        super().check_more()
        for key in self.keys:
            for name in NAMES:
                log = self.log(name, key)
                if log is not None and log.log_start:
                    self.history.complaints.append(f"lost: {key} begins at {log.log_start} on {name}, and nothing was let go")
        self._asking.check({key: self._content(key) for key in self.keys})

    def _content(self, key: LogKey) -> dict[int, bytes]:
        log = self.log(self.leader(key), key)
        found: dict[int, bytes] = {}
        if log is not None:
            offset = log.log_start
            while offset < log.high_watermark:
                found.update(read_values(log, offset, 1 << 20))
                offset = max(found) + 1
        return found
