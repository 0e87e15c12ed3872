"""When a node counts as away, in simulated time: hints start a check, and the check alone decides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from braidmq.cluster.node import ClusterNode
from braidmq.sim.loop import SimLoop, run
from braidmq.sim.nodes import NodeWorld
from braidmq.sim.scenario import NAMES

SEED = 1
SUSPECT_S = 0.3
"""As the nodes of the simulator have it."""


class Quiet(NodeWorld):
    """Three nodes to which nothing happens but what a test does."""

    def __init__(self, seed: int, loop: SimLoop) -> None:
        super().__init__(seed, loop)
        self.rebalance_s = 0.0

    async def until(self, reached: Callable[[], bool], seconds: float) -> float:
        """Wait; how long it took, in simulated seconds."""
        began_s = self.loop.now_s
        while not reached():
            assert self.loop.now_s - began_s < seconds, f"not within {seconds:g} s"
            await asyncio.sleep(0.005)
        return self.loop.now_s - began_s

    def node(self, name: str) -> ClusterNode:
        return self.nodes[name].clustering.node

    @property
    def coordinator(self) -> str:
        return next((name for name in NAMES if self.machines[name].up and self.node(name).coordinates), "")

    def hint(self, at: str, name: str) -> None:
        """As gossip gives one, at a node."""
        self.machines[at].life.context.run(self.node(at).suspicion.check, name)

    def delay(self, name: str, seconds: float) -> None:
        """A node is heard late, without any connection that breaks."""
        for other in NAMES:
            self.network.slow_links[name, other] = seconds


Play = Callable[[Quiet], Awaitable[None]]


@pytest.fixture
def played() -> Iterator[Callable[[Play], None]]:
    def play(act: Play) -> None:
        loop = SimLoop()

        async def main() -> None:
            world = Quiet(SEED, loop)
            with world.told():
                for name in NAMES:
                    world.machine(name)
                    world.start(name)
                await world.prepare()
                await world.until(lambda: world.in_sync() and journals_whole(world), 30)
                await act(world)
                for machine in world.machines.values():
                    machine.life.end()
                world.quorum.close()

        run(loop, main())
        assert not loop.faults

    yield play


def journals_whole(world: Quiet) -> bool:
    state = world.node(NAMES[0]).journals.state
    return state is not None and set(state.isr) == set(NAMES)


def test_a_hint_alone_makes_nobody_a_suspect(played: Callable[[Play], None]) -> None:
    async def act(world: Quiet) -> None:
        for _ in range(20):
            world.hint("a", "b")
            await asyncio.sleep(0.1)
            assert not world.node("a").suspects

    played(act)


def test_a_node_that_is_silent_is_a_suspect_until_it_answers(played: Callable[[Play], None]) -> None:
    async def act(world: Quiet) -> None:
        world.delay("b", 5.0)
        world.hint("a", "b")
        took_s = await world.until(lambda: "b" in world.node("a").suspects, 1)
        assert took_s >= SUSPECT_S * 0.9 and not world.node("a").suspicion.refusing
        world.network.slow_links.clear()
        await world.until(lambda: not world.node("a").suspects, 2)

    played(act)


@pytest.mark.parametrize("coordinates", [False, True])
def test_a_killed_node_is_replaced_before_its_session_ends(played: Callable[[Play], None], coordinates: bool) -> None:
    """Its session lasts for a second, and it would count as in sync for nearly as long: neither is waited for."""

    async def act(world: Quiet) -> None:
        first = world.coordinator
        lost = first if coordinates else next(name for name in NAMES if name != first)
        world.machines[lost].crash(power=False)

        def replaced() -> bool:
            return bool(world.coordinator) and not any(
                state.leader in ("", lost) for _, state in world.node(world.coordinator).table.items()
            )

        assert await world.until(replaced, 2) < 2 * SUSPECT_S
        assert lost in world.node(world.coordinator).sessions, "its session is left to end by itself"

    played(act)


def test_two_that_do_not_hear_each_other_do_not_take_turns_without_end(played: Callable[[Play], None]) -> None:
    async def act(world: Quiet) -> None:
        first = world.coordinator
        other, third = (name for name in NAMES if name != first)
        world.machines[third].crash(power=False)

        def two_are_left() -> bool:
            state = world.node(first).journals.state
            return state is not None and set(state.isr) == {first, other}

        await world.until(two_are_left, 2)
        epoch = world.node(first).epoch
        world.network.cut([first], [other])
        await asyncio.sleep(5.0)
        assert world.node(first).epoch - epoch <= 6, "not more often than once in the life of a session"

    played(act)
