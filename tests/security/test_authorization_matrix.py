"""Every opcode by everybody on every kind of topic, against the decision table written out a second time.

The expectations below restate the rules as a truth table over plain facts, so a change to the code that is not a change to the
rules fails here; a new opcode without a rule fails too.
"""

from __future__ import annotations

import itertools

import pytest

from braidmq.broker import names
from braidmq.security import account_names
from braidmq.security.acls import AclTable
from braidmq.security.authorizer import ANONYMOUS, Authorizer, Principal
from braidmq.security.roles import Permission, RoleTable
from braidmq.security.rules import AUDIT_TEXTS, OPCODE_PERMISSIONS, Rule
from braidmq.security.users import UserTable
from braidmq.wire.flymq.opcodes import Op

ROLE_GRANTS: dict[str, set[str]] = {
    "admin": {"read", "write", "admin"},
    "producer": {"write"},
    "consumer": {"read"},
    "guest": set(),
    "auditor": {"admin"},
    "unknown": set(),
}
PEOPLE = ["anonymous", *ROLE_GRANTS, "disabled", "enabled-again", "deleted", "replaced", "named", "in-role"]
TOPICS = ["open", "public", "private", "listed", "listed/x", "listed.dlq", "private.dlq.dlq", "__metadata", ""]


class World:
    """A broker's rights with one of everybody."""

    def __init__(self, *, enabled: bool = True, allow_anonymous: bool = False, default_public: bool = True) -> None:
        self.users, self.roles, self.acls = UserTable(), RoleTable(), AclTable()
        self.roles.apply(self.roles.create("auditor", ["admin"]))
        self.people: dict[str, Principal] = {"anonymous": ANONYMOUS}
        for role in ROLE_GRANTS:
            self.add(role, [role])
        self.add("disabled", ["admin"])
        self.users.apply(self.users.update("disabled", None, False, 0))
        self.add("enabled-again", ["admin"])
        for switched in (False, True):
            self.users.apply(self.users.update("enabled-again", None, switched, 0))
        self.add("deleted", ["admin"])
        self.users.apply(self.users.delete("deleted"))
        self.add("replaced", ["guest"])
        self.users.apply(self.users.delete("replaced"))
        self.users.apply(self.users.create("replaced", "h", ["admin"], 0))
        self.add("named", [])
        self.add("in-role", ["friends"])
        self.acls.apply(self.acls.set("public", True, [], []))
        self.acls.apply(self.acls.set("private", False, [], []))
        self.acls.apply(self.acls.set("listed*", False, ["named", "disabled"], ["friends"]))
        self.authorizer = Authorizer(
            self.users, self.roles, self.acls, enabled=enabled, allow_anonymous=allow_anonymous, default_public=default_public
        )

    def add(self, name: str, roles: list[str]) -> None:
        user = self.users.apply(self.users.create(name, "h", roles, 0))
        self.people[name] = Principal(name, user.id)


SWITCHES = list(itertools.product([False, True], repeat=3))
WORLDS = {switches: World(enabled=switches[0], allow_anonymous=switches[1], default_public=switches[2]) for switches in SWITCHES}


NOBODY = {"anonymous", "disabled", "enabled-again", "deleted", "replaced"}
"""Those who did not log in, or whose login is over."""


def dead_or(person: str, otherwise: str) -> str:
    return "AUTHENTICATION_REQUIRED" if person in NOBODY else otherwise


def expect_topic(person: str, permission: str, topic: str, allow_anonymous: bool, default_public: bool) -> str:
    if topic.startswith("__"):
        return "INVALID_TOPIC"
    public = topic == "public" or (default_public and topic in ("open", ""))
    if public:
        return "AUTHENTICATION_REQUIRED" if person in NOBODY and not allow_anonymous else ""
    listed = topic.startswith("listed") and person in ("named", "in-role")
    granted = permission in ROLE_GRANTS.get(person, set())
    return dead_or(person, "" if granted or listed else "UNAUTHORIZED")


def expect(rule: Rule, person: str, topic: str, owns: bool, allow_anonymous: bool, default_public: bool) -> str:
    administers = dead_or(person, "" if "admin" in ROLE_GRANTS.get(person, set()) else "UNAUTHORIZED")
    known = "" if allow_anonymous else dead_or(person, "")
    # Whoever is nobody any more is not the one who began a transaction.
    owns_it = owns and (person == "anonymous" or person not in NOBODY)
    match rule:
        case Rule.NONE:
            return ""
        case Rule.ANSWER:
            return "UNKNOWN_OPCODE"
        case Rule.ADMIN:
            return "INVALID_TOPIC" if topic.startswith("__") else administers
        case Rule.AUTHENTICATED:
            return known
        case Rule.OWNER:
            return known or ("" if owns_it else "UNAUTHORIZED")
        case Rule.OWNER_OR_ADMIN:
            return known or ("" if owns_it else administers)
        case Rule.READ_TOPIC:
            return expect_topic(person, "read", topic, allow_anonymous, default_public)
        case Rule.WRITE_TOPIC:
            return expect_topic(person, "write", topic, allow_anonymous, default_public)
        case Rule.OWNER_WRITE_TOPIC | Rule.OWNER_READ_TOPIC:
            permission = "write" if rule is Rule.OWNER_WRITE_TOPIC else "read"
            own = known or ("" if owns_it else "UNAUTHORIZED")
            return own or expect_topic(person, permission, topic, allow_anonymous, default_public)
        case Rule.SELF_OR_ADMIN:
            return dead_or(person, "") if owns and person != "anonymous" else administers


def test_every_opcode_has_a_rule() -> None:
    assert set(OPCODE_PERMISSIONS) == set(Op)


def test_every_rule_is_used() -> None:
    assert set(OPCODE_PERMISSIONS.values()) == set(Rule)


