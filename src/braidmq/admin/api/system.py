"""The broker itself: health, figures, how it came up, and the settings it runs with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import braidmq
from braidmq import hot
from braidmq.admin.call import Call, Nothing
from braidmq.admin.live import Event, LiveStream
from braidmq.admin.metrics.snapshot import Snapshot
from braidmq.base.config_settings import SETTINGS
from braidmq.base.figures import Figures as BrokerFigures
from braidmq.base.figures import Histogram, quantile
from braidmq.security.rules import Rule
from braidmq.server.app import BrokerServer
from braidmq.server.deliveries import parts_of, subscribers

_LIVE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Fine:
    """That the API answers."""

    status: str


@dataclass(frozen=True, slots=True)
class Latency:
    """Of one protocol, since the last figures of this stream; 0 where nothing happened."""

    in_p50_ms: Annotated[float, "from taking records in until they are as durable as asked"]
    in_p99_ms: float
    out_p50_ms: Annotated[float, "from writing a record until it was pushed; 0 for FlyMQ, whose clients fetch"]
    out_p99_ms: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What goes on now; counters are since the start."""

    time_ms: int
    uptime_s: float
    records_in: int
    written_bytes: int
    received_bytes: int
    sent_bytes: int
    delivered: Annotated[int, "records that were pushed"]
    dropped: int
    redelivered: int
    connections: dict[str, int]
    topics: int
    auth_failures: int
    errors: int
    latency: Annotated[dict[str, Latency], "by protocol"]
    commit_p99_ms: Annotated[float, "since the last figures of this stream"]
    fsync_p99_ms: float


