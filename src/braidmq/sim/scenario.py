"""How a simulation goes: machines start, clients work, things go wrong; then all is well again (where a scenario says so, but for
one machine, which is lost and stays so for a while), and everything is compared.

A seed passes when every client got its answers, all replicas are in sync and have the same bytes, and the history is one that a log
which keeps its promises could have shown.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Final, TypeVar

from braidmq import hot
from braidmq.base.errors import BraidError
from braidmq.cluster.partition_state import LogKey, PartitionState
from braidmq.hot import layout
from braidmq.log.partition import PartitionLog
from braidmq.log.partition_reads import Cold
from braidmq.sim.clients import Clients
from braidmq.sim.loop import SimLoop, run
from braidmq.sim.nemesis import Nemesis
from braidmq.sim.quorum import QuorumService
from braidmq.sim.world import World

NAMES: Final = ("a", "b", "c")
_HEALED_S: Final = 60.0
"""In simulated time: after so long without faults everything has to be done."""

Tell = Callable[[str], None]


def settle(done: asyncio.Future[None], error: BraidError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(BraidError(error.code, **error.fields))


def read_values(log: PartitionLog, offset: int, records_max: int) -> list[tuple[int, bytes]]:
    """(offset, value) of what readers see."""
    read = log.read_batches(offset, 1 << 20)
    if isinstance(read, Cold):
        read.warm_up()
        read = log.read_batches(offset, 1 << 20, warmed=True)
    assert not isinstance(read, Cold)
    data = b"".join(read.slices)
    found, _ = hot.decode_records(data, offset, records_max, lambda at, _time, _key, value, _attrs: (at, bytes(value)))
    return [(at, value) for at, value in found if at < log.high_watermark]


def stored_bytes(log: PartitionLog, start: int, end: int) -> bytes:
    """What lies on the disk from the batch at `start` on, up to that at `end`."""
    parts: list[bytes] = []
    while start < end:
        read = log.read_stored(start, 1 << 20, warmed=True)
        assert not isinstance(read, Cold)
        data = b"".join(read.slices)
        at = 0
        while at < len(data) and start < end:
            head = layout.read_header(data, at)
            parts.append(data[at : at + head.length])
            at += head.length
            start = head.next_offset
    return b"".join(parts)


class Scenario(World):
    keys: list[LogKey]
    quorum: QuorumService
    faulty_s: float = 8.0
    """How long things go wrong."""
    loses_one: bool = False
    """Whether a machine is lost after that, and the others have to do without it for a while."""

    # --- what a scenario supplies

    @abstractmethod
    def start(self, name: str) -> None:
        """Start a machine that is down."""

    @abstractmethod
    async def move_leader(self) -> None:
        """Have somebody else lead something, as an operator does."""

    @abstractmethod
    def log(self, name: str, key: LogKey) -> PartitionLog | None: ...

    @abstractmethod
    def state(self, name: str, key: LogKey) -> PartitionState | None:
        """What a machine believes."""

    async def prepare(self) -> None:
        """What has to be there before clients come."""

    async def leave(self, name: str) -> None:
        """Let a machine hand over what it leads, before it is stopped."""

    async def restore(self) -> None:
        """All is well again: what an operator has to see to, after whatever was done before."""

    def check_more(self) -> None:
        """What else has to be true in the end."""

    # --- how it goes

    async def play(self) -> None:
        for name in NAMES:
            self.machine(name)
            self.start(name)
        await self.prepare()
        clients = Clients(self, list(NAMES), self.keys)
        clients.start()
        nemesis = Nemesis(self, self.quorum, self.start, self.move_leader, self.leave)
        trouble = asyncio.ensure_future(nemesis.run())
        await asyncio.sleep(self.faulty_s)
        nemesis.calm()
        trouble.cancel()
        await self.restore()
        if self.loses_one and await self._comes(self.in_sync, clients):
            lost = await nemesis.lose_one()
            clients.finishing = True
            # Whoever is left has to do: nothing may wait for one that does not come back.
            await self._comes(lambda: clients.done, clients)
            nemesis.bring_back(lost)
        clients.finishing = True
        await self._comes(lambda: clients.done and self.settled(), clients)
        self._compare()
        self.check_more()
        for machine in self.machines.values():
            machine.life.end()
        self.quorum.close()

    async def _comes(self, reached: Callable[[], bool], clients: Clients) -> bool:
        """Wait for something that has to come by itself."""
        for _ in range(round(_HEALED_S * 10)):
            await asyncio.sleep(0.1)
            if reached():
                return True
        self.history.complaints.append(f"stuck: {self.standing()}; {clients.standing()}")
        return False

    def in_sync(self) -> bool:
        """Whether every partition has a leader and all its replicas."""
        states = [self.state(self.leader(key), key) for key in self.keys]
        return all(state is not None and set(state.isr) == set(NAMES) for state in states)

    def leader(self, key: LogKey) -> str:
        """Who leads, as the machine says that knows most; empty when it leads not itself."""
        known = [(state.epoch, state.version, name) for name in NAMES if (state := self.state(name, key)) is not None]
        _, _, name = max(known, default=(0, 0, ""))
        state = self.state(name, key)
        return "" if state is None else state.leader

    def settled(self) -> bool:
        """Whether all replicas are in sync and have the same."""
        for key in self.keys:
            leader = self.leader(key)
            log, state = self.log(leader, key), self.state(leader, key)
            if log is None or state is None or set(state.isr) != set(NAMES):
                return False
            for name in NAMES:
                other = self.log(name, key)
                if other is None or (other.log_end, other.high_watermark) != (log.log_end, log.log_end):
                    return False
        return True

    def standing(self) -> str:
        found = []
        for name in NAMES:
            for key in self.keys:
                log, state = self.log(name, key), self.state(name, key)
                place = "no log" if log is None else f"{log.high_watermark}/{log.log_end}"
                found.append(f"{name}/{key[1]} {place} {state.document() if state is not None else 'unknown'}")
        return "; ".join(found)

    def _compare(self) -> None:
        """What is there in the end."""
        for key in self.keys:
            log = self.log(self.leader(key), key)
            if log is None:
                self.history.complaints.append(f"stuck: nobody leads {key}")
                continue
            final: dict[int, bytes] = {}
            offset = log.log_start
            try:
                while offset < log.high_watermark:
                    found = read_values(log, offset, 1 << 20)
                    final.update(found)
                    offset = found[-1][0] + 1
                self.history.check(key, final, log.log_start)
                for name in NAMES:
                    other = self.log(name, key)
                    if other is None or other is log:
                        continue
                    start = max(log.log_start, other.log_start)
                    end = min(log.high_watermark, other.high_watermark)
                    if stored_bytes(log, start, end) != stored_bytes(other, start, end):
                        self.history.complaints.append(f"apart: {key} on {self.leader(key)} and {name} from {start} to {end}")
            except BraidError as error:
                self.history.complaints.append(f"torn: {key}: {error}")


S = TypeVar("S", bound=Scenario)


def simulate(kind: Callable[[int, SimLoop, Tell | None], S], seed: int, tell: Tell | None = None) -> S:
    """Run one seed of a scenario; what is wrong is in its history."""
    loop = SimLoop()

    async def main() -> S:
        world = kind(seed, loop, tell)
        with world.told():
            await world.play()
        return world

    world = run(loop, main())
    for fault in loop.faults:
        world.history.complaints.append(f"fault: {fault!r}")
    return world


def outcome(world: Scenario) -> dict[str, Any]:
    """What a run was, in short."""
    return {
        "acked": world.history.records_acked,
        "read": world.history.records_seen,
        "crashes": sum(machine.crashes for machine in world.machines.values()),
        "messages": world.network.messages,
        "seconds": round(world.loop.now_s, 1),
        "fingerprint": world.fingerprint,
    }
