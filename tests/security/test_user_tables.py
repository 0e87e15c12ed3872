"""Users and roles as state machines, against small models, through snapshots, and over their limits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from proof_length import length

from braidmq.base import limits
from braidmq.base.clock import ManualClock
from braidmq.base.errors import BraidError
from braidmq.broker.features import Security, SecuritySettings
from braidmq.security.roles import BUILT_IN, Permission, RoleTable
from braidmq.security.users import UserTable

NAMES = st.sampled_from(["ann", "bob", "eve", "ä b"])
ROLES = st.lists(st.sampled_from(["admin", "producer", "consumer", "guest", "nobody"]), max_size=3)


def through_json(table: Any, fresh: Any) -> Any:
    fresh.restore(json.loads(json.dumps(table.snapshot())))
    return fresh


class UsersAgainstAModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = UserTable()
        self.commands: list[list[Any]] = []
        self.model: dict[str, dict[str, Any]] = {}
        self.now_ms = 1_000_000
        self.ids: set[int] = set()

    def submit(self, command: list[Any]) -> Any:
        command = json.loads(json.dumps(command))
        self.commands.append(command)
        self.now_ms += 1500
        return self.table.apply(command)

    @rule(name=NAMES, roles=ROLES)
    def create(self, name: str, roles: list[str]) -> None:
        command = self.table.create(name, "h", roles, self.now_ms)
        now_s = self.now_ms // 1000
        if name in self.model:
            with pytest.raises(BraidError, match=f'USER_EXISTS: user "{name}" already exists'):
                self.submit(command)
            return
        user = self.submit(command)
        assert user.id not in self.ids, "a number is never used again"
        self.ids.add(user.id)
        distinct = tuple(dict.fromkeys(roles))
        self.model[name] = {"hash": "h", "roles": distinct, "enabled": True, "times": (now_s, now_s), "quota": (None, None)}

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if self.model.pop(name, None) is None:
            with pytest.raises(BraidError, match=f'user "{name}" not found'):
                self.submit(self.table.delete(name))
        else:
            self.submit(self.table.delete(name))

    @rule(name=NAMES, roles=st.none() | ROLES, enabled=st.none() | st.booleans())
    def update(self, name: str, roles: list[str] | None, enabled: bool | None) -> None:
        before = self.table.get(name)
        number, was_enabled = (before.id, before.enabled) if before is not None else (0, False)
        self.change(self.table.update(name, roles, enabled, self.now_ms), name, lambda known: {
            "roles": known["roles"] if roles is None else tuple(dict.fromkeys(roles)),
            "enabled": known["enabled"] if enabled is None else enabled,
        })  # fmt: skip
        after = self.table.get(name)
        if after is not None and was_enabled and not after.enabled:
            assert after.id not in self.ids, "whoever is logged in is somebody else from now on"
            self.ids.add(after.id)
        else:
            assert after is None or after.id == number

    @rule(name=NAMES, stored=st.text(max_size=3))
    def set_password(self, name: str, stored: str) -> None:
        self.change(self.table.set_password(name, stored, self.now_ms), name, lambda _: {"hash": stored})

    @rule(name=NAMES, before=st.sampled_from(["h", "x"]), after=st.text(max_size=3))
    def rehash(self, name: str, before: str, after: str) -> None:
        command = self.table.rehash(name, before, after)
        if name in self.model:
            self.submit(command)
            if self.model[name]["hash"] == before:
                self.model[name]["hash"] = after
        else:
            with pytest.raises(BraidError):
                self.submit(command)

    @rule(name=NAMES, rate=st.none() | st.integers(0, 9))
    def set_quota(self, name: str, rate: int | None) -> None:
        self.change(self.table.set_quota(name, rate, None, self.now_ms), name, lambda _: {"quota": (rate, None)})

    def change(self, command: list[Any], name: str, changes: Any) -> None:
        now_s = self.now_ms // 1000
        if name in self.model:
            self.submit(command)
            known = self.model[name]
            known.update(changes(known), times=(known["times"][0], now_s))
        else:
            with pytest.raises(BraidError, match="USER_NOT_FOUND"):
                self.submit(command)

    def rows(self, table: UserTable) -> dict[str, dict[str, Any]]:
        return {
            u.name: {"hash": u.password_hash, "roles": u.roles, "enabled": u.enabled, "times": (u.created_s, u.updated_s),
                     "quota": (u.bytes_per_s, u.requests_per_s)}
            for u in table.all()
        }  # fmt: skip

    @invariant()
    def the_table_is_the_model(self) -> None:
        assert self.rows(self.table) == self.model
        assert [user.name for user in self.table.all()] == sorted(self.model) and len(self.table) == len(self.model)

    @invariant()
    def a_snapshot_and_a_replay_end_in_the_same_state(self) -> None:
        assert through_json(self.table, UserTable()).snapshot() == self.table.snapshot()
        replayed = UserTable()
        for command in self.commands:
            try:
                replayed.apply(command)
            except BraidError as refused:
                assert refused.code in ("USER_EXISTS", "USER_NOT_FOUND")
        assert replayed.snapshot() == self.table.snapshot()


UsersAgainstAModel.TestCase.settings = settings(max_examples=length(20, 40), stateful_step_count=25, deadline=None)
TestUsersAgainstAModel = UsersAgainstAModel.TestCase


def test_a_user_does_not_show_its_hash() -> None:
    table = UserTable()
    user = table.apply(table.create("ann", "scrypt$secret", [], 0))
    assert "secret" not in repr(user)


def test_the_number_of_users_is_bounded_as_it_was_when_the_command_was_made() -> None:
    table = UserTable(users_max=2)
    commands = [table.create(name, "h", [], 0) for name in "abc"]
    table.apply(commands[0])
    table.apply(commands[1])
    with pytest.raises(BraidError, match="ACCOUNT_LIMIT: the broker already has 2 users"):
        table.apply(commands[2])
    assert UserTable().create("a", "h", [], 0)[-1] == limits.USERS_MAX


@pytest.mark.parametrize("name", ["", "a\n", "x" * (limits.USER_NAME_BYTES_MAX + 1), "ä" * limits.USER_NAME_BYTES_MAX, "\ud800"])
def test_names_nobody_could_use(name: str) -> None:
    with pytest.raises(BraidError, match=r"INVALID_ARGUMENT: .*user name"):
        UserTable().create(name, "h", [], 0)


def test_roles_of_a_user_are_bounded() -> None:
    table = UserTable()
    table.create("a", "h", [f"r{n}" for n in range(limits.ROLES_PER_USER_MAX)] * 2, 0)
    with pytest.raises(BraidError, match="roles are more than"):
        table.create("a", "h", [f"r{n}" for n in range(limits.ROLES_PER_USER_MAX + 1)], 0)
    with pytest.raises(BraidError, match="role name"):
        table.update("a", ["x" * (limits.ROLE_NAME_BYTES_MAX + 1)], None, 0)


def test_a_negative_quota_is_refused() -> None:
    with pytest.raises(BraidError, match="bytes_per_s is negative"):
        UserTable.set_quota("a", -1, None, 0)


# --- roles


def test_built_in_roles_are_as_published() -> None:
    rows = [(role.name, [str(p) for p in role.permissions], role.description) for role in RoleTable().all()]
    assert rows == [
        ("admin", ["read", "write", "admin"], "Full access to all operations"),
        ("producer", ["write"], "Write-only access (produce messages)"),
        ("consumer", ["read"], "Read-only access (consume messages)"),
        ("guest", [], "Access to public topics only"),
    ]


def test_a_role_begins_and_ends_to_grant() -> None:
    table = RoleTable()
    assert not table.grants(["auditor"], Permission.ADMIN), "a name without a role grants nothing"
    version = table.version
    table.apply(table.create("auditor", ["admin", "read", "admin"], "reads the trail"))
    assert table.permissions(["auditor", "nobody"]) == (Permission.READ, Permission.ADMIN)
    assert table.grants(["nobody", "auditor"], Permission.ADMIN) and table.version > version
    copy = through_json(table, RoleTable())
    assert copy.all() == table.all()
    table.apply(table.delete("auditor"))
    assert not table.grants(["auditor"], Permission.ADMIN) and table.get("auditor") is None


def test_a_role_that_changes() -> None:
    table = RoleTable()
    table.apply(table.create("auditor", ["admin"], "reads the trail"))
    version = table.version
    changed = table.apply(table.update("auditor", ["write", "read"], ""))
    assert (changed.permissions, changed.description) == ((Permission.READ, Permission.WRITE), "")
    assert table.get("auditor") == changed and table.version > version
    assert through_json(table, RoleTable()).all() == table.all()
    with pytest.raises(BraidError, match="ROLE_NOT_FOUND"):
        table.apply(table.update("nobody", [], ""))
    with pytest.raises(BraidError, match="unknown permission 'fly'"):
        table.update("auditor", ["fly"], "")


def test_a_role_that_somebody_names_stays() -> None:
    security = Security(SecuritySettings(), ManualClock())
    users, acls, table = security.users, security.acls, security.roles
    table.apply(table.create("team", ["read"]))
    users.apply(users.create("ann", "h", ["guest", "team"], 0))
    acls.apply(acls.set("orders/#", False, [], ["friends", "team"]))
    with pytest.raises(BraidError, match='ROLE_IN_USE: role "team" is in use by user "ann"'):
        table.apply(table.delete("team"))
    users.apply(users.update("ann", ["guest"], None, 0))
    with pytest.raises(BraidError, match='is in use by the ACL of "orders/#"'):
        table.apply(table.delete("team"))
    acls.apply(acls.delete("orders/#"))
    assert table.apply(table.delete("team")).name == "team" and table.get("team") is None


def test_a_description_has_a_limit() -> None:
    most = limits.ROLE_DESCRIPTION_BYTES_MAX
    assert RoleTable().create("a", [], "x" * most)[3] == "x" * most
    for make in (RoleTable().create, RoleTable.update):
        with pytest.raises(BraidError, match=f"the description takes {most + 1} bytes"):
            make("a", [], "x" * (most - 1) + "ä")


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_built_in_roles_stay(name: str) -> None:
    table = RoleTable()
    for command in (table.delete(name), table.update(name, ["admin"], "")):
        with pytest.raises(BraidError, match="ROLE_BUILT_IN"):
            table.apply(command)
    with pytest.raises(BraidError, match="ROLE_EXISTS"):
        table.apply(table.create(name, ["admin"]))


def test_roles_refuse_nonsense() -> None:
    table = RoleTable(roles_max=1)
    with pytest.raises(BraidError, match="unknown permission 'fly'"):
        table.create("a", ["fly"])
    with pytest.raises(BraidError, match="ROLE_NOT_FOUND"):
        table.apply(table.delete("a"))
    table.apply(table.create("a", []))
    with pytest.raises(BraidError, match="already has 1 roles"):
        table.apply(table.create("b", []))
    assert RoleTable().create("a", [])[-1] == limits.ROLES_MAX
    for broken in (RoleTable(), UserTable()):
        with pytest.raises(AssertionError):
            broken.apply(["fly"])
