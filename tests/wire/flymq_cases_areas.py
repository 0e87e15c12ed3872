"""What the published byte vectors beyond the core operations say, as values written by hand."""

from __future__ import annotations

from braidmq.base.errors import BraidError
from braidmq.wire.flymq import (
    Acl,
    AclDelete,
    AclEntry,
    AclGet,
    AclList,
    Acls,
    AclSet,
    AuditDocument,
    AuditEvent,
    AuditEvents,
    AuditExport,
    AuditFilter,
    AuditQuery,
    Auth,
    Authenticated,
    CancelDelayed,
    ClusterJoin,
    ClusterLeave,
    ClusterMetadata,
    ClusterNode,
    ClusterPartition,
    ClusterState,
    ClusterStatus,
    ClusterTopic,
    ClusterTopics,
    DeadLetter,
    DeadLetters,
    Delayed,
    DeleteGroup,
    DeleteSchema,
    DescribeGroup,
    DlqReplayed,
    ErrorReply,
    FetchDlq,
    GetLag,
    GetOffset,
    GetSchema,
    GroupDetail,
    GroupInfo,
    GroupOffset,
    Groups,
    Identity,
    Lag,
    ListGroups,
    ListSchemas,
    Offset,
    Ok,
    Op,
    PasswordChange,
    ProduceDelayed,
    ProduceWithSchema,
    ProduceWithTtl,
    PurgeDlq,
    RecordMetadata,
    RegisterSchema,
    ReplayDlq,
    Request,
    ResetOffset,
    Response,
    Role,
    RoleList,
    Roles,
    SchemaDefinition,
    SchemaEntry,
    SchemaOrder,
    SchemaRegistered,
    Schemas,
    SeekToTimestamp,
    TxnBegin,
    TxnCommit,
    TxnDone,
    TxnProduce,
    TxnRollback,
    UserCreate,
    UserDelete,
    UserGet,
    UserInfo,
    UserList,
    Users,
    UserUpdate,
    ValidateSchema,
    Validation,
    WhoAmI,
)

Meaning = dict[tuple[str, str], tuple[Request | None, Response | BraidError]]

_TIME = 1_705_123_456_000
_SECONDS = 1_705_123_456
_DEFINITION = b'{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'

SCHEMAS: Meaning = {
    ("REGISTER_SCHEMA", "both"): (RegisterSchema("sc", "json", _DEFINITION), SchemaRegistered("sc", "json", 1)),
    ("GET_SCHEMA", "both"): (GetSchema("sc", 0), SchemaDefinition("sc", "json", 1, _DEFINITION, "backward")),
    ("LIST_SCHEMAS", "both"): (ListSchemas(""), Schemas((SchemaEntry("sc-v1", "json", 1),))),
    ("VALIDATE_SCHEMA ok", "both"): (ValidateSchema("sc", b'{"a":1}'), Validation(True)),
    ("VALIDATE_SCHEMA bad", "both"): (ValidateSchema("sc", b'{"b":1}'), Validation(False, ("missing required field: a",))),
    ("PRODUCE_WITH_SCHEMA data-first", "both"): (
        ProduceWithSchema("st", "sc", b'{"a":1}', order=SchemaOrder.DATA_FIRST),
        RecordMetadata("st", 0, 0, _TIME, -1, 7),
    ),
    ("PRODUCE_WITH_SCHEMA schema-first", "both"): (
        ProduceWithSchema("st", "sc", b'{"a":1}', order=SchemaOrder.SCHEMA_FIRST),
        RecordMetadata("st", 0, 1, _TIME, -1, 7),
    ),
    ("DELETE_SCHEMA", "both"): (DeleteSchema("sc", 1), Ok()),
}

DEAD_LETTERS: Meaning = {
    ("FETCH_DLQ", "both"): (FetchDlq("d1", 10), DeadLetters((DeadLetter("m1", b"pay", "boom", 3),))),
    ("FETCH_DLQ empty", "both"): (FetchDlq("d2", 10), DeadLetters(())),
    ("REPLAY_DLQ by id", "both"): (ReplayDlq("d1", "m1"), DlqReplayed(count=1)),
    ("REPLAY_DLQ by offset", "both"): (ReplayDlq("d1", offset=0), DlqReplayed(count=1)),
    ("PURGE_DLQ", "both"): (PurgeDlq("d1"), Ok()),
}

