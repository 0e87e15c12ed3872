"""The first scenario: partition logs on three machines, replicated, under producers, readers and everything that goes wrong.

The logs, the group commit, recovery, checkpoints and replication are those of the broker. Around them is as little as will do: a
controller that keeps each partition's state in the quorum, and clients that send batches and read rows. So a seed takes a
fraction of a second, and what it finds lies in the log or in replication.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from functools import partial
from typing import Any, Final

from braidmq import hot
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.broker.store import CheckpointDraft, LogStore
from braidmq.cluster import partition_state
from braidmq.cluster.messages import pack, unpack
from braidmq.cluster.partition_state import LogKey, PartitionState
from braidmq.cluster.quorum import SESSIONS, Conflict, Guard, Ok, Put
from braidmq.cluster.replication import Replication, ReplicationSettings
from braidmq.log.commit import GroupCommit, SyncJob
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings, PartitionLog
from braidmq.sim.clients import PRODUCE, READ
from braidmq.sim.loop import SimLoop
from braidmq.sim.machine import Machine
from braidmq.sim.quorum import QuorumService
from braidmq.sim.scenario import NAMES, Scenario, Tell, read_values, settle

MIN_INSYNC: Final = 2
_STATES: Final = "p/"
_SESSION_S: Final = 1.0
_LOOK_S: Final = 0.15
_SETTINGS: Final = ReplicationSettings(lag_s=0.8, wait_s=0.05, answer_s=0.4, retry_s=0.03, partition_bytes=3000, fetch_bytes=9000)


def name_of(key: LogKey) -> str:
    return f"{_STATES}{key[0]}/{key[1]}"


class ReplicaNode:
    """One life of a machine with replicas."""

    def __init__(self, machine: Machine, world: ReplicaWorld) -> None:
        self.name = machine.name
        self.machine = machine
        self.world = world
        self.logs: dict[LogKey, PartitionLog] = {}
        self.states: dict[LogKey, tuple[PartitionState, int]] = {}
        """Each with the revision of its key."""
        self.inherited: dict[LogKey, int] = {}
        """Epochs that were there when this life began: none of them is this life's."""
        self.commit: GroupCommit
        self.store: LogStore
        self.replication: Replication
        self.generation = 0

    async def run(self) -> None:
        world, machine = self.world, self.machine
        loop = asyncio.get_running_loop()
        self.store = LogStore(machine.disk, "data", replicated=True)
        self.store.open()
        self.commit = GroupCommit(world.clock, machine.syncer(), loop.call_soon)
        for key in world.keys:
            self.logs[key] = self.store.partition(key[0], f"t{key[0]}", key[1], world.log_settings)
        self.quorum = world.quorum.driver(self.name)
        session = await self._session()
        self.generation = session.generation
        self.replication = Replication(
            machine.transport, world.clock, self.commit, self.logs.get, self._alter_isr, _SETTINGS, min_insync=lambda _: MIN_INSYNC,
            refusal=lambda key: BraidError("NOT_LEADER", reason=f"not partition leader: {self.name}"),
            generation=lambda: self.generation, beside=self._beside,
        )  # fmt: skip
        machine.transport.serve(PRODUCE, self._produce)
        machine.transport.serve(READ, self._read)
        asyncio.create_task(self._mind_session(session))
        asyncio.create_task(self._checkpoints())
        while True:
            try:
                await self._look()
            except BraidError as error:
                world.trace(self.name, "quorum", error.code)
            await asyncio.sleep(_LOOK_S)

    async def _beside(self, action: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(None, action)

    async def _session(self) -> Any:
        while True:
            try:
                return await self.quorum.session(self.name, _SESSION_S, b"")
            except BraidError as error:
                self.world.trace(self.name, "no session", error.code)
                await asyncio.sleep(_LOOK_S)

    async def _mind_session(self, session: Any) -> None:
        while True:
            await session.lost()
            session = await self._session()
            self.generation = session.generation

    # --- the controller

    async def _look(self) -> None:
        """Learn the states, and mend those that nobody else does."""
        reading = await self.quorum.read("")
        live = [key.removeprefix(SESSIONS) for key in reading.entries if key.startswith(SESSIONS)]
        for key in self.world.keys:
            entry = reading.entries.get(name_of(key))
            if entry is None:
                await self._write(key, partition_state.created(NAMES, NAMES), 0)
                continue
            state = PartitionState.of(json.loads(entry.value))
            if key not in self.inherited:
                self.inherited[key] = state.epoch
            mine_before = state.leader == self.name and state.epoch <= self.inherited[key]
            if state.leader not in live or mine_before:
                after = partition_state.elected(state, live)
                if after is not None:
                    await self._write(key, after, entry.revision)
                continue
            self._learn(key, state, entry.revision)

    async def _write(self, key: LogKey, state: PartitionState, revision: int) -> PartitionState | None:
        """Write a state if the one before it is still there; what is there afterwards, None when that is unknown."""
        guard = Guard(name_of(key), revision)
        result = await self.quorum.txn([guard], [Put(name_of(key), json.dumps(state.document()).encode())])
        match result:
            case Ok(now):
                self.world.trace(self.name, "state", key[1], state.leader, state.epoch, ",".join(state.isr), f"v{state.version}")
                self._learn(key, state, now)
                return state
            case Conflict(entries):
                entry = entries.get(name_of(key))
                return None if entry is None else PartitionState.of(json.loads(entry.value))
        return None

    def _learn(self, key: LogKey, state: PartitionState, revision: int) -> None:
        known = self.states.get(key)
        if known is None or known[1] < revision:
            self.states[key] = state, revision
            if not (state.leader == self.name and state.epoch <= self.inherited.get(key, -1)):
                self.replication.assign(key, state)

    async def _alter_isr(self, key: LogKey, state: PartitionState, isr: tuple[str, ...]) -> PartitionState | None:
        known, revision = self.states[key]
        if known != state:
            return known
        # The same isr again settles what an earlier word on it came to.
        after = partition_state.with_isr(state, isr, MIN_INSYNC) or replace(state, version=state.version + 1)
        return await self._write(key, after, revision)

    async def _checkpoints(self) -> None:
        """What housekeeping does: remember how far readers saw, and let go of what is too old."""
        rng = random.Random(f"{self.world.seed}:{self.name}:{self.machine.life.number}")
        while True:
            await asyncio.sleep(rng.uniform(0.1, 1.5))
            draft = CheckpointDraft()
            for _ in self.store.draft_checkpoint(draft):
                pass
            if draft.changed:
                self.store.save(self.store.drafted(), SyncJob(draft.files, draft.names))
            for name in self.store.opened_names():
                for segment in self.store.apply_retention(name, self.world.clock.now_ms()):
                    segment.remove()

    # --- clients

    async def _produce(self, client: str, payload: memoryview) -> list[Buffer]:
        document, batch = unpack(payload)
        log = self.logs[document["key"][0], document["key"][1]]
        log.check_writable()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if document["idempotent"]:
            offset, records, _, duplicate = log.stage_batch(batch, self.commit.now_ms())
            if not duplicate:
                self.commit.touch(log)
            log.when_durable(offset + records, partial(settle, done))
        else:
            # As the parser does it: rows of whoever comes in this turn are one batch, and the run joins the cycle.
            offset = log.accumulator.next_offset
            for value in hot.decode_records(bytes(batch), 0, 1 << 20, lambda _offset, _time, _key, value, _attrs: value)[0]:
                log.accumulator.append(None, value)
            if not log.accumulator.dirty:
                log.accumulator.dirty = True
                self.commit.dirty.append(log.accumulator)
            self.commit.join(Level.QUORUM, lambda outcome: settle(done, outcome.failures.get(log)))
        await done
        return pack(offset)

    async def _read(self, client: str, payload: memoryview) -> list[Buffer]:
        document, _ = unpack(payload)
        log = self.logs[document["key"][0], document["key"][1]]
        offset = max(document["offset"], log.log_start)
        found = read_values(log, offset, 50) if offset < log.high_watermark else []
        return pack([[at, value.decode("latin-1")] for at, value in found])


class ReplicaWorld(Scenario):
    def __init__(self, seed: int, loop: SimLoop, tell: Tell | None = None) -> None:
        super().__init__(seed, loop, tell)
        rng = random.Random(f"{seed}:setup")
        self.keys: list[LogKey] = [(1, number) for number in range(rng.choice([1, 2]))]
        self.log_settings = LogSettings(
            Level.QUORUM, rng.choice([1500, 6000, 1 << 20]), retention_bytes=rng.choice([0, 0, 8000]), retention_age_ms=0
        )
        self.quorum = QuorumService(self.clock, random.Random(f"{seed}:quorum"))
        self.nodes: dict[str, ReplicaNode] = {}

    def start(self, name: str) -> None:
        machine = self.machines[name]
        self.quorum.reconnect(name)

        async def program(machine: Machine) -> None:
            node = self.nodes[name] = ReplicaNode(machine, self)
            await node.run()

        machine.start(program)

    async def move_leader(self) -> None:
        """As an operator does: let another one of those in sync lead."""
        operator = self.quorum.driver("operator")
        key = self.rng.choice(self.keys)
        try:
            entry = (await operator.read(name_of(key))).entries.get(name_of(key))
            if entry is None:
                return
            state = PartitionState.of(json.loads(entry.value))
            after = partition_state.elected(state, NAMES, self.rng.choice(NAMES))
            if after is not None and after.leader != state.leader:
                self.trace("move", key[1], after.leader, after.epoch)
                value = json.dumps(after.document()).encode()
                await operator.txn([Guard(name_of(key), entry.revision)], [Put(name_of(key), value)])
        except BraidError as error:
            self.trace("operator", error.code)

    def log(self, name: str, key: LogKey) -> PartitionLog | None:
        node = self.nodes.get(name)
        return None if node is None else node.logs.get(key)

    def state(self, name: str, key: LogKey) -> PartitionState | None:
        node = self.nodes.get(name)
        known = None if node is None else node.states.get(key)
        return None if known is None else known[0]
