"""Who a BlipMQ client is and what it may do: keys, passwords, certificates, and the same verdict as on every other port."""

from __future__ import annotations

import hashlib
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from blipmq_peer import BlipMQBroker, BlipMQPeer, delivered, new_name, payloads
from flymq_peer import until
from test_server_tls import Authority

from braidmq.base import limits
from braidmq.base.config import Listen
from braidmq.base.config_keys import parse_api_key
from braidmq.security.accounts import Caller
from braidmq.security.audit_events import AuditQuery
from braidmq.security.authorizer import Principal
from braidmq.server.blipmq_service import open_service
from braidmq.wire.blipmq import Ack, ErrorCode, ErrorMessage, Ping, Pong, Publish, Subscribe, Unsubscribe, binary1, legacy

KEYS = (parse_api_key("ann=key-of-ann"), parse_api_key("bob=sha256:" + hashlib.sha256(b"bob").hexdigest()))
FAILED = ErrorCode.AUTHENTICATION_FAILED
DENIED = ErrorCode.AUTHORIZATION_FAILED


@pytest.fixture(scope="module")
def keyed() -> Iterator[BlipMQBroker]:
    """Keys are asked for; the broker has no accounts."""
    with BlipMQBroker(blipmq_api_keys=KEYS, blipmq_auth_timeout_s=30, blipmq_drain_timeout_s=0.1) as running:
        yield running


@pytest.fixture(scope="module")
def guarded() -> Iterator[BlipMQBroker]:
    """The broker asks for logins: `ann` may do everything, `bob` only what an ACL says."""
    settings = {"auth_enabled": True, "auth_default_public": False, "audit_enabled": True, "blipmq_drain_timeout_s": 0.1}
    with BlipMQBroker(blipmq_api_keys=KEYS, **settings) as running:

        async def accounts() -> None:
            made = running.server.broker.security.accounts
            caller = Caller(Principal("system"))
            await made.create_user(caller, "ann", "the password of ann", ["admin"])
            await made.create_user(caller, "bob", "the password of bob", [])
            await made.create_user(caller, "carol", "the password of carol", [])
            await made.set_acl(caller, "bobs", False, ["bob"], [])

        running.run(accounts)
        yield running


@pytest.mark.parametrize(
    ("request_", "answers"),
    [
        (Ping(5), [Ack("auth"), Pong(5)]),
        (Subscribe("t/login"), [Ack("t/login")]),
        (Unsubscribe("t/login"), [Ack("t/login", 2)]),
        (Publish("t/login", b"x", 1, 0, "m"), [Ack("m")]),
        (Publish("t/login", b"x"), [Ack("auth")]),
        (Ack("unknown"), [Ack("auth")]),
        (Subscribe("t/login", 1, "durable"), [Ack("t/login")]),
    ],
)
def test_a_key_comes_with_any_frame_and_the_frame_is_done(keyed: BlipMQBroker, request_: object, answers: list[object]) -> None:
    with keyed.peer() as peer:
        peer.send(request_, 9, api_key="key-of-ann")  # type: ignore[arg-type]
        got = peer.receive_many(len(answers))
        assert [each.message for each in got] == answers and {each.sequence for each in got} == {9}
        # Once it is open, nothing asks for keys and nothing looks at them.
        assert peer.ask(Ping(1), api_key="wrong").message == Pong(1)


def test_a_key_may_be_a_message_for_clients_without_metadata(keyed: BlipMQBroker) -> None:
    with keyed.peer() as peer:
        assert peer.ask(Publish("$SYS/auth", b"bob", 1, 0, "login")).message == Ack("login")
        assert peer.ask(Ping(1)).message == Pong(1)


