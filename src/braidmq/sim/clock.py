"""The time of the simulation, as the clock of every machine in it."""

from __future__ import annotations

from typing import Final

from braidmq.sim.loop import SimLoop

_BEGAN_MS: Final = 1_700_000_000_000


class SimClock:
    def __init__(self, loop: SimLoop, boot_id: str = "simulated") -> None:
        self._loop = loop
        self.boot_id = boot_id

    def now_ms(self) -> int:
        return _BEGAN_MS + round(self._loop.now_s * 1000)

    def monotonic(self) -> float:
        return self._loop.now_s

    def since_boot(self) -> float:
        return self._loop.now_s
