"""TLS for listeners: 1.2 or newer, and client certificates where an authority is named."""

from __future__ import annotations

import ssl

from braidmq.base.config_listen import HttpListen, Listen
from braidmq.base.config_settings import Config
from braidmq.base.errors import BraidError


def server_context(config: Config) -> ssl.SSLContext | None:
    """The context of TLS listeners, HTTP servers included; None when none of them wants TLS."""
    listeners: list[Listen | HttpListen] = [*config.listen, *config.web_listeners.values()]
    first = next((listen for listen in listeners if listen.tls), None)
    if first is None:
        return None
    if config.tls_cert_file is None or config.tls_key_file is None:
        raise BraidError("CONFIG_INVALID_VALUE", key="listen", origin="configuration",
                         reason=f"{first} needs both tls_cert_file and tls_key_file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.tls_cert_file, config.tls_key_file)
        if config.tls_ca_file is not None:
            context.load_verify_locations(config.tls_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as fault:
        raise BraidError("CONFIG_INVALID_VALUE", key="tls_cert_file", origin="configuration", reason=str(fault)) from fault
    return context
