"""One simulation: a seed, the time, the network, and what is told of it."""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from braidmq.sim.clock import SimClock
from braidmq.sim.history import History
from braidmq.sim.loop import SimLoop, machine_name
from braidmq.sim.machine import Machine
from braidmq.sim.network import Network


class _Messages(logging.Handler):
    """What machines log, told with the machine that did."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.DEBUG)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.trace(machine_name(), record.getMessage())


class World:
    """Everything that a scenario is made of. What happens follows from `seed` alone."""

    def __init__(self, seed: int, loop: SimLoop, tell: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.loop = loop
        self.clock = SimClock(loop)
        self.rng = random.Random(f"{seed}:nemesis")
        self.network = Network(random.Random(f"{seed}:network"), self.trace)
        self.machines: dict[str, Machine] = {}
        self.history = History()
        self.events = 0
        self._tell = tell
        self._digest = hashlib.sha256()

    def trace(self, *what: object) -> None:
        """Something happened. Two runs of one seed tell the same."""
        self.events += 1
        line = f"{self.loop.now_s:10.6f} {' '.join(map(str, what))}"
        self._digest.update(line.encode())
        if self._tell is not None:
            self._tell(line)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Within this, what machines log is told in the trace, and nowhere else."""
        logger = logging.getLogger("braidmq")
        handler, kept, passes_on = _Messages(self), logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(kept)
            logger.propagate = passes_on

    @property
    def fingerprint(self) -> str:
        """Another one for another history."""
        return self._digest.hexdigest()[:16]

    def machine(self, name: str) -> Machine:
        self.machines[name] = Machine(name, str(self.seed), self.network, self.trace)
        return self.machines[name]
