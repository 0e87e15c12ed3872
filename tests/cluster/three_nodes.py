"""Several nodes in the test's own loop, over real sockets and real disks, with one quorum for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from braidmq.base.clock import SystemClock
from braidmq.base.config import Config, Listen
from braidmq.base.disk_real import RealDisk
from braidmq.cluster.hello import Identity
from braidmq.cluster.node import ClusterNode, NodeSettings
from braidmq.cluster.quorum_local import LocalQuorum
from braidmq.cluster.replication.settings import ReplicationSettings
from braidmq.cluster.transport import AddressBook
from braidmq.cluster.transport_tcp import TcpTransport
from braidmq.server.app import BrokerServer
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
        self.replication_factor = 3
        self.quorum = LocalQuorum(RealDisk(), str(directory / "quorum"), self._clock)
        self.servers: dict[str, BrokerServer] = {}

    async def __aenter__(self) -> Nodes:
        await self.quorum.open()
        await asyncio.gather(*(self.start(name) for name in self._names))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in list(self.servers):
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
                rebalance_interval_s=0.0, follower_reads=config.follower_reads, replication_factor=self.replication_factor,
            )  # fmt: skip
            return Clustering(
                settings, self.quorum, transport, book, self._clock, self.replication, close=transport.close
            )

        server = self.servers[name] = BrokerServer(config, clustering=clustering)
        async with asyncio.timeout(PATIENCE_S):
            await server.start()
        return server

    async def stop(self, name: str) -> None:
        server = self.servers.pop(name)
        async with asyncio.timeout(PATIENCE_S):
            await server.stop()

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
        return next(name for name in self.servers if self.node(name).coordinates)

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not reached():  # noqa: ASYNC110 (what is waited for tells nobody)
                await asyncio.sleep(0.01)
