"""Records that come later, and records that do not stay."""

from __future__ import annotations

from braidmq.base.errors import BraidError
from braidmq.broker.admission import is_open
from braidmq.server.authorization import check_cancel
from braidmq.server.operations.calling import Answer, Caller, account, auto_created, partitions_of_new, respond
from braidmq.wire import flymq

_LIST_DEFAULT = 100


async def produce_delayed(caller: Caller, request: flymq.ProduceDelayed) -> Answer:
    """Checked when it is taken in: whoever sent it is there to be told."""
    broker = caller.broker
    sizes = (len(request.key) or -1, len(request.data))
    topic = broker.topics.get(request.topic)
    fault = None if topic is None or is_open(topic) else await broker.admission.fault(topic, request.data)
    if topic is not None and fault is not None:
        buried = await broker.admission.bury(topic, request.partition, request.key, request.data, fault)
        return respond(caller, request, flymq.Delayed(buried.topic, buried.partition, buried.offset, buried.timestamp, *sizes))
    accepted = await broker.delayed.produce(
        request.topic, request.key, request.data, request.delay_ms, partition=request.partition,
        partitions_of_new=partitions_of_new(caller), by=account(caller),
    )  # fmt: skip
    answer = flymq.Delayed(request.topic, accepted.partition, accepted.offset, accepted.timestamp, *sizes, accepted.id)
    return respond(caller, request, answer)


async def cancel_delayed(caller: Caller, request: flymq.CancelDelayed) -> Answer:
    await check_cancel(caller, request)
    await caller.broker.delayed.cancel(request.id)
    return respond(caller, request, flymq.Ok())


async def produce_with_ttl(caller: Caller, request: flymq.ProduceWithTtl) -> Answer:
    topic = await auto_created(caller, request.topic)
    stored = await caller.broker.admission.produce(
        topic, request.partition, request.key, request.data, ttl_ms=max(request.ttl_ms, 0)
    )
    return respond(
        caller, request,
        flymq.RecordMetadata(
            stored.topic, stored.partition, stored.offset, stored.timestamp, len(request.key) or -1, len(request.data)
        ),
    )  # fmt: skip


async def delayed_list(caller: Caller, request: flymq.DelayedList) -> Answer:
    if request.max < 0:
        raise BraidError("INVALID_ARGUMENT", reason=f"max {request.max} is negative")
    waiting = await caller.broker.delayed.waiting(request.topic, request.max or _LIST_DEFAULT)
    rows = (flymq.DelayedMessage(each.id, each.topic, each.due_ms, each.size) for each in waiting)
    return respond(caller, request, flymq.DelayedMessages(tuple(rows)))
