"""Every setting of the broker, declared once.

A setting is a field of `Config`. Its declaration carries the kind, the default and the line of documentation; its key in files,
its flag and its environment variable follow from the field's name. So the table that the loader, the command line and
the reference page read cannot drift from the object that the broker reads: they are the same lines.

A field that counts seconds ends in `_s`, one that counts milliseconds in `_ms`, and so do their keys: that is what a bare number
there means. The flag drops the unit: a person types `--retention-age 7d`.
"""

# ruff: noqa: RUF009  (a setting is declared by a call: `_setting` answers with a dataclass field)

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Final, Literal, TypeVar

from braidmq.base import config_kinds as kinds
from braidmq.base import limits
from braidmq.base.config_keys import ApiKey
from braidmq.base.config_kinds import Kind
from braidmq.base.config_links import FederationLink, Upstream
from braidmq.base.config_listen import CLUSTER_PORT, PORTS, HttpListen, Listen

T = TypeVar("T")

Durability = Literal["none", "os", "fsync", "quorum"]
LogLevel = Literal["debug", "info", "warn", "error"]
LogFormat = Literal["text", "json"]
Overflow = Literal["drop_oldest", "drop_new", "block"]
TimestampUnit = Literal["s", "ms", "us", "ns"]
Framing = Literal["flatbuffers", "binary1", "legacy"]
QuorumDriver = Literal["auto", "local", "managed", "etcd"]
Placement = Literal["round-robin", "least-loaded", "rack-aware"]
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
        # The unit is dropped where the value is a duration; in a rate `_s` says a second of what.
        name = self.key.removesuffix("_ms").removesuffix("_s") if self.kind.name == "duration" else self.key
        return "--" + name.replace("_", "-")

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
        tuple(Listen(protocol, "127.0.0.1", port) for protocol, port in PORTS.items()),
        kinds.listeners(),
        "Where the broker listens, and what it speaks there. Port 0 picks a free port; `flymqs`, `blipmqs` and `fqs` are TLS.",
    )
    durability: Durability = _setting(
        "fsync",
        kinds.choice("none", "os", "fsync", "quorum"),
        "What an ack means: `none` received, `os` written to the operating system, `fsync` on disk, `quorum` on disk at all "
        "replicas that are in sync (on one machine as `fsync`). Topics may override it.",
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
        300.0, kinds.duration(0.01, _YEARS_100_S, zero=True), "Silence after which a FlyMQ connection is closed."
    )

    tls_cert_file: str | None = _setting(None, kinds.optional_path(), "PEM certificate chain of TLS listeners.")
    tls_key_file: str | None = _setting(None, kinds.optional_path(), "PEM private key of TLS listeners.")
    tls_ca_file: str | None = _setting(
        None, kinds.optional_path(), "PEM authorities; when set, TLS clients must show a certificate signed by one of them."
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
    stage_timeout_s: float = _setting(
        3600.0,
        kinds.duration(0.01, 30 * _DAY_S),
        "Time after which what a writer staged and did not publish is void, counted from its last batch.",
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

    blipmq_api_keys: tuple[ApiKey, ...] = _setting(
        (),
        kinds.api_keys(),
        "Keys with which BlipMQ clients log in, each as a user; none means that nobody has to show one. Never shown.",
    )
    blipmq_payload_bytes_max: int = _setting(
        limits.BLIPMQ_PAYLOAD_BYTES_MAX,
        kinds.size(1, limits.BLIPMQ_SKIPPED_BYTES_MAX - limits.BLIPMQ_FRAME_SPARE_BYTES),
        "Longest payload of a BlipMQ message; longer ones are refused.",
    )
    blipmq_subscriber_capacity: int = _setting(
        8192, kinds.count(1, 1_000_000_000), "Messages a BlipMQ subscriber may be behind before `blipmq_overflow` applies."
    )
    blipmq_overflow: Overflow = _setting(
        "drop_oldest",
        kinds.choice("drop_oldest", "drop_new", "block"),
        "What happens when a QoS 0 subscriber is too far behind: it misses the oldest, or the newest, or publishers wait for it.",
    )
    blipmq_block_timeout_ms: int = _setting(
        1000, kinds.milliseconds(1, 3_600_000), "Longest that `block` holds up a publisher; the subscriber misses the message then."
    )
    blipmq_max_inflight: int = _setting(
        1024, kinds.count(1, 1_000_000), "QoS 1 messages that a BlipMQ subscriber may have and not have acknowledged."
    )
    blipmq_ack_timeout_ms: int = _setting(
        5000,
        kinds.milliseconds(1, 60_000),
        "Wait for an acknowledgement before a QoS 1 message is sent again; it doubles with each attempt, up to a minute.",
    )
    blipmq_max_attempts: int = _setting(
        5, kinds.count(1, 1000), "Attempts to deliver a QoS 1 message before it becomes a dead letter."
    )
    blipmq_durable_capacity: int = _setting(
        100_000,
        kinds.count(1, 1_000_000_000),
        "Messages that wait for a BlipMQ client that is away; the oldest beyond that become dead letters.",
    )
    blipmq_durable_expiry_s: float = _setting(
        _DAY_S, kinds.duration(0.01, _YEARS_100_S), "Absence after which a BlipMQ client's subscriptions are forgotten."
    )
    blipmq_keepalive_s: float = _setting(
        60.0, kinds.duration(0.01, _DAY_S, zero=True), "BlipMQ keepalive interval; a client silent for twice as long is closed."
    )
    blipmq_auth_timeout_s: float = _setting(
        10.0, kinds.duration(0.01, 3600), "Time in which a BlipMQ client has to show its key."
    )
    blipmq_max_batch: int = _setting(512, kinds.count(1, 1_000_000), "BlipMQ messages that go out in one write.")
    blipmq_max_batch_bytes: int = _setting(
        256 * limits.KIB, kinds.size(1, 64 * limits.MIB), "Bytes of BlipMQ messages that go out in one write."
    )
    blipmq_flush_interval_ms: int = _setting(
        1, kinds.milliseconds(1, 1000, zero=True), "Longest that a BlipMQ message waits for others to share its write."
    )
    blipmq_default_ttl_ms: int = _setting(
        0, kinds.milliseconds(1, limits.TTL_MS_MAX, zero=True), "Time to live of BlipMQ messages that have none."
    )
    blipmq_timestamp_unit: TimestampUnit = _setting(
        "s", kinds.choice("s", "ms", "us", "ns"), "Unit of the timestamps that BlipMQ clients are sent."
    )
    blipmq_strict_topics: bool = _setting(
        False, kinds.boolean(), "Whether BlipMQ clients may only name topics that exist."
    )
    blipmq_framings: tuple[Framing, ...] = _setting(
        ("flatbuffers", "binary1"),
        kinds.choices("flatbuffers", "binary1", "legacy"),
        "Framings that BlipMQ clients may speak; they are told apart by their first bytes.",
    )
    blipmq_dedup_window_ms: int = _setting(
        0,
        kinds.milliseconds(1, 3_600_000, zero=True),
        "How long the `message_id` of a BlipMQ publisher is remembered: a repeated one is acknowledged and not stored again.",
    )
    blipmq_write_stall_s: float = _setting(
        30.0, kinds.duration(0.01, _DAY_S), "Time after which a BlipMQ client that takes nothing of what it is sent is closed."
    )
    blipmq_drain_timeout_s: float = _setting(
        10.0, kinds.duration(0.01, 3600), "Longest that a stop waits for BlipMQ clients to take and acknowledge what they are owed."
    )
    blipmq_federation: tuple[FederationLink, ...] = _setting(
        (), kinds.federation_links(), "BlipMQ brokers from which this one takes what its own clients subscribe to."
    )

    fq_node_id: str | None = _setting(
        None,
        kinds.ipv4_address(),
        "Name of this broker among fq brokers, in the form of an address. No two that are linked may share one.",
        default_text="made from node_id",
    )
    fq_payload_bytes_max: int = _setting(
        31 * limits.MIB,
        kinds.size(128 * limits.KIB, 31 * limits.MIB),
        "Longest payload of an fq message; longer ones are dropped and counted.",
    )
    fq_backlog: int = _setting(
        16_384,
        kinds.count(1, 1_000_000_000),
        "Messages an fq queue holds for its clients, unless its creator asked for another number.",
    )
    fq_consumers_max: int = _setting(16, kinds.count(1, 10_000), "Clients that may share an fq queue.")
    fq_key_grace_s: float = _setting(
        2.0, kinds.duration(0.1, 60), "How long an fq client's key is good after its command connection has closed."
    )
    fq_upstreams: tuple[Upstream, ...] = _setting(
        (), kinds.upstreams(), "fq brokers from which this one takes messages, and what it binds there."
    )
    fq_http: bool = _setting(True, kinds.boolean(), "Whether fq ports answer HTTP: `/submit`, `/stats.json` and files.")
    fq_web_root: str | None = _setting(None, kinds.optional_path(), "Directory of the files that fq ports answer HTTP with.")

    cluster_listen: str | None = _setting(
        None,
        kinds.optional_address(CLUSTER_PORT),
        "Where other nodes of a cluster reach this broker; without it the broker stays alone. Gossip uses the same port by UDP.",
    )
    cluster_advertise: str | None = _setting(
        None,
        kinds.optional_address(CLUSTER_PORT),
        "The same address as others have to dial it.",
        default_text="cluster_listen, or this machine's address where that is any interface",
    )
    client_advertise: str | None = _setting(
        None,
        kinds.optional_address(PORTS["flymq"]),
        "Where clients are sent that need this broker.",
        default_text="the first FlyMQ listener, or this machine's address where that is any interface",
    )
    cluster_id: str = _setting(
        "",
        kinds.optional_text(64),
        "Name of the cluster; nodes of another one are refused.",
        default_text="made up by the first node",
    )
    join_token_file: str | None = _setting(
        None,
        kinds.optional_path(),
        "File with the secret that all nodes of a cluster share, 16 characters or more, unless `BRAID_JOIN_TOKEN` holds it.",
    )
    peers: tuple[str, ...] = _setting(
        (),
        kinds.addresses(CLUSTER_PORT),
        "Cluster addresses of nodes through which this one comes in. All nodes may have the same list: whose own address is the "
        "first of it begins the cluster, as does a node without a list.",
    )
    quorum: QuorumDriver = _setting(
        "auto",
        kinds.choice("auto", "local", "managed", "etcd"),
        "What keeps the metadata of a cluster: `local` a log of this broker, for one node; `managed` an etcd that the nodes run "
        "themselves; `etcd` one that is there already. `auto` is `local` without `cluster_listen`, `etcd` with `quorum_endpoints`, "
        "and `managed` otherwise.",
    )
    quorum_endpoints: tuple[str, ...] = _setting((), kinds.endpoints(), "Members of an etcd that is there already.")
    quorum_prefix: str = _setting("braidmq/", kinds.text(255), "What the keys of this cluster begin with in that etcd.")
    quorum_user: str = _setting(
        "", kinds.optional_text(255), "User of that etcd. The password is in `BRAID_QUORUM_PASSWORD` or `quorum_password_file`."
    )
    quorum_password_file: str | None = _setting(None, kinds.optional_path(), "File with the password of `quorum_user`.")
    quorum_tls_ca_file: str | None = _setting(None, kinds.optional_path(), "PEM authorities that sign the members of that etcd.")
    quorum_tls_cert_file: str | None = _setting(None, kinds.optional_path(), "PEM certificate that is shown to that etcd.")
    quorum_tls_key_file: str | None = _setting(None, kinds.optional_path(), "PEM private key of `quorum_tls_cert_file`.")
    etcd_client_listen: str | None = _setting(
        None,
        kinds.optional_address(2379),
        "Where the etcd that this node runs answers brokers.",
        default_text="the host of cluster_advertise, port 2379",
    )
    etcd_peer_listen: str | None = _setting(
        None,
        kinds.optional_address(2380),
        "Where the etcd that this node runs answers its other members.",
        default_text="the host of cluster_advertise, port 2380",
    )
    cluster_tls_cert_file: str | None = _setting(
        None, kinds.optional_path(), "PEM certificate that nodes show each other; with key and authority all between nodes is TLS."
    )
    cluster_tls_key_file: str | None = _setting(None, kinds.optional_path(), "PEM private key of `cluster_tls_cert_file`.")
    cluster_tls_ca_file: str | None = _setting(
        None, kinds.optional_path(), "PEM authority of the cluster, which signs its nodes and nothing else."
    )
    session_timeout_s: float = _setting(
        6.0, kinds.duration(1, 3600), "Silence after which the quorum takes a node for gone. Most losses are noticed earlier."
    )
    gossip: bool = _setting(
        True, kinds.boolean(), "Whether nodes tell each other by UDP who is there: a hint that shortens failovers."
    )
    discovery: bool = _setting(
        False, kinds.boolean(), "Whether this node answers `braid discover` and `flymq-discover` in the local network, by mDNS."
    )
    replication_factor: int = _setting(
        3, kinds.count(1, 100), "Replicas of a topic's partitions, or as many as there are nodes, until others come."
    )
    min_insync: int = _setting(
        2, kinds.count(1, 100), "Replicas that must have a record before it is acknowledged; 1 where there is one replica."
    )
    replica_lag_s: float = _setting(
        10.0, kinds.duration(0.1, 3600), "How long a replica may lack what its leader has before it is not in sync any more."
    )
    catch_up_bytes_per_s: int = _setting(
        100 * limits.MIB,
        kinds.size(64 * limits.KIB, 1 << 40),
        "How fast a node copies what it lacks, so that clients are not starved.",
    )
    placement: Placement = _setting(
        "round-robin",
        kinds.choice("round-robin", "least-loaded", "rack-aware"),
        "How partitions are laid out over nodes.",
    )
    rack: str = _setting(
        "", kinds.optional_text(64), "Where this node stands, for `rack-aware` placement and for readers of the same rack."
    )
    follower_reads: bool = _setting(
        False, kinds.boolean(), "Whether clients that ask for it may read from replicas in sync here, not from leaders alone."
    )
    auto_rebalance: bool = _setting(False, kinds.boolean(), "Whether leaders move by themselves so that nodes lead about as many.")
    rebalance_interval_s: float = _setting(300.0, kinds.duration(1, _DAY_S), "Time between two looks whether leaders should move.")
    rebalance_threshold: float = _setting(
        0.2, kinds.share(), "Unevenness that is left alone: how much more than the average a node may lead."
    )

    admin_enabled: bool = _setting(True, kinds.boolean(), "Whether the admin API and the web console are served.")
    admin_listen: HttpListen = _setting(
        HttpListen("http", "127.0.0.1", 9096), kinds.http_listener(9096), "Where the admin API and the web console are served."
    )
    admin_hosts: tuple[str, ...] = _setting(
        (),
        kinds.host_names(),
        "Names under which browsers reach the admin API, besides `localhost`, this machine's name and addresses. `*` is any name.",
    )
    metrics_enabled: bool = _setting(True, kinds.boolean(), "Whether metrics are served.")
    metrics_listen: HttpListen = _setting(
        HttpListen("http", "127.0.0.1", 9094), kinds.http_listener(9094), "Where Prometheus finds `/metrics`."
    )
    health_enabled: bool = _setting(True, kinds.boolean(), "Whether health is served.")
    health_listen: HttpListen = _setting(
        HttpListen("http", "127.0.0.1", 9095), kinds.http_listener(9095), "Where `/live`, `/ready` and `/health` are."
    )
    tracing_enabled: bool = _setting(
        False, kinds.boolean(), "Whether spans are made, with the OpenTelemetry that is set up in the process."
    )

    log_level: LogLevel = _setting("info", kinds.choice("debug", "info", "warn", "error"), "Least important line that is logged.")
    log_format: LogFormat = _setting("text", kinds.choice("text", "json"), "Form of log lines on standard error.")

    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)
    """Where each value came from, by key."""
    warnings: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """What the loader accepted but will not do; shown to the operator at start."""

    @property
    def web_listeners(self) -> dict[str, HttpListen]:
        """The HTTP servers that are switched on, by name."""
        servers = {
            "admin": (self.admin_enabled, self.admin_listen),
            "metrics": (self.metrics_enabled, self.metrics_listen),
            "health": (self.health_enabled, self.health_listen),
        }
        return {name: listen for name, (enabled, listen) in servers.items() if enabled}

    @property
    def quorum_driver(self) -> Literal["local", "managed", "etcd"]:
        """What `quorum` comes to."""
        if self.quorum != "auto":
            return self.quorum
        if self.cluster_listen is None:
            return "local"
        return "etcd" if self.quorum_endpoints else "managed"

    @property
    def cluster_tls(self) -> tuple[str, str, str] | None:
        """Files of certificate, key and authority between nodes; None where nodes do not speak TLS."""
        files = (self.cluster_tls_cert_file, self.cluster_tls_key_file, self.cluster_tls_ca_file)
        certificate, key, authority = files
        return None if certificate is None or key is None or authority is None else (certificate, key, authority)

    @property
    def fq_node(self) -> bytes:
        """The four bytes of `fq_node_id`, which belong to no machine where they are made up."""
        if self.fq_node_id is not None:
            return bytes(map(int, self.fq_node_id.split(".")))
        import hashlib

        return b"\x0a" + hashlib.sha256(self.node_id.encode()).digest()[:3]


def _row(declared: Field[Any]) -> Setting:
    assert declared.default_factory is not MISSING
    metadata = declared.metadata
    return Setting(declared.name, metadata["kind"], declared.default_factory, metadata["default_text"], metadata["doc"])


SETTINGS: Final[tuple[Setting, ...]] = tuple(_row(declared) for declared in fields(Config) if "kind" in declared.metadata)

BY_KEY: Final[dict[str, Setting]] = {setting.key: setting for setting in SETTINGS}

OTHER_VARIABLES: Final[dict[str, str]] = {
    "BRAID_CONFIG": "Configuration file of `braid serve` and `braid config show`, where `--config` does not name one.",
    "BRAID_CTX": "Context of the command line, where `--ctx` does not name one.",
    "BRAID_SERVERS": "Addresses, separated by commas, that clients and the command line connect to.",
    "BRAID_USERNAME": "Name with which clients and the command line log in.",
    "BRAID_PASSWORD": "Password with which clients and the command line log in. Shown nowhere.",
    "BRAID_PURE": "`1` runs the plain-Python twin of the compiled hot path.",
    "BRAID_AUTH_ADMIN_PASSWORD": "Password of the administrator that a start with `auth_enabled` creates. Shown nowhere.",
    "BRAID_JOIN_TOKEN": "Secret that all nodes of a cluster share, 16 characters or more. Shown nowhere.",
    "BRAID_QUORUM_PASSWORD": "Password of `quorum_user`. Shown nowhere.",
    "BRAID_ENCRYPTION_KEY": "Key with which clients encrypt values, and a broker with `encryption_enabled` its data.",
    "BRAID_ENCRYPTION_KEYS": "Keys of a broker with `encryption_enabled`, separated by commas: the last one encrypts, all decrypt.",
}
"""`BRAID_*` variables that are not settings of the broker. Any other one is an error, so that a typing mistake is not lost."""
CLIENT_PREFIX: Final = "BRAID_CLIENT_"
"""Variables of the client library; they mean nothing to the broker."""
