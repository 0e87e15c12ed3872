"""Crashes at every step of a partition's work, and what must be there afterwards.

The rule, whatever happens: the log holds a prefix of what was handed to it, in order and with dense offsets, and that prefix
reaches at least to the last record that was acknowledged. The canary at the end lets syncs lie, and the same check must fail.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator

import pytest
from log_bench import Ack, Bench

from braidmq.base.disk_faulty import FaultyDisk, SimulatedCrash
from braidmq.base.errors import BraidError
from braidmq.log.checkpoint import PartitionCheckpoint
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings


class Work:
    """A run of turns that fills several segments; knows what it handed over and what came back.

    Where syncs are held back, several turns are on their way to the disk at once, as under load.
    """

    def __init__(self, bench: Bench, seed: int, before: list[bytes]) -> None:
        self.bench = bench
        self.rng = random.Random(seed)
        self.offered = list(before)
        self.acked = len(before)
        self.known: PartitionCheckpoint | None = None

    def run(self, turns: int) -> None:
        acks: list[Ack] = []
        for _ in range(turns):
            for _ in range(self.rng.randint(1, 3)):
                values = [self.rng.randbytes(self.rng.choice((1, 60, 600, 1400))) for _ in range(self.rng.choice((1, 2, 4)))]
                self.offered += values
                acks.append(self.bench.add(*values) if self.rng.random() < 0.6 else self.bench.stage(*values))
            try:
                self.bench.turn()
                if self.rng.random() < 0.4:
                    self.bench.sync()
            finally:
                for ack in acks:
                    assert all(told is None for told in ack.told), "nothing is refused on a disk that only crashes"
                    if ack.told:
                        self.acked = max(self.acked, ack.end)
            if self.rng.random() < 0.2:
                self.known = self.bench.checkpoint()
            if self.rng.random() < 0.1:
                self.bench.clock.advance(100_000)
                self.bench.log.roll_if_old(self.bench.clock.now_ms())
        self.bench.sync()
        assert all(ack.good for ack in acks)
        self.acked = len(self.offered)

    def check(self, found: Bench) -> list[bytes]:
        values = found.values()
        assert found.log.log_start == 0
        assert values == self.offered[: len(values)], "what is there is what was offered, in order"
        assert len(values) >= self.acked, "what was acknowledged is there"
        return values


SETTINGS = LogSettings(segment_bytes=4096, segment_age_ms=50_000)


def crash_points(seed: int, turns: int, settings: LogSettings, step: int) -> Iterator[Work]:
    """The same work, killed at each of its steps on disk."""
    hold = seed % 2 == 1
    whole = Work(Bench(FaultyDisk(seed), settings, hold_syncs=hold), seed, [])
    whole.run(turns)
    assert len(whole.bench.log.segments) > 3
    for point in range(seed % step, whole.bench.faulty.operations, step):
        disk = FaultyDisk(seed)
        disk.crash_after(point)
        try:
            bench = Bench(disk, settings, hold_syncs=hold)
        except SimulatedCrash:
            continue
        work = Work(bench, seed, [])
        with pytest.raises(SimulatedCrash):
            work.run(turns)
        yield work


def test_the_loss_of_power_at_any_step_loses_nothing_acknowledged(rounds: Callable[[int, int], int]) -> None:
    survivors = 0
    for seed in range(rounds(3, 100)):
        for work in crash_points(seed, 12, SETTINGS, 1):
            for fate in range(rounds(3, 8)):
                values = work.check(work.bench.crashed(fate, known=work.known if fate % 2 else None))
                survivors += len(values) > work.acked
    assert survivors, "sometimes more survives than was acknowledged"


def test_the_death_of_the_process_at_any_step_loses_nothing_written(rounds: Callable[[int, int], int]) -> None:
    for level in (Level.OS, Level.FSYNC):
        settings = LogSettings(level, 4096, 50_000)
        for seed in range(rounds(3, 50)):
            for work in crash_points(seed, 12, settings, 1):
                work.check(work.bench.crashed(power=False, known=work.known))


def test_a_second_crash_finds_what_was_acknowledged_after_the_first(rounds: Callable[[int, int], int]) -> None:
    """Killed, started, written to, and only then the power goes: what the dead process left unsynced must not undermine it."""
    for seed in range(rounds(3, 60)):
        for number, work in enumerate(crash_points(seed, 10, SETTINGS, rounds(2, 1))):
            second = work.bench.crashed(seed, power=number % 2 == 0, known=work.known)
            found = work.check(second)
            more = Work(second, seed + 1000, found)
            more.run(3)
            assert more.acked == len(more.offered)
            for fate in range(rounds(2, 6)):
                more.check(more.bench.crashed(fate, known=more.known or (work.known if fate else None)))


def test_what_readers_were_shown_after_a_kill_does_not_vanish_with_the_power(rounds: Callable[[int, int], int]) -> None:
    """A restart shows what the dead process had written without a sync; from then on it counts as durable."""
    for seed in range(rounds(3, 60)):
        for work in crash_points(seed, 10, SETTINGS, rounds(2, 1)):
            second = work.bench.crashed(power=False, known=work.known)
            shown = second.values()
            known = second.checkpoint()
            for fate in range(rounds(2, 6)):
                assert second.crashed(fate, known=known if fate % 2 else None).values() == shown


def test_a_crash_during_recovery_changes_nothing(rounds: Callable[[int, int], int]) -> None:
    for seed in range(rounds(3, 30)):
        for work in crash_points(seed, 8, SETTINGS, rounds(2, 1)):
            for fate in range(2):
                point = 0
                while True:
                    disk = work.bench.faulty.crash(fate)
                    disk.crash_after(point)
                    point += 1
                    try:
                        # Reading belongs to it: the first read may store an index.
                        work.check(work.bench.reopened(work.known, disk))
                        break
                    except SimulatedCrash:
                        work.check(work.bench.reopened(work.known, disk.crash(point)))


def test_retention_at_any_crash_keeps_the_offsets_going(rounds: Callable[[int, int], int]) -> None:
    """Even when all records are gone by age, the log goes on where it was and never gives an offset twice."""
    settings = LogSettings(segment_bytes=4096, segment_age_ms=50_000, retention_age_ms=60_000)
    for seed in range(rounds(3, 60)):
        point = 0
        while True:
            bench = Bench(FaultyDisk(seed), settings)
            for _ in range(6):
                bench.write(bytes(1500))
            bench.clock.advance(55)
            bench.faulty.crash_after(point)
            point += 1
            died = True
            with contextlib.suppress(SimulatedCrash):
                bench.log.roll_if_old(bench.clock.now_ms())
                bench.clock.advance(100)
                bench.retain()
                died = False
                assert bench.log.log_start == 6
            for fate in range(4):
                after = bench.crashed(fate)
                assert after.log.high_watermark == 6
                assert after.write(b"next").end == 7
            if not died:
                break


def test_a_lying_sync_is_caught(rounds: Callable[[int, int], int]) -> None:
    """The canary: a disk that does not sync loses acknowledged records, and the check of this file says so."""
    disk = FaultyDisk(5)
    bench = Bench(disk, SETTINGS)
    work = Work(bench, 5, [])
    work.run(6)
    disk.lying_syncs = True
    work.run(6)
    assert work.acked == len(work.offered)
    losses = 0
    for fate in range(20):
        try:
            work.check(bench.crashed(fate))
        except (AssertionError, BraidError):
            losses += 1
    assert losses


def test_a_log_that_skips_a_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other canary: acknowledging without the directory's sync is found by the enumeration of crash points."""
    monkeypatch.setattr(FaultyDisk, "sync_directory", lambda self, path: None)
    losses = 0
    for work in crash_points(1, 12, SETTINGS, 3):
        for fate in range(3):
            try:
                work.check(work.bench.crashed(fate))
            except (AssertionError, BraidError):
                losses += 1
    assert losses
