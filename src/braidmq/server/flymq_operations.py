"""What each FlyMQ request does: from a typed request to the bytes of its answer.

An operation that can answer at once returns a list of buffers; one that must wait returns an awaitable of it. The table at
the end is the whole surface: an opcode that is not in it does not exist.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import Protocol

from braidmq import hot
from braidmq.base import limits
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker, StagedBatch
from braidmq.log.partition import Batches, Cold, PartitionLog, Rows
from braidmq.wire import flymq
from braidmq.wire.flymq import Dialect, Op
from braidmq.wire.flymq.frames import encode_header

Answer = list[Buffer]
Outcome = Answer | Awaitable[Answer]

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_V126_FETCH = struct.Struct(">IQ")


class Caller(Protocol):
    """Who asks: a connection."""

    broker: Broker
    dialect: Dialect

    @property
    def address(self) -> str: ...

    def remember_membership(self, topic_id: int, group: str) -> None:
        """The connection is a member of the group until it closes."""
        ...


def _respond(caller: Caller, request: flymq.Request, response: flymq.Response) -> Answer:
    return [flymq.encode_response(request.op, response, caller.dialect)]


# --- producing


async def produce(caller: Caller, request: flymq.Produce) -> Answer:
    """A PRODUCE the parser would not take: a new topic, a compressed payload, a partition that is not there."""
    broker = caller.broker
    topic = await broker.auto_create(request.topic, _partitions_of_new(caller))
    partition, offset, timestamp = await broker.append(topic, request.partition, request.key, request.value)
    return _respond(
        caller, request,
        flymq.RecordMetadata(topic.name, partition, offset, timestamp, len(request.key) or -1, len(request.value)),
    )


def stage_batch(caller: Caller, request: flymq.ProduceBatch) -> tuple[StagedBatch, Answer] | None:
    """Take a batch in and say what to answer when it is durable; None when its topic must be created first."""
    topic = caller.broker.topics.get(request.topic)
    if topic is None:
        return None
    staged = caller.broker.stage_batch(topic, request.partition, request.batch)
    log = staged.log
    answer = flymq.BatchProduced(
        topic.name, log.partition, staged.base_offset, staged.timestamp, staged.records, staged.duplicate
    )
    return staged, _respond(caller, request, answer)


async def produce_batch(caller: Caller, request: flymq.ProduceBatch) -> Answer:
    """A PRODUCE_BATCH to a topic that does not exist yet."""
    await caller.broker.auto_create(request.topic, _partitions_of_new(caller))
    outcome = stage_batch(caller, request)
    if outcome is None:
        raise BraidError("TOPIC_NOT_FOUND", topic=request.topic)
    staged, answer = outcome
    await caller.broker.durable(staged.log, staged.base_offset + staged.records)
    return answer


def _partitions_of_new(caller: Caller) -> int | None:
    """Published clients read partition 0 only, so a topic that one of them creates by producing has just that."""
    return 1 if caller.dialect is Dialect.V126 else None


# --- reading


def consume(caller: Caller, request: flymq.Consume) -> Outcome:
    log = caller.broker.partition(request.topic, request.partition)
    _check_readable(request, log)
    rows = log.read_rows(request.offset, 1, limits.FETCH_BYTES_TARGET)
    if isinstance(rows, Cold):
        return _consume_cold(caller, request, log, rows)
    return _consumed(request, rows)


async def _consume_cold(caller: Caller, request: flymq.Consume, log: PartitionLog, cold: Cold) -> Answer:
    rows = await caller.broker.finish_rows(log, cold, request.offset, 1, limits.FETCH_BYTES_TARGET)
    # Retention, or the end of the topic, may have come first.
    if log.removed:
        raise BraidError("TOPIC_NOT_FOUND", topic=request.topic)
    _check_readable(request, log)
    return _consumed(request, rows)


def _check_readable(request: flymq.Consume, log: PartitionLog) -> None:
    if request.offset >= log.high_watermark:
        raise BraidError("EOF", offset=request.offset, topic=request.topic, partition=request.partition)
    if request.offset < log.log_start:
        raise BraidError(
            "OFFSET_OUT_OF_RANGE", offset=request.offset, topic=request.topic, partition=request.partition,
            oldest=log.log_start, newest=log.high_watermark,
        )


def _consumed(request: flymq.Consume, rows: Rows) -> Answer:
    # A stored row is the answer with the offset behind it.
    row = memoryview(rows.slices[0])
    return [encode_header(request.op, len(row) - 8), row[:-8]]


def fetch(caller: Caller, request: flymq.Fetch) -> Outcome:
    log = caller.broker.partition(request.topic, request.partition, "PARTITION_NOT_FOUND")
    records_max = request.max_messages if request.max_messages > 0 else limits.FETCH_RECORDS_DEFAULT
    offset = max(request.offset, log.log_start)
    if request.filter:
        return _fetch_filtered(caller, request, log, offset, records_max)
    rows = log.read_rows(offset, records_max, limits.FETCH_BYTES_TARGET)
    if isinstance(rows, Cold):
        return _fetch_cold(caller, request, log, rows, offset, records_max)
    return _fetched(caller, request, rows)


async def _fetch_cold(
    caller: Caller, request: flymq.Fetch, log: PartitionLog, cold: Cold, offset: int, records_max: int
) -> Answer:
    return _fetched(caller, request, await caller.broker.finish_rows(log, cold, offset, records_max, limits.FETCH_BYTES_TARGET))


async def _fetch_filtered(caller: Caller, request: flymq.Fetch, log: PartitionLog, offset: int, records_max: int) -> Answer:
    return _fetched(caller, request, await caller.broker.filtered(log, offset, records_max, request.filter))


def _fetched(caller: Caller, request: flymq.Fetch, rows: Rows) -> Answer:
    head = encode_header(request.op, 12 + rows.size)
    if caller.dialect is Dialect.V126:
        items = hot.reorder_rows(rows.slices, rows.size)
        return [head + _V126_FETCH.pack(rows.count, rows.next_offset), items]
    # The stored rows are the items of a documented answer: what goes to the socket are slices of the log.
    return [head + _U32.pack(rows.count), *rows.slices, _U64.pack(rows.next_offset)]


def fetch_batches(caller: Caller, request: flymq.FetchBatches) -> Outcome:
    log = caller.broker.partition(request.topic, request.partition, "PARTITION_NOT_FOUND")
    if not log.log_start <= request.offset <= log.high_watermark:
        raise BraidError(
            "OFFSET_OUT_OF_RANGE", offset=request.offset, topic=request.topic, partition=request.partition,
            oldest=log.log_start, newest=log.high_watermark,
        )
    bytes_max = min(max(request.max_bytes, 1), limits.FETCH_BYTES_TARGET)
    bytes_min = max(1, min(request.min_bytes, bytes_max))
    read = log.read_batches(request.offset, bytes_max)
    if isinstance(read, Cold) or (read.size < bytes_min and request.max_wait_ms):
        return _fetch_batches_later(caller, request, log, bytes_max, bytes_min)
    return _fetched_batches(caller, request, log, read)


async def _fetch_batches_later(
    caller: Caller, request: flymq.FetchBatches, log: PartitionLog, bytes_max: int, bytes_min: int
) -> Answer:
    wait_s = min(request.max_wait_ms / 1000, limits.LONG_POLL_SECONDS_MAX)
    read = await caller.broker.read_batches(log, request.offset, bytes_max, bytes_min, wait_s)
    if log.removed:
        raise BraidError("TOPIC_NOT_FOUND", topic=request.topic)
    return _fetched_batches(caller, request, log, read)


def _fetched_batches(caller: Caller, request: flymq.FetchBatches, log: PartitionLog, read: Batches) -> Answer:
    empty = flymq.FetchedBatches(request.topic, request.partition, log.high_watermark, log.log_start, b"")
    body = flymq.encode_response(request.op, empty, caller.dialect)
    # The empty answer's last field is the length of the batches; announce the real one and send slices behind it.
    head = encode_header(request.op, len(body) - flymq.HEADER_BYTES + read.size) + body[flymq.HEADER_BYTES : -4]
    return [head + _U32.pack(read.size), *read.slices]


# --- topics


async def create_topic(caller: Caller, request: flymq.CreateTopic) -> Answer:
    await caller.broker.create_topic(request.topic, request.partitions, request.properties)
    return _respond(caller, request, flymq.Ok())


async def delete_topic(caller: Caller, request: flymq.DeleteTopic) -> Answer:
    await caller.broker.delete_topic(request.topic)
    return _respond(caller, request, flymq.Ok())


def list_topics(caller: Caller, request: flymq.ListTopics) -> Answer:
    return _respond(caller, request, flymq.TopicList(tuple(caller.broker.topic_names())))


def metadata(caller: Caller, request: flymq.Metadata) -> Answer:
    topic = caller.broker.topic(request.topic)
    partitions = []
    for number in range(topic.partitions):
        log = caller.broker.partition(request.topic, number)
        partitions.append(flymq.PartitionMetadata(number, 0, log.log_start, log.high_watermark))
    return _respond(caller, request, flymq.TopicMetadata(request.topic, tuple(partitions)))


# --- groups


def subscribe(caller: Caller, request: flymq.Subscribe) -> Answer:
    broker = caller.broker
    offset = broker.subscribe(request.topic, request.group, request.partition, request.mode, caller, caller.address)
    if request.group:
        caller.remember_membership(broker.topic(request.topic).id, request.group)
    return _respond(caller, request, flymq.Offset(offset))


async def commit(caller: Caller, request: flymq.Commit) -> Answer:
    await caller.broker.commit_offset(request.topic, request.group, request.partition, request.offset)
    return _respond(caller, request, flymq.Ok())


OPERATIONS: dict[Op, Callable[[Caller, flymq.Request], Outcome]] = {
    Op.PRODUCE: produce,  # type: ignore[dict-item]
    Op.CONSUME: consume,  # type: ignore[dict-item]
    Op.CREATE_TOPIC: create_topic,  # type: ignore[dict-item]
    Op.METADATA: metadata,  # type: ignore[dict-item]
    Op.SUBSCRIBE: subscribe,  # type: ignore[dict-item]
    Op.COMMIT: commit,  # type: ignore[dict-item]
    Op.FETCH: fetch,  # type: ignore[dict-item]
    Op.LIST_TOPICS: list_topics,  # type: ignore[dict-item]
    Op.DELETE_TOPIC: delete_topic,  # type: ignore[dict-item]
    Op.CONSUME_ZERO_COPY: consume,  # type: ignore[dict-item]
    Op.FETCH_BINARY: fetch,  # type: ignore[dict-item]
    Op.PRODUCE_BATCH: produce_batch,  # type: ignore[dict-item]
    Op.FETCH_BATCHES: fetch_batches,  # type: ignore[dict-item]
}
"""Each operation takes the request type that its opcode decodes to; the decoder's table pairs them."""