@dataclass(frozen=True, slots=True)
class Statistics:
    """All figures in one document."""

    cluster: dict[str, Any]
    nodes: list[dict[str, Any]]
    topics: dict[str, Any]
    consumer_groups: dict[str, Any]
    system: dict[str, Any]
    figures: Figures


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """What was found in a partition that was not as a clean stop leaves it."""

    topic: str
    partition: int
    checked_bytes: int
    records_found: int
    truncated_bytes: int
    truncated_at: str
    reason: str
    next_offset: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """How the broker came up."""

    clean: Annotated[bool, "whether it had been stopped in order"]
    partitions_opened: int
    bytes_checked: int
    bytes_truncated: int
    unexplained: Annotated[list[str], "directories that belong to no topic; they are kept"]
    partitions: list[RecoveredPartition]


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting."""

    key: str
    value: Annotated[str, "secrets are not shown"]
    source: Annotated[str, "default, file, environment or flag"]
    name: Annotated[str, "the file, variable or flag"]
    default: str
    doc: str


@dataclass(frozen=True, slots=True)
class Version:
    """What runs."""

    version: str
    hot_path: str
    node_id: str
    state: str
    listeners: dict[str, str]


def check_health(call: Call[Nothing, Nothing]) -> Fine:
    """Whether the API answers; the health port says more."""
    return Fine("healthy")


def get_version(call: Call[Nothing, Nothing]) -> Version:
    """What runs here."""
    server = call.server
    return Version(braidmq.__version__, hot.IMPLEMENTATION, server.config.node_id, server.state, dict(server.addresses))


async def get_metrics(call: Call[Nothing, Nothing]) -> Snapshot:
    """The metrics, as the metrics port has them."""
    return await call.metrics.read()


async def get_stats(call: Call[Nothing, Nothing]) -> Statistics:
    """The figures in one document."""
    server, broker = call.server, call.broker
    snapshot = await call.metrics.read()

    def value(name: str) -> float:
        return sum(each for each in snapshot.values.get(name, {}).values() if not isinstance(each, Histogram))

    node = {"id": server.config.node_id, "state": "alive", "is_leader": True}
    return Statistics(
        cluster={"cluster_id": "standalone", "node_count": 1, "leader_id": server.config.node_id, "version": braidmq.__version__},
        nodes=[node],
        topics={"count": value("braid_topics"), "partitions": value("braid_partitions"), "bytes": value("braid_log_bytes")},
        consumer_groups={"count": value("braid_groups"), "lag": value("braid_group_lag_records")},
        system={
            "uptime_seconds": value("braid_uptime_seconds"), "memory_bytes": value("process_resident_memory_bytes"),
            "cpu_seconds": value("process_cpu_seconds_total"), "open_files": value("process_open_fds"),
        },
        figures=_figures(server, Counts.of(broker.figures)),
    )  # fmt: skip


def follow_figures(call: Call[Nothing, Nothing]) -> LiveStream:
    """Follow the figures: server-sent events, one `figures` a second."""
    before: Counts | None = None

    async def step() -> list[Event]:
        nonlocal before
        call.require(Rule.AUTHENTICATED, what="follow_figures")
        now = Counts.of(call.broker.figures)
        recent = now if before is None else now.since(before)
        before = now
        return [Event("figures", _figures(call.server, recent))]

    return LiveStream(step, _LIVE_SECONDS)


def get_recovery(call: Call[Nothing, Nothing]) -> Recovery:
    """How the broker came up: what recovery checked, found and cut off."""
    report = call.broker.store.report
    return Recovery(
        report.clean, report.partitions_opened, report.bytes_checked, report.bytes_truncated, list(report.unexplained),
        [
            RecoveredPartition(
                each.topic, each.partition, each.checked_bytes, each.records_found, each.truncated_bytes, each.truncated_at,
                each.reason, each.next_offset,
            )
            for each in report.partitions
        ],
    )  # fmt: skip


def get_config(call: Call[Nothing, Nothing]) -> list[SettingRow]:
    """Every setting with its value and where it came from. Secrets are not shown."""
    config = call.server.config
    rows = []
    for setting in SETTINGS:
        value = getattr(config, setting.key)
        origin = config.origins.get(setting.key)
        rows.append(
            SettingRow(
                setting.key, "" if value is None else setting.kind.show(value), "default" if origin is None else origin.source,
                "" if origin is None else origin.name, setting.default_text, setting.doc,
            )
        )
    return rows


@dataclass(frozen=True, slots=True)
class Counts:
    """How often what took how long."""

    protocols: dict[str, tuple[list[int], list[int]]]
    commits: list[int]
    syncs: list[int]

    @classmethod
    def of(cls, figures: BrokerFigures) -> Counts:
        return cls(figures.latency_counts(), figures.commit_s.counts, figures.sync_s.counts)

    def since(self, before: Counts) -> Counts:
        protocols = {
            name: (_less(taken, before.protocols[name][0]), _less(pushed, before.protocols[name][1]))
            for name, (taken, pushed) in self.protocols.items()
        }
        return Counts(protocols, _less(self.commits, before.commits), _less(self.syncs, before.syncs))


def _less(new: list[int], old: list[int]) -> list[int]:
    return [each - earlier for each, earlier in zip(new, old, strict=True)]


def _figures(server: BrokerServer, counts: Counts) -> Figures:
    broker = server.broker
    figures = broker.figures
    parts = [*broker.push.closed.values(), *(queue.counters for queue in broker.fq.all())]
    parts += [part.counters for subscriber in subscribers(server.broker) for part in parts_of(subscriber)]
    connections: dict[str, int] = {}
    for listener in server.listeners:
        connections[listener.protocol] = connections.get(listener.protocol, 0) + len(listener.sessions)
    return Figures(
        time_ms=server.clock.now_ms(),
        uptime_s=round(server.clock.monotonic() - server.started_s, 3),
        records_in=figures.records,
        written_bytes=figures.written_bytes,
        received_bytes=sum(listener.received_bytes for listener in server.listeners),
        sent_bytes=sum(listener.sent_bytes for listener in server.listeners),
        delivered=sum(part.delivered for part in parts),
        dropped=sum(part.dropped for part in parts),
        redelivered=sum(part.redelivered for part in parts),
        connections=connections,
        topics=len(broker.topics),
        auth_failures=figures.auth_failures,
        errors=sum(figures.errors.values()),
        latency={
            name: Latency(_ms(taken, 0.5), _ms(taken, 0.99), _ms(pushed, 0.5), _ms(pushed, 0.99))
            for name, (taken, pushed) in counts.protocols.items()
        },
        commit_p99_ms=_ms(counts.commits, 0.99),
        fsync_p99_ms=_ms(counts.syncs, 0.99),
    )


def _ms(counts: list[int], part: float) -> float:
    return round(quantile(counts, part) * 1000, 3)
