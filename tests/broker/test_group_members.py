"""Members that share partitions: joining, rebalancing, fencing, dying, and every bound."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from group_bench import GroupBench

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.group_members import Joined


@pytest.fixture
def bench() -> Iterator[GroupBench]:
    made = GroupBench().start()
    made.create("t", 4)
    yield made
    made.close()


def joining(
    bench: GroupBench, member: str = "", topics: tuple[str, ...] = ("t",), owner: object = None, session_ms: int = 6000
) -> asyncio.Task[Joined]:
    return bench.begin(bench.coordinator.members.join("g", member, topics, "range", session_ms, owner, "addr"))


def settled(*tasks: asyncio.Task[Joined]) -> list[Joined]:
    assert all(task.done() for task in tasks)
    return [task.result() for task in tasks]


def pair(bench: GroupBench) -> tuple[Joined, Joined]:
    """Two members that share `t`."""
    (one,) = settled(joining(bench, owner="connection 1"))
    two = joining(bench, owner="connection 2")
    again = joining(bench, one.member, owner="connection 1")
    first, second = settled(again, two)
    return first, second


def refusal(bench: GroupBench, member: Joined, *, commit: bool = False) -> str:
    """The code with which the member's heartbeat or commit is refused, or ok."""
    try:
        if commit:
            offsets = [(topic, number, 1) for topic, numbers in member.assignment.items() for number in numbers]
            bench.run(bench.coordinator.commit("g", member.member, member.generation, offsets))
        else:
            bench.coordinator.members.heartbeat("g", member.member, member.generation)
    except BraidError as refused:
        return refused.code
    return "ok"


def pass_time(bench: GroupBench, seconds: float) -> None:
    bench.clock.advance(seconds)
    bench.coordinator.members.tick()
    bench.turns()


def test_one_member_has_everything_at_once(bench: GroupBench) -> None:
    (one,) = settled(joining(bench))
    assert one.assignment == {"t": (0, 1, 2, 3)} and one.generation > 0
    beat = bench.coordinator.members.heartbeat("g", one.member, one.generation)
    assert (beat.generation, beat.rebalance) == (one.generation, False)


def test_a_second_member_takes_its_share_when_the_first_rejoins(bench: GroupBench) -> None:
    (one,) = settled(joining(bench))
    two = joining(bench)
    assert not two.done(), "the first still owns what it would get"
    assert bench.coordinator.describe("t", "g").state == "rebalancing"
    assert bench.coordinator.members.heartbeat("g", one.member, one.generation).rebalance
    assert refusal(bench, one, commit=True) == "ok", "what was read may still be committed"
    again = joining(bench, one.member)
    first, second = settled(again, two)
    assert (first.member, first.assignment, second.assignment) == (one.member, {"t": (0, 1)}, {"t": (2, 3)})
    assert first.generation == second.generation > one.generation
    info = bench.coordinator.describe("t", "g")
    assert (info.members, info.state, info.generation) == ((first.member, second.member), "active", first.generation)


def test_commits_are_the_owners_alone(bench: GroupBench) -> None:
    (old,) = settled(joining(bench))
    two = joining(bench)
    one = joining(bench, old.member)
    first, second = settled(one, two)
    commit = bench.coordinator.commit
    bench.run(commit("g", first.member, first.generation, [("t", 0, 5), ("t", 1, 6)]))
    for generation, member, offsets in (
        (old.generation, first.member, [("t", 0, 9)]),
        (first.generation + 1, first.member, [("t", 0, 9)]),
        (second.generation, second.member, [("t", 2, 9), ("t", 0, 9)]),
        (second.generation, second.member, [("elsewhere", 0, 9)]),
    ):
        with pytest.raises(BraidError) as refused:
            bench.run(commit("g", member, generation, offsets))
        assert refused.value.code == "FENCED_MEMBER" and "member is fenced" in refused.value.text
    with pytest.raises(BraidError, match="UNKNOWN_MEMBER"):
        bench.run(commit("g", "nobody", first.generation, [("t", 0, 9)]))
    with pytest.raises(BraidError, match="UNKNOWN_MEMBER"):
        bench.run(commit("no group", first.member, first.generation, []))
    assert bench.committed() == {("t", "g", 0): 5, ("t", "g", 1): 6}
    bench.coordinator.members.check_member("g", second.member, second.generation, [("t", 3)])