DELAYS: Meaning = {
    ("PRODUCE_DELAYED", "both"): (ProduceDelayed("d1", b"later", 300), Delayed("d1", 0, 0, _TIME, -1, 5, "delayed-1")),
    ("CANCEL_DELAYED", "both"): (CancelDelayed("delayed-1"), Ok()),
    ("PRODUCE_WITH_TTL", "both"): (ProduceWithTtl("d1", b"ttl", 1500), RecordMetadata("d1", 0, 2, _TIME, -1, 3)),
}

TRANSACTIONS: Meaning = {
    ("TXN_BEGIN", "both"): (TxnBegin(), TxnDone("txn-1")),
    ("TXN_COMMIT", "both"): (TxnCommit("txn-1"), TxnDone("txn-1")),
    ("TXN_COMMIT failure", "v126"): (TxnCommit("nope"), ErrorReply("transaction not found: nope")),
    ("TXN_ROLLBACK", "both"): (TxnRollback("txn-1"), TxnDone("txn-1")),
    ("TXN_PRODUCE", "both"): (TxnProduce("txn-1", "tx", b"a"), RecordMetadata("tx", 0, 0, _TIME, -1, 1)),
}

_TOPICS = ClusterTopics(
    "standalone",
    (ClusterTopic("t1", (ClusterPartition(0, "n1", "127.0.0.1:9092", 1, "online", ("n1",), ("n1",)),)),),
)
CLUSTER: Meaning = {
    ("CLUSTER_JOIN", "both"): (ClusterJoin("node2:9093"), Ok()),
    ("CLUSTER_LEAVE", "both"): (ClusterLeave(), Ok()),
    ("CLUSTER_STATUS", "both"): (
        ClusterStatus(),
        ClusterState("standalone", "n1", "n1", "standalone", (ClusterNode("n1", "127.0.0.1:9092", "", "alive", True),)),
    ),
    ("CLUSTER_METADATA", "both"): (ClusterMetadata("t1"), _TOPICS),
    ("CLUSTER_METADATA all", "both"): (ClusterMetadata(""), _TOPICS),
    ("CLUSTER_METADATA unknown topic", "v126"): (ClusterMetadata("nope"), BraidError("TOPIC_NOT_FOUND", topic="nope")),
}

_GROUP = GroupInfo("t1", "g", 1, (GroupOffset(0, 2),))
GROUPS: Meaning = {
    ("GET_OFFSET", "both"): (GetOffset("t1", "g", 0), Offset(2)),
    ("GET_OFFSET unknown group", "v126"): (GetOffset("t1", "zz", 0), ErrorReply("consumer group not found: t1:zz")),
    ("RESET_OFFSET earliest", "both"): (ResetOffset("t1", "g", 0, "earliest"), Ok()),
    ("RESET_OFFSET offset", "both"): (ResetOffset("t1", "g", 0, "offset", 5), Ok()),
    ("RESET_OFFSET latest + offset (Java)", "both"): (ResetOffset("t1", "g", 0, "latest", 0), Ok()),
    ("LIST_GROUPS", "both"): (ListGroups(), Groups((_GROUP,))),
    ("DESCRIBE_GROUP", "both"): (DescribeGroup("t1", "g"), _GROUP),
    ("DESCRIBE_GROUP empty topic (Go client, CLI)", "both"): (DescribeGroup("", "g"), _GROUP),
    ("DESCRIBE_GROUP one string (Java)", "both"): (
        DescribeGroup("", "g", group_only=True),
        GroupDetail("g", "active", ("127.0.0.1:5000",), ("t1",), ""),
    ),
    ("GET_LAG", "both"): (GetLag("t1", "g", 0), Lag(2, 2, 6, 4)),
    ("DELETE_GROUP", "both"): (DeleteGroup("t1", "g"), Ok()),
    ("SEEK_TO_TIMESTAMP", "both"): (SeekToTimestamp("t1", "g", 0, _TIME), Offset(3)),
}

