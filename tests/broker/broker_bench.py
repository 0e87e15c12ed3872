"""A broker on a disk that a test owns, and ways to let it die.

`crashing` runs a coroutine against a broker whose syncs happen on the loop's own thread, so that the disk's operations have
one order and each of them can be the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from braidmq.base.clock import ManualClock
from braidmq.base.disk import Disk
from braidmq.base.disk_faulty import FaultyDisk, SimulatedCrash
from braidmq.broker import broker as broker_module
from braidmq.broker.broker import Broker, BrokerSettings
from braidmq.log.commit import InlineSyncer, ThreadSyncer
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings
from braidmq.log.partition_reads import Cold

DATA = "/data"
Script = Callable[[Broker], Awaitable[None]]


def settings_of(
    level: Level = Level.FSYNC, topics_max: int = 1_000_000, segment_bytes: int = 4096, data_dir: str = DATA
) -> BrokerSettings:
    return BrokerSettings(data_dir, LogSettings(level, segment_bytes), topics_max=topics_max)


def values_of(broker: Broker, topic: str, partition: int = 0) -> list[bytes]:
    """Every readable value of a partition; offsets are dense."""
    log = broker.partition(topic, partition)
    values: list[bytes] = []
    offset = log.log_start
    while offset < log.high_watermark:
        rows = log.read_rows(offset, 1000, 1 << 20, warmed=True)
        assert not isinstance(rows, Cold) and rows.count
        data = b"".join(rows.slices)
        at = 0
        while at < len(data):
            key_size = int.from_bytes(data[at : at + 4], "big")
            value_at = at + 8 + key_size
            end = value_at + int.from_bytes(data[value_at - 4 : value_at], "big") + 8
            assert int.from_bytes(data[end - 8 : end], "big") == log.log_start + len(values)
            values.append(data[value_at : end - 8])
            at = end
        offset = rows.next_offset
    return values


async def _let_go(broker: Broker) -> None:
    """End what a broker runs beside the loop, without an orderly stop."""
    tasks = [*broker._housekeeping, *broker._deletions]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    broker.commit.close()
    broker._io.shutdown()


def run_broker(
    script: Script,
    disk: Disk | None = None,
    settings: BrokerSettings | None = None,
    *,
    clock: ManualClock | None = None,
    stop: bool = True,
    threads: bool = False,
) -> FaultyDisk:
    """Start a broker, run the script, and stop it or leave it as a kill does."""
    disk = FaultyDisk() if disk is None else disk

    async def main() -> None:
        chosen = broker_module.ThreadSyncer
        if not threads:
            broker_module.ThreadSyncer = lambda disk, *_: InlineSyncer(disk)  # type: ignore[assignment, misc]
        try:
            broker = Broker(settings or settings_of(), disk, clock or ManualClock())
        finally:
            broker_module.ThreadSyncer = chosen  # type: ignore[misc]
        await broker.start()
        try:
            await script(broker)
        except BaseException:
            await _let_go(broker)
            raise
        if stop:
            await broker.stop()
        else:
            await _let_go(broker)

    assert ThreadSyncer is broker_module.ThreadSyncer
    asyncio.run(main())
    return disk  # type: ignore[return-value]


def crashing(script: Script, disk: FaultyDisk, settings: BrokerSettings, *, stop: bool) -> bool:
    """Run a broker on a disk that dies at some operation; False when the script came to its end before that."""

    async def main() -> bool:
        loop = asyncio.get_running_loop()
        crashed = loop.create_future()

        def note(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
            fault = context.get("exception")
            assert isinstance(fault, SimulatedCrash), context
            if not crashed.done():
                crashed.set_result(None)

        loop.set_exception_handler(note)
        broker = Broker.__new__(Broker)

        async def life() -> None:
            chosen = broker_module.ThreadSyncer
            broker_module.ThreadSyncer = lambda disk, *_: InlineSyncer(disk)  # type: ignore[assignment, misc]
            try:
                broker.__init__(settings, disk, ManualClock())  # type: ignore[misc]
            finally:
                broker_module.ThreadSyncer = chosen  # type: ignore[misc]
            try:
                await broker.start()
                await script(broker)
                if stop:
                    await broker.stop()
            except SimulatedCrash:
                # A coroutine that met the crash itself; everything else meets it in a callback of the loop.
                if not crashed.done():
                    crashed.set_result(None)

        task = asyncio.create_task(life())
        await asyncio.wait([task, crashed], return_when=asyncio.FIRST_COMPLETED)
        died = crashed.done()
        if not died:
            task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await _let_go(broker)
        return died

    return asyncio.run(main())