def test_published_clients_commit_beside(bench: GroupBench) -> None:
    (one,) = settled(joining(bench))
    bench.coordinator.subscribe("t", "g", 0, "earliest", "connection", "published")
    bench.run(bench.coordinator.commit_offset("t", "g", 0, 3))
    assert bench.coordinator.describe("t", "g").members == ("published", one.member)
    assert refusal(bench, one) == "ok"


def test_a_member_that_leaves_gives_its_share_back(bench: GroupBench) -> None:
    first, second = pair(bench)
    bench.coordinator.members.leave("g", first.member)
    assert refusal(bench, first) == refusal(bench, first, commit=True) == "UNKNOWN_MEMBER"
    assert bench.coordinator.members.heartbeat("g", second.member, second.generation).rebalance
    (alone,) = settled(joining(bench, second.member))
    assert alone.assignment == {"t": (0, 1, 2, 3)}
    bench.coordinator.members.leave("g", first.member)
    bench.coordinator.members.leave("nobody's", "nobody")
    bench.coordinator.members.leave("g", alone.member)
    info = bench.coordinator.describe("t", "g")
    assert (info.members, info.state, info.generation) == ((), "empty", 0), "it is known, as after a SUBSCRIBE"


def test_a_silent_member_dies_and_a_late_one_is_fenced(bench: GroupBench) -> None:
    first, second = pair(bench)
    for _ in range(5):
        pass_time(bench, 1)
        assert not bench.coordinator.members.heartbeat("g", second.member, second.generation).rebalance
    pass_time(bench, 1)
    assert refusal(bench, first) == "UNKNOWN_MEMBER"
    assert bench.coordinator.members.heartbeat("g", second.member, second.generation).rebalance
    newcomer = joining(bench)
    for _ in range(6):
        assert not newcomer.done()
        assert refusal(bench, second, commit=True) == "ok"
        pass_time(bench, 1)
    assert settled(newcomer)[0].assignment == {"t": (0, 1, 2, 3)}, "the second has had its time"
    assert refusal(bench, second) == refusal(bench, second, commit=True) == "FENCED_MEMBER"
    late = joining(bench, second.member)
    assert bench.coordinator.members.heartbeat("g", newcomer.result().member, newcomer.result().generation).rebalance
    both = settled(joining(bench, newcomer.result().member), late)
    assert [share.assignment for share in both] == [{"t": (2, 3)}, {"t": (0, 1)}], "shares go by who came first"


def test_a_fenced_member_that_dies_changes_nothing(bench: GroupBench) -> None:
    first, second = pair(bench)
    newcomer = joining(bench)
    again = joining(bench, second.member)
    for _ in range(6):
        assert bench.coordinator.members.heartbeat("g", first.member, first.generation).rebalance
        pass_time(bench, 1)
    joined = settled(newcomer, again)
    generation = joined[0].generation
    for _ in range(6):
        pass_time(bench, 1)
        for member in joined:
            assert not bench.coordinator.members.heartbeat("g", member.member, generation).rebalance
    assert refusal(bench, first) == "UNKNOWN_MEMBER"
    assert bench.coordinator.describe("t", "g").generation == generation, "it had no share to give back"


def test_an_answer_that_was_lost_is_given_again(bench: GroupBench) -> None:
    first, second = pair(bench)
    assert settled(joining(bench, first.member, owner="another connection")) == [first]
    assert refusal(bench, second) == "ok"
    changed = joining(bench, first.member, topics=("t", "u"))
    assert not changed.done(), "other topics are a change"


