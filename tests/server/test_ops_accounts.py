"""Roles of one's own, quotas, and accounts that end, over real sockets: who may, what changes at once, and what survives."""

from __future__ import annotations

import gzip
import itertools
import time
from collections.abc import Iterator
from typing import get_args

import pytest
from flymq_peer import Peer, batch, new_topic
from running_broker import RunningBroker, StartBroker

from braidmq.wire import flymq
from braidmq.wire.flymq import Op

PASSWORD = "correct horse"
_names = itertools.count(1)

VERBS: list[flymq.RoleRequest] = [
    flymq.RoleCreate("smuggled", ("admin",)),
    flymq.RoleUpdate("smuggled", ("admin",), ""),
    flymq.RoleDelete("smuggled"),
    flymq.QuotaSet("admin", 1, 1),
    flymq.QuotaList(),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that wants a login, whose topics are public."""
    path = tmp_path_factory.mktemp("accounts") / "data"
    broker = RunningBroker(path, ("--durability", "os", "--auth-enabled"), {"BRAID_AUTH_ADMIN_PASSWORD": PASSWORD})
    broker.start()
    try:
        yield broker
        assert "bug in an operation" not in broker.log, broker.log
        broker.stop()
    finally:
        if broker.running:
            broker.kill()


@pytest.fixture(scope="module")
def admin(broker: RunningBroker) -> Iterator[Peer]:
    """One connection for all: a login takes a tenth of a second."""
    with logged_in(broker, "admin") as peer:
        yield peer


def logged_in(broker: RunningBroker, name: str) -> Peer:
    peer = Peer(broker.address)
    assert peer.ask(flymq.Auth(name, PASSWORD)).success
    return peer


def new_user(admin: Peer, *roles: str) -> str:
    name = f"user-{next(_names)}"
    assert isinstance(admin.ask(flymq.UserCreate(name, PASSWORD, roles=roles)), flymq.UserInfo)
    return name


def private_topic(admin: Peer) -> str:
    topic = admin.create(new_topic("private"))
    assert admin.ask(flymq.AclSet(topic, False)).success
    return topic


def code(answer: object) -> str:
    return answer.text.partition(":")[0] if isinstance(answer, flymq.ErrorReply) else ""


# --- roles


def test_every_verb_is_for_administrators(broker: RunningBroker, admin: Peer) -> None:
    with Peer(broker.address) as stranger:
        assert [code(answer) for answer in stranger.ask_all(*VERBS)] == ["AUTHENTICATION_REQUIRED"] * len(VERBS)
    with logged_in(broker, new_user(admin, "producer", "consumer", "guest")) as peer:
        assert [code(answer) for answer in peer.ask_all(*VERBS)] == ["UNAUTHORIZED"] * len(VERBS)
    assert {type(verb) for verb in VERBS} == set(get_args(flymq.RoleRequest))
    assert "smuggled" not in [role.name for role in admin.ask(flymq.RoleList()).roles]


def test_a_role_from_its_first_day_to_its_last(broker: RunningBroker, admin: Peer) -> None:
    topic = private_topic(admin)
    assert admin.ask(flymq.RoleCreate("writers", ("write",), "they write")) == flymq.Ok(True, "writers")
    assert code(admin.ask(flymq.RoleCreate("writers"))) == "ROLE_EXISTS"
    assert admin.ask(flymq.RoleList()).roles[-1] == flymq.Role("writers", ("write",), "they write")
    name = new_user(admin, "writers")
    with logged_in(broker, name) as peer:
        # The parser takes those behind the first by itself, as long as nothing changes.
        peer.produce(topic, b"1", b"2", b"3")
        assert code(peer.ask(flymq.Fetch(topic, 0, 0, 9))) == "UNAUTHORIZED"
        assert admin.ask(flymq.RoleUpdate("writers", ("read",), "they read")) == flymq.Ok(True, "writers")
        assert {code(answer) for answer in peer.ask_all(*[flymq.Produce(topic, b"", b"late", 0)] * 3)} == {"UNAUTHORIZED"}
        assert len(peer.fetch_all(topic)) == 3
        assert "ROLE_IN_USE" in admin.ask(flymq.RoleDelete("writers")).text
        assert len(peer.fetch_all(topic)) == 3, "it was not deleted"
        admin.ask(flymq.UserUpdate(name, roles=("guest",)))
        assert admin.ask(flymq.RoleDelete("writers")) == flymq.Ok(True, "writers")
        assert code(peer.ask(flymq.Fetch(topic, 0, 0, 9))) == "UNAUTHORIZED"
    assert code(admin.ask(flymq.RoleDelete("writers"))) == "ROLE_NOT_FOUND"


def test_a_role_that_an_acl_names_stays(admin: Peer) -> None:
    topic = admin.create(new_topic())
    admin.ask(flymq.RoleCreate("friends"))
    admin.ask(flymq.AclSet(topic, False, (), ("friends",)))
    assert f'ROLE_IN_USE: role "friends" is in use by the ACL of "{topic}"' == admin.ask(flymq.RoleDelete("friends")).text
    admin.ask(flymq.AclDelete(topic))
    assert admin.ask(flymq.RoleDelete("friends")).success


@pytest.mark.parametrize("name", ["admin", "producer", "consumer", "guest"])
def test_built_in_roles_stay_as_they_are(admin: Peer, name: str) -> None:
    before = admin.ask(flymq.RoleList())
    assert code(admin.ask(flymq.RoleCreate(name, ("read",)))) == "ROLE_EXISTS"
    assert code(admin.ask(flymq.RoleUpdate(name, (), ""))) == "ROLE_BUILT_IN"
    assert code(admin.ask(flymq.RoleDelete(name))) == "ROLE_BUILT_IN"
    assert admin.ask(flymq.RoleList()) == before


def test_a_verb_nobody_knows_is_malformed_and_costs_no_connection(admin: Peer) -> None:
    for payload in (b"", b"\0", b"\x06\0\0", b"\x04\0\x01u" + b"\xff" * 7 + b"\xfe" + b"\0" * 8):
        admin.send(flymq.encode_frame(Op.ACCOUNT_ADMIN, payload))
        assert code(admin.decode(Op.ACCOUNT_ADMIN, admin.receive_frame())) == "MALFORMED_PAYLOAD"
    assert admin.ask(flymq.WhoAmI()).authenticated


def quotas_of(admin: Peer, user: str = "") -> flymq.Quotas:
    admin.send(admin.encode(flymq.QuotaList(user)))
    frame = admin.receive_frame()
    answer = flymq.decode_response(Op.ACCOUNT_ADMIN, frame[2], frame[8:], admin.dialect, flymq.Quotas)
    assert isinstance(answer, flymq.Quotas), answer
    return answer


# --- quotas


def seconds_for(peer: Peer, requests: int) -> float:
    began = time.monotonic()
    peer.ask_all(*[flymq.ListTopics()] * requests)
    return time.monotonic() - began


def test_a_quota_holds_at_once_on_an_open_connection(broker: RunningBroker, admin: Peer) -> None:
    name = new_user(admin)
    with logged_in(broker, name) as peer:
        fast = max(seconds_for(peer, 60) for _ in range(3))
        assert admin.ask(flymq.QuotaSet(name, None, 40)) == flymq.Ok(True, name)
        assert quotas_of(admin, name) == flymq.Quotas(0, 0, (flymq.Quota(name, None, 40),))
        assert quotas_of(admin).quotas == (flymq.Quota(name, None, 40),), "nobody else has one"
        slow = seconds_for(peer, 60)
        assert slow > 5 * fast, (slow, fast)
        admin.ask(flymq.QuotaSet(name, None, None))
        assert seconds_for(peer, 60) < slow / 3
    assert quotas_of(admin).quotas == ()


def test_bytes_have_a_quota_of_their_own(broker: RunningBroker, admin: Peer) -> None:
    topic, name = admin.create(new_topic()), new_user(admin)
    value = b"x" * 1000
    with logged_in(broker, name) as peer:
        admin.ask(flymq.QuotaSet(name, 150_000, 0))
        began = time.monotonic()
        peer.produce(topic, *[value] * 200)
        peer.ask(flymq.ListTopics())
        assert time.monotonic() - began > 0.3, "200 kB, of which a second's worth is free"
        assert len(peer.ask(flymq.Fetch(topic, 0, 0, 1000)).items) == 200, "nothing is lost"


def test_whoever_waits_profits_from_a_higher_quota(broker: RunningBroker, admin: Peer) -> None:
    topic, name = admin.create(new_topic()), new_user(admin)
    with logged_in(broker, name) as peer:
        # The parser takes what comes after the first by itself, all of it at once.
        peer.produce(topic, b"first")
        admin.ask(flymq.QuotaSet(name, 1000, None))
        began = time.monotonic()
        peer.produce(topic, *[b"x" * 1000] * 30)
        admin.ask(flymq.QuotaSet(name, 0, None))
        peer.ask(flymq.ListTopics())
        assert time.monotonic() - began < 10, "30 seconds were owed"


def test_quotas_and_roles_refuse_nonsense(admin: Peer) -> None:
    assert code(admin.ask(flymq.QuotaSet("nobody", 1, 1))) == "USER_NOT_FOUND"
    assert code(admin.ask(flymq.QuotaList("nobody"))) == "USER_NOT_FOUND"
    assert "unknown permission 'fly'" in admin.ask(flymq.RoleCreate("pilots", ("fly",))).text
    assert code(admin.ask(flymq.RoleCreate("", ("read",)))) == "INVALID_ARGUMENT"


def test_roles_and_quotas_survive(start_broker: StartBroker) -> None:
    broker = start_broker(
        "--auth-enabled", "--no-auth-default-public", "--quota-requests-per-s", "100000",
        env={"BRAID_AUTH_ADMIN_PASSWORD": PASSWORD},
    )  # fmt: skip
    with logged_in(broker, "admin") as admin:
        topic = admin.create("t")
        for name in ("kept", "gone"):
            assert admin.ask(flymq.RoleCreate(name, ("read",), "d")).success
        assert admin.ask(flymq.RoleUpdate("kept", ("write",), "changed")).success
        assert admin.ask(flymq.RoleDelete("gone")).success
        name = new_user(admin, "kept")
        assert admin.ask(flymq.QuotaSet(name, None, 20)).success
        quotas, roles = quotas_of(admin), admin.ask(flymq.RoleList())
        assert quotas.default_requests_per_s == 100_000 and roles.roles[-1] == flymq.Role("kept", ("write",), "changed")
    for end in (broker.kill, broker.stop):
        # After the kill all of it comes from the journal, after the stop from a snapshot.
        end()
        broker.start()
        with logged_in(broker, "admin") as admin:
            assert (quotas_of(admin), admin.ask(flymq.RoleList())) == (quotas, roles)
            usual = seconds_for(admin, 30)
            assert admin.ask(flymq.Auth(name, PASSWORD)).success
            admin.produce(topic, b"1")
            assert code(admin.ask(flymq.Fetch(topic, 0, 0, 1))) == "UNAUTHORIZED", "it has the role as it was changed"
            assert seconds_for(admin, 25) > 3 * usual


# --- accounts that end


def test_a_disabled_user_loses_everything_at_once(broker: RunningBroker, admin: Peer) -> None:
    topic, name = admin.create(new_topic("public")), new_user(admin, "admin")
    produce = flymq.Produce(topic, b"", b"late", 0)
    with logged_in(broker, name) as peer:
        peer.produce(topic, b"1", b"2")
        identity = peer.ask(flymq.TxnBegin()).id
        assert admin.ask(flymq.UserUpdate(name, enabled=False)).success
        everything: list[flymq.Request] = [
            produce, produce, flymq.ProduceBatch(topic, 0, batch(b"late")), flymq.Fetch(topic, 0, 0, 1), flymq.Metadata(topic),
            flymq.ListTopics(), flymq.RoleList(), flymq.UserList(), flymq.TxnBegin(), flymq.TxnProduce(identity, topic, b"late"),
            flymq.TxnCommit(identity), flymq.TxnRollback(identity), flymq.PasswordChange(name, "new", PASSWORD),
            flymq.Commit(topic, "g", 0, 1), flymq.CancelDelayed("delayed-1"),
        ]  # fmt: skip
        for switched in (False, True):
            # Enabled again, the account is there for those who log in; this connection did so before.
            admin.ask(flymq.UserUpdate(name, enabled=switched))
            answers = peer.ask_all(*everything)
            assert {code(answer) for answer in answers} == {"AUTHENTICATION_REQUIRED"}, answers
            frame = flymq.encode_request(produce, peer.dialect)
            for packed in (gzip.compress(frame[8:]), b"never unpacked"):
                peer.send(flymq.encode_frame(Op.PRODUCE, packed, flags=0x03))
                assert code(peer.decode(Op.PRODUCE, peer.receive_frame())) == "AUTHENTICATION_REQUIRED"
            assert peer.ask(flymq.WhoAmI()) == flymq.Identity(False)
        assert peer.ask(flymq.Auth(name, PASSWORD)).success
        peer.produce(topic, b"3")
        assert [item.value for item in peer.fetch_all(topic)] == [b"1", b"2", b"3"]
        assert code(peer.ask(flymq.TxnCommit(identity))) == "UNAUTHORIZED", "it was begun before"


def test_a_deleted_user_is_not_the_next_one_of_its_name(broker: RunningBroker, admin: Peer) -> None:
    topic, name = admin.create(new_topic("public")), new_user(admin)
    with logged_in(broker, name) as peer:
        peer.produce(topic, b"1", b"2")
        assert admin.ask(flymq.UserDelete(name)).success
        assert code(peer.ask(flymq.Produce(topic, b"", b"late", 0))) == "AUTHENTICATION_REQUIRED"
        assert isinstance(admin.ask(flymq.UserCreate(name, PASSWORD, roles=("admin",))), flymq.UserInfo)
        assert {code(answer) for answer in peer.ask_all(flymq.Fetch(topic, 0, 0, 1), flymq.UserList())} == {
            "AUTHENTICATION_REQUIRED"
        }
        assert not peer.ask(flymq.WhoAmI()).authenticated


def test_who_waits_for_records_does_not_get_them_after_the_end(broker: RunningBroker, admin: Peer) -> None:
    topic, name = admin.create(new_topic("public")), new_user(admin)
    with logged_in(broker, name) as peer, logged_in(broker, new_user(admin)) as other:
        for each in (peer, other):
            each.send(each.encode(flymq.FetchBatches(topic, 0, 0, 1000, 1, 20_000)))
        # What was sent before has been read when this is answered, so both wait by now.
        admin.ask(flymq.WhoAmI())
        assert admin.ask(flymq.UserUpdate(name, enabled=False)).success
        admin.produce(topic, b"secret")
        assert code(peer.decode(Op.FETCH_BATCHES, peer.receive_frame())) == "AUTHENTICATION_REQUIRED"
        answer = other.decode(Op.FETCH_BATCHES, other.receive_frame())
        assert isinstance(answer, flymq.FetchedBatches) and b"secret" in answer.batches, "nobody else is disturbed"
