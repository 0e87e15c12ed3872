"""The second scenario: three whole nodes. Broker, journals, coordinator, forwarding, replication and recovery are what users run.

Only what touches the outside is another: the network, the disk, the time, the quorum, and the sockets of clients, in whose place
clients call the broker's own operations over the simulated network. Besides records they commit offsets, which go through the
journals and whoever coordinates.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.settings import BrokerSettings
from braidmq.cluster.messages import pack, unpack
from braidmq.cluster.node_settings import NodeSettings
from braidmq.cluster.partition_state import LogKey, PartitionState
from braidmq.cluster.replication import ReplicationSettings
from braidmq.cluster.transport import AddressBook
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings, PartitionLog
from braidmq.server.clustering import Clustering
from braidmq.sim.clients import COMMIT, PRODUCE, READ
from braidmq.sim.loop import Life, SimLoop
from braidmq.sim.machine import Machine
from braidmq.sim.quorum import QuorumService
from braidmq.sim.scenario import NAMES, Scenario, Tell, read_values

TOPIC: Final = "orders"
CREATE: Final = 0x04
_REPLICATION: Final = ReplicationSettings(
    lag_s=0.8, wait_s=0.05, answer_s=0.4, retry_s=0.03, partition_bytes=20_000, fetch_bytes=90_000
)


class SimNode:
    """One life of a machine with a broker."""

    def __init__(self, machine: Machine, world: NodeWorld) -> None:
        name = machine.name
        settings = NodeSettings(
            node=name, cluster_id="sim", about={"cluster": name, "client": name}, session_s=1.0, suspect_s=0.3,
            rebalance_interval_s=world.rebalance_s,
        )  # fmt: skip
        self.world = world
        self.machine = machine
        self.up = False
        """Whether it has come in."""
        self.clustering = Clustering(
            settings, world.quorum.driver(name), machine.transport, AddressBook(), world.clock, _REPLICATION
        )
        self.broker = Broker(
            world.broker_settings, machine.disk, world.clock, syncer=machine.syncer(), machines=self.clustering.machines
        )
        self.clustering.join(self.broker)

    async def run(self) -> None:
        transport = self.machine.transport
        while True:
            try:
                await self.broker.recover()
                await self.clustering.start()
                self.up = True
                self._watching = asyncio.create_task(self._begin_anew())
                break
            except BraidError as error:
                # As a service does that is started again when it ends. A new life finds the disk as this one left it.
                self.world.trace(self.machine.name, "did not start:", error)
                self.world.restart_soon(self.machine)
                return
        for op, handler in {PRODUCE: self._produce, READ: self._read, COMMIT: self._commit, CREATE: self._create}.items():
            transport.serve(op, handler)

    async def _begin_anew(self) -> None:
        """As a server does whose node missed more than is kept."""
        await self.clustering.node.outdated.wait()
        self.world.trace(self.machine.name, "begins anew")
        self.world.restart_soon(self.machine)

    async def _create(self, client: str, payload: memoryview) -> list[Buffer]:
        await self.broker.create_topic(TOPIC, unpack(payload)[0])
        return pack(self.broker.topic(TOPIC).id)

    async def _produce(self, client: str, payload: memoryview) -> list[Buffer]:
        document, batch = unpack(payload)
        broker, partition = self.broker, document["key"][1]
        broker.partition(TOPIC, partition)
        staged = broker.stage_batch(broker.topic(TOPIC), partition, batch)
        await broker.durable(staged.log, staged.base_offset + staged.records)
        return pack(staged.base_offset)

    async def _read(self, client: str, payload: memoryview) -> list[Buffer]:
        document, _ = unpack(payload)
        log = self.broker.log_of(self.broker.topic(TOPIC), document["key"][1])
        offset = max(document["offset"], log.log_start)
        found = read_values(log, offset, 50) if offset < log.high_watermark else []
        return pack([[at, value.decode("latin-1")] for at, value in found])

    async def _commit(self, client: str, payload: memoryview) -> list[Buffer]:
        document, _ = unpack(payload)
        key = document["key"][0], document["key"][1]
        if document["offset"] < self.world.history.committed.get((document["group"], key), 0):
            # The network repeats what was answered long ago; a connection of a client does not.
            return pack(False)
        await self.broker.commit_offset(TOPIC, document["group"], document["key"][1], document["offset"])
        return pack(True)


class NodeWorld(Scenario):
    node_kind: type[SimNode] = SimNode
    faulty_s = 4.0

    def __init__(self, seed: int, loop: SimLoop, tell: Tell | None = None) -> None:
        super().__init__(seed, loop, tell)
        rng = random.Random(f"{seed}:setup")
        self.quorum = QuorumService(self.clock, random.Random(f"{seed}:quorum"))
        self.nodes: dict[str, SimNode] = {}
        self.keys: list[LogKey] = []
        self.partitions = rng.choice([1, 3])
        self.rebalance_s = rng.choice([0.0, 1.0])
        self.broker_settings = BrokerSettings(
            "data", LogSettings(Level.QUORUM, rng.choice([2000, 1 << 20]), retention_bytes=0, retention_age_ms=0),
            checkpoint_interval_s=rng.choice([0.4, 2.0]), retention_interval_s=1.0,
            # So few that a machine that is down for a moment may miss what is let go.
            journal_snapshot_commands=rng.choice([2, 2, 100]), journal_segment_bytes=300,
        )  # fmt: skip

    def start(self, name: str) -> None:
        self.quorum.reconnect(name)

        async def program(machine: Machine) -> None:
            node = self.nodes[name] = self.node_kind(machine, self)
            await node.run()

        self.machines[name].start(program)

    def restart_soon(self, machine: Machine) -> None:
        def again() -> None:
            if machine.up:
                machine.crash(power=False)
                self.start(machine.name)

        asyncio.get_running_loop().call_later(0.2, again)

    async def prepare(self) -> None:
        """A topic, by whichever node is the first to make it."""
        life = Life("operator", 1)
        transport = self.network.attach(life)
        while True:
            try:
                found = await transport.call(self.rng.choice(NAMES), CREATE, pack(self.partitions), 5.0)
                break
            except BraidError as error:
                self.trace("operator", error.code)
                await asyncio.sleep(0.1)
        topic_id = unpack(found)[0]
        self.keys = [(topic_id, partition) for partition in range(self.partitions)]

    async def move_leader(self) -> None:
        up = [node for node in self.nodes.values() if node.machine.up and node.clustering.node.coordinates]
        if not up:
            return
        key, name = self.rng.choice(self.keys), self.rng.choice(NAMES)
        state = up[0].clustering.table.state(key)
        if state is not None and name in state.isr and name != state.leader:
            self.trace("move", key[1], name)
            command = ["lead", *key, state.epoch, state.version, name]
            up[0].machine.life.spawn(self._submitted(up[0], command))

    async def leave(self, name: str) -> None:
        self.trace("leave", name)
        node = self.nodes[name]
        if node.machine.up:
            await node.machine.life.spawn(node.clustering.leave())

    async def _submitted(self, node: SimNode, command: list[object]) -> None:
        try:
            await node.broker.submit_metadata("replicas", command)
        except BraidError as error:
            self.trace("operator", error.code)

    def log(self, name: str, key: LogKey) -> PartitionLog | None:
        node = self.nodes.get(name)
        return None if node is None or not node.machine.up else node.broker.store.opened(*key)

    def state(self, name: str, key: LogKey) -> PartitionState | None:
        node = self.nodes.get(name)
        return None if node is None or not node.machine.up else node.clustering.table.state(key)

    def settled(self) -> bool:
        """Also the journals: whoever missed some of them is in sync again, and has applied all of them."""
        if not super().settled():
            return False
        applied = []
        for name in NAMES:
            node = self.nodes[name]
            state = node.clustering.node.journals.state if node.machine.up and node.up else None
            if state is None or set(state.isr) != set(NAMES):
                return False
            applied.append(node.clustering.node.applied())
        return applied[0] == applied[1] == applied[2]

    def check_more(self) -> None:
        """Every node has applied every commit of offsets that was acknowledged."""
        for (group, key), offset in self.history.committed.items():
            for name, node in self.nodes.items():
                found = node.broker.groups.committed(key[0], group, key[1])
                # What a client gave up may be on its way still, and come after what it asked for next.
                late = found in self.history.given_up.get((group, key), ())
                if found is None or (found < offset and not late):
                    self.history.complaints.append(f"lost: {group} committed {offset} of {key}, and {name} knows {found}")
