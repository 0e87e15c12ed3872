"""A partition whose batches are stored in any form, and what a reader gets from it."""

from __future__ import annotations

import struct
from collections.abc import Callable

from braidmq import hot
from braidmq.base.clock import ManualClock
from braidmq.base.disk import Disk
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.key_ring import KeyRing
from braidmq.log.batch_codec import BatchCodec
from braidmq.log.commit import GroupCommit, InlineSyncer
from braidmq.log.partition import LogSettings, PartitionLog
from braidmq.log.partition_reads import Batches, Cold, Rows
from braidmq.log.recovery import PartitionRecovery, recover

DIRECTORY = "/data/topics/1/0"
OLD_KEY, NEW_KEY, OTHER_KEY = "0f" * 32, "a1" * 32, "5c" * 32
KEYS = KeyRing([OLD_KEY])
Record = tuple[int, bytes, bytes]


class CodecBench:
    """One partition on a disk; turns of the loop end by hand and syncs run at once."""

    def __init__(self, codec: BatchCodec | None, disk: Disk | None = None, settings: LogSettings | None = None) -> None:
        self.disk: Disk = disk or FaultyDisk()
        self.settings = settings or LogSettings()
        self.disk.make_directory("/data/topics")
        self.turns: list[Callable[[], None]] = []
        self.commit = GroupCommit(ManualClock(), InlineSyncer(self.disk), self.turns.append)
        self.log = PartitionLog(self.disk, DIRECTORY, "topic", 0, self.settings, codec)
        self.found: PartitionRecovery = recover(self.disk, self.log, None)

    def reopened(self, codec: BatchCodec | None, disk: Disk | None = None) -> CodecBench:
        return CodecBench(codec, disk or self.disk, self.settings)

    def add(self, *values: bytes, key: bytes | None = None) -> list[object]:
        """Rows of this turn; the list holds what their producer is told."""
        for value in values:
            self.log.accumulator.append(key, value)
        return self._touched()

    def stage(self, *values: bytes) -> list[object]:
        """A whole batch of this turn."""
        self.log.stage_batch(hot.encode_batch([None] * len(values), list(values)), self.commit.now_ms())
        return self._touched()

    def _touched(self) -> list[object]:
        self.commit.touch(self.log)
        told: list[object] = []
        self.log.when_visible(self.log.accumulator.next_offset, told.append)
        return told

    def turn(self) -> None:
        while self.turns:
            self.turns.pop(0)()

    def write(self, *values: bytes, key: bytes | None = None) -> list[object]:
        told = self.add(*values, key=key)
        self.turn()
        return told

    def rows(self, offset: int, records_max: int = 1 << 20, bytes_max: int = 1 << 30) -> Rows:
        read = self.log.read_rows(offset, records_max, bytes_max)
        if isinstance(read, Cold):
            read.warm_up()
            read = self.log.read_rows(offset, records_max, bytes_max, warmed=True)
        assert isinstance(read, Rows)
        return read

    def batches(self, offset: int, bytes_max: int = 1 << 30) -> Batches:
        read = self.log.read_batches(offset, bytes_max)
        if isinstance(read, Cold):
            read.warm_up()
            read = self.log.read_batches(offset, bytes_max, warmed=True)
        assert isinstance(read, Batches)
        return read

    def values(self) -> list[bytes]:
        """Every readable value, answer by answer."""
        found: list[Record] = []
        while (offset := self.log.log_start + len(found)) < self.log.high_watermark:
            records = rows_of(self.rows(offset))
            assert records, f"nothing at {offset}"
            found += records
        assert [offset for offset, _, _ in found] == list(range(self.log.log_start, self.log.high_watermark))
        return [value for _, _, value in found]

    def stored(self) -> bytes:
        """Everything in the partition's segments."""
        return b"".join(self.disk.read_file(segment.log_path) for segment in self.log.segments)


def rows_of(rows: Rows) -> list[Record]:
    data = b"".join(rows.slices)
    assert len(data) == rows.size
    found: list[Record] = []
    at = 0
    while at < len(data):
        key_size = struct.unpack_from(">I", data, at)[0]
        value_at = at + 8 + key_size
        end = value_at + struct.unpack_from(">I", data, value_at - 4)[0] + 8
        found.append((int.from_bytes(data[end - 8 : end], "big"), data[at + 4 : at + 4 + key_size], data[value_at : end - 8]))
        at = end
    assert len(found) == rows.count
    return found


def records_of(batches: Batches, offset: int) -> list[Record]:
    data = b"".join(batches.slices)
    assert len(data) == batches.size
    return list(hot.decode_records(data, offset, 1 << 30, lambda at, _time, key, value, _attrs: (at, key or b"", value))[0])
