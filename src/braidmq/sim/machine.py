"""A machine: a disk that stays, and lives that come and go.

What runs on it is a *program*, started anew in each life. The loss of power takes with it everything that was not synced, in
whole or in part; the death of the process leaves the disk as it is. A machine may also stand still for a while and go on as if
nothing had been.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from braidmq.base.disk_faulty import FaultyDisk
from braidmq.log.commit import SyncJob
from braidmq.sim.loop import Life
from braidmq.sim.network import Network, SimTransport, Trace

Program = Callable[["Machine"], Awaitable[None]]


class SimSyncer:
    """Syncs as a disk does: some time later, and one after the other."""

    def __init__(self, disk: FaultyDisk, rng: random.Random, life: Life) -> None:
        self._disk = disk
        self._rng = rng
        self._life = life
        self._ready_s = 0.0

    def submit(self, job: SyncJob) -> None:
        loop = asyncio.get_running_loop()
        self._ready_s = max(loop.time(), self._ready_s) + self._rng.expovariate(1 / 0.0005)
        loop.call_at(self._ready_s, self._run, job)

    def _run(self, job: SyncJob) -> None:
        if not self._life.dead:
            job.run(self._disk)
            job.done(job)

    def close(self) -> None:
        """Jobs come back by themselves."""


class Machine:
    def __init__(self, name: str, seed: str, network: Network, trace: Trace) -> None:
        self.name = name
        self.rng = random.Random(f"{seed}:{name}")
        self.disk = FaultyDisk(self.rng.getrandbits(32))
        self.life = Life(name, 0)
        self.life.dead = True
        self.transport: SimTransport
        self.crashes = 0
        self._network = network
        self._trace = trace

    @property
    def up(self) -> bool:
        return not self.life.dead

    def start(self, program: Program) -> None:
        self._trace("start", self.name)
        self.life = Life(self.name, self.life.number + 1)
        self.transport = self._network.attach(self.life)
        self.life.spawn(self._run(program))

    async def _run(self, program: Program) -> None:
        await program(self)

    def syncer(self) -> SimSyncer:
        return SimSyncer(self.disk, self.rng, self.life)

    def crash(self, *, power: bool) -> None:
        """Lose power, or only the process."""
        self._trace("crash", self.name, "power" if power else "process")
        self.crashes += 1
        self.life.end()
        self._network.detach(self.name)
        self.disk = self.disk.crash(self.rng.getrandbits(32), power=power)
