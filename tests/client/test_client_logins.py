"""The client over TLS as somebody: by password, by certificate, and when the account behind either ends."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest
from authority import Authority, Identity
from cryptography import x509
from running_broker import RunningBroker, StartBroker

from braidmq.client import BraidError, connect, sync
from braidmq.client.settings import SettingArguments

PASSWORD = "correct horse"


class Listener:
    """Somebody on the wire between a client and a broker, who passes all bytes on and keeps a copy."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._door = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        self.heard = b""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._door.getsockname()[1]}"

    def _accept(self) -> None:
        client, _ = self._door.accept()
        with client, socket.create_connection(self._target) as broker:
            backward = threading.Thread(target=self._pass, args=(broker, client), daemon=True)
            backward.start()
            self._pass(client, broker)
            backward.join()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(1 << 16):
            self.heard += data
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._threads[0].join(10)
        assert not self._threads[0].is_alive()
        self._door.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


def _flags(authority: Authority) -> tuple[str, ...]:
    certificate, key = authority.issue("broker")
    return (
        "--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--durability", "os", "--auth-enabled",
        "--no-auth-default-public",
    )  # fmt: skip


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[RunningBroker]:
    """A broker with TLS that asks for certificates, one of which is `carol`'s, and a plain listener beside it."""
    flags = (
        "--listen", "flymq://127.0.0.1:0", "--listen", "flymqs://127.0.0.1:0", "--tls-ca-file", str(authority.file),
        *_flags(authority),
    )  # fmt: skip
    broker = RunningBroker(tmp_path_factory.mktemp("logins") / "data", flags, {"BRAID_AUTH_ADMIN_PASSWORD": PASSWORD})
    broker.start()
    try:
        with sync.connect(broker.address, username="admin", password=PASSWORD) as admin:
            admin.create_topic("t", 1)
            admin.user.add("carol", PASSWORD, ["producer"])
        yield broker
        broker.stop()
    finally:
        if broker.running:
            broker.kill()


def shown(authority: Authority, identity: Identity) -> SettingArguments:
    """Settings of a client that shows a certificate."""
    certificate, key = identity
    return {"tls_ca_file": str(authority.file), "tls_cert_file": str(certificate), "tls_key_file": str(key)}


def test_a_password_logs_in_over_tls(guarded: RunningBroker, authority: Authority) -> None:
    address = "flymqs://" + guarded.addresses["flymqs"]
    settings = shown(authority, authority.issue("stranger"))

    async def scenario() -> None:
        async with connect(address, **settings, username="admin", password=PASSWORD, pool_size=2) as client:
            who = await client.whoami()
            assert (who.authenticated, who.user, who.roles) == (True, "admin", ("admin",))
            await asyncio.gather(*(client.produce("t", b"x") for _ in range(10)))
            async with client.producer() as producer:
                await producer.send("t", b"y", partition=0)
            assert len((await client.fetch("t", 0, 0)).records) == 11
        with pytest.raises(BraidError, match="INVALID_CREDENTIALS"):
            await connect(address, **settings, username="admin", password="guess").open()

    asyncio.run(scenario())
    with sync.connect(address, **settings, username="admin", password=PASSWORD) as client:
        assert client.whoami().user == "admin"
    with sync.connect(address, **settings) as nobody:
        assert not nobody.whoami().authenticated
        with pytest.raises(BraidError, match="AUTHENTICATION_REQUIRED"):
            nobody.list_topics()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_only_tls_hides_a_password(guarded: RunningBroker, authority: Authority, tls: bool) -> None:
    wire = Listener(guarded.addresses["flymqs" if tls else "flymq"])
    settings = shown(authority, authority.issue("stranger")) if tls else SettingArguments()
    with sync.connect(("flymqs://" if tls else "") + wire.address, **settings, username="admin", password=PASSWORD) as client:
        assert client.whoami().user == "admin"
    wire.close()
    assert len(wire.heard) > 50
    assert (PASSWORD.encode() in wire.heard) is not tls, "what is there to hear without TLS is not there with it"


def test_a_certificate_is_a_user_without_a_password(guarded: RunningBroker, authority: Authority) -> None:
    address = "flymqs://" + guarded.addresses["flymqs"]
    settings = shown(authority, authority.issue("carol"))

    async def scenario() -> None:
        async with connect(address, **settings) as carol:
            who = await carol.whoami()
            assert (who.authenticated, who.user, who.roles) == (True, "carol", ("producer",))
            await carol.produce("t", b"x")
            with pytest.raises(BraidError, match="UNAUTHORIZED"):
                await carol.fetch("t", 0, 0)

    asyncio.run(scenario())
    with sync.connect(address, **settings, username="admin", password=PASSWORD) as admin:
        assert admin.whoami().user == "admin", "who logs in is who they log in as"
    with pytest.raises(BraidError, match="INVALID_CREDENTIALS"):
        # And nobody falls back to the certificate, whose user has other rights.
        sync.connect(address, **settings, username="admin", password="guess").open()


def test_a_certificate_of_a_user_that_ends(guarded: RunningBroker, authority: Authority) -> None:
    address = "flymqs://" + guarded.addresses["flymqs"]
    settings = shown(authority, authority.issue("dave"))
    with sync.connect(guarded.address, username="admin", password=PASSWORD) as admin:
        admin.user.add("dave", PASSWORD, ["producer"])
        with sync.connect(address, **settings, pool_size=1) as dave:
            dave.produce("t", b"x")
            admin.user.set("dave", enabled=False)
            with pytest.raises(BraidError, match="AUTHENTICATION_REQUIRED"):
                dave.produce("t", b"x")
            assert not dave.whoami().authenticated
        with sync.connect(address, **settings) as dave:
            assert not dave.whoami().authenticated, "nor by a new connection"
        admin.user.set("dave", enabled=True)
        with sync.connect(address, **settings) as dave:
            assert dave.whoami().user == "dave"
        failures = admin.audit.query(types=["auth.failure"], user="dave").events
        assert [event.action for event in failures] == ["certificate"]


def test_an_alternative_name_is_the_user_where_that_is_wanted(start_broker: StartBroker, authority: Authority) -> None:
    broker = start_broker(
        "--listen", "flymqs://127.0.0.1:0", "--tls-ca-file", str(authority.file), "--tls-identity", "san-uri", *_flags(authority),
        env={"BRAID_AUTH_ADMIN_PASSWORD": PASSWORD},
    )  # fmt: skip
    address = "flymqs://" + broker.addresses["flymqs"]
    erin, admin_uri = (x509.UniformResourceIdentifier(name) for name in ("spiffe://braid/erin", "admin"))
    by_uri = shown(authority, authority.issue("erin", names=[x509.DNSName("admin"), erin]))
    with sync.connect(address, **by_uri, username="admin", password=PASSWORD) as admin:
        admin.user.add("spiffe://braid/erin", PASSWORD, ["consumer"])
        admin.user.add("erin", PASSWORD, ["admin"])
    with sync.connect(address, **by_uri) as client:
        assert (client.whoami().user, client.whoami().roles) == ("spiffe://braid/erin", ("consumer",))
    for number, names in enumerate(([erin, admin_uri], [x509.DNSName("erin")])):
        identity = authority.issue("erin", str(number), names=names)
        with sync.connect(address, **shown(authority, identity)) as client:
            assert not client.whoami().authenticated, "of two names none counts, and no other kind of name does"