def test_a_join_on_another_connection_takes_the_first_ones_place(bench: GroupBench) -> None:
    first, second = pair(bench)
    newcomer = joining(bench)
    lost = joining(bench, first.member, owner="connection 1")
    again = joining(bench, first.member, owner="connection 3")
    assert isinstance(lost.exception(), BraidError) and "joined again elsewhere" in str(lost.exception())
    bench.coordinator.members.owner_lost("connection 1")
    assert len(settled(newcomer, again, joining(bench, second.member))) == 3


def test_a_lost_connection_leaves_little_time(bench: GroupBench) -> None:
    first, second = pair(bench)
    bench.coordinator.members.owner_lost("connection 1")
    bench.coordinator.members.owner_lost("connection 2")
    bench.coordinator.members.owner_lost("nobody's")
    pass_time(bench, limits.MEMBER_RECONNECT_SECONDS / 2)
    assert not bench.coordinator.members.heartbeat("g", second.member, second.generation, "connection 3").rebalance
    pass_time(bench, limits.MEMBER_RECONNECT_SECONDS / 2)
    assert refusal(bench, first) == "UNKNOWN_MEMBER"
    assert bench.coordinator.members.heartbeat("g", second.member, second.generation).rebalance, "it came back in time"
    bench.coordinator.members.owner_lost("connection 3")
    pass_time(bench, limits.MEMBER_RECONNECT_SECONDS)
    assert refusal(bench, second) == "UNKNOWN_MEMBER", "a heartbeat brings the member to its new connection"


def test_whoever_waits_on_a_lost_connection_is_gone_at_once(bench: GroupBench) -> None:
    (one,) = settled(joining(bench))
    lost, cancelled = joining(bench, owner="connection 2"), joining(bench)
    bench.coordinator.members.owner_lost("connection 2")
    cancelled.cancel()
    bench.turns()
    assert isinstance(lost.exception(), BraidError) and cancelled.cancelled()
    assert bench.coordinator.describe("t", "g").members == (one.member,)
    (alone,) = settled(joining(bench, one.member))
    assert alone.assignment == {"t": (0, 1, 2, 3)}


def test_topics_that_come_go_and_grow_are_divided_anew(bench: GroupBench) -> None:
    (one,) = settled(joining(bench, topics=("t", "u")))
    assert one.assignment == {"t": (0, 1, 2, 3)}

    def after_the_change() -> dict[str, tuple[int, ...]]:
        nonlocal one
        assert bench.coordinator.members.heartbeat("g", one.member, one.generation).rebalance
        (one,) = settled(joining(bench, one.member, topics=("t", "u")))
        assert not bench.coordinator.members.heartbeat("g", one.member, one.generation).rebalance
        return one.assignment

    bench.create("u", 2)
    assert after_the_change() == {"t": (0, 1, 2, 3), "u": (0, 1)}
    bench.delete("t")
    assert after_the_change() == {"u": (0, 1)}
    topic = bench.topics.get("u")
    assert topic is not None
    topic.partitions = 3
    bench.coordinator.topic_changed("u")
    assert after_the_change() == {"u": (0, 1, 2)}
    bench.coordinator.topic_changed("u")
    bench.create("unrelated")
    assert not bench.coordinator.members.heartbeat("g", one.member, one.generation).rebalance, "nothing that concerns it"


def test_members_of_a_deleted_group_are_strangers(bench: GroupBench) -> None:
    first, second = pair(bench)
    bench.run(bench.coordinator.commit("g", first.member, first.generation, [("t", 0, 5)]))
    waiting = joining(bench)
    assert bench.run(bench.coordinator.delete("", "g")) == ["t"]
    assert isinstance(waiting.exception(), BraidError)
    assert {refusal(bench, member) for member in (first, second)} == {"UNKNOWN_MEMBER"}
    with pytest.raises(BraidError, match="GROUP_NOT_FOUND"):
        bench.coordinator.describe("t", "g")
    (alone,) = settled(joining(bench, first.member))
    assert alone.member != first.member and alone.generation > first.generation, "an id that is not known is replaced"


