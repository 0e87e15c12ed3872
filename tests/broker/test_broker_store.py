"""The data directory: restarts that read nothing, many topics, leftovers, damage, and who may use it."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from broker_bench import DATA, run_broker, settings_of, values_of

from braidmq.base.clock import ManualClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.disk_real import RealDisk
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.store import CheckpointDraft, LogStore
from braidmq.hot import encode_batch
from braidmq.log.checkpoint import Checkpoint
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings

INTERNAL_LOGS = 6
"""Journals of topics, offsets and work, the logs of staged writes and the audit trail: opened at every start."""


async def nothing(broker: Broker) -> None:
    """Start and stop."""


async def fill(broker: Broker) -> None:
    """Three topics with some records in some partitions."""
    for name, partitions in (("a", 1), ("b/c", 3), ("ü", 12)):
        topic = await broker.create_topic(name, partitions)
        for number in range(4):
            await broker.append(topic, number % partitions, b"", b"%s %d" % (name.encode(), number))


async def check_filled(broker: Broker) -> None:
    assert broker.topic_names() == ["a", "b/c", "ü"]
    assert [broker.topic(name).partitions for name in broker.topic_names()] == [1, 3, 12]
    assert values_of(broker, "a") == [b"a %d" % number for number in range(4)]
    assert values_of(broker, "b/c", 0) == [b"b/c 0", b"b/c 3"]
    assert [values_of(broker, "ü", number) for number in (0, 3, 4, 11)] == [["ü 0".encode()], ["ü 3".encode()], [], []]


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("stop", [False, True])
def test_everything_is_there_after_a_restart(stop: bool, threads: bool) -> None:
    disk = run_broker(fill, stop=stop, threads=threads)
    if not stop:
        disk = disk.crash(power=False)
    for _ in range(2):
        run_broker(check_filled, disk, threads=threads)


def test_on_the_real_disk(tmp_path: Path) -> None:
    settings = settings_of(data_dir=str(tmp_path / "new" / "data"))
    run_broker(fill, RealDisk(), settings, threads=True)
    run_broker(check_filled, RealDisk(), settings, threads=True)
    assert (tmp_path / "new/data/CLEAN").exists()
    assert sorted(path.name for path in (tmp_path / "new/data/topics").iterdir()) == ["1", "2", "3"], "names are never paths"


def test_a_clean_restart_of_a_thousand_partitions_reads_no_data() -> None:
    """Whatever the log holds, an orderly stop makes the next start read only what the broker needs of itself."""
    settings = settings_of(Level.OS, segment_bytes=1 << 20)

    async def produce(broker: Broker) -> None:
        topic = await broker.create_topic("wide", 1000)
        batch = encode_batch([None] * 5, [bytes(200)] * 5)
        for partition in range(1000):
            broker.stage_batch(topic, partition, batch)
        broker.commit.flush()

    disk = run_broker(produce, settings=settings)
    read: list[str] = []
    disk.on_operation = lambda operation, path: read.append(path) if operation in ("map", "read") else None

    async def look(broker: Broker) -> None:
        assert not [path for path in read if path.startswith(f"{DATA}/topics")], "no partition's file was touched"
        report = broker.recovery()
        assert (report["clean"], report["bytes_checked"], report["partitions_opened"]) == (True, 0, INTERNAL_LOGS)
        assert broker.partition("wide", 577).high_watermark == 5
        assert broker.partition("wide", 999).log_end == 5
        assert not [path for path in read if path.startswith(f"{DATA}/topics")], "not even where somebody asked how far it goes"
        assert values_of(broker, "wide", 577) == [bytes(200)] * 5
        assert {path for path in read if path.startswith(f"{DATA}/topics")} <= {
            f"{DATA}/topics/1/577/{0:020d}.log", f"{DATA}/topics/1/577/{0:020d}.idx",
        }  # fmt: skip

    run_broker(look, disk, settings)
    # And again: partitions that nobody opened in between are still known.
    read.clear()
    run_broker(look, disk, settings)


def test_ten_thousand_topics_survive_in_order() -> None:
    names = [f"topic/{number:05d}" for number in range(10_000)]

    async def create(broker: Broker) -> None:
        for start in range(0, len(names), 1000):
            await asyncio.gather(
                *(broker.create_topic(name, 1 + number % 13) for number, name in enumerate(names[start : start + 1000], start))
            )

    async def check(broker: Broker) -> None:
        assert broker.topic_names() == names
        found = [broker.topic(name) for name in names]
        assert [topic.partitions for topic in found] == [1 + number % 13 for number in range(10_000)]
        assert [topic.id for topic in found] == list(range(1, 10_001))
        assert broker.partition(names[12], 12).high_watermark == 0
        with pytest.raises(BraidError, match="PARTITION_OUT_OF_RANGE"):
            broker.partition(names[11], 12)

    killed = run_broker(create, stop=False).crash(1)
    run_broker(check, killed)
    run_broker(check, killed)


def test_deleted_topics_leave_no_files_and_unexplained_ones_are_kept() -> None:
    disk = run_broker(fill, stop=False)
    after = disk.crash(power=False)
    # As a crash in the middle of a deletion leaves it, and as nobody can explain it.
    for path in ("topics/2/7", "topics/77/0", "topics/strange"):
        after.make_directory(f"{DATA}/{path}")
        after.replace_file(f"{DATA}/{path}/{0:020d}.log", b"somebody's data")

    async def delete(broker: Broker) -> None:
        assert broker.recovery()["unexplained"] == ["topics/strange", "topics/unexplained-77-0"]
        assert await broker.delete_topic("b/c")
        assert not await broker.delete_topic("b/c")
        assert not after.exists(f"{DATA}/topics/2")
        with pytest.raises(BraidError, match="TOPIC_NOT_FOUND"):
            broker.partition("b/c", 0)

    run_broker(delete, after)

    async def look(broker: Broker) -> None:
        assert broker.topic_names() == ["a", "ü"]
        assert broker.recovery()["unexplained"] == ["topics/strange", "topics/unexplained-77-0"], "and said again at every start"
        for path in ("strange", "unexplained-77-0/0"):
            assert after.read_file(f"{DATA}/topics/{path}/{0:020d}.log") == b"somebody's data"

    run_broker(look, after)


def test_leftovers_of_a_deletion_are_removed_at_the_next_start() -> None:
    async def fill_and_delete(broker: Broker) -> None:
        await fill(broker)
        broker.disk.fail("remove", times=1000)  # type: ignore[attr-defined]
        with pytest.raises(OSError):
            await broker.delete_topic("b/c")

    disk = run_broker(fill_and_delete, stop=False)
    assert disk.exists(f"{DATA}/topics/2/0")
    after = disk.crash(power=False)

    async def look(broker: Broker) -> None:
        assert not after.exists(f"{DATA}/topics/2")
        assert broker.topic_names() == ["a", "ü"]
        assert (await broker.create_topic("b/c", 1)).id == 4, "ids are never used again"
        assert values_of(broker, "b/c") == []

    run_broker(look, after)


def test_a_directory_nobody_explains_never_becomes_a_new_topic() -> None:
    """Topic numbers go on; one that finds a directory in its place would serve somebody else's records."""
    disk = run_broker(fill)
    disk.make_directory(f"{DATA}/topics/4/0")
    disk.replace_file(f"{DATA}/topics/4/0/{0:020d}.log", disk.read_file(f"{DATA}/topics/1/0/{0:020d}.log"))
    for _ in range(2):

        async def create(broker: Broker) -> None:
            topic = await broker.create_topic("new", 1)
            assert topic.id == 4
            assert values_of(broker, "new") == []

        run_broker(create, disk)


