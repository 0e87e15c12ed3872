"""TLS between nodes: both sides show a certificate of the cluster's own authority.

Names in certificates are not compared with addresses: a node is reached by whatever address gossip or the quorum names. So the
authority must be one that signs nothing but nodes of this cluster.
"""

from __future__ import annotations

import ssl

from braidmq.base.errors import BraidError


def cluster_contexts(cert_file: str, key_file: str, ca_file: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of the side that listens and of the side that connects. Raises CONFIG_INVALID_VALUE."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(cert_file, key_file)
            context.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError) as fault:
            reason = f"{cert_file}, {key_file}, {ca_file}: {fault}"
            raise BraidError("CONFIG_INVALID_VALUE", key="cluster_tls_cert_file", origin="configuration", reason=reason) from fault
    return server, client


def client_context(ca_file: str | None, cert_file: str | None, key_file: str | None) -> ssl.SSLContext | None:
    """The context towards an etcd that is there already, whose names are checked; None where nothing about it is set."""
    if ca_file is None and cert_file is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file is not None:
            context.load_cert_chain(cert_file, key_file)
    except (OSError, ssl.SSLError) as fault:
        raise BraidError("CONFIG_INVALID_VALUE", key="quorum_tls_ca_file", origin="configuration", reason=str(fault)) from fault
    return context