@pytest.mark.parametrize("op", list(Op), ids=lambda op: op.name)
def test_the_matrix(op: Op) -> None:
    rule = OPCODE_PERMISSIONS[op]
    for (enabled, allow_anonymous, default_public), world in WORLDS.items():
        for person, topic, owns in itertools.product(PEOPLE, TOPICS, (True, False)):
            principal = world.people[person]
            owner = principal if owns else Principal("somebody else", 999)
            refused = world.authorizer.decide_request(
                principal, op, topic, owner=owner, subject=principal.name if owns else "somebody else"
            )
            if enabled:
                expected = expect(rule, person, topic, owns, allow_anonymous, default_public)
                if expected == "UNAUTHORIZED" and op in AUDIT_TEXTS:
                    expected = "AUDIT_ADMIN_REQUIRED"
            else:
                internal = topic.startswith("__") and ("TOPIC" in rule.name or rule is Rule.ADMIN)
                expected = "UNKNOWN_OPCODE" if rule is Rule.ANSWER else "INVALID_TOPIC" if internal else ""
            got = "" if refused is None else refused.code
            assert got == expected, (op.name, rule, person, topic, owns, enabled, allow_anonymous, default_public)


# --- what the matrix rests on


@pytest.mark.parametrize(
    ("op", "rule"),
    [(Op.PRODUCE, "WRITE_TOPIC"), (Op.PRODUCE_BATCH, "WRITE_TOPIC"), (Op.PRODUCE_WITH_TTL, "WRITE_TOPIC"),
     (Op.PRODUCE_DELAYED, "WRITE_TOPIC"), (Op.PRODUCE_WITH_SCHEMA, "WRITE_TOPIC"), (Op.TXN_PRODUCE, "OWNER_WRITE_TOPIC"),
     (Op.COMMIT, "READ_TOPIC"), (Op.FETCH, "READ_TOPIC"), (Op.CREATE_TOPIC, "ADMIN"), (Op.DELETE_TOPIC, "ADMIN"),
     (Op.REPLAY_DLQ, "ADMIN"), (Op.RESET_OFFSET, "ADMIN"), (Op.USER_CREATE, "ADMIN"),
     (Op.LIST_TOPICS, "AUTHENTICATED"), (Op.ROLE_LIST, "AUTHENTICATED"), (Op.AUTH, "NONE"), (Op.WHOAMI, "NONE")],
)  # fmt: skip
def test_rules_that_are_published(op: Op, rule: str) -> None:
    assert OPCODE_PERMISSIONS[op] is Rule[rule]


def test_only_logging_in_is_open_to_everybody() -> None:
    assert {op for op, rule in OPCODE_PERMISSIONS.items() if rule is Rule.NONE} == {Op.AUTH, Op.WHOAMI}


def test_an_opcode_nobody_knows_is_refused() -> None:
    refused = WORLDS[True, True, True].authorizer.decide_request(ANONYMOUS, 0xEE)
    assert refused is not None and refused.code == "UNAUTHORIZED"


def test_texts_that_clients_look_for() -> None:
    world = WORLDS[True, False, False]
    decide = world.authorizer.decide
    texts = [decide(world.people[person], Permission.READ, "private") for person in ("anonymous", "guest", "disabled")]
    assert [refused.text for refused in texts if refused is not None] == [
        "authentication required", "unauthorized", "authentication required",
    ]  # fmt: skip
    refused = world.authorizer.decide_request(world.people["guest"], Op.AUDIT_EXPORT)
    assert refused is not None and refused.text == "admin access required for audit export"


def test_rights_follow_changes_at_once() -> None:
    world = World(default_public=False)
    decide, guest = world.authorizer.decide, world.people["guest"]
    seen = [world.authorizer.version]

    def allowed() -> bool:
        seen.append(world.authorizer.version)
        return decide(guest, Permission.WRITE, "new/topic") is None

    assert not allowed()
    world.acls.apply(world.acls.set("new/*", False, ["guest"], []))
    assert allowed()
    world.acls.apply(world.acls.delete("new/*"))
    assert not allowed()
    world.roles.apply(world.roles.create("writer", ["write"]))
    world.users.apply(world.users.update("guest", ["writer"], None, 0))
    assert allowed()
    world.roles.apply(world.roles.update("writer", ["read"], ""))
    assert not allowed()
    world.roles.apply(world.roles.update("writer", ["write", "read"], ""))
    assert allowed()
    world.roles.apply(world.roles.delete("writer"))
    assert not allowed()
    assert seen[1:] == sorted(set(seen)), "each change made a new version"


def test_a_name_used_again_is_another_user() -> None:
    world = World(default_public=False)
    assert world.authorizer.decide(world.people["replaced"], Permission.ADMIN) is not None
    current = world.users.require("replaced")
    assert world.authorizer.decide(Principal("replaced", current.id), Permission.ADMIN) is None


def test_a_login_is_over_when_its_account_is_disabled_whatever_comes_after() -> None:
    world = World()
    again = world.users.require("enabled-again")
    assert again.enabled and world.authorizer.current(world.people["enabled-again"]) is ANONYMOUS
    login = Principal(again.name, again.id)
    assert world.authorizer.current(login) is login
    world.users.apply(world.users.update(again.name, ["guest"], True, 0))
    assert world.authorizer.current(login) is login, "only being disabled ends it"


def test_lists_show_what_may_be_read() -> None:
    world = World(default_public=False)
    shown = world.authorizer.visible(world.people["named"], ["open", "public", "private", "listed/a", "__metadata"])
    assert shown == ["public", "listed/a"]


def test_internal_means_the_same_everywhere() -> None:
    assert account_names.INTERNAL_PREFIX == names.INTERNAL_PREFIX
