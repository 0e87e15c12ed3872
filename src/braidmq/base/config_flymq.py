"""The published FlyMQ server's settings, for people who bring its environment or its JSON file along.

Three things can happen to one of its names. It *maps*: the value is translated and given to a setting of ours. It *belongs to
a feature this version does not have*: the broker starts without it, and says so. It is unknown: in a file that is an
error as for any key; in the environment it is left alone, because `FLYMQ_*` is not our namespace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from braidmq.base.config_listen import Listen, split_address


def _as_is(value: object) -> object:
    return value


def _bind_addr(value: object) -> object:
    """`:9092` and `host:9092` become a listener."""
    if not isinstance(value, str):
        raise ValueError(f"`{value}` is not an address")
    host, port = split_address(value.strip())
    return Listen("flymq", host, port)


def _acks(value: object) -> object:
    """`leader` is on its disk, `all` on those of all replicas in sync, which on one broker is the same."""
    level = {"all": "quorum", "leader": "fsync", "none": "none"}.get(str(value).strip().lower())
    if level is None:
        raise ValueError(f"`{value}` is not one of all, leader, none")
    return level


def flymq_boolean(value: object) -> bool:
    """FlyMQ's rule: `true` in any case or `1`; anything else is false."""
    return value is True or str(value).strip().lower() in ("true", "1")


def _milliseconds(value: object) -> object:
    """FlyMQ counts this one in milliseconds."""
    try:
        return float(str(value)) / 1000
    except ValueError:
        return value


def _log_json(value: object) -> object:
    return "json" if flymq_boolean(value) else "text"


@dataclass(frozen=True, slots=True)
class Alias:
    """A FlyMQ setting that one of ours answers to."""

    env: str
    """Empty where only the file has it."""
    json: str
    """Dotted key in FlyMQ's JSON file."""
    key: str
    """Our key."""
    translate: Callable[[object], object] = _as_is
    empty: bool = False
    """Whether an empty variable is a value."""
    appends: bool = False
    """Whether the variable adds to what the file says."""


ALIASES: Final = (
    Alias("FLYMQ_BIND_ADDR", "bind_addr", "listen", _bind_addr),
    Alias("FLYMQ_DATA_DIR", "data_dir", "data_dir"),
    Alias("FLYMQ_NODE_ID", "node_id", "node_id"),
    Alias("FLYMQ_CLUSTER_ADDR", "cluster_addr", "cluster_listen", empty=True),
    Alias("FLYMQ_ADVERTISE_ADDR", "advertise_addr", "client_advertise"),
    Alias("FLYMQ_ADVERTISE_CLUSTER", "advertise_cluster", "cluster_advertise"),
    Alias("FLYMQ_PEERS", "peers", "peers", appends=True),
    Alias("", "discovery.enabled", "discovery", flymq_boolean),
    Alias("", "discovery.cluster_id", "cluster_id"),
    Alias("FLYMQ_PARTITION_DISTRIBUTION_STRATEGY", "partition.distribution_strategy", "placement"),
    Alias("FLYMQ_DEFAULT_REPLICATION_FACTOR", "partition.default_replication_factor", "replication_factor"),
    Alias("FLYMQ_AUTO_REBALANCE_ENABLED", "partition.auto_rebalance_enabled", "auto_rebalance", flymq_boolean),
    Alias("FLYMQ_AUTO_REBALANCE_INTERVAL", "partition.auto_rebalance_interval", "rebalance_interval_s"),
    Alias("FLYMQ_REBALANCE_THRESHOLD", "partition.rebalance_threshold", "rebalance_threshold"),
    Alias("FLYMQ_RETENTION_BYTES", "retention_bytes", "retention_bytes"),
    Alias("FLYMQ_SEGMENT_BYTES", "segment_bytes", "segment_bytes"),
    Alias("FLYMQ_ACKS", "performance.acks", "durability", _acks),
    Alias("FLYMQ_DEFAULT_PARTITIONS", "partition.default_partitions", "default_partitions"),
    Alias("FLYMQ_TLS_CERT_FILE", "security.tls_cert_file", "tls_cert_file"),
    Alias("FLYMQ_TLS_KEY_FILE", "security.tls_key_file", "tls_key_file"),
    Alias("FLYMQ_TLS_CA_FILE", "security.tls_ca_file", "tls_ca_file"),
    Alias("FLYMQ_ENCRYPTION_ENABLED", "security.encryption_enabled", "encryption_enabled", flymq_boolean),
    Alias("FLYMQ_AUTH_ENABLED", "auth.enabled", "auth_enabled", flymq_boolean),
    Alias("", "auth.allow_anonymous", "auth_allow_anonymous", flymq_boolean),
    Alias("FLYMQ_AUTH_DEFAULT_PUBLIC", "auth.default_public", "auth_default_public", flymq_boolean),
    Alias("FLYMQ_AUTH_ADMIN_USERNAME", "auth.admin_username", "auth_admin_username"),
    Alias("", "audit.enabled", "audit_enabled", flymq_boolean),
    Alias("", "audit.retention_days", "audit_retention_days"),
    Alias("FLYMQ_TRANSACTION_TIMEOUT", "transaction.timeout", "transaction_timeout_s"),
    Alias("FLYMQ_DELAYED_MAX_DELAY", "delayed.max_delay", "delay_max_s"),
    Alias("FLYMQ_DEFAULT_TTL", "ttl.default_ttl", "ttl_s"),
    Alias("FLYMQ_DLQ_MAX_RETRIES", "dlq.max_retries", "dlq_attempts"),
    Alias("FLYMQ_DLQ_RETRY_DELAY", "dlq.retry_delay", "dlq_retry_s", _milliseconds),
    Alias("FLYMQ_METRICS_ENABLED", "observability.metrics.enabled", "metrics_enabled", flymq_boolean),
    Alias("FLYMQ_METRICS_ADDR", "observability.metrics.addr", "metrics_listen"),
    Alias("FLYMQ_HEALTH_ENABLED", "observability.health.enabled", "health_enabled", flymq_boolean),
    Alias("FLYMQ_HEALTH_ADDR", "observability.health.addr", "health_listen"),
    Alias("FLYMQ_ADMIN_ENABLED", "observability.admin.enabled", "admin_enabled", flymq_boolean),
    Alias("FLYMQ_ADMIN_ADDR", "observability.admin.addr", "admin_listen"),
    Alias("FLYMQ_TRACING_ENABLED", "observability.tracing.enabled", "tracing_enabled", flymq_boolean),
    Alias("FLYMQ_LOG_LEVEL", "log_level", "log_level"),
    Alias("FLYMQ_LOG_JSON", "log_json", "log_format", _log_json),
)

