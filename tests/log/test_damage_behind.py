"""Records behind damage: an index made anew reaches them, and a log shorter than its checkpoint is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq import hot
from braidmq.base.disk_real import RealDisk
from braidmq.base.errors import BraidError
from braidmq.log.checkpoint import PartitionCheckpoint
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings, PartitionLog
from braidmq.log.partition_reads import Cold, Rows
from braidmq.log.recovery import recover
from braidmq.log.segment import next_intact_batch


def _written(directory: Path, batches: int) -> PartitionLog:
    log = PartitionLog(RealDisk(), str(directory / "topics/1/0"), "t", 0, LogSettings(Level.OS))
    for number in range(batches):
        log.accumulator.append(b"k", b"%d" % number * 700)
        log.write_pending(1000 + number)
    log.close()
    return log


def _reopened(log: PartitionLog, known: PartitionCheckpoint | None = None) -> tuple[PartitionLog, str]:
    again = PartitionLog(RealDisk(), log.directory, "t", 0, LogSettings(Level.OS))
    return again, recover(RealDisk(), again, known).reason


def test_an_index_made_anew_reaches_behind_damage(tmp_path: Path) -> None:
    log = _written(tmp_path, 40)
    segment = Path(log.directory) / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    first_of_tenth = 0
    for _ in range(10):
        first_of_tenth += int.from_bytes(data[first_of_tenth + 4 : first_of_tenth + 8], "little")
    data[first_of_tenth + 300] ^= 1
    segment.write_bytes(data)
    (Path(log.directory) / f"{0:020d}.idx").unlink()
    known = PartitionCheckpoint(0, len(data), 40)
    again, reason = _reopened(log, known)
    assert reason == ""
    cold = again.read_rows(10, 100, 1 << 20)
    assert isinstance(cold, Cold), "the index is made beside the loop"
    cold.warm_up()
    with pytest.raises(BraidError, match="CORRUPT_LOG"):
        again.read_rows(10, 100, 1 << 20)
    rows = again.read_rows(0, 100, 1 << 20)
    assert isinstance(rows, Rows) and (rows.count, rows.next_offset) == (10, 10)
    behind = again.read_rows(15, 100, 1 << 20)
    assert isinstance(behind, Rows) and behind.count == 25
    assert b"15" * 700 in bytes(behind.slices[0])


@pytest.mark.parametrize("padding", [0, 8, 64, (1 << 20) - 8, (1 << 20) + 16])
def test_the_search_finds_a_batch_wherever_it_lies(padding: int) -> None:
    batch = hot.encode_batch([None], [b"value"])
    view = memoryview(b"BRD1" * 2 + bytes(padding) + batch)
    assert next_intact_batch(view, 0, len(view)) == 8 + padding
    assert next_intact_batch(view, 16 + padding, len(view)) == len(view)


def test_a_log_that_ends_before_its_checkpoint_is_reported(tmp_path: Path) -> None:
    log = _written(tmp_path, 5)
    path = Path(log.directory) / f"{0:020d}.log"
    whole = path.read_bytes()
    position = 0
    for _ in range(3):
        position += int.from_bytes(whole[position + 4 : position + 8], "little")
    path.write_bytes(whole[:position])
    again, reason = _reopened(log, PartitionCheckpoint(0, len(whole), 5))
    assert again.high_watermark == 3
    assert "ends at offset 3, before its checkpoint at 5" in reason
