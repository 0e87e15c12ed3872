"""What goes wrong: machines lose power or their process, the network is cut or gets rough, nodes lose the quorum."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from braidmq.sim.network import NetworkFaults
from braidmq.sim.quorum import CALM, ROUGH, QuorumService
from braidmq.sim.world import World


class Nemesis:
    def __init__(
        self, world: World, quorum: QuorumService, start: Callable[[str], None], move: Callable[[], Coroutine[Any, Any, None]],
        leave: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:
        """`start` starts a machine, `move` has somebody else lead something, `leave` is what a machine does before it stops."""
        self._world = world
        self._quorum = quorum
        self._start = start
        self._move = move
        self._leave = leave
        self.active = True

    async def run(self) -> None:
        rng = self._world.rng
        pace_s = rng.choice([0.3, 0.8, 1.5])
        moves = [self._crash_many, self._heal, self._weather, self._no_quorum]
        moves += 2 * [self._crash, self._cut, self._other_leaders, self._slow_node]
        while self.active:
            await asyncio.sleep(rng.uniform(0.05, pace_s))
            if self.active:
                rng.choice(moves)()

    def _crash(self) -> None:
        up = [machine for machine in self._world.machines.values() if machine.up]
        if up:
            self._down(self._world.rng.choice(up).name)

    def _crash_many(self) -> None:
        if self._world.rng.random() < 0.3:
            for machine in list(self._world.machines.values()):
                if machine.up and self._world.rng.random() < 0.8:
                    self._down(machine.name)

    def _down(self, name: str) -> None:
        rng = self._world.rng
        self._world.machines[name].crash(power=rng.random() < 0.7)
        asyncio.get_running_loop().call_later(rng.uniform(0.01, 2.5), self._up, name)

    def _up(self, name: str) -> None:
        if not self._world.machines[name].up:
            self._start(name)

    def _cut(self) -> None:
        rng = self._world.rng
        names = list(self._world.machines)
        some = rng.sample(names, rng.randint(1, len(names) - 1))
        self._world.network.cut(some, [name for name in names if name not in some], both_ways=rng.random() < 0.7)

    def _slow_node(self) -> None:
        """Somebody hears or is heard late, and stays in sync all the same."""
        rng = self._world.rng
        name, late_s = rng.choice(list(self._world.machines)), rng.choice([0.02, 0.1, 0.3])
        self._world.trace("slow", name, late_s)
        for other in self._world.machines:
            self._world.network.slow_links[other, name] = late_s
            if rng.random() < 0.5:
                self._world.network.slow_links[name, other] = late_s

    def _heal(self) -> None:
        self._world.network.heal()
        for name in self._world.machines:
            self._quorum.reconnect(name)

    def _weather(self) -> None:
        rng = self._world.rng
        faults = NetworkFaults(rng.choice([0, 0.02, 0.15]), rng.choice([0, 0.1]), rng.choice([0, 0.02, 0.2]))
        self._world.network.faults = faults
        self._quorum.faults = rng.choice([CALM, ROUGH])
        self._world.trace("weather", faults.lost, faults.repeated, faults.slow)

    def _no_quorum(self) -> None:
        name = self._world.rng.choice(list(self._world.machines))
        self._world.trace("no quorum", name)
        self._quorum.cut_off(name)

    def _other_leaders(self) -> None:
        self._moving = asyncio.ensure_future(self._move_leaders(self._world.rng.randint(1, 6)))

    async def _move_leaders(self, times: int) -> None:
        for _ in range(times):
            if self.active:
                await self._move()
                await asyncio.sleep(self._world.rng.uniform(0.02, 0.4))

    async def lose_one(self) -> str:
        """A machine goes, in bad weather or good, and does not come back by itself; soon all is well but that. Its name."""
        rng = self._world.rng
        for _ in range(rng.randint(0, 2)):
            rng.choice([self._weather, self._slow_node, self._no_quorum])()
            await asyncio.sleep(rng.uniform(0.0, 0.5))
        name = rng.choice(list(self._world.machines))
        if rng.random() < 0.5:
            await self._leave(name)
        self._world.machines[name].crash(power=rng.random() < 0.5)
        await asyncio.sleep(rng.uniform(0.0, 2.0))
        self._calm_weather()
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        return name

    def bring_back(self, name: str) -> None:
        self._up(name)

    def _calm_weather(self) -> None:
        self._heal()
        self._world.network.faults = NetworkFaults()
        self._quorum.faults = CALM

    def calm(self) -> None:
        """Everything is well again, and stays so."""
        self.active = False
        self._calm_weather()
        for name in self._world.machines:
            self._up(name)
