"""TLS, mutual TLS and encrypted values against a real broker, in both worlds."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from running_broker import RunningBroker, StartBroker

from braidmq.client import BraidError, Record, connect, sync

KEY = "0f" * 32


@dataclass(frozen=True)
class Certificates:
    """An authority, what it vouches for, and a stranger."""

    authority: str
    server_cert: str
    server_key: str
    client_cert: str
    client_key: str
    stranger: str


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    authority, authority_key = _issue("authority", None, None)
    stranger, _ = _issue("stranger", None, None)
    server, server_key = _issue("server", authority, authority_key)
    client, client_key = _issue("client", authority, authority_key)
    return Certificates(
        _write(folder / "ca.pem", authority), _write(folder / "server.pem", server), _write(folder / "server.key", server_key),
        _write(folder / "client.pem", client), _write(folder / "client.key", client_key), _write(folder / "stranger.pem", stranger),
    )  # fmt: skip


def _issue(
    name: str, issuer: x509.Certificate | None, issuer_key: ec.EllipticCurvePrivateKey | None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    signer = issuer_key or key
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if issuer is None:
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    return builder.sign(signer, hashes.SHA256()), key


def _write(path: Path, thing: x509.Certificate | ec.EllipticCurvePrivateKey) -> str:
    if isinstance(thing, x509.Certificate):
        path.write_bytes(thing.public_bytes(serialization.Encoding.PEM))
    else:
        plain = serialization.NoEncryption()
        path.write_bytes(thing.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return str(path)


def tls_broker(start_broker: StartBroker, certificates: Certificates, *flags: str) -> str:
    broker: RunningBroker = start_broker(
        "--listen", "flymqs://127.0.0.1:0", "--tls-cert-file", certificates.server_cert, "--tls-key-file",
        certificates.server_key, *flags,
    )  # fmt: skip
    return "flymqs://" + broker.addresses["flymqs"]


def test_both_worlds_speak_tls(start_broker: StartBroker, certificates: Certificates, topic: str) -> None:
    address = tls_broker(start_broker, certificates)
    values = [b"%d" % number + bytes(1000) for number in range(3000)]

    async def produce() -> None:
        async with connect(address, tls_ca_file=certificates.authority) as client:
            await client.create_topic(topic, 1)
            async with client.producer() as producer:
                for value in values:
                    await producer.send(topic, value)
            async with client.consumer(topic) as consumer:
                read: list[Record] = []
                while len(read) < len(values):
                    read += await consumer.poll(timeout_s=10)
            assert [record.value for record in read] == values

    asyncio.run(produce())
    with sync.connect(address, tls_ca_file=certificates.authority) as client:
        with client.producer() as producer:
            for value in values:
                producer.send(topic, value)
            producer.flush()
            assert client.metadata(topic).records == 6000
        with client.consumer(topic) as consumer:
            read: list[Record] = []
            while len(read) < 6000:
                read += consumer.poll(timeout_s=10)
        assert [record.value for record in read] == values * 2


def test_an_unknown_server_is_not_trusted(start_broker: StartBroker, certificates: Certificates) -> None:
    address = tls_broker(start_broker, certificates)

    async def scenario() -> None:
        with pytest.raises(BraidError, match=r"UNREACHABLE.*certificate verify failed"):
            await connect(address, tls_ca_file=certificates.stranger).open()
        with pytest.raises(BraidError, match="UNREACHABLE"):
            await connect(address, tls_ca_file=certificates.authority, tls_server_name="elsewhere").open()
        client = connect(address, tls_ca_file=certificates.authority, tls_server_name="localhost")
        await client.open()
        await client.close()

    begun = time.monotonic()
    asyncio.run(scenario())
    with pytest.raises(BraidError, match=r"UNREACHABLE.*certificate verify failed"):
        sync.connect(address, tls_ca_file=certificates.stranger).open()
    assert time.monotonic() - begun < 10, "what cannot help is not tried again and again"


def test_mutual_tls(start_broker: StartBroker, certificates: Certificates, topic: str) -> None:
    address = tls_broker(start_broker, certificates, "--tls-ca-file", certificates.authority)

    async def scenario() -> None:
        own = {"tls_cert_file": certificates.client_cert, "tls_key_file": certificates.client_key}
        async with connect(address, tls_ca_file=certificates.authority, **own) as client:  # type: ignore[arg-type]
            await client.produce(topic, b"x", partition=0)
        with pytest.raises(BraidError) as caught:
            async with connect(address, tls_ca_file=certificates.authority, timeout_s=20) as client:
                await client.list_topics()
        assert caught.value.code == "CONNECTION_LOST"
        assert "client certificate" in caught.value.text

    begun = time.monotonic()
    asyncio.run(scenario())
    context = ssl.create_default_context(cafile=certificates.authority)
    context.load_cert_chain(certificates.client_cert, certificates.client_key)
    with sync.connect(address, ssl_context=context) as client:
        assert client.consume(topic, 0, 0).value == b"x"
    with pytest.raises(BraidError) as caught, sync.connect(address, tls_ca_file=certificates.authority, timeout_s=20) as client:
        client.list_topics()
    assert "client certificate" in caught.value.text
    assert time.monotonic() - begun < 10, "a server that refuses is not asked for the whole time-out"


def test_wrong_files_are_named(certificates: Certificates, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.pem")
    for arguments, name in (
        ({"tls_ca_file": absent}, "tls_ca_file"),
        ({"tls_cert_file": absent}, "tls_cert_file"),
        ({"tls_cert_file": certificates.client_cert, "tls_key_file": certificates.server_key}, "tls_cert_file"),
        ({"tls": True, "tls_key_file": certificates.client_key}, "tls_key_file"),
    ):
        with pytest.raises(BraidError, match=f"CONFIG_INVALID_VALUE: setting `{name}`"):
            connect("127.0.0.1:1", **arguments)


# --- encrypted values


def test_only_the_right_key_reads_values(server: str, topic: str) -> None:
    async def scenario() -> None:
        async with connect(server, encryption_key=KEY) as client:
            await client.create_topic(topic, 1)
            await client.produce(topic, b"secret 0", partition=0)
            async with client.producer() as producer:
                await producer.send(topic, b"secret 1", key=b"k", headers={"h": b"v"})
            async with client.consumer(topic) as consumer:
                read: list[Record] = []
                while len(read) < 2:
                    read += await consumer.poll(timeout_s=10)
            assert [(r.value, r.key, r.headers) for r in read] == [(b"secret 0", None, {}), (b"secret 1", b"k", {"h": b"v"})]
            assert (await client.consume(topic, 0, 0)).value == b"secret 0"
        async with connect(server) as plain:
            stored = (await plain.fetch(topic, 0, 0)).records
            assert all(b"secret" not in record.value for record in stored)
            assert len(stored[0].value) == 12 + len(b"secret 0") + 16

    asyncio.run(scenario())


def test_a_wrong_key_is_an_error_that_names_the_record(server: str, topic: str) -> None:
    with sync.connect(server, encryption_key=KEY) as client:
        client.create_topic(topic, 1)
        for number in range(3):
            client.produce(topic, b"%d" % number)
    with sync.connect(server) as plain:
        plain.produce(topic, b"never encrypted at all, in spite of its length")
    message = rf"DECRYPTION_FAILED: cannot decrypt {topic}/0 offset"
    with sync.connect(server, encryption_key="f0" * 32) as client:
        with pytest.raises(BraidError, match=f"{message} 1"):
            client.consume(topic, 0, 1)
        with client.consumer(topic) as consumer, pytest.raises(BraidError, match=f"{message} 0"):
            consumer.poll(timeout_s=10)
    with sync.connect(server, encryption_key=KEY) as client, client.consumer(topic) as consumer:
        assert [record.value for record in consumer.poll(timeout_s=10)] == [b"0", b"1", b"2"]
        for _ in range(2):
            with pytest.raises(BraidError, match=f"{message} 3"):
                consumer.poll(timeout_s=10)
        client.produce(topic, b"4")
        consumer.seek(topic, 0, 4)
        assert [record.value for record in consumer.poll(timeout_s=10)] == [b"4"]
