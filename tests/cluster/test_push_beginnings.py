"""Where subscribers and queues begin on a node that has no replica: with what comes from now on, or they are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest
from test_push_away import _PORTS, _hear, _send, _take, _topic
from three_nodes import PATIENCE_S, Nodes

from braidmq.base.errors import BraidError
from braidmq.broker.push import hub
from braidmq.client import blipmq, fq


async def _refused(work: Awaitable[object]) -> str:
    """The code that something is refused with."""
    with pytest.raises(BraidError) as refused:
        async with asyncio.timeout(PATIENCE_S):
            await work
    return refused.value.code


def test_nobody_begins_where_no_leader_says_where_that_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal, however long it takes, and never all that was ever written."""
    monkeypatch.setattr(hub, "_GUEST_S", 0.1)

    async def work() -> None:
        async with Nodes(tmp_path, listen=_PORTS) as nodes:
            leader, other = await _topic(nodes, "work")
            await _send(nodes, leader, range(10))
            await nodes.stop(leader)
            async with (
                blipmq.connect(nodes.port(other, "blipmq"), timeout_s=PATIENCE_S) as subscriber,
                fq.connect(nodes.port(other, "fq"), queue="brief", queue_type="mem:public,drop,transient") as queue,
            ):
                monkeypatch.setattr(hub, "_FIND_OUT_S", 0.5)
                refusals = await asyncio.gather(_refused(subscriber.subscribe("work", qos=0)), _refused(queue.bind("work")))
                assert refusals == ["NODE_UNREACHABLE", "BIND_REFUSED"]
                # Whoever waits long enough begins behind what was there, when there is a leader again.
                monkeypatch.setattr(hub, "_FIND_OUT_S", PATIENCE_S)
                waiting = asyncio.gather(subscriber.subscribe("work", qos=0), queue.bind("work"))
                await nodes.start(leader)
                async with asyncio.timeout(PATIENCE_S):
                    await waiting
                await _send(nodes, leader, range(10, 20))
                assert await _hear(subscriber, 10) == list(range(10, 20))
                assert await _take(queue, 10) == list(range(10, 20))

    asyncio.run(work())
