"""What the outside may ask of groups, rule by rule: offsets, lag, resets, deletion, and members of published clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from group_bench import GroupBench
from written_state import written

from braidmq.base import limits
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError
from braidmq.broker.group_lag import PartitionLag
from braidmq.broker.group_offsets import GroupOffsets
from braidmq.broker.group_subscribers import Subscribers
from braidmq.broker.groups import OffsetChange


@pytest.fixture
def bench() -> Iterator[GroupBench]:
    made = GroupBench().start()
    made.create("t", 2)
    yield made
    made.close()


@pytest.fixture
def filled(bench: GroupBench) -> GroupBench:
    """Partition 0 of `t` holds offsets 0 to 5, written a second apart; partition 1 is empty."""
    for n in range(6):
        bench.produce("t", 0, b"%d" % n)
        bench.clock.advance(1)
    return bench


# --- offsets


def test_a_group_that_nobody_knows_has_no_offset(bench: GroupBench) -> None:
    for topic in ("t", "other"):
        with pytest.raises(BraidError) as refused:
            bench.coordinator.committed(topic, "g", 0)
        assert (refused.value.code, refused.value.text) == ("GROUP_NOT_FOUND", f"consumer group not found: {topic}:g")


def test_a_known_group_without_a_commit_is_at_0(bench: GroupBench) -> None:
    bench.coordinator.subscribe("t", "g", 0, "latest", "connection", "127.0.0.1:5000")
    assert bench.coordinator.committed("t", "g", 1) == 0
    bench.run(bench.coordinator.commit_offset("t", "h", 0, 5))
    assert (bench.coordinator.committed("t", "h", 0), bench.coordinator.committed("t", "h", 1)) == (5, 0)


@pytest.mark.parametrize("partition", [-1, 2, 1 << 31])
def test_partitions_that_are_not_there_are_refused(bench: GroupBench, partition: int) -> None:
    groups = bench.coordinator
    bench.run(groups.commit_offset("t", "g", 0, 1))
    with pytest.raises(BraidError, match="PARTITION_NOT_FOUND"):
        groups.committed("t", "g", partition)
    with pytest.raises(BraidError, match="PARTITION_NOT_FOUND"):
        groups.subscribe("t", "g", partition, "latest", "c", "a")
    for refused in (
        groups.commit_offset("t", "g", partition, 1),
        groups.lag("t", "g", partition),
        groups.reset("t", "g", partition, "earliest"),
        groups.seek("t", "g", partition, 0),
    ):
        with pytest.raises(BraidError, match="PARTITION_NOT_FOUND"):
            bench.run(refused)


def test_offsets_are_stored_as_given_and_may_go_back(bench: GroupBench) -> None:
    for offset in (7, 3, (1 << 64) - 1, 0):
        bench.run(bench.coordinator.commit_offset("t", "g", 0, offset))
        assert bench.coordinator.committed("t", "g", 0) == offset
    with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
        bench.run(bench.coordinator.commit_offset("t", "g", 0, -1))
    with pytest.raises(BraidError, match="INVALID_GROUP"):
        bench.run(bench.coordinator.commit_offset("t", "", 0, 1))


def test_many_offsets_move_together_and_a_transaction_moves_them_once(bench: GroupBench) -> None:
    groups = bench.coordinator
    rows = [groups.row("t", "g", 0, 4), groups.row("t", "g", 1, 9), groups.row("t", "h", 0, 1)]
    assert bench.run(groups.commit_rows(rows, transaction=12))
    assert bench.committed() == {("t", "g", 0): 4, ("t", "g", 1): 9, ("t", "h", 0): 1}
    bench.run(groups.commit_offset("t", "g", 0, 5))
    assert not bench.run(groups.commit_rows(rows, transaction=12)), "it was applied before"
    assert groups.committed("t", "g", 0) == 5
    bench.snapshot()
    again = bench.crashed()
    assert not again.run(again.coordinator.commit_rows(rows, transaction=12)), "also before the crash"
    assert again.run(again.coordinator.commit_rows(rows, transaction=13))
    assert again.coordinator.committed("t", "g", 0) == 4
    again.close()


def test_the_oldest_transactions_are_forgotten() -> None:
    machine = GroupOffsets(transactions_remembered=3)
    for number in (1, 2, 3, 4):
        assert machine.apply(machine.commit_many([(1, "g", 0, number)], number))
    assert not machine.apply(machine.commit_many([(1, "g", 0, 9)], 2))
    assert machine.apply(machine.commit_many([(1, "g", 0, 9)], 1)), "three are remembered, and this is the fourth"
    assert limits.GROUP_TRANSACTIONS_REMEMBERED >= 10_000


def test_rows_of_a_topic_that_is_gone_are_left_out(bench: GroupBench) -> None:
    groups = bench.coordinator
    bench.create("u")
    rows = [groups.row("t", "g", 0, 4), groups.row("u", "g", 0, 4)]
    bench.delete("u")
    bench.create("u")
    assert bench.run(groups.commit_rows(rows, transaction=1))
    assert bench.committed() == {("t", "g", 0): 4}, "the new topic has nothing of the old one"


# --- lag


def test_lag_counts_records_and_time(filled: GroupBench) -> None:
    groups = filled.coordinator
    assert filled.run(groups.lag("t", "nobody", 0)) == PartitionLag(0, 0, 6, 6, 6000)
    filled.run(groups.commit_offset("t", "g", 0, 2))
    assert filled.run(groups.lag("t", "g", 0)) == PartitionLag(0, 2, 6, 4, 4000)
    filled.clock.advance(10)
    assert filled.run(groups.lag("t", "g", 0)).ms == 14000
    filled.clock.jump(-3600)
    assert filled.run(groups.lag("t", "g", 0)).ms == 0, "a clock that was set back makes nothing younger than new"
    for caught_up in (6, 7, 1 << 60):
        filled.run(groups.commit_offset("t", "g", 0, caught_up))
        assert filled.run(groups.lag("t", "g", 0)) == PartitionLag(0, caught_up, 6, 0, 0)
    assert filled.run(groups.lag("t", "g", 1)) == PartitionLag(1, 0, 0, 0, 0)


def test_lag_of_a_group_is_the_sum_and_the_oldest(filled: GroupBench) -> None:
    groups = filled.coordinator
    filled.produce("t", 1, b"a", b"b")
    filled.clock.advance(1)
    filled.run(groups.commit_offset("t", "g", 0, 4))
    lag = filled.run(groups.group_lag("t", "g"))
    assert lag.partitions == (PartitionLag(0, 4, 6, 2, 3000), PartitionLag(1, 0, 2, 2, 1000))
    assert (lag.topic, lag.group, lag.records, lag.ms) == ("t", "g", 4, 3000)
    assert filled.run(groups.group_lag("", "g")) == lag
    assert filled.run(groups.lags()) == [lag]
    assert groups.group_lag_at_hand("t", "g") == groups.group_lag_at_hand("", "g") == lag
    with pytest.raises(BraidError, match="GROUP_NOT_FOUND"):
        filled.run(groups.group_lag("t", "nobody"))
    with pytest.raises(BraidError, match="GROUP_NOT_FOUND"):
        groups.group_lag_at_hand("t", "nobody")


def test_what_is_not_at_hand_is_not_waited_for(filled: GroupBench) -> None:
    """Many partitions, records on a cold disk, damage: the way that may wait tells the lag."""
    groups = filled.coordinator
    filled.create("wide", 65)
    filled.run(groups.commit_offset("wide", "g", 0, 0))
    assert groups.group_lag_at_hand("wide", "g") is None
    assert len(filled.run(groups.group_lag("wide", "g")).partitions) == 65


def test_lag_is_measured_from_what_retention_has_left(filled: GroupBench) -> None:
    topic = filled.topics.get("t")
    assert topic is not None
    log = filled.log(topic, 0)
    log.settings.segment_bytes = 1
    filled.produce("t", 0, b"in a new segment")
    log.drop_segments(log.segments[:1])
    filled.clock.advance(2)
    assert log.log_start == 6
    assert filled.run(filled.coordinator.lag("t", "g", 0)) == PartitionLag(0, 0, 7, 7, 2000)
    filled.run(filled.coordinator.commit_offset("t", "g", 0, 3))
    at_hand = filled.coordinator.group_lag_at_hand("t", "g")
    assert at_hand is not None and at_hand.partitions[0] == PartitionLag(0, 3, 7, 4, 2000)


def test_lag_of_cold_records_and_of_damaged_ones() -> None:
    bench = GroupBench(FaultyDisk(resident=False)).start()
    bench.create("t")
    bench.create("u")
    for name in ("t", "u"):
        bench.produce(name, 0, b"1")
        bench.clock.advance(1)
        bench.produce(name, 0, b"2")
        bench.run(bench.coordinator.commit_offset(name, "g", 0, 1))
    bench.clock.advance(3)
    bench.close()
    again = GroupBench(bench.disk.crash(), bench.clock).start()
    assert again.coordinator.group_lag_at_hand("t", "g") is None
    assert again.run(again.coordinator.lag("t", "g", 0)) == PartitionLag(0, 1, 2, 1, 4000)
    path = "/data/topics/1/0/00000000000000000000.log"
    again.disk.flip_bit(path, again.disk.file_size(path) // 2, 1)
    topic = again.topics.get("t")
    assert topic is not None
    segment = again.log(topic, 0).segments[0]
    segment._map, segment._mapped = None, 0
    with pytest.raises(BraidError, match="CORRUPT_LOG"):
        again.run(again.coordinator.lag("t", "g", 0))
    assert again.coordinator.group_lag_at_hand("t", "g") is None
    lags = {lag.topic: (lag.records, lag.ms) for lag in again.run(again.coordinator.lags())}
    assert lags == {"t": (1, 0), "u": (1, 3000)}, "the others are told all the same"
    again.close()


# --- reset and seek


@pytest.mark.parametrize(
    ("mode", "value", "after"),
    [
        ("earliest", 0, 0), ("latest", 0, 6), ("offset", 3, 3), ("offset", 999, 999),
        ("timestamp", 1_700_000_002_000, 2), ("timestamp", 1_700_000_001_999, 2), ("timestamp", 0, 0), ("timestamp", 1 << 60, 6),
    ],
)
def test_reset_moves_the_group_and_a_dry_run_only_says_where_to(filled: GroupBench, mode: str, value: int, after: int) -> None:
    groups = filled.coordinator
    writes = filled.disk.operations
    assert filled.run(groups.reset("t", "g", 0, mode, value, dry_run=True)) == [OffsetChange(0, None, after)]
    assert filled.committed() == {} and list(groups.each_group()) == [], "a dry run does not even create the group"
    assert filled.disk.operations == writes, "nor does it write"
    filled.run(groups.commit_offset("t", "g", 0, 5))
    assert filled.run(groups.reset("t", "g", 0, mode, value, dry_run=True)) == [OffsetChange(0, 5, after)]
    assert groups.committed("t", "g", 0) == 5
    assert filled.run(groups.reset("t", "g", 0, mode, value)) == [OffsetChange(0, 5, after)]
    assert groups.committed("t", "g", 0) == after
    assert filled.run(groups.reset("t", "new", 0, mode, value)) == [OffsetChange(0, None, after)], "it creates the group"
    again = filled.crashed()
    assert again.committed() == {("t", "g", 0): after, ("t", "new", 0): after}
    again.close()


def test_reset_of_all_partitions_is_one_step(filled: GroupBench) -> None:
    changes = filled.run(filled.coordinator.reset("t", "g", None, "latest"))
    assert changes == [OffsetChange(0, None, 6), OffsetChange(1, None, 0)]
    assert filled.committed() == {("t", "g", 0): 6, ("t", "g", 1): 0}


def test_reset_refuses_what_it_does_not_know(bench: GroupBench) -> None:
    with pytest.raises(BraidError) as refused:
        bench.run(bench.coordinator.reset("t", "g", 0, "yesterday"))
    assert (refused.value.code, refused.value.text) == ("INVALID_RESET_MODE", "unknown reset mode: yesterday")
    with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
        bench.run(bench.coordinator.reset("t", "g", 0, "offset", -1))
    with pytest.raises(BraidError, match="TOPIC_NOT_FOUND"):
        bench.run(bench.coordinator.reset("none", "g", None, "latest"))
    assert list(bench.coordinator.each_group()) == []


def test_seek_looks_up_and_commits_for_a_group(filled: GroupBench) -> None:
    groups = filled.coordinator
    assert filled.run(groups.seek("t", "", 0, 1_700_000_003_500)) == 4
    assert list(groups.each_group()) == []
    assert filled.run(groups.seek("t", "g", 0, 1_700_000_003_500)) == 4
    assert groups.committed("t", "g", 0) == 4


# --- listing and deleting


def test_groups_are_listed_by_topic_and_name(bench: GroupBench) -> None:
    groups = bench.coordinator
    bench.create("a")
    for topic, group in (("t", "x"), ("t", "b"), ("a", "x")):
        bench.run(groups.commit_offset(topic, group, 0, 1))
    groups.subscribe("t", "c", 1, "earliest", "connection", "10.0.0.1:99")
    listed = [(info.topic, info.group, info.members, info.offsets, info.state) for info in list(groups.each_group())]
    assert listed == [
        ("a", "x", (), ((0, 1),), "empty"), ("t", "b", (), ((0, 1),), "empty"),
        ("t", "c", ("10.0.0.1:99",), (), "active"), ("t", "x", (), ((0, 1),), "empty"),
    ]
    assert groups.describe("t", "x") == list(groups.each_group())[3]
    assert groups.describe("", "x") == next(groups.each_group()), "the first topic in name order"
    assert groups.topics_of("x") == ["a", "t"]
    for topic, group in (("a", "b"), ("", "nobody"), ("none", "x")):
        with pytest.raises(BraidError, match=f"consumer group not found: {topic}:{group}"):
            groups.describe(topic, group)


def test_deleting_a_group_on_one_topic_and_on_all(bench: GroupBench) -> None:
    groups = bench.coordinator
    for topic in ("a", "b"):
        bench.create(topic)
    for topic in ("a", "b", "t"):
        bench.run(groups.commit_offset(topic, "g", 0, 1))
    bench.run(groups.commit_offset("t", "other", 0, 1))
    assert bench.run(groups.delete("b", "g")) == ["b"]
    assert groups.topics_of("g") == ["a", "t"]
    groups.subscribe("b", "g", 0, "latest", "connection", "address")
    assert bench.run(groups.delete("", "g")) == ["a", "b", "t"], "also where it had but a member"
    assert bench.committed() == {("t", "other", 0): 1}
    for topic in ("", "a", "b"):
        with pytest.raises(BraidError, match="GROUP_NOT_FOUND"):
            bench.run(groups.delete(topic, "g"))
    again = bench.crashed()
    assert again.committed() == {("t", "other", 0): 1}
    again.close()


def test_a_deleted_topic_takes_its_groups_along(bench: GroupBench) -> None:
    groups = bench.coordinator
    bench.run(groups.commit_offset("t", "g", 0, 1))
    groups.subscribe("t", "h", 0, "latest", "connection", "address")
    bench.delete("t")
    assert list(groups.each_group()) == []
    with pytest.raises(BraidError, match="TOPIC_NOT_FOUND"):
        bench.run(groups.commit_offset("t", "g", 0, 1))
    bench.create("t", 2)
    assert list(groups.each_group()) == []
    assert list(groups._subscribers.all()) == [], "nothing is kept of what can never be asked for"
    groups.unsubscribe(1, "h", "connection")


@pytest.mark.parametrize("partition", [0, None])
def test_a_topic_that_is_replaced_under_a_reset_gets_nothing_of_it(partition: int | None) -> None:
    """Looking up a time may have to wait for the disk, and much can happen meanwhile."""
    bench = GroupBench(FaultyDisk(resident=False)).start()
    bench.create("t", 2)
    for number in (0, 1):
        bench.produce("t", number, b"1", b"2")
    again = bench.crashed()

    async def meanwhile(action: Callable[[], None]) -> None:
        gone = again.topics.get("t")
        assert gone is not None
        action()
        again.coordinator._ends._off_loop = again._at_once
        again.coordinator._lags._off_loop = again._at_once
        await again._metadata.submit(again.topics.delete("t"))
        again.store.retire_topic(gone.id, gone.partitions)
        again.store.remove_topic_files(gone.id)
        again.coordinator.topic_removed(gone)
        await again._metadata.submit(again.topics.create("t", 2, 0, {}))

    again.coordinator._ends._off_loop = again.coordinator._lags._off_loop = meanwhile
    with pytest.raises(BraidError, match="TOPIC_NOT_FOUND"):
        again.run(again.coordinator.reset("t", "g", partition, "timestamp", 1))
    assert again.committed() == {}
    again.close()


def test_a_topic_that_goes_while_lags_are_read_is_left_out() -> None:
    bench = GroupBench(FaultyDisk(resident=False)).start()
    for name in ("t", "u"):
        bench.create(name)
        bench.produce(name, 0, b"1")
        bench.run(bench.coordinator.commit_offset(name, "g", 0, 0))
    again = bench.crashed()

    async def meanwhile(action: Callable[[], None]) -> None:
        gone = again.topics.get("t")
        action()
        if gone is not None:
            await again._metadata.submit(again.topics.delete("t"))
            again.store.retire_topic(gone.id, gone.partitions)
            again.store.remove_topic_files(gone.id)

    again.coordinator._lags._off_loop = meanwhile
    assert [lag.topic for lag in again.run(again.coordinator.lags())] == ["u"]
    assert again.store.opened(1, 0) is None
    again.close()


def test_a_crash_between_a_topic_and_its_groups_leaves_none(bench: GroupBench) -> None:
    """The deletion of a topic is two commands in two journals."""
    bench.run(bench.coordinator.commit_offset("t", "g", 0, 1))
    bench.run(bench._metadata.submit(bench.topics.delete("t")))
    again = bench.crashed()
    assert len(again.offsets) == 0
    again.create("t")
    assert list(again.coordinator.each_group()) == []
    again.close()


# --- members that subscribe


def test_subscribing_answers_where_to_begin(filled: GroupBench) -> None:
    groups = filled.coordinator

    def begin(mode: str, group: str = "g") -> int:
        return groups.subscribe("t", group, 0, mode, "connection", "address")

    assert [begin("earliest"), begin("latest"), begin(""), begin("commit"), begin("committed")] == [0, 6, 6, 0, 0]
    filled.run(groups.commit_offset("t", "g", 0, 4))
    assert [begin("commit"), begin("committed"), begin("earliest"), begin("latest")] == [4, 4, 0, 6]
    assert groups.subscribe("t", "g", 1, "latest", "connection", "address") == 0, "an empty partition"
    assert begin("latest", group="") == 6, "no group, no member"
    with pytest.raises(BraidError, match="unknown subscribe mode: sideways"):
        begin("sideways", "unseen")
    assert [info.group for info in list(groups.each_group())] == ["g"]


def test_a_group_outlives_its_subscribers(bench: GroupBench) -> None:
    groups = bench.coordinator
    topic = bench.topics.get("t")
    assert topic is not None
    for connection in ("one", "two"):
        groups.subscribe("t", "g", 0, "latest", connection, f"at {connection}")
    assert groups.describe("t", "g").members == ("at one", "at two")
    groups.unsubscribe(topic.id, "g", "one")
    groups.unsubscribe(topic.id, "g", "one")
    assert groups.describe("t", "g").members == ("at two",)
    groups.unsubscribe(topic.id, "g", "two")
    assert (groups.describe("t", "g").members, groups.committed("t", "g", 0)) == ((), 0)


def test_left_groups_without_offsets_are_bounded() -> None:
    subscribers = Subscribers(left_max=2)
    for group in ("a", "b", "c"):
        subscribers.join(1, group, "connection", "address")
        subscribers.leave(1, group, "connection")
    assert [subscribers.has(1, group) for group in "abc"] == [False, True, True]
    assert subscribers.topics_of("a") == set()
    subscribers.join(1, "b", "connection", "address")
    subscribers.remember(1, "d")
    subscribers.remember(1, "e")
    assert [subscribers.has(1, group) for group in "bcde"] == [True, False, True, True], "one with members stays"
    assert limits.GROUPS_WITHOUT_OFFSETS_MAX >= 1000


def test_the_number_of_groups_is_bounded() -> None:
    bench = GroupBench(groups_max=2).start()
    bench.create("t", 2)
    groups = bench.coordinator
    for group in ("a", "b"):
        bench.run(groups.commit_offset("t", group, 0, 1))
        groups.subscribe("t", group, 0, "latest", "connection", "address")
    for refused in (groups.commit_offset("t", "c", 0, 1), groups.reset("t", "c", 0, "latest"), groups.seek("t", "c", 0, 0)):
        with pytest.raises(BraidError, match="GROUP_LIMIT: the broker already has 2 groups"):
            bench.run(refused)
    with pytest.raises(BraidError, match="GROUP_LIMIT"):
        groups.subscribe("t", "c", 0, "latest", "connection", "address")
    bench.run(groups.commit_offset("t", "a", 1, 1))
    bench.run(groups.delete("t", "a"))
    bench.run(groups.commit_offset("t", "c", 0, 1))
    assert limits.GROUPS_MAX >= 10_000
    bench.close()


def test_offsets_of_one_command_are_bounded(bench: GroupBench) -> None:
    row = bench.coordinator.row("t", "g", 0, 1)
    most = limits.GROUP_COMMIT_OFFSETS_MAX
    with pytest.raises(BraidError, match=f"{most + 1} offsets at once are more than {most}"):
        bench.run(bench.coordinator.commit_rows([row] * (most + 1)))
    assert bench.committed() == {}
    bench.run(bench.coordinator.commit_rows([row] * most))
    assert bench.committed() == {("t", "g", 0): 1}


def test_names_of_groups_are_bounded(bench: GroupBench) -> None:
    name = "g" * limits.GROUP_NAME_BYTES_MAX
    bench.run(bench.coordinator.commit_offset("t", name, 0, 1))
    for refused in (
        bench.coordinator.commit_offset("t", name + "g", 0, 1),
        bench.coordinator.reset("t", name + "g", 0, "latest"),
        bench.coordinator.seek("t", name + "g", 0, 0),
        bench.coordinator.members.join(name + "g", "", ["t"]),
    ):
        with pytest.raises(BraidError, match="INVALID_GROUP"):
            bench.run(refused)
    with pytest.raises(BraidError, match="INVALID_GROUP"):
        bench.coordinator.subscribe("t", name + "g", 0, "latest", "connection", "address")


# --- the state machine


def test_a_snapshot_of_the_first_version_is_read() -> None:
    machine = GroupOffsets()
    machine.restore([[3, "g", [[0, 5], [2, 7]]]])
    assert dict(machine.offsets(3, "g")) == {0: 5, 2: 7}
    twin = GroupOffsets()
    twin.restore(written(machine))
    assert written(twin) == written(machine)


def test_a_command_that_is_not_known_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        GroupOffsets().apply(["dance"])
