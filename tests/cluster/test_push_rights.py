"""Rights that come and go while a subscriber waits for a topic that nobody leads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from test_push_away import _PORTS, _all_know
from three_nodes import PATIENCE_S, Nodes

from braidmq.broker.broker import Broker
from braidmq.broker.push import hub
from braidmq.client import blipmq, connect
from braidmq.security.accounts import Caller
from braidmq.security.authorizer import Principal
from braidmq.server import blipmq_subscriber

_SYSTEM = Caller(Principal("system"))
_PASSWORD = "a password of some length"


def _read_by_somebody(broker: Broker, topic: str) -> bool:
    """Whether a subscriber reads a topic's first partition, and not only somebody who asks where it ends."""
    feed = broker.push.live_feed(broker.topic(topic).id, 0)
    return feed is not None and any(reader is not hub._GUEST for reader in feed.readers)


def test_a_right_that_ends_ends_at_once_and_one_that_comes_waits_for_a_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blipmq_subscriber, "_AGAIN_S", 0.05)
    monkeypatch.setattr(hub, "_GUEST_S", 0.05)

    async def work() -> None:
        async with Nodes(tmp_path, listen=_PORTS, auth_enabled=True, auth_default_public=False) as nodes:
            await nodes.until(lambda: all(len(nodes.node(each).table.live()) == 3 for each in nodes.servers))
            other = nodes.coordinator()
            away = next(each for each in nodes.servers if each != other)
            broker = nodes.servers[other].broker
            accounts = broker.security.accounts
            await accounts.create_user(_SYSTEM, "ann", _PASSWORD, ["admin"])
            await accounts.create_user(_SYSTEM, "bob", _PASSWORD, [])
            async with connect(nodes.address(other), username="ann", password=_PASSWORD) as admin:
                for name in ("ended", "begun"):
                    await admin.create_topic(name, 1)
            await nodes.node(other).steer("reassign", ["begun", "0", away])
            await nodes.until(lambda: broker.peers is not None and not broker.peers.holds(broker.topic("begun").id, 0))
            await nodes.until(lambda: _all_know(nodes, "begun", away))
            await accounts.set_acl(_SYSTEM, "ended", False, ["bob"], [])
            async with (
                blipmq.connect(nodes.port(other, "blipmq"), api_key=f"ann:{_PASSWORD}") as ann,
                blipmq.connect(nodes.port(other, "blipmq"), api_key=f"bob:{_PASSWORD}") as bob,
            ):
                await bob.subscribe("#", qos=1)
                await ann.publish("ended", b"may be read", qos=1)
                async with asyncio.timeout(PATIENCE_S):
                    message = await anext(bob)
                assert message.payload == b"may be read"
                await message.ack()
                # Whoever asked where it ends is gone.
                await nodes.until(lambda: broker.push.live_feed(broker.topic("begun").id, 0) is None)
                await nodes.stop(away)
                # Nobody says in time where the topic begins that may be read from now on.
                monkeypatch.setattr(hub, "_FIND_OUT_S", 0.1)
                await accounts.set_acl(_SYSTEM, "ended", False, [], [])
                await accounts.set_acl(_SYSTEM, "begun", False, ["bob"], [])
                await ann.publish("ended", b"may not be read", qos=1)
                await nodes.until(lambda: not _read_by_somebody(broker, "ended"))
                await nodes.start(away)
                await nodes.until(lambda: _read_by_somebody(broker, "begun"))
                await ann.publish("begun", b"may be read by now", qos=1)
                async with asyncio.timeout(PATIENCE_S):
                    assert (await anext(bob)).payload == b"may be read by now"

    asyncio.run(work())