def test_deleting_a_topic_under_load_answers_everybody() -> None:
    async def load(broker: Broker) -> None:
        topic = await broker.create_topic("busy", 2)
        stored, refused = [], []
        under_way = asyncio.Event()

        async def writer(number: int) -> None:
            for turn in range(30):
                try:
                    await broker.append(topic, number % 2, b"", b"%d/%d" % (number, turn))
                    stored.append((number, turn))
                    if len(stored) == 20:
                        under_way.set()
                except BraidError as error:
                    assert error.code == "TOPIC_NOT_FOUND"
                    refused.append((number, turn))
                await asyncio.sleep(0)

        async def reader() -> None:
            log = broker.partition("busy", 0)
            while True:
                await broker.read_batches(log, 1 << 30, 1000, 1, 30)
                if log.removed:
                    return

        watching = asyncio.create_task(reader())
        writers = [asyncio.create_task(writer(number)) for number in range(6)]
        await under_way.wait()
        assert await broker.delete_topic("busy")
        await asyncio.gather(*writers)
        await asyncio.wait_for(watching, 20)
        assert stored and refused
        assert not broker.disk.exists(f"{DATA}/topics/1")
        again = await broker.create_topic("busy", 1)
        await broker.append(again, 0, b"", b"new")
        assert values_of(broker, "busy") == [b"new"]

    for threads in (False, True):
        run_broker(load, threads=threads)


