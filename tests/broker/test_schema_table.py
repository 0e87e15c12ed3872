"""The schema table: versions, deletion, registrations at once, and that a replay decides as it was decided."""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from proof_length import length

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.schema_table import SchemaTable, SchemaVersion

INT = b'{"type":"integer"}'
NUMBER = b'{"type":"number"}'
TEXT = b'{"type":"string"}'


def put(table: SchemaTable, name: str, definition: bytes, mode: str = "", kind: str = "json", now_ms: int = 5) -> SchemaVersion:
    command = json.loads(json.dumps(table.register(name, kind, definition, mode, now_ms)))
    made = table.apply(command)
    assert isinstance(made, SchemaVersion)
    return made


def code_of(action: Any, *arguments: Any) -> str:
    with pytest.raises(BraidError) as caught:
        action(*arguments)
    return caught.value.code


def test_versions_count_up() -> None:
    table = SchemaTable()
    first = put(table, "orders", INT)
    assert first == SchemaVersion("orders", 1, "json", INT, first.fingerprint, 5)
    assert first.id == "orders-v1"
    assert put(table, "orders", NUMBER, now_ms=9).version == 2
    assert put(table, "other", TEXT).version == 1
    assert table.get("orders").definition == NUMBER
    assert table.get("orders", 1).definition == INT
    assert [each.id for each in table.list_versions()] == ["orders-v1", "orders-v2", "other-v1"]
    assert [each.id for each in table.list_versions("other")] == ["other-v1"]
    assert table.list_versions("nobody") == []


def test_an_equal_definition_is_the_same_version() -> None:
    table = SchemaTable()
    put(table, "a", INT)
    put(table, "a", NUMBER)
    assert put(table, "a", b'{ "type" : "number" }').version == 2
    assert put(table, "a", b' {"type":"integer"}').version == 1, "also when it is not the latest, and would not be compatible"
    assert len(table.list_versions()) == 2
    assert put(table, "b", INT).version == 1


def test_proto_is_stored_as_protobuf() -> None:
    table = SchemaTable()
    assert put(table, "a", b'syntax="proto3"; message A {}', kind="proto").kind == "protobuf"
    assert put(table, "a", b'syntax="proto3";  message A {}', kind="protobuf").version == 1


def test_what_is_not_compatible_is_refused() -> None:
    table = SchemaTable()
    put(table, "a", NUMBER)
    with pytest.raises(BraidError, match=r"schema compatibility check failed: .*type of") as caught:
        table.register("a", "json", INT, "", 5)
    assert caught.value.code == "SCHEMA_INCOMPATIBLE"
    assert code_of(table.register, "a", "avro", b'"int"', "", 5) == "SCHEMA_INCOMPATIBLE"
    assert put(table, "a", INT, "none").version == 2
    assert put(table, "a", TEXT).version == 3, "the mode of the last registration stays"


def test_an_optional_field_that_becomes_required() -> None:
    optional = b'{"type":"object","properties":{"a":{"type":"integer"}}}'
    required = b'{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'
    for mode in ("", "full", "backward_transitive", "full_transitive"):
        table = SchemaTable()
        put(table, "s", optional)
        with pytest.raises(BraidError, match="field a is required but messages of the other schema need not have it"):
            table.register("s", "json", required, mode, 5)
    for mode in ("forward", "none"):
        table = SchemaTable()
        put(table, "s", optional)
        assert put(table, "s", required, mode).version == 2
        assert put(table, "s", optional + b" ", "backward").version == 1, "there already"
    table = SchemaTable()
    put(table, "s", required)
    assert put(table, "s", optional).version == 2, "the other way every old message fits"


def test_the_mode_of_a_schema() -> None:
    table = SchemaTable()
    assert table.compatibility("a") == "backward"
    put(table, "a", INT)
    table.apply(table.set_compatibility("a", "full"))
    assert table.compatibility("a") == "full"
    assert code_of(table.register, "a", "json", NUMBER, "", 5) == "SCHEMA_INCOMPATIBLE"
    table.apply(table.set_compatibility("a", "backward_transitive"))
    assert put(table, "a", NUMBER).version == 2
    table.apply(table.set_compatibility("a", "none"))
    put(table, "a", TEXT)
    table.apply(table.set_compatibility("a", "backward_transitive"))
    wide = b'{"type":["string","number"]}'
    assert put(table, "a", wide).version == 4
    assert code_of(table.register, "a", "json", b'{"type":["string","null"]}', "", 5) == "SCHEMA_INCOMPATIBLE"
    assert code_of(table.set_compatibility, "a", "sideways") == "INVALID_ARGUMENT"
    assert code_of(table.set_compatibility, "b", "none") == "SCHEMA_NOT_FOUND"
    assert code_of(table.apply, ["set_compatibility", "b", "none"]) == "SCHEMA_NOT_FOUND"
    assert put(table, "a", wide, "none").version == 4
    assert table.compatibility("a") == "none", "registering again can still change the mode"


