"""Every metric: name, kind, labels and what it means.

The reference page is made from this table, the text of a scrape is written by it, and tests hold both, the dashboard and the
alert rules to it. Names that begin with `flymq_` are those of FlyMQ's published server, for dashboards that exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()


METRICS: Final[tuple[Metric, ...]] = (
    # --- the broker
    Metric("braid_build_info", "gauge", "1, with the version and the hot path that runs.", ("version", "hot_path")),
    Metric("braid_uptime_seconds", "gauge", "Time since the broker began to start."),
    Metric("braid_ready", "gauge", "1 when clients may come: recovered, not stopping, no partition read-only, no quorum lost."),
    Metric("braid_recovery_truncated_bytes", "gauge", "Bytes that the last start cut off as unfinished."),
    Metric("process_resident_memory_bytes", "gauge", "Memory of the process."),
    Metric("process_cpu_seconds_total", "counter", "Processor time of the process."),
    Metric("process_open_fds", "gauge", "Open file descriptors of the process."),
    # --- throughput
    Metric("braid_records_in_total", "counter", "Records written to the log, by any protocol."),
    Metric("braid_log_written_bytes_total", "counter", "Bytes written to the log, as they lie on the disk."),
    Metric("braid_received_bytes_total", "counter", "Bytes that connections sent.", ("protocol",)),
    Metric("braid_sent_bytes_total", "counter", "Bytes that connections were sent.", ("protocol",)),
    Metric("braid_records_delivered_total", "counter", "Records that were pushed.", ("protocol",)),
    Metric("braid_delivered_bytes_total", "counter", "Bytes of records that were pushed.", ("protocol",)),
    Metric("braid_records_dropped_total", "counter", "Records that a subscriber missed, being too far behind.", ("protocol",)),
    Metric("braid_records_redelivered_total", "counter", "Records that were pushed again.", ("protocol",)),
    Metric("braid_records_lost_total", "counter", "Records that retention took before they were pushed.", ("protocol",)),
    # --- latency and the disk
    Metric(
        "braid_request_seconds", "histogram",
        "Time from a request to its answer, or from a write to its push. What waits for the disk together counts once.",
        ("protocol", "operation"),
    ),
    Metric("braid_commit_seconds", "histogram", "Time from the first write of a commit until it is as durable as asked."),
    Metric("braid_append_seconds", "histogram", "Time that the writes of one commit took."),
    Metric("braid_fsync_seconds", "histogram", "Time that a sync took, of however many files."),
    Metric("braid_batch_records", "histogram", "Records that one write of a partition brought."),
    Metric("braid_errors_total", "counter", "Requests that were answered with an error, by its code.", ("code",)),
    # --- topics
    Metric("braid_topics", "gauge", "Topics."),
    Metric("braid_partitions", "gauge", "Partitions."),
    Metric("braid_partitions_read_only", "gauge", "Partitions that take no records because their disk failed."),
    Metric("braid_log_bytes", "gauge", "Bytes of all topics on the disk."),
    Metric("braid_topic_records_total", "counter", "Records that a topic was ever given.", ("topic",)),
    Metric("braid_topic_read_records_total", "counter", "Records that FlyMQ clients fetched from a topic.", ("topic",)),
    Metric("braid_topic_bytes", "gauge", "Bytes of a topic on the disk.", ("topic",)),
    Metric("braid_topics_not_shown", "gauge", "Topics without metrics of their own, beyond the limit."),
    # --- groups
    Metric("braid_groups", "gauge", "Consumer groups."),
    Metric("braid_group_lag_records", "gauge", "Records that a group has not read yet.", ("topic", "group")),
    Metric("braid_group_lag_seconds", "gauge", "Age of the oldest record that a group has not read yet.", ("topic", "group")),
    Metric("braid_groups_lag_unknown", "gauge", "Groups whose lag is not known: a leader of their topic does not answer."),
    Metric("braid_groups_not_shown", "gauge", "Groups without metrics of their own, beyond the limit."),
    # --- connections and subscriptions
    Metric("braid_connections", "gauge", "Connections that are open.", ("protocol",)),
    Metric("braid_connections_total", "counter", "Connections that were accepted.", ("protocol",)),
    Metric("braid_subscriptions", "gauge", "Subscribers and queues that records are pushed to.", ("protocol",)),
    Metric("braid_pending_records", "gauge", "Records that are chosen for somebody and not delivered.", ("protocol",)),
    # --- security
    Metric("braid_auth_failures_total", "counter", "Logins that failed."),
    Metric("braid_access_denied_total", "counter", "Requests that were refused for want of a right."),
    Metric("braid_audit_dropped_total", "counter", "Events that did not get into the audit trail."),
    # --- work
    Metric("braid_transactions_open", "gauge", "Transactions that are open."),
    Metric("braid_delayed_messages", "gauge", "Messages that wait for their time."),
    Metric("braid_dead_letters", "gauge", "Dead letters on this node that wait for somebody; some may have been sent back."),
    # --- pipelines
    Metric("braid_pipeline_rows_in_total", "counter", "Rows that the newest run of a pipeline read.", ("pipeline",)),
    Metric("braid_pipeline_rows_out_total", "counter", "Rows that the newest run of a pipeline wrote.", ("pipeline",)),
    Metric("braid_pipeline_rows_rejected_total", "counter", "Rows that the newest run of a pipeline refused.", ("pipeline",)),
    # --- the cluster, as this node sees it; a broker that runs alone has none of these
    Metric("braid_cluster_nodes", "gauge", "Nodes of the cluster."),
    Metric("braid_cluster_nodes_live", "gauge", "Nodes of the cluster that are here."),
    Metric("braid_cluster_coordinator", "gauge", "1 on the node that coordinates."),
    Metric("braid_cluster_coordinator_known", "gauge", "1 while some node coordinates."),
    Metric("braid_cluster_quorum_up", "gauge", "1 while the metadata quorum answers this node."),
    Metric("braid_cluster_quorum_seconds", "histogram", "Time that the metadata quorum took to answer this node."),
    Metric("braid_cluster_leaders", "gauge", "Partitions that this node leads."),
    Metric("braid_cluster_replicas", "gauge", "Partitions that this node has."),
    Metric("braid_cluster_isr_partitions", "gauge", "Partitions that this node leads, by how many replicas are in sync.", ("isr",)),
    Metric("braid_cluster_partitions_under_replicated", "gauge", "Partitions led here with fewer replicas in sync than wanted."),
    Metric("braid_cluster_partitions_under_min_insync", "gauge", "Partitions led here with too few in sync to acknowledge."),
    Metric("braid_cluster_partitions_offline", "gauge", "Partitions of the cluster that nobody leads."),
    Metric("braid_cluster_partitions_reassigning", "gauge", "Partitions of the cluster that are on their way to other nodes."),
    Metric("braid_cluster_journals_replicas", "gauge", "Nodes that have the broker's own journals."),
    Metric("braid_cluster_journals_isr", "gauge", "Nodes that have all of the broker's own journals."),
    Metric("braid_cluster_journals_min_insync", "gauge", "Nodes that have to have all of the journals before anything can change."),
    Metric("braid_cluster_replica_lag_records", "gauge", "Records that a node lacks of what is led here, at most.", ("node",)),
    Metric("braid_cluster_elections_total", "counter", "How often a partition of the cluster got another leader."),
    Metric("braid_cluster_isr_shrinks_total", "counter", "How often a replica left those in sync, in the whole cluster."),
    Metric("braid_cluster_isr_expansions_total", "counter", "How often a replica came back in sync, in the whole cluster."),
    # --- the names of FlyMQ's server
    Metric("flymq_messages_produced_total", "counter", "As braid_records_in_total."),
    Metric("flymq_messages_consumed_total", "counter", "Records that were fetched or pushed, since the start."),
    Metric("flymq_messages_failed_total", "counter", "As all of braid_errors_total."),
    Metric("flymq_connections_active", "gauge", "As all of braid_connections."),
    Metric("flymq_connections_total", "counter", "As all of braid_connections_total."),
    Metric("flymq_topics_count", "gauge", "As braid_topics."),
    Metric("flymq_partitions_count", "gauge", "As braid_partitions."),
    Metric("flymq_consumer_groups_count", "gauge", "As braid_groups."),
    Metric("flymq_transactions_active", "gauge", "As braid_transactions_open."),
    Metric("flymq_cluster_nodes", "gauge", "Brokers of the cluster."),
    Metric("flymq_is_leader", "gauge", "1 on a broker that runs alone, and on the node that coordinates its cluster."),
    Metric("flymq_produce_latency_avg_microseconds", "gauge", "Mean time of a produce, since the start."),
)

BY_NAME: Final[dict[str, Metric]] = {metric.name: metric for metric in METRICS}
