"""Logging in and administering: the rules clients see, the order of waiting and hashing, and what the trail says about it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from braidmq.base import limits
from braidmq.base.clock import ManualClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError
from braidmq.security.accounts import Accounts, Caller, admin_password
from braidmq.security.acls import AclTable
from braidmq.security.authorizer import Authorizer, Principal
from braidmq.security.passwords import Cost
from braidmq.security.quotas import Rates
from braidmq.security.roles import RoleTable
from braidmq.security.users import UserTable

CHEAP = Cost(4, 8, 1)


class World:
    def __init__(self, *, enabled: bool = True, allow_anonymous: bool = False) -> None:
        self.clock = ManualClock()
        users, roles, acls = UserTable(), RoleTable(), AclTable()
        machines: dict[str, Any] = {"users": users, "roles": roles, "acls": acls}
        self.commands: list[Any] = []
        self.slept: list[float] = []
        self.hashing = self.hashing_most = 0
        self.events: list[tuple[str, dict[str, Any]]] = []

        async def submit(machine: str, command: list[Any]) -> Any:
            await asyncio.sleep(0)
            self.commands.append(command)
            return machines[machine].apply(command)

        async def run_blocking(function: Callable[[], Any]) -> Any:
            self.hashing += 1
            self.hashing_most = max(self.hashing_most, self.hashing)
            for _ in range(3):
                await asyncio.sleep(0)
            self.hashing -= 1
            return function()

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            until = self.clock.monotonic() + seconds
            await asyncio.sleep(0)
            self.clock.advance(max(0.0, until - self.clock.monotonic()))

        world = self

        class Notes:
            def record(self, kind: str, **fields: Any) -> None:
                world.events.append((kind, fields))

        self.authorizer = Authorizer(users, roles, acls, enabled=enabled, allow_anonymous=allow_anonymous)
        self.accounts = Accounts(
            users, roles, acls, self.authorizer, submit=submit, run_blocking=run_blocking, clock=self.clock, audit=Notes(),  # type: ignore[arg-type]
            cost=CHEAP, sleep=sleep,
        )  # fmt: skip
        self.root = Caller(Principal("root", 99), "9.9.9.9")

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    def add(self, name: str = "ann", password: str = "right", roles: tuple[str, ...] = ("producer",)) -> None:
        self.run(self.accounts.create_user(self.root, name, password, roles))

    def login(self, name: str = "ann", password: str = "right", address: str = "1.1.1.1") -> Principal:
        found: Principal = self.run(self.accounts.authenticate(name, password, address))
        return found

    def refusal(self, work: Coroutine[Any, Any, Any]) -> str:
        with pytest.raises(BraidError) as caught:
            self.run(work)
        return caught.value.text


def test_logging_in() -> None:
    world = World()
    world.add()
    assert world.login() == Principal("ann", world.accounts.users.require("ann").id)
    for name, password in (("ann", "wrong"), ("nobody", "right"), ("ann", ""), ("", "")):
        assert world.refusal(world.accounts.authenticate(name, password, "2.2.2.2")) == "invalid username or password"
    world.run(world.accounts.update_user(world.root, "ann", [], False))
    assert world.refusal(world.accounts.authenticate("ann", "right", "1.1.1.1")) == "user account is disabled"
    # A stranger does not learn that the account exists.
    assert world.refusal(world.accounts.authenticate("ann", "wrong", "3.3.3.3")) == "invalid username or password"
    kinds = [kind for kind, _ in world.events]
    assert kinds[:2] == ["user.create", "auth.success"] and kinds.count("auth.failure") == 6
    assert "right" not in str(world.events) and "right" not in str(world.commands)


def test_with_authentication_off_everybody_is_who_they_say() -> None:
    world = World(enabled=False)
    assert world.login("anybody", "x").name == "anybody" and world.commands == []


def test_guesses_made_at_once_are_slowed_like_guesses_in_a_row() -> None:
    world = World()
    world.add()

    async def storm() -> list[Any]:
        guesses = [world.accounts.authenticate("ann", f"guess{n}", f"1.1.{n}.1") for n in range(60)]
        return await asyncio.gather(*guesses, return_exceptions=True)

    outcomes = [outcome.code for outcome in world.run(storm())]
    tried = outcomes.count("INVALID_CREDENTIALS")
    assert outcomes.count("AUTH_THROTTLED") == 60 - tried
    # Half a minute holds about ten doublings of a quarter second, and a few go at the same moment.
    assert 5 <= tried <= 10 * limits.LOGINS_AT_ONCE_MAX
    assert world.hashing_most <= limits.LOGINS_AT_ONCE_MAX


def test_many_connections_with_the_right_password_do_not_wait() -> None:
    world = World()
    world.add()

    async def crowd() -> None:
        await asyncio.gather(*(world.accounts.authenticate("ann", "right", "1.1.1.1") for _ in range(50)))

    world.run(crowd())
    assert world.slept == []


def test_a_success_ends_the_waiting() -> None:
    world = World()
    world.add()
    for _ in range(6):
        world.refusal(world.accounts.authenticate("ann", "wrong", "1.1.1.1"))
    assert world.slept
    world.login()
    world.slept.clear()
    world.login()
    assert world.slept == []


def test_a_login_stores_the_password_at_the_current_cost() -> None:
    world = World()
    world.add()
    before = world.accounts.users.require("ann")
    times = before.updated_s
    world.accounts._cost = Cost(5, 8, 1)
    world.login()
    after = world.accounts.users.require("ann")
    assert after.password_hash.startswith("scrypt$ln=5,") and after.updated_s == times
    commands = len(world.commands)
    world.login()
    assert len(world.commands) == commands


def test_a_login_that_is_overtaken_by_a_lockout_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.add()
    accounts = world.accounts
    accounts._cost = Cost(5, 8, 1)
    hash_at_new_cost = accounts._hash

    async def overtaken(password: str) -> str:
        for enabled in (False, True):
            await accounts.update_user(world.root, "ann", [], enabled)
        return await hash_at_new_cost(password)

    monkeypatch.setattr(accounts, "_hash", overtaken)
    principal = world.login()
    assert [kind for kind, _ in world.events][-2:] == ["user.update", "user.update"]
    assert world.authorizer.current(principal).anonymous, "it was checked before the account was disabled"
    assert not world.authorizer.current(world.login()).anonymous


def test_certificates_name_users_that_exist() -> None:
    world = World()
    world.add()
    assert world.accounts.identify("ann", "1.1.1.1") == world.login()
    assert world.accounts.identify("nobody", "1.1.1.1") is None and world.accounts.identify(None, "") is None
    world.run(world.accounts.update_user(world.root, "ann", [], False))
    assert world.accounts.identify("ann", "1.1.1.1") is None


# --- administration


def test_users() -> None:
    world = World()
    accounts, root = world.accounts, world.root
    info = world.run(accounts.create_user(root, "ann", "pw", ["admin", "odd", "admin"]))
    assert (info.name, info.roles, info.permissions, info.enabled) == ("ann", ("admin", "odd"), ("read", "write", "admin"), True)
    assert info.created_s == info.updated_s == 1_700_000_000 and accounts.info("ann") == info and accounts.all_users() == [info]
    assert world.refusal(accounts.create_user(root, "ann", "pw", [])) == 'user "ann" already exists'
    assert "password is empty" in world.refusal(accounts.create_user(root, "bob", "", []))
    assert "user name" in world.refusal(accounts.create_user(root, "", "pw", []))
    world.clock.advance(5)
    info = world.run(accounts.update_user(root, "ann", [], True))
    assert info.roles == ("admin", "odd") and info.updated_s == info.created_s + 5, "an empty list keeps the roles"
    assert world.run(accounts.update_user(root, "ann", ["guest"], False)).roles == ("guest",)
    own = Caller(Principal("ann", 1))
    assert world.refusal(accounts.delete_user(own, "ann")) == "cannot delete your own account"
    assert world.refusal(accounts.delete_user(root, "eve")) == 'user "eve" not found'
    world.run(accounts.delete_user(root, "ann"))
    assert accounts.all_users() == []
    with pytest.raises(BraidError, match='user "ann" not found'):
        accounts.info("ann")


def test_changing_passwords() -> None:
    world = World()
    accounts = world.accounts
    world.add()
    own = Caller(world.login(), "1.1.1.1")
    assert world.refusal(accounts.change_password(own, "ann", "new", "wrong")) == "invalid current password"
    world.run(accounts.change_password(own, "ann", "new", "right"))
    world.login(password="new")
    world.run(accounts.change_password(world.root, "ann", "newer", ""))
    world.login(password="newer")
    assert world.refusal(accounts.change_password(world.root, "eve", "x", "")) == 'user "eve" not found'
    too_long = "x" * (limits.PASSWORD_BYTES_MAX + 1)
    assert "longer than" in world.refusal(accounts.change_password(own, "ann", too_long, "newer"))
    for secret in ("right", "newer", "wrong"):
        assert secret not in str(world.events)


def test_guessing_the_old_password_is_slowed_too() -> None:
    world = World()
    world.add()
    own = Caller(world.login(), "1.1.1.1")
    for _ in range(8):
        world.refusal(world.accounts.change_password(own, "ann", "new", "wrong"))
    assert sum(world.slept) > 5


def test_quotas_of_users() -> None:
    world = World()
    world.add()
    defaults = Rates(100, 10)
    assert world.accounts.rates_of("ann", defaults) is None and world.accounts.rates_of("eve", defaults) is None
    world.run(world.accounts.set_quota(world.root, "ann", 7, None))
    assert world.accounts.rates_of("ann", defaults) == Rates(7, 10)
    world.run(world.accounts.set_quota(world.root, "ann", None, 0))
    assert world.accounts.rates_of("ann", defaults) == Rates(100, 0)
    kind, fields = world.events[-1]
    assert (kind, fields["resource"], fields["action"]) == ("user.update", "ann", "quota")
    assert fields["details"] == {"bytes_per_s": "default", "requests_per_s": "0"}
    world.add("bob")
    assert [user.name for user in world.accounts.with_quota()] == ["ann"]
    world.run(world.accounts.set_quota(world.root, "ann", None, None))
    assert world.accounts.with_quota() == []
    assert "not found" in world.refusal(world.accounts.set_quota(world.root, "eve", 1, 1))
    assert "negative" in world.refusal(world.accounts.set_quota(world.root, "ann", 1, -1))


def test_acls_and_roles() -> None:
    world = World()
    accounts = world.accounts
    text = "cannot make topic public because anonymous access is disabled in server configuration"
    assert world.refusal(accounts.set_acl(world.root, "t", True, [], [])) == text
    acl = world.run(accounts.set_acl(world.root, "t", False, ["ann"], ["r"]))
    assert accounts.acls.get("t") == acl
    assert world.run(accounts.delete_acl(world.root, "t")) is True and world.run(accounts.delete_acl(world.root, "t")) is False
    open_world = World(allow_anonymous=True)
    assert open_world.run(open_world.accounts.set_acl(open_world.root, "t", True, [], [])).public
    assert world.run(accounts.create_role(world.root, "r", ["read"])).permissions == ("read",)
    assert world.run(accounts.update_role(world.root, "r", ["write"], "d")).permissions == ("write",)
    world.run(accounts.delete_role(world.root, "r"))
    assert [kind for kind, _ in world.events] == ["acl.set", "acl.delete", "acl.delete", *["config.change"] * 3]
    assert [fields["action"] for _, fields in world.events[3:]] == ["create role", "change role", "delete role"]


def test_the_first_administrator(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.run(world.accounts.ensure_admin("admin", None))
    assert "nobody can administer this broker" in caplog.text and len(world.accounts.users) == 0
    world.run(world.accounts.ensure_admin("admin", "first"))
    world.login("admin", "first")
    world.run(world.accounts.ensure_admin("admin", "second"))
    world.login("admin", "first")
    assert world.accounts.info("admin").permissions == ("read", "write", "admin") and "first" not in caplog.text


def test_where_the_administrators_password_comes_from() -> None:
    disk = FaultyDisk(seed=1)
    disk.make_directory("/run")
    disk.write_file("/run/pw", b"from file\r\n")
    disk.write_file("/run/empty", b"\n")
    disk.write_file("/run/binary", b"\xff")
    assert admin_password({}, disk, None) is None
    assert admin_password({}, disk, "/run/pw") == "from file"
    assert admin_password({"FLYMQ_AUTH_ADMIN_PASSWORD": "theirs"}, disk, "/run/pw") == "theirs"
    both = {"FLYMQ_AUTH_ADMIN_PASSWORD": "theirs", "BRAID_AUTH_ADMIN_PASSWORD": "ours"}
    assert admin_password(both, disk, None) == "ours"
    for path in ("/run/missing", "/run/empty", "/run/binary"):
        with pytest.raises(BraidError, match="auth_admin_password_file"):
            admin_password({}, disk, path)