TLS_ENABLED_ENV: Final = "FLYMQ_TLS_ENABLED"
TLS_ENABLED_JSON: Final = "security.tls_enabled"
"""Turns the listener that comes from `bind_addr`, or from the default, into a TLS listener."""


@dataclass(frozen=True, slots=True)
class Absent:
    """A feature of FlyMQ that this version does not have, with the names that belong to it."""

    feature: str
    json: tuple[str, ...]
    """Dotted keys; one that ends in a dot covers the whole group."""
    env: tuple[str, ...]


def _front_end(name: str) -> tuple[str, ...]:
    tls = ("ALL", "AUTO_GENERATE", "USE_GLOBAL", "CERT_FILE", "KEY_FILE", "ADDR")
    return (f"FLYMQ_{name}_ENABLED", f"FLYMQ_{name}_ADDR", *(f"FLYMQ_{name}_TLS_{part}" for part in tls))


ABSENT: Final = (
    Absent("passwords in configuration files; use BRAID_AUTH_ADMIN_PASSWORD", ("auth.admin_password",), ()),
    Absent("user and ACL files", ("auth.",), ("FLYMQ_AUTH_USER_FILE", "FLYMQ_AUTH_ACL_FILE")),
    Absent(
        "switches and directories for schemas, which are always on and in the data directory",
        ("schema.",),
        ("FLYMQ_SCHEMA_ENABLED", "FLYMQ_SCHEMA_VALIDATION", "FLYMQ_SCHEMA_REGISTRY_DIR"),
    ),
    Absent("a switch for dead letters, which are always on, or another suffix for them", ("dlq.",), ("FLYMQ_DLQ_ENABLED",)),
    Absent("a clean-up for expired records, which nobody sees anyway", ("ttl.",), ("FLYMQ_TTL_CLEANUP_INTERVAL",)),
    Absent("a switch for delayed messages, which are always on", ("delayed.",), ("FLYMQ_DELAYED_ENABLED",)),
    Absent("a switch for transactions, which are always on", ("transaction.",), ("FLYMQ_TRANSACTION_ENABLED",)),
    Absent(
        "settings of its own for spans, certificates and logins there; OpenTelemetry's own variables say where spans go",
        ("observability.",),
        ("FLYMQ_TRACING_ENDPOINT", "FLYMQ_TRACING_SAMPLE_RATE"),
    ),
    Absent("a gRPC front end", ("grpc.",), _front_end("GRPC")),
    Absent("a WebSocket front end", ("ws.",), _front_end("WS")),
    Absent("an MQTT front end", ("mqtt.",), _front_end("MQTT")),
    Absent("this kind of tuning", ("performance.",), ("FLYMQ_DEFAULT_SERDE",)),
    Absent("audit files of their own", ("audit.",), ()),
)

_ABSENT_BY_ENV: Final = {name: row for row in ABSENT for name in row.env}


def absent_variable(name: str) -> Absent | None:
    """The missing feature that environment variable `name` belongs to."""
    return _ABSENT_BY_ENV.get(name)


def absent_key(key: str) -> Absent | None:
    """The missing feature that `key` of a FlyMQ JSON file belongs to."""
    for row in ABSENT:
        if any(key == known or (known.endswith(".") and key.startswith(known)) for known in row.json):
            return row
    return None


def asks_for_nothing(name: str, value: object) -> bool:
    """Whether a setting of a missing feature only switches the feature off, or leaves it empty."""
    return value in ("", None, [], {}) or (name.lower().endswith("enabled") and not flymq_boolean(value))
