"""Wall time that never jumps: what delays and expiry are measured by.

A record that lives for a minute must live for a minute, also when somebody sets the machine's clock an hour forward
meanwhile. `SteadyClock` begins at the wall clock and then follows the monotonic one. When the two part, it goes over to the
wall clock in steps too small to matter: at most half a millisecond a second, about what time daemons use to correct a clock
unnoticed.

It never goes back. It keeps nothing between two runs: a start believes the wall clock, because nothing else tells how long
the broker was away. Time in which the machine sleeps passes only where the monotonic clock says so.
"""

from __future__ import annotations

from typing import Final

from braidmq.base.clock import Clock

_SLEW_MS_PER_S: Final = 0.5


class SteadyClock:
    __slots__ = ("_at_s", "_clock", "_now_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now_ms = float(clock.now_ms())
        self._at_s = clock.monotonic()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, as far as the machine's clock was right at the start."""
        at_s = self._clock.monotonic()
        passed_s = at_s - self._at_s
        if passed_s > 0:
            self._at_s = at_s
            expected_ms = self._now_ms + passed_s * 1000
            most = passed_s * _SLEW_MS_PER_S
            self._now_ms = expected_ms + min(most, max(-most, self._clock.now_ms() - expected_ms))
        return int(self._now_ms)
