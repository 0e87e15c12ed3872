"""A user name from a client certificate that TLS has verified.

The authorities an operator names in `tls_ca_file` vouch for names; `tls_identity` says which name of the certificate is the
user's. A certificate that does not hold exactly one such name vouches for nobody: of two names there is no telling which one its
owner may use. The user has to exist: a certificate proves who somebody is, not what they may do.

Takes the form in which Python's TLS reports a verified certificate, and so needs neither a socket nor a parser here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from braidmq.base.config_settings import TlsIdentity

_ALTERNATIVES: Final[dict[TlsIdentity, str]] = {"san-dns": "DNS", "san-email": "email", "san-uri": "URI"}
"""Rules that look at subject alternative names, and the kind of name each wants."""


def certificate_user(certificate: Mapping[str, Any] | None, rule: TlsIdentity) -> str | None:
    """The user name that a peer's certificate (`getpeercert()`) stands for, or None."""
    if not certificate or rule == "none":
        return None
    names = list(dict.fromkeys(_common_names(certificate) if rule == "cn" else _alternatives(certificate, _ALTERNATIVES[rule])))
    return names[0] if len(names) == 1 and names[0] else None


def _common_names(certificate: Mapping[str, Any]) -> Iterator[str]:
    for relative_name in certificate.get("subject", ()):
        for kind, value in relative_name:
            if kind == "commonName":
                yield value


def _alternatives(certificate: Mapping[str, Any], wanted: str) -> Iterator[str]:
    for kind, value in certificate.get("subjectAltName", ()):
        if kind == wanted:
            yield value
