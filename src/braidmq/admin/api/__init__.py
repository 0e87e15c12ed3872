"""Every endpoint of the admin API: one row each.

Those of FlyMQ's published API have its paths and the fields it documents; more fields may stand beside them.
"""

from __future__ import annotations

from typing import Final

from braidmq.admin.api import (
    accounts,
    audit,
    cluster,
    dead_letters,
    deliveries,
    disk,
    groups,
    letter_mending,
    logins,
    message_detail,
    messages,
    pipelines,
    replays,
    schemas,
    system,
    topic_figures,
    topics,
    waiting,
)
from braidmq.admin.endpoint import Endpoint
from braidmq.admin.live import MEDIA as EVENTS
from braidmq.admin.metrics.text import MEDIA as METRICS
from braidmq.security.rules import Rule

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    # --- who one is
    Endpoint("GET", "/api/v1/session", Rule.NONE, logins.who_am_i),
    Endpoint("POST", "/api/v1/session", Rule.NONE, logins.log_in, 201, hashes=True),
    Endpoint("DELETE", "/api/v1/session", Rule.NONE, logins.log_out, 204),
    # --- topics
    Endpoint("GET", "/api/v1/topics", Rule.AUTHENTICATED, topics.list_topics),
    Endpoint("POST", "/api/v1/topics", Rule.ADMIN, topics.create_topic, 201),
    Endpoint("GET", "/api/v1/topics/{topic}", Rule.READ_TOPIC, topics.get_topic, raw_tail=True),
    Endpoint("PATCH", "/api/v1/topics/{topic}", Rule.ADMIN, topics.configure_topic),
    Endpoint("DELETE", "/api/v1/topics/{topic}", Rule.ADMIN, topics.delete_topic, 204, raw_tail=True),
    Endpoint("GET", "/api/v1/topics/{topic}/messages", Rule.READ_TOPIC, messages.list_messages),
    Endpoint("POST", "/api/v1/topics/{topic}/messages", Rule.WRITE_TOPIC, messages.produce_message, 201),
    Endpoint("GET", "/api/v1/topics/{topic}/messages/{partition}/{offset}", Rule.READ_TOPIC, message_detail.get_message),
    Endpoint("GET", "/api/v1/topic-figures", Rule.AUTHENTICATED, topic_figures.list_topic_figures),
    Endpoint("GET", "/api/v1/topics/{topic}/tail", Rule.READ_TOPIC, messages.tail_messages, media=EVENTS),
    # --- groups
    Endpoint("GET", "/api/v1/topics/{topic}/groups/{group}", Rule.READ_TOPIC, groups.get_topic_group),
    Endpoint("DELETE", "/api/v1/topics/{topic}/groups/{group}", Rule.ADMIN, groups.delete_topic_group, 204),
    Endpoint("POST", "/api/v1/topics/{topic}/groups/{group}/reset", Rule.ADMIN, groups.reset_group),
    Endpoint("GET", "/api/v1/consumer-groups", Rule.AUTHENTICATED, groups.list_groups),
    Endpoint("GET", "/api/v1/consumer-groups/{group}", Rule.AUTHENTICATED, groups.get_group, raw_tail=True),
    Endpoint("DELETE", "/api/v1/consumer-groups/{group}", Rule.ADMIN, groups.delete_group, 204, raw_tail=True),
    # --- schemas
    Endpoint("GET", "/api/v1/schemas", Rule.AUTHENTICATED, schemas.list_schemas),
    Endpoint("POST", "/api/v1/schemas", Rule.ADMIN, schemas.register_schema, 201),
    Endpoint("GET", "/api/v1/schemas/{name}", Rule.READ_TOPIC, schemas.get_schema, about="name", raw_tail=True),
    Endpoint("DELETE", "/api/v1/schemas/{name}", Rule.ADMIN, schemas.delete_schema, 204, about="name", raw_tail=True),
    Endpoint("GET", "/api/v1/schemas/{name}/versions", Rule.READ_TOPIC, schemas.list_schema_versions, about="name"),
    Endpoint("GET", "/api/v1/schemas/{name}/versions/{version}", Rule.READ_TOPIC, schemas.get_schema_version, about="name"),
    Endpoint("DELETE", "/api/v1/schemas/{name}/versions/{version}", Rule.ADMIN, schemas.delete_schema_version, 204, about="name"),
    Endpoint("POST", "/api/v1/schemas/{name}/validate", Rule.READ_TOPIC, schemas.validate_message, about="name"),
    # --- dead letters, delayed messages, transactions
    Endpoint("GET", "/api/v1/dlq", Rule.AUTHENTICATED, dead_letters.list_letter_topics),
    Endpoint("GET", "/api/v1/dlq/{topic}", Rule.READ_TOPIC, dead_letters.list_letters, raw_tail=True),
    Endpoint("DELETE", "/api/v1/dlq/{topic}", Rule.ADMIN, dead_letters.purge_letters, 204, raw_tail=True),
    Endpoint("POST", "/api/v1/dlq/{topic}/replay", Rule.ADMIN, dead_letters.replay_letters),
    Endpoint("POST", "/api/v1/dlq/{topic}/replay/{id}", Rule.ADMIN, dead_letters.replay_letter),
    Endpoint("POST", "/api/v1/dlq/{topic}/retry/{id}", Rule.ADMIN, letter_mending.retry_letter),
    Endpoint("POST", "/api/v1/dlq/{topic}/discard/{id}", Rule.ADMIN, dead_letters.discard_letter),
    Endpoint("GET", "/api/v1/delayed", Rule.ADMIN, waiting.list_delayed),
    Endpoint("DELETE", "/api/v1/delayed/{id}", Rule.AUTHENTICATED, waiting.cancel_delayed, 204),
    Endpoint("GET", "/api/v1/transactions", Rule.ADMIN, waiting.list_transactions),
    Endpoint("POST", "/api/v1/transactions/{id}/abort", Rule.ADMIN, waiting.abort_transaction, 204),
    # --- whom records are pushed to, and who is connected
    Endpoint("GET", "/api/v1/subscriptions", Rule.ADMIN, deliveries.list_subscriptions),
    Endpoint("GET", "/api/v1/queues", Rule.ADMIN, deliveries.list_queues),
    Endpoint("GET", "/api/v1/connections", Rule.ADMIN, deliveries.list_connections),
    Endpoint("DELETE", "/api/v1/connections/{id}", Rule.ADMIN, deliveries.close_connection, 204),
    # --- users, roles, ACLs
    Endpoint("GET", "/api/v1/users", Rule.ADMIN, accounts.list_users),
    Endpoint("POST", "/api/v1/users", Rule.ADMIN, accounts.create_user, 201, hashes=True),
    Endpoint("GET", "/api/v1/users/{user}", Rule.ADMIN, accounts.get_user),
    Endpoint("PUT", "/api/v1/users/{user}", Rule.ADMIN, accounts.update_user),
    Endpoint("DELETE", "/api/v1/users/{user}", Rule.ADMIN, accounts.delete_user, 204),
    Endpoint("POST", "/api/v1/users/{user}/password", Rule.SELF_OR_ADMIN, accounts.change_password, hashes=True),
    Endpoint("GET", "/api/v1/users/{user}/quota", Rule.ADMIN, accounts.get_quota),
    Endpoint("PUT", "/api/v1/users/{user}/quota", Rule.ADMIN, accounts.set_quota),
    Endpoint("GET", "/api/v1/roles", Rule.AUTHENTICATED, accounts.list_roles),
    Endpoint("POST", "/api/v1/roles", Rule.ADMIN, accounts.create_role, 201),
    Endpoint("PUT", "/api/v1/roles/{role}", Rule.ADMIN, accounts.update_role),
    Endpoint("DELETE", "/api/v1/roles/{role}", Rule.ADMIN, accounts.delete_role, 204),
    Endpoint("GET", "/api/v1/acls", Rule.ADMIN, accounts.list_acls),
    Endpoint("GET", "/api/v1/acls/{pattern}", Rule.ADMIN, accounts.get_acl, raw_tail=True),
    Endpoint("PUT", "/api/v1/acls/{pattern}", Rule.ADMIN, accounts.set_acl, raw_tail=True),
    Endpoint("DELETE", "/api/v1/acls/{pattern}", Rule.ADMIN, accounts.delete_acl, 204, raw_tail=True),
    # --- pipelines
    Endpoint("GET", "/api/v1/pipelines", Rule.AUTHENTICATED, pipelines.list_pipelines),
    Endpoint("GET", "/api/v1/pipelines/{pipeline}", Rule.AUTHENTICATED, pipelines.get_pipeline),
    Endpoint("POST", "/api/v1/pipelines/{pipeline}/steer", Rule.AUTHENTICATED, pipelines.steer_pipeline),
    Endpoint("GET", "/api/v1/pipelines/{pipeline}/replays", Rule.AUTHENTICATED, replays.list_replays),
    Endpoint("POST", "/api/v1/pipelines/{pipeline}/replays", Rule.AUTHENTICATED, replays.ask_replay, 201),
    Endpoint("DELETE", "/api/v1/pipelines/{pipeline}/replays/{number}", Rule.AUTHENTICATED, replays.cancel_replay, 204),
    Endpoint("DELETE", "/api/v1/pipelines/{pipeline}", Rule.AUTHENTICATED, pipelines.remove_pipeline, 204),
    # --- audit
    Endpoint("GET", "/api/v1/audit/events", Rule.ADMIN, audit.list_audit_events),
    Endpoint("POST", "/api/v1/audit/export", Rule.ADMIN, audit.export_audit, media="*/*"),
    # --- the cluster
    Endpoint("GET", "/api/v1/cluster", Rule.AUTHENTICATED, cluster.get_cluster),
    Endpoint("GET", "/api/v1/cluster/nodes", Rule.AUTHENTICATED, cluster.list_nodes),
    Endpoint("GET", "/api/v1/cluster/members", Rule.AUTHENTICATED, cluster.list_members),
    Endpoint("GET", "/api/v1/cluster/metadata", Rule.AUTHENTICATED, cluster.get_cluster_metadata),
    Endpoint("GET", "/api/v1/cluster/partitions", Rule.AUTHENTICATED, cluster.list_assignments),
    Endpoint("POST", "/api/v1/cluster/partitions/{topic}/{partition}", Rule.ADMIN, cluster.reassign_partition),
    Endpoint("GET", "/api/v1/cluster/leaders", Rule.AUTHENTICATED, cluster.list_leaders),
    Endpoint("POST", "/api/v1/cluster/rebalance", Rule.ADMIN, cluster.rebalance),
    Endpoint("POST", "/api/v1/cluster/nodes/{node}/decommission", Rule.ADMIN, cluster.decommission_node),
    Endpoint("POST", "/api/v1/cluster/nodes/{node}/recommission", Rule.ADMIN, cluster.recommission_node),
    # --- the broker itself
    Endpoint("GET", "/api/v1/health", Rule.NONE, system.check_health),
    Endpoint("GET", "/api/v1/version", Rule.AUTHENTICATED, system.get_version),
    Endpoint("GET", "/api/v1/metrics", Rule.ADMIN, system.get_metrics, media=METRICS),
    Endpoint("GET", "/api/v1/stats", Rule.ADMIN, system.get_stats),
    Endpoint("GET", "/api/v1/figures/live", Rule.AUTHENTICATED, system.follow_figures, media=EVENTS),
    Endpoint("GET", "/api/v1/recovery", Rule.ADMIN, system.get_recovery),
    Endpoint("GET", "/api/v1/disk", Rule.ADMIN, disk.get_disk),
    Endpoint("GET", "/api/v1/config", Rule.ADMIN, system.get_config),
)

BY_NAME: Final[dict[str, Endpoint]] = {endpoint.name: endpoint for endpoint in ENDPOINTS}
"""By the name of the handler, which is the operation's id in the OpenAPI document."""
