"""Messages that are sent again within the window are known, and the memory for it is bounded."""

from __future__ import annotations

from braidmq.base import limits
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.broker.staged import StagedBatch
from braidmq.log.partition import LogSettings, PartitionLog
from braidmq.server.blipmq_dedup import Dedup


def stored(offset: int) -> StagedBatch:
    """A message that lies in a partition."""
    return StagedBatch(PartitionLog(FaultyDisk(), "/data/1/0", "t", 0, LogSettings()), offset, 1, 0, False)


def test_a_message_is_known_until_its_window_is_over() -> None:
    dedup = Dedup(100)
    staged = stored(7)
    dedup.remember(("alice", "t", "1"), staged, now_ms=1000)
    assert dedup.find(("alice", "t", "1"), 1099) is staged
    assert dedup.find(("bob", "t", "1"), 1099) is None, "each publisher has names of its own"
    assert dedup.find(("alice", "t", "1"), 1100) is None
    assert len(dedup) == 0, "nothing stays behind"


def test_what_was_not_stored_is_not_known() -> None:
    dedup = Dedup(100)
    dedup.remember(("alice", "t", "1"), stored(7), now_ms=0)
    dedup.forget(("alice", "t", "1"))
    assert dedup.find(("alice", "t", "1"), 0) is None
    staged = stored(8)
    dedup.remember(("alice", "t", "2"), staged, now_ms=0)
    assert dedup.find(("alice", "t", "2"), 0) is staged
    staged.log.fail("the disk is gone")
    assert dedup.find(("alice", "t", "2"), 0) is None


def test_no_more_are_remembered_than_the_bound() -> None:
    assert Dedup(100)._remembered_max == limits.BLIPMQ_DEDUP_REMEMBERED_MAX
    dedup = Dedup(3_600_000, remembered_max=1000)
    staged = stored(0)
    for number in range(1002):
        dedup.remember(("alice", "t", str(number)), staged, now_ms=0)
    assert len(dedup) == 1000
    assert [dedup.find(("alice", "t", str(number)), 0) for number in (0, 1, 2)] == [None, None, staged]
