"""Long work on the loop, done so that nobody else waits for it: a little at a time, and others in between."""

from __future__ import annotations

import asyncio
from typing import Final

STEPS: Final = 100
"""Of the kind that take some microseconds, and a tenth of a millisecond at worst."""


class Pace:
    """Lets the loop serve others every so many steps."""

    def __init__(self) -> None:
        self._steps = 0

    async def step(self, steps: int = 1) -> None:
        self._steps += steps
        if self._steps >= STEPS:
            self._steps = 0
            await asyncio.sleep(0)
