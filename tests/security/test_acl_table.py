"""ACLs: which topics a pattern covers, which ACL wins, and the table against a model that asks every pattern every time."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from proof_length import length

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.security.acls import Acl, AclTable, TopicPattern, is_pattern

COVERED = [
    ("orders/*", ["orders/", "orders/a", "orders/a/b"], ["orders", "order/a", "xorders/a"]),
    ("orders*", ["orders", "orders/a", "orders-eu"], ["order", "my-orders"]),
    ("*", ["a", "a/b", "ä\n"], []),
    ("#", ["a", "a/b"], []),
    ("orders/#", ["orders", "orders/", "orders/a/b"], ["orders2", "ordersa/b"]),
    ("orders/+", ["orders/a", "orders/"], ["orders", "orders/a/b"]),
    ("+/new", ["a/new", "/new"], ["new", "a/b/new"]),
    ("orders/+/new", ["orders/eu/new"], ["orders/new", "orders/a/b/new"]),
    ("a.c*", ["a.c", "a.cd"], ["abc"]),
    ("*.dlq", ["orders.dlq", "a/b.dlq"], ["orders"]),
]


@pytest.mark.parametrize(("text", "covers", "leaves"), COVERED)
def test_what_a_pattern_covers(text: str, covers: list[str], leaves: list[str]) -> None:
    assert is_pattern(text)
    pattern = TopicPattern(text)
    assert [topic for topic in covers if not pattern.matches(topic)] == []
    assert [topic for topic in leaves if pattern.matches(topic)] == []


@pytest.mark.parametrize("name", ["orders", "a+b", "c#", "a/#/b", "#a", "a/+b", "c++"])
def test_what_is_no_pattern_means_itself(name: str) -> None:
    assert not is_pattern(name)


def test_the_most_specific_acl_wins() -> None:
    texts = ["*", "#", "orders*", "orders/*", "orders/#", "orders/+/new", "orders/eu/*", "orders/eu/new"]
    table = AclTable()
    for text in texts:
        table.apply(table.set(text, False, [], []))

    def winner(topic: str) -> str:
        found = table.covering(topic)
        assert found is not None
        return found.topic

    assert winner("orders/eu/new") == "orders/eu/new"
    assert winner("orders/us/new") == "orders/+/new"
    assert winner("orders/eu/old") == "orders/eu/*"
    assert winner("orders/us/old") == "orders/*"
    assert winner("orders-old") == "orders*"
    assert winner("a/b") == "#", "alphabetical where nothing else decides"
    table.apply(table.delete("orders/eu/new"))
    assert winner("orders/eu/new") == "orders/+/new", "one character more than orders/eu/*"


def test_a_name_with_a_star_finds_its_own_acl_first() -> None:
    table = AclTable()
    table.apply(table.set("a*", False, ["eve"], []))
    table.apply(table.set("a*b", True, [], []))
    found = table.covering("a*")
    assert found is not None and found.users == ("eve",)


def test_a_hostile_pattern_costs_little() -> None:
    begun = time.process_time()
    assert not TopicPattern("*a" * 120 + "x").matches("a" * 255)
    assert time.process_time() - begun < 1.0


# --- the model

TOPICS = ["a", "a/b", "a/b/c", "b", "b/c", "", "a*"]
TEXTS = ["a", "a/b", "a*", "a/*", "a/#", "a/+", "+/b", "#", "*", "*c", "b"]


def by_hand(text: str) -> str:
    """The pattern as a regular expression of Python's own."""
    if text == "#":
        return ".*"
    tail = "(/.*)?" if text.endswith("/#") else ""
    levels = text.removesuffix("/#").split("/") if tail else text.split("/")
    return "/".join("[^/]*" if level == "+" else re.escape(level).replace(r"\*", ".*") for level in levels) + tail


class AclsAgainstAModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = AclTable()
        self.model: dict[str, tuple[bool, tuple[str, ...], tuple[str, ...]]] = {}

    def submit(self, command: list[Any]) -> Acl | None:
        return self.table.apply(json.loads(json.dumps(command)))

    @rule(
        text=st.sampled_from(TEXTS),
        public=st.booleans(),
        users=st.lists(st.sampled_from("xy"), max_size=2),
        roles=st.lists(st.just("r"), max_size=1),
    )
    def set(self, text: str, public: bool, users: list[str], roles: list[str]) -> None:
        self.submit(self.table.set(text, public, users, roles))
        self.model[text] = public, tuple(dict.fromkeys(users)), tuple(roles)

    @rule(text=st.sampled_from(TEXTS))
    def delete(self, text: str) -> None:
        assert (self.submit(self.table.delete(text)) is not None) == (self.model.pop(text, None) is not None)

    @rule()
    def restart(self) -> None:
        fresh = AclTable()
        fresh.restore(json.loads(json.dumps(self.table.snapshot())))
        assert fresh.snapshot() == self.table.snapshot()
        self.table = fresh

    @rule(topic=st.sampled_from(TOPICS))
    def ask(self, topic: str) -> None:
        patterns = [text for text in self.model if is_pattern(text) and re.fullmatch(by_hand(text), topic, re.DOTALL)]
        fitting = [*patterns, *([topic] if topic in self.model and topic not in patterns else [])]
        found = self.table.covering(topic)
        assert (found is None) == (not fitting)
        if found is None:
            return
        literal = {text: len(re.sub(r"/#$|^#$|\+|\*", "", text)) for text in fitting}
        assert found.topic == topic or (topic not in fitting and literal[found.topic] == max(literal.values()))
        assert (found.public, found.users, found.roles) == self.model[found.topic]

    @invariant()
    def the_table_is_the_model(self) -> None:
        assert {acl.topic: (acl.public, acl.users, acl.roles) for acl in self.table.all()} == self.model
        assert len(self.table) == len(self.model)


AclsAgainstAModel.TestCase.settings = settings(max_examples=length(25, 60), stateful_step_count=30, deadline=None)
TestAclsAgainstAModel = AclsAgainstAModel.TestCase


@given(st.text(min_size=1, max_size=12), st.text(max_size=12))
def test_any_text_is_a_pattern_that_compiles(text: str, topic: str) -> None:
    pattern = TopicPattern(text)
    pattern.matches(topic)
    if not is_pattern(text):
        assert pattern.matches(text)


# --- limits


def test_acls_are_bounded() -> None:
    table = AclTable(acls_max=3, patterns_max=1)
    table.apply(table.set("a*", False, [], []))
    with pytest.raises(BraidError, match="already has 1 ACLs of patterns"):
        table.apply(table.set("b*", False, [], []))
    # One that exists can be changed.
    table.apply(table.set("a*", True, [], []))
    table.apply(table.set("a", False, [], []))
    table.apply(table.set("b", False, [], []))
    with pytest.raises(BraidError, match="already has 3 ACLs"):
        table.apply(table.set("c", False, [], []))
    assert AclTable().set("a", False, [], [])[-2:] == [limits.ACLS_MAX, limits.ACL_PATTERNS_MAX]


def test_an_acl_names_a_bounded_number() -> None:
    names = [f"n{n}" for n in range(limits.ACL_NAMES_MAX + 1)]
    table = AclTable()
    table.set("a", False, names[1:], names[1:])
    for users, roles in ((names, []), ([], names)):
        with pytest.raises(BraidError, match="are more than"):
            table.set("a", False, users, roles)


@pytest.mark.parametrize("topic", ["", "__metadata", "__*", "a\0", "x" * (limits.TOPIC_NAME_BYTES_MAX + 1)])
def test_topics_without_an_acl(topic: str) -> None:
    with pytest.raises(BraidError, match="INVALID_TOPIC"):
        AclTable().set(topic, False, [], [])


def test_what_is_remembered_of_topics_is_bounded() -> None:
    table = AclTable()
    table.apply(table.set("a*", False, [], []))
    for number in range(limits.ACL_CACHE_TOPICS_MAX + 10):
        assert table.covering(f"a{number}") is not None
    assert 0 < len(table._found) <= limits.ACL_CACHE_TOPICS_MAX
