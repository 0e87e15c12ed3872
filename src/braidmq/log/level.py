"""Durability levels: what an acknowledgement means."""

from __future__ import annotations

from enum import IntEnum


class Level(IntEnum):
    """Ordered: a higher level promises more."""

    NONE = 0
    """Received. A failed write is logged, not reported."""
    OS = 1
    """Written to the operating system: survives kill -9, not the loss of power."""
    FSYNC = 2
    """fdatasync finished: survives the loss of power."""
    QUORUM = 3
    """As `fsync` on every replica that is in sync, and on no fewer than `min_insync`: survives the loss of the machine. On a broker
    of its own there is one replica, and it is the same as `fsync`."""

    @classmethod
    def parse(cls, name: str) -> Level:
        return cls[name.upper()]
