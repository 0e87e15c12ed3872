"""What publishers are told about subscribers: every change of it has to reach those who remember topics."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from work_bench import run_broker

from braidmq.broker.broker import Broker
from braidmq.broker.push import Hub

Says = Callable[[Hub, int, bool], None]


@pytest.mark.parametrize("says", [Hub.set_full, Hub.set_blocked])
def test_a_topic_that_is_held_up_or_let_go_is_a_change(says: Says) -> None:
    async def script(broker: Broker) -> None:
        hub = broker.push
        versions = [hub.full_version]
        for held in (True, True, False, False):
            says(hub, 7, held)
            versions.append(hub.full_version)
            assert hub.holds_up is (hub.is_full(7) or hub.is_blocked(7))
        first, one, two, still_one, none = versions
        assert first < one == two == still_one < none, "only the first that holds it up and the last that lets go count"
        assert not hub.holds_up

    run_broker(script)


def test_whoever_waits_for_a_blocked_topic_is_called_once_it_is_open() -> None:
    called: list[str] = []

    async def script(broker: Broker) -> None:
        hub = broker.push
        hub.set_blocked(7, True)
        hub.set_blocked(7, True)
        hub.when_open(7, lambda: called.append("open"))
        hub.set_blocked(7, False)
        assert hub.is_blocked(7)
        hub.set_blocked(7, False)
        assert not hub.is_blocked(7)
        await broker.create_topic("t", 1)

    run_broker(script)
    assert called == ["open"]