def test_deleted_numbers_are_not_used_again() -> None:
    table = SchemaTable()
    put(table, "a", INT)
    put(table, "a", NUMBER)
    assert [each.version for each in table.apply(table.delete("a", 2))] == [2]
    assert table.get("a").version == 1
    assert put(table, "a", NUMBER).version == 3
    assert [each.version for each in table.apply(table.delete("a"))] == [1, 3]
    assert code_of(table.get, "a") == "SCHEMA_NOT_FOUND"
    assert code_of(table.delete, "a") == "SCHEMA_NOT_FOUND"
    assert code_of(table.apply, ["delete", "a", 0]) == "SCHEMA_NOT_FOUND"
    assert code_of(table.get, "a", 1) == "SCHEMA_NOT_FOUND"
    assert table.find("a") is None and table.find("a", 3) is None
    assert put(table, "a", TEXT).version == 4, "nothing is left to be compatible with"


def test_of_two_registrations_at_once_one_looks_again() -> None:
    table = SchemaTable()
    put(table, "a", INT)
    one = table.register("a", "json", NUMBER, "", 5)
    other = table.register("a", "json", b'{"type":["integer","string"]}', "", 5)
    same = table.register("a", "json", b'{"type": "number"}', "", 6)
    assert table.apply(one).version == 2
    assert code_of(table.apply, other) == "SCHEMA_CONFLICT"
    assert table.apply(same).version == 2, "the same schema twice at once is one version"
    assert len(table.list_versions()) == 2


@pytest.mark.parametrize("between", ["delete", "mode", "new"])
def test_a_decision_holds_only_for_what_it_was_based_on(between: str) -> None:
    table = SchemaTable()
    put(table, "a", INT)
    put(table, "a", NUMBER)
    late = table.register("a", "json", b'{"type":["number","null"]}', "", 5)
    if between == "delete":
        table.apply(table.delete("a", 1))
    elif between == "mode":
        table.apply(table.set_compatibility("a", "full"))
    else:
        put(table, "a", b'{"type":["number","string"]}')
    before = table.snapshot()
    assert code_of(table.apply, late) == "SCHEMA_CONFLICT"
    assert table.snapshot() == before


def test_first_registrations_at_once() -> None:
    table = SchemaTable()
    one, other = table.register("a", "json", INT, "", 5), table.register("a", "json", TEXT, "", 5)
    assert table.apply(one).version == 1
    assert code_of(table.apply, other) == "SCHEMA_CONFLICT"


def test_a_plan_is_decided_apart_from_the_table() -> None:
    table = SchemaTable()
    put(table, "a", INT)
    planned = table.plan("a", "json", NUMBER, "", 7)
    table.apply(table.delete("a"))
    assert code_of(table.apply, planned.decide()) == "SCHEMA_CONFLICT"


@pytest.mark.parametrize("name", ["", "a\n", "\ud800", "x" * (limits.SCHEMA_NAME_BYTES_MAX + 1)])
def test_a_name_that_is_wrong(name: str) -> None:
    assert code_of(SchemaTable().plan, name, "json", INT, "", 5) == "INVALID_ARGUMENT"
    assert SchemaTable().plan("x" * limits.SCHEMA_NAME_BYTES_MAX, "json", INT, "", 5).name


def test_what_cannot_be_registered() -> None:
    table = SchemaTable()
    assert code_of(table.register, "a", "xml", INT, "", 5) == "SCHEMA_KIND"
    assert code_of(table.register, "a", "json", b"[]", "", 5) == "SCHEMA_INVALID"
    assert code_of(table.register, "a", "json", INT, "sideways", 5) == "INVALID_ARGUMENT"
    assert table.snapshot() == []


def limited(command: list[Any], *most: int) -> list[Any]:
    return [*command[:-1], list(most)]


def test_limits() -> None:
    table = SchemaTable()
    command = table.register("a", "json", INT, "", 5)
    assert command[-1] == [limits.SCHEMA_NAMES_MAX, limits.SCHEMA_VERSIONS_MAX, limits.SCHEMA_TOTAL_BYTES_MAX]
    assert code_of(table.apply, limited(command, 0, 9, 999)) == "SCHEMA_LIMIT"
    assert code_of(table.apply, limited(command, 9, 0, 999)) == "SCHEMA_LIMIT"
    assert code_of(table.apply, limited(command, 9, 9, len(INT) - 1)) == "SCHEMA_LIMIT"
    assert table.apply(limited(command, 1, 1, len(INT))).version == 1
    more = table.register("a", "json", NUMBER, "", 5)
    assert code_of(table.apply, limited(more, 1, 9, len(INT) + len(NUMBER) - 1)) == "SCHEMA_LIMIT"
    table.apply(table.delete("a"))
    other = table.register("b", "json", INT, "", 5)
    assert code_of(table.apply, limited(other, 1, 9, 999)) == "SCHEMA_LIMIT", "a deleted name still counts"
    assert table.apply(limited(other, 2, 9, len(INT))).version == 1, "its bytes do not"


