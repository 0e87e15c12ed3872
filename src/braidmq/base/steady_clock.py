"""Wall time that never jumps: what delays and expiry are measured by.

A record that lives for a minute must live for a minute, also when somebody sets the machine's clock an hour forward
meanwhile. `SteadyClock` begins at the wall clock and then follows the one that counts from the start of the machine. When the two
part, it goes over to the wall clock in steps too small to matter: at most half a millisecond a second, about what time daemons use
to correct a clock unnoticed.

It never goes back, from one run of the broker to the next neither, as far as it was `kept`:

* While the machine was not started anew, its count tells how long the broker was away, whatever became of the wall clock.
* After a start of the machine only the wall clock can tell. It is believed, unless it is behind what was kept: then it was set
  back, and time goes on from there. How far it was set forward cannot be told from how long the machine was off.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from braidmq.base.clock import Clock

_SLEW_MS_PER_S: Final = 0.5


class KeptTime(NamedTuple):
    """What a run leaves to the next one: a moment on both clocks."""

    now_ms: float
    since_boot_s: float
    boot_id: str


class SteadyClock:
    __slots__ = ("_at_s", "_clock", "_now_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now_ms = float(clock.now_ms())
        self._at_s = clock.since_boot()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, as far as the machine's clock was right at the start."""
        at_s = self._clock.since_boot()
        passed_s = at_s - self._at_s
        if passed_s > 0:
            self._at_s = at_s
            expected_ms = self._now_ms + passed_s * 1000
            most = passed_s * _SLEW_MS_PER_S
            self._now_ms = expected_ms + min(most, max(-most, self._clock.now_ms() - expected_ms))
        return int(self._now_ms)

    def at_least(self, now_ms: int) -> None:
        """It was that late already."""
        self._now_ms = max(self._now_ms, float(now_ms))

    def kept(self) -> KeptTime:
        self.now_ms()
        return KeptTime(self._now_ms, self._at_s, self._clock.boot_id)

    def go_on_from(self, kept: KeptTime) -> int:
        """Go on from an earlier run; returns by how many milliseconds that is ahead of the machine's clock."""
        wall_ms = self._clock.now_ms()
        self._at_s = self._clock.since_boot()
        away_s = self._at_s - kept.since_boot_s
        if kept.boot_id and kept.boot_id == self._clock.boot_id and away_s >= 0:
            self._now_ms = kept.now_ms + away_s * 1000
        else:
            self._now_ms = max(float(wall_ms), kept.now_ms)
        return int(self._now_ms) - wall_ms
