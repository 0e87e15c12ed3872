"""Delays and expiry over restarts of the broker and of the machine, when somebody sets the clock meanwhile."""

from __future__ import annotations

import pytest
from work_bench import all_values, run_broker, values_in

from braidmq.base.clock import ManualClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.broker.broker import Broker

CLOCK = "/data/clock"


async def fill(broker: Broker) -> None:
    topic = await broker.create_topic("a", 1)
    await broker.append(topic, 0, b"", b"lives an hour", ttl_ms=3_600_000)
    await broker.append(topic, 0, b"", b"lives a second", ttl_ms=1000)
    await broker.delayed.produce("later", b"", b"in an hour", 3_600_000)


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("jump_s", [2 * 3600, -2 * 3600])
def test_a_jump_between_two_runs_expires_nothing_and_delivers_nothing(jump_s: int, stop: bool) -> None:
    disk, clock = FaultyDisk(), ManualClock()
    run_broker(fill, disk, clock=clock, stop=stop)
    clock.advance(10)
    clock.jump(jump_s)

    async def afterwards(broker: Broker) -> None:
        await broker.delayed.deliver_due()
        assert values_in(broker, "a") == [b"lives an hour"] and len(broker.delayed) == 1
        clock.advance(3580)
        await broker.delayed.deliver_due()
        assert values_in(broker, "a") == [b"lives an hour"] and all_values(broker, "later") == []
        clock.advance(15)
        await broker.delayed.deliver_due()
        assert values_in(broker, "a") == [] and all_values(broker, "later") == [b"in an hour"]

    run_broker(afterwards, disk if stop else disk.crash(), clock=clock)


def test_what_is_gone_stays_gone_when_the_machine_comes_back_with_an_earlier_time(caplog: pytest.LogCaptureFixture) -> None:
    disk, clock = FaultyDisk(), ManualClock()

    async def script(broker: Broker) -> None:
        await fill(broker)
        clock.advance(1800)
        await broker.checkpoint()
        assert values_in(broker, "a") == [b"lives an hour"]

    run_broker(script, disk, clock=clock, stop=False)
    clock.reboot()
    clock.jump(-7200)

    async def afterwards(broker: Broker) -> None:
        assert values_in(broker, "a") == [b"lives an hour"], "the other one does not come back"
        clock.advance(1801)
        await broker.delayed.deliver_due()
        assert values_in(broker, "a") == [] and all_values(broker, "later") == [b"in an hour"]

    run_broker(afterwards, disk.crash(), clock=clock)
    assert "delays and expiry go on 7200 s ahead of it" in caplog.text


def test_a_machine_that_was_off_counts_the_time() -> None:
    disk, clock = FaultyDisk(), ManualClock()
    run_broker(fill, disk, clock=clock)
    clock.reboot()
    clock.jump(3601)

    async def afterwards(broker: Broker) -> None:
        await broker.delayed.deliver_due()
        assert values_in(broker, "a") == [] and all_values(broker, "later") == [b"in an hour"]

    run_broker(afterwards, disk, clock=clock)


@pytest.mark.parametrize("content", [b"", b"0", b"00000000\n[1,2]", b"nonsense\n", None])
def test_without_a_file_to_trust_the_machine_is_believed(content: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    disk, clock = FaultyDisk(), ManualClock()
    run_broker(fill, disk, clock=clock)
    if content is None:
        disk.remove_file(CLOCK)
    else:
        disk.replace_file(CLOCK, content)
    clock.jump(3601)

    async def afterwards(broker: Broker) -> None:
        assert broker.steady.now_ms() == clock.now_ms() and values_in(broker, "a") == []

    run_broker(afterwards, disk, clock=clock)
    assert ("/data/clock is damaged" in caplog.text) == (content is not None)
    assert disk.exists(CLOCK), "it is made anew"


def test_a_full_disk_keeps_nobody_from_starting(caplog: pytest.LogCaptureFixture) -> None:
    disk, clock = FaultyDisk(), ManualClock()
    run_broker(fill, disk, clock=clock)
    disk.fail("write", path=CLOCK + ".new", code=28)

    async def afterwards(broker: Broker) -> None:
        assert values_in(broker, "a") == [b"lives an hour", b"lives a second"]

    run_broker(afterwards, disk, clock=clock)
    assert "the time was not written down" in caplog.text
