"""Disks that refuse: a sync that fails, a disk that is full, a write that breaks, a topic that goes away under a sync."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from log_bench import DIRECTORY, Ack, Bench, rows_of

from braidmq import hot
from braidmq.base import limits
from braidmq.base.clock import ManualClock
from braidmq.base.disk import AppendFile
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.disk_real import RealDisk
from braidmq.base.errors import BraidError
from braidmq.log.commit import Cycle, GroupCommit, InlineSyncer, SyncJob, ThreadSyncer
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings, PartitionLog
from braidmq.log.recovery import recover

FIRST = f"{DIRECTORY}/{0:020d}.log"


# --- a sync that fails


@pytest.mark.parametrize("what", ["sync", "sync_directory"])
def test_a_failed_sync_makes_the_partition_read_only_for_good(what: str) -> None:
    bench = Bench()
    if what == "sync":
        bench.write(b"safe", b"sound")
    before = bench.log.high_watermark
    failures: list[str] = []
    bench.commit.on_failure = lambda log, error: failures.append(f"{log.topic}/{log.partition} {error.code}")
    bench.faulty.fail(what)  # type: ignore[arg-type]
    first, second = bench.add(b"a"), bench.stage(b"b")
    bench.turn()
    assert first.code == second.code == "STORAGE_FAILED"
    assert failures == ["topic/0 STORAGE_FAILED"]
    bench.faulty.heal()
    for attempt in (lambda: bench.add(b"x"), lambda: bench.stage(b"x")):
        with pytest.raises(BraidError, match="STORAGE_FAILED"):
            attempt()
    assert not bench.log.accumulator.writable, "the parser leaves it alone too"
    bench.commit.touch(bench.log)
    bench.turn()
    assert len(first.told) == len(second.told) == 1, "nobody is told twice, let alone something else"
    bench.log.advance(before + 2, bench.log.segments[-1], bench.log.segments[-1].size)
    assert bench.log.high_watermark == before, "not even a sync that succeeds afterwards moves it"
    late: list[BraidError | None] = []
    bench.log.when_visible(before + 1, late.append)
    assert late[0] is not None and late[0].code == "STORAGE_FAILED"
    assert bench.values() == [b"safe", b"sound"][:before], "what was durable before is still served"
    for fate in range(12):
        values = bench.crashed(fate, known=bench.checkpoint()).values()
        assert values[:before] == [b"safe", b"sound"][:before]


def test_turns_that_were_written_before_the_sync_failed_are_not_acknowledged_either() -> None:
    """A later sync that succeeds proves nothing about what an earlier one lost."""
    bench = Bench(hold_syncs=True)
    bench.write(b"safe")
    bench.sync()
    first = bench.write(b"a")
    second = bench.write(b"b")
    third = bench.add(b"c")
    cycles: list[Cycle] = []
    bench.commit.join(Level.FSYNC, cycles.append)
    bench.faulty.fail("sync")
    bench.sync()
    assert first.code == second.code == third.code == "STORAGE_FAILED"
    bench.turn()
    bench.sync()
    assert [len(ack.told) for ack in (first, second, third)] == [1, 1, 1]
    assert cycles[0].failures[bench.log].code == "STORAGE_FAILED"
    assert bench.values() == [b"safe"]


def test_a_sync_that_fails_in_one_partition_leaves_the_others_alone() -> None:
    bench = Bench()
    other = PartitionLog(bench.disk, "/data/topics/1/1", "topic", 1, LogSettings())
    recover(bench.disk, other, None)
    good = Ack(1)
    bad = bench.add(b"value")
    other.accumulator.append(None, b"value")
    bench.commit.touch(other)
    other.when_visible(1, good.told.append)
    bench.faulty.fail("sync", path=FIRST)
    bench.turn()
    assert bad.code == "STORAGE_FAILED" and good.good
    assert other.failure is None


def test_a_write_that_breaks_makes_the_partition_read_only() -> None:
    bench = Bench()
    bench.write(b"safe")
    bench.faulty.fail("write", path=FIRST, code=errno.EIO)
    assert bench.write(b"lost").code == "STORAGE_FAILED"
    assert bench.values() == [b"safe"]
    assert bench.crashed(1).values() == [b"safe"]


def test_a_partial_write_that_cannot_be_taken_back_makes_the_partition_read_only() -> None:
    bench = Bench()
    bench.write(b"safe")
    bench.faulty.fail("write", path=FIRST, code=errno.ENOSPC, written_bytes=30)
    bench.faulty.fail("truncate", path=FIRST)
    assert bench.write(b"lost").code == "STORAGE_FAILED"
    assert bench.values() == [b"safe"]
    assert bench.crashed(power=False).values() == [b"safe"]


def test_a_failed_sync_while_a_segment_is_closed_is_not_swallowed() -> None:
    bench = Bench(settings=LogSettings(segment_bytes=4096))
    bench.write(bytes(3000))
    bench.faulty.fail("sync", path=FIRST)
    assert bench.write(bytes(3000)).code == "STORAGE_FAILED"
    assert bench.log.failure is not None
    assert bench.values() == [bytes(3000)]


# --- a full disk


@pytest.mark.parametrize("segment_bytes", [4096, 1 << 20])
def test_a_full_disk_refuses_leaves_no_trace_and_goes_on(segment_bytes: int, rounds: Callable[[int, int], int]) -> None:
    """At every amount of space left: nothing of the refused turn is visible, and offsets stay dense when there is room again."""
    for room in range(0, 9000, rounds(170, 13)):
        bench = Bench(FaultyDisk(room, capacity_bytes=1 << 30), LogSettings(segment_bytes=segment_bytes))
        model = [b"first" * 300, b"second" * 300]
        for value in model:
            bench.write(value)
        bench.faulty.capacity_bytes = bench.faulty.used_bytes + room
        refused = 0
        for turn in range(8):
            values = [b"%d" % turn * 400, b"x" * 700]
            one, two = bench.add(values[0]), bench.stage(values[1])
            bench.turn()
            if one.good:
                assert two.good
                model += values
            else:
                assert one.code == two.code == "STORAGE_FULL"
                refused += 1
            assert bench.values() == model
            assert bench.log.accumulator.next_offset == bench.log.log_end == len(model)
        assert refused or room > 8000
        bench.faulty.capacity_bytes = 1 << 30
        assert bench.write(b"room again").end == len(model) + 1
        model.append(b"room again")
        assert bench.values() == model
        assert bench.crashed(power=False).values() == model
        assert bench.crashed(room).values() == model


def test_a_disk_full_before_the_first_record_is_no_failure_for_ever() -> None:
    bench = Bench(FaultyDisk(capacity_bytes=0))
    assert bench.write(b"a").code == "STORAGE_FULL"
    bench.faulty.capacity_bytes = 1 << 20
    assert bench.write(b"b").good and bench.values() == [b"b"]
    disk = FaultyDisk()
    bench = Bench(disk)
    disk.fail("make_directory", code=errno.ENOSPC)
    assert bench.write(b"a").code == "STORAGE_FULL"
    disk.fail("create", code=errno.ENOSPC)
    assert bench.write(b"a").code == "STORAGE_FULL"
    assert bench.write(b"b").good and bench.values() == [b"b"]


def test_a_quota_is_a_full_disk() -> None:
    bench = Bench()
    bench.write(b"a")
    bench.faulty.fail("write", code=errno.EDQUOT)
    assert bench.write(b"b").code == "STORAGE_FULL"
    assert bench.write(b"c").end == 2


def test_records_below_the_refused_turn_are_still_acknowledged() -> None:
    """One turn waits for its sync while the next one finds the disk full."""
    bench = Bench(hold_syncs=True)
    first = bench.write(b"written")
    bench.faulty.fail("write", code=errno.ENOSPC)
    second = bench.write(b"refused")
    assert second.code == "STORAGE_FULL" and not first.told
    bench.sync()
    assert first.good and bench.values() == [b"written"]


# --- many files, and files that go away


def _dirty(disk: FaultyDisk | RealDisk, root: str, count: int) -> tuple[GroupCommit, list[Callable[[], None]], list[PartitionLog]]:
    turns: list[Callable[[], None]] = []
    disk.make_directory(root)
    commit = GroupCommit(ManualClock(), InlineSyncer(disk), turns.append)
    logs = []
    for number in range(count):
        log = PartitionLog(disk, f"{root}/{number}/0", f"t{number}", 0, LogSettings())
        recover(disk, log, None)
        log.accumulator.append(None, b"value")
        commit.touch(log)
        logs.append(log)
    return commit, turns, logs


@pytest.mark.parametrize("count", [3, limits.SYNC_FILES_ONE_BY_ONE_MAX + 5])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_topic_deleted_under_a_sync_takes_nobody_along(tmp_path: Path, count: int, victim: int) -> None:
    """All others are synced and acknowledged, and are there after the power went."""
    for disk, root in ((RealDisk(), str(tmp_path / "topics")), (FaultyDisk(), "/data/topics")):
        commit, turns, logs = _dirty(disk, root, count)
        held: list[SyncJob] = []
        commit._syncer.submit = held.append  # type: ignore[method-assign]
        failures: list[str] = []
        commit.on_failure = lambda log, error, told=failures: told.append(log.topic)  # type: ignore[misc]
        acks = [Ack(1) for _ in logs]
        cycles: list[Cycle] = []
        for log, ack in zip(logs, acks, strict=True):
            log.when_visible(1, ack.told.append)
        commit.join(Level.FSYNC, cycles.append)
        while turns:
            turns.pop(0)()
        logs[victim].retire()
        disk.remove_tree(f"{root}/{victim}")
        (job,) = held
        job.run(disk)
        job.done(job)
        assert acks[victim].code == "TOPIC_NOT_FOUND"
        assert [ack.good for ack in acks] == [number != victim for number in range(count)]
        assert {log.topic: error.code for log, error in cycles[0].failures.items()} == {f"t{victim}": "TOPIC_NOT_FOUND"}
        assert failures == [], "a deleted topic is no failed disk"
        if isinstance(disk, FaultyDisk):
            for fate in range(6):
                after = disk.crash(fate, unsynced="lost" if fate == 0 else "random")
                for number in range(count):
                    if number != victim:
                        log = PartitionLog(after, f"{root}/{number}/0", "t", 0, LogSettings())
                        recover(after, log, None)
                        assert log.log_end == 1


def test_retention_under_a_sync_fails_nobody(tmp_path: Path) -> None:
    """The closed segment that a sync was to cover is removed first; what is gone needs no sync."""
    bench = Bench(
        RealDisk(), LogSettings(segment_bytes=4096, retention_bytes=1), directory=str(tmp_path / "topics/1/0"), hold_syncs=True
    )
    bench.write(bytes(3000))
    bench.sync()
    second = bench.write(bytes(3000))
    assert bench.retain() == 1
    bench.sync()
    assert second.good and bench.log.failure is None
    assert (bench.log.log_start, bench.values()) == (1, [bytes(3000)])


@pytest.mark.parametrize("count", [3, limits.SYNC_FILES_ONE_BY_ONE_MAX + 5])
def test_a_failing_sync_among_many_files_is_noticed(count: int) -> None:
    disk = FaultyDisk()
    commit, turns, logs = _dirty(disk, "/data/topics", count)
    disk.fail("sync", nth=2)
    acks = [Ack(1) for _ in logs]
    for log, ack in zip(logs, acks, strict=True):
        log.when_visible(1, ack.told.append)
    cycles: list[Cycle] = []
    commit.join(Level.FSYNC, cycles.append)
    while turns:
        turns.pop(0)()
    failed = [ack for ack in acks if not ack.good]
    assert len(failed) >= 1 and all(ack.code == "STORAGE_FAILED" for ack in failed)
    assert len(cycles[0].failures) == len(failed)
    for fate in range(8):
        after = disk.crash(fate)
        for log, ack in zip(logs, acks, strict=True):
            if ack.good:
                again = PartitionLog(after, log.directory, "t", 0, LogSettings())
                recover(after, again, None)
                assert again.log_end == 1, "what was acknowledged is there"


# --- deleting under load


def test_a_partition_removed_under_load_tells_everybody() -> None:
    bench = Bench(hold_syncs=True)
    written = bench.write(b"written, not synced")
    waiting = bench.add(b"not written")
    woken: list[str] = []
    bench.log.watch_tail("reader", lambda: woken.append("tail"))
    bench.remove()
    assert written.code == waiting.code == "TOPIC_NOT_FOUND"
    assert woken == ["tail"]
    with pytest.raises(BraidError, match="TOPIC_NOT_FOUND"):
        bench.add(b"after")
    cycles: list[Cycle] = []
    bench.commit.join(Level.FSYNC, cycles.append)
    bench.turn()
    bench.sync()
    assert cycles[0].failures[bench.log].code == "TOPIC_NOT_FOUND"
    assert [len(ack.told) for ack in (written, waiting)] == [1, 1]
    assert bench.log.read_rows(0, 10, 1000).count == 0  # type: ignore[union-attr]
    assert not bench.disk.exists(DIRECTORY)


# --- turns


def test_a_cycle_tells_each_level_once_and_in_time() -> None:
    bench = Bench(hold_syncs=True)
    told: list[str] = []
    bench.add(b"value")
    bench.commit.join(Level.NONE, lambda _: told.append("none"))
    bench.commit.join(Level.OS, lambda _: told.append("os"))
    bench.commit.join(Level.FSYNC, lambda _: told.append("fsync"))
    bench.turn()
    assert told == ["none", "os"] and bench.commit.syncs_running == 1
    bench.sync()
    assert told == ["none", "os", "fsync"] and bench.commit.syncs_running == 0
    bench.commit.join(Level.FSYNC, lambda _: told.append("empty"))
    bench.turn()
    assert told[-1] == "empty", "who joins a turn without writes waits for nothing"


def test_many_partitions_share_a_turn_and_lose_nothing() -> None:
    disk = FaultyDisk()
    _, turns, logs = _dirty(disk, "/data/topics", 40)
    while turns:
        turns.pop(0)()
    assert all(log.high_watermark == 1 for log in logs)


def test_a_closed_segment_is_synced_at_every_level() -> None:
    for level in Level:
        bench = Bench(settings=LogSettings(level, segment_bytes=4096))
        for number in range(5):
            bench.write(b"%d" % number * 3000)
        closed = {segment.log_path: bench.disk.read_file(segment.log_path) for segment in bench.log.segments[:-1]}
        assert len(closed) == 4
        for name in ("/data/topics", "/data/topics/1", DIRECTORY):
            bench.disk.sync_directory(name)
        after = bench.faulty.crash(unsynced="lost")
        assert {path: after.read_file(path) for path in closed} == closed


def test_syncs_of_a_real_thread_serve_many_turns_and_survive_the_power(rounds: Callable[[int, int], int]) -> None:
    """A running loop, a sync thread that is slower than the writer, and a crash at the end: what was acknowledged is there."""

    async def scenario(seed: int) -> None:
        loop = asyncio.get_running_loop()
        disk = FaultyDisk(seed)
        disk.make_directory("/data/topics")
        syncer = ThreadSyncer(disk, loop.call_soon_threadsafe)
        commit = GroupCommit(ManualClock(), syncer, loop.call_soon)
        logs = [PartitionLog(disk, f"/data/topics/1/{n}", "topic", n, LogSettings(segment_bytes=4096)) for n in range(3)]
        for log in logs:
            recover(disk, log, None)
        rng = random.Random(seed)
        waiting: list[asyncio.Future[tuple[int, int]]] = []
        gate = threading.Semaphore(1)
        main = threading.get_ident()
        disk.on_operation = lambda operation, path: gate.acquire() and gate.release() if threading.get_ident() != main else None
        sent: list[list[bytes]] = [[], [], []]
        for turn in range(40):
            number = rng.randrange(3)
            log = logs[number]
            value = rng.randbytes(rng.randrange(1, 900))
            sent[number].append(value)
            end = log.accumulator.append(None, value) + 1
            commit.touch(log)
            done: asyncio.Future[tuple[int, int]] = loop.create_future()
            log.when_visible(
                end, lambda error, done=done, at=(number, end): done.set_result(at) if error is None else done.set_exception(error)
            )  # type: ignore[misc]
            waiting.append(done)
            if turn % 3 == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        first = await waiting[0]
        assert first[1] == 1
        acked = [0, 0, 0]
        for done in waiting:
            if done.done():
                number, end = done.result()
                acked[number] = max(acked[number], end)
        # The sync thread has to end well, so it must not notice: not even in the middle of an operation.
        with gate, disk._guard:
            after = disk.crash(seed)
            disk._dead = False
        for number in range(3):
            found = PartitionLog(after, f"/data/topics/1/{number}", "topic", number, LogSettings(segment_bytes=4096))
            recover(after, found, None)
            assert found.log_end >= acked[number]
            rows = found.read_rows(0, 1000, 1 << 20)
            assert [value for _, _, value in rows_of(rows)] == sent[number][: found.log_end]  # type: ignore[arg-type]
        await asyncio.gather(*waiting)
        await loop.run_in_executor(None, commit.close)
        assert not syncer._thread.is_alive()

    for seed in range(rounds(6, 100)):
        asyncio.run(scenario(seed))


def test_jobs_that_pile_up_share_one_sync_and_a_failure_reaches_its_owner_only() -> None:
    disk = FaultyDisk()
    disk.make_directory("/d")
    entered, leave = threading.Event(), threading.Event()
    results: list[tuple[str, list[str]]] = []
    all_told = threading.Event()

    def post(callback: Callable[[], None]) -> None:
        callback()
        if len(results) == 4:
            all_told.set()

    files: list[AppendFile] = [disk.open_append(f"/d/{n}") for n in range(4)]
    for file in files:
        file.append([b"x"])

    def slow(operation: str, path: str) -> None:
        if operation == "sync" and path == "/d/0":
            entered.set()
            assert leave.wait(20)

    disk.on_operation = slow
    disk.fail("sync", path="/d/2")
    syncer = ThreadSyncer(disk, post)

    def submit(*numbers: int) -> None:
        job_files = {files[number] for number in numbers}
        syncer.submit(SyncJob(job_files, set(), lambda job: results.append((str(numbers), sorted(f.path for f in job.failed)))))

    submit(0)
    assert entered.wait(20)
    submit(1)
    submit(2, 3)
    submit(1, 3)
    leave.set()
    assert all_told.wait(20)
    assert results == [("(0,)", []), ("(1,)", []), ("(2, 3)", ["/d/2"]), ("(1, 3)", [])]
    assert disk.counts["sync"] == 4, "the three that came meanwhile took one sync a file"
    syncer.close()


def test_the_parser_and_the_commit_meet() -> None:
    """PRODUCE frames through the parser into a partition: what the answers say is what the log holds."""
    bench = Bench()
    table = hot.RouteTable()
    table.add(hot.Route(b"topic", [bench.log.accumulator], 2))
    frame = b"\xaf\x01\x01\x01\0\0\0\x1a\0\5topic\0\0\0\1k\0\0\0\6value.\xff\xff\xff\xff"
    out = hot.ByteBuffer()
    cycles: list[Cycle] = []
    position, count, _ = hot.parse_produce(frame * 3, 0, 3 * len(frame), table, bench.commit.now_ms(), bench.commit.dirty, out)
    assert (position, count, out.level) == (3 * len(frame), 3, 2)
    bench.commit.join(Level(out.level), cycles.append)
    bench.turn()
    assert len(cycles) == 1 and not cycles[0].failures
    assert bench.all() == [(n, b"k", b"value.") for n in range(3)]
