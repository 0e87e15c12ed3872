"""Every setting of the client, declared once: arguments over environment over a file over defaults.

A setting is a field of `ClientSettings`; its name is the keyword argument and the key in a file, and its environment
variable follows from it. A key in a file that nobody knows is an error with the nearest name, as it is for the broker.
"""

from __future__ import annotations

import json
import ssl
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, TypeVar

from braidmq.base import config_kinds as kinds
from braidmq.base.config_kinds import Kind
from braidmq.base.errors import BraidError
from braidmq.base.limits import (
    FRAME_PAYLOAD_BYTES_MAX,
    GIB,
    KIB,
    LONG_POLL_SECONDS_MAX,
    MIB,
    SESSION_TIMEOUT_MS_MAX,
    SESSION_TIMEOUT_MS_MIN,
)
from braidmq.client.addresses import Address, parse_addresses
from braidmq.client.cipher import ValueCipher

T = TypeVar("T")

Assignment = Literal["range", "roundrobin", "all"]
ReadFrom = Literal["leader", "nearest"]

FILE_VARIABLE: Final = "BRAID_CLIENT_CONFIG"
"""Names a settings file where no argument does."""
_SHARED_VARIABLES: Final = frozenset({
    "servers", "encryption_key", "tls_ca_file", "tls_cert_file", "tls_key_file", "username", "password",
})  # fmt: skip
"""Settings whose variables carry no `CLIENT_`, because other parts know them under the same name."""


def _setting(default: T, kind: Kind[T], doc: str, *, secret: bool = False) -> T:
    declared: T = field(default=default, metadata={"kind": kind, "doc": doc}, repr=not secret)
    return declared


def _milliseconds(most: int) -> Kind[float]:
    def read(value: object) -> float:
        try:
            found = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1.0
        except ValueError:
            found = -1.0
        if not 0 <= found <= most:
            raise ValueError(f"`{value}` is not a number of milliseconds from 0 to {most}")
        return found

    return Kind("milliseconds", f"0 to {most}", read, lambda value: f"{value:g}")


def _servers() -> Kind[tuple[Address, ...]]:
    return Kind(
        "servers", "host:port, flymq://host:port or flymqs://host:port, several with commas", parse_addresses,
        lambda value: ",".join(map(str, value)), repeats=True,
    )  # fmt: skip


def _encryption_key() -> Kind[str | None]:
    def read(value: object) -> str | None:
        if value is None or value == "":
            return None
        ValueCipher(str(value))
        return str(value)

    return Kind("key", "64 hexadecimal characters", read, lambda value: "(set)" if value else "")


def _password() -> Kind[str | None]:
    def read(value: object) -> str | None:
        if value is None or isinstance(value, str):
            return value
        raise ValueError("a password is text")

    return Kind("password", "text", read, lambda value: "(set)" if value else "")


