"""Takes the values of all metrics on the broker's loop, a little at a time.

Long tables (topics, groups) are walked with pauses, so that nobody waits for a scrape; what is written from them is made in the
HTTP thread. Only so many topics and groups have metrics of their own: the largest, and how many are left out is a metric itself.
The lag of groups means looking into the log, so it is taken at most every few seconds, whoever scrapes.
"""

from __future__ import annotations

import json
import os
import resource
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import braidmq
from braidmq import hot
from braidmq.admin.looking import open_logs
from braidmq.admin.metrics.cluster import read_cluster
from braidmq.base import limits
from braidmq.base.figures import PRODUCED, Histogram
from braidmq.broker.broker import Broker
from braidmq.broker.names import INTERNAL_PREFIX
from braidmq.broker.pace import Pace
from braidmq.broker.push.subscription import Counters
from braidmq.server.app import BrokerServer
from braidmq.server.deliveries import parts_of, subscribers

_LAG_SECONDS: Final = 10.0

Labels = tuple[str, ...]
Value = float | Histogram


@dataclass(slots=True)
class Snapshot:
    """Values by metric and labels."""

    values: dict[str, dict[Labels, Value]] = field(default_factory=dict)

    def put(self, name: str, value: Value, *labels: str) -> None:
        self.values.setdefault(name, {})[labels] = value


