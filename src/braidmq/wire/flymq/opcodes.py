"""Every opcode of FlyMQ, published and our own.

A response carries the opcode of its request; the exceptions are ERROR, and AUTH, which is answered with AUTH_RESPONSE.
Our own operations use the two ranges the protocol leaves to extensions, 0C to 0F and 54 to 5F, and C0 to DF, which nothing
published uses.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Op(IntEnum):
    # --- core
    PRODUCE = 0x01
    CONSUME = 0x02
    CREATE_TOPIC = 0x03
    METADATA = 0x04
    SUBSCRIBE = 0x05
    COMMIT = 0x06
    FETCH = 0x07
    LIST_TOPICS = 0x08
    DELETE_TOPIC = 0x09
    CONSUME_ZERO_COPY = 0x0A
    FETCH_BINARY = 0x0B
    # --- core, our own
    PRODUCE_BATCH = 0x0C
    FETCH_BATCHES = 0x0D
    TXN_OFFSETS = 0x0E
    # --- schemas
    REGISTER_SCHEMA = 0x10
    GET_SCHEMA = 0x11
    LIST_SCHEMAS = 0x12
    VALIDATE_SCHEMA = 0x13
    PRODUCE_WITH_SCHEMA = 0x14
    DELETE_SCHEMA = 0x15
    # --- dead letters
    FETCH_DLQ = 0x20
    REPLAY_DLQ = 0x21
    PURGE_DLQ = 0x22
    # --- delay and time to live
    PRODUCE_DELAYED = 0x30
    CANCEL_DELAYED = 0x31
    PRODUCE_WITH_TTL = 0x35
    # --- transactions
    TXN_BEGIN = 0x40
    TXN_COMMIT = 0x41
    TXN_ROLLBACK = 0x42
    TXN_PRODUCE = 0x43
    # --- cluster
    CLUSTER_JOIN = 0x50
    CLUSTER_LEAVE = 0x51
    CLUSTER_STATUS = 0x52
    CLUSTER_METADATA = 0x53
    # --- our own: groups with server-side assignment, and what administration needs
    GROUP_JOIN = 0x54
    GROUP_HEARTBEAT = 0x55
    GROUP_LEAVE = 0x56
    GROUP_COMMIT = 0x57
    GROUP_LAG = 0x58
    DLQ_FAIL = 0x59
    TOPIC_CONFIG = 0x5A
    DELAYED_LIST = 0x5B
    TXN_LIST = 0x5C
    AUDIT_EVENTS = 0x5D
    AUDIT_DOCUMENT = 0x5E
    ACCOUNT_ADMIN = 0x5F
    # --- consumer groups
    GET_OFFSET = 0x60
    RESET_OFFSET = 0x61
    LIST_GROUPS = 0x62
    DESCRIBE_GROUP = 0x63
    GET_LAG = 0x64
    DELETE_GROUP = 0x65
    SEEK_TO_TIMESTAMP = 0x66
    # --- users and rights
    AUTH = 0x70
    AUTH_RESPONSE = 0x71
    WHOAMI = 0x72
    USER_CREATE = 0x73
    USER_DELETE = 0x74
    USER_UPDATE = 0x75
    USER_LIST = 0x76
    USER_GET = 0x77
    ACL_SET = 0x78
    ACL_GET = 0x79
    ACL_DELETE = 0x7A
    ACL_LIST = 0x7B
    PASSWORD_CHANGE = 0x7C
    ROLE_LIST = 0x7D
    # --- audit; the published SDKs use other numbers and layouts than the published server and command line
    AUDIT_QUERY = 0x80
    AUDIT_EXPORT = 0x81
    AUDIT_QUERY_SDK = 0xA0
    AUDIT_EXPORT_SDK = 0xA1
    # --- our own: staged writes, and where topics begin and end, for readers and writers that are many processes
    STAGE_BATCH = 0xC0
    STAGE_PUBLISH = 0xC1
    STAGE_ABORT = 0xC2
    STAGE_STATUS = 0xC3
    STAGE_LIST = 0xC4
    TOPIC_PLACES = 0xC5
    GROUP_PLAN = 0xC6
    # --- our own: pipelines and their runs
    PIPELINE_PUT = 0xC8
    PIPELINE_LIST = 0xC9
    PIPELINE_GET = 0xCA
    PIPELINE_STEER = 0xCB
    PIPELINE_REMOVE = 0xCC
    PIPELINE_START = 0xCD
    PIPELINE_REPORT = 0xCE
    PIPELINE_END = 0xCF
    # --- our own: what those who run a broker need
    DOCUMENT = 0xD0
    BACKUP_BEGIN = 0xD1
    BACKUP_READ = 0xD2
    BACKUP_END = 0xD3
    # --- our own: replays of pipelines that somebody asked for
    PIPELINE_REPLAY = 0xD4
    PIPELINE_REPLAY_LIST = 0xD5
    PIPELINE_REPLAY_TAKE = 0xD6
    PIPELINE_REPLAY_END = 0xD7
    # --- our own: one dead letter goes; PURGE_DLQ of a server that does not know an id would let all of them go
    DLQ_DISCARD = 0xD8
    # --- our own: the cluster. On the nodes' own port E0 to ED are theirs
    CLUSTER_MAP = 0xED
    CLUSTER_STEER = 0xEF
    # --- the answer to anything that failed
    ERROR = 0xFF


_UNDOCUMENTED: Final = frozenset({Op.CLUSTER_METADATA, Op.AUDIT_QUERY, Op.AUDIT_EXPORT, Op.AUDIT_QUERY_SDK, Op.AUDIT_EXPORT_SDK})


def only_v126(op: int) -> bool:
    """Whether the opcode alone shows a published 1.26 client: the documents do not list it."""
    return op in _UNDOCUMENTED


def answer_op(op: int) -> int:
    """The opcode under which a request of opcode `op` is answered when it does not fail."""
    return Op.AUTH_RESPONSE if op == Op.AUTH else op
