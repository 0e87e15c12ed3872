"""The gate between the HTTP thread and the broker's loop: bounded, timed, and shut while the broker is not there."""

from __future__ import annotations

import asyncio
import threading

import pytest
from embedded_broker import EmbeddedBroker

from braidmq.admin.gate import Gate
from braidmq.base import limits
from braidmq.base.errors import BraidError


def test_only_so_many_are_asked_at_a_time(standing: EmbeddedBroker) -> None:
    assert limits.GATE_CALLS_AT_ONCE_MAX == 8
    running = most = 0

    async def work() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return threading.current_thread().name

    async def scene() -> list[str]:
        gate = Gate(standing.server, standing._loop)
        return await asyncio.gather(*(gate.ask(work) for _ in range(limits.GATE_CALLS_AT_ONCE_MAX * 3)))

    assert set(asyncio.run(scene())) == {"embedded-broker"}
    assert most == limits.GATE_CALLS_AT_ONCE_MAX


def test_what_takes_too_long_is_given_up_and_cancelled(standing: EmbeddedBroker) -> None:
    assert limits.GATE_SECONDS_MAX == 60
    cancelled = threading.Event()

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def scene() -> None:
        await Gate(standing.server, standing._loop, timeout_s=0.05).ask(for_ever)

    with pytest.raises(BraidError, match="TIMED_OUT"):
        asyncio.run(scene())
    assert cancelled.wait(20)


def test_nobody_gets_through_while_the_broker_is_not_there(standing: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing.server, "state", "stopping")

    async def scene() -> int:
        return await Gate(standing.server, standing._loop).look(lambda: 1)

    with pytest.raises(BraidError, match="NOT_READY: the broker is stopping"):
        asyncio.run(scene())
