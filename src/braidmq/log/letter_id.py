"""Ids of dead letters: the topic they came from, their offset, and when they failed, as published clients know them.

An id leads to its letter without a search. Offsets tell the letters of one partition apart; the nanoseconds behind them are
milliseconds in truth, and what is left of them names the partition of the dead-letter topic.
"""

from __future__ import annotations

from typing import Final

from braidmq.base import limits

_PARTITIONS: Final = 1_000_000
"""Nanoseconds in a millisecond."""
_DIGITS_MAX: Final = 19
assert limits.PARTITIONS_MAX <= _PARTITIONS


def letter_id(origin: str, partition: int, offset: int, last_ms: int) -> str:
    # The time comes from attributes that anyone may have written.
    return f"{origin}-{offset}-{max(last_ms, 0) * _PARTITIONS + partition}"


def place_in(letter: str) -> tuple[int, int] | None:
    """(partition, offset) in the dead-letter topic, None for what is no id."""
    parts = letter.rsplit("-", 2)
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts[1:]) or len(parts[1]) > _DIGITS_MAX:
        return None
    return int(parts[2][-6:]) % _PARTITIONS, int(parts[1])
