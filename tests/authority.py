"""A certificate authority for tests of TLS: certificates that brokers and clients show to each other, in files."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Identity = tuple[Path, Path]
"""Files of a certificate and its key."""
_LOCAL: tuple[x509.GeneralName, ...] = (x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")))


class Authority:
    """A certificate authority for one test run."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(self._sign(self._name, self._key, _LOCAL, authority=True).public_bytes(serialization.Encoding.PEM))

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, names: Sequence[x509.GeneralName], *, authority: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def issue(self, *common: str, names: Sequence[x509.GeneralName] = _LOCAL) -> Identity:
        """A certificate with these common names and alternative names."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in common])
        certificate = self._sign(subject, key, names, authority=False)
        stem = self._directory / "-".join(common)
        certificate_file, key_file = stem.with_suffix(".crt"), stem.with_suffix(".key")
        certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ))
        return certificate_file, key_file

    def client(self, identity: Identity | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.file))
        if identity is not None:
            context.load_cert_chain(*identity)
        return context
