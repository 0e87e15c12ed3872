"""The clock that delays and expiry are measured by, when the machine's clock is set."""

from __future__ import annotations

import sys

import pytest

from braidmq.base.clock import ManualClock, SystemClock
from braidmq.base.steady_clock import KeptTime, SteadyClock


def test_it_tells_the_time_as_long_as_nobody_sets_the_clock() -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    for seconds in (0.0, 0.001, 1.0, 3600.0, 86_400.0):
        clock.advance(seconds)
        assert steady.now_ms() == clock.now_ms()
    real = SteadyClock(SystemClock())
    assert abs(real.now_ms() - SystemClock().now_ms()) < 1000


@pytest.mark.parametrize("jump_s", [3600, -3600, 30 * 86_400, -30 * 86_400])
def test_a_jump_changes_nothing_but_the_pace_a_little(jump_s: int) -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    before = steady.now_ms()
    clock.jump(jump_s)
    assert steady.now_ms() == before
    for _ in range(100):
        clock.advance(10)
        passed = steady.now_ms() - before
        before += passed
        assert abs(passed - 10_000) <= 6, "ten seconds are ten seconds"


@pytest.mark.parametrize("jump_s", [0.4, -0.4])
def test_it_comes_to_agree_with_the_machine_again(jump_s: float) -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    clock.jump(jump_s)
    for _ in range(790):
        clock.advance(1)
        assert steady.now_ms() != clock.now_ms()
    clock.advance(15)
    assert steady.now_ms() == clock.now_ms()
    clock.advance(100)
    assert steady.now_ms() == clock.now_ms()


def test_sleep_of_the_machine_passes() -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    clock.sleep(3600)
    assert steady.now_ms() == clock.now_ms() and clock.monotonic() == 0


@pytest.mark.parametrize("jump_s", [0, 3600, -3600])
def test_a_restart_of_the_process_changes_nothing(jump_s: int) -> None:
    clock = ManualClock()
    kept = SteadyClock(clock).kept()
    expected = clock.now_ms() + 90_000
    clock.advance(60)
    clock.jump(jump_s)
    clock.sleep(30)
    steady = SteadyClock(clock)
    assert steady.go_on_from(kept) == -jump_s * 1000
    assert steady.now_ms() == expected, "the machine counted how long nobody looked"


@pytest.mark.parametrize(("away_s", "expected_s"), [(3600, 3600), (-3600, 0), (0, 0)])
def test_after_a_start_of_the_machine_its_clock_counts_unless_it_is_behind(away_s: int, expected_s: int) -> None:
    clock = ManualClock()
    clock.advance(1000)
    begun = clock.now_ms()
    kept = SteadyClock(clock).kept()
    clock.reboot()
    clock.jump(away_s)
    steady = SteadyClock(clock)
    assert steady.go_on_from(kept) == max(0, -away_s) * 1000
    assert steady.now_ms() == begun + expected_s * 1000
    clock.advance(10)
    assert abs(steady.now_ms() - begun - expected_s * 1000 - 10_000) <= 6


def test_what_another_machine_kept_is_no_count_of_this_one() -> None:
    clock = ManualClock()
    now_ms, since_boot_s, boot_id = SteadyClock(clock).kept()
    for kept in (KeptTime(now_ms, since_boot_s + 5000, boot_id), KeptTime(now_ms, since_boot_s, "")):
        clock.advance(100)
        steady = SteadyClock(clock)
        steady.go_on_from(kept)
        assert steady.now_ms() == clock.now_ms()


def test_the_system_knows_which_run_of_the_machine_this_is() -> None:
    one, other = SystemClock(), SystemClock()
    assert one.boot_id == other.boot_id
    if sys.platform == "linux":
        assert len(one.boot_id) == 36 and one.since_boot() >= one.monotonic() - 1
    before = one.since_boot()
    assert other.since_boot() >= before


def test_it_never_goes_back() -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    seen = [steady.now_ms()]
    for step in range(1000):
        clock.jump((-1) ** step * step * 1000)
        clock.advance(step % 7 / 1000)
        seen.append(steady.now_ms())
    assert seen == sorted(seen)
