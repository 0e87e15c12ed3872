"""Every opcode of FlyMQ, whether or not a codec for it exists yet.

A response carries the opcode of its request; the exceptions are ERROR, and AUTH, which is answered with AUTH_RESPONSE.
Our own operations use the two ranges the protocol leaves to extensions, 0C to 0F and 54 to 5F.
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
    # --- the answer to anything that failed
    ERROR = 0xFF


_UNDOCUMENTED: Final = frozenset({Op.CLUSTER_METADATA, Op.AUDIT_QUERY, Op.AUDIT_EXPORT, Op.AUDIT_QUERY_SDK, Op.AUDIT_EXPORT_SDK})


def only_v126(op: int) -> bool:
    """Whether the opcode alone shows a published 1.26 client: the documents do not list it."""
    return op in _UNDOCUMENTED
