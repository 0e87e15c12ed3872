"""Strategies divide everything, evenly, and the same way every time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import BraidError
from braidmq.broker.assignment import STRATEGIES, assign, check_strategy

TOPICS = ["a", "b", "c", "d"]
partitions = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 20))
subscriptions = st.lists(st.frozensets(st.sampled_from(TOPICS), min_size=1), max_size=8).map(
    lambda wanted: [(f"m{n}", topics) for n, topics in enumerate(wanted)]
)
Shares = dict[str, dict[str, tuple[int, ...]]]


def sizes(shares: Shares) -> list[int]:
    return [sum(map(len, share.values())) for share in shares.values()]


@given(st.sampled_from(STRATEGIES), subscriptions, partitions)
def test_every_partition_has_one_owner_that_wants_it(
    strategy: str, members: list[tuple[str, frozenset[str]]], counts: dict[str, int]
) -> None:
    shares = assign(strategy, members, counts)
    assert list(shares) == [member for member, _ in members]
    wanted = dict(members)
    owned = [(topic, number) for share in shares.values() for topic, numbers in share.items() for number in numbers]
    assert len(owned) == len(set(owned))
    asked_for = frozenset().union(*wanted.values())
    assert set(owned) == {(topic, number) for topic, count in counts.items() for number in range(count) if topic in asked_for}
    for member, share in shares.items():
        assert set(share) <= wanted[member]
        assert all(numbers and list(numbers) == sorted(numbers) for numbers in share.values())
    assert assign(strategy, members, dict(reversed(counts.items()))) == shares, "the order of topics does not matter"


@given(subscriptions, partitions)
def test_range_cuts_each_topic_into_even_runs(members: list[tuple[str, frozenset[str]]], counts: dict[str, int]) -> None:
    shares = assign("range", members, counts)
    for topic, count in counts.items():
        readers = [member for member, topics in members if topic in topics]
        runs = [shares[member].get(topic, ()) for member in readers]
        if readers:
            assert [number for run in runs for number in run] == list(range(count)), "neighbours, in the order of members"
            assert max(map(len, runs)) - min(map(len, runs)) <= 1


@given(st.integers(1, 8), st.integers(0, 30))
def test_range_gives_the_same_numbers_of_topics_that_belong_together(members: int, count: int) -> None:
    shares = assign("range", [(f"m{n}", {"a", "b"}) for n in range(members)], {"a": count, "b": count})
    assert all(share.get("a") == share.get("b") for share in shares.values())


@given(st.integers(1, 8), partitions)
def test_round_robin_is_even_over_all_topics(members: int, counts: dict[str, int]) -> None:
    shares = assign("roundrobin", [(f"m{n}", TOPICS) for n in range(members)], counts)
    assert max(sizes(shares)) - min(sizes(shares)) <= 1


@given(subscriptions, partitions)
def test_round_robin_is_even_between_members_that_want_the_same(
    members: list[tuple[str, frozenset[str]]], counts: dict[str, int]
) -> None:
    shares = assign("roundrobin", members, counts)
    for topics in {topics for _, topics in members}:
        alike = [sum(map(len, shares[member].values())) for member, wanted in members if wanted == topics]
        assert max(alike) - min(alike) <= 1


def test_round_robin_spares_those_who_have_topics_of_their_own() -> None:
    shares = assign("roundrobin", [("m0", {"a", "b"}), ("m1", {"b"})], {"a": 4, "b": 4})
    assert shares == {"m0": {"a": (0, 1, 2, 3)}, "m1": {"b": (0, 1, 2, 3)}}


def test_strategies_have_names() -> None:
    assert [check_strategy(name) for name in ("", "range", "roundrobin")] == ["range", "range", "roundrobin"]
    with pytest.raises(BraidError, match="'sticky' is not one of range, roundrobin"):
        check_strategy("sticky")
