"""Durable subscribers as a state machine: who owns what, what a restart knows, and how many there may be."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from braidmq.base import limits
from braidmq.base.clock import SystemClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker, BrokerSettings
from braidmq.broker.machines import SUBSCRIBERS
from braidmq.broker.push.subscriber_table import SubscriberTable
from braidmq.log.partition import LogSettings


def _subscribed(table: SubscriberTable, name: str, text: str, owner: str = "ann", topics_from: int = 1, **options: str) -> Any:
    return table.apply(table.subscribe(name, owner, text, topics_from, options, 1000))


def test_filters_come_and_go_and_the_last_takes_the_subscriber_with_it() -> None:
    table = SubscriberTable()
    _subscribed(table, "c1", "a/#", filter="size > 1")
    _subscribed(table, "c1", "b", topics_from=7)
    known = table.get("c1")
    assert known is not None and list(known.filters) == ["a/#", "b"]
    assert known.filters["a/#"].options == {"filter": "size > 1"}
    assert table.apply(table.unsubscribe("c1", "a/#")) is True
    assert table.apply(table.unsubscribe("c1", "a/#")) is False
    assert table.apply(table.unsubscribe("c1", "b")) is True
    assert table.get("c1") is None and len(table) == 0


def test_a_filter_that_is_replaced_keeps_what_it_has_seen() -> None:
    table = SubscriberTable()
    _subscribed(table, "c1", "a/#", topics_from=3)
    known = _subscribed(table, "c1", "a/#", topics_from=9, accepts="gzip")
    assert (known.filters["a/#"].topics_from, known.filters["a/#"].options) == (3, {"accepts": "gzip"})


def test_a_name_belongs_to_who_created_it() -> None:
    table = SubscriberTable()
    _subscribed(table, "c1", "a")
    with pytest.raises(BraidError, match="CLIENT_OF_ANOTHER"):
        _subscribed(table, "c1", "b", owner="bob")
    known = table.get("c1")
    assert known is not None and list(known.filters) == ["a"]


def test_there_are_limits_and_a_replay_keeps_to_those_of_its_day() -> None:
    table = SubscriberTable(subscribers_max=2)
    _subscribed(table, "c1", "a")
    _subscribed(table, "c2", "a")
    command = table.subscribe("c3", "ann", "a", 1, {}, 1000)
    with pytest.raises(BraidError, match="SUBSCRIBER_LIMIT"):
        table.apply(command)
    with pytest.raises(BraidError, match="SUBSCRIBER_LIMIT"):
        # A larger broker that replays it must come to the same end.
        SubscriberTable(limits.DURABLE_SUBSCRIBERS_MAX).apply(["subscribe", "c3", "ann", "a", 1, {}, 1000, [0, 1]])
    for number in range(limits.SUBSCRIBER_FILTERS_MAX - 1):
        _subscribed(table, "c1", f"filter/{number}")
    with pytest.raises(BraidError, match="SUBSCRIBER_LIMIT"):
        _subscribed(table, "c1", "one more")


def test_a_snapshot_is_the_whole_state() -> None:
    table, other = SubscriberTable(), SubscriberTable()
    _subscribed(table, "c1", "a/+", filter="qos = 1")
    _subscribed(table, "c2", "b", owner="")
    table.apply(table.park("c2", 12345))
    other.restore(json.loads(json.dumps(table.snapshot())))
    assert other.all() == table.all()
    assert other.apply(other.remove("c2")) is True and other.apply(other.remove("c2")) is False


def test_what_is_unknown_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        SubscriberTable().apply(["dance"])


def test_a_broker_that_crashes_knows_its_subscribers() -> None:
    async def run(disk: FaultyDisk, first: bool) -> list[str]:
        broker = Broker(BrokerSettings("/data", LogSettings()), disk, SystemClock())
        await broker.start()
        table = broker.push.subscribers
        if first:
            await broker.submit_metadata(SUBSCRIBERS, table.subscribe("c1", "", "a/#", 1, {}, 1000))
            await broker.submit_metadata(SUBSCRIBERS, table.subscribe("c2", "", "b", 1, {}, 1000))
            await broker.submit_metadata(SUBSCRIBERS, table.unsubscribe("c2", "b"))
        names = [subscriber.name for subscriber in table.all()]
        if not first:
            await broker.stop()
        return names

    disk = FaultyDisk(seed=3)
    assert asyncio.run(run(disk, True)) == ["c1"]
    disk = disk.crash()
    assert asyncio.run(run(disk, False)) == ["c1"]
    assert asyncio.run(run(disk, False)) == ["c1"], "from its snapshot"
