"""Users, rights, quotas, schemas and times to live: the same for fq as for every other protocol."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flymq_peer import Peer
from fq_peer import FqBroker, FqPeer, closed, connect, eventually, new_name, request
from test_server_tls import Authority

from braidmq.security.accounts import Caller
from braidmq.security.audit_events import AuditQuery
from braidmq.security.authorizer import Principal
from braidmq.wire.fq.auth import Auth, queue_field
from braidmq.wire.fq.commands import REFUSED

SYSTEM = Caller(Principal("system"))
WRITER, READER, BOTH = "writer", "reader", "both"


def add_user(broker: FqBroker, name: str, *roles: str) -> None:
    accounts = broker.server.broker.security.accounts
    broker.run(lambda: accounts.create_user(SYSTEM, name, f"{name}'s secret", roles))


@pytest.fixture(scope="module")
def broker() -> Iterator[FqBroker]:
    settings = {"auth_enabled": True, "auth_default_public": False, "audit_enabled": True}
    with FqBroker(default_partitions=1, **settings) as running:
        add_user(running, WRITER, "producer")
        add_user(running, READER, "consumer")
        add_user(running, BOTH, "producer", "consumer")
        add_user(running, "root", "admin")
        yield running


def login(broker: FqBroker, name: str, queue: bytes | None = None, kind: str = "mem:public") -> FqPeer:
    return FqPeer(broker.fq, queue, kind, user=name.encode(), password=f"{name}'s secret".encode())


def audit(broker: FqBroker, kind: str, user: str) -> list[str]:
    """The resources that the trail names for a kind of event and a user."""
    trail = broker.server.broker.security.audit
    assert trail is not None
    page = broker.run(lambda: trail.query(AuditQuery(types=frozenset((kind,)), user=user)))
    return [event.resource for event in page.events]


# --- logging in


@pytest.mark.parametrize(
    ("user", "password"), [(b"writer", b"wrong"), (b"nobody", b"x"), (b"\xff", b"x"), (b"", b""), (b"writer", b"")]
)
def test_whoever_has_no_password_is_not_let_in(broker: FqBroker, user: bytes, password: bytes) -> None:
    with FqPeer(broker.fq, authenticate=False) as peer:
        peer.send(Auth(user, queue_field(b"q", "mem"), password))
        assert peer.refused() == "invalid username or password"


def test_a_user_that_is_not_anybody_is_let_in_and_is_the_sender(broker: FqBroker) -> None:
    exchange = new_name()
    logins, logouts = (len(audit(broker, kind, BOTH)) for kind in ("auth.success", "auth.logout"))
    with login(broker, BOTH) as peer:
        assert peer.bind(exchange) != REFUSED
        data = peer.data()
        data.publish(exchange, b"", b"x")
        assert data.receive(1)[0].sender == b"both"
    # Two connections, one client: it comes and goes once.
    eventually(lambda: [len(audit(broker, kind, BOTH)) for kind in ("auth.success", "auth.logout")], [logins + 1, logouts + 1])


def test_where_strangers_are_welcome_they_have_no_name() -> None:
    with FqBroker(auth_enabled=True, auth_allow_anonymous=True) as broker:
        with FqPeer(broker.fq, user=b"root", password=b"") as peer:
            peer.bind(b"public")
            data = peer.data()
            data.publish(b"public", b"", b"x")
            assert data.receive(1)[0].sender == b"anonymous"
        with FqPeer(broker.fq, authenticate=False) as peer:
            peer.send(Auth(b"root", queue_field(b"q", "mem"), b"guess"))
            assert peer.refused() == "invalid username or password"


def test_without_logins_every_password_is_right() -> None:
    with FqBroker() as broker, FqPeer(broker.fq, user=b"anybody", password=b"x" * 10240) as peer:
        assert peer.bind(b"ex") != REFUSED


# --- rights


def test_publishing_needs_the_right_to_write(broker: FqBroker) -> None:
    exchange = new_name("private")
    with login(broker, BOTH) as peer, login(broker, READER) as reader:
        peer.bind(exchange)
        data = peer.data()
        refused = reader.data()
        refused.publish(exchange, b"", b"one", b"two")
        eventually(lambda: reader.figures("no_exchange", "no_route", "routed", "msgs_in"), (2, 2, 0, 2))
        data.publish(exchange, b"", b"three")
        assert data.payloads(1) == [b"three"], "nothing of what was refused"
        eventually(lambda: exchange.decode() in audit(broker, "access.denied", READER), True)


def test_binding_needs_the_right_to_read(broker: FqBroker) -> None:
    exchange = new_name("private")
    with login(broker, WRITER) as writer:
        assert writer.bind(exchange) == REFUSED
        assert writer.status() == {"dropped_in": 0}, "the connection stays"
    eventually(lambda: exchange.decode() in audit(broker, "access.denied", WRITER), True)


def test_joining_a_queue_needs_the_right_to_read_what_is_bound_to_it(broker: FqBroker) -> None:
    exchange = new_name("private")
    with login(broker, BOTH) as owner, FqPeer(broker.fq, authenticate=False) as other:
        owner.bind(exchange)
        other.send(Auth(b"writer", queue_field(owner.queue, "mem:public"), b"writer's secret"))
        assert other.refused() == "unauthorized"


def test_a_right_that_is_taken_away_ends_deliveries_at_once(broker: FqBroker) -> None:
    exchange, still = new_name("acl"), new_name("acl")
    accounts = broker.server.broker.security.accounts
    for name in (exchange, still):
        broker.run(lambda name=name: accounts.set_acl(SYSTEM, name.decode(), False, ["late"], []))
    add_user(broker, "late")
    with login(broker, "late") as peer, login(broker, BOTH) as publisher:
        assert peer.bind(exchange) != REFUSED and peer.bind(still) != REFUSED
        data, writing = peer.data(), publisher.data()
        writing.publish(exchange, b"", b"allowed")
        assert data.payloads(1) == [b"allowed"]
        broker.run(lambda: accounts.set_acl(SYSTEM, exchange.decode(), False, [], []))
        writing.publish(exchange, b"", b"secret")
        writing.publish(still, b"", b"still allowed")
        assert data.payloads(1) == [b"still allowed"]
        assert peer.status()["dropped_in"] == 1
        broker.run(lambda: accounts.update_user(SYSTEM, "late", [], False))
        assert peer.bind(still, b"prefix:more") == REFUSED


def test_http_logs_in_with_name_and_password(broker: FqBroker) -> None:
    exchange = new_name("http")

    def basic(user: str, password: str) -> dict[str, str]:
        return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}

    headers = {"X-Fq-Exchange": exchange.decode(), "X-Fq-Route": "r"}
    stranger = request(broker.fq, "POST", "/submit", headers, b"x")
    assert stranger.startswith(b"HTTP/1.0 401 Unauthorized\r\n") and b"WWW-Authenticate: Basic" in stranger
    assert request(broker.fq, "POST", "/submit", headers | basic("reader", "reader's secret"), b"x").startswith(b"HTTP/1.0 403 ")
    assert request(broker.fq, "POST", "/submit", headers | basic("writer", "wrong"), b"x").startswith(b"HTTP/1.0 401 ")
    assert request(broker.fq, "POST", "/submit", headers | {"Authorization": "Basic !"}, b"x").startswith(b"HTTP/1.0 401 ")
    assert request(broker.fq, "POST", "/submit", headers | basic("writer", "writer's secret"), b"x").startswith(b"HTTP/1.0 200 ")
    for target in ("/stats.json", "/add_checkpoint?qname=q&cpname=c&chkptid=now"):
        assert request(broker.fq, "GET", target).startswith(b"HTTP/1.0 401 ")
        assert request(broker.fq, "GET", target, basic("writer", "writer's secret")).startswith(b"HTTP/1.0 403 ")
        assert request(broker.fq, "GET", target, basic("root", "root's secret")).startswith(b"HTTP/1.0 200 ")


# --- quotas, schemas, times to live


def test_a_quota_slows_publishers_and_refuses_nothing() -> None:
    with FqBroker(quota_bytes_per_s=200_000) as broker, FqPeer(broker.fq) as peer:
        peer.bind(b"ex", b"exact:end")
        data = peer.data()
        began = time.monotonic()
        data.publish(b"ex", b"", *([bytes(1000)] * 500))
        data.publish(b"ex", b"end", b"end")
        assert data.payloads(1) == [b"end"]
        assert time.monotonic() - began > 0.5, "half a megabyte at 200 kB/s, with what may be saved up"


def test_a_schema_refuses_or_makes_dead_letters() -> None:
    schema = b'{"type": "object", "required": ["a"]}'
    with FqBroker(default_partitions=1) as broker, FqPeer(broker.fq) as peer, FqPeer(broker.fq) as letters:
        engine = broker.server.broker
        broker.run(lambda: engine.schemas.register("s", "json", schema))
        broker.create("strict", schema="s")
        broker.create("lenient", schema="s", schema_rule="dead-letter")
        peer.bind(b"strict")
        peer.bind(b"lenient")
        letters.bind(b"lenient.dlq")
        data = peer.data()
        for exchange in (b"strict", b"lenient"):
            data.publish(exchange, b"", b'{"a": 1}', b'{"b": 1}', b'{"a": 2}')
            assert data.payloads(2) == [b'{"a": 1}', b'{"a": 2}']
        assert letters.data().payloads(1) == [b'{"b": 1}']
        eventually(lambda: peer.figures("routed", "no_route", "msgs_in"), (4, 2, 6))
        headers = {"X-Fq-Exchange": "strict", "X-Fq-Route": ""}
        assert b"schema validation failed" in request(broker.fq, "POST", "/submit", headers, b"{}")


def test_what_expired_is_not_delivered() -> None:
    with FqBroker(default_partitions=1) as broker, FqPeer(broker.fq) as peer, FqPeer(broker.fq) as publisher:
        broker.create("short", ttl_ms="50")
        peer.bind(b"short")
        writing = publisher.data()
        writing.publish(b"short", b"", b"old")
        eventually(lambda: publisher.figures("routed"), (1,))
        with Peer(broker.address) as reader:
            eventually(lambda: reader.fetch_all("short"), [])
        data = peer.data()
        eventually(lambda: len(peer.status()), 10)
        writing.publish(b"short", b"", b"new")
        assert data.payloads(1) == [b"new"]


# --- TLS


def test_a_client_behind_tls_and_one_that_its_certificate_names(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    files = authority.issue("localhost")
    settings = {"auth_enabled": True, "tls_ca_file": str(authority.file)}
    with FqBroker(tls=files, **settings) as broker:
        add_user(broker, "carol", "producer", "consumer")
        known = authority.client(authority.issue("carol"))
        # The certificate tells who it is: no password is asked for.
        with FqPeer(broker.fqs, user=b"carol", tls=known) as peer:
            assert peer.bind(b"ex") != REFUSED
            data = peer.data()
            data.publish(b"ex", b"", *(b"%d" % number + bytes(10_000) for number in range(100)))
            assert [payload[:2].rstrip(b"\0") for payload in data.payloads(100)] == [b"%d" % number for number in range(100)]
        unknown = authority.client(authority.issue("mallory"))
        with FqPeer(broker.fqs, authenticate=False, tls=unknown) as peer:
            peer.send(Auth(b"carol", queue_field(b"q", "mem"), b"guess"))
            assert peer.refused() == "invalid username or password"
        with connect(broker.fq) as raw:
            # A TLS greeting on a plain port is nothing that fq knows.
            raw.sendall(b"\x16\x03\x01\x02\x00\x01")
            assert closed(raw) == b""
