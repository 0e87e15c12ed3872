"""Topics and filters: what is allowed, and what matches what, also against a slow matcher that tries everything."""

from __future__ import annotations

import re

import pytest
from blipmq_cases import quick
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.wire.blipmq import TopicFilter, check_topic, parse_filter, shown_name, stored_name

levels = st.sampled_from(["", "a", "b", "$x", "ä"])
names = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
patterns = (
    st.tuples(st.lists(levels | st.just("+"), max_size=3), st.sampled_from(["", "#", "a", "+"]))
    .map(lambda parts: "/".join([*parts[0], parts[1]]))
    .filter(bool)
)


@pytest.mark.parametrize("topic", ["a", "/", "/a//b", "a b", "é/ü", "漢" * 255, "a.b", "a$b", "/".join("a" * 128)])
def test_topics_that_may_be_published_to(topic: str) -> None:
    check_topic(topic)


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", "empty"),
        ("a" * (limits.BLIPMQ_TEXT_CHARACTERS_MAX + 1), "256 characters"),
        ("/" * limits.BLIPMQ_LEVELS_MAX, "129 levels"),
        ("a/+", "wildcard"),
        ("a#", "wildcard"),
        ("a\0b", "U\\+0000"),
        ("a\nb", "U\\+000A"),
        ("a\rb", "U\\+000D"),
    ],
)
def test_topics_that_may_not(topic: str, reason: str) -> None:
    with pytest.raises(BraidError, match=f"INVALID_TOPIC.*{reason}"):
        check_topic(topic)


@pytest.mark.parametrize("topic", ["$SYS/x", "$DLQ/a", "$", "$share/g/a"])
def test_the_brokers_own_topics_are_not_for_publishers(topic: str) -> None:
    with pytest.raises(BraidError, match="UNAUTHORIZED"):
        check_topic(topic)


@pytest.mark.parametrize(
    ("text", "matching", "others"),
    [
        ("a/b", ["a/b"], ["a", "a/b/c", "A/b", "a/b/"]),
        (
            "sensor/+/temperature",
            ["sensor/1/temperature", "sensor//temperature"],
            ["sensor/temperature", "sensor/1/2/temperature"],
        ),
        ("logs/#", ["logs", "logs/a", "logs/a/b", "logs/"], ["log", "$SYS/logs", "logsa"]),
        ("#", ["a", "/", "a/b"], ["$DLQ/a", "$"]),
        ("+", ["a", "é"], ["a/b", "$x"]),
        ("+/+", ["/a", "a/", "/"], ["a", "a/b/c", "$DLQ/a"]),
        ("+/#", ["a", "a/b", "/"], ["$DLQ/a"]),
        ("$DLQ/#", ["$DLQ", "$DLQ/a", "$DLQ/a/b"], ["a", "$SYS/a"]),
        ("$DLQ/+", ["$DLQ/a"], ["$DLQ/a/b"]),
        ("/#", ["/", "/a", ""], ["a", "a/"]),
        ("$share/g/jobs/+", ["jobs/1"], ["jobs", "$share/g/jobs/1"]),
    ],
)
def test_what_a_filter_matches(text: str, matching: list[str], others: list[str]) -> None:
    found = parse_filter(text)
    assert found.text == text
    assert [topic for topic in matching + others if found.matches(topic)] == matching


@pytest.mark.parametrize("text", ["a/#/b", "a/b+/c", "+a", "a#", "#/", "##", "++", "", "a\0", "$share/", "$share/g", "$share/g/",
                                  "$share//a", "$share/+/a", "$share/g#/a", "$share/g/a#"])  # fmt: skip
def test_filters_that_are_none(text: str) -> None:
    with pytest.raises(BraidError) as caught:
        parse_filter(text)
    assert caught.value.code == "INVALID_TOPIC"


def test_a_filter_has_the_limits_of_a_topic() -> None:
    parse_filter("/".join("+" * limits.BLIPMQ_LEVELS_MAX))
    with pytest.raises(BraidError, match="129 levels"):
        parse_filter("/" * limits.BLIPMQ_LEVELS_MAX)
    with pytest.raises(BraidError, match="256 characters"):
        parse_filter("+" * 256)


def test_a_shared_filter_names_its_group() -> None:
    found = parse_filter("$share/workers/jobs/+")
    assert (found.group, found.pattern, found.wild) == ("workers", "jobs/+", True)
    assert parse_filter("a/b") == TopicFilter("a/b", "a/b", None, ("a", "b"), False)


def slow_match(pattern: str, topic: str) -> bool:
    """The rules once more, as a regular expression."""
    if topic.startswith("$") and pattern[0] in "+#":
        return False
    expression = ""
    for number, level in enumerate(pattern.split("/")):
        slash = "/" if number else ""
        if level == "#":
            # The parent itself and everything below it.
            expression += "(/.*)?" if number else ".*"
        else:
            expression += slash + ("[^/]*" if level == "+" else re.escape(level))
    return re.fullmatch(expression, topic) is not None


@quick
@given(patterns, names)
def test_matching_agrees_with_the_rules(pattern: str, topic: str) -> None:
    assert parse_filter(pattern).matches(topic) == slow_match(pattern, topic)


@quick
@given(patterns, patterns, st.lists(names, max_size=8))
def test_what_covers_another_filter_matches_all_that_it_matches(wide: str, narrow: str, topics: list[str]) -> None:
    one, other = parse_filter(wide), parse_filter(narrow)
    if one.covers(other):
        assert all(one.matches(topic) for topic in topics if other.matches(topic))


@pytest.mark.parametrize(
    ("wide", "narrow", "covers"),
    [
        ("#", "a/b", True),
        ("#", "+/a", True),
        ("#", "#", True),
        ("#", "$DLQ/a", False),
        ("$DLQ/#", "$DLQ/+", True),
        ("a/+", "a/b", True),
        ("a/+", "a/#", False),
        ("a/#", "a/+/c", True),
        ("a/#", "a", True),
        ("a/b", "a/+", False),
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/b/c", "a/b", False),
        ("+/+", "a/#", False),
    ],
)
def test_coverage(wide: str, narrow: str, covers: bool) -> None:
    assert parse_filter(wide).covers(parse_filter(narrow)) is covers


@pytest.mark.parametrize(("topic", "stored"), [("a/b", "a/b"), ("$DLQ/a/b", "a/b.dlq"), ("$DLQ/a.dlq", "a.dlq.dlq")])
def test_dead_letters_have_two_names(topic: str, stored: str) -> None:
    assert stored_name(topic, ".dlq") == stored
    assert shown_name(stored, ".dlq") == topic


def test_a_suffix_alone_is_no_dead_letter() -> None:
    assert shown_name(".dlq", ".dlq") == ".dlq"
    assert shown_name("a.dlq", "") == "a.dlq"
