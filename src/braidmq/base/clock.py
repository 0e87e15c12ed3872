"""Time is given, never grabbed: everything that needs it takes a `Clock`.

`now_ms` is wall-clock time for people and for record timestamps; it may jump. `monotonic` is for durations and deadlines;
it never goes back. `ManualClock` moves only when a test moves it.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self._now_ms += round(seconds * 1000)
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Move the wall clock only, as an operator or NTP does."""
        self._now_ms += round(seconds * 1000)
