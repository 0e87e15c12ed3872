"""The journal: commands that are durable, refused, replayed and replaced by snapshots that may be damaged."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from broker_bench import run_broker, settings_of, values_of
from written_state import written

from braidmq.base import limits
from braidmq.base.clock import ManualClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError
from braidmq.base.json_pieces import json_pieces
from braidmq.broker.broker import Broker
from braidmq.broker.group_offsets import GroupOffsets
from braidmq.broker.journal import Journal
from braidmq.broker.topics import TopicTable
from braidmq.log.commit import GroupCommit, InlineSyncer
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings, PartitionLog
from braidmq.log.recovery import recover

DIRECTORY = "/data/internal/state"


class Words:
    """A state machine that remembers words, and refuses some."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def apply(self, command: list[Any]) -> int:
        if command[0] == "refuse" and len(self.words) > command[1]:
            raise BraidError("INVALID_ARGUMENT", reason="too many words")
        self.words.append(command[-1])
        return len(self.words)

    def snapshot(self) -> Any:
        return list(self.words)

    def restore(self, document: Any) -> None:
        self.words = list(document)


class Desk:
    """A journal of words on a disk, on the running loop."""

    def __init__(self, disk: FaultyDisk, level: Level = Level.FSYNC, segment_bytes: int = 600) -> None:
        disk.make_directory("/data/internal")
        self.disk = disk
        self.commit = GroupCommit(ManualClock(), InlineSyncer(disk), asyncio.get_running_loop().call_soon)
        self.log = PartitionLog(disk, DIRECTORY, "__state", 0, LogSettings(level, segment_bytes, retention_bytes=0, gapless=True))
        recover(disk, self.log, None)
        self.machine = Words()
        self.journal = Journal(disk, self.log, self.commit, self.machine)
        self.replayed = self.journal.replay()

    async def say(self, *words: str) -> None:
        for word in words:
            await self.journal.submit(["say", word])


def snapshots(disk: FaultyDisk) -> list[str]:
    return [name for name in disk.list_directory(DIRECTORY) if name.startswith("snapshot")]


def test_commands_apply_in_order_and_come_back() -> None:
    async def main() -> None:
        desk = Desk(FaultyDisk())
        answers = await asyncio.gather(*(desk.journal.submit(["say", f"word {number}"]) for number in range(50)))
        assert answers == list(range(1, 51))
        for fate in range(4):
            again = Desk(desk.disk.crash(fate))
            assert again.machine.words == desk.machine.words and again.replayed == 50

    asyncio.run(main())


def test_any_text_survives_a_replay() -> None:
    words = ["ü", "\u2028", "日本", "\U0001f600", '"\\', "\udc80 lone", ""]

    async def main() -> None:
        desk = Desk(FaultyDisk())
        await desk.say(*words)
        again = Desk(desk.disk.crash(1))
        assert (again.machine.words, again.replayed) == (words, len(words))
        again.journal.save_snapshot()
        again = Desk(again.disk.crash(1))
        assert (again.machine.words, again.replayed) == (words, 0)

    asyncio.run(main())


def test_refused_commands_are_refused_again_and_change_nothing() -> None:
    async def main() -> None:
        desk = Desk(FaultyDisk())
        await desk.say("one", "two")
        with pytest.raises(BraidError, match="too many words"):
            await desk.journal.submit(["refuse", 1, "three"])
        await desk.journal.submit(["refuse", 2, "four"])
        assert desk.machine.words == ["one", "two", "four"]
        again = Desk(desk.disk.crash(3))
        assert again.machine.words == ["one", "two", "four"]
        await again.say("five")
        assert Desk(again.disk.crash(3)).machine.words == ["one", "two", "four", "five"]

    asyncio.run(main())