def test_a_commit_on_its_way_is_waited_for(bench: GroupBench) -> None:
    """A new owner must find what the old one committed, so nothing is divided while a commit waits for the disk."""
    first, second = pair(bench)
    newcomer = joining(bench)
    again = joining(bench, second.member)
    commit = bench.loop.create_task(bench.coordinator.commit("g", first.member, first.generation, [("t", 0, 7)]))
    bench.loop.call_soon(bench.loop.stop)
    bench.loop.run_forever()
    bench.coordinator.members.leave("g", first.member)
    assert not commit.done() and bench.coordinator.describe("t", "g").state == "rebalancing"
    assert refusal(bench, second, commit=True) == "FENCED_MEMBER", "whoever has rejoined has given its share up"
    bench.turns()
    assert commit.done() and bench.committed() == {("t", "g", 0): 7}
    assert [share.assignment for share in settled(newcomer, again)] == [{"t": (2, 3)}, {"t": (0, 1)}]


def test_whoever_rejoins_gives_its_share_up(bench: GroupBench) -> None:
    first, second = pair(bench)
    joining(bench)
    again = joining(bench, first.member)
    assert not again.done(), "the second has not come yet"
    assert refusal(bench, first, commit=True) == "FENCED_MEMBER"
    assert refusal(bench, first) == "ok", "it lives all the same"
    assert refusal(bench, second, commit=True) == "ok"


def test_a_group_outlives_its_last_member_while_a_commit_is_on_its_way(bench: GroupBench) -> None:
    (one,) = settled(joining(bench))
    commit = bench.loop.create_task(bench.coordinator.commit("g", one.member, one.generation, [("t", 0, 7)]))
    bench.loop.call_soon(bench.loop.stop)
    bench.loop.run_forever()
    bench.coordinator.members.leave("g", one.member)
    newcomer = bench.loop.create_task(bench.coordinator.members.join("g", "", ["t"], "range"))
    seen: list[int] = []
    newcomer.add_done_callback(lambda _: seen.append(bench.coordinator.committed("t", "g", 0)))
    bench.turns()
    assert commit.done() and newcomer.done() and seen == [7]


def test_generations_rise_across_restarts(bench: GroupBench) -> None:
    seen = [settled(joining(bench))[0]]
    for power in (False, True):
        bench = bench.crashed(power=power)
        assert refusal(bench, seen[-1]) == refusal(bench, seen[-1], commit=True) == "UNKNOWN_MEMBER"
        seen += settled(joining(bench, seen[-1].member))
        bench.snapshot()
    assert [joined.generation for joined in seen] == sorted({joined.generation for joined in seen})
    assert len({joined.member for joined in seen}) == 3
    bench.close()


def test_generations_are_reserved_in_blocks(bench: GroupBench) -> None:
    """Thousands of rebalances cost a handful of journal commands, and no number comes twice."""
    seen = []
    for n in range(2500):
        (joined,) = settled(bench.begin(bench.coordinator.members.join("g", "", [("t", "u")[n % 2]], "range")))
        seen.append(joined.generation)
        bench.coordinator.members.leave("g", joined.member)
    assert seen == sorted(set(seen))
    assert bench.offsets.generations == 3000 and seen[-1] == 2500


def test_stopping_answers_everybody(bench: GroupBench) -> None:
    pair(bench)
    waiting = joining(bench)
    bench.coordinator.members.close()
    bench.turns()
    assert isinstance(waiting.exception(), BraidError)


# --- bounds


def test_a_session_without_a_time_out_has_the_usual_one(bench: GroupBench) -> None:
    (one,) = settled(joining(bench, session_ms=0))
    pass_time(bench, limits.SESSION_TIMEOUT_MS_DEFAULT / 1000 - 0.1)
    assert bench.coordinator.describe("t", "g").members == (one.member,)
    pass_time(bench, 0.1)
    assert bench.coordinator.describe("t", "g").members == ()


