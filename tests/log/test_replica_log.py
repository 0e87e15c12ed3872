"""A partition as one of several replicas: epochs, what the leader sends, cuts, gates, and what acks at level `quorum` wait for."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from log_bench import Ack, Bench

from braidmq import hot
from braidmq.base.disk_faulty import FaultyDisk, SimulatedCrash
from braidmq.base.disk_real import RealDisk
from braidmq.base.errors import BraidError
from braidmq.hot import layout
from braidmq.log.batch_codec import BatchCodec
from braidmq.log.checkpoint import PartitionCheckpoint
from braidmq.log.commit import GroupCommit, InlineSyncer, Outcome
from braidmq.log.epochs import EpochTable, epochs_between
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings, PartitionLog
from braidmq.log.partition_reads import Batches, Cold
from braidmq.log.partition_replica import CLOSED_GATE
from braidmq.log.recovery import recover

MOVED = BraidError("LEADER_MOVED", topic="topic", partition=0)
SMALL = LogSettings(segment_bytes=4000)


class Recorder:
    """A gate that notes what it is told and lets nothing through."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def written(self, log: PartitionLog) -> None:
        self.told.append(f"written {log.log_end}")

    def flushed(self, log: PartitionLog) -> None:
        self.told.append(f"flushed {log.flushed_end}")


def gated(bench: Bench, gate: Recorder | None = None) -> Bench:
    bench.log.keep_gate(gate or CLOSED_GATE, bench.log.log_end)
    return bench


def read_stored(log: PartitionLog, offset: int, bytes_max: int) -> Batches:
    read = log.read_stored(offset, bytes_max)
    if isinstance(read, Cold):
        read.warm_up()
        read = log.read_stored(offset, bytes_max, warmed=True)
    assert isinstance(read, Batches) and read.next_offset > offset
    return read


def stored(log: PartitionLog, offset: int = 0, bytes_max: int = 1 << 30) -> bytes:
    """The bytes on the disk from the batch at `offset` on."""
    found: list[bytes] = []
    while offset < log.log_end:
        read = read_stored(log, offset, bytes_max)
        found += [bytes(part) for part in read.slices]
        offset = read.next_offset
    return b"".join(found)


def copy(leader: Bench, follower: Bench, bytes_max: int = 1 << 30) -> None:
    """What one turn of replication brings."""
    follower.log.follow(leader.log.leader_epoch, MOVED)
    while follower.log.log_end < leader.log.log_end:
        read = read_stored(leader.log, follower.log.log_end, bytes_max)
        follower.log.stage_replica(b"".join(read.slices))
        follower.commit.touch(follower.log)
        follower.turn()


def headers(data: bytes) -> list[layout.BatchHeader]:
    found, at = [], 0
    while at < len(data):
        found.append(layout.read_header(data, at))
        at += found[-1].length
    return found


def fill(bench: Bench, rng: random.Random, batches: int, epoch: int) -> int:
    """Random batches, some of producers; some turns write several. Returns the epoch it ended in."""
    for _ in range(batches):
        if rng.random() < 0.2:
            epoch += rng.randint(1, 3)
            bench.log.lead(epoch)
        for _ in range(rng.randint(1, 3)):
            values = [rng.randbytes(rng.randint(1, 400)) for _ in range(rng.randint(1, 4))]
            if rng.random() < 0.4:
                producer = rng.randint(1, 3)
                sequence = getattr(bench, "sequences", {}).get(producer, 0)
                bench.stage(*values, producer=(producer, 0, sequence))
                bench.sequences = {**getattr(bench, "sequences", {}), producer: sequence + len(values)}  # type: ignore[attr-defined]
            else:
                bench.add(*values)
        bench.turn()
    return epoch


# --- epochs


