"""Identities from certificates, as the TLS of this Python reports them after a real handshake."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from braidmq.base.config_settings import TlsIdentity
from braidmq.security.certificates import certificate_user


def reported(tmp_path: Path, names: list[x509.NameAttribute[str]], alternatives: list[x509.GeneralName]) -> Any:
    """What `getpeercert()` of a server says about a client with this certificate. No sockets: both ends share memory."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(names)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key()).serial_number(7)
    begin = datetime.datetime(2020, 1, 1)
    builder = builder.not_valid_before(begin).not_valid_after(begin + datetime.timedelta(days=36_500))
    builder = builder.add_extension(x509.BasicConstraints(True, None), True)
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
    pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = tmp_path / "both.pem"
    file.write_bytes(pem + secret)
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    for context in (server_context, client_context):
        context.load_cert_chain(file)
        context.load_verify_locations(file)
        context.verify_mode = ssl.CERT_REQUIRED
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server)
    waiting = [client, server]
    for turn in range(10):
        side = (client, server)[turn % 2]
        if side in waiting:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    assert not waiting
    return server.getpeercert()


def common_name(name: str) -> x509.NameAttribute[str]:
    return x509.NameAttribute(NameOID.COMMON_NAME, name)


@pytest.mark.parametrize(
    ("rule", "user"), [("none", None), ("cn", "ann"), ("san-dns", "ann.example"), ("san-email", "ann@example.org"), ("san-uri", "spiffe://x/ann")]
)  # fmt: skip
def test_each_rule_takes_its_name(rule: TlsIdentity, user: str | None, tmp_path: Path) -> None:
    organisation = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "admin")
    alternatives: list[x509.GeneralName] = [
        x509.DNSName("ann.example"), x509.RFC822Name("ann@example.org"), x509.UniformResourceIdentifier("spiffe://x/ann"),
    ]  # fmt: skip
    assert certificate_user(reported(tmp_path, [organisation, common_name("ann")], alternatives), rule) == user


@pytest.mark.parametrize("rule", ["cn", "san-dns"])
def test_of_two_names_none_counts(rule: TlsIdentity, tmp_path: Path) -> None:
    names = [common_name("ann"), common_name("admin")]
    alternatives: list[x509.GeneralName] = [x509.DNSName("ann"), x509.DNSName("admin")]
    assert certificate_user(reported(tmp_path, names, alternatives), rule) is None


@pytest.mark.parametrize("rule", ["cn", "san-dns", "san-email", "san-uri"])
def test_no_name_is_nobody(rule: TlsIdentity, tmp_path: Path) -> None:
    organisation = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "admin")
    assert certificate_user(reported(tmp_path, [organisation], []), rule) is None
    assert certificate_user(None, rule) is None and certificate_user({}, rule) is None, "not verified is not an identity"