def test_a_wrong_key_ends_the_connection(keyed: BlipMQBroker) -> None:
    for request in (Ping(1), Publish("$SYS/auth", b"wrong", 1, 0, "login")):
        with keyed.peer() as peer:
            peer.send(request, 3, **({"api_key": "wrong"} if isinstance(request, Ping) else {}))
            (answer,) = peer.closed()
            assert isinstance(answer.message, ErrorMessage) and answer.message.error_code == FAILED and answer.sequence == 3
            assert "wrong" not in (answer.message.details or "")


def test_a_stranger_is_refused_three_times_and_then_closed(keyed: BlipMQBroker) -> None:
    with keyed.peer() as peer:
        topic = new_name()
        for _ in range(limits.BLIPMQ_REFUSALS_MAX - 1):
            assert peer.refused(Publish(topic, b"x", 1, 0, "m")) == FAILED
        peer.send(Subscribe(topic), 8)
        (answer,) = peer.closed()
        assert isinstance(answer.message, ErrorMessage) and answer.message.error_code == FAILED and answer.sequence == 8
    assert topic not in keyed.run(lambda: _names(keyed)), "nothing a stranger says is done"


async def _names(broker: BlipMQBroker) -> list[str]:
    return broker.server.broker.topic_names()


def test_a_stranger_that_says_nothing_is_closed_in_time() -> None:
    with BlipMQBroker(blipmq_api_keys=KEYS, blipmq_auth_timeout_s=0.3) as broker:
        with broker.peer() as silent, broker.peer() as half:
            began = time.monotonic()
            half.send(Ping(1), 1)
            assert isinstance(half.receive().message, ErrorMessage)
            assert silent.closed() == [] == half.closed()
            assert 0.2 < time.monotonic() - began < 5
        with broker.peer(key="bob") as known:
            time.sleep(0.5)
            assert known.ask(Ping(1)).message == Pong(1)


def test_the_older_framings_have_keys_too_or_are_not_served(keyed: BlipMQBroker) -> None:
    with BlipMQPeer(keyed.blipmq) as peer:
        reader = binary1.Reader()
        frames: list[binary1.Frame] = []

        def ask(message: binary1.Message) -> binary1.Message:
            peer.send_bytes(binary1.encode(binary1.Frame(message, 4)))
            while not frames:
                frames.extend(binary1.decode(body) for body in reader.receive(peer.socket.recv(65536)))
            return frames.pop(0).message

        assert ask(binary1.Hello()) == binary1.Ack()
        assert ask(binary1.Subscribe("t")) == binary1.Nack(401, "unauthenticated")
        assert ask(binary1.Auth(b"wrong")) == binary1.Nack(401, "invalid API key")
        assert ask(binary1.Auth(b"key-of-ann")) == binary1.Ack()
        assert ask(binary1.Auth(b"key-of-ann")) == binary1.Nack(400, "already authenticated")
        assert isinstance(ask(binary1.Subscribe("t")), binary1.Ack)
    with BlipMQBroker(blipmq_api_keys=KEYS, blipmq_framings=("legacy",)) as broker, BlipMQPeer(broker.blipmq) as peer:
        peer.send_bytes(legacy.encode_command(legacy.Command(legacy.Action.SUB, "t")))
        assert peer.socket.recv(100) == b""


# --- with accounts


@pytest.mark.parametrize("key", ["key-of-ann", "ann:the password of ann"])
def test_a_key_or_a_password_is_a_user_of_the_broker(guarded: BlipMQBroker, key: str) -> None:
    topic = new_name()
    with guarded.peer(key=key) as peer:
        peer.subscribe(topic, 1)
        peer.send(Publish(topic, b"x", 1, 0, "m"), 5)
        assert {type(each.message).__name__ for each in peer.receive_many(2)} == {"Ack", "Message"}


@pytest.mark.parametrize("key", ["ann:wrong", "nobody:password", "carol", ""])
def test_what_is_neither_is_refused(guarded: BlipMQBroker, key: str) -> None:
    with guarded.peer() as peer:
        peer.send(Ping(1), 3, api_key=key)
        (answer,) = peer.closed()
        assert isinstance(answer.message, ErrorMessage) and answer.message.error_code == FAILED


