"""What each FlyMQ request does: from a typed request to the bytes of its answer.

An operation that can answer at once returns a list of buffers; one that must wait returns an awaitable of it. Whether the
caller may ask was decided before (`server/authorization.py`). The table is the whole surface: an opcode that is not in
it does not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from braidmq.server.operations import (
    audit,
    cluster,
    dead_letters,
    delays,
    groups,
    pipelines,
    produce,
    read,
    replays,
    roles,
    schemas,
    stages,
    topics,
    transactions,
    upkeep,
    users,
)
from braidmq.server.operations.calling import Answer, Caller, Outcome
from braidmq.server.operations.produce import stage_batch, stage_checked
from braidmq.wire.flymq import Op

__all__ = ["OPERATIONS", "Answer", "Caller", "Outcome", "stage_batch", "stage_checked"]

OPERATIONS: Final[dict[Op, Callable[[Caller, Any], Outcome]]] = {
    # --- core
    Op.PRODUCE: produce.produce,
    Op.CONSUME: read.consume,
    Op.CREATE_TOPIC: topics.create_topic,
    Op.METADATA: topics.metadata,
    Op.SUBSCRIBE: groups.subscribe,
    Op.COMMIT: groups.commit,
    Op.FETCH: read.fetch,
    Op.LIST_TOPICS: topics.list_topics,
    Op.DELETE_TOPIC: topics.delete_topic,
    Op.CONSUME_ZERO_COPY: read.consume,
    Op.FETCH_BINARY: read.fetch,
    Op.PRODUCE_BATCH: produce.produce_batch,
    Op.FETCH_BATCHES: read.fetch_batches,
    Op.TXN_OFFSETS: transactions.txn_offsets,
    # --- schemas
    Op.REGISTER_SCHEMA: schemas.register_schema,
    Op.GET_SCHEMA: schemas.get_schema,
    Op.LIST_SCHEMAS: schemas.list_schemas,
    Op.VALIDATE_SCHEMA: schemas.validate_schema,
    Op.PRODUCE_WITH_SCHEMA: schemas.produce_with_schema,
    Op.DELETE_SCHEMA: schemas.delete_schema,
    # --- dead letters, delay and time to live
    Op.FETCH_DLQ: dead_letters.fetch_dlq,
    Op.REPLAY_DLQ: dead_letters.replay_dlq,
    Op.PURGE_DLQ: dead_letters.purge_dlq,
    Op.DLQ_DISCARD: dead_letters.dlq_discard,
    Op.DLQ_FAIL: dead_letters.dlq_fail,
    Op.PRODUCE_DELAYED: delays.produce_delayed,
    Op.CANCEL_DELAYED: delays.cancel_delayed,
    Op.PRODUCE_WITH_TTL: delays.produce_with_ttl,
    Op.DELAYED_LIST: delays.delayed_list,
    # --- transactions
    Op.TXN_BEGIN: transactions.txn_begin,
    Op.TXN_COMMIT: transactions.txn_commit,
    Op.TXN_ROLLBACK: transactions.txn_rollback,
    Op.TXN_PRODUCE: transactions.txn_produce,
    Op.TXN_LIST: transactions.txn_list,
    # --- staged writes
    Op.STAGE_BATCH: stages.stage_batch,
    Op.STAGE_PUBLISH: stages.stage_publish,
    Op.STAGE_ABORT: stages.stage_abort,
    Op.STAGE_STATUS: stages.stage_status,
    Op.STAGE_LIST: stages.stage_list,
    Op.TOPIC_PLACES: stages.topic_places,
    Op.GROUP_PLAN: stages.group_plan,
    # --- cluster and topics
    Op.CLUSTER_JOIN: cluster.cluster_join,
    Op.CLUSTER_LEAVE: cluster.cluster_leave,
    Op.CLUSTER_STATUS: cluster.cluster_status,
    Op.CLUSTER_METADATA: cluster.cluster_metadata,
    Op.CLUSTER_MAP: cluster.cluster_metadata,
    Op.TOPIC_CONFIG: topics.topic_config,
    # --- groups
    Op.GROUP_JOIN: groups.group_join,
    Op.GROUP_HEARTBEAT: groups.group_heartbeat,
    Op.GROUP_LEAVE: groups.group_leave,
    Op.GROUP_COMMIT: groups.group_commit,
    Op.GROUP_LAG: groups.group_lag,
    Op.GET_OFFSET: groups.get_offset,
    Op.RESET_OFFSET: groups.reset_offset,
    Op.LIST_GROUPS: groups.list_groups,
    Op.DESCRIBE_GROUP: groups.describe_group,
    Op.GET_LAG: groups.get_lag,
    Op.DELETE_GROUP: groups.delete_group,
    Op.SEEK_TO_TIMESTAMP: groups.seek_to_timestamp,
    # --- users and rights
    Op.AUTH: users.auth,
    Op.WHOAMI: users.whoami,
    Op.USER_CREATE: users.user_create,
    Op.USER_DELETE: users.user_delete,
    Op.USER_UPDATE: users.user_update,
    Op.USER_LIST: users.user_list,
    Op.USER_GET: users.user_get,
    Op.ACL_SET: users.acl_set,
    Op.ACL_GET: users.acl_get,
    Op.ACL_DELETE: users.acl_delete,
    Op.ACL_LIST: users.acl_list,
    Op.PASSWORD_CHANGE: users.password_change,
    Op.ROLE_LIST: users.role_list,
    Op.ACCOUNT_ADMIN: roles.account_admin,
    # --- audit
    Op.AUDIT_EVENTS: audit.audit_query,
    Op.AUDIT_DOCUMENT: audit.audit_export,
    Op.AUDIT_QUERY: audit.audit_query,
    Op.AUDIT_EXPORT: audit.audit_export,
    Op.AUDIT_QUERY_SDK: audit.audit_query,
    Op.AUDIT_EXPORT_SDK: audit.audit_export,
    # --- pipelines
    Op.PIPELINE_PUT: pipelines.pipeline_put,
    Op.PIPELINE_LIST: pipelines.pipeline_list,
    Op.PIPELINE_GET: pipelines.pipeline_get,
    Op.PIPELINE_STEER: pipelines.pipeline_steer,
    Op.PIPELINE_REMOVE: pipelines.pipeline_remove,
    Op.PIPELINE_START: pipelines.pipeline_start,
    Op.PIPELINE_REPORT: pipelines.pipeline_report,
    Op.PIPELINE_END: pipelines.pipeline_end,
    Op.PIPELINE_REPLAY: replays.pipeline_replay,
    Op.PIPELINE_REPLAY_LIST: replays.pipeline_replay_list,
    Op.PIPELINE_REPLAY_TAKE: replays.pipeline_replay_take,
    Op.PIPELINE_REPLAY_END: replays.pipeline_replay_end,
    # --- what those who run a broker need
    Op.DOCUMENT: upkeep.document,
    Op.BACKUP_BEGIN: upkeep.backup_begin,
    Op.BACKUP_READ: upkeep.backup_read,
    Op.BACKUP_END: upkeep.backup_end,
    Op.CLUSTER_STEER: cluster.cluster_steer,
}
"""Each operation takes the request type that its opcode decodes to; the decoder's table pairs them."""
