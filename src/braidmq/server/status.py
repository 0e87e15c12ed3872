"""The documents that a broker gives about itself: how it is, who is connected, how it came up, with which settings it runs.

`braid status`, `braid top` and `braid debug bundle` are made of them. They hold names and figures, never records, and no secret: a
setting that has one shows it hidden.

Nothing here opens a partition. What lies in one that nobody used since the start is read off its files, once and beside the loop.
"""

from __future__ import annotations

import os
import resource
import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from braidmq import __version__, hot
from braidmq.base.config_settings import SETTINGS
from braidmq.broker.pace import Pace
from braidmq.broker.topics import Topic
from braidmq.server.deliveries import queues

if TYPE_CHECKING:
    from braidmq.server.app import BrokerServer
    from braidmq.server.session import Session


class Documents:
    def __init__(self, server: BrokerServer) -> None:
        self._server = server
        self._broker = server.broker
        self._started_s = self._broker.clock.monotonic()
        self._resting: dict[str, tuple[int, int]] = {}
        """First offset and bytes of partitions that nobody has opened; they do not change."""

    def register(self) -> None:
        made = (self.status, self.connections, self.recovery, self.configuration)
        self._broker.documents.update({make.__name__: make for make in made})

    # --- how it is

    async def status(self) -> dict[str, Any]:
        broker, server = self._broker, self._server
        topics = await self._topics()
        groups = await self._groups()
        listed = await queues(broker)
        read_only = [
            {"topic": log.topic, "partition": log.partition, "reason": str(log.failure)}
            for log in broker.store.open_partitions()
            if log.failure is not None
        ]
        report = broker.store.report
        return {
            "version": __version__,
            "node": broker.security.settings.node_id,
            "now_ms": broker.clock.now_ms(),
            "uptime_s": round(broker.clock.monotonic() - self._started_s, 3),
            "pid": os.getpid(),
            **({} if broker.peers is None else {"cluster": broker.peers.cluster_id}),
            "hot_path": hot.IMPLEMENTATION,
            "python": sys.version.split()[0],
            "data_dir": broker.settings.data_dir,
            "durability": server.config.durability,
            "encrypted": broker.store.keys is not None,
            "auth": broker.security.settings.auth_enabled,
            "listen": dict(server.addresses),
            "free_bytes": broker.disk.free_bytes(broker.settings.data_dir),
            "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "connections": dict(sorted(Counter(listener.protocol for listener, _ in self._sessions()).items())),
            "connections_max": server.config.max_connections,
            "latency": {name: {"in": taken, "out": pushed} for name, (taken, pushed) in broker.figures.latency_counts().items()},
            "topics": topics,
            "groups": groups,
            "read_only": read_only,
            "queues": [
                {
                    "queue": row.name,
                    "node": row.node,
                    "backlog": row.backlog,
                    "dropped": row.counts.dropped + row.counts.lost,
                    "consumers": len(row.clients),
                }
                for row in listed.rows
            ],
            "queues_missing": {row.node: row.reason for row in listed.missing},
            "delayed": len(broker.delayed),
            "pipelines": [{"pipeline": row.name, "state": broker.pipelines.state(row)} for row in broker.pipelines.table.all()],
            "recovery": {
                "clean": report.clean,
                "bytes_truncated": report.bytes_truncated,
                "partitions_cut": len(report.partitions),
                "unexplained": list(report.unexplained),
            },
        }

    async def _topics(self) -> list[dict[str, Any]]:
        broker, pace = self._broker, Pace()
        unseen = [
            name
            for topic in broker.topics.all()
            for name in (f"topics/{topic.id}/{number}" for number in range(topic.partitions))
            if name not in self._resting and broker.store.opened(topic.id, int(name.rpartition("/")[2])) is None
        ]
        if unseen:
            await broker.beside(partial(self._look_at, unseen))
        rows = []
        for topic in list(broker.topics.all()):
            await pace.step()
            rows.append(self._topic(topic))
        return rows

    def _topic(self, topic: Topic) -> dict[str, Any]:
        records = written = size = 0
        for number in range(topic.partitions):
            log = self._broker.store.opened(topic.id, number)
            if log is not None:
                start, end, here = log.log_start, log.high_watermark, log.size_bytes
            else:
                name = f"topics/{topic.id}/{number}"
                start, here = self._resting.get(name, (0, 0))
                end = max(start, self._broker.store.next_offset_of(name))
            records += end - start
            written += end
            size += here
        return {"topic": topic.name, "partitions": topic.partitions, "records": records, "written": written, "bytes": size}

    def _look_at(self, names: list[str]) -> None:
        disk, data_dir = self._broker.disk, self._broker.settings.data_dir
        for name in names:
            segments = [file for file in disk.list_directory(f"{data_dir}/{name}") if file.endswith(".log")]
            size = sum(disk.file_size(f"{data_dir}/{name}/{file}") for file in segments)
            self._resting[name] = (int(segments[0][:20]) if segments else 0, size)

    async def _groups(self) -> list[dict[str, Any]]:
        lags = {(lag.topic, lag.group): lag for lag in await self._broker.coordinator.lags()}
        rows, pace = [], Pace()
        for group in list(self._broker.coordinator.each_group()):
            await pace.step()
            lag = lags.get((group.topic, group.group))
            rows.append({
                "group": group.group, "topic": group.topic, "state": group.state, "members": len(group.members),
                "lag": lag.records if lag is not None else 0, "lag_ms": lag.ms if lag is not None else 0,
                "unknown": lag.unknown if lag is not None else [],
                "committed": sum(offset for _, offset in group.offsets),
            })  # fmt: skip
        return rows

    # --- who is connected

    def _sessions(self) -> list[tuple[Any, Session]]:
        return [(listener, session) for listener in self._server.listeners for session in listener.sessions]

    async def connections(self) -> list[dict[str, Any]]:
        return [
            {
                "address": session.address,
                "protocol": listener.protocol,
                "tls": listener.encrypted,
                "user": session.principal.name,
                "silent_s": round(max(0.0, listener.now - session.last_frame_at), 1),
                "unsent_bytes": session.unsent,
            }
            for listener, session in self._sessions()
        ]

    # --- how it came up, and with what

    async def recovery(self) -> dict[str, Any]:
        return self._broker.recovery()

    async def configuration(self) -> dict[str, Any]:
        config = self._server.config
        shown = {}
        for setting in SETTINGS:
            value = getattr(config, setting.key)
            origin = config.origins.get(setting.key)
            shown[setting.key] = {
                "value": "" if value is None else setting.kind.show(value),
                "from": "default" if origin is None else str(origin),
            }
        return shown
