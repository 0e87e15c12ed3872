"""Logging in, users, roles, ACLs and the audit trail through the client, against a broker that wants a login."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest
from running_broker import RunningBroker

from braidmq.client import BraidError, connect, sync
from braidmq.client.faults import login_error
from braidmq.wire.flymq import Quota

ADMIN = {"username": "admin", "password": "correct horse"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a broker on which everybody has to log in."""
    broker = RunningBroker(
        tmp_path_factory.mktemp("accounts") / "data",
        ("--durability", "os", "--auth-enabled", "--no-auth-default-public"),
        {"BRAID_AUTH_ADMIN_PASSWORD": ADMIN["password"]},
    )
    broker.start()
    try:
        yield broker.address
        broker.stop()
    finally:
        if broker.running:
            broker.kill()


def test_every_connection_logs_in(guarded: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(guarded, **ADMIN, pool_size=2) as client:  # type: ignore[arg-type]
            who = await client.whoami()
            assert (who.authenticated, who.user, who.roles) == (True, "admin", ("admin",))
            await client.create_topic(topic, 2)
            await asyncio.gather(*(client.produce(topic, b"%d" % number) for number in range(20)))
            async with client.producer() as producer:
                await producer.send(topic, b"batch", partition=0)
            async with client.consumer(topic, group="g") as consumer:
                found = 0
                while found < 21:
                    found += len(await consumer.poll(timeout_s=20))
            async with client.transaction() as t:
                await t.produce(topic, b"in a transaction")

    asyncio.run(scenario())


def test_settings_of_the_environment_log_in_too(guarded: str) -> None:
    environ = {"BRAID_USERNAME": "admin", "BRAID_PASSWORD": ADMIN["password"]}
    with sync.connect(guarded, environ=environ) as client:
        assert client.whoami().user == "admin"
        assert ADMIN["password"] not in repr(client.settings)


def test_without_a_login_and_with_a_wrong_one_nothing_works(guarded: str, topic: str) -> None:
    with sync.connect(guarded) as client:
        assert not client.whoami().authenticated
        with pytest.raises(BraidError, match="AUTHENTICATION_REQUIRED"):
            client.list_topics()
    with pytest.raises(BraidError, match="INVALID_CREDENTIALS"):
        sync.connect(guarded, username="nobody", password="guess").open()
    client = sync.connect(guarded, username="nobody", password="guess")
    producer = client.producer()
    with pytest.raises(BraidError, match=r"INVALID_CREDENTIALS|AUTH_THROTTLED"):
        producer.send(topic, b"x", partition=0)
    with pytest.raises(BraidError, match=r"INVALID_CREDENTIALS|AUTH_THROTTLED"):
        client.consumer(topic, group="g").start()
    client.close()


def test_users_from_their_first_day_to_their_last(guarded: str, topic: str) -> None:
    with sync.connect(guarded, **ADMIN) as admin:  # type: ignore[arg-type]
        admin.create_topic(topic, 1)
        created = admin.user.add("alice", "first secret", ["producer"])
        assert (created.user, created.roles, created.enabled) == ("alice", ("producer",), True)
        with pytest.raises(BraidError, match="USER_EXISTS"):
            admin.user.add("alice", "other secret")
        assert "alice" in [user.user for user in admin.user.ls()]
        assert {"admin", "producer", "consumer", "guest"} <= {role.name for role in admin.role.ls()}

        with sync.connect(guarded, username="alice", password="first secret") as alice:
            alice.produce(topic, b"mine", partition=0)
            with pytest.raises(BraidError, match="UNAUTHORIZED"):
                alice.fetch(topic, 0, 0)
            with pytest.raises(BraidError, match="UNAUTHORIZED"):
                alice.user.ls()
            with pytest.raises(BraidError, match="INVALID_PASSWORD"):
                alice.user.passwd("alice", "second secret", "wrong")
            alice.user.passwd("alice", "second secret", "first secret")
        assert admin.user.set("alice", roles=["consumer"]).roles == ("consumer",)
        with sync.connect(guarded, username="alice", password="second secret") as alice:
            assert [record.value for record in alice.fetch(topic, 0, 0).records] == [b"mine"]
        assert admin.user.set("alice", enabled=False).roles == ("consumer",), "what is not given stays"
        with pytest.raises(BraidError, match=r"USER_DISABLED|INVALID_CREDENTIALS"):
            sync.connect(guarded, username="alice", password="second secret").open()
        with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
            admin.user.set("alice", roles=[])
        admin.user.rm("alice")
        with pytest.raises(BraidError, match="USER_NOT_FOUND"):
            admin.user.show("alice")


def test_acls_open_a_topic_to_those_they_name(guarded: str, topic: str) -> None:
    with sync.connect(guarded, **ADMIN) as admin:  # type: ignore[arg-type]
        admin.create_topic(topic, 1)
        admin.user.add("bob", "bobs secret", ["guest"])
        with sync.connect(guarded, username="bob", password="bobs secret") as bob:
            with pytest.raises(BraidError, match="UNAUTHORIZED"):
                bob.produce(topic, b"x")
            assert not admin.acl.get(topic).exists
            admin.acl.set(topic, users=["bob"])
            bob.produce(topic, b"x")
            assert admin.acl.get(topic).users == ("bob",)
            assert topic in [entry.topic for entry in admin.acl.ls().entries]
            admin.acl.rm(topic)
            with pytest.raises(BraidError, match="UNAUTHORIZED"):
                bob.produce(topic, b"x")
        admin.user.rm("bob")


def test_roles_and_quotas(guarded: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(guarded, **ADMIN) as admin:  # type: ignore[arg-type]
            await admin.create_topic(topic, 1)
            await admin.role.add("readers", ["read"], "they read")
            with pytest.raises(BraidError, match="ROLE_EXISTS"):
                await admin.role.add("readers")
            await admin.user.add("dora", "doras secret", ["readers"])
            async with connect(guarded, username="dora", password="doras secret") as dora:
                await dora.fetch(topic, 0, 0)
                await admin.role.set("readers", permissions=["write"])
                with pytest.raises(BraidError, match="UNAUTHORIZED"):
                    await dora.fetch(topic, 0, 0)
                await admin.role.set("readers", description="they wrote")
                await dora.produce(topic, b"x")
                with pytest.raises(BraidError, match="UNAUTHORIZED"):
                    await dora.user.set_quota("dora", 0, 0)
            changed = (await admin.role.ls())[-1]
            assert (changed.name, changed.permissions, changed.description) == ("readers", ("write",), "they wrote")
            await admin.user.set_quota("dora", 5000, None)
            found = await admin.user.quotas("dora")
            assert (found.default_bytes_per_s, found.quotas) == (0, (Quota("dora", 5000, None),))
            assert (await admin.user.quotas()).quotas == found.quotas
            with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
                await admin.user.set_quota("dora", -1, None)
            with pytest.raises(BraidError, match="ROLE_IN_USE"):
                await admin.role.rm("readers")
            await admin.user.rm("dora")
            await admin.role.rm("readers")
            with pytest.raises(BraidError, match="ROLE_NOT_FOUND"):
                await admin.role.set("readers", description="gone")

    asyncio.run(scenario())


def test_the_audit_trail_is_queried_and_exported(guarded: str, topic: str) -> None:
    with sync.connect(guarded, **ADMIN) as admin:  # type: ignore[arg-type]
        admin.create_topic(topic, 1)
        page = admin.audit.query(types=["topic.create"], resource=topic)
        assert [(event.user, event.resource, event.result) for event in page.events] == [("admin", topic, "success")]
        assert (page.total, page.has_more) == (1, False)
        assert admin.audit.query(end=1).events == ()
        document = json.loads(admin.audit.export(resource=topic))
        events = document["events"] if isinstance(document, dict) else document
        assert [event["resource"] for event in events] == [topic]
        assert topic.encode() in admin.audit.export("csv", search=topic)


def test_no_log_holds_a_password(guarded: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "braidmq.client")
    with sync.connect(guarded, **ADMIN) as admin:  # type: ignore[arg-type]
        admin.user.add("carol", "carols secret")
        admin.user.passwd("carol", "carols next secret")
        admin.user.rm("carol")
    assert "AUTH (70)" in caplog.text
    for secret in (ADMIN["password"], "carols secret", "carols next secret"):
        # The text column of a dump is cut into rows of 16 bytes.
        assert secret not in caplog.text and secret[:8] not in caplog.text
        assert secret[:8].encode().hex(" ") not in caplog.text


def test_half_a_login_is_refused_before_anything_is_sent() -> None:
    for given in ({"username": "a"}, {"password": "b"}):
        with pytest.raises(BraidError, match="CONFIG_INVALID_VALUE"):
            sync.connect("127.0.0.1:1", environ={}, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("INVALID_CREDENTIALS: invalid username or password", "INVALID_CREDENTIALS"),
        ("user account is disabled", "USER_DISABLED"),
        ("AUTH_THROTTLED: too many failed logins; authentication is refused for 3 s", "AUTH_THROTTLED"),
        ("go away", "INVALID_CREDENTIALS"),
        ("", "INVALID_CREDENTIALS"),
    ],
)
def test_a_refused_login_has_a_code(text: str, code: str) -> None:
    assert login_error(text).code == code
