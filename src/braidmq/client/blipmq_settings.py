"""What a BlipMQ client has to know: where the broker is, and who the client is."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final, TypedDict

from braidmq.base.errors import BraidError
from braidmq.base.limits import BLIPMQ_PAYLOAD_BYTES_MAX, BLIPMQ_TEXT_CHARACTERS_MAX, KIB, MIB, RECORD_BYTES_MAX
from braidmq.client.addresses import Address, parse_address
from braidmq.client.tls import client_context

ALPN: Final = "blipmq"
KEEPALIVE_S_MIN: Final = 1.0
KEEPALIVE_S_MAX: Final = 3600.0
"""What a broker takes for an interval."""


class BlipMQArguments(TypedDict, total=False):
    """What `connect` takes besides the address, the key and the name."""

    timeout_s: float
    connect_timeout_s: float
    close_timeout_s: float
    keepalive_s: float
    backoff_first_s: float
    backoff_most_s: float
    buffer_bytes: int
    prefetch_bytes: int
    payload_bytes_max: int
    tls: bool
    tls_ca_file: str | None
    tls_cert_file: str | None
    tls_key_file: str | None
    tls_server_name: str | None
    ssl_context: ssl.SSLContext | None


@dataclass(frozen=True, slots=True)
class BlipMQSettings:
    """All settings, checked."""

    servers: tuple[Address, ...]
    api_key: str = field(default="", repr=False)
    client_id: str = ""
    """Names a subscriber whose QoS 1 part outlives the connection; empty for none."""
    timeout_s: float = 30.0
    """How long a publish or a subscribe may take, with reconnecting."""
    connect_timeout_s: float = 5.0
    """How long one attempt may take: the connection, the login and all subscriptions."""
    close_timeout_s: float = 10.0
    """How long closing may take to get everything out and acknowledged."""
    keepalive_s: float = 30.0
    """After so long without a word either way the broker is asked whether it is there; silent for as long again, it is not."""
    backoff_first_s: float = 0.02
    backoff_most_s: float = 1.0
    buffer_bytes: int = 16 * MIB
    """Published bytes not sent, or sent and not acknowledged, at which publishing waits."""
    prefetch_bytes: int = 8 * MIB
    """Received bytes not handed out yet at which nothing more is read."""
    payload_bytes_max: int = BLIPMQ_PAYLOAD_BYTES_MAX
    """The largest payload that may be published; the broker has a limit of its own."""
    tls: bool = False
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_server_name: str | None = None
    """Name that the server's certificate must carry, where it is not the host."""
    ssl_context: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        for name in ("timeout_s", "connect_timeout_s", "close_timeout_s", "backoff_first_s", "backoff_most_s"):
            _check(name, getattr(self, name) > 0, "it has to be more than 0")
        within = KEEPALIVE_S_MIN <= self.keepalive_s <= KEEPALIVE_S_MAX
        _check("keepalive_s", within, f"it is {KEEPALIVE_S_MIN:g} to {KEEPALIVE_S_MAX:g}")
        for name in ("buffer_bytes", "prefetch_bytes"):
            _check(name, getattr(self, name) >= 4 * KIB, "it is at least 4096")
        _check("payload_bytes_max", 0 < self.payload_bytes_max <= RECORD_BYTES_MAX, f"it is 1 to {RECORD_BYTES_MAX}")
        short = len(self.client_id) <= BLIPMQ_TEXT_CHARACTERS_MAX
        _check("client_id", short, f"it is longer than {BLIPMQ_TEXT_CHARACTERS_MAX} characters")

    def context_for(self, server: Address) -> ssl.SSLContext | None:
        """How to speak TLS to a server; None where it is spoken to in the clear."""
        wanted = bool(self.tls or self.ssl_context or self.tls_ca_file or self.tls_cert_file) if server.tls is None else server.tls
        if not wanted:
            return None
        if self.ssl_context is not None:
            return self.ssl_context
        context = client_context(self.tls_ca_file, self.tls_cert_file, self.tls_key_file)
        context.set_alpn_protocols([ALPN])
        return context


def _check(name: str, holds: bool, reason: str) -> None:
    if not holds:
        raise BraidError("CONFIG_INVALID_VALUE", key=name, origin="the arguments", reason=reason)


def blipmq_settings(address: str, api_key: str, client_id: str, arguments: BlipMQArguments) -> BlipMQSettings:
    """The settings for the arguments of `connect`."""
    try:
        servers = tuple(parse_address(part, "blipmq") for part in address.split(",") if part.strip())
    except ValueError as fault:
        raise BraidError("CONFIG_INVALID_VALUE", key="address", origin="the arguments", reason=str(fault)) from None
    _check("address", bool(servers), "at least one server is needed, as in 127.0.0.1:7878")
    return BlipMQSettings(servers, api_key, client_id, **arguments)
