"""Positions that outlive a broker: written soon after they moved, at a stop and on demand, never ahead of what is done."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable

import pytest

from braidmq.base.clock import SystemClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker, BrokerSettings
from braidmq.broker.push import Feed
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings


class Reader:
    """Stands at some offsets."""

    def __init__(self, group: str, places: dict[Feed, int]) -> None:
        self.group = group
        self.places = places

    def positions(self) -> Iterable[tuple[Feed, int]]:
        return self.places.items()


async def started(disk: FaultyDisk) -> Broker:
    broker = Broker(BrokerSettings("/data", LogSettings(Level.OS)), disk, SystemClock())
    await broker.start()
    return broker


async def committed(broker: Broker, topic: str, group: str, expected: dict[int, int]) -> None:
    for _ in range(1000):
        if dict(broker.groups.offsets(broker.topic(topic).id, group)) == expected:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not {expected}: {broker.groups.offsets(broker.topic(topic).id, group)}")


def test_positions_are_written_on_demand_soon_and_at_a_stop() -> None:
    disk = FaultyDisk()

    async def first() -> None:
        broker = await started(disk)
        topic = await broker.create_topic("t", 2)
        one, two = broker.push.feeds(topic)
        positions = broker.push.positions
        reader = Reader("r", {one: 0, two: 5})
        await positions.commit(reader)
        assert (positions.at("r", one), positions.at("r", two), positions.at("other", one)) == (0, 5, None)
        reader.places = {one: 3, two: 5}
        positions.moved(reader)
        await committed(broker, "t", "r", {0: 3, 1: 5})
        other = Reader("s", {one: 1})
        positions.moved(other)
        positions.forget(other)
        reader.places = {one: 9, two: 6}
        positions.moved(reader)
        await broker.stop()

    async def second() -> None:
        broker = await started(disk)
        topic = broker.topic("t")
        assert dict(broker.groups.offsets(topic.id, "r")) == {0: 9, 1: 6}
        assert not broker.groups.has(topic.id, "s"), "who was forgotten has no positions"
        assert (await broker.coordinator.group_lag("t", "r")).group == "r"
        await broker.push.positions.remove("r", "t")
        await broker.push.positions.remove("r")
        assert not broker.groups.has(topic.id, "r")
        await broker.stop()

    asyncio.run(first())
    asyncio.run(second())


def test_a_topic_that_is_gone_has_no_positions() -> None:
    async def conversation() -> None:
        broker = await started(FaultyDisk())
        gone, stays = await broker.create_topic("gone", 1), await broker.create_topic("stays", 1)
        reader = Reader("r", {broker.push.feed(gone, 0): 1, broker.push.feed(stays, 0): 2})
        await broker.delete_topic("gone")
        # Another topic of that name has nothing to do with it.
        await broker.create_topic("gone", 1)
        await broker.push.positions.commit(reader)
        assert broker.groups.all() == {(stays.id, "r")}
        await broker.stop()

    asyncio.run(conversation())


def test_what_could_not_be_written_is_written_later(caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyDisk()

    async def conversation() -> None:
        broker = await started(disk)
        topic = await broker.create_topic("t", 1)
        reader = Reader("r", {broker.push.feed(topic, 0): 1})
        await broker.push.positions.commit(reader)
        reader.places = dict.fromkeys(reader.places, 2)
        disk.fail("write", path="/data/internal/offsets/00000000000000000000.log", code=errno.ENOSPC)
        with pytest.raises(BraidError, match="STORAGE_FULL"):
            await broker.push.positions.commit(reader)
        disk.fail("write", path="/data/internal/offsets/00000000000000000000.log", code=errno.ENOSPC)
        broker.push.positions.moved(reader)
        await committed(broker, "t", "r", {0: 2})
        assert "positions of 1 subscribers are not written: STORAGE_FULL" in caplog.text
        await broker.stop()

    asyncio.run(conversation())


def test_what_this_node_does_not_serve_is_not_written_and_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that has left the cluster serves nothing: to ask whoever leads the journals would only hold up its end."""

    async def script() -> None:
        broker = await started(FaultyDisk())
        topic = await broker.create_topic("t", 1)
        positions = broker.push.positions
        reader = Reader("r", {broker.push.feed(topic, 0): 3})
        with monkeypatch.context() as patch:
            patch.setattr(type(broker.push.serving), "alone", False)
            patch.setattr(broker, "post_offsets", lambda command: pytest.fail(f"asked for {command}"))
            await positions.commit(reader)
            positions.moved(reader)
            await positions.stop()
        # It is noted and not written by itself: no timer is left that would.
        positions.moved(reader)
        assert positions._timer is None
        await broker.stop()

    asyncio.run(script())
