"""Which right each FlyMQ request needs: one table, one row an opcode.

An opcode without a row is refused at run time and fails a test, so that a new one cannot be forgotten.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from braidmq.wire.flymq.opcodes import Op


class Rule(Enum):
    NONE = "anybody"
    AUTHENTICATED = "anybody with an account; with `auth_allow_anonymous` anybody"
    READ_TOPIC = "read on the topic; a request for all topics is decided as for a topic without an ACL, and shows what may be read"
    WRITE_TOPIC = "write on the topic"
    ADMIN = "the admin permission"
    OWNER = "whoever began the transaction, or staged the epoch"
    OWNER_OR_ADMIN = "whoever began the transaction, staged the epoch or made the pipeline, or an administrator"
    OWNER_WRITE_TOPIC = "whoever began the transaction, or staged the epoch, with write on the topic"
    OWNER_READ_TOPIC = "whoever began the transaction, or staged the epoch, with read on the topic"
    SELF_OR_ADMIN = "the user itself, or the admin permission"
    ANSWER = "never a request"


OPCODE_PERMISSIONS: Final[dict[Op, Rule]] = {
    # --- core
    Op.PRODUCE: Rule.WRITE_TOPIC,
    Op.CONSUME: Rule.READ_TOPIC,
    Op.CREATE_TOPIC: Rule.ADMIN,
    Op.METADATA: Rule.READ_TOPIC,
    Op.SUBSCRIBE: Rule.READ_TOPIC,
    Op.COMMIT: Rule.READ_TOPIC,
    Op.FETCH: Rule.READ_TOPIC,
    Op.LIST_TOPICS: Rule.AUTHENTICATED,
    Op.DELETE_TOPIC: Rule.ADMIN,
    Op.CONSUME_ZERO_COPY: Rule.READ_TOPIC,
    Op.FETCH_BINARY: Rule.READ_TOPIC,
    Op.PRODUCE_BATCH: Rule.WRITE_TOPIC,
    Op.FETCH_BATCHES: Rule.READ_TOPIC,
    Op.TXN_OFFSETS: Rule.OWNER_READ_TOPIC,
    # --- schemas; by convention a schema is named after its topic
    Op.REGISTER_SCHEMA: Rule.ADMIN,
    Op.GET_SCHEMA: Rule.READ_TOPIC,
    Op.LIST_SCHEMAS: Rule.READ_TOPIC,
    Op.VALIDATE_SCHEMA: Rule.READ_TOPIC,
    Op.PRODUCE_WITH_SCHEMA: Rule.WRITE_TOPIC,
    Op.DELETE_SCHEMA: Rule.ADMIN,
    # --- dead letters; the topic is the one the records came from
    Op.FETCH_DLQ: Rule.READ_TOPIC,
    Op.REPLAY_DLQ: Rule.ADMIN,
    Op.PURGE_DLQ: Rule.ADMIN,
    Op.DLQ_DISCARD: Rule.ADMIN,
    # --- delay and time to live
    Op.PRODUCE_DELAYED: Rule.WRITE_TOPIC,
    Op.CANCEL_DELAYED: Rule.WRITE_TOPIC,
    Op.PRODUCE_WITH_TTL: Rule.WRITE_TOPIC,
    # --- transactions
    Op.TXN_BEGIN: Rule.AUTHENTICATED,
    Op.TXN_COMMIT: Rule.OWNER,
    Op.TXN_ROLLBACK: Rule.OWNER_OR_ADMIN,
    Op.TXN_PRODUCE: Rule.OWNER_WRITE_TOPIC,
    # --- staged writes; the offsets of a group that are published with an epoch need read on their topics
    Op.STAGE_BATCH: Rule.OWNER_WRITE_TOPIC,
    Op.STAGE_PUBLISH: Rule.OWNER_READ_TOPIC,
    Op.STAGE_ABORT: Rule.OWNER_OR_ADMIN,
    Op.STAGE_STATUS: Rule.OWNER_OR_ADMIN,
    Op.STAGE_LIST: Rule.ADMIN,
    Op.TOPIC_PLACES: Rule.READ_TOPIC,
    Op.GROUP_PLAN: Rule.READ_TOPIC,
    # --- cluster
    Op.CLUSTER_JOIN: Rule.ADMIN,
    Op.CLUSTER_LEAVE: Rule.ADMIN,
    Op.CLUSTER_STATUS: Rule.READ_TOPIC,
    Op.CLUSTER_METADATA: Rule.READ_TOPIC,
    Op.CLUSTER_MAP: Rule.READ_TOPIC,
    # --- our own; a member of a group reads, and says which of the records it read have failed
    Op.GROUP_JOIN: Rule.READ_TOPIC,
    Op.GROUP_HEARTBEAT: Rule.READ_TOPIC,
    Op.GROUP_LEAVE: Rule.READ_TOPIC,
    Op.GROUP_COMMIT: Rule.READ_TOPIC,
    Op.GROUP_LAG: Rule.READ_TOPIC,
    Op.DLQ_FAIL: Rule.READ_TOPIC,
    Op.TOPIC_CONFIG: Rule.ADMIN,
    Op.DELAYED_LIST: Rule.ADMIN,
    Op.TXN_LIST: Rule.ADMIN,
    Op.AUDIT_EVENTS: Rule.ADMIN,
    Op.AUDIT_DOCUMENT: Rule.ADMIN,
    Op.ACCOUNT_ADMIN: Rule.ADMIN,
    # --- consumer groups
    Op.GET_OFFSET: Rule.READ_TOPIC,
    Op.RESET_OFFSET: Rule.ADMIN,
    Op.LIST_GROUPS: Rule.ADMIN,
    Op.DESCRIBE_GROUP: Rule.ADMIN,
    Op.GET_LAG: Rule.READ_TOPIC,
    Op.DELETE_GROUP: Rule.ADMIN,
    Op.SEEK_TO_TIMESTAMP: Rule.READ_TOPIC,
    # --- users and rights
    Op.AUTH: Rule.NONE,
    Op.AUTH_RESPONSE: Rule.ANSWER,
    Op.WHOAMI: Rule.NONE,
    Op.USER_CREATE: Rule.ADMIN,
    Op.USER_DELETE: Rule.ADMIN,
    Op.USER_UPDATE: Rule.ADMIN,
    Op.USER_LIST: Rule.ADMIN,
    Op.USER_GET: Rule.ADMIN,
    Op.ACL_SET: Rule.ADMIN,
    Op.ACL_GET: Rule.ADMIN,
    Op.ACL_DELETE: Rule.ADMIN,
    Op.ACL_LIST: Rule.ADMIN,
    Op.PASSWORD_CHANGE: Rule.SELF_OR_ADMIN,
    Op.ROLE_LIST: Rule.AUTHENTICATED,
    # --- audit
    Op.AUDIT_QUERY: Rule.ADMIN,
    Op.AUDIT_EXPORT: Rule.ADMIN,
    Op.AUDIT_QUERY_SDK: Rule.ADMIN,
    Op.AUDIT_EXPORT_SDK: Rule.ADMIN,
    # --- pipelines; who made one runs and steers it
    Op.PIPELINE_PUT: Rule.OWNER_OR_ADMIN,
    Op.PIPELINE_LIST: Rule.AUTHENTICATED,
    Op.PIPELINE_GET: Rule.AUTHENTICATED,
    Op.PIPELINE_STEER: Rule.OWNER_OR_ADMIN,
    Op.PIPELINE_REMOVE: Rule.OWNER_OR_ADMIN,
    Op.PIPELINE_START: Rule.OWNER_OR_ADMIN,
    Op.PIPELINE_REPORT: Rule.OWNER_OR_ADMIN,
    Op.PIPELINE_END: Rule.OWNER_OR_ADMIN,
    Op.PIPELINE_REPLAY: Rule.OWNER_OR_ADMIN,
    Op.PIPELINE_REPLAY_LIST: Rule.AUTHENTICATED,
    Op.PIPELINE_REPLAY_TAKE: Rule.OWNER_OR_ADMIN,
    Op.PIPELINE_REPLAY_END: Rule.OWNER_OR_ADMIN,
    # --- our own: what those who run a broker need
    Op.DOCUMENT: Rule.ADMIN,
    Op.BACKUP_BEGIN: Rule.ADMIN,
    Op.BACKUP_READ: Rule.ADMIN,
    Op.BACKUP_END: Rule.ADMIN,
    Op.CLUSTER_STEER: Rule.ADMIN,
    # --- answers
    Op.ERROR: Rule.ANSWER,
}

AUDIT_TEXTS: Final[dict[Op, str]] = {
    Op.AUDIT_QUERY: "queries",
    Op.AUDIT_QUERY_SDK: "queries",
    Op.AUDIT_EXPORT: "export",
    Op.AUDIT_EXPORT_SDK: "export",
    Op.AUDIT_EVENTS: "queries",
    Op.AUDIT_DOCUMENT: "export",
}
"""What the refusal of an audit request names."""
