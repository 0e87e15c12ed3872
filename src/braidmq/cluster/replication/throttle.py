"""How much may be copied for replicas that catch up: so many bytes a second, and a second's worth at once.

The limit keeps a new replica from starving clients. Where clients write faster than that, it would keep the replica from ever being
in sync again, and the partition one loss away from standing still: so the limit grows while what is lacking does not get less, and
is itself again when nothing is lacking.
"""

from __future__ import annotations

from typing import Final

from braidmq.base.clock import Clock

LOOK_S: Final = 5.0
"""How long it is watched whether a replica comes nearer."""
NEARER: Final = 0.9
"""It does when it lacks no more than this share of what it lacked."""
GROWS: Final = 1.5


class Throttle:
    def __init__(self, clock: Clock, bytes_per_s: int) -> None:
        self._clock = clock
        self._wanted_per_s = bytes_per_s
        self.bytes_per_s = float(bytes_per_s)
        """What holds now."""
        self._left = self.bytes_per_s
        self._at_s = clock.monotonic()
        self._lacking: dict[str, int] = {}
        self._looked_s = self._at_s
        self._lacked = 0
        """Records that were lacking when it was looked at last."""

    def allowed(self) -> int:
        """Bytes that may be asked for now."""
        now_s = self._clock.monotonic()
        self._left = min(self.bytes_per_s, self._left + (now_s - self._at_s) * self.bytes_per_s)
        self._at_s = now_s
        return max(0, int(self._left))

    def spend(self, size: int) -> None:
        """So many came. The last batch may be larger than what was allowed; it is paid for later."""
        self._left -= size

    def lacks(self, leader: str, records: int) -> None:
        """So many records of what `leader` leads are lacking now in replicas that catch up."""
        self._lacking[leader] = records
        lacking = sum(self._lacking.values())
        now_s = self._clock.monotonic()
        if not lacking:
            self.bytes_per_s = float(self._wanted_per_s)
        elif self._lacked and now_s - self._looked_s < LOOK_S:
            return
        elif self._lacked and lacking > NEARER * self._lacked:
            self.bytes_per_s *= GROWS
        self._looked_s, self._lacked = now_s, lacking
