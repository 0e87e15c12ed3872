"""A replica that was away comes back: how fast it copies what it lacks, and what that costs those who produce meanwhile.

One node is killed. The other two take in `size_mb`, then a producer that never waits longer than for its own batches is measured
without the third node, and again while the third is back and copies; it is told to send no faster than `PACE_MB_PER_S`, so that the
two share a machine rather than fight for it. Asked for: at least half of what the disk does, and 0.7 x the
producer's rate. The disk is measured twice, just before: a file written in one go and synced once, and one that is synced after
every 8 MiB, which is what a log that promises something has to do.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from cluster_nodes import addresses, kill, three_nodes, wait_ready

from braidmq import hot
from braidmq.base import limits
from braidmq.cli.cluster_nodes import Node
from braidmq.client import sync

TOPIC: Final = "large"
PARTITIONS: Final = 6
RECORDS: Final = 1000
RECORD_BYTES: Final = 1000
UNDER_WAY: Final = 6
ALONE_S: Final = 10.0
SYNC_EVERY: Final = 8 * limits.MIB
DISK_BYTES: Final = 2 * limits.GIB
PACE_MB_PER_S: Final = 60


def measure(directory: Path, port: int, size_mb: int) -> dict[str, Any]:
    disk_mb, synced_mb = _disk_mb_per_s(directory / "disk", DISK_BYTES), _disk_mb_per_s(directory / "disk", SYNC_EVERY)
    with three_nodes(directory, port) as nodes, sync.connect(addresses(nodes), timeout_s=120, pool_size=UNDER_WAY) as client:
        client.create_topic(TOPIC, PARTITIONS, {"retention_bytes": "0"})
        coordinator = client.cluster.status().leader
        node = next(node for node in nodes if node.name != coordinator)
        kill(node)
        load = _Load(client)
        began_s = time.perf_counter()
        load.run(lambda: load.sent_bytes < size_mb * limits.MIB)
        fill_mb = load.sent_bytes / limits.MIB / (time.perf_counter() - began_s)
        before = load.rate(lambda began_s: time.perf_counter() - began_s < ALONE_S)
        missing_mb = load.sent_bytes / limits.MIB
        node.start()
        wait_ready([node])
        back = _Back(client, node)
        began_s = time.perf_counter()
        meanwhile = load.rate(lambda _: not back.reached.is_set())
        took_s = time.perf_counter() - began_s
        copied_mb = missing_mb + meanwhile * took_s * RECORDS * RECORD_BYTES / limits.MIB
        back.join()
    copied_mb_per_s = copied_mb / took_s
    return {
        "missing_mb": round(missing_mb), "fill_mb_per_s": round(fill_mb), "caught_up_s": round(took_s, 1),
        "copied_mb_per_s": round(copied_mb_per_s), "disk_mb_per_s": round(disk_mb), "disk_synced_mb_per_s": round(synced_mb),
        "of_disk": round(copied_mb_per_s / disk_mb, 2), "of_disk_synced": round(copied_mb_per_s / synced_mb, 2),
        "produce_ratio": round(meanwhile / before, 2),
    }  # fmt: skip


def _disk_mb_per_s(path: Path, sync_every: int) -> float:
    piece = os.urandom(limits.MIB)
    began_s = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for number in range(DISK_BYTES // len(piece)):
            file.write(piece)
            if (number + 1) * len(piece) % sync_every == 0:
                os.fdatasync(file.fileno())
        os.fdatasync(file.fileno())
    took_s = time.perf_counter() - began_s
    path.unlink()
    return DISK_BYTES / limits.MIB / took_s


class _Load:
    """Whole batches into all partitions in turn, a few on their way at once."""

    def __init__(self, client: sync.Client) -> None:
        self._client = client
        values = pa.array([os.urandom(RECORD_BYTES) for _ in range(RECORDS)], pa.binary())
        keys = pa.array([b"key-%d" % number for number in range(RECORDS)], pa.binary())
        self._batch = hot.encode_columns(np.arange(RECORDS, dtype="<i4"), *keys.buffers()[1:], *values.buffers()[1:])
        self._partition = 0
        self.sent_bytes = 0

    def run(self, wanted: Callable[[], bool]) -> int:
        """Produce while `wanted()`; returns how many batches were acknowledged."""
        acked = 0
        under_way: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(UNDER_WAY) as senders:
            while wanted():
                while len(under_way) >= UNDER_WAY:
                    under_way.popleft().result()
                    acked += 1
                self._partition = (self._partition + 1) % PARTITIONS
                under_way.append(senders.submit(self._client.produce_batch, TOPIC, self._partition, self._batch))
                self.sent_bytes += len(self._batch)
            for sent in under_way:
                sent.result()
        return acked + len(under_way)

    def rate(self, wanted: Callable[[float], bool]) -> float:
        """Batches a second while `wanted(when it began)`, sent no faster than the pace."""
        began_s, began_bytes = time.perf_counter(), self.sent_bytes

        def paced() -> bool:
            due_s = began_s + (self.sent_bytes - began_bytes) / (PACE_MB_PER_S * limits.MIB)
            time.sleep(max(0.0, due_s - time.perf_counter()))
            return wanted(began_s)

        acked = self.run(paced)
        return acked / (time.perf_counter() - began_s)


class _Back(threading.Thread):
    """Waits until a node is in sync in every partition."""

    def __init__(self, client: sync.Client, node: Node) -> None:
        super().__init__(name="until-in-sync")
        self._client = client
        self._node = node
        self.reached = threading.Event()
        self.start()

    def run(self) -> None:
        while not all(self._node.name in part.in_sync for part in self._client.cluster.metadata(TOPIC)[0].partitions):
            time.sleep(0.1)
        self.reached.set()
