"""What a replica may copy that catches up: a limit that clients can rely on, and that never keeps it behind for ever."""

from __future__ import annotations

from braidmq.base.clock import ManualClock
from braidmq.cluster.replication.throttle import GROWS, LOOK_S, Throttle


def test_no_more_than_so_many_bytes_a_second() -> None:
    clock = ManualClock()
    throttle = Throttle(clock, 1000)
    assert throttle.allowed() == 1000, "a second's worth at once"
    throttle.spend(1500)
    assert throttle.allowed() == 0
    clock.advance(1.0)
    assert throttle.allowed() == 500, "what was too much is paid for"
    clock.advance(60.0)
    assert throttle.allowed() == 1000, "nothing is saved up"


def test_the_limit_grows_only_while_a_replica_comes_no_nearer() -> None:
    clock = ManualClock()
    throttle = Throttle(clock, 1000)
    throttle.lacks("a", 500)
    throttle.lacks("b", 500)
    clock.advance(LOOK_S / 2)
    throttle.lacks("a", 600)
    assert throttle.bytes_per_s == 1000, "it is too early to tell"
    clock.advance(LOOK_S)
    throttle.lacks("a", 600)
    assert throttle.bytes_per_s == 1000 * GROWS
    clock.advance(LOOK_S)
    throttle.lacks("b", 100)
    assert throttle.bytes_per_s == 1000 * GROWS, "it comes nearer"
    throttle.lacks("a", 0)
    assert throttle.bytes_per_s == 1000 * GROWS, "b still lacks something"
    throttle.lacks("b", 0)
    assert throttle.bytes_per_s == 1000