# --- checkpoints and the marks in the directory


@pytest.mark.parametrize("how", ["missing", "flipped", "empty", "stale"])
@pytest.mark.parametrize("stop", [False, True])
def test_a_checkpoint_that_cannot_be_trusted_costs_time_and_no_data(how: str, stop: bool) -> None:
    disk = run_broker(fill)
    stale = disk.read_file(f"{DATA}/checkpoint")

    async def more(broker: Broker) -> None:
        await check_filled(broker)
        await broker.append(broker.topic("a"), 0, b"", b"more")

    disk = run_broker(more, disk, stop=stop)
    if not stop:
        disk = disk.crash(power=False)
    content = {"missing": None, "flipped": disk.read_file(f"{DATA}/checkpoint")[:-9] + b"9" * 9, "empty": b"", "stale": stale}[how]
    if content is None:
        disk.remove_file(f"{DATA}/checkpoint")
    else:
        disk.replace_file(f"{DATA}/checkpoint", content)

    async def check(broker: Broker) -> None:
        assert values_of(broker, "a") == [b"a %d" % number for number in range(4)] + [b"more"]
        assert values_of(broker, "b/c", 0) == [b"b/c 0", b"b/c 3"]
        assert broker.groups is not None

    run_broker(check, disk)
    run_broker(check, disk)


def test_a_start_after_a_crash_checks_what_came_after_the_checkpoint_only() -> None:
    checked: list[object] = []

    async def work(broker: Broker) -> None:
        await fill(broker)
        await broker.checkpoint()
        await broker.append(broker.topic("a"), 0, b"", b"late")

    async def look(broker: Broker) -> None:
        report = broker.recovery()
        assert report["clean"] is False
        checked.append(report["bytes_checked"])
        assert values_of(broker, "a")[-1] == b"late"

    run_broker(look, run_broker(work, stop=False).crash(power=False))
    assert checked == [128], "one batch of one record"


def test_a_failed_checkpoint_is_not_forgotten() -> None:
    """Files whose sync failed are not taken for synced by the next one."""

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1, {"durability": "os"})
        await broker.append(topic, 0, b"", b"value")
        broker.disk.fail("sync", path=f"{DATA}/topics/1/0/{0:020d}.log")  # type: ignore[attr-defined]
        await broker.checkpoint()
        assert broker.partition("a", 0).failure is not None
        with pytest.raises(BraidError, match="STORAGE_FAILED"):
            await broker.append(topic, 0, b"", b"another")
        saved = Checkpoint.load(broker.disk, f"{DATA}/checkpoint")
        assert "topics/1/0" not in saved.partitions

    disk = run_broker(work)
    assert not disk.exists(f"{DATA}/CLEAN"), "a stop with a failed disk is not an orderly one"


def test_a_directory_is_used_by_one_broker_at_a_time(tmp_path: Path) -> None:
    for disk, path in ((FaultyDisk(), DATA), (RealDisk(), str(tmp_path / "data"))):
        first, second = LogStore(disk, path), LogStore(disk, path)
        first.open()
        with pytest.raises(BraidError, match="DATA_DIR_LOCKED"):
            second.open()
        first.close()
        second.open()
        second.abandon()
        first.abandon()


def test_a_directory_of_another_format_is_refused() -> None:
    for content in (json.dumps({"format": 2}).encode(), b"{}", b"[1]", b"\xff", b""):
        disk = FaultyDisk()
        disk.make_directory(DATA)
        disk.replace_file(f"{DATA}/FORMAT", content)
        with pytest.raises(BraidError, match=r"DATA_DIR_INVALID.*its format is"):
            LogStore(disk, DATA).open()


def test_a_directory_that_cannot_be_made_is_refused() -> None:
    disk = FaultyDisk()
    disk.write_file("data", b"a file")
    with pytest.raises(BraidError, match="DATA_DIR_INVALID"):
        LogStore(disk, "/data").open()


