"""Every setting of the broker, declared once.

A setting is a field of `Config`. Its declaration carries the kind, the default and the line of documentation; its key in files,
its flag and its environment variable follow from the field's name. So the table that the loader, the command line and
the reference page read cannot drift from the object that the broker reads: they are the same lines.

A field that counts seconds ends in `_s`, and so does its key, because a bare number there means seconds. Its flag drops the unit: a
person types `--retention-age 7d`.
"""

# ruff: noqa: RUF009  (a setting is declared by a call: `_setting` answers with a dataclass field)

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Final, Literal, TypeVar

from braidmq.base import config_kinds as kinds
from braidmq.base import limits
from braidmq.base.config_kinds import Kind
from braidmq.base.config_listen import Listen

T = TypeVar("T")

Durability = Literal["none", "os", "fsync"]
LogLevel = Literal["debug", "info", "warn", "error"]
LogFormat = Literal["text", "json"]
TlsIdentity = Literal["none", "cn", "san-dns", "san-email", "san-uri"]

ENV_PREFIX: Final = "BRAID_"
_DAY_S: Final = 86400.0
_YEARS_100_S: Final = 100 * 365 * _DAY_S


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from. `name` is the flag, the variable or the file."""

    source: Literal["default", "file", "environment", "flag"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.name}".rstrip()


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    key: str
    """The name in files and in messages, and the attribute of `Config`."""
    kind: Kind[Any]
    default: Callable[[], Any]
    """Gives the default, which may depend on the machine."""
    default_text: str
    """How the reference names the default."""
    doc: str

    @property
    def flag(self) -> str:
        # `_s` is a unit to drop where the value is a duration; in a rate it says a second of what.
        return "--" + (self.key.removesuffix("_s") if self.kind.name == "duration" else self.key).replace("_", "-")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.key.upper()


def _setting(default: T | Callable[[], T], kind: Kind[T], doc: str, *, default_text: str = "") -> T:
    """A field of `Config`. Typed as its default, so that mypy holds kind, default and annotation together."""
    produce: Callable[[], Any] = default if callable(default) else lambda: default
    metadata = {"kind": kind, "doc": doc, "default_text": default_text or kind.show(produce())}
    declared: T = field(default_factory=produce, metadata=metadata)
    return declared


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings a broker runs with. Built by `load_config`, or directly in code that embeds a broker."""

    data_dir: str = _setting("./data", kinds.path(), "Directory that holds the log and all broker state.")
    listen: tuple[Listen, ...] = _setting(
        (Listen("flymq", "127.0.0.1", 9092),),
        kinds.listeners(),
        "Where the broker listens. Port 0 picks a free port, `flymqs` is TLS.",
    )
    durability: Durability = _setting(
        "fsync",
        kinds.choice("none", "os", "fsync"),
        "What an ack means: `none` received, `os` written to the operating system, `fsync` on disk. Topics may override it.",
    )
    ready_file: str | None = _setting(
        None, kinds.optional_path(), "JSON file with the listening addresses, written once the broker accepts connections."
    )
    node_id: str = _setting(
        lambda: os.uname().nodename, kinds.text(255), "Name of this broker in metadata.", default_text="the host name"
    )

    segment_bytes: int = _setting(
        256 * limits.MIB,
        kinds.size(limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MAX),
        "Size at which a partition starts a new segment file.",
    )
    segment_age_s: float = _setting(
        _DAY_S, kinds.duration(1, _YEARS_100_S, zero=True), "Age at which a partition starts a new segment file."
    )
    retention_bytes: int = _setting(
        1_000_000_000,
        kinds.size(1, 1 << 60, zero=True),
        "Bytes a partition keeps; its oldest closed segments beyond that are deleted.",
    )
    retention_age_s: float = _setting(
        7 * _DAY_S, kinds.duration(1, _YEARS_100_S, zero=True), "Age at which closed segments are deleted."
    )
    retention_interval_s: float = _setting(
        60.0, kinds.duration(0.01, _DAY_S), "Time between two looks for segments to roll or delete."
    )
    checkpoint_interval_s: float = _setting(
        60.0, kinds.duration(0.01, _DAY_S), "Time between two checkpoints; recovery reads what was written after the last one."
    )

    auto_create_topics: bool = _setting(True, kinds.boolean(), "Whether producing to an unknown topic creates it.")
    default_partitions: int = _setting(3, kinds.count(1, limits.PARTITIONS_MAX), "Partitions of a topic that producing creates.")
    max_topics: int = _setting(
        limits.TOPICS_MAX, kinds.count(1, limits.TOPICS_MAX), "Topics the broker holds before it refuses new ones."
    )
    max_connections: int = _setting(20_000, kinds.count(1, 1_000_000), "Connections served at a time; more are refused.")
    idle_timeout_s: float = _setting(
        300.0, kinds.duration(0.01, _YEARS_100_S, zero=True), "Silence after which a connection is closed."
    )

    tls_cert_file: str | None = _setting(None, kinds.optional_path(), "PEM certificate chain of `flymqs` listeners.")
    tls_key_file: str | None = _setting(None, kinds.optional_path(), "PEM private key of `flymqs` listeners.")
    tls_ca_file: str | None = _setting(
        None, kinds.optional_path(), "PEM authorities; when set, `flymqs` clients must show a certificate signed by one of them."
    )

    tls_identity: TlsIdentity = _setting(
        "cn",
        kinds.choice("none", "cn", "san-dns", "san-email", "san-uri"),
        "Which name of a verified client certificate is its user: the common name, a subject alternative name, or none.",
    )

    auth_enabled: bool = _setting(False, kinds.boolean(), "Whether clients have to log in, and every request is authorized.")
    auth_allow_anonymous: bool = _setting(
        False, kinds.boolean(), "Whether clients that did not log in may use public topics."
    )
    auth_default_public: bool = _setting(True, kinds.boolean(), "Whether topics without an ACL are public.")
    auth_admin_username: str = _setting(
        "admin", kinds.text(limits.USER_NAME_BYTES_MAX), "Administrator that is created at start where it is missing."
    )
    auth_admin_password_file: str | None = _setting(
        None,
        kinds.optional_path(),
        "File with the password of a new administrator, unless `BRAID_AUTH_ADMIN_PASSWORD` holds it.",
    )
    audit_enabled: bool = _setting(
        True, kinds.boolean(), "Whether logins, refusals and administration are written to the audit trail."
    )
    audit_retention_days: int = _setting(90, kinds.count(1, 36_500), "Days after which audit events are deleted.")
    audit_retention_bytes: int = _setting(
        1_000_000_000, kinds.size(16 * limits.MIB, 1 << 60), "Bytes of audit events kept; the oldest beyond that are deleted."
    )
    quota_bytes_per_s: int = _setting(
        0, kinds.size(1, 1 << 50, zero=True), "Bytes a second that a user may send and fetch; beyond that the user is slowed down."
    )
    quota_requests_per_s: int = _setting(
        0, kinds.count(0, 1_000_000_000), "Requests a second that a user may make, 0 for any; beyond that the user is slowed down."
    )

    transaction_timeout_s: float = _setting(
        60.0,
        kinds.duration(0.01, limits.TRANSACTION_TIMEOUT_S_MAX),
        "Time after which a transaction that asked for no other is aborted.",
    )
    delay_max_s: float = _setting(_DAY_S, kinds.duration(0.001, 365 * _DAY_S), "Longest delay of a delayed message.")
    ttl_s: float = _setting(
        0.0, kinds.duration(0.001, _YEARS_100_S, zero=True), "Time to live of records that have none, and whose topic has none."
    )
    dlq_attempts: int = _setting(3, kinds.count(1, 1000), "Failure at which a record becomes a dead letter.")
    dlq_retry_s: float = _setting(
        1.0, kinds.duration(0.001, 60), "Wait after the first failure of a record; it doubles with each, up to a minute."
    )
    schema_strict: bool = _setting(
        False, kinds.boolean(), "Whether a request that names a schema that is not there is refused."
    )

    encryption_enabled: bool = _setting(
        False,
        kinds.boolean(),
        "Whether everything on the disk is encrypted. The keys are in `encryption_key_file` or in the environment, never here.",
    )
    encryption_key_file: str | None = _setting(
        None, kinds.optional_path(), "File with the keys of encryption at rest, 64 hexadecimal digits a line, the newest last."
    )

    log_level: LogLevel = _setting("info", kinds.choice("debug", "info", "warn", "error"), "Least important line that is logged.")
    log_format: LogFormat = _setting("text", kinds.choice("text", "json"), "Form of log lines on standard error.")

    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)
    """Where each value came from, by key."""
    warnings: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """What the loader accepted but will not do; shown to the operator at start."""


