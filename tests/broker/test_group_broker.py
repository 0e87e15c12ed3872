"""Groups in a broker as it runs: its own clock, its own thread for syncs, and its own look-out for the dead."""

from __future__ import annotations

import asyncio

import pytest
from work_bench import run_broker

from braidmq.base import limits
from braidmq.base.clock import SystemClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker, BrokerSettings
from braidmq.broker.group_members import Joined
from braidmq.broker.group_sharing import SharedGroups
from braidmq.log.partition import LogSettings
from braidmq.server.operations.groups import list_groups
from braidmq.wire import flymq
from braidmq.wire.flymq import Dialect

_PATIENCE_S = 60.0


async def started(disk: FaultyDisk) -> Broker:
    broker = Broker(BrokerSettings("/data", LogSettings()), disk, SystemClock())
    await broker.start()
    return broker


async def told_to_rejoin(members: SharedGroups, member: Joined) -> None:
    """Beat as clients do, until the answer is to join again."""
    for _ in range(round(10 * _PATIENCE_S / limits.MEMBERS_CHECK_SECONDS)):
        if members.heartbeat("g", member.member, member.generation).rebalance:
            return
        await asyncio.sleep(limits.MEMBERS_CHECK_SECONDS / 10)
    raise AssertionError("nobody told the member to join again")


def test_a_member_that_falls_silent_loses_its_share() -> None:
    async def conversation() -> None:
        broker = await started(FaultyDisk())
        await broker.create_topic("t", 4)
        members = broker.coordinator.members
        one = await members.join("g", "", ["t"], "roundrobin", 60_000)
        silent = asyncio.create_task(members.join("g", "", ["t"], "roundrobin", limits.SESSION_TIMEOUT_MS_MIN))
        # The first learns of it by its heartbeat.
        await told_to_rejoin(members, one)
        one = await members.join("g", one.member, ["t"], "roundrobin", 60_000)
        assert (one.assignment, (await silent).assignment) == ({"t": (0, 2)}, {"t": (1, 3)})
        await told_to_rejoin(members, one)
        one = await members.join("g", one.member, ["t"], "roundrobin", 60_000)
        assert one.assignment == {"t": (0, 1, 2, 3)}
        with pytest.raises(BraidError, match="UNKNOWN_MEMBER"):
            await broker.coordinator.commit("g", silent.result().member, silent.result().generation, [("t", 1, 1)])
        await broker.create_topic("u", 1)
        assert not members.heartbeat("g", one.member, one.generation).rebalance
        await broker.delete_topic("t")
        assert members.heartbeat("g", one.member, one.generation).rebalance
        await broker.stop()

    asyncio.run(conversation())


def test_a_stop_answers_whoever_waits() -> None:
    async def conversation() -> None:
        broker = await started(FaultyDisk())
        await broker.create_topic("t")
        members = broker.coordinator.members
        await members.join("g", "", ["t"], owner="one")
        waiting = asyncio.create_task(members.join("g", "", ["t"], owner="two"))
        await asyncio.sleep(0)
        await broker.stop()
        with pytest.raises(BraidError, match="UNKNOWN_MEMBER"):
            await waiting

    asyncio.run(conversation())


@pytest.mark.parametrize("orderly", [True, False])
def test_offsets_and_generations_outlive_the_broker(orderly: bool) -> None:
    disk = FaultyDisk()
    seen: list[int] = []

    async def life() -> None:
        broker = await started(disk)
        groups = broker.coordinator
        await broker.create_topic("t", 2)
        topic = broker.topic("t")
        if not seen:
            for value in (b"1", b"2", b"3"):
                await broker.append(topic, 0, b"", value)
            await groups.commit_offset("t", "g", 0, 1)
            await groups.reset("t", "h", None, "timestamp", 1)
        else:
            lag = await groups.group_lag("t", "g")
            assert [(row.committed, row.latest, row.records) for row in lag.partitions] == [(1, 3, 2), (0, 0, 0)]
            assert [info.offsets for info in list(groups.each_group())] == [((0, 1),), ((0, 0), (1, 0))]
        joined = await groups.members.join("g", "", ["t"])
        seen.append(joined.generation)
        if orderly:
            await broker.stop()
        else:
            await broker._loop.run_in_executor(None, broker.commit.close)
            for task in broker._housekeeping:
                task.cancel()
            await asyncio.gather(*broker._housekeeping, return_exceptions=True)
            broker._io.shutdown()

    for _ in range(3):
        asyncio.run(life())
        disk = disk.crash()
    assert seen == sorted(set(seen))


def test_listing_groups_lets_others_run() -> None:
    """Many groups are put together in many turns of the loop; one that goes meanwhile is left out."""

    class Asking:
        dialect = Dialect.DOCUMENTED

        def __init__(self, broker: Broker) -> None:
            self.broker = broker

    async def script(broker: Broker) -> None:
        await broker.create_topic("t", 3)
        rows = [broker.coordinator.row("t", f"g{number:04d}", partition, 7) for number in range(2000) for partition in range(3)]
        await broker.coordinator.commit_rows(rows)
        listing = asyncio.ensure_future(list_groups(Asking(broker), flymq.ListGroups()))  # type: ignore[arg-type]
        turns = 0
        while not listing.done():
            turns += 1
            if turns == 10:
                await broker.coordinator.delete("t", "g1999")
            await asyncio.sleep(0)
        assert turns >= 50
        frame = flymq.FrameReader().receive(b"".join(listing.result()))[0]
        found = flymq.decode_response(flymq.Op.LIST_GROUPS, frame.op, frame.payload, Dialect.DOCUMENTED)
        assert isinstance(found, flymq.Groups)
        assert [info.group for info in found.groups] == [f"g{number:04d}" for number in range(1999)]
        assert all(info.offsets == tuple(flymq.GroupOffset(partition, 7) for partition in range(3)) for info in found.groups)

    run_broker(script)
