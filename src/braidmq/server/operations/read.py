"""Reading: one record, rows, and whole batches. What goes to the socket are slices of the log."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.log.partition import PartitionLog
from braidmq.log.partition_reads import Batches, Cold, Rows
from braidmq.server.operations.calling import Answer, Caller, Outcome
from braidmq.wire import flymq
from braidmq.wire.flymq import Dialect
from braidmq.wire.flymq.frames import encode_header

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_V126_FETCH = struct.Struct(">IQ")
_TRACED_BYTES_MAX: Final = 256 * limits.KIB
"""Of an answer with rows, how much is looked at for contexts."""
_REPLICA_WAIT_S: Final = 1.0
"""Longest wait at a replica: after it, whether the copy still is as new as it has to be is looked at again."""


def consume(caller: Caller, request: flymq.Consume) -> Outcome:
    log = caller.broker.partition(request.topic, request.partition)
    _check_readable(request, log)
    rows = log.read_rows(request.offset, 1, limits.FETCH_BYTES_TARGET)
    if isinstance(rows, Cold):
        return _consume_cold(caller, request, log, rows)
    return _consumed(caller, request, log, rows)


async def _consume_cold(caller: Caller, request: flymq.Consume, log: PartitionLog, cold: Cold) -> Answer:
    rows = await caller.broker.finish_rows(log, cold, request.offset, 1, limits.FETCH_BYTES_TARGET)
    # Retention, or the end of the topic, may have come first.
    if log.removed:
        raise BraidError("TOPIC_NOT_FOUND", topic=request.topic)
    _check_readable(request, log)
    return _consumed(caller, request, log, rows)


def _check_readable(request: flymq.Consume, log: PartitionLog) -> None:
    if request.offset >= log.high_watermark:
        raise BraidError("EOF", offset=request.offset, topic=request.topic, partition=request.partition)
    if request.offset < log.log_start:
        raise BraidError(
            "OFFSET_OUT_OF_RANGE", offset=request.offset, topic=request.topic, partition=request.partition,
            oldest=log.log_start, newest=log.high_watermark,
        )


def _consumed(caller: Caller, request: flymq.Consume, log: PartitionLog, rows: Rows) -> Answer:
    # A stored row is the answer with the offset behind it.
    row = caller.broker.row_at(log, rows, request.offset)
    if caller.broker.commit.tracing is not None:
        _trace(caller, log, request.offset, request.offset + 1, rows)
    log.read_records += 1
    log.read_bytes += len(row)
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
    return _fetched(caller, request, log, rows, offset)


async def _fetch_cold(
    caller: Caller, request: flymq.Fetch, log: PartitionLog, cold: Cold, offset: int, records_max: int
) -> Answer:
    rows = await caller.broker.finish_rows(log, cold, offset, records_max, limits.FETCH_BYTES_TARGET)
    return _fetched(caller, request, log, rows, offset)


async def _fetch_filtered(caller: Caller, request: flymq.Fetch, log: PartitionLog, offset: int, records_max: int) -> Answer:
    rows = await caller.broker.filtered(log, offset, records_max, request.filter)
    return _fetched(caller, request, log, rows, offset)


def _fetched(caller: Caller, request: flymq.Fetch, log: PartitionLog, rows: Rows, offset: int) -> Answer:
    if rows.count and caller.broker.commit.tracing is not None:
        _trace(caller, log, offset, rows.next_offset, rows)
    log.read_records += rows.count
    log.read_bytes += rows.size
    head = encode_header(request.op, 12 + rows.size)
    if caller.dialect is Dialect.V126:
        items = hot.reorder_rows(rows.slices, rows.size)
        return [head + _V126_FETCH.pack(rows.count, rows.next_offset), items]
    # The stored rows are the items of a documented answer: what goes to the socket are slices of the log.
    return [head + _U32.pack(rows.count), *rows.slices, _U64.pack(rows.next_offset)]


def _trace(caller: Caller, log: PartitionLog, first: int, stop: int, rows: Rows) -> None:
    """A span for rows that go out. Rows are without attributes, so what they are linked to is read from their batches."""
    tracing = caller.broker.commit.tracing
    assert tracing is not None
    sent = frozenset(_offsets(rows))
    try:
        read = log.read_batches(first, _TRACED_BYTES_MAX)
    except BraidError:
        # Damage behind the rows, of which the reader hears when it comes there.
        read = Batches([], 0, first)
    batches = () if isinstance(read, Cold) else read.slices
    tracing.deliver("flymq", caller.address, log, first, stop, rows.count, batches, sent.__contains__)


def _offsets(rows: Rows) -> Iterator[int]:
    """The offset at the end of each row."""
    for data in rows.slices:
        at = 0
        while at < len(data):
            at += 4 + _U32.unpack_from(data, at)[0]
            at += 4 + _U32.unpack_from(data, at)[0]
            yield _U64.unpack_from(data, at)[0]
            at += _U64.size


def fetch_batches(caller: Caller, request: flymq.FetchBatches) -> Outcome:
    log = _fetched_log(caller, request)
    if not log.log_start <= request.offset <= log.reach:
        # What a replica has not, its leader may have, and knows for certain whether it is out of range.
        _check_leads(caller, request)
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
    wait_s = min(request.max_wait_ms / 1000, _REPLICA_WAIT_S if request.from_replica else limits.LONG_POLL_SECONDS_MAX)
    read = await caller.broker.read_batches(log, request.offset, bytes_max, bytes_min, wait_s)
    if log.removed or (request.from_replica and not read.size):
        # The topic is gone, or this node's part of it; or nothing came for the reason that this copy stands still.
        log = _fetched_log(caller, request)
    if log.removed:
        raise BraidError("TOPIC_NOT_FOUND", topic=request.topic)
    return _fetched_batches(caller, request, log, read)


def _fetched_log(caller: Caller, request: flymq.FetchBatches) -> PartitionLog:
    return caller.broker.partition(request.topic, request.partition, "PARTITION_NOT_FOUND", replica=request.from_replica)


def _check_leads(caller: Caller, request: flymq.FetchBatches) -> None:
    caller.broker.partition(request.topic, request.partition, "PARTITION_NOT_FOUND")


def _fetched_batches(caller: Caller, request: flymq.FetchBatches, log: PartitionLog, read: Batches) -> Answer:
    tracing = caller.broker.commit.tracing
    if tracing is not None and read.size:
        records = read.next_offset - request.offset
        tracing.deliver("flymq", caller.address, log, request.offset, read.next_offset, records, read.slices)
    log.read_records += max(0, read.next_offset - request.offset)
    log.read_bytes += read.size
    empty = flymq.FetchedBatches(request.topic, request.partition, log.high_watermark, log.log_start, b"")
    body = flymq.encode_response(request.op, empty, caller.dialect)
    # The empty answer's last field is the length of the batches; announce the real one and send slices behind it.
    head = encode_header(request.op, len(body) - flymq.HEADER_BYTES + read.size) + body[flymq.HEADER_BYTES : -4]
    return [head + _U32.pack(read.size), *read.slices]