def _row(declared: Field[Any]) -> Setting:
    assert declared.default_factory is not MISSING
    metadata = declared.metadata
    return Setting(declared.name, metadata["kind"], declared.default_factory, metadata["default_text"], metadata["doc"])


SETTINGS: Final[tuple[Setting, ...]] = tuple(_row(declared) for declared in fields(Config) if "kind" in declared.metadata)

BY_KEY: Final[dict[str, Setting]] = {setting.key: setting for setting in SETTINGS}

OTHER_VARIABLES: Final[dict[str, str]] = {
    "BRAID_CONFIG": "Configuration file of `braid serve` and `braid config show`, where `--config` does not name one.",
    "BRAID_SERVERS": "Addresses, separated by commas, that clients and the command line connect to.",
    "BRAID_USERNAME": "Name with which clients and the command line log in.",
    "BRAID_PASSWORD": "Password with which clients and the command line log in. Shown nowhere.",
    "BRAID_PURE": "`1` runs the plain-Python twin of the compiled hot path.",
    "BRAID_AUTH_ADMIN_PASSWORD": "Password of the administrator that a start with `auth_enabled` creates. Shown nowhere.",
    "BRAID_ENCRYPTION_KEY": "Key with which clients encrypt values, and a broker with `encryption_enabled` its data.",
    "BRAID_ENCRYPTION_KEYS": "Keys of a broker with `encryption_enabled`, separated by commas: the last one encrypts, all decrypt.",
}
"""`BRAID_*` variables that are not settings of the broker. Any other one is an error, so that a typing mistake is not lost."""
CLIENT_PREFIX: Final = "BRAID_CLIENT_"
"""Variables of the client library; they mean nothing to the broker."""