def test_rights_are_those_of_every_other_port(guarded: BlipMQBroker) -> None:
    private = new_name("private")
    with guarded.peer(key="key-of-ann") as ann, guarded.peer(key="bob") as bob:
        ann.publish(private, b"x", "m")
        ann.publish("bobs", b"x", "m")
        assert bob.refused(Publish(private, b"x", 1, 0, "m")) == DENIED
        assert bob.refused(Publish(private, b"x")) == DENIED
        assert bob.refused(Subscribe(private)) == DENIED
        assert bob.refused(Subscribe("not there")) == DENIED
        bob.publish("bobs", b"mine", "m2")
        # A pattern brings what may be read, and nothing else.
        bob.subscribe("#", 1)
        ann.publish(private, b"secret", "m3")
        ann.publish("bobs", b"for bob", "m4")
        assert payloads([bob.receive()]) == [b"for bob"]
        bob.ack("m4")
        bob.nothing()
        events = guarded.run(lambda: _denials(guarded))
        assert ("bob", private, "publish") in events and ("bob", private, "subscribe") in events


async def _denials(broker: BlipMQBroker) -> set[tuple[str, str, str]]:
    audit = broker.server.broker.security.audit
    assert audit is not None
    found = await audit.query(AuditQuery(types=frozenset({"access.denied"})))
    return {(event.user, event.resource, event.action) for event in found.events}


def test_a_right_that_ends_ends_the_deliveries_and_one_that_comes_begins_them(guarded: BlipMQBroker) -> None:
    topic = new_name("rights")

    async def acl(users: list[str]) -> None:
        await guarded.server.broker.security.accounts.set_acl(Caller(Principal("system")), topic, False, users, [])

    with guarded.peer(key="key-of-ann") as ann, guarded.peer(key="bob") as bob:
        guarded.run(lambda: acl(["bob"]))
        bob.subscribe(topic, 0)
        ann.publish(topic, b"allowed", "m1")
        assert payloads([bob.receive()]) == [b"allowed"]
        guarded.run(lambda: acl([]))
        ann.publish(topic, b"not allowed", "m2")
        bob.nothing()
        guarded.run(lambda: acl(["bob"]))
        bob.subscribe("#", 0)
        ann.publish(topic, b"allowed again", "m3")
        assert payloads([bob.receive()]) == [b"allowed again"]


def test_what_came_while_nobody_was_connected_is_not_delivered_to_who_may_not_read_it(guarded: BlipMQBroker) -> None:
    private, name = new_name("private"), new_name("client")
    with guarded.peer(key="key-of-ann") as ann:
        with guarded.peer(key="bob") as bob:
            bob.subscribe("#", 1, name)
            bob.subscribe("bobs", 1, name)
        service = open_service(guarded.server.broker)
        assert service is not None
        (mine,) = [subscriber for subscriber in service.subscribers if subscriber.name == name]
        until(lambda: not mine.sessions, "bob is still connected")
        ann.publish(private, b"secret", "m1")
        ann.publish("bobs", b"for bob", "m2")
        with guarded.peer(key="bob") as bob:
            bob.subscribe("bobs", 1, name)
            assert payloads([bob.receive()]) == [b"for bob"]
            bob.nothing()
            bob.ack("m2")
            bob.unsubscribe("#", name)
            bob.unsubscribe("bobs", name)


def test_a_client_id_belongs_to_who_created_it(guarded: BlipMQBroker) -> None:
    name = new_name("client")
    with guarded.peer(key="bob") as bob, guarded.peer(key="key-of-ann") as ann:
        bob.subscribe("bobs", 1, name)
        assert ann.refused(Subscribe("bobs", 1, name)) == DENIED
        assert ann.refused(Subscribe("bobs", 0, name)) == DENIED
        assert ann.refused(Unsubscribe("bobs", name)) == DENIED
        assert bob.unsubscribe("bobs", name) == 0
        ann.subscribe("bobs", 1, name)
        ann.unsubscribe("bobs", name)


