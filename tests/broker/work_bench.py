"""A broker on a disk that a test owns, on one thread, and ways to let it die at any operation of that disk."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import pytest

from braidmq import hot
from braidmq.base.clock import Clock, ManualClock
from braidmq.base.disk import Disk
from braidmq.base.disk_faulty import FaultyDisk, SimulatedCrash
from braidmq.base.errors import BraidError
from braidmq.broker import broker as broker_module
from braidmq.broker.broker import Broker, BrokerSettings
from braidmq.log.commit import InlineSyncer
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings
from braidmq.log.partition_reads import Batches, Rows

T = TypeVar("T")
Script = Callable[[Broker], Awaitable[T]]


def settings_of(level: Level = Level.FSYNC, **more: object) -> BrokerSettings:
    return BrokerSettings("/data", LogSettings(level, 64 * 1024), default_partitions=2, **more)  # type: ignore[arg-type]


def make_broker(disk: Disk, clock: Clock, settings: BrokerSettings | None = None, *, threads: bool = False) -> Broker:
    """A broker that is not started. Without `threads` syncs happen where they are asked for, so the disk sees one order."""
    with pytest.MonkeyPatch.context() as patch:
        if not threads:
            patch.setattr(broker_module, "ThreadSyncer", lambda disk, *_: InlineSyncer(disk))
        return Broker(settings or settings_of(), disk, clock)


async def let_go(broker: Broker) -> None:
    """Drop a broker as a kill does: nothing more is written."""
    broker.delayed._stopped = True
    if broker.delayed._timer is not None:
        broker.delayed._timer.cancel()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    broker.commit.close()
    broker._io.shutdown()
    broker._cpu.shutdown()


def run_broker(
    script: Script[T], disk: Disk | None = None, *, clock: Clock | None = None, settings: BrokerSettings | None = None,
    stop: bool = True, threads: bool = False,
) -> T:
    """Start a broker, run the script, and stop it or leave it as a kill does."""

    async def main() -> T:
        broker = make_broker(disk or FaultyDisk(), clock or ManualClock(), settings, threads=threads)
        await broker.start()
        try:
            result = await script(broker)
        except BaseException:
            await let_go(broker)
            raise
        await (broker.stop() if stop else let_go(broker))
        return result

    return asyncio.run(main())


def crashes(script: Script[object], disk: FaultyDisk, clock: ManualClock, settings: BrokerSettings | None = None) -> bool:
    """Run a broker on a disk that dies at some operation; False when everything came to its end before that."""

    async def main() -> bool:
        loop = asyncio.get_running_loop()
        crashed: asyncio.Future[None] = loop.create_future()

        def note(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
            assert isinstance(context.get("exception"), SimulatedCrash), context
            if not crashed.done():
                crashed.set_result(None)

        loop.set_exception_handler(note)
        broker = make_broker(disk, clock, settings)

        async def life() -> None:
            await broker.start()
            await script(broker)
            await broker.stop()

        task = asyncio.create_task(life())
        await asyncio.wait([task, crashed], return_when=asyncio.FIRST_COMPLETED)
        if task.done() and task.exception() is not None and not isinstance(task.exception(), SimulatedCrash):
            task.result()
        await let_go(broker)
        return disk.dead

    return asyncio.run(main())


def crash_points(
    script: Callable[[], Script[object]], clock: Callable[[], ManualClock] = ManualClock, settings: BrokerSettings | None = None,
    step: int = 1, start: int = 0,
) -> Iterator[tuple[FaultyDisk, ManualClock, int]]:
    """Run what `script` makes until each operation of the disk in turn is the last; gives the disk, its clock and the point."""
    point = start
    while True:
        disk, time = FaultyDisk(point), clock()
        disk.crash_after(point)
        if not crashes(script(), disk, time, settings):
            assert point > start, "nothing ever crashed"
            return
        yield disk, time, point
        point += step


def fates(disk: FaultyDisk, count: int = 2) -> Iterator[FaultyDisk]:
    """What the next process may find: the death of the process, and losses of power with different luck."""
    yield disk.crash(power=False)
    for seed in range(count):
        yield disk.crash(seed)


# --- reading


def rows_of(rows: Rows) -> list[tuple[int, bytes, bytes]]:
    """(offset, key, value) of each row."""
    data = b"".join(rows.slices)
    found, at = [], 0
    while at < len(data):
        key_size = struct.unpack_from(">I", data, at)[0]
        value_at = at + 8 + key_size
        end = value_at + struct.unpack_from(">I", data, value_at - 4)[0] + 8
        found.append((int.from_bytes(data[end - 8 : end], "big"), data[at + 4 : at + 4 + key_size], data[value_at : end - 8]))
        at = end
    assert len(found) == rows.count and len(data) == rows.size
    return found


def values_in(broker: Broker, topic: str, partition: int = 0) -> list[bytes]:
    """Every readable value of a partition."""
    log = broker.partition(topic, partition)
    values: list[bytes] = []
    offset = log.log_start
    while offset < log.high_watermark:
        rows = log.read_rows(offset, 1000, 1 << 24, warmed=True)
        assert isinstance(rows, Rows)
        values += [value for _, _, value in rows_of(rows)]
        if rows.next_offset == offset:
            break
        offset = rows.next_offset
    return values


def all_values(broker: Broker, topic: str) -> list[bytes]:
    """Every readable value of a topic, partition by partition; empty when there is no such topic."""
    known = broker.topics.get(topic)
    return [value for number in range(known.partitions) for value in values_in(broker, topic, number)] if known is not None else []


def records_in(broker: Broker, topic: str, partition: int = 0) -> list[tuple[int, bytes | None, bytes, bytes]]:
    """(offset, key, value, attrs) of every record, read as whole batches."""
    log = broker.partition(topic, partition)
    read = log.read_batches(log.log_start, 1 << 30, warmed=True)
    assert isinstance(read, Batches)
    take = lambda offset, _time, key, value, attrs: (offset, key, value, attrs)  # noqa: E731
    found, _ = hot.decode_records(b"".join(read.slices), 0, 1 << 30, take)
    return found


def expect(code: str) -> AbstractContextManager[pytest.ExceptionInfo[BraidError]]:
    """`with expect("CODE"):` the block raises the error with this code."""
    return pytest.raises(BraidError, match=f"^{code}: ")
