"""Time is given, never grabbed: everything that needs it takes a `Clock`.

`now_ms` is wall-clock time for people and for record timestamps; it may jump. `monotonic` is for durations and deadlines;
it never goes back. `since_boot` counts the time in which the machine sleeps too, and goes on from one process to the next until
the machine is started anew, which `boot_id` tells. `ManualClock` moves only when a test moves it.
"""

from __future__ import annotations

import itertools
import time
from typing import Final, Protocol

_BOOT_ID_FILE: Final = "/proc/sys/kernel/random/boot_id"


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back."""
        ...

    def since_boot(self) -> float:
        """Seconds since the machine was started, by which all its processes count."""
        ...

    @property
    def boot_id(self) -> str:
        """Another one each time the machine is started; empty where that cannot be told."""
        ...


class SystemClock:
    def __init__(self) -> None:
        self.boot_id = _boot_id()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
    """Read for every commit, so there is nothing in between."""

    def since_boot(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _boot_id() -> str:
    try:
        with open(_BOOT_ID_FILE, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        # Elsewhere than on Linux every process is taken for the first since the machine was started.
        return ""


class ManualClock:
    """A clock that stands still until it is moved. Each one is that of a machine that was just started."""

    _boots = itertools.count()

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0
        self._asleep_s = 0.0
        self.boot_id = f"boot {next(self._boots)}"

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def since_boot(self) -> float:
        return self._monotonic + self._asleep_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_ms += round(seconds * 1000)
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Move the wall clock only, as an operator or NTP does."""
        self._now_ms += round(seconds * 1000)

    def sleep(self, seconds: float) -> None:
        """Let the machine sleep: time passes, and nothing that runs notices."""
        self._now_ms += round(seconds * 1000)
        self._asleep_s += seconds

    def reboot(self) -> None:
        """Start the machine anew; the wall clock is what it was."""
        self._monotonic = self._asleep_s = 0.0
        self.boot_id = f"boot {next(self._boots)}"
