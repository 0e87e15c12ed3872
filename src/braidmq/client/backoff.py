"""How long to wait before trying again: exponential, jittered, bounded.

Jitter matters more than the growth: when a broker restarts, all its clients fail at the same moment, and without it they
come back at the same moment too.
"""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """The pauses of one series of attempts. `reset` after a success."""

    __slots__ = ("_first_s", "_last_s", "_most_s", "_uniform")

    def __init__(self, first_s: float, most_s: float, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._last_s = first_s
        self._uniform = uniform

    def next(self) -> float:
        """Seconds to wait now: between the first pause and three times the previous one, never over the limit."""
        self._last_s = min(self._most_s, self._uniform(self._first_s, self._last_s * 3))
        return self._last_s

    def reset(self) -> None:
        self._last_s = self._first_s
