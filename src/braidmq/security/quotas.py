"""Quotas: bytes and requests a second, for each user, kept by slowing down. Nothing is ever refused or dropped.

A bucket fills at the user's rate and holds one second's worth, which a user who was silent may spend at once. What is spent
beyond that is a debt, and the answer is how long to wait until it is paid: the caller stops reading that connection for so
long. Debts add up over all connections of a user, so more connections do not make a user faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from braidmq.base import limits
from braidmq.base.clock import Clock


@dataclass(frozen=True, slots=True)
class Rates:
    """What a user may spend a second; 0 is without limit."""

    bytes_per_s: int = 0
    requests_per_s: int = 0


class _Bucket:
    """What is left to spend; below zero, what is owed."""

    __slots__ = ("bytes_left", "requests_left", "seen_s")

    def __init__(self, rates: Rates, now_s: float) -> None:
        self.bytes_left = rates.bytes_per_s * limits.QUOTA_BURST_SECONDS
        self.requests_left = rates.requests_per_s * limits.QUOTA_BURST_SECONDS
        self.seen_s = now_s

    def fill(self, rates: Rates, now_s: float) -> None:
        passed = now_s - self.seen_s
        self.seen_s = now_s
        self.bytes_left = _filled(self.bytes_left, rates.bytes_per_s, passed)
        self.requests_left = _filled(self.requests_left, rates.requests_per_s, passed)

    def owed_s(self, rates: Rates) -> float:
        """How long until everything owed is paid."""
        return max(_owed_s(self.bytes_left, rates.bytes_per_s), _owed_s(self.requests_left, rates.requests_per_s))


class Quotas:
    def __init__(
        self,
        clock: Clock,
        defaults: Rates,
        rates_of: Callable[[str], Rates | None] | None = None,
        buckets_max: int = limits.QUOTA_USERS_MAX,
    ) -> None:
        """`rates_of` answers with the rates of one user, None where the defaults apply; changes apply at once."""
        self._clock = clock
        self._defaults = defaults
        self._rates_of = rates_of
        self._buckets_max = buckets_max
        self._buckets: dict[str, _Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def charge(self, user: str, size_bytes: int, requests: int = 1, *, address: str = "") -> float:
        """Note what a user spent, and say for how many seconds to stop reading from it; 0 is not at all.

        Anonymous clients (`user` empty) are told apart by address.
        """
        rates = (self._rates_of(user) if user and self._rates_of is not None else None) or self._defaults
        name = user or f"\0{address}"
        if not rates.bytes_per_s and not rates.requests_per_s:
            self._buckets.pop(name, None)
            return 0.0
        now_s = self._clock.monotonic()
        bucket = self._buckets.get(name)
        if bucket is None:
            if len(self._buckets) >= self._buckets_max:
                self._forget(now_s)
            bucket = self._buckets[name] = _Bucket(rates, now_s)
        else:
            bucket.fill(rates, now_s)
        # What is spent without a limit is not held against a user who gets one later.
        bucket.bytes_left -= size_bytes if rates.bytes_per_s else 0
        bucket.requests_left -= requests if rates.requests_per_s else 0
        return bucket.owed_s(rates)

    def _forget(self, now_s: float) -> None:
        """Make room: whoever was silent long enough to owe nothing loses nothing; else the one silent for longest goes."""
        idle = [
            name
            for name, bucket in self._buckets.items()
            if now_s - bucket.seen_s >= limits.QUOTA_BURST_SECONDS and min(bucket.bytes_left, bucket.requests_left) >= 0
        ]
        for name in idle or [min(self._buckets, key=lambda name: self._buckets[name].seen_s)]:
            del self._buckets[name]


def _filled(left: float, rate: int, passed_s: float) -> float:
    """A rate of 0 has no bucket: nothing is owed, whatever was owed under another rate."""
    return min(rate * limits.QUOTA_BURST_SECONDS, left + rate * passed_s) if rate else 0.0


def _owed_s(left: float, rate: int) -> float:
    return -left / rate if rate and left < 0 else 0.0
