"""The disk as the broker sees it: room, how fast it syncs, and what it failed at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from braidmq.admin.call import Call, Nothing
from braidmq.broker.pace import Pace


@dataclass(frozen=True, slots=True)
class ReadOnlyPartition:
    """A partition that takes no records any more."""

    topic: str
    partition: int
    reason: str


@dataclass(frozen=True, slots=True)
class DiskHealth:
    """How the disk does."""

    data_dir: str
    free_bytes: int
    written_bytes: Annotated[int, "to the log since the start"]
    syncs: int
    sync_p50_ms: float
    sync_p99_ms: float
    append_p99_ms: Annotated[float, "writes, without the sync"]
    read_only: Annotated[list[ReadOnlyPartition], "partitions whose disk failed"]


async def get_disk(call: Call[Nothing, Nothing]) -> DiskHealth:
    """Room, speed and failures of the disk since the start."""
    broker, figures = call.broker, call.broker.figures
    directory = broker.settings.data_dir
    free = await broker.compute(lambda: broker.disk.free_bytes(directory))
    pace = Pace()
    failed = []
    for topic in list(broker.topics.all()):
        for number in range(topic.partitions):
            await pace.step()
            log = broker.store.opened(topic.id, number)
            if log is not None and log.failure is not None:
                failed.append(ReadOnlyPartition(topic.name, number, log.failure.text))
    return DiskHealth(
        directory, free, figures.written_bytes, figures.sync_s.count, figures.sync_s.quantile(0.5) * 1000,
        figures.sync_s.quantile(0.99) * 1000, figures.append_s.quantile(0.99) * 1000, failed,
    )  # fmt: skip