def test_a_command_that_was_not_stored_is_not_applied() -> None:
    async def main() -> None:
        desk = Desk(FaultyDisk())
        await desk.say("one")
        desk.disk.fail("write", code=errno.ENOSPC)
        with pytest.raises(BraidError, match="STORAGE_FULL"):
            await desk.say("lost")
        await desk.say("two")
        assert desk.machine.words == ["one", "two"]
        desk.disk.fail("sync")
        with pytest.raises(BraidError, match="STORAGE_FAILED"):
            await desk.say("lost too")
        with pytest.raises(BraidError, match="STORAGE_FAILED"):
            await desk.say("never")
        assert desk.machine.words == ["one", "two"]
        assert Desk(desk.disk.crash(unsynced="lost")).machine.words[:2] == ["one", "two"]

    asyncio.run(main())


def test_a_command_stands_even_if_nobody_waits_for_it_any_more() -> None:
    async def main() -> None:
        desk = Desk(FaultyDisk())
        asking = asyncio.ensure_future(desk.say("word"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await desk.say("next")
        assert desk.machine.words == ["word", "next"]
        assert Desk(desk.disk.crash(1)).machine.words == ["word", "next"]

    asyncio.run(main())


def test_very_many_commands_in_one_turn_become_batches_that_can_be_read() -> None:
    async def main() -> None:
        desk = Desk(FaultyDisk(), segment_bytes=1 << 30)
        word = "w" * (1 << 20)
        count = limits.BATCH_BYTES_MAX // len(word) + 4
        await asyncio.gather(*(desk.journal.submit(["say", word]) for _ in range(count)))
        assert Desk(desk.disk.crash(unsynced="lost"), segment_bytes=1 << 30).replayed == count

    asyncio.run(main())


def test_a_snapshot_replaces_the_log_before_the_one_before_it() -> None:
    async def main() -> None:
        desk = Desk(FaultyDisk())
        said: list[str] = []
        for turn in range(6):
            words = [f"{turn}/{number}" for number in range(20)]
            await desk.say(*words)
            said += words
            desk.journal.save_snapshot()
            desk.journal.save_snapshot()
            assert len(snapshots(desk.disk)) <= 2
            desk = Desk(desk.disk.crash(turn))
            assert desk.machine.words == said and desk.replayed == 0
        assert desk.log.log_start > 60
        assert desk.log.log_start <= 100, "the log reaches back to the snapshot before the newest"

    asyncio.run(main())


@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "garbage"])
def test_a_damaged_snapshot_falls_back_to_the_one_before(how: str) -> None:
    async def main() -> None:
        desk = Desk(FaultyDisk())
        said = [f"word {number}" for number in range(60)]
        await desk.say(*said[:20])
        desk.journal.save_snapshot()
        await desk.say(*said[20:40])
        desk.journal.save_snapshot()
        await desk.say(*said[40:])
        newest = f"{DIRECTORY}/{snapshots(desk.disk)[-1]}"
        data = desk.disk.read_file(newest)
        spoiled = {
            "flipped": [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(0, len(data), 7)],
            "cut": [data[:at] for at in range(1, len(data), 11)],
            "empty": [b""],
            "garbage": [b"00000000\n", b"\xff" * 100, b"{}\n{}"],
        }[how]
        for content in spoiled:
            disk = desk.disk.crash(power=False)
            disk.replace_file(newest, content)
            again = Desk(disk)
            assert (again.machine.words, again.replayed) == (said, 40)
            await again.say("more")
            again.journal.save_snapshot()
            after = Desk(disk.crash(1))
            assert (after.machine.words, after.replayed) == ([*said, "more"], 0)

    asyncio.run(main())


def test_a_gap_between_snapshot_and_log_is_an_error_never_silence() -> None:
    async def main() -> None:
        desk = Desk(FaultyDisk())
        for _ in range(3):
            await desk.say(*("word",) * 20)
            desk.journal.save_snapshot()
        without = desk.disk.crash(power=False)
        for name in snapshots(without):
            without.remove_file(f"{DIRECTORY}/{name}")
        with pytest.raises(BraidError, match=r"CORRUPT_LOG.*begins at \d+, after its snapshot"):
            Desk(without)
        short = desk.disk.crash(power=False)
        for segment in desk.log.segments:
            short.remove_file(segment.log_path)
        with pytest.raises(BraidError, match=r"CORRUPT_LOG.*before its snapshot"):
            Desk(short)

    asyncio.run(main())


