"""The values of a cluster's metrics, as one of its nodes sees it. A broker that runs alone has none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braidmq.admin.metrics.snapshot import Snapshot
    from braidmq.server.app import BrokerServer


def read_cluster(found: Snapshot, server: BrokerServer) -> None:
    clustering = server.clustering
    if clustering is None:
        return
    figures = clustering.node.overview.figures()
    for name, value in {
        "braid_cluster_nodes": figures.nodes,
        "braid_cluster_nodes_live": figures.live,
        "braid_cluster_coordinator": figures.coordinates,
        "braid_cluster_coordinator_known": figures.has_coordinator,
        "braid_cluster_quorum_up": not clustering.node.quorum_fault,
        "braid_cluster_leaders": figures.leaders,
        "braid_cluster_replicas": figures.replicas,
        "braid_cluster_partitions_under_replicated": figures.under_replicated,
        "braid_cluster_partitions_under_min_insync": figures.under_min_insync,
        "braid_cluster_partitions_offline": figures.offline,
        "braid_cluster_partitions_reassigning": figures.reassigning,
        "braid_cluster_journals_replicas": figures.journals_replicas,
        "braid_cluster_journals_isr": figures.journals_isr,
        "braid_cluster_journals_min_insync": figures.journals_min_insync,
        "braid_cluster_elections_total": figures.elections,
        "braid_cluster_isr_shrinks_total": figures.isr_shrinks,
        "braid_cluster_isr_expansions_total": figures.isr_expansions,
    }.items():
        found.put(name, float(value))
    for size, count in sorted(figures.isr.items()):
        found.put("braid_cluster_isr_partitions", count, str(size))
    for node, lag in sorted(figures.lag.items()):
        found.put("braid_cluster_replica_lag_records", lag, node)
    found.put("braid_cluster_quorum_seconds", clustering.quorum_watch.seconds.copy())
