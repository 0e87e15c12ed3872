"""What delayed messages take on the disk stays in proportion to what waits, and moving them loses and repeats nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from work_bench import all_values, crash_points, expect, fates, run_broker

from braidmq.base.clock import ManualClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.broker import delayed_moving
from braidmq.broker import work as work_module
from braidmq.broker.broker import Broker
from braidmq.broker.delayed_moving import move_survivors
from braidmq.log.partition import PartitionLog

SEGMENT = 4096
DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "SEGMENT_BYTES", SEGMENT)


async def pass_time(broker: Broker, seconds: float) -> None:
    clock = broker.clock
    assert isinstance(clock, ManualClock)
    clock.advance(seconds)
    await broker.delayed.deliver_due()
    await broker.work.tick()


async def traffic(broker: Broker, first: int, count: int) -> None:
    """Messages that wait for a second, and are delivered."""
    for number in range(first, first + count):
        await broker.delayed.produce("later", b"", b"%d" % number + bytes(1000), 1000)
        await pass_time(broker, 1)


def staging(broker: Broker) -> PartitionLog:
    return broker.work.delayed.log


def names(broker: Broker) -> Counter[bytes]:
    return Counter(value.rstrip(b"\0") for value in all_values(broker, "later"))


def test_a_message_for_tomorrow_does_not_hold_up_those_of_today() -> None:
    disk, clock = FaultyDisk(), ManualClock()

    async def script(broker: Broker) -> int:
        await broker.delayed.produce("later", b"key", b"tomorrow", DAY_MS, partition=1, attrs=b"")
        cancelled = await broker.delayed.produce("later", b"", b"never", DAY_MS)
        largest = 0
        for number in range(60):
            await traffic(broker, number, 1)
            largest = max(largest, staging(broker).size_bytes)
            if number == 30:
                await broker.delayed.cancel(cancelled.id)
        (waiting,) = await broker.delayed.waiting()
        assert waiting.topic == "later" and waiting.due_ms == ManualClock().now_ms() + DAY_MS
        assert staging(broker).log_start > 40, "what was staged today is gone"
        return largest

    # Two segments more than four times what waits, the one that is written to, and what comes before the next look.
    assert run_broker(script, disk, clock=clock) < 6 * SEGMENT

    async def afterwards(broker: Broker) -> None:
        await pass_time(broker, DAY_MS / 1000)
        assert names(broker) == Counter([b"tomorrow", *(b"%d" % number for number in range(60))])
        assert b"tomorrow" in all_values(broker, "later")[-1], "in the partition that it was for"

    run_broker(afterwards, disk, clock=clock)


def test_without_moves_the_log_only_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: the bound of the test above is one that can be passed."""

    async def nothing(_: Broker) -> int:
        return 0

    monkeypatch.setattr(work_module, "move_survivors", nothing)

    async def script(broker: Broker) -> None:
        await broker.delayed.produce("later", b"", b"tomorrow", DAY_MS)
        await traffic(broker, 0, 40)
        assert staging(broker).log_start == 0 and staging(broker).size_bytes > 8 * SEGMENT

    run_broker(script)


def test_a_log_full_of_what_waits_is_left_alone() -> None:
    async def script(broker: Broker) -> None:
        for size in (0, 1, 1000):
            for _ in range(30):
                await broker.delayed.produce("l", b"", bytes(size), DAY_MS)
        assert len(staging(broker).segments) > 3
        assert await move_survivors(broker) == 0 and len(broker.delayed) == 90

    run_broker(script)


class Moving:
    """Two messages that stay behind, and enough that do not, for several moves."""

    def __init__(self) -> None:
        self.accepted: set[bytes] = set()
        self.moved = 0

    async def __call__(self, broker: Broker) -> None:
        for value in (b"tomorrow", b"too"):
            await broker.delayed.produce("later", b"", value, DAY_MS)
            self.accepted.add(value)
        for number in range(12):
            await broker.delayed.produce("later", b"", b"%d" % number + bytes(1500), 1000)
            self.accepted.add(b"%d" % number)
        await pass_time(broker, 1)
        self.moved = staging(broker).log_start
        assert self.moved, "the front is gone"

    async def check(self, broker: Broker) -> None:
        await pass_time(broker, DAY_MS / 1000 + 2)
        found = names(broker)
        assert all(count == 1 for count in found.values()), f"delivered once: {found}"
        assert set(found) >= self.accepted, "nothing that was accepted is lost"
        assert len(broker.delayed) == 0 and not broker.work.table.work


