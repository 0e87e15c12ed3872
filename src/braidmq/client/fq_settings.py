"""What an fq client has to know: where the broker is, who the client is, and which queue is its own."""

from __future__ import annotations

import ssl
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypedDict

from braidmq.base.errors import BraidError
from braidmq.base.limits import KIB, MIB
from braidmq.client.addresses import Address, parse_address
from braidmq.client.tls import client_context
from braidmq.wire.fq.auth import Auth, parse_queue_type, queue_field

QUEUE_TYPE_DEFAULT: Final = "mem:public,drop"
HEARTBEAT_S_MAX: Final = 65.535
"""The protocol counts milliseconds in 16 bits."""


class FqArguments(TypedDict, total=False):
    """What `connect` takes besides the address, the user and the queue."""

    timeout_s: float
    connect_timeout_s: float
    close_timeout_s: float
    heartbeat_s: float
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
class FqSettings:
    """All settings, checked."""

    servers: tuple[Address, ...]
    auth: Auth = field(repr=False)
    queue: bytes
    timeout_s: float = 30.0
    """How long a bind or a question may take, with reconnecting."""
    connect_timeout_s: float = 5.0
    """How long one attempt may take: both connections and all bindings."""
    close_timeout_s: float = 10.0
    """How long closing may take to get out what was published."""
    heartbeat_s: float = 10.0
    """How often the broker sends a sign of life; three missing ones break the connection. 0: never."""
    backoff_first_s: float = 0.02
    backoff_most_s: float = 1.0
    buffer_bytes: int = 8 * MIB
    """Published bytes not sent yet at which `publish` waits."""
    prefetch_bytes: int = 1 * MIB
    """Received bytes not handed out yet at which nothing more is read."""
    payload_bytes_max: int = 256 * MIB
    """Larger messages are passed over when they come."""
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
        _check("heartbeat_s", 0 <= self.heartbeat_s <= HEARTBEAT_S_MAX, f"it is 0 to {HEARTBEAT_S_MAX}")
        for name in ("buffer_bytes", "prefetch_bytes"):
            _check(name, getattr(self, name) >= 4 * KIB, "it is at least 4096")

    def context_for(self, server: Address) -> ssl.SSLContext | None:
        """How to speak TLS to a server; None where it is spoken to in the clear."""
        wanted = bool(self.tls or self.ssl_context or self.tls_ca_file or self.tls_cert_file) if server.tls is None else server.tls
        if not wanted:
            return None
        return self.ssl_context or client_context(self.tls_ca_file, self.tls_cert_file, self.tls_key_file)

    @property
    def heartbeat_ms(self) -> int:
        return round(self.heartbeat_s * 1000)


def _check(name: str, holds: bool, reason: str) -> None:
    if not holds:
        raise BraidError("CONFIG_INVALID_VALUE", key=name, origin="the arguments", reason=reason)


def as_bytes(name: str | bytes) -> bytes:
    """A name as it goes over the wire: text is UTF-8 there, bytes are taken as they are."""
    return name.encode() if isinstance(name, str) else bytes(name)


def fq_settings(
    address: str,
    user: str | bytes,
    password: str | bytes,
    queue: str | bytes,
    queue_type: str,
    arguments: FqArguments,
    unique: Callable[[], uuid.UUID] = uuid.uuid4,
) -> FqSettings:
    """The settings for the arguments of `connect`. A queue without a name gets one here, which it keeps when it reconnects."""
    try:
        servers = tuple(parse_address(part, "fq") for part in address.split(",") if part.strip())
    except ValueError as fault:
        raise BraidError("CONFIG_INVALID_VALUE", key="address", origin="the arguments", reason=str(fault)) from None
    _check("address", bool(servers), "at least one server is needed, as in 127.0.0.1:8765")
    name = as_bytes(queue) or f"q-{unique()}".encode()
    parse_queue_type(name, queue_type.encode())
    auth = Auth(as_bytes(user), queue_field(name, queue_type), as_bytes(password))
    return FqSettings(servers, auth, name, **arguments)
