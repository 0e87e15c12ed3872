"""A node that cannot begin to coordinate: it says so, and does not go on as if it did."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from three_nodes import PATIENCE_S, Nodes

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.security.accounts import PASSWORD_VARIABLES


def test_a_node_that_is_replaced_while_it_begins_to_coordinate_asks_the_one_that_does(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path, "ab") as nodes:
            await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 2 for name in nodes.servers))
            first = nodes.coordinator()
            second = next(name for name in nodes.servers if name != first)
            broker, node = nodes.servers[second].broker, nodes.node(second)
            begin = broker.coordinate
            tried = 0

            async def replaced() -> None:
                nonlocal tried
                tried += 1
                await begin()
                # A command of its own would fail so, had another node taken the lead before it was known to be durable.
                assert await node.journals.hand_over(node.live(), stays=True)
                raise BraidError("NOT_LEADER", reason="another node leads the journals")

            broker.coordinate = replaced  # type: ignore[method-assign]
            async with asyncio.timeout(PATIENCE_S):
                await nodes.node(first).step_down()
            await nodes.until(lambda: tried > 0 and nodes.node(first).coordinates)
            await nodes.until(lambda: not node.coordinates)
            async with asyncio.timeout(PATIENCE_S / 2):
                await broker.create_topic("made-by-asking", 1)
            assert tried == 1

    asyncio.run(work())


def test_a_password_that_cannot_be_one_leaves_nobody_without_a_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLES[0], "x" * (limits.PASSWORD_BYTES_MAX + 1))

    async def work() -> None:
        async with Nodes(tmp_path, "a", auth_enabled=True) as nodes:
            assert nodes.coordinator() == "a"
            assert nodes.servers["a"].broker.security.accounts.all_users() == []

    with caplog.at_level(logging.ERROR, "braidmq"):
        asyncio.run(work())
    assert sum("no administrator was created" in message for message in caplog.messages) == 1
