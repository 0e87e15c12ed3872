"""A partition on a bench: its disk, its clock, and a loop whose turns a test ends by hand.

Syncs run on the caller's thread, so a test decides what happens between any two steps. `crash` gives the bench that the next
process would find.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from braidmq import hot
from braidmq.base.clock import ManualClock
from braidmq.base.disk import Disk
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError
from braidmq.log.checkpoint import PartitionCheckpoint
from braidmq.log.commit import GroupCommit, InlineSyncer, SyncJob
from braidmq.log.partition import Batches, Cold, LogSettings, PartitionLog, Rows
from braidmq.log.recovery import PartitionRecovery, recover

DIRECTORY = "/data/topics/1/0"
Record = tuple[int, bytes, bytes]


def rows_of(rows: Rows) -> list[Record]:
    """(offset, key, value) of each row, and a check that the answer counts right."""
    data = b"".join(rows.slices)
    assert len(data) == rows.size
    found: list[Record] = []
    at = 0
    while at < len(data):
        key_size = struct.unpack_from(">I", data, at)[0]
        value_at = at + 8 + key_size
        value_size = struct.unpack_from(">I", data, value_at - 4)[0]
        end = value_at + value_size + 8
        found.append(
            (int.from_bytes(data[end - 8 : end], "big"), data[at + 4 : at + 4 + key_size], data[value_at : value_at + value_size])
        )
        at = end
    assert len(found) == rows.count
    return found


def records_of(batches: Batches, offset: int) -> list[Record]:
    data = b"".join(batches.slices)
    assert len(data) == batches.size
    return list(hot.decode_records(data, offset, 1 << 30, lambda o, _time, key, value, _attrs: (o, key or b"", value))[0])


@dataclass
class Ack:
    """What somebody who waits for records was told."""

    end: int
    told: list[BraidError | None] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.told == [None]

    @property
    def code(self) -> str:
        """The code of the one error that came."""
        assert len(self.told) == 1 and self.told[0] is not None, self.told
        return self.told[0].code


class HeldSyncer(InlineSyncer):
    """Syncs only when it is told to, so that several turns are written before the first of them is durable."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.jobs: list[SyncJob] = []

    def submit(self, job: SyncJob) -> None:
        self.jobs.append(job)

    def run(self) -> None:
        while self.jobs:
            super().submit(self.jobs.pop(0))


class Bench:
    def __init__(
        self,
        disk: Disk | None = None,
        settings: LogSettings | None = None,
        *,
        directory: str = DIRECTORY,
        known: PartitionCheckpoint | None = None,
        clock: ManualClock | None = None,
        hold_syncs: bool = False,
    ) -> None:
        self.disk: Disk = FaultyDisk() if disk is None else disk
        self.clock = clock or ManualClock()
        self.settings = settings or LogSettings()
        self.directory = directory
        self.disk.make_directory(directory.rpartition("/")[0].rpartition("/")[0])
        self.turns: list[Callable[[], None]] = []
        self.syncer = HeldSyncer(self.disk) if hold_syncs else InlineSyncer(self.disk)
        self.commit = GroupCommit(self.clock, self.syncer, self.turns.append)
        self.log = PartitionLog(self.disk, directory, "topic", 0, self.settings)
        self.found: PartitionRecovery = recover(self.disk, self.log, known)

    @property
    def faulty(self) -> FaultyDisk:
        assert isinstance(self.disk, FaultyDisk)
        return self.disk

    # --- writing

    def add(self, *values: bytes, key: bytes | None = None) -> Ack:
        """Add records to the batch of this turn."""
        self.log.check_writable()
        for value in values:
            self.log.accumulator.append(key, value)
        self.commit.touch(self.log)
        return self._waiting(self.log.accumulator.next_offset)

    def stage(self, *values: bytes, producer: tuple[int, int, int] = (-1, -1, -1)) -> Ack:
        """Hand over a whole batch in this turn."""
        base, records, _, duplicate = self.log.stage_batch(
            hot.encode_batch([None] * len(values), list(values), None, *producer), self.commit.now_ms()
        )
        if not duplicate:
            self.commit.touch(self.log)
        return self._waiting(base + records)

    def _waiting(self, end: int) -> Ack:
        ack = Ack(end)
        self.log.when_visible(end, ack.told.append)
        return ack

    def turn(self) -> None:
        """End this turn of the loop, and those it asks for."""
        while self.turns:
            self.turns.pop(0)()

    def sync(self) -> None:
        """Run the syncs that were held back."""
        if isinstance(self.syncer, HeldSyncer):
            self.syncer.run()

    def write(self, *values: bytes) -> Ack:
        """One batch, written and synced."""
        ack = self.add(*values)
        self.turn()
        return ack

    def retain(self) -> int:
        """Let retention take what it may, with its files; returns how many segments."""
        expired = self.log.expired_segments(self.clock.now_ms())
        self.log.drop_segments(expired)
        for segment in expired:
            segment.remove()
        return len(expired)

    def remove(self) -> None:
        """Delete the partition as the deletion of its topic does."""
        self.log.retire()
        self.disk.remove_tree(self.directory)

    # --- reading

    def rows(self, offset: int = 0, records_max: int = 1 << 20, bytes_max: int = 1 << 30) -> Rows:
        read = self.log.read_rows(offset, records_max, bytes_max)
        if isinstance(read, Cold):
            read.warm_up()
            read = self.log.read_rows(offset, records_max, bytes_max, warmed=True)
        assert isinstance(read, Rows)
        return read

    def batches(self, offset: int = 0, bytes_max: int = 1 << 30) -> Batches:
        read = self.log.read_batches(offset, bytes_max)
        if isinstance(read, Cold):
            read.warm_up()
            read = self.log.read_batches(offset, bytes_max, warmed=True)
        assert isinstance(read, Batches)
        return read

    def all(self) -> list[Record]:
        """Every readable record, read as a consumer does: answer by answer."""
        found: list[Record] = []
        offset = self.log.log_start
        while offset < self.log.high_watermark:
            rows = self.rows(offset)
            assert rows.count, f"nothing at {offset} of {self.log.high_watermark}"
            found += rows_of(rows)
            offset = rows.next_offset
        return found

    def values(self) -> list[bytes]:
        found = self.all()
        assert [offset for offset, _, _ in found] == list(range(self.log.log_start, self.log.high_watermark)), "offsets are dense"
        return [value for _, _, value in found]

    # --- the next process

    def checkpoint(self) -> PartitionCheckpoint | None:
        place = self.log.durable_place()
        return None if place is None else PartitionCheckpoint(*place, self.log.producers.dump(place[2]))

    def reopened(self, known: PartitionCheckpoint | None = None, disk: Disk | None = None) -> Bench:
        """The same files in the hands of a new process."""
        return Bench(disk or self.disk, self.settings, directory=self.directory, known=known, clock=self.clock)

    def crashed(self, seed: int | None = None, *, power: bool = True, known: PartitionCheckpoint | None = None) -> Bench:
        return self.reopened(known, self.faulty.crash(seed, power=power))