_ADMIN_RIGHTS = ("read", "write", "admin")
USERS: Meaning = {
    ("AUTH ok", "v126"): (Auth("admin", "adminpass"), Authenticated(True, "admin", ("admin",))),
    ("AUTH no roles", "v126"): (Auth("norole", "pw"), Authenticated(True, "norole")),
    ("AUTH failed", "v126"): (Auth("admin", "bad"), Authenticated(False, error="invalid username or password")),
    ("AUTH", "documented"): (Auth("admin", "secret"), Authenticated(True, "admin", ("admin",))),
    ("AUTH refused", "documented"): (
        Auth("admin", "wrong"),
        Authenticated(False, error="AUTH_FAILED: invalid username or password"),
    ),
    ("WHOAMI anonymous", "v126"): (WhoAmI(), Identity(False)),
    ("WHOAMI authenticated", "v126"): (WhoAmI(), Identity(True, "admin", ("admin",), _ADMIN_RIGHTS)),
    ("WHOAMI", "documented"): (WhoAmI(), Identity(True, "admin", ("admin",))),
    ("USER_CREATE", "both"): (
        UserCreate("bob", "pw", "", ("producer",), True),
        UserInfo("bob", ("producer",), ("write",), True, _SECONDS, _SECONDS),
    ),
    ("USER_DELETE", "both"): (UserDelete("bob"), Ok(True, "bob")),
    ("USER_UPDATE", "both"): (UserUpdate("bob", "", "", ("consumer",), True), Ok(True, "bob")),
    ("USER_LIST", "both"): (UserList(), Users((UserInfo("admin", ("admin",), _ADMIN_RIGHTS, True, _SECONDS, _SECONDS),))),
    ("USER_GET", "both"): (UserGet("bob"), UserInfo("bob", ("consumer",), ("read",), True, _SECONDS, _SECONDS)),
    ("USER_GET unknown", "v126"): (UserGet("zz"), ErrorReply('user "zz" not found')),
    ("ACL_SET", "both"): (AclSet("a1", False, ("bob",), ("consumer",)), Ok(True, "a1")),
    ("ACL_GET", "both"): (AclGet("a1"), Acl("a1", True, False, False, ("bob",), ("consumer",))),
    ("ACL_DELETE", "both"): (AclDelete("a1"), Ok(True, "a1")),
    ("ACL_LIST", "both"): (AclList(), Acls((AclEntry("a1", True, False, ("bob",), ("consumer",)),), True)),
    ("PASSWORD_CHANGE", "both"): (PasswordChange("bob", "new", "old", (), False), Ok(True, "bob")),
    ("ROLE_LIST", "both"): (
        RoleList(),
        Roles(
            (
                Role("admin", _ADMIN_RIGHTS, "Full access to all operations"),
                Role("producer", ("write",), "Write-only access (produce messages)"),
                Role("consumer", ("read",), "Read-only access (consume messages)"),
                Role("guest", (), "Access to public topics only"),
            )
        ),
    ),
}

_FILTER = AuditFilter(types=("topic.create",), user="admin", limit=10)
_EVENT = AuditEvent(
    "id-1", _TIME, "topic.create", "admin", "127.0.0.1", "t1", "create_topic", "success", "n1", (("partitions", "3"),)
)
AUDIT: Meaning = {
    ("AUDIT_QUERY", "both"): (AuditQuery(_FILTER, Op.AUDIT_QUERY), AuditEvents((_EVENT,), 1, False)),
    ("AUDIT_EXPORT", "both"): (AuditExport(_FILTER, "json", Op.AUDIT_EXPORT), AuditDocument(b"[]", "json")),
    ("AUDIT_QUERY (Java/Python opcode)", "both"): (
        AuditQuery(_FILTER, Op.AUDIT_QUERY_SDK),
        AuditEvents((_EVENT,), 1, False),
    ),
    ("AUDIT_EXPORT (Java/Python opcode)", "both"): (
        AuditExport(AuditFilter(), "json", Op.AUDIT_EXPORT_SDK),
        AuditDocument(b"[]"),
    ),
}

AREAS: Meaning = {**SCHEMAS, **DEAD_LETTERS, **DELAYS, **TRANSACTIONS, **CLUSTER, **GROUPS, **USERS, **AUDIT}
