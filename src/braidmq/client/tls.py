"""The TLS context of a client, from files or ready-made."""

from __future__ import annotations

import ssl

from braidmq.base.errors import BraidError


def client_context(ca_file: str | None, cert_file: str | None, key_file: str | None) -> ssl.SSLContext:
    """Verifies the server against `ca_file` (or the system's authorities) and its name; shows `cert_file` when asked."""
    if key_file and not cert_file:
        raise BraidError("CONFIG_INVALID_VALUE", key="tls_key_file", origin="the settings", reason="it needs tls_cert_file")
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca_file)
    except (OSError, ssl.SSLError) as fault:
        raise BraidError("CONFIG_INVALID_VALUE", key="tls_ca_file", origin="the settings", reason=f"{ca_file}: {fault}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert_file:
        try:
            context.load_cert_chain(cert_file, key_file)
        except (OSError, ssl.SSLError) as fault:
            raise BraidError(
                "CONFIG_INVALID_VALUE", key="tls_cert_file", origin="the settings", reason=f"{cert_file}: {fault}"
            ) from None
    return context