def test_a_rebalance_does_not_wait_for_ever(bench: GroupBench) -> None:
    """However long sessions are."""
    (one,) = settled(joining(bench, session_ms=limits.SESSION_TIMEOUT_MS_MAX))
    two = joining(bench, session_ms=limits.SESSION_TIMEOUT_MS_MAX)
    pass_time(bench, limits.REBALANCE_SECONDS_MAX - 0.1)
    assert not two.done() and refusal(bench, one) == "ok"
    pass_time(bench, 0.1)
    assert two.done() and refusal(bench, one) == "FENCED_MEMBER"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("", "", ["t"]), "INVALID_GROUP"),
        (("g", "", []), "0 topics are not 1 to 1000"),
        (("g", "", [f"t{n}" for n in range(limits.MEMBER_TOPICS_MAX + 1)]), "1001 topics are not 1 to 1000"),
        (("g", "", ["__internal"]), "INVALID_TOPIC"),
        (("g", "", ["t"], "sticky"), "'sticky' is not one of"),
        (("g", "", ["t"], "", limits.SESSION_TIMEOUT_MS_MIN - 1), "session time-out 99 ms is not"),
        (("g", "", ["t"], "", limits.SESSION_TIMEOUT_MS_MAX + 1), "session time-out 300001 ms is not"),
    ],
)
def test_joins_that_make_no_sense_are_refused(bench: GroupBench, arguments: tuple[str, str, list[str]], reason: str) -> None:
    with pytest.raises(BraidError, match=reason):
        bench.run(bench.coordinator.members.join(*arguments))
    assert list(bench.coordinator.each_group()) == []


def test_a_group_has_one_strategy(bench: GroupBench) -> None:
    (one,) = settled(joining(bench))
    with pytest.raises(BraidError, match="group g divides by range, not by roundrobin"):
        bench.run(bench.coordinator.members.join("g", "", ["t"], "roundrobin"))
    again = bench.run(bench.coordinator.members.join("g", one.member, ["t"], "roundrobin"))
    assert again.generation > one.generation, "alone it may change its mind"


def test_members_are_bounded(bench: GroupBench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.MEMBERS_MAX >= limits.GROUP_MEMBERS_MAX >= 100
    monkeypatch.setattr(limits, "GROUP_MEMBERS_MAX", 2)
    first, _ = pair(bench)
    with pytest.raises(BraidError, match="GROUP_LIMIT: group g already has 2 members"):
        bench.run(bench.coordinator.members.join("g", "", ["t"]))
    monkeypatch.setattr(limits, "MEMBERS_MAX", 3)
    bench.run(bench.coordinator.members.join("h", "", ["t"]))
    with pytest.raises(BraidError, match="GROUP_LIMIT: the broker already has 3 group members"):
        bench.run(bench.coordinator.members.join("i", "", ["t"]))
    bench.coordinator.members.leave("g", first.member)
    bench.run(bench.coordinator.members.join("i", "", ["t"]))


def test_shared_partitions_are_bounded(bench: GroupBench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.GROUP_PARTITIONS_MAX >= limits.PARTITIONS_MAX
    monkeypatch.setattr(limits, "GROUP_PARTITIONS_MAX", 3)
    with pytest.raises(BraidError, match="4 partitions are more than 3"):
        bench.run(bench.coordinator.members.join("g", "", ["t"]))


def test_nothing_is_kept_of_groups_that_are_gone(bench: GroupBench) -> None:
    for n in range(20):
        one, two = (bench.begin(bench.coordinator.members.join(f"g{n}", "", ["t", "u"], "", 0, f"c{n}")) for _ in range(2))
        bench.coordinator.members.leave(f"g{n}", one.result().member)
        bench.turns()
        assert two.done()
        bench.coordinator.members.owner_lost(f"c{n}")
        pass_time(bench, limits.MEMBER_RECONNECT_SECONDS)
    groups = bench.coordinator.members
    assert (groups._groups, groups._watchers, groups._owned, groups._members, groups._joins_waiting) == ({}, {}, {}, 0, 0)
