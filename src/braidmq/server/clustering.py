"""What makes a broker a node of a cluster: a place in the quorum, a port for the others, replication, and forwarding.

Order matters. The port for others is open before the broker recovers, because others may ask at once; the node comes in before
its own clients are let in, because until then it does not know what it leads; and where clients find it is told when that is known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from braidmq.base.clock import Clock
from braidmq.base.config_settings import Config
from braidmq.base.disk import Disk
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.cluster.journals import INTERNAL_KEYS
from braidmq.cluster.membership.gossip_codec import Status
from braidmq.cluster.node import REPLICAS, ClusterNode
from braidmq.cluster.node_settings import NodeSettings
from braidmq.cluster.opening import open_cluster
from braidmq.cluster.partition_state import LogKey
from braidmq.cluster.quorum import MetaQuorum
from braidmq.cluster.quorum_watch import QuorumWatch
from braidmq.cluster.replica_table import ReplicaTable
from braidmq.cluster.replication.replication import Replication
from braidmq.cluster.replication.settings import ReplicationSettings
from braidmq.cluster.transport import AddressBook, Transport
from braidmq.server.forwarding import Forwarding

logger = logging.getLogger("braidmq.cluster")

_TELL_S: Final = 30.0
_AGAIN_S: Final = 0.3


class Clustering:
    def __init__(
        self, settings: NodeSettings, quorum: MetaQuorum, transport: Transport, addresses: AddressBook, clock: Clock,
        replication: ReplicationSettings | None = None, close: Callable[[], Awaitable[None]] | None = None,
        gossip: list[Callable[[str, Status], None]] | None = None,
        forgotten: Callable[[str], Awaitable[object]] | None = None,
    ) -> None:
        """`close` ends quorum and transport, when the node has left; those in `gossip` are told what it says of nodes;
        `forgotten` is called of a node that does not come back."""
        self._settings = settings
        self._quorum = quorum
        self._transport = transport
        self._addresses = addresses
        self._clock = clock
        self._replication_settings = replication or ReplicationSettings()
        self._close = close
        self._gossip = gossip
        self._forgotten = forgotten
        self.table = ReplicaTable()
        self.node: ClusterNode
        self.forwarding: Forwarding
        self.quorum_watch: QuorumWatch
        self._replication: Replication

    @property
    def machines(self) -> dict[str, Any]:
        """For the broker's metadata journal."""
        return {REPLICAS: self.table}

    def join(self, broker: Broker) -> None:
        """Become the peers of `broker`, before it recovers."""
        node = self.node = ClusterNode(
            self._settings, broker, self.table, self._quorum, self._transport, self._clock, self._addresses
        )
        broker.peers = node
        if self._forgotten is not None:
            node.forgotten = self._forgotten
        self._replication = Replication(
            self._transport, self._clock, broker.commit, node.log_of, node.alter_isr, self._replication_settings,
            min_insync=node.min_insync, refusal=self._refusal, generation=lambda: node.generation, beside=broker.beside,
        )  # fmt: skip
        self._replication.begin_anew = node.transfer.begin_anew
        node.replication = self._replication
        self.quorum_watch = QuorumWatch(node)
        broker.documents["cluster"] = node.document
        self.forwarding = Forwarding(node)
        if self._gossip is not None:
            self._gossip.append(self._rumoured)

    def _rumoured(self, name: str, status: Status) -> None:
        if status is not Status.ALIVE:
            self.node.suspicion.check(name)

    def _refusal(self, key: LogKey) -> BraidError:
        node = self.node
        if key in INTERNAL_KEYS:
            leader = node.coordinator_node()
            return BraidError("NOT_LEADER", reason=f"leader_id={leader} leader_addr={node.client_address(leader)}")
        return node.not_leader(*key)

    async def start(self) -> None:
        """Come in; when this returns, the node knows what it leads. While the quorum does not answer, it waits."""
        self.quorum_watch.start()
        said = False
        while True:
            try:
                await self.node.start()
                return
            except BraidError as error:
                if error.code != "QUORUM_UNAVAILABLE":
                    raise
                logger.log(logging.DEBUG if said else logging.WARNING, "waiting for the others: %s", error)
                said = True
            await asyncio.sleep(_AGAIN_S)

    @property
    def waits_for(self) -> str:
        """What the node lacks of the cluster's journals; empty where it follows them."""
        standing = self.node.transfer.standing if hasattr(self, "node") else ""
        return f"this node is not up to date: {standing}" if standing else ""

    async def announce(self, **about: str) -> None:
        """Tell the others where clients find this node."""
        async with asyncio.timeout(_TELL_S):
            await self.node.announce(about)

    async def leave(self) -> None:
        """Let others lead what this node leads, while it still serves."""
        await self.node.leave()

    async def stop(self) -> None:
        await self.quorum_watch.stop()
        await self.node.stop()
        self._replication.stop()
        if self._close is not None:
            await self._close()


async def open_clustering(config: Config, disk: Disk, clock: Clock, environ: Mapping[str, str]) -> Clustering:
    """The cluster that the settings name, as far as it needs no broker."""
    opened = await open_cluster(config, disk, clock, environ)
    settings = NodeSettings(
        node=config.node_id, cluster_id=opened.cluster_id, about={"cluster": opened.address, "rack": config.rack},
        replication_factor=config.replication_factor, min_insync=config.min_insync, placement=config.placement,
        session_s=config.session_timeout_s, rebalance_threshold=config.rebalance_threshold,
        rebalance_interval_s=config.rebalance_interval_s if config.auto_rebalance else 0.0, follower_reads=config.follower_reads,
    )  # fmt: skip
    replication = ReplicationSettings(lag_s=config.replica_lag_s, catch_up_bytes_per_s=config.catch_up_bytes_per_s)
    return Clustering(
        settings, opened.quorum, opened.transport, opened.book, clock, replication, close=opened.close, gossip=opened.watchers,
        forgotten=opened.leave_for_good,
    )  # fmt: skip