def test_commands_missing_in_the_middle_are_an_error() -> None:
    async def main() -> None:
        desk = Desk(FaultyDisk())
        await desk.say(*("word",) * 30)
        assert len(desk.log.segments) > 4
        disk = desk.disk.crash(power=False)
        disk.remove_file(desk.log.segments[2].log_path)
        with pytest.raises(BraidError, match=r"CORRUPT_LOG.*missing"):
            Desk(disk)

    asyncio.run(main())


@pytest.mark.parametrize("level", [Level.OS, Level.FSYNC])
def test_a_snapshot_never_knows_more_than_the_log(level: Level) -> None:
    """At level `os` the power may take the end of the log, but not from under a snapshot."""

    async def main() -> None:
        for point in range(60):
            disk = FaultyDisk(point)
            desk = Desk(disk, level)
            await desk.say(*("word",) * 7)
            disk.crash_after(point)
            try:
                desk.journal.save_snapshot()
            except BaseException as crash:
                assert type(crash).__name__ == "SimulatedCrash"
            for fate in range(6):
                again = Desk(disk.crash(fate), level)
                assert again.machine.words == ["word"] * len(again.machine.words)
                await again.say("more")
                assert Desk(again.disk.crash(power=False), level).machine.words == again.machine.words
            if not disk.dead:
                break

    asyncio.run(main())


# --- the broker's own machines


def test_a_topic_limit_decided_once_stays_decided() -> None:
    """Refused under one limit, a command stays refused when it is replayed under another: ids must not shift."""

    async def work(broker: Broker) -> None:
        for name in ("a", "b"):
            await broker.create_topic(name, 1)
        with pytest.raises(BraidError, match=r"TOPIC_LIMIT.*already has 2 topics"):
            await broker.create_topic("refused", 1)
        assert await broker.delete_topic("a")
        topic = await broker.create_topic("c", 1)
        await broker.append(topic, 0, b"", b"of c")
        assert topic.id == 3

    disk = run_broker(work, settings=settings_of(topics_max=2), stop=False)
    for topics_max in (1, 2, 100):

        async def check(broker: Broker) -> None:
            assert [(topic.name, topic.id) for topic in broker.topics.all()] == [("b", 2), ("c", 3)]
            assert values_of(broker, "c") == [b"of c"]

        run_broker(check, disk.crash(power=False), settings_of(topics_max=topics_max))


def test_creating_what_exists_gives_it_as_it_is() -> None:
    async def work(broker: Broker) -> None:
        first = await broker.create_topic("a", 3)
        both = await asyncio.gather(broker.create_topic("a", 5), broker.create_topic("n", 2), broker.create_topic("n", 7))
        assert both[0] is first and first.partitions == 3
        assert both[1].id == both[2].id and both[1].partitions == both[2].partitions == 2

    run_broker(work)


def test_group_offsets_survive_and_go_with_their_topic() -> None:
    settings = replace(settings_of(), journal_snapshot_commands=3)

    async def work(broker: Broker) -> None:
        for name in ("a", "b"):
            await broker.create_topic(name, 12)
        for offset in (5, 3, 9, 2):
            await broker.commit_offset("a", "readers", 11, offset)
            await broker.commit_offset("b", "readers", 0, 100 + offset)
        await broker.checkpoint()
        await broker.commit_offset("a", "others", 0, (1 << 63) - 1)
        await broker.delete_topic("b")
        await broker.create_topic("b", 1)

    for stop in (True, False):
        disk = run_broker(work, settings=settings, stop=stop)
        if not stop:
            disk = disk.crash(2)

        async def check(broker: Broker) -> None:
            a, b = broker.topic("a"), broker.topic("b")
            assert broker.groups.committed(a.id, "readers", 11) == 2, "a position may go back"
            assert broker.groups.committed(a.id, "readers", 0) is None
            assert broker.groups.committed(a.id, "others", 0) == (1 << 63) - 1
            assert broker.groups.committed(b.id, "readers", 0) is None
            assert len(broker.groups) == 2

        run_broker(check, disk)


