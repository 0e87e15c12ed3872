"""The clock that delays and expiry are measured by, when the machine's clock is set."""

from __future__ import annotations

import pytest

from braidmq.base.clock import ManualClock, SystemClock
from braidmq.base.steady_clock import SteadyClock


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


def test_it_never_goes_back() -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    seen = [steady.now_ms()]
    for step in range(1000):
        clock.jump((-1) ** step * step * 1000)
        clock.advance(step % 7 / 1000)
        seen.append(steady.now_ms())
    assert seen == sorted(seen)
