"""How much may be copied for replicas that catch up: so many bytes a second, and a second's worth at once."""

from __future__ import annotations

from braidmq.base.clock import Clock


class Throttle:
    def __init__(self, clock: Clock, bytes_per_s: int) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._left = float(bytes_per_s)
        self._at_s = clock.monotonic()

    def allowed(self) -> int:
        """Bytes that may be asked for now."""
        now_s = self._clock.monotonic()
        self._left = min(float(self._bytes_per_s), self._left + (now_s - self._at_s) * self._bytes_per_s)
        self._at_s = now_s
        return max(0, int(self._left))

    def spend(self, size: int) -> None:
        """So many came. The last batch may be larger than what was allowed; it is paid for later."""
        self._left -= size