def test_an_epoch_table_tells_where_an_epoch_ends() -> None:
    table = EpochTable()
    assert table.end_of(5, 0, 70) == (0, 70), "nobody ever led: all is epoch 0"
    table.note(2, 10)
    table.note(2, 20)
    table.note(5, 30)
    assert table.latest == 5
    assert [table.end_of(epoch, 0, 70) for epoch in (0, 1, 2, 3, 4, 5, 9)] == [
        (0, 10), (0, 10), (2, 30), (2, 30), (2, 30), (5, 70), (5, 70)
    ]  # fmt: skip
    table.forget_below(12)
    assert table.end_of(1, 12, 70) == (1, 10), "nobody knows any more what was there"
    table.forget_from(30)
    assert table.latest == 2 and table.dump(100) == [[2, 10]]
    again = EpochTable()
    again.load(table.dump(100))
    assert again.end_of(7, 0, 70) == (2, 70)


@pytest.mark.parametrize("seed", range(20))
def test_epochs_are_found_by_looking_at_few_batches(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench()
    fill(bench, rng, 40, 0)
    data = stored(bench.log)
    view = memoryview(data)
    entries = hot.scan_batches(view, 0, len(view), 0, 500)[3]
    places = [int.from_bytes(entries[at + 8 : at + 16], "little") for at in range(0, len(entries), 24)]
    expected: list[tuple[int, int]] = []
    for head in headers(data):
        if head.leader_epoch != (expected[-1][0] if expected else 0):
            expected.append((head.leader_epoch, head.base_offset))
    assert epochs_between(view, 0, len(view), places, 0) == expected
    assert epochs_between(view, 0, len(view), [], 0) == expected
    assert bench.log.epochs.dump(1 << 60) == [list(row) for row in expected]
    assert bench.crashed(seed, power=False).log.epochs.dump(1 << 60) == [list(row) for row in expected], "rebuilt from the log"


# --- a follower


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("compression", ["", "gzip"])
def test_a_follower_has_the_same_bytes_and_could_lead(seed: int, compression: str) -> None:
    rng = random.Random(seed)
    leader, follower = Bench(settings=SMALL), gated(Bench(settings=LogSettings(segment_bytes=rng.randint(1000, 9000))))
    if compression:
        leader.log.codec, follower.log.codec = BatchCodec(compression), BatchCodec(compression)
    epoch = 0
    for _ in range(6):
        epoch = fill(leader, rng, rng.randint(1, 8), epoch)
        copy(leader, follower, rng.choice([1, 700, 1 << 20]))
    assert stored(follower.log) == stored(leader.log)
    assert follower.log.epochs.dump(1 << 60) == leader.log.epochs.dump(1 << 60)
    assert follower.log.producers.dump(1 << 60) == leader.log.producers.dump(1 << 60)
    follower.log.advance_to(follower.log.flushed_end)
    assert follower.values() == leader.values()
    for offset in rng.sample(range(leader.log.log_end), 20):
        assert follower.rows(offset, 1).next_offset == offset + 1, "its own index finds everything"
    follower.log.lead(epoch + 1)
    known = {row[0]: row for row in follower.log.producers.dump(1 << 60)}
    for producer, row in known.items():
        batches = row[2]
        assert isinstance(producer, int) and isinstance(batches, list)
        sequence, records, base, _ = batches[-1]
        assert follower.log.producers.find_duplicate(producer, 0, sequence, records)[0] == base  # type: ignore[index]


def test_a_follower_takes_nothing_that_is_damaged_or_does_not_continue() -> None:
    leader, follower = Bench(), gated(Bench())
    leader.log.lead(3)
    for value in (b"a", b"b", b"c"):
        leader.write(value)
    data = stored(leader.log)
    follower.log.follow(3, MOVED)
    length = headers(data)[0].length
    for wrong in (data[length:], data[:-8], data[:100] + bytes([data[100] ^ 1]) + data[101:], b""):
        with pytest.raises(BraidError, match="INVALID_BATCH"):
            follower.log.stage_replica(wrong)
    late = gated(Bench())
    late.log.follow(2, MOVED)
    with pytest.raises(BraidError, match="epoch 3"):
        late.log.stage_replica(data)
    follower.log.stage_replica(data[:length])
    follower.log.stage_replica(data[length:])
    follower.commit.touch(follower.log)
    follower.turn()
    assert stored(follower.log) == data and follower.log.pending_bytes == 0


def test_whoever_does_not_lead_takes_no_records_in() -> None:
    bench = gated(Bench())
    bench.log.follow(4, MOVED)
    assert not bench.log.accumulator.writable
    with pytest.raises(BraidError, match="LEADER_MOVED"):
        bench.add(b"x")
    bench.log.lead(5)
    bench.write(b"x")
    assert bench.log.epochs.latest == 5


# --- gates


def test_a_gate_is_told_and_decides_what_readers_see() -> None:
    gate = Recorder()
    bench = gated(Bench(hold_syncs=True), gate)
    ack = bench.add(b"a")
    bench.stage(b"b")
    bench.stage(b"c")
    bench.turn()
    assert gate.told == ["written 3"]
    bench.sync()
    assert gate.told == ["written 3", "flushed 3"] and not ack.told and bench.values() == []
    bench.log.advance_to(2)
    assert ack.good and bench.values() == [b"a", b"b"], "also in the middle of what one flush wrote"
    bench.log.advance_to(99)
    assert bench.log.high_watermark == 3 and bench.values() == [b"a", b"b", b"c"]


def test_below_quorum_an_ack_waits_for_this_disk_only() -> None:
    bench = gated(Bench(hold_syncs=True))
    bench.add(b"a")
    here, seen = Ack(1), Ack(1)
    bench.log.when_durable(1, here.told.append)
    bench.log.when_visible(1, seen.told.append)
    bench.turn()
    assert not here.told
    bench.sync()
    assert here.good and not seen.told
    bench.log.settings = LogSettings(Level.QUORUM)
    for_all = Ack(1)
    bench.log.when_durable(1, for_all.told.append)
    assert not for_all.told
    bench.log.advance_to(1)
    assert for_all.good and seen.good


def test_losing_the_lead_fails_those_who_wait_and_what_was_not_written() -> None:
    bench = gated(Bench())
    written, unwritten, later = bench.write(b"a"), bench.add(b"b"), Ack(2)
    outcomes: list[Outcome] = []
    bench.commit.join(Level.FSYNC, outcomes.append)
    bench.log.follow(2, BraidError("NOT_ENOUGH_REPLICAS", topic="t", partition=0, found=1, needed=2))
    assert written.code == unwritten.code == "LEADER_MOVED"
    bench.turn()
    assert [error.code for error in outcomes[0].failures.values()] == ["LEADER_MOVED"], "its answers do not say that it was stored"
    assert bench.log.log_end == 1
    bench.log.when_visible(2, later.told.append)
    assert later.code == "NOT_ENOUGH_REPLICAS"


class Pair:
    """Two partitions of level `quorum` and one of level `fsync` in one group commit."""

    def __init__(self, *, replicated: bool = True) -> None:
        self.turns: list[Callable[[], None]] = []
        disk = FaultyDisk()
        disk.make_directory("/d")
        bench = Bench(disk)
        self.commit = GroupCommit(bench.clock, InlineSyncer(disk), self.turns.append)
        levels = (Level.QUORUM, Level.QUORUM, Level.FSYNC)
        self.logs = [PartitionLog(disk, f"/d/{n}/0", f"t{n}", 0, LogSettings(level)) for n, level in enumerate(levels)]
        for log in self.logs:
            recover(disk, log, None)
            if replicated:
                log.keep_gate(CLOSED_GATE, 0)

    def run(self, *numbers: int) -> list[Outcome]:
        """A connection adds a record to each, as the parser does, and joins."""
        told: list[Outcome] = []
        for number in numbers:
            accumulator = self.logs[number].accumulator
            accumulator.append(None, b"x")
            if not accumulator.dirty:
                accumulator.dirty = True
                self.commit.dirty.append(accumulator)
        self.commit.join(max(self.logs[number].settings.level for number in numbers), told.append)
        return told

    def turn(self) -> None:
        while self.turns:
            self.turns.pop(0)()


def test_a_run_waits_for_its_own_partitions_and_no_others() -> None:
    pair = Pair()
    first, second, both, local = pair.run(0), pair.run(1), pair.run(0, 1), pair.run(2)
    pair.turn()
    assert local and not first and not second and not both
    pair.logs[1].advance_to(1)
    assert second and not second[0].failures and not first and not both
    pair.logs[0].advance_to(1)
    assert first and not both
    pair.logs[0].advance_to(2)
    assert not both
    pair.logs[1].advance_to(2)
    assert both and not both[0].failures


def test_whoever_waits_for_itself_holds_up_no_run() -> None:
    pair = Pair()
    pair.logs[0].accumulator.append(None, b"x")
    pair.commit.touch(pair.logs[0])
    other = pair.run(1)
    pair.turn()
    pair.logs[1].advance_to(1)
    assert other, "the record in the other partition is somebody else's"


def test_a_run_learns_which_of_its_partitions_failed() -> None:
    pair = Pair()
    both = pair.run(0, 1)
    pair.turn()
    pair.logs[0].refuse(MOVED, BraidError("NOT_ENOUGH_REPLICAS", topic="t0", partition=0, found=1, needed=2))
    assert not both
    pair.logs[1].advance_to(1)
    assert {log.topic: error.code for log, error in both[0].failures.items()} == {"t0": "NOT_ENOUGH_REPLICAS"}


def test_on_one_machine_quorum_is_fsync() -> None:
    pair = Pair(replicated=False)
    told = pair.run(0, 1)
    pair.turn()
    assert told and not told[0].failures and pair.logs[0].high_watermark == 1


# --- cutting off


@pytest.mark.parametrize("seed", range(30))
def test_a_cut_leaves_what_was_there_before_it(seed: int) -> None:
    rng = random.Random(seed)
    bench = gated(Bench(settings=SMALL))
    epoch = fill(bench, rng, 25, 0)
    data = stored(bench.log)
    places = headers(data)
    keep = rng.randint(0, len(places))
    end = places[keep].base_offset if keep < len(places) else bench.log.log_end
    seen = places[rng.randint(0, keep)].base_offset if keep and keep < len(places) else end
    bench.log.advance_to(seen)
    before = bench.values()
    bench.log.follow(epoch, MOVED)
    bench.log.truncate(end)
    whole = data[: sum(head.length for head in places[:keep])]
    assert bench.log.log_end == bench.log.flushed_end == bench.log.accumulator.next_offset == end
    assert stored(bench.log) == whole and bench.values() == before
    again = gated(bench.reopened(disk=bench.faulty.crash(seed, unsynced="lost")))
    fresh = again.log
    assert stored(fresh) == whole, "the cut is durable"
    assert fresh.epochs.dump(1 << 60) == bench.log.epochs.dump(1 << 60)
    last = {row[0]: row[2][-1] for row in bench.log.producers.dump(1 << 60)}  # type: ignore[index]
    assert last == {row[0]: row[2][-1] for row in fresh.producers.dump(1 << 60)}, "what producers wrote before is remembered"  # type: ignore[index]
    fresh.lead(epoch + 1)
    again.write(b"after")
    fresh.advance_to(end + 1)
    assert again.values()[-1:] == [b"after"] and fresh.epochs.latest == epoch + 1


@pytest.mark.parametrize("seed", range(6))
def test_a_crash_in_a_cut_leaves_a_whole_log(seed: int) -> None:
    steps = 0
    while True:
        rng = random.Random(seed)
        bench = gated(Bench(FaultyDisk(seed), SMALL))
        fill(bench, rng, 14, 0)
        data = stored(bench.log)
        places = headers(data)
        keep = rng.randint(0, len(places) - 1)
        bench.log.follow(99, MOVED)
        bench.faulty.crash_after(steps)
        try:
            bench.log.truncate(places[keep].base_offset)
        except SimulatedCrash:
            found = bench.crashed(steps)
            assert not found.found.truncated_bytes and not found.found.reason, found.found
            left = stored(found.log)
            assert data.startswith(left) and len(left) >= sum(head.length for head in places[:keep])
            steps += 1
            continue
        assert steps > 4
        return


def test_readers_keep_what_they_hold_under_a_cut(tmp_path: object) -> None:
    bench = gated(Bench(RealDisk(), LogSettings(segment_bytes=1 << 24), directory=f"{tmp_path}/data/topics/1/0"))
    for number in range(300):
        bench.write(b"%06d" % number * 1000)
    bench.log.advance_to(100)
    bench.log.segments[-1].seal()
    held = bench.log.read_stored(0, 1 << 30)
    assert isinstance(held, Batches) and held.next_offset == 300
    expected = b"".join(bytes(part) for part in held.slices)
    bench.log.follow(1, MOVED)
    bench.log.truncate(120)
    assert b"".join(held.slices) == expected, "also bytes that are cut off: they may be on their way to another node"
    assert bench.log.log_end == 120 and len(bench.values()) == 100


def test_what_readers_saw_is_not_cut_off() -> None:
    bench = gated(Bench())
    bench.write(b"a")
    bench.write(b"b")
    bench.log.advance_to(2)
    with pytest.raises(BraidError, match="REPLICA_DIVERGED"):
        bench.log.truncate(1)
    assert bench.values() == [b"a", b"b"] and bench.log.log_end == 2


def test_a_sync_of_bytes_that_were_cut_off_proves_nothing() -> None:
    gate = Recorder()
    bench = gated(Bench(hold_syncs=True), gate)
    bench.write(b"a")
    bench.sync()
    bench.log.lead(1)
    bench.write(b"b")
    bench.log.follow(2, MOVED)
    bench.log.truncate(1)
    bench.log.lead(3)
    bench.write(b"c")
    gate.told.clear()
    bench.syncer.jobs[0].done(bench.syncer.jobs.pop(0))  # type: ignore[attr-defined]
    assert bench.log.flushed_end == 1 and bench.log.log_end == 2
    bench.sync()
    assert bench.log.flushed_end == 2


def test_an_emptied_log_goes_on_where_the_leader_begins() -> None:
    leader, follower = Bench(settings=LogSettings(segment_bytes=500, retention_bytes=600)), gated(Bench())
    leader.log.lead(1)
    for number in range(3):
        leader.write(b"%03d" % number * 20)
    copy(leader, follower)
    for number in range(20):
        leader.write(b"%03d" % number * 20)
    leader.retain()
    assert leader.log.log_start > follower.log.log_end
    follower.log.reset(leader.log.log_start)
    assert follower.log.log_start == follower.log.log_end == leader.log.log_start
    copy(leader, follower)
    assert stored(follower.log, follower.log.log_start) == stored(leader.log, leader.log.log_start)
    follower.log.advance_to(leader.log.log_end)
    assert follower.values() == leader.values()
    again = follower.reopened()
    assert again.values() == leader.values()


# --- after a restart


def test_a_replica_starts_with_what_its_checkpoint_knows_readers_saw() -> None:
    bench = gated(Bench())
    bench.log.lead(1)
    for value in (b"a", b"b", b"c"):
        bench.write(value)
    bench.log.advance_to(2)
    place = bench.log.durable_place()
    assert place is not None and place[2] == 2, "a checkpoint speaks of no more than readers saw"
    known = PartitionCheckpoint(*place, epochs=bench.log.epochs.dump(2))
    again = bench.crashed(1, known=known)
    again.log.keep_gate(CLOSED_GATE, known.next_offset)
    assert again.log.log_end == 3 and again.values() == [b"a", b"b"] and again.log.epochs.latest == 1
    assert again.log.reach == 3, "a reader that saw more elsewhere waits"
    again.log.follow(2, MOVED)
    again.log.truncate(2)
    third = again.crashed(2, known=known)
    assert third.log.log_end == 2 and not third.found.reason
