"""Holds a loop to a rate.

The pace is kept against the start, not against the last turn, so that short delays are caught up and the average is what was
asked for. After a pause longer than a second the clock starts again: a stalled source does not end in a burst.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

CATCH_UP_SECONDS_MAX: Final = 1.0


class Pace:
    def __init__(self, rate: float, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        self._interval = 1 / rate
        self._now = now
        self._sleep = sleep
        self._due: float | None = None

    def wait(self) -> None:
        """Return when the next turn is due."""
        now = self._now()
        if self._due is None or now - self._due > CATCH_UP_SECONDS_MAX:
            self._due = now
        elif self._due > now:
            self._sleep(self._due - now)
        self._due += self._interval
