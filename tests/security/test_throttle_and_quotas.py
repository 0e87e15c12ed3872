"""Guessing gets slow and stays bounded; quotas make a user as slow as they say, and never lose anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base import limits
from braidmq.base.clock import ManualClock
from braidmq.security.quotas import Quotas, Rates
from braidmq.security.throttle import LoginThrottle


def guess(throttle: LoginThrottle, clock: ManualClock, user: str, address: str) -> float:
    """One wrong guess as soon as it is allowed; returns how long that took."""
    wait = throttle.wait_s(user, address)
    clock.advance(wait)
    assert throttle.wait_s(user, address) == 0
    throttle.failed(user, address)
    return wait


def test_waits_double_up_to_a_bound() -> None:
    clock = ManualClock()
    throttle = LoginThrottle(clock)
    waits = [guess(throttle, clock, "ann", "1.1.1.1") for _ in range(14)]
    assert waits[:3] == [0, 0, 0], "people mistype"
    assert waits[3:9] == [0.25, 0.5, 1, 2, 4, 8]
    assert waits[-1] == limits.THROTTLE_SECONDS_MAX == max(waits)


def test_another_address_does_not_help_with_the_same_user() -> None:
    clock = ManualClock()
    throttle = LoginThrottle(clock)
    for number in range(8):
        guess(throttle, clock, "ann", f"1.1.1.{number}")
    assert throttle.wait_s("ann", "9.9.9.9") > 1
    assert throttle.wait_s("bob", "9.9.9.9") == 0


def test_another_user_does_not_help_at_the_same_address() -> None:
    clock = ManualClock()
    throttle = LoginThrottle(clock)
    for number in range(16):
        guess(throttle, clock, f"user{number}", "1.1.1.1")
    assert throttle.wait_s("fresh", "1.1.1.1") > 1
    assert throttle.wait_s("fresh", "2.2.2.2") == 0


def test_a_success_clears_the_user_but_not_guesses_at_others() -> None:
    clock = ManualClock()
    throttle = LoginThrottle(clock)
    for number in range(14):
        guess(throttle, clock, f"victim{number}", "1.1.1.1")
    before = throttle.wait_s("mallory", "1.1.1.1")
    throttle.succeeded("mallory", "1.1.1.1")
    assert throttle.wait_s("other", "1.1.1.1") == before > 0, "one's own account wipes nothing out"
    for _ in range(6):
        guess(throttle, clock, "ann", "2.2.2.2")
    throttle.succeeded("ann", "2.2.2.2")
    assert throttle.wait_s("ann", "2.2.2.2") == 0 == throttle.wait_s("ann", "3.3.3.3")


def test_strangers_cannot_keep_the_owner_out() -> None:
    clock = ManualClock()
    throttle = LoginThrottle(clock)
    throttle.succeeded("ann", "home")
    for number in range(12):
        guess(throttle, clock, "ann", f"bot{number}")
    assert throttle.wait_s("ann", "bot99") > 10 and throttle.wait_s("ann", "home") == 0
    for _ in range(6):
        guess(throttle, clock, "ann", "home")
    assert throttle.wait_s("ann", "home") > 0, "which is no free pass for guessing there"


def test_quiet_time_is_forgiven() -> None:
    clock = ManualClock()
    throttle = LoginThrottle(clock)
    for _ in range(10):
        guess(throttle, clock, "ann", "1.1.1.1")
    clock.jump(10_000)
    assert throttle.wait_s("ann", "1.1.1.1") > 0, "the wall clock forgives nothing"
    clock.advance(1000)
    assert throttle.wait_s("ann", "1.1.1.1") == 0
    assert guess(throttle, clock, "ann", "1.1.1.1") == 0 == guess(throttle, clock, "ann", "1.1.1.1")


def test_the_table_is_bounded() -> None:
    throttle = LoginThrottle(ManualClock(), entries_max=30)
    for number in range(100):
        throttle.failed(f"u{number}", f"a{number}")
    assert len(throttle) == 30
    assert LoginThrottle(ManualClock())._entries_max == limits.THROTTLE_ENTRIES_MAX


# --- quotas


@given(
    st.integers(1, 5000),
    st.integers(1, 200),
    st.lists(st.tuples(st.integers(0, 3000), st.floats(0, 2)), min_size=1, max_size=40),
)
def test_a_user_who_waits_as_told_stays_within_the_rates(
    bytes_per_s: int, requests_per_s: int, work: list[tuple[int, float]]
) -> None:
    clock = ManualClock()
    quotas = Quotas(clock, Rates(bytes_per_s, requests_per_s))
    spent = 0
    for number, (size, pause) in enumerate(work, 1):
        clock.advance(quotas.charge("ann", size))
        spent += size
        burst = limits.QUOTA_BURST_SECONDS
        assert spent <= (clock.monotonic() + burst) * bytes_per_s * 1.000001 + 1e-6
        assert number <= (clock.monotonic() + burst) * requests_per_s * 1.000001 + 1e-6
        clock.advance(pause)


def test_connections_of_a_user_share_the_quota_and_users_do_not() -> None:
    clock = ManualClock()
    quotas = Quotas(clock, Rates(bytes_per_s=1000))
    assert quotas.charge("ann", 1000) == 0, "a second's worth at once"
    assert quotas.charge("ann", 1000) == 1
    assert quotas.charge("ann", 500) == 1.5
    assert quotas.charge("bob", 500) == 0
    clock.advance(60)
    assert quotas.charge("ann", 1500) == 0.5, "silence saves up a second's worth, not more"


def test_anonymous_clients_are_told_apart_by_address() -> None:
    quotas = Quotas(ManualClock(), Rates(requests_per_s=1))
    assert quotas.charge("", 0, address="1.1.1.1") == 0
    assert quotas.charge("", 0, address="1.1.1.1") == 1
    assert quotas.charge("", 0, address="2.2.2.2") == 0


def test_rates_of_a_user_win_and_change_at_once() -> None:
    own: dict[str, Rates] = {"ann": Rates(bytes_per_s=10), "root": Rates()}
    clock = ManualClock()
    quotas = Quotas(clock, Rates(bytes_per_s=1000), own.get)
    assert quotas.charge("ann", 30) == 2 and quotas.charge("root", 10**9) == 0 and quotas.charge("bob", 1000) == 0
    own["ann"] = Rates(bytes_per_s=20)
    assert quotas.charge("ann", 0) == 1
    own["ann"] = Rates(requests_per_s=5)
    assert quotas.charge("ann", 10**9) == pytest.approx(0.2), "what was owed in bytes is gone with that quota"
    del own["ann"]
    clock.advance(1)
    assert quotas.charge("ann", 1500) == 0.5


def test_without_a_quota_nothing_is_kept() -> None:
    quotas = Quotas(ManualClock(), Rates())
    assert quotas.charge("ann", 10**12, 10**6) == 0 and len(quotas) == 0


def test_what_is_kept_of_spending_is_bounded() -> None:
    clock = ManualClock()
    quotas = Quotas(clock, Rates(bytes_per_s=10), buckets_max=10)
    assert quotas.charge("debtor", 1000) > 0
    for number in range(50):
        clock.advance(2)
        quotas.charge(f"u{number}", 5)
    assert len(quotas) <= 10
    assert quotas.charge("debtor", 0) == 0, "100 s passed, and the debt was for 99"
    assert Quotas(clock, Rates())._buckets_max == limits.QUOTA_USERS_MAX
    quotas = Quotas(clock, Rates(bytes_per_s=10), buckets_max=2)
    for name in "abc":
        quotas.charge(name, 1000)
    assert len(quotas) == 2 and "a" not in quotas._buckets