class MetricsReader:
    """On the broker's loop."""

    def __init__(self, server: BrokerServer) -> None:
        self._server = server
        self._lags: list[tuple[str, str, int, int]] = []
        """Topic, group, records, milliseconds."""
        self._groups = 0
        self._lags_unknown = 0
        self._lags_at = float("-inf")
        self._reading_lags = False

    async def read(self) -> Snapshot:
        found = Snapshot()
        broker = self._server.broker
        pace = Pace()
        read_only = await self._topics(found, broker, pace)
        self._broker(found, read_only)
        self._traffic(found, broker)
        await self._deliveries(found, pace)
        await self._group_lags(found, broker)
        self._work(found, broker)
        read_cluster(found, self._server)
        self._flymq(found, broker)
        return found

    def _broker(self, found: Snapshot, read_only: int) -> None:
        server = self._server
        found.put("braid_build_info", 1, braidmq.__version__, hot.IMPLEMENTATION)
        found.put("braid_uptime_seconds", server.clock.monotonic() - server.started_s)
        found.put("braid_ready", 1 if server.state == "ready" and not read_only and not _trouble(server) else 0)
        found.put("braid_recovery_truncated_bytes", server.broker.store.report.bytes_truncated)
        used = resource.getrusage(resource.RUSAGE_SELF)
        found.put("process_cpu_seconds_total", used.ru_utime + used.ru_stime)
        found.put("process_resident_memory_bytes", _resident_bytes(used.ru_maxrss))
        found.put("process_open_fds", len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0)

    async def _topics(self, found: Snapshot, broker: Broker, pace: Pace) -> int:
        """Also says how many partitions are read-only."""
        rows: list[tuple[int, str, int, int]] = []
        topics = [topic for topic in broker.topics.all() if not topic.name.startswith(INTERNAL_PREFIX)]
        partitions = read_only = total_bytes = letters = 0
        suffix = broker.settings.dlq_suffix
        table = broker.work.table.letters
        for topic in topics:
            records = read = size = 0
            partitions += topic.partitions
            for number, log in enumerate(await open_logs(broker, topic, pace)):
                if log is None:
                    continue
                records += log.high_watermark
                read += log.read_records
                size += log.size_bytes
                read_only += log.failure is not None
                if topic.name.endswith(suffix):
                    letters += max(0, log.high_watermark - table.first_from(topic.id, number, log.log_start))
            total_bytes += size
            rows.append((size, topic.name, records, read))
        found.put("braid_topics", len(topics))
        found.put("braid_partitions", partitions)
        found.put("braid_partitions_read_only", read_only)
        found.put("braid_log_bytes", total_bytes)
        found.put("braid_dead_letters", letters)
        shown = rows
        if len(rows) > limits.METRIC_TOPICS_MAX:
            rows.sort(reverse=True)
            shown = rows[: limits.METRIC_TOPICS_MAX]
        found.put("braid_topics_not_shown", len(rows) - len(shown))
        found.values["braid_topic_bytes"] = {(name,): size for size, name, _, _ in shown}
        found.values["braid_topic_records_total"] = {(name,): records for _, name, records, _ in shown}
        found.values["braid_topic_read_records_total"] = {(name,): read for _, name, _, read in shown}
        return read_only

    def _traffic(self, found: Snapshot, broker: Broker) -> None:
        figures = broker.figures
        found.put("braid_records_in_total", figures.records)
        found.put("braid_log_written_bytes_total", figures.written_bytes)
        for (protocol, operation), histogram in figures.requests.items():
            found.put("braid_request_seconds", histogram.copy(), protocol, operation)
        found.put("braid_commit_seconds", figures.commit_s.copy())
        found.put("braid_append_seconds", figures.append_s.copy())
        found.put("braid_fsync_seconds", figures.sync_s.copy())
        found.put("braid_batch_records", figures.batch_records.copy())
        for code, count in figures.errors.items():
            found.put("braid_errors_total", count, code)
        found.put("braid_auth_failures_total", figures.auth_failures)
        found.put("braid_access_denied_total", figures.denied)
        trail = broker.security.audit
        found.put("braid_audit_dropped_total", 0 if trail is None else trail.dropped)
        ports: dict[str, Counter[str]] = {}
        for listener in self._server.listeners:
            port = ports.setdefault(listener.protocol, Counter())
            port.update(
                braid_received_bytes_total=listener.received_bytes, braid_sent_bytes_total=listener.sent_bytes,
                braid_connections=len(listener.sessions), braid_connections_total=listener.accepted,
            )  # fmt: skip
        for protocol, port in ports.items():
            for name, value in port.items():
                found.put(name, value, protocol)

    async def _deliveries(self, found: Snapshot, pace: Pace) -> None:
        broker = self._server.broker
        live: dict[str, list[Any]] = {"blipmq": [], "fq": list(broker.fq.all())}
        for subscriber in subscribers(self._server.broker):
            await pace.step()
            live["blipmq"] += parts_of(subscriber)
        for protocol, parts in live.items():
            total = Counters()
            total.add(broker.push.closed.get(protocol, Counters()))
            pending = 0
            for part in parts:
                await pace.step()
                total.add(part.counters)
                pending += part.pending.count
            found.put("braid_subscriptions", len(parts), protocol)
            found.put("braid_pending_records", pending, protocol)
            found.put("braid_records_delivered_total", total.delivered, protocol)
            found.put("braid_delivered_bytes_total", total.delivered_bytes, protocol)
            found.put("braid_records_dropped_total", total.dropped, protocol)
            found.put("braid_records_redelivered_total", total.redelivered, protocol)
            found.put("braid_records_lost_total", total.lost, protocol)

    async def _group_lags(self, found: Snapshot, broker: Broker) -> None:
        now_s = broker.clock.monotonic()
        if now_s - self._lags_at >= _LAG_SECONDS and not self._reading_lags:
            self._reading_lags = True
            try:
                lags = await broker.coordinator.lags()
                self._groups = len(lags)
                # A group of which part is not known has no sample: too small a figure would look like one that reads.
                rows = [(lag.topic, lag.group, lag.records, lag.ms) for lag in lags if not lag.unknown]
                self._lags_unknown = len(lags) - len(rows)
                rows.sort(key=lambda row: row[2], reverse=True)
                self._lags = rows[: limits.METRIC_GROUPS_MAX]
                self._lags_at = now_s
            finally:
                self._reading_lags = False
        found.put("braid_groups", self._groups)
        found.put("braid_groups_lag_unknown", self._lags_unknown)
        found.put("braid_groups_not_shown", self._groups - len(self._lags) - self._lags_unknown)
        for topic, group, records, ms in self._lags:
            found.put("braid_group_lag_records", records, topic, group)
            found.put("braid_group_lag_seconds", ms / 1000, topic, group)

    def _work(self, found: Snapshot, broker: Broker) -> None:
        found.put("braid_transactions_open", len(broker.transactions))
        found.put("braid_delayed_messages", len(broker.delayed))
        for pipeline in broker.pipelines.table.all():
            report = json.loads(broker.pipelines.progress(pipeline) or "{}")
            rows = {"in": report.get("rows", 0), "out": _sum(report.get("written")), "rejected": _sum(report.get("rejected"))}
            for way, count in rows.items():
                found.put(f"braid_pipeline_rows_{way}_total", count, pipeline.name)

    def _flymq(self, found: Snapshot, broker: Broker) -> None:
        def total(name: str) -> float:
            return sum(value for value in found.values.get(name, {}).values() if not isinstance(value, Histogram))

        produced = broker.figures.request("flymq", PRODUCED)
        count = produced.count
        for name, value in {
            "flymq_messages_produced_total": total("braid_records_in_total"),
            "flymq_messages_consumed_total": total("braid_topic_read_records_total") + total("braid_records_delivered_total"),
            "flymq_messages_failed_total": total("braid_errors_total"),
            "flymq_connections_active": total("braid_connections"),
            "flymq_connections_total": total("braid_connections_total"),
            "flymq_topics_count": total("braid_topics"),
            "flymq_partitions_count": total("braid_partitions"),
            "flymq_consumer_groups_count": total("braid_groups"),
            "flymq_transactions_active": total("braid_transactions_open"),
            "flymq_cluster_nodes": total("braid_cluster_nodes") or 1.0,
            "flymq_is_leader": 1.0 if broker.peers is None or broker.peers.coordinates else 0.0,
            "flymq_produce_latency_avg_microseconds": produced.total / count * 1e6 if count else 0.0,
        }.items():
            found.put(name, value)


def _sum(counts: Any) -> float:
    """Of a report, which anybody may have written."""
    values = counts.values() if isinstance(counts, dict) else ()
    return sum(value for value in values if isinstance(value, (int, float)))


def _trouble(server: BrokerServer) -> str:
    return "" if server.clustering is None else server.clustering.node.trouble


def _resident_bytes(peak_kib: int) -> int:
    """What the process takes now; where the system does not say, the most it ever took."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_kib * limits.KIB
