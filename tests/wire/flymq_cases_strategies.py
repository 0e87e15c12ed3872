"""Strategies for every request and response of FlyMQ, and where a message may end early."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from braidmq.wire import flymq
from braidmq.wire.flymq import HEADER_BYTES, Dialect, Op, Request, Response, encode_request
from braidmq.wire.flymq.layout import Extended
from braidmq.wire.flymq.requests import REQUESTS

DOCUMENTED, V126 = Dialect.DOCUMENTED, Dialect.V126

# Texts are short enough that even four-byte characters stay within a str8.
texts = st.text(max_size=40)
names = st.text(min_size=1, max_size=12)
blobs = st.binary(max_size=60)
bools = st.booleans()
i32s = st.integers(-(2**31), 2**31 - 1)
u32s = st.integers(0, 2**32 - 1)
i64s = st.integers(-(2**63), 2**63 - 1)
u64s = st.integers(0, 2**64 - 1)


def several(item: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(item, max_size=4).map(tuple)


_place = (texts, texts, i32s)
_listed = several(texts)
_pairs = several(st.tuples(texts, texts))
_topic_offsets = several(st.builds(flymq.TopicOffset, texts, i32s, u64s))
_rates = st.none() | st.integers(0, 2**63 - 1)
_user_fields = (texts, texts, texts, _listed, bools)
_filters = st.builds(flymq.AuditFilter, i64s, i64s, _listed, texts, texts, texts, texts, i32s, i32s)
_filters_export_sdk = st.builds(flymq.AuditFilter, i64s, i64s, _listed, texts, texts, texts, texts)
_modes = st.sampled_from(["earliest", "latest", "timestamp", "", "x" * 255])
# An offset whose first two bytes are 6 would be read as an id, and is refused.
_dlq_offsets = u64s.filter(lambda offset: offset >> 48 != 6)

FETCHES: st.SearchStrategy[flymq.Fetch] = st.builds(flymq.Fetch, texts, i32s, u64s, i32s, texts, bools)
_extended: list[st.SearchStrategy[Request]] = [
    st.builds(flymq.RegisterSchema, texts, texts, blobs, texts),
    st.builds(flymq.ReplayDlq, texts, texts, st.none(), texts, bools, u32s),
    st.builds(flymq.ProduceDelayed, texts, blobs, i64s, blobs, i32s),
    st.builds(flymq.ProduceWithTtl, texts, blobs, i64s, blobs, i32s),
    st.builds(flymq.TxnBegin, texts, u32s, i64s),
    st.builds(flymq.TxnProduce, texts, texts, blobs, blobs, i32s),
    st.builds(flymq.FetchBatches, texts, i32s, u64s, u32s, u32s, u32s, bools),
    st.builds(flymq.ClusterMap, texts, bools),
    st.builds(flymq.PipelineStart, texts, texts, texts, bools, texts),
]
EXTENDED = st.one_of(*_extended)
"""Requests that can carry fields of our own behind the published ones."""
_common: list[st.SearchStrategy[Request]] = [
    st.builds(flymq.Produce, texts, blobs, blobs, i32s),
    st.builds(flymq.Consume, texts, i32s, u64s, bools),
    st.builds(flymq.CreateTopic, texts, i32s),
    st.builds(flymq.Metadata, texts),
    st.builds(flymq.Subscribe, texts, texts, i32s, texts),
    st.builds(flymq.Commit, texts, texts, i32s, u64s),
    st.builds(flymq.ListTopics),
    st.builds(flymq.DeleteTopic, texts),
    st.builds(flymq.ProduceBatch, texts, i32s, blobs),
    *_extended,
    st.builds(flymq.RegisterSchema, texts, texts, blobs),
    st.builds(flymq.GetSchema, texts, u32s),
    st.builds(flymq.ListSchemas, texts),
    st.builds(flymq.ValidateSchema, texts, blobs),
    st.builds(flymq.ProduceWithSchema, texts, texts, blobs, blobs, i32s),
    st.builds(flymq.DeleteSchema, texts, u32s),
    st.builds(flymq.FetchDlq, texts, i32s, texts),
    st.builds(flymq.ReplayDlq, texts, texts),
    st.builds(flymq.ReplayDlq, texts, st.just(""), _dlq_offsets),
    st.builds(flymq.PurgeDlq, texts),
    st.builds(flymq.DlqDiscard, texts, texts),
    st.builds(flymq.DlqFail, texts, i32s, u64s, texts, texts, texts, u64s),
    st.builds(flymq.ProduceDelayed, texts, blobs, i64s),
    st.builds(flymq.CancelDelayed, texts, texts),
    st.builds(flymq.ProduceWithTtl, texts, blobs, i64s),
    st.builds(flymq.DelayedList, texts, i32s),
    st.builds(flymq.TxnBegin),
    st.builds(flymq.TxnCommit, texts),
    st.builds(flymq.TxnRollback, texts),
    st.builds(flymq.TxnProduce, texts, texts, blobs),
    st.builds(flymq.TxnOffsets, texts, texts, _topic_offsets),
    st.builds(flymq.TxnList),
    st.builds(flymq.StageBatch, texts, i64s, i32s, i64s, u32s, texts, i32s, blobs),
    st.builds(flymq.StagePublish, texts, i64s, several(st.builds(flymq.StageChoice, i32s, i64s, u32s)), texts, _topic_offsets),
    st.builds(flymq.StageAbort, texts, i64s),
    st.builds(flymq.StageStatus, texts, i64s),
    st.builds(flymq.StageList),
    st.builds(flymq.TopicPlaces, _listed),
    st.builds(flymq.GroupPlan, texts, _topic_offsets),
    st.builds(flymq.ClusterJoin, texts),
    st.builds(flymq.ClusterLeave),
    st.builds(flymq.ClusterStatus),
    st.builds(flymq.TopicConfig, texts, _pairs),
    st.builds(flymq.GetOffset, *_place),
    st.builds(flymq.ResetOffset, *_place, _modes, st.none() | u64s),
    st.builds(flymq.ResetOffset, *_place, st.just("offset"), u64s),
    st.builds(flymq.ListGroups),
    st.builds(flymq.DescribeGroup, texts, texts),
    st.builds(flymq.DescribeGroup, st.just(""), texts, st.just(True)),
    st.builds(flymq.GetLag, *_place),
    st.builds(flymq.DeleteGroup, texts, texts),
    st.builds(flymq.SeekToTimestamp, *_place, i64s),
    st.builds(flymq.GroupJoin, texts, texts, _listed, texts, u32s),
    st.builds(flymq.GroupHeartbeat, texts, texts, u32s),
    st.builds(flymq.GroupLeave, texts, texts),
    st.builds(flymq.GroupCommit, texts, texts, u32s, _topic_offsets),
    st.builds(flymq.GroupLag, texts, texts),
    st.builds(flymq.PipelinePut, texts, texts, blobs),
    st.builds(flymq.PipelineList),
    st.builds(flymq.PipelineGet, texts),
    st.builds(flymq.PipelineSteer, texts, texts),
    st.builds(flymq.PipelineRemove, texts),
    st.builds(flymq.PipelineReport, texts, u32s, blobs, _pairs),
    st.builds(flymq.PipelineEnd, texts, u32s, texts, texts),
    st.builds(flymq.PipelineReplay, texts, blobs),
    st.builds(flymq.PipelineReplayList, texts),
    st.builds(flymq.PipelineReplayTake, texts, u32s),
    st.builds(flymq.PipelineReplayEnd, texts, u32s, texts, texts),
    st.builds(flymq.Auth, texts, texts),
    st.builds(flymq.WhoAmI),
    st.builds(flymq.UserCreate, *_user_fields),
    st.builds(flymq.UserDelete, texts),
    st.builds(flymq.UserUpdate, *_user_fields),
    st.builds(flymq.UserList),
    st.builds(flymq.UserGet, texts),
    st.builds(flymq.AclSet, texts, bools, _listed, _listed),
    st.builds(flymq.AclGet, texts),
    st.builds(flymq.AclDelete, texts),
    st.builds(flymq.AclList),
    st.builds(flymq.PasswordChange, *_user_fields),
    st.builds(flymq.RoleList),
    st.builds(flymq.RoleCreate, texts, _listed, texts),
    st.builds(flymq.RoleUpdate, texts, _listed, texts),
    st.builds(flymq.RoleDelete, texts),
    st.builds(flymq.QuotaSet, texts, _rates, _rates),
    st.builds(flymq.QuotaList, texts),
    st.builds(flymq.AuditQuery, _filters),
    st.builds(flymq.AuditExport, _filters, texts),
]
_telling: list[st.SearchStrategy[Request]] = [
    st.builds(flymq.ProduceWithSchema, texts, names, blobs, order=st.just(flymq.SchemaOrder.SCHEMA_FIRST)),
    st.builds(
        flymq.ProduceWithSchema, texts, texts, st.binary(min_size=1, max_size=60), order=st.just(flymq.SchemaOrder.DATA_FIRST)
    ),
    st.builds(flymq.ClusterMetadata, texts),
    st.builds(flymq.AuditQuery, _filters, st.sampled_from([Op.AUDIT_QUERY, Op.AUDIT_QUERY_SDK])),
    st.builds(flymq.AuditExport, _filters, texts, st.just(Op.AUDIT_EXPORT)),
    st.builds(flymq.AuditExport, _filters_export_sdk, texts, st.just(Op.AUDIT_EXPORT_SDK)),
    FETCHES,
]
REQUESTS_OF: dict[Dialect, st.SearchStrategy[Request]] = {
    DOCUMENTED: st.one_of(*_common, st.builds(flymq.Fetch, texts, i32s, u64s, i32s, st.just(""), bools)),
    V126: st.one_of(*_common, *_telling),
}
"""What a client of that dialect sends."""


def tells_v126(request: Request) -> bool:
    """Whether the request, as a v126 client writes it, shows that dialect."""
    if isinstance(request, flymq.ProduceWithSchema):
        return request.order is not flymq.SchemaOrder.KEYED
    return isinstance(request, (flymq.Subscribe, flymq.Fetch)) or flymq.only_v126(request.op)


def has_exact_end(request: Request, dialect: Dialect) -> bool:
    """Whether bytes behind the request could not be ignored: its end is part of what it says, or a field may follow."""
    if isinstance(request, flymq.Fetch):
        return dialect is DOCUMENTED
    if isinstance(request, flymq.DescribeGroup):
        return request.group_only
    if isinstance(request, flymq.CancelDelayed):
        return not request.topic
    if isinstance(request, flymq.ReplayDlq):
        return not request.many
    if isinstance(request, flymq.ResetOffset):
        return request.offset is None
    if isinstance(request, (flymq.Subscribe, flymq.ProduceWithSchema)):
        return True
    return _is_extended(request) and bare(request) == request


def _is_extended(request: Request) -> bool:
    return isinstance(REQUESTS[request.op], Extended)


def bare(request: Request) -> Request:
    """The request without the fields that are our own addition."""
    match request:
        case flymq.RegisterSchema():
            return dataclasses.replace(request, compatibility="")
        case flymq.ProduceDelayed() | flymq.ProduceWithTtl() | flymq.TxnProduce():
            return dataclasses.replace(request, key=b"", partition=-1)
        case flymq.TxnBegin():
            return flymq.TxnBegin()
        case flymq.DlqFail():
            return dataclasses.replace(request, token=0)
        case flymq.FetchDlq():
            return dataclasses.replace(request, start="")
        case flymq.FetchBatches():
            return dataclasses.replace(request, from_replica=False)
        case flymq.ClusterMap():
            return dataclasses.replace(request, readers=False)
        case flymq.PipelineStart():
            return dataclasses.replace(request, token="")
        case flymq.ReplayDlq():
            return dataclasses.replace(request, filter="", all=False, max=0)
        case _:
            assert not _is_extended(request), f"say what a bare {type(request).__name__} is"
            return request


def size_of(request: Request, dialect: Dialect) -> int:
    return len(encode_request(request, dialect)) - HEADER_BYTES


def _size(text: str) -> int:
    return 2 + len(text.encode())


def request_may_end_at(request: Request, dialect: Dialect) -> set[int]:
    """Payload sizes, below the full one, at which the request is still one: a shorter form, or without optional fields."""
    size = size_of(request, dialect)
    short = size_of(bare(request), dialect)
    ends = {short} - {size}
    match request:
        case flymq.Fetch() if dialect is V126:
            ends.add(size_of(dataclasses.replace(request, filter=""), DOCUMENTED))
        case flymq.Subscribe() if dialect is DOCUMENTED:
            # Half of a documented mode length is a whole v126 mode, the empty one.
            ends.add(size - _size(request.mode) + 1)
        case flymq.ListSchemas() | flymq.ClusterMetadata():
            ends.add(0)
        case flymq.CancelDelayed() if request.topic:
            ends.add(_size(request.topic))
        case flymq.DescribeGroup() if not request.group_only:
            ends.add(_size(request.topic))
        case flymq.DeleteGroup():
            ends.add(_size(request.topic))
        case flymq.ResetOffset():
            mode_end = size - (0 if request.offset is None else 8)
            if request.mode != "offset":
                ends.add(mode_end)
            if not request.mode:
                ends.add(mode_end - 1)
        case flymq.SeekToTimestamp():
            ends.add(_size(request.topic) + 12)
        case flymq.UserCreate() | flymq.UserUpdate() | flymq.PasswordChange():
            ends.add(size - 1)
        case flymq.ProduceWithSchema() if request.order is flymq.SchemaOrder.KEYED:
            ends.add(size - 8 - len(request.key))
        case flymq.ReplayDlq():
            ends.add(_size(request.topic) + 8)
            if request.offset is not None:
                # Its first bytes can be the length of a short id.
                ends.add(_size(request.topic) + 2 + (request.offset >> 48))
        case _:
            pass
    return {end for end in ends if end < size}


_oks = st.builds(flymq.Ok, bools, texts)
_messages = st.builds(flymq.Message, blobs, blobs)
_metadata = st.builds(flymq.RecordMetadata, texts, i32s, u64s, i64s, i32s, i32s)
_fetched = st.builds(flymq.Fetched, several(st.builds(flymq.FetchedItem, blobs, blobs, u64s)), u64s)
_offsets = st.builds(flymq.Offset, u64s)
_done = st.builds(flymq.TxnDone, texts, bools)
_cluster_partitions = st.builds(flymq.ClusterPartition, u32s, texts, texts, u64s, texts, _listed, _listed)
_group_infos = st.builds(flymq.GroupInfo, texts, texts, u32s, several(st.builds(flymq.GroupOffset, u32s, u64s)))
_users = st.builds(flymq.UserInfo, texts, _listed, _listed, bools, i64s, i64s)
_events = st.builds(flymq.AuditEvent, texts, i64s, texts, texts, texts, texts, texts, texts, texts, _pairs)
_replays = st.builds(
    flymq.PipelineReplays,
    several(st.builds(flymq.ReplayEntry, u32s, texts, texts, blobs, i64s, u32s, i64s, i64s, texts, texts)),
)
_pages = st.builds(flymq.AuditEvents, several(_events), i32s, bools)
_documents = st.builds(flymq.AuditDocument, blobs, texts)
_stage_states = st.builds(flymq.StageState, bools, u32s, u32s, u64s)
_lags = st.builds(flymq.PartitionLag, i32s, u64s, u64s, u64s, i64s)
_responses: dict[Op, st.SearchStrategy[Response]] = {
    Op.PRODUCE: _metadata,
    Op.CONSUME: _messages,
    Op.CREATE_TOPIC: _oks,
    Op.METADATA: st.builds(
        flymq.TopicMetadata, texts, several(st.builds(flymq.PartitionMetadata, i32s, i32s, u64s, u64s))
    ),
    Op.SUBSCRIBE: _offsets,
    Op.COMMIT: _oks,
    Op.FETCH: _fetched,
    Op.LIST_TOPICS: st.builds(flymq.TopicList, _listed),
    Op.DELETE_TOPIC: _oks,
    Op.CONSUME_ZERO_COPY: _messages,
    Op.FETCH_BINARY: _fetched,
    Op.PRODUCE_BATCH: st.builds(flymq.BatchProduced, texts, i32s, u64s, i64s, u32s, bools),
    Op.FETCH_BATCHES: st.builds(flymq.FetchedBatches, texts, i32s, u64s, u64s, blobs),
    Op.TXN_OFFSETS: _oks,
    Op.REGISTER_SCHEMA: st.builds(flymq.SchemaRegistered, texts, texts, u32s),
    Op.GET_SCHEMA: st.builds(flymq.SchemaDefinition, texts, texts, u32s, blobs, texts),
    Op.LIST_SCHEMAS: st.builds(flymq.Schemas, several(st.builds(flymq.SchemaEntry, texts, texts, u32s))),
    Op.VALIDATE_SCHEMA: st.builds(flymq.Validation, bools, _listed),
    Op.PRODUCE_WITH_SCHEMA: _metadata,
    Op.DELETE_SCHEMA: _oks,
    Op.FETCH_DLQ: st.builds(flymq.DeadLetters, several(st.builds(flymq.DeadLetter, texts, blobs, texts, i32s))),
    Op.REPLAY_DLQ: st.builds(flymq.DlqReplayed, bools, texts, u32s),
    Op.PURGE_DLQ: _oks,
    Op.DLQ_DISCARD: _oks,
    Op.PRODUCE_DELAYED: st.builds(flymq.Delayed, texts, i32s, u64s, i64s, i32s, i32s, texts),
    Op.CANCEL_DELAYED: _oks,
    Op.PRODUCE_WITH_TTL: _metadata,
    Op.TXN_BEGIN: st.builds(flymq.TxnDone, texts, bools, i64s),
    Op.TXN_COMMIT: _done,
    Op.TXN_ROLLBACK: _done,
    Op.TXN_PRODUCE: _metadata,
    Op.CLUSTER_JOIN: _oks,
    Op.CLUSTER_LEAVE: _oks,
    Op.CLUSTER_STATUS: st.builds(
        flymq.ClusterState,
        texts,
        texts,
        texts,
        texts,
        several(st.builds(flymq.ClusterNode, texts, texts, texts, texts, bools)),
    ),
    Op.CLUSTER_METADATA: st.builds(
        flymq.ClusterTopics, texts, several(st.builds(flymq.ClusterTopic, texts, several(_cluster_partitions)))
    ),
    Op.GROUP_JOIN: st.builds(
        flymq.GroupAssignment, texts, u32s, several(st.builds(flymq.TopicPartition, texts, i32s))
    ),
    Op.GROUP_HEARTBEAT: st.builds(flymq.HeartbeatReply, u32s, bools),
    Op.GROUP_LEAVE: _oks,
    Op.GROUP_COMMIT: _oks,
    Op.GROUP_LAG: st.builds(flymq.PartitionLags, several(_lags)),
    Op.DLQ_FAIL: st.builds(flymq.FailureRecorded, bools, u32s, i64s),
    Op.TOPIC_CONFIG: st.builds(flymq.TopicProperties, _pairs),
    Op.DELAYED_LIST: st.builds(
        flymq.DelayedMessages, several(st.builds(flymq.DelayedMessage, texts, texts, i64s, u32s))
    ),
    Op.TXN_LIST: st.builds(
        flymq.Transactions, several(st.builds(flymq.Transaction, texts, texts, texts, i64s, u32s))
    ),
    Op.STAGE_BATCH: _stage_states,
    Op.GROUP_PLAN: _oks,
    Op.STAGE_PUBLISH: st.builds(flymq.StagePublished, bools),
    Op.STAGE_ABORT: _stage_states,
    Op.STAGE_STATUS: _stage_states,
    Op.STAGE_LIST: st.builds(
        flymq.StagedEpochs, several(st.builds(flymq.StagedEpoch, texts, i64s, texts, i64s, u32s, u32s, u64s))
    ),
    Op.TOPIC_PLACES: st.builds(
        flymq.Places, several(st.builds(flymq.TopicPlace, texts, i64s, several(st.builds(flymq.PartitionPlace, u64s, u64s, u64s))))
    ),
    Op.AUDIT_EVENTS: _pages,
    Op.AUDIT_DOCUMENT: _documents,
    Op.GET_OFFSET: _offsets,
    Op.RESET_OFFSET: _oks,
    Op.LIST_GROUPS: st.builds(flymq.Groups, several(_group_infos)),
    Op.DESCRIBE_GROUP: _group_infos,
    Op.GET_LAG: st.builds(flymq.Lag, u64s, u64s, u64s, u64s),
    Op.DELETE_GROUP: _oks,
    Op.SEEK_TO_TIMESTAMP: _offsets,
    Op.PIPELINE_PUT: _oks,
    Op.PIPELINE_LIST: st.builds(
        flymq.PipelineSummaries, several(st.builds(flymq.PipelineSummary, *[texts] * 5, i64s, i64s, blobs))
    ),
    Op.PIPELINE_GET: st.builds(
        flymq.PipelineDetail, *[texts] * 5, blobs, i64s,
        several(st.builds(flymq.PipelineRun, u32s, texts, texts, i64s, i64s, texts, texts, blobs)),
        several(st.builds(flymq.PipelineEvent, i64s, u32s, texts, texts)),
        several(st.builds(flymq.PipelineProgress, i64s, blobs)),
    ),
    Op.PIPELINE_STEER: _oks,
    Op.PIPELINE_REMOVE: _oks,
    Op.PIPELINE_START: st.builds(flymq.PipelineStarted, u32s, texts),
    Op.PIPELINE_REPORT: st.builds(flymq.PipelineDesired, texts),
    Op.PIPELINE_END: _oks,
    Op.PIPELINE_REPLAY: _replays,
    Op.PIPELINE_REPLAY_LIST: _replays,
    Op.PIPELINE_REPLAY_TAKE: _replays,
    Op.PIPELINE_REPLAY_END: _oks,
    Op.AUTH: st.builds(flymq.Authenticated, bools, texts, _listed, texts),
    # Permissions are carried by v126 alone; a test of their own shows it.
    Op.WHOAMI: st.builds(flymq.Identity, bools, texts, several(names)),
    Op.USER_CREATE: _users,
    Op.USER_DELETE: _oks,
    Op.USER_UPDATE: _oks,
    Op.USER_LIST: st.builds(flymq.Users, several(_users)),
    Op.USER_GET: _users,
    Op.ACL_SET: _oks,
    Op.ACL_GET: st.builds(flymq.Acl, texts, bools, bools, bools, _listed, _listed),
    Op.ACL_DELETE: _oks,
    Op.ACL_LIST: st.builds(
        flymq.Acls, several(st.builds(flymq.AclEntry, texts, bools, bools, _listed, _listed)), bools
    ),
    Op.PASSWORD_CHANGE: _oks,
    Op.ROLE_LIST: st.builds(flymq.Roles, several(st.builds(flymq.Role, texts, _listed, texts))),
    # What lists quotas has a form of its own, which only the request tells.
    Op.ACCOUNT_ADMIN: _oks,
    Op.AUDIT_QUERY: _pages,
    Op.AUDIT_EXPORT: _documents,
    Op.AUDIT_QUERY_SDK: _pages,
    Op.AUDIT_EXPORT_SDK: st.builds(flymq.AuditDocument, blobs),
    Op.DOCUMENT: st.builds(flymq.DocumentText, blobs),
    Op.BACKUP_BEGIN: st.builds(
        flymq.BackupFiles, texts, texts, bools, several(st.builds(flymq.BackupFile, texts, u64s))
    ),
    Op.BACKUP_READ: st.builds(flymq.BackupPiece, blobs),
    Op.BACKUP_END: _oks,
    Op.CLUSTER_STEER: st.builds(flymq.Steered, blobs),
    Op.CLUSTER_MAP: st.builds(
        flymq.ClusterTopics, texts, several(st.builds(flymq.ClusterTopic, texts, several(_cluster_partitions))),
        several(st.builds(flymq.ReplicaReader, texts, texts, texts)),
    ),
}
RESPONSE_OPS = tuple(_responses)
RESPONSES = st.one_of(*(st.tuples(st.just(op), strategy) for op, strategy in _responses.items()))


def response_may_end_at(op: Op, response: Response, dialect: Dialect) -> set[int]:
    """Payload sizes, below the full one, at which the response still reads, without what other servers leave out."""
    size = len(flymq.encode_response(op, response, dialect)) - HEADER_BYTES
    match response:
        case flymq.Ok():
            ends = {1}  # What the published server sends: the success byte alone.
        case flymq.DlqReplayed():
            ends = {1, 1 + _size(response.message)}
        case flymq.Delayed():
            ends = {size - _size(response.id)}
        case flymq.TxnDone() if op is Op.TXN_BEGIN:
            ends = {_size(response.id) + 1}
        case flymq.SchemaDefinition():
            ends = {size - 4 - len(response.definition) - 1 - len(response.compatibility.encode())}
        case flymq.ClusterTopics() if response.readers:
            ends = {len(flymq.encode_response(op, dataclasses.replace(response, readers=()), dialect)) - HEADER_BYTES}
        case flymq.Authenticated() if dialect is V126 and not response.roles and not response.error:
            ends = set(range(size - 2, size))
        case flymq.AuditDocument() if op is Op.AUDIT_EXPORT_SDK:
            ends = set(range(size))
        case _:
            ends = set()
    return {end for end in ends if end < size}


def may_grow(op: Op, response: Response) -> bool:
    """Whether bytes behind the response are ignored."""
    if isinstance(response, flymq.DlqReplayed):
        return response.count != 1
    if isinstance(response, flymq.TxnDone) and op is Op.TXN_BEGIN:
        return response.epoch != -1
    if isinstance(response, flymq.ClusterTopics) and op is Op.CLUSTER_MAP:
        return bool(response.readers)
    return op is not Op.AUDIT_EXPORT_SDK
