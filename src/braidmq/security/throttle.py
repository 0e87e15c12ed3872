"""Slows password guessing down, for a user and for an address, without locking anybody out for long.

The first few failures cost nothing: people mistype. After them the next attempt has to wait, twice as long with each failure, up to
half a minute; quiet time is forgiven. Waiting is counted from the last failure, so a thousand connections that guess at once
wait for the same moment and, once the first of them failed, wait again.

A success clears the user, and gives its address back what this user had cost it, but no more: whoever owns one account cannot
use it to wipe out guesses at others. An address from which a user has logged in before is not held up by what strangers
try with that user's name elsewhere, so guessing cannot keep the owner out; it still pays for its own failures.

The table is bounded. Nothing is written to disk: a restart forgives everybody, and takes longer than the wait.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from braidmq.base import limits
from braidmq.base.clock import Clock

_FIRST_WAIT_S: Final = 0.25
_FORGIVEN_AFTER_S: Final = 900.0
_FREE_FOR_USER: Final = 3
_FREE_FOR_ADDRESS: Final = 10
"""Many users may share an address."""

_Key = tuple[str, str, str]
"""What is counted (`user`, `address`, `pair` or `known`), the user, the address."""


@dataclass(slots=True)
class _Count:
    failures: int
    last_s: float


class LoginThrottle:
    def __init__(self, clock: Clock, entries_max: int = limits.THROTTLE_ENTRIES_MAX) -> None:
        self._clock = clock
        self._entries_max = entries_max
        self._counts: OrderedDict[_Key, _Count] = OrderedDict()
        """The one that changed longest ago comes first."""

    def __len__(self) -> int:
        return len(self._counts)

    def wait_s(self, user: str, address: str) -> float:
        """Seconds until this user may be tried from this address; 0 is now."""
        wait = self._left_s(("address", "", address), _FREE_FOR_ADDRESS)
        known = self._fresh(("known", user, address)) is not None
        own = ("pair", user, address) if known else ("user", user, "")
        return max(wait, self._left_s(own, _FREE_FOR_USER))

    def failed(self, user: str, address: str) -> None:
        for key in _keys(user, address):
            count = self._fresh(key)
            self._store(key, 1 if count is None else count.failures + 1)

    def succeeded(self, user: str, address: str) -> None:
        pair = self._fresh(("pair", user, address))
        whole = self._fresh(("address", "", address))
        if pair is not None and whole is not None:
            whole.failures = max(0, whole.failures - pair.failures)
        self._counts.pop(("pair", user, address), None)
        self._counts.pop(("user", user, ""), None)
        self._store(("known", user, address), 0)

    def _left_s(self, key: _Key, free: int) -> float:
        count = self._fresh(key)
        if count is None or count.failures < free:
            return 0.0
        # The exponent is bounded before the power is taken: failures are not.
        wait = min(limits.THROTTLE_SECONDS_MAX, _FIRST_WAIT_S * 2.0 ** min(count.failures - free, 32))
        return max(0.0, count.last_s + wait - self._clock.monotonic())

    def _fresh(self, key: _Key) -> _Count | None:
        count = self._counts.get(key)
        if count is not None and key[0] != "known" and self._clock.monotonic() - count.last_s >= _FORGIVEN_AFTER_S:
            del self._counts[key]
            return None
        return count

    def _store(self, key: _Key, failures: int) -> None:
        self._counts[key] = _Count(failures, self._clock.monotonic())
        self._counts.move_to_end(key)
        while len(self._counts) > self._entries_max:
            self._counts.popitem(last=False)


def _keys(user: str, address: str) -> tuple[_Key, _Key, _Key]:
    return ("user", user, ""), ("address", "", address), ("pair", user, address)