def test_a_replay_needs_no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    table = SchemaTable()
    commands = [table.register("a", "json", INT, "", 5)]
    table.apply(commands[0])
    commands.append(table.register("a", "json", NUMBER, "", 6))
    table.apply(commands[1])
    for package in ("jsonschema_rs", "msgspec", "fastavro", "google.protobuf"):
        monkeypatch.setitem(sys.modules, package, None)
    again = SchemaTable()
    for command in json.loads(json.dumps(commands)):
        again.apply(command)
    assert again.snapshot() == table.snapshot()


def test_an_unknown_command_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="unknown schema command"):
        SchemaTable().apply(["forget", "a"])


# --- against a model

NAMES = st.sampled_from(["a", "b"])
DEFINITIONS = [b'{"const":%d}' % number for number in range(6)]


class SchemaTableModel(RuleBasedStateMachine):
    """A list of everything ever registered, with a mark for what is deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SchemaTable()
        self.journal: list[Any] = []
        self.rows: dict[str, list[list[Any]]] = {"a": [], "b": []}
        self.late: list[tuple[str, int, list[Any]]] = []
        self.changes = {"a": 0, "b": 0}

    def submit(self, command: list[Any]) -> Any:
        self.journal.append(copy.deepcopy(command))
        return self.table.apply(command)

    def living(self, name: str) -> dict[int, bytes]:
        return {number: row[0] for number, row in enumerate(self.rows[name], 1) if row[1]}

    @rule(name=NAMES, definition=st.sampled_from(DEFINITIONS), keep=st.booleans())
    def register(self, name: str, definition: bytes, keep: bool) -> None:
        command = self.table.register(name, "json", definition, "none", len(self.journal))
        if keep:
            self.late.append((name, self.changes[name], command))
            return
        self.arrived(name, command, self.changes[name], definition)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def register_late(self, data: st.DataObject) -> None:
        name, seen, command = self.late.pop(data.draw(st.integers(0, len(self.late) - 1)))
        definition = next(each for each in DEFINITIONS if self.fingerprint(each) == command[4])
        self.arrived(name, command, seen, definition)

    def fingerprint(self, definition: bytes) -> str:
        return str(SchemaTable().register("x", "json", definition, "none", 0)[4])

    def arrived(self, name: str, command: list[Any], seen: int, definition: bytes) -> None:
        known = [number for number, each in self.living(name).items() if each == definition]
        if known:
            assert self.submit(command).version == known[0]
        elif seen != self.changes[name]:
            assert code_of(self.submit, command) == "SCHEMA_CONFLICT"
        else:
            self.rows[name].append([definition, True])
            self.changes[name] += 1
            assert self.submit(command).version == len(self.rows[name])

    @rule(name=NAMES, version=st.integers(0, 8))
    def delete(self, name: str, version: int) -> None:
        gone = [number for number in self.living(name) if version in (0, number)]
        if not gone:
            assert code_of(self.submit, ["delete", name, version]) == "SCHEMA_NOT_FOUND"
            return
        assert [each.version for each in self.submit(self.table.delete(name, version))] == gone
        self.changes[name] += 1
        for number in gone:
            self.rows[name][number - 1][1] = False

    @rule()
    def restart_from_a_snapshot(self) -> None:
        document = json.loads(json.dumps(self.table.snapshot()))
        self.table = SchemaTable()
        self.table.restore(document)

    @invariant()
    def the_table_is_the_model(self) -> None:
        for name in self.rows:
            living = self.living(name)
            assert {each.version: each.definition for each in self.table.list_versions(name)} == living
            latest = self.table.find(name)
            assert (latest.version if latest else 0) == max(living, default=0)

    def teardown(self) -> None:
        again = SchemaTable()
        for command in json.loads(json.dumps(self.journal)):
            try:
                again.apply(command)
            except BraidError as refused:
                assert refused.code in ("SCHEMA_CONFLICT", "SCHEMA_NOT_FOUND")
        assert again.snapshot() == self.table.snapshot()


SchemaTableModel.TestCase.settings = settings(max_examples=length(25, 60), stateful_step_count=30, deadline=None)
TestSchemaTableModel = SchemaTableModel.TestCase
