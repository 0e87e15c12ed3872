"""Several nodes in the test's own loop, over real sockets and real disks, with one quorum for all of them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from braidmq.base.clock import SystemClock
from braidmq.base.config import Config, Listen
from braidmq.base.disk_real import RealDisk
from braidmq.broker.settings import BrokerSettings
from braidmq.cluster.hello import Identity
from braidmq.cluster.node import ClusterNode
from braidmq.cluster.node_settings import NodeSettings
from braidmq.cluster.quorum_local import LocalQuorum
from braidmq.cluster.replication.settings import ReplicationSettings
from braidmq.cluster.transport import AddressBook
from braidmq.cluster.transport_tcp import TcpTransport
from braidmq.server.app import BrokerServer, live_again
from braidmq.server.clustering import Clustering

PATIENCE_S = 30.0


class Nodes:
    """`async with Nodes(tmp_path) as nodes:` has three nodes, `a`, `b` and `c`, each in a rack of its own: `rack-a` and so on."""

    def __init__(self, directory: Path, names: str = "abc", **settings: object) -> None:
        self._directory = directory
        self._names = names
        self._settings: dict[str, object] = {"durability": "quorum", **settings}
        self._clock = SystemClock()
        self.replication = ReplicationSettings(lag_s=1.0)
        self.node_settings: dict[str, Any] = {}
        """Others than the usual ones of `NodeSettings`."""
        self.forgotten: list[str] = []
        """Nodes of which somebody said that they do not come back."""
        self.quorum = LocalQuorum(RealDisk(), str(directory / "quorum"), self._clock)
        self.engine: dict[str, Any] = {}
        """Settings of the engine that no configuration has."""
        self.servers: dict[str, BrokerServer] = {}
        self._running: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = {}

    async def __aenter__(self) -> Nodes:
        await self.quorum.open()
        await asyncio.gather(*(self.start(name) for name in self._names))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in list(self._running):
            await self.stop(name)
        await self.quorum.close()

    async def start(self, name: str) -> BrokerServer:
        config = Config(
            data_dir=str(self._directory / name), node_id=name, **{"listen": (Listen("flymq", "127.0.0.1", 0),), **self._settings}
        )  # type: ignore[arg-type]

        async def clustering() -> Clustering:
            book = AddressBook()
            identity = Identity(name, "tests", "a token that nobody guesses")
            transport = TcpTransport(identity, book, beat_s=0.2)
            address = await transport.listen("127.0.0.1", 0)
            identity.address = address
            settings = NodeSettings(
                node=name, cluster_id="tests", about={"cluster": address, "rack": f"rack-{name}"}, session_s=3.0, suspect_s=0.3,
                **{"rebalance_interval_s": 0.0, "follower_reads": config.follower_reads, **self.node_settings},
            )  # fmt: skip
            return Clustering(
                settings, self.quorum, transport, book, self._clock, self.replication, close=transport.close, forgotten=forgotten
            )

        async def forgotten(node: str) -> None:
            self.forgotten.append(node)

        stop, came = asyncio.Event(), asyncio.Event()

        async def live() -> None:
            server = self.servers[name] = BrokerServer(config, clustering=clustering, engine=self._engine)
            try:
                await server.run(stop, came.set, lambda: None)
            finally:
                if self.servers.get(name) is server:
                    del self.servers[name]

        running = asyncio.create_task(live_again(live))
        self._running[name] = running, stop
        waiting = asyncio.create_task(came.wait())
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if running.done():
            running.result()
        return self.servers[name]

    async def stop(self, name: str) -> None:
        running, stop = self._running.pop(name)
        stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await running

    def _engine(self, settings: BrokerSettings) -> BrokerSettings:
        return dataclasses.replace(settings, **self.engine)

    def node(self, name: str) -> ClusterNode:
        clustering = self.servers[name].clustering
        assert clustering is not None
        return clustering.node

    def address(self, name: str) -> str:
        return self.servers[name].addresses["flymq"]

    def port(self, name: str, protocol: str) -> str:
        return self.servers[name].addresses[protocol]

    def leader(self, topic: str, partition: int = 0) -> str:
        """Who leads a partition, as any node has it; empty when nobody does."""
        name = next(iter(self.servers))
        found = self.servers[name].broker.topics.get(topic)
        state = None if found is None else self.node(name).table.state((found.id, partition))
        return "" if state is None else state.leader

    def coordinator(self) -> str:
        return next(name for name in self.servers if self.servers[name].state == "ready" and self.node(name).coordinates)

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not reached():  # noqa: ASYNC110 (what is waited for tells nobody)
                await asyncio.sleep(0.01)
