"""Producing: what the parser of plain PRODUCE frames would not take, and whole batches."""

from __future__ import annotations

from braidmq.base.errors import BraidError
from braidmq.broker.admission import is_open
from braidmq.broker.staged import StagedBatch
from braidmq.broker.topics import Topic
from braidmq.server.operations.calling import Answer, Caller, auto_created, respond
from braidmq.wire import flymq


async def produce(caller: Caller, request: flymq.Produce) -> Answer:
    """A PRODUCE the parser would not take: a new topic, a compressed payload, a partition that is not there, a schema."""
    topic = await auto_created(caller, request.topic)
    _check_leads(caller, topic, request.partition)
    stored = await caller.broker.admission.produce(topic, request.partition, request.key, request.value)
    return respond(
        caller, request,
        flymq.RecordMetadata(
            stored.topic, stored.partition, stored.offset, stored.timestamp, len(request.key) or -1, len(request.value)
        ),
    )  # fmt: skip


def _check_leads(caller: Caller, topic: Topic, partition: int) -> None:
    """Whoever names a partition is told who leads it; what names none goes wherever it has to."""
    broker = caller.broker
    if 0 <= partition < topic.partitions and broker.led_elsewhere(topic, partition) and not caller.forwarded:
        assert broker.peers is not None
        raise broker.peers.not_leader(topic.id, partition)


def stage_checked(caller: Caller, request: flymq.Produce) -> tuple[StagedBatch, Answer] | None:
    """Take a record for a topic that checks it in, and say what to answer when it is durable.

    None where something has to be waited for, or where it does not fit: then `produce` says what becomes of it.
    """
    broker = caller.broker
    topic = broker.topics.get(request.topic)
    if topic is None or is_open(topic) or not broker.admission.fits_at_once(topic, request.value):
        return None
    if broker.peers is not None:
        # It may go to another node, which says later where it lies.
        return None
    staged = broker.stage(topic, request.partition, request.key, request.value)
    answer = flymq.RecordMetadata(
        topic.name, staged.log.partition, staged.base_offset, staged.timestamp, len(request.key) or -1, len(request.value)
    )
    return staged, respond(caller, request, answer)


def stage_batch(caller: Caller, request: flymq.ProduceBatch) -> tuple[StagedBatch, Answer] | None:
    """Take a batch in and say what to answer when it is durable; None when something has to be waited for first."""
    topic = caller.broker.topics.get(request.topic)
    if topic is None or not is_open(topic):
        return None
    if request.partition < 0 and caller.broker.leads_nothing_of(topic):
        return None
    staged = caller.broker.stage_batch(topic, request.partition, request.batch)
    log = staged.log
    answer = flymq.BatchProduced(
        topic.name, log.partition, staged.base_offset, staged.timestamp, staged.records, staged.duplicate
    )
    return staged, respond(caller, request, answer)


async def produce_batch(caller: Caller, request: flymq.ProduceBatch) -> Answer:
    """A PRODUCE_BATCH to a topic that does not exist yet, or that checks its records."""
    topic = await auto_created(caller, request.topic)
    _check_leads(caller, topic, request.partition)
    broker = caller.broker
    if broker.peers is not None and is_open(topic) and request.partition < 0 and broker.leads_nothing_of(topic):
        partition = broker.choose_partition(broker.route(topic), b"", -1)
        offset, records, timestamp, duplicate = await broker.peers.produce(topic, partition, request.batch)
        return respond(caller, request, flymq.BatchProduced(topic.name, partition, offset, timestamp, records, duplicate))
    if not is_open(topic):
        stored = await caller.broker.admission.produce_batch(topic, request.partition, request.batch)
        return respond(
            caller, request,
            flymq.BatchProduced(
                topic.name, stored.partition, stored.base_offset, stored.timestamp, stored.records, stored.duplicate
            ),
        )  # fmt: skip
    outcome = stage_batch(caller, request)
    if outcome is None:
        raise BraidError("TOPIC_NOT_FOUND", topic=request.topic)
    staged, answer = outcome
    await staged.durability()
    return answer
