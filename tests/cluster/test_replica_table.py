"""The table of replicas under any order of commands: rules that hold whatever comes, and the same state after a snapshot."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.base.json_pieces import json_pieces
from braidmq.cluster.partition_state import PartitionState, elected
from braidmq.cluster.replica_table import ReplicaTable

_NODES = ["a", "b", "c", "d"]


def _table(*nodes: str) -> ReplicaTable:
    table = ReplicaTable()
    for node in nodes:
        table.apply(["register", node, 1, {"client": f"{node}:9092"}])
    return table


def _state(table: ReplicaTable, partition: int = 0) -> PartitionState:
    state = table.state((1, partition))
    assert state is not None
    return state


def test_a_dead_leader_is_replaced_and_nobody_waits_for_it() -> None:
    table = _table("a", "b", "c")
    table.apply(["place", 1, 2, [["a", "b", "c"], ["b", "c", "a"]]])
    table.apply(["fence", "a", 1])
    assert _state(table) == PartitionState("c", 2, ("a", "b", "c"), ("b", "c"), (), 2), "b leads the other one"
    assert _state(table, 1) == PartitionState("b", 1, ("b", "c", "a"), ("b", "c"), (), 2)


def test_the_last_one_in_sync_is_waited_for_and_those_who_left_too_late_may_lead() -> None:
    table = _table("a", "b", "c")
    table.apply(["place", 1, 2, [["a", "b", "c"]]])
    table.apply(["fence", "c", 1])
    table.apply(["fence", "b", 1])
    state = _state(table)
    assert (state.isr, state.elr) == (("a",), ("b",)), "c left while two were enough: it may miss something"
    table.apply(["fence", "a", 1])
    assert _state(table).leader == ""
    table.apply(["register", "c", 2, {}])
    assert _state(table).leader == ""
    table.apply(["register", "b", 2, {}])
    assert (_state(table).leader, _state(table).isr) == ("b", ("b",))


def test_who_was_in_sync_may_lead_after_one_that_was_eligible() -> None:
    state = PartitionState("", 4, ("a", "b", "c"), ("a",), ("b",), 7)
    state = elected(state, {"b"}) or state
    assert (state.leader, state.isr, state.elr) == ("b", ("b",), ("a",)), "nothing was acknowledged that a misses"
    back = elected(state, {"a", "c"})
    assert back is not None and (back.leader, back.elr) == ("a", ("b",)), "c may miss something"


def test_what_a_lost_node_led_is_spread_over_those_in_sync() -> None:
    table = _table("a", "b", "c", "d")
    table.apply(["place", 1, 2, [*[["a", "b", "c"]] * 6, ["c", "d", "a"], ["a", "b", "d"]]])
    state = _state(table, 7)
    table.apply(["isr", 1, 7, state.epoch, state.version, ["a", "d"]])
    table.apply(["fence", "a", 1])
    leaders = [_state(table, partition).leader for partition in range(8)]
    assert leaders == ["b", "b", "c", "b", "c", "b", "c", "d"], "who leads least, in the order of the replicas; d alone was in sync"
    assert all(_state(table, partition).version == 2 for partition in range(6))


def test_a_node_that_is_being_emptied_leads_only_where_nobody_else_may() -> None:
    table = _table("a", "b", "c")
    table.apply(["place", 1, 2, [["a", "b", "c"], ["a", "b", "c"], ["a", "b"]]])
    table.apply(["retire", "b", True])
    table.apply(["fence", "a", 1])
    assert [_state(table, partition).leader for partition in range(3)] == ["c", "c", "b"]


def test_settling_makes_an_earlier_word_void() -> None:
    """A leader that did not learn what came of its word on the isr has it settled: then it either happened, or never will."""
    table = _table("a", "b", "c")
    table.apply(["place", 1, 2, [["a", "b", "c"]]])
    said = _state(table)
    settled = table.apply(["settle", 1, 0, said.epoch, said.version])
    assert (settled.version, settled.isr, settled.epoch) == (said.version + 1, said.isr, said.epoch)
    assert table.apply(["isr", 1, 0, said.epoch, said.version, ["a"]]) == settled, "what comes late changes nothing"
    assert table.apply(["settle", 1, 0, said.epoch, said.version]) == settled, "and settling twice is settling once"
    happened = table.apply(["isr", 1, 0, settled.epoch, settled.version, ["a", "b"]])
    assert table.apply(["settle", 1, 0, settled.epoch, settled.version]) == happened, "the answer is what happened"
    assert table.apply(["settle", 1, 9, 1, 1]) is None, "a partition that is not there"


def test_a_restarted_leader_gets_another_epoch() -> None:
    table = _table("a")
    table.apply(["place", 1, 1, [["a"]]])
    table.apply(["register", "a", 2, {}])
    state = _state(table)
    assert state.leader == "a" and state.epoch > 1


def test_what_was_made_from_an_older_state_changes_nothing() -> None:
    table = _table("a", "b", "c")
    table.apply(["place", 1, 2, [["a", "b", "c"]]])
    old = _state(table)
    table.apply(["lead", 1, 0, old.epoch, old.version, "b"])
    now = _state(table)
    assert now.leader == "b"
    assert table.apply(["isr", 1, 0, old.epoch, old.version, ["a"]]) == now
    assert table.apply(["lead", 1, 0, old.epoch, old.version, "c"]) == now
    assert table.apply(["replicas", 1, 0, old.epoch, old.version, ["a"], []]) == now


def test_an_isr_takes_in_only_those_who_are_here() -> None:
    table = _table("a", "b", "c")
    table.apply(["place", 1, 2, [["a", "b", "c"]]])
    table.apply(["fence", "c", 1])
    state = _state(table)
    said = table.apply(["isr", 1, 0, state.epoch, state.version, ["a", "b", "c"]])
    assert said.isr == ("a", "b")
    # Its leader learns that this is the answer, and no longer waits for c.
    assert said.version == state.version + 1


def test_who_left_may_lead_only_as_long_as_nothing_went_on_without_it() -> None:
    table = _table("a", "b", "c")
    table.apply(["place", 1, 2, [["a", "b", "c"]], 3, 2])
    table.apply(["fence", "c", 1])
    table.apply(["fence", "b", 1])
    assert (_state(table).isr, _state(table).elr) == (("a",), ("b",))
    before = _state(table)
    table.apply(["require", 1, 0, 1])
    assert _state(table).elr == (), "a alone acknowledges from now on, and b misses it"
    assert _state(table).version > before.version
    table.apply(["fence", "a", 1])
    table.apply(["register", "b", 2, {}])
    assert _state(table).leader == ""


def test_a_larger_min_insync_makes_what_was_said_before_void() -> None:
    table = _table("a", "b")
    table.apply(["place", 1, 1, [["a", "b"]], 3, 2])
    assert (table.min_insync(1), table.min_insync_wanted(1), table.factor((1, 0))) == (1, 2, 3)
    said = _state(table)
    table.apply(["ensure", 1, 3])
    assert _state(table) == said, "that is not wanted any more"
    table.apply(["ensure", 1, 2])
    assert table.min_insync(1) == 2
    assert table.apply(["isr", 1, 0, said.epoch, said.version, ["a"]]) == _state(table), "a would not wait for b, which may lead"
    assert _state(table).isr == ("a", "b")


def test_a_table_that_was_kept_before_topics_had_a_factor() -> None:
    table = _table("a", "b", "c")
    table.apply(["place", 1, 2, [["a", "b"], ["b", "c"]]])
    document = json.loads("".join(json_pieces(table.snapshot())))
    del document["chosen"]
    document["topics"] = [row[:3] for row in document["topics"]]
    other = ReplicaTable()
    other.restore(document)
    assert (other.factor((1, 0)), other.min_insync(1), other.min_insync_wanted(1)) == (2, 2, 2), "it asks for what it has"


_COMMANDS = st.one_of(
    st.tuples(st.just("register"), st.sampled_from(_NODES), st.integers(1, 5)),
    st.tuples(st.just("fence"), st.sampled_from(_NODES), st.integers(1, 5)),
    st.tuples(st.just("isr"), st.integers(0, 2), st.lists(st.sampled_from(_NODES), unique=True)),
    st.tuples(st.just("lead"), st.integers(0, 2), st.sampled_from(_NODES)),
    st.tuples(st.just("replicas"), st.integers(0, 2), st.lists(st.sampled_from(_NODES), unique=True, min_size=1)),
    st.tuples(st.just("unregister"), st.sampled_from(_NODES)),
    st.tuples(st.just("remove")),
    st.tuples(st.just("retire"), st.sampled_from(_NODES), st.booleans()),
    st.tuples(st.just("require"), st.just(1), st.integers(0, 4), st.integers(0, 3)),
    st.tuples(st.just("ensure"), st.just(1), st.integers(1, 3)),
)


def _command(table: ReplicaTable, drawn: tuple[Any, ...]) -> list[Any]:
    match drawn:
        case ("register", node, generation):
            return ["register", node, generation, {}]
        case ("isr" | "lead" | "replicas" as verb, partition, value):
            state = table.state((1, partition)) or PartitionState("", 0, (), (), (), 0)
            tail = [[]] if verb == "replicas" else []
            return [verb, 1, partition, state.epoch, state.version, value, *tail]
        case ("remove",):
            return ["remove", 1]
    return list(drawn)


@settings(max_examples=300)
@given(commands=st.lists(_COMMANDS, max_size=40))
def test_whatever_comes_the_rules_hold(commands: list[tuple[Any, ...]]) -> None:
    table = _table(*_NODES)
    table.apply(["place", 1, 2, [["a", "b", "c"], ["b", "c", "d"], ["d"]]])
    for drawn in commands:
        before = dict(table.items())
        table.apply(_command(table, drawn))
        for key, state in table.items():
            assert state.isr, "an isr is never empty"
            assert not state.leader or state.leader in state.isr
            assert not set(state.isr) & set(state.elr)
            assert not (state.leader and state.elr) or len(state.isr) < table.min_insync(1), "who may lead misses nothing"
            assert not state.leader or table.brokers[state.leader].live
            old = before.get(key)
            if old is None or old == state:
                continue
            assert state.version > old.version and state.epoch >= old.epoch
            assert state.epoch > old.epoch or state.leader == old.leader
            if state.leader != old.leader and state.leader:
                assert state.leader in old.isr or (state.leader in old.elr), "nobody leads who may miss something"
    document = json.loads("".join(json_pieces(table.snapshot())))
    other = ReplicaTable()
    other.restore(document)
    assert dict(other.items()) == dict(table.items())
    assert other.brokers == table.brokers and other.targets == table.targets
    for key in dict(table.items()):
        assert other.factor(key) == table.factor(key)
    assert (other.min_insync(1), other.min_insync_wanted(1)) == (table.min_insync(1), table.min_insync_wanted(1))