def test_members_of_a_shared_group_share_what_all_of_them_may_read(guarded: BlipMQBroker) -> None:
    private = new_name("shared")
    with guarded.peer(key="key-of-ann") as ann, guarded.peer(key="bob") as bob, guarded.peer(key="key-of-ann") as publisher:
        publisher.publish(private, b"x", "m0")
        ann.subscribe("$share/g/#", 0)
        publisher.publish(private, b"before", "m1")
        assert payloads([ann.receive()]) == [b"before"]
        bob.subscribe("$share/g/#", 0)
        publisher.publish(private, b"secret", "m2")
        publisher.publish("bobs", b"public", "m3")
        got = [peer.receive() for peer in (ann, bob) if _readable(peer)]
        assert payloads(got) == [b"public"]
        ann.nothing(0.05)
        bob.nothing(0.05)


def _readable(peer: BlipMQPeer) -> bool:
    return bool(select.select([peer.socket], [], [], 0.2)[0])


def test_anonymous_clients_may_do_what_is_public_where_that_is_allowed() -> None:
    with BlipMQBroker(auth_enabled=True, auth_allow_anonymous=True) as broker:

        async def accounts() -> None:
            made = broker.server.broker.security.accounts
            caller = Caller(Principal("system"))
            await made.create_user(caller, "ann", "the password of ann", ["admin"])
            await made.set_acl(caller, "private", False, ["ann"], [])

        broker.run(accounts)
        with broker.peer() as peer:
            peer.publish("public", b"x", "m")
            assert peer.refused(Subscribe("private")) == FAILED
            assert peer.ask(Subscribe("private"), api_key="ann:the password of ann").message == Ack("private")


def test_guessing_is_slowed_down() -> None:
    with BlipMQBroker(blipmq_api_keys=KEYS) as broker:
        began = time.monotonic()
        for _ in range(6):
            with broker.peer() as peer:
                peer.send(Ping(1), 1, api_key="guess")
                assert len(peer.closed()) == 1
        assert time.monotonic() - began > 0.5


def test_a_certificate_is_as_good_as_a_key(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("localhost")
    settings = {
        "tls_cert_file": str(certificate), "tls_key_file": str(key), "tls_ca_file": str(authority.file), "tls_identity": "cn",
        "auth_enabled": True, "auth_default_public": False, "more_listeners": (Listen("blipmqs", "127.0.0.1", 0),),
    }  # fmt: skip
    with BlipMQBroker(**settings) as broker:

        async def accounts() -> None:
            made = broker.server.broker.security.accounts
            await made.create_user(Caller(Principal("system")), "ann", "the password of ann", ["admin"])

        broker.run(accounts)
        address = broker.server.addresses["blipmqs"]
        with BlipMQPeer(address, tls=authority.client(authority.issue("ann"))) as ann:
            ann.subscribe("t", 1)
            ann.send(Publish("t", b"x", 1, 0, "m"), 5)
            assert len(ann.receive_many(2)) == 2
        with BlipMQPeer(address, tls=authority.client(authority.issue("stranger"))) as stranger:
            assert stranger.refused(Ping(1)) == FAILED
        until(lambda: not broker.server.listeners[2].sessions, "both are gone")


def test_deliveries_count_against_quotas() -> None:
    with BlipMQBroker(quota_bytes_per_s=50_000, blipmq_drain_timeout_s=0.1) as broker, broker.peer() as peer:
        topic = new_name()
        peer.subscribe(topic)
        began = time.monotonic()
        for _ in range(5):
            peer.send(Publish(topic, bytes(10_000)))
            assert len(delivered(peer.receive()).payload) == 10_000
        assert time.monotonic() - began > 0.5, "50 kB in and 50 kB out take more than a second's worth"
