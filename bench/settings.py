"""How long and how often to measure: the choices of one benchmark run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from processes import BUILD


@dataclass(frozen=True, slots=True)
class Settings:
    """One run of the harness."""

    repeats: int = 3
    warmup_s: float = 1.0
    duration_s: float = 3.0
    connections: int = 8
    """Of the pipelined produce scenarios, for every entrant alike."""
    window: int = 1000
    """Requests in flight on each of those connections."""
    pure: bool = False
    """Run our broker on the plain-Python hot path throughout."""
    quick: bool = False
    huge: bool = False
    """Also measure a partition of 100 million records."""
    data_root: Path = BUILD / "data"
    """Where servers keep their data during a run: on a disk, not in memory, or the figures for fsync mean nothing."""

    touched_bytes: int = 3 << 30
    """Page cache that is written and freed again just before each run; see `processes.touch_memory`."""

    def timing(self) -> dict[str, float]:
        """The generator's flags for a timed run."""
        return {"warmup": self.warmup_s, "duration": self.duration_s}

    def shape(self) -> dict[str, float]:
        """The generator's flags for a pipelined produce."""
        return {**self.timing(), "connections": self.connections, "window": self.window}


def quick(settings: Settings) -> Settings:
    """Seconds instead of minutes: to see that everything runs, and roughly how fast."""
    return Settings(
        repeats=1, warmup_s=0.4, duration_s=1.0, connections=settings.connections, window=settings.window, pure=settings.pure,
        quick=True, data_root=settings.data_root, touched_bytes=1 << 30,
    )  # fmt: skip