def test_unknown_commands_are_a_bug_and_not_ignored() -> None:
    for machine in (TopicTable(), GroupOffsets()):
        with pytest.raises(AssertionError, match="unknown"):
            machine.apply(["explode"])


def test_the_state_is_the_same_from_commands_and_from_a_snapshot() -> None:
    topics, groups = TopicTable(), GroupOffsets()
    for number in range(20):
        topics.apply(topics.create(f"t{number}", number + 1, number, {"durability": "os"}))
        if number % 3 == 0:
            topics.apply(topics.delete(f"t{number}"))
        groups.apply(groups.commit(number, f"g{number % 4}", number, number * 10))
    groups.apply(groups.forget_topic(7))
    again_topics, again_groups = TopicTable(), GroupOffsets()
    again_topics.restore(written(topics))
    again_groups.restore(written(groups))
    assert again_topics.all() == topics.all() and again_topics.next_id == topics.next_id == 21
    assert again_topics.by_id(2) == topics.get("t1") and again_topics.by_id(1) is None
    assert written(again_groups) == written(groups) and len(again_groups) == 19


def test_what_comes_after_a_snapshot_was_taken_is_not_in_it() -> None:
    """It is written out later, beside the loop."""
    topics, groups = TopicTable(), GroupOffsets()
    topics.apply(topics.create("a", 1, 5, {"durability": "os"}))
    groups.apply(groups.commit(1, "g", 0, 10))
    before = [written(machine) for machine in (topics, groups)]
    taken = [machine.snapshot() for machine in (topics, groups)]
    topics.apply(topics.configure("a", {"durability": "", "ttl_ms": "5"}))
    topics.apply(topics.create("b", 1, 5, {}))
    topics.apply(topics.delete("a"))
    groups.apply(groups.commit(1, "g", 0, 20))
    groups.apply(groups.commit(1, "h", 0, 20))
    assert [json.loads("".join(json_pieces(state))) for state in taken] == before


def test_a_snapshot_is_written_while_commands_go_on() -> None:
    disk = FaultyDisk()
    held: list[Callable[[], None]] = []

    async def script(broker: Broker) -> None:
        await broker.create_topic("a", 1)
        release = asyncio.Event()

        async def later(action: Callable[[], None]) -> None:
            held.append(action)
            await release.wait()
            action()

        first = asyncio.create_task(broker._metadata.save_snapshot_beside(later))
        while not held:  # noqa: ASYNC110  (the task begins in the next turn)
            await asyncio.sleep(0)
        await broker.create_topic("b", 1)
        # Whoever asks meanwhile waits for the same one; who goes away does not end it.
        second = asyncio.create_task(broker._metadata.save_snapshot_beside(later))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        release.set()
        await second
        assert len(held) == 1
        snapshots = [name for name in disk.list_directory("/data/internal/metadata") if name.startswith("snapshot")]
        assert len(snapshots) == 1
        document = json.loads(disk.read_file(f"/data/internal/metadata/{snapshots[0]}").partition(b"\n")[2])
        assert [row[0] for row in document["state"]["machines"]["topics"]["topics"]] == ["a"]
        await broker._metadata.save_snapshot_beside(later)
        assert len(held) == 2, "the next one has what came after"

    run_broker(script, disk, stop=False)
    run_broker(check_topics("a", "b"), disk.crash())


def test_a_snapshot_that_fails_is_told_and_tried_again() -> None:
    disk = FaultyDisk()

    async def script(broker: Broker) -> None:
        await broker.create_topic("a", 1)
        disk.fail("rename", code=28)
        with pytest.raises(OSError):
            await broker._metadata.save_snapshot_beside(broker.beside)
        await broker._metadata.save_snapshot_beside(broker.beside)
        assert any(name.startswith("snapshot") for name in disk.list_directory("/data/internal/metadata"))

    run_broker(script, disk)


def check_topics(*names: str) -> Callable[[Broker], Awaitable[None]]:
    async def check(broker: Broker) -> None:
        assert broker.topic_names() == list(names)

    return check