def _optional_text() -> Kind[str | None]:
    plain = kinds.text(255)
    return Kind("text", plain.takes, lambda value: plain.read(value) if value else None, lambda value: value or "")


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """All settings, checked."""

    # --- connecting
    servers: tuple[Address, ...] = _setting(
        (Address("127.0.0.1", 9092),), _servers(), "Bootstrap addresses; the next one is tried when one fails."
    )
    timeout_s: float = _setting(
        30.0, kinds.duration(0.001, 86400), "How long a request may take, with reconnecting and retries."
    )
    connect_timeout_s: float = _setting(
        5.0, kinds.duration(0.001, 3600), "How long connecting to one address may take, TLS included."
    )
    backoff_first_s: float = _setting(0.05, kinds.duration(0.001, 60), "Shortest pause between attempts to connect.")
    backoff_most_s: float = _setting(2.0, kinds.duration(0.001, 3600), "Longest pause between attempts to connect.")
    pool_size: int = _setting(
        4, kinds.count(1, 1000), "Connections kept for single requests. Producers and consumers have their own."
    )
    # --- security
    tls: bool = _setting(False, kinds.boolean(), "Speak TLS. A flymqs:// address or any other TLS setting implies it.")
    tls_ca_file: str | None = _setting(
        None, kinds.optional_path(), "Authorities (PEM) that may vouch for the server; without it, the system's."
    )
    tls_cert_file: str | None = _setting(None, kinds.optional_path(), "The client's own certificate (PEM), for mutual TLS.")
    tls_key_file: str | None = _setting(
        None, kinds.optional_path(), "The key of `tls_cert_file`, where it is not in the same file."
    )
    tls_server_name: str | None = _setting(
        None, _optional_text(), "Name the server's certificate must carry, where it is not the host that is connected to."
    )
    encryption_key: str | None = _setting(
        None, _encryption_key(), "Encrypts values on their way out and decrypts them on their way in.", secret=True
    )
    username: str | None = _setting(None, _optional_text(), "User to log in as, on every connection.")
    password: str | None = _setting(None, _password(), "The user's password.", secret=True)
    # --- producer
    linger_ms: float = _setting(5.0, _milliseconds(60_000), "How long a record may wait for others to share its batch.")
    batch_bytes: int = _setting(
        256 * KIB, kinds.size(1 * KIB, FRAME_PAYLOAD_BYTES_MAX // 4), "A batch is sent as soon as it holds so many bytes."
    )
    buffer_bytes: int = _setting(
        32 * MIB, kinds.size(64 * KIB, 64 * GIB), "Bytes not acknowledged yet at which `send` waits."
    )
    delivery_timeout_s: float = _setting(
        120.0, kinds.duration(0.001, 86400), "How long a record may stay unacknowledged, retries included, before it fails."
    )
    retries_may_duplicate: bool = _setting(
        False, kinds.boolean(), "Retry when the outcome is unknown also with a server that cannot recognise duplicates."
    )
    # --- consumer
    auto_commit: bool = _setting(True, kinds.boolean(), "Commit a group's positions in the background and on close.")
    auto_commit_interval_s: float = _setting(5.0, kinds.duration(0.01, 86400), "How often positions are committed.")
    max_poll_records: int = _setting(500, kinds.count(1, 1_000_000), "Most records of one `poll`.")
    prefetch_bytes: int = _setting(16 * MIB, kinds.size(64 * KIB, 64 * GIB), "Bytes fetched ahead, over all partitions.")
    fetch_bytes: int = _setting(1 * MIB, kinds.size(1 * KIB, FRAME_PAYLOAD_BYTES_MAX // 2), "Most bytes of one fetch.")
    fetch_wait_ms: float = _setting(
        500.0, _milliseconds(int(LONG_POLL_SECONDS_MAX * 1000)), "How long the server may hold a fetch that finds nothing."
    )
    fetch_connections: int = _setting(
        8, kinds.count(1, 1000), "Most connections of one consumer for fetching; partitions share them when there are more."
    )
    assignment: Literal["range", "roundrobin", "all"] = _setting(
        "range", kinds.choice("range", "roundrobin", "all"),
        "How members of a group divide the partitions of their topics; with `all` each reads everything.",
    )  # fmt: skip
    read_from: Literal["leader", "nearest"] = _setting(
        "leader", kinds.choice("leader", "nearest"),
        "Whom consumers read from in a cluster: leaders, or replicas in sync, of the same `rack` where that is set. Nodes have "
        "to allow it (`follower_reads`); where none does, leaders are asked.",
    )  # fmt: skip
    rack: str = _setting("", kinds.optional_text(64), "Where this client stands, for `read_from` nearest.")
    session_timeout_s: float = _setting(
        10.0, kinds.duration(SESSION_TIMEOUT_MS_MIN / 1000, SESSION_TIMEOUT_MS_MAX / 1000),
        "Silence after which the broker gives a member's partitions to the others.",
    )  # fmt: skip
    # --- only as an argument
    ssl_context: ssl.SSLContext | None = field(default=None, metadata={"doc": "A ready TLS context, in place of the files."})

    @property
    def wants_tls(self) -> bool:
        """Whether an address that does not say so itself is spoken to in TLS."""
        return bool(self.tls or self.ssl_context or self.tls_ca_file or self.tls_cert_file)


class SettingArguments(TypedDict, total=False):
    """The keyword arguments of `connect`: the fields of `ClientSettings`, in the forms a program may give them."""

    timeout_s: float
    connect_timeout_s: float
    backoff_first_s: float
    backoff_most_s: float
    pool_size: int
    tls: bool
    tls_ca_file: str | None
    tls_cert_file: str | None
    tls_key_file: str | None
    tls_server_name: str | None
    encryption_key: str | None
    username: str | None
    password: str | None
    linger_ms: float
    batch_bytes: int
    buffer_bytes: int
    delivery_timeout_s: float
    retries_may_duplicate: bool
    auto_commit: bool
    auto_commit_interval_s: float
    max_poll_records: int
    prefetch_bytes: int
    fetch_bytes: int
    fetch_wait_ms: float
    fetch_connections: int
    assignment: Assignment
    read_from: ReadFrom
    rack: str
    session_timeout_s: float
    ssl_context: ssl.SSLContext | None


KINDS: Final[dict[str, Kind[Any]]] = {
    item.name: item.metadata["kind"] for item in fields(ClientSettings) if "kind" in item.metadata
}
"""How each setting that can be written as text is read."""
DOCS: Final[dict[str, str]] = {item.name: item.metadata["doc"] for item in fields(ClientSettings)}


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return ("BRAID_" if name in _SHARED_VARIABLES else "BRAID_CLIENT_") + name.upper()


def load_settings(arguments: Mapping[str, object], environ: Mapping[str, str], file: str | None = None) -> ClientSettings:
    """The settings from all sources. An argument that is None was not given."""
    values: dict[str, Any] = {}
    path = file or environ.get(FILE_VARIABLE)
    if path:
        for name, value in _read_file(path).items():
            values[name] = _read(name, value, path)
    for name in KINDS:
        if text := environ.get(variable(name)):
            values[name] = _read(name, text, variable(name))
    for name, value in arguments.items():
        if value is not None:
            values[name] = value if name == "ssl_context" else _read(name, value, "the arguments")
    for name, other in (("username", "password"), ("password", "username")):
        if values.get(name) is not None and values.get(other) is None:
            raise BraidError("CONFIG_INVALID_VALUE", key=other, origin="the settings", reason=f"`{name}` needs it")
    return ClientSettings(**values)


def override(settings: ClientSettings, arguments: Mapping[str, object]) -> ClientSettings:
    """The same settings with those of `arguments` that are not None; for one producer or consumer."""
    given = {name: _read(name, value, "the arguments") for name, value in arguments.items() if value is not None}
    values = {item.name: getattr(settings, item.name) for item in fields(ClientSettings)}
    return ClientSettings(**(values | given))


def _read(name: str, value: object, origin: str) -> Any:
    kind = KINDS.get(name)
    if kind is None:
        raise BraidError("CONFIG_UNKNOWN_KEY", key=name, origin=origin, suggestion=kinds.nearest(name, KINDS))
    try:
        return kind.read(value)
    except ValueError as fault:
        raise BraidError("CONFIG_INVALID_VALUE", key=name, origin=origin, reason=str(fault)) from None


def _read_file(path: str) -> dict[str, object]:
    try:
        data = Path(path).expanduser().read_bytes()
        found = json.loads(data) if path.endswith(".json") else tomllib.loads(data.decode())
    except (OSError, ValueError) as fault:
        raise BraidError("CONFIG_UNREADABLE", path=path, reason=str(fault)) from None
    if not isinstance(found, dict):
        raise BraidError("CONFIG_UNREADABLE", path=path, reason="it is not a table of settings")
    return found