def test_a_clean_mark_is_gone_as_soon_as_the_directory_is_in_use() -> None:
    disk = run_broker(fill)
    assert disk.exists(f"{DATA}/CLEAN")
    store = LogStore(disk, DATA)
    store.open()
    assert store.report.clean
    after = disk.crash(unsynced="lost")
    assert not after.exists(f"{DATA}/CLEAN")
    again = LogStore(after, DATA)
    again.open()
    assert not again.report.clean


def test_a_stop_makes_everything_durable_at_every_level() -> None:
    for level in Level:
        settings = settings_of(level)
        disk = run_broker(fill, settings=settings)
        run_broker(check_filled, disk.crash(unsynced="lost"), settings)


# --- retention


def test_retention_reaches_every_topic_and_leaves_the_journals() -> None:
    clock = ManualClock()
    settings = settings_of(Level.OS)
    settings.defaults = LogSettings(Level.OS, 4096, 60_000, 8192, 3_600_000)

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("a", 1)
        keeps = await broker.create_topic("keeps", 1, {"retention_bytes": "0", "retention_age_ms": "0"})
        for _ in range(10):
            await broker.append(topic, 0, b"", bytes(2000))
            await broker.append(keeps, 0, b"", bytes(2000))
        await broker.apply_retention()
        assert broker.partition("a", 0).log_start > 0
        assert broker.partition("keeps", 0).log_start == 0

    disk = run_broker(work, settings=settings, clock=clock)

    async def later(broker: Broker) -> None:
        assert broker.recovery()["partitions_opened"] == INTERNAL_LOGS
        clock.advance(2 * 3600)
        await broker.apply_retention()
        log = broker.partition("a", 0)
        assert log.log_start == log.log_end == 10, "a quiet topic that nobody used is emptied by age"
        assert len(disk.list_directory(f"{DATA}/topics/1/0")) == 1
        assert broker.partition("keeps", 0).log_start == 0
        assert len(broker.topic_names()) == 2
        assert (await broker.append(broker.topic("a"), 0, b"", b"next"))[1] == 10

    run_broker(later, disk, settings, clock=clock)


def test_recovery_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    disk = run_broker(fill, stop=False).crash(power=False)
    disk.open_append(f"{DATA}/topics/1/0/{0:020d}.log").append([b"torn"])
    with caplog.at_level(logging.INFO, "braidmq"):
        run_broker(check_filled, disk)
    assert "recovery of a/0: header cut short; 4 bytes removed, next offset 4" in caplog.text
    assert "recovered start: 3 topics" in caplog.text


def test_a_checkpoint_is_drafted_while_others_go_on() -> None:
    """Topics come, go and grow between its steps; what it says of a partition is synced before it is saved."""
    disk = FaultyDisk()

    async def script(broker: Broker) -> None:
        for number in range(4):
            topic = await broker.create_topic(f"t{number}", 1)
            await broker.append(topic, 0, b"", b"v")
        draft = CheckpointDraft()
        steps = broker.store.draft_checkpoint(draft)
        grown, gone = "t0", "t3"
        while grown not in {log.topic for log in draft.changed}:
            next(steps)
        gone_id = broker.topic(gone).id
        await broker.delete_topic(gone)
        await broker.append(broker.topic(grown), 0, b"", b"more")
        await broker.create_topic("new", 1)
        for _ in steps:
            pass
        assert gone not in {log.topic for log in draft.changed}
        known = broker.store.drafted().partitions
        ids = {name: broker.topic(name).id for name in broker.topic_names()}
        assert known[f"topics/{ids[grown]}/0"].next_offset == 1, "as it was when it was looked at"
        assert f"topics/{gone_id}/0" not in known
        again = CheckpointDraft()
        for _ in broker.store.draft_checkpoint(again):
            pass
        assert grown in {log.topic for log in again.changed}, "the next one has the rest"
        last = CheckpointDraft()
        for _ in broker.store.draft_checkpoint(last):
            pass
        assert last.changed == []

    run_broker(script, disk)


def test_keeping_house_lets_others_run() -> None:
    """Neither a checkpoint nor retention looks at a thousand partitions in one turn of the loop."""

    async def script(broker: Broker) -> None:
        await broker.create_topic("t", 1000)
        for partition in range(1000):
            broker.stage(broker.topic("t"), partition, b"", b"v")
        await broker.append(broker.topic("t"), 0, b"", b"v")
        for action in (broker.checkpoint, broker.apply_retention):
            turns = 0
            running = asyncio.create_task(action())
            while not running.done():
                turns += 1
                await asyncio.sleep(0)
            assert turns >= 10

    run_broker(script)
