"""Time that goes on as always, and that a test can move forward.

Both clocks of a broker are moved together: the one that records, delays, expiry and retention go by, and the event loop's, which
time-outs and housekeeping go by. So after `advance(3600)` everything in the broker happens that an hour would have brought.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from braidmq.base.clock import SystemClock


class MovableClock:
    """A `Clock` with what was added to it."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self.boot_id = self._real.boot_id
        self.ahead_s = 0.0
        self.on_advance: Callable[[float], None] = self.move
        """What `advance` does; the broker that uses the clock puts itself here."""

    def now_ms(self) -> int:
        return self._real.now_ms() + round(self.ahead_s * 1000)

    def monotonic(self) -> float:
        return self._real.monotonic() + self.ahead_s

    def since_boot(self) -> float:
        return self._real.since_boot() + self.ahead_s

    def move(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("time goes forward only")
        self.ahead_s += seconds

    def advance(self, seconds: float) -> None:
        """Let so much time pass at once; when this returns, what became due by it is done."""
        self.on_advance(seconds)


class MovableLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers go by a `MovableClock`."""

    def __init__(self, clock: MovableClock) -> None:
        self._clock = clock
        super().__init__()

    def time(self) -> float:
        return super().time() + self._clock.ahead_s
