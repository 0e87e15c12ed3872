"""What publishers are told about subscribers: every change of it has to reach those who remember topics. And what a hub has begun
for its readers: all of it comes to an end, also where other nodes do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from work_bench import run_broker

from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.peers import PartitionReading, Peers
from braidmq.broker.push import Feed, Hub
from braidmq.broker.push.distant_log import DistantLog
from braidmq.broker.push.distant_reads import DistantReads
from braidmq.broker.topics import Topic

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


class Others:
    """Nodes that say once where a partition ends; whatever else they are asked they refuse, or leave without an answer."""

    node = "here"

    def __init__(self, *, refuse: bool) -> None:
        self._refuse = refuse
        self._said = False

    def leader_of(self, topic_id: int, partition: int) -> str:
        return "there"

    async def read(
        self, topic: Topic, partition: int, offset: int, bytes_max: int, wait_s: float, *, raw: bool
    ) -> PartitionReading:
        if not self._said:
            self._said = True
            return PartitionReading(0, 5, 0, b"")
        return await self._no_answer()

    async def come(self, node: str, rows: object, wait_s: float) -> list[PartitionReading | None]:
        return [await self._no_answer()]

    async def _no_answer(self) -> PartitionReading:
        if not self._refuse:
            await asyncio.Event().wait()
        raise BraidError("NOT_LEADER", reason="no leader elected")


class Insistent:
    """A reader that reads whenever it is woken."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        """Set when there was something to read."""

    def wake(self, feed: Feed) -> None:
        assert feed.read(0, self) is None
        if feed.tail:
            self.asked.set()

    def feed_closed(self, feed: Feed) -> None: ...

    def feed_failed(self, feed: Feed, error: BraidError) -> None: ...


@pytest.mark.parametrize("refuse", [True, False])
def test_nothing_is_brought_from_other_nodes_once_the_hub_has_stopped(refuse: bool) -> None:
    async def script(broker: Broker) -> None:
        hub = broker.push
        feed = hub.feed(await broker.create_topic("t", 1), 0)
        reader = Insistent()
        feed.attach(reader)
        before = asyncio.all_tasks()
        others = cast(Peers, Others(refuse=refuse))
        hub.distant = DistantReads(others)
        distant = DistantLog(others, hub.distant, feed.topic, 0, hub.steady_ms, lambda: True, lambda _: False)
        feed.read_from(distant)
        await reader.asked.wait()
        assert len(asyncio.all_tasks() - before) >= 2, "one asks where it ends, one brings what is there"
        await hub.stop()
        assert asyncio.all_tasks() <= before
        # Whoever reads all the same begins nothing, however it came to do so.
        feed.warmed()
        reader.wake(feed)
        assert asyncio.all_tasks() <= before

    run_broker(script)