def test_a_crash_at_any_step_of_a_move(rounds: Callable[[int, int], int]) -> None:
    scripts: list[Moving] = []

    def script() -> Moving:
        scripts.append(Moving())
        return scripts[-1]

    outcomes = 0
    for disk, clock, _ in crash_points(script, step=rounds(7, 1)):
        for found in fates(disk, rounds(1, 6)):
            run_broker(scripts[-1].check, found, clock=clock)
            outcomes += 1
    assert outcomes > 50


def test_letting_go_before_the_move_is_known_loses_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary of the crashes: the copies alone are not enough."""
    move = delayed_moving._move

    async def hasty(broker: Broker, found: dict[int, object]) -> int:
        release = staging(broker).let_go_below(staging(broker).log_end)
        for segment in release:
            segment.remove()
        return await move(broker, found)  # type: ignore[arg-type]

    monkeypatch.setattr(delayed_moving, "_move", hasty)
    with pytest.raises(AssertionError, match="nothing that was accepted is lost"):
        test_a_crash_at_any_step_of_a_move(lambda short, _: short)


def test_who_delivers_or_cancels_while_a_message_is_moved_wins() -> None:
    clock = ManualClock()

    async def script(broker: Broker) -> None:
        ids = [(await broker.delayed.produce("later", b"", b"%d" % number, 10_000 + number)).id for number in range(3)]
        await traffic(broker, 100, 3)
        for _ in range(10):
            await broker.delayed.produce("later", b"", bytes(1500), 1)
        clock.advance(20)
        # All three are due by now, one is being cancelled, and all are staged anew at the same time.
        moving = asyncio.create_task(move_survivors(broker))
        cancelling = asyncio.gather(broker.delayed.cancel(ids[1]), return_exceptions=True)
        await asyncio.gather(moving, broker.delayed.deliver_due())
        (refused,) = await cancelling
        await broker.work.tick()
        found = names(broker)
        assert found[b"0"] == found[b"2"] == 1 and found[b"1"] == (refused is not None)
        assert len(broker.delayed) == 0

    run_broker(script, clock=clock)


def test_a_message_that_moves_while_it_is_read_is_found() -> None:
    async def script(broker: Broker) -> None:
        await broker.delayed.produce("later", b"", b"tomorrow", DAY_MS)
        (number,) = broker.work.table.delayed.waiting_below(1)
        read = broker.work.delayed.read
        places: list[set[int]] = []

        async def moving(refs: set[int]) -> object:
            places.append(refs)
            found = await read(refs)
            if len(places) == 1:
                record = found.popitem()[1]
                ref = broker.work.delayed.add(number, None, record.value, b"", record.topic, -1)
                await broker.durable(staging(broker), ref + 1)
                await broker.work.journal.submit(["move", [[number, ref]]])
            return found

        broker.work.delayed.read = moving  # type: ignore[assignment, method-assign]
        assert (await broker.delayed.staged([number]))[number].value == b"tomorrow"
        assert places == [{0}, {1}]

    run_broker(script)


def test_a_full_disk_moves_nothing_and_loses_nothing() -> None:
    disk, clock = FaultyDisk(), ManualClock()

    async def script(broker: Broker) -> None:
        await broker.delayed.produce("later", b"", b"tomorrow", DAY_MS)
        for number in range(8):
            await broker.delayed.produce("later", b"", b"%d" % number + bytes(1500), 1000)
        clock.advance(1)
        await broker.delayed.deliver_due()
        disk.fail("write", path=staging(broker).segments[-1].log_path, code=28)
        with expect("STORAGE_FULL"):
            await move_survivors(broker)
        await broker.work.tick()
        assert staging(broker).log_start > 0 and len(broker.delayed) == 1
        await pass_time(broker, DAY_MS / 1000)
        assert names(broker)[b"tomorrow"] == 1

    run_broker(script, disk, clock=clock)
