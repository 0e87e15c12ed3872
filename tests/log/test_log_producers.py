"""Idempotent producers: a repeated batch is stored once, whatever happened in between."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from log_bench import Bench

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.hot import encode_batch
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings
from braidmq.log.producers import ProducerTable


def send(bench: Bench, producer: int, epoch: int, sequence: int, count: int = 1) -> tuple[int, bool]:
    """(base offset, whether it was a duplicate) of a batch sent in a turn of its own."""
    batch = encode_batch(
        [None] * count, [b"%d/%d/%d" % (producer, epoch, sequence + n) for n in range(count)], None, producer, epoch, sequence
    )
    base, records, _, duplicate = bench.log.stage_batch(batch, bench.commit.now_ms())
    assert records == count
    if not duplicate:
        bench.commit.touch(bench.log)
    bench.turn()
    return base, duplicate


def test_a_repeated_batch_is_answered_with_its_first_place() -> None:
    bench = Bench()
    assert send(bench, 7, 0, 0, 3) == (0, False)
    assert send(bench, 7, 0, 3, 2) == (3, False)
    assert send(bench, 7, 0, 0, 3) == (0, True)
    assert send(bench, 7, 0, 3, 2) == (3, True)
    assert send(bench, 7, 0, 5) == (5, False)
    assert len(bench.values()) == 6


def test_a_duplicate_carries_its_first_timestamp() -> None:
    bench = Bench()
    first = bench.log.stage_batch(encode_batch([None], [b"a"], None, 1, 0, 0), bench.commit.now_ms())
    bench.commit.touch(bench.log)
    bench.turn()
    bench.clock.advance(60)
    again = bench.log.stage_batch(encode_batch([None], [b"a"], None, 1, 0, 0), bench.commit.now_ms())
    assert again == (*first[:3], True)


def test_a_duplicate_in_the_same_turn_waits_with_the_first() -> None:
    bench = Bench(hold_syncs=True)
    first = bench.stage(b"a", producer=(1, 0, 0))
    second = bench.stage(b"a", producer=(1, 0, 0))
    bench.turn()
    assert first.told == second.told == []
    bench.sync()
    assert first.good and second.good and bench.values() == [b"a"]


def test_gaps_and_overlaps_are_refused() -> None:
    bench = Bench()
    send(bench, 7, 0, 0, 3)
    for sequence, count in ((4, 1), (2, 2), (0, 2), (1, 1), (2, 1)):
        with pytest.raises(BraidError, match=f"OUT_OF_ORDER_SEQUENCE.*sequence {sequence} where 3 comes next"):
            send(bench, 7, 0, sequence, count)
    assert len(bench.values()) == 3
    assert send(bench, 7, 0, 3) == (3, False)


def test_a_producer_nobody_knows_may_begin_anywhere() -> None:
    bench = Bench()
    assert send(bench, 9, 4, 1000) == (0, False)
    with pytest.raises(BraidError, match="OUT_OF_ORDER"):
        send(bench, 9, 4, 1002)


def test_a_newer_epoch_fences_the_older() -> None:
    bench = Bench()
    send(bench, 7, 1, 0)
    assert send(bench, 7, 2, 0) == (1, False), "a new epoch counts anew"
    with pytest.raises(BraidError, match=r"FENCED_PRODUCER.*epoch 1 was replaced by epoch 2"):
        send(bench, 7, 1, 1)
    with pytest.raises(BraidError, match="FENCED_PRODUCER"):
        send(bench, 7, 1, 0)
    assert send(bench, 7, 2, 0) == (1, True)


def test_sequences_begin_anew_after_31_bits() -> None:
    bench = Bench()
    last = (1 << 31) - 1
    assert send(bench, 7, 0, last - 1, 1) == (0, False)
    assert send(bench, 7, 0, last, 1) == (1, False)
    assert send(bench, 7, 0, 0, 1) == (2, False)
    assert send(bench, 7, 0, last, 1) == (1, True)
    other = Bench()
    assert send(other, 8, 0, last - 1, 5) == (0, False), "a batch may reach over the end"
    assert send(other, 8, 0, 3, 1) == (5, False)


def test_only_the_last_few_batches_are_remembered() -> None:
    bench = Bench()
    for sequence in range(limits.PRODUCER_BATCHES_KEPT + 1):
        send(bench, 7, 0, sequence)
    assert send(bench, 7, 0, 1) == (1, True)
    with pytest.raises(BraidError, match="OUT_OF_ORDER"):
        send(bench, 7, 0, 0)


def test_the_producer_silent_for_longest_is_forgotten_first() -> None:
    table = ProducerTable()
    most = limits.PRODUCERS_PER_PARTITION_MAX
    for producer in range(most):
        table.record(producer, 0, 0, 1, producer, 0)
    table.record(0, 0, 1, 1, most, 0)
    table.record(most, 0, 0, 1, most + 1, 0)
    assert len(table) == most
    assert table.find_duplicate(1, 0, 0, 1) is None, "forgotten"
    assert table.find_duplicate(0, 0, 0, 1) == (0, 0), "it spoke lately"
    assert table.find_duplicate(2, 0, 0, 1) == (2, 0)


@pytest.mark.parametrize("producer", [(5, -1, 0), (5, 0, -1), (0, -1, -1)])
def test_a_producer_id_needs_an_epoch_and_a_sequence(producer: tuple[int, int, int]) -> None:
    bench = Bench()
    with pytest.raises(BraidError, match="INVALID_BATCH"):
        bench.stage(b"a", producer=producer)
    assert bench.stage(b"a", producer=(-1, -1, -1)).end == 1


# --- batches that did not make it


def test_a_batch_that_was_taken_back_may_be_sent_again() -> None:
    bench = Bench()
    send(bench, 7, 0, 0)
    bench.faulty.fail("write", code=errno.ENOSPC)
    refused = bench.stage(b"x", b"y", producer=(7, 0, 1))
    bench.turn()
    assert refused.code == "STORAGE_FULL"
    assert send(bench, 7, 0, 1, 2) == (1, False), "it is no duplicate of something that is not there"
    assert send(bench, 7, 0, 0) == (0, True)
    assert len(bench.values()) == 3


def test_a_first_batch_that_was_taken_back_leaves_no_gap() -> None:
    bench = Bench()
    bench.faulty.fail("write", code=errno.ENOSPC)
    bench.stage(b"x", producer=(7, 3, 0))
    bench.turn()
    assert send(bench, 7, 3, 0) == (0, False)


def test_a_new_epoch_fences_even_if_its_first_batch_was_taken_back() -> None:
    bench = Bench()
    send(bench, 7, 1, 0)
    bench.faulty.fail("write", code=errno.ENOSPC)
    bench.stage(b"x", producer=(7, 2, 0))
    bench.turn()
    with pytest.raises(BraidError, match="FENCED_PRODUCER"):
        send(bench, 7, 1, 1)
    assert send(bench, 7, 2, 0) == (1, False)


# --- after a restart


@pytest.mark.parametrize("how", ["walked", "checkpoint", "old checkpoint", "orderly"])
def test_duplicates_are_known_after_a_restart(how: str) -> None:
    bench = Bench(settings=LogSettings(segment_bytes=4096))
    for sequence in range(4):
        send(bench, 7, 0, 2 * sequence, 2)
        send(bench, 8, 1, sequence)
        bench.write(bytes(900))
    old = bench.checkpoint()
    send(bench, 8, 2, 0)
    send(bench, 7, 0, 8)
    known = {"walked": None, "checkpoint": bench.checkpoint(), "old checkpoint": old, "orderly": bench.checkpoint()}[how]
    if how == "orderly":
        bench.log.close()
    expected = bench.log.producers.dump(1 << 60)
    after = bench.crashed(power=False, known=known)
    assert sorted(after.log.producers.dump(1 << 60)) == sorted(expected)
    assert send(after, 7, 0, 8) == (17, True)
    assert send(after, 7, 0, 6, 2) == (12, True)
    assert send(after, 8, 2, 0) == (16, True)
    with pytest.raises(BraidError, match="FENCED_PRODUCER"):
        send(after, 8, 1, 4)
    with pytest.raises(BraidError, match="OUT_OF_ORDER"):
        send(after, 7, 0, 10)
    assert send(after, 7, 0, 9) == (18, False)


def test_a_walk_over_old_epochs_does_not_undo_what_the_checkpoint_knows() -> None:
    table = ProducerTable()
    table.load([[7, 2, [[0, 1, 50, 0]]]])
    table.record(7, 1, 5, 1, 40, 0)
    assert table.find_duplicate(7, 2, 0, 1) == (50, 0)
    assert table.find_duplicate(7, 2, 1, 1) is None


def test_the_checkpoint_does_not_vouch_for_batches_that_are_gone() -> None:
    """A duplicate of a batch that the disk lost would be acknowledged without being there."""
    bench = Bench(settings=LogSettings(level=Level.OS))
    send(bench, 7, 0, 0)
    whole = bench.log.segments[0].size
    send(bench, 7, 0, 1)
    known = bench.checkpoint()
    disk = bench.faulty.crash(power=False)
    disk.truncate_file(bench.log.segments[0].log_path, whole)
    after = bench.reopened(known, disk)
    assert after.log.log_end == 1
    assert send(after, 7, 0, 1) == (1, False)


def test_a_checkpoint_holds_no_batch_beyond_what_is_durable() -> None:
    bench = Bench(hold_syncs=True)
    bench.stage(b"a", producer=(7, 0, 0))
    bench.turn()
    bench.sync()
    bench.stage(b"b", producer=(7, 0, 1))
    bench.turn()
    known = bench.checkpoint()
    assert known is not None and known.producers == [[7, 0, [[0, 1, 0, bench.clock.now_ms()]]]]
    after = bench.reopened(known, bench.faulty.crash(unsynced="lost"))
    assert send(after, 7, 0, 1) == (1, False)


def test_retries_after_any_crash_store_each_batch_once(rounds: Callable[[int, int], int]) -> None:
    """A producer repeats what was not acknowledged until it is: each value is there once and in order."""
    for seed in range(rounds(40, 1000)):
        bench = Bench(settings=LogSettings(segment_bytes=4096), hold_syncs=seed % 2 == 1)
        sent = 0
        for round_number in range(4):
            bench.faulty.crash_after(1 << 30)
            first = sent
            for sequence in range(first, first + 3):
                bench.stage(b"value %d" % sequence * 100, producer=(7, 0, sequence))
                bench.turn()
            acked = bench.log.high_watermark
            bench = bench.crashed(seed + round_number, known=bench.checkpoint() if seed % 3 else None)
            # What is in flight is at most what a producer may have in flight, and all of it comes again.
            for sequence in range(max(acked, first), first + 3):
                bench.stage(b"value %d" % sequence * 100, producer=(7, 0, sequence))
                bench.turn()
            bench.sync()
            sent = first + 3
            assert bench.values() == [b"value %d" % sequence * 100 for sequence in range(sent)]
