"""Transactions: records and offsets that appear together or not at all."""

from __future__ import annotations

from contextlib import ExitStack

from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.transactions import Transaction
from braidmq.server.authorization import owner_of, owner_text
from braidmq.server.operations.calling import Answer, Caller, account, note, partitions_of_new, respond
from braidmq.server.operations.group_notes import NotedCommit, Place
from braidmq.wire import flymq


async def txn_begin(caller: Caller, request: flymq.TxnBegin) -> Answer:
    transaction = await caller.broker.transactions.begin(
        caller, user=owner_text(caller.principal), name=request.transactional_id,
        epoch=request.epoch if request.epoch >= 0 else None,
        timeout_s=request.timeout_ms / 1000 if request.timeout_ms else None,
    )  # fmt: skip
    note(caller, "txn.begin", transaction.id, "begin")
    # Without a name there is no instance to know again, and the answer is the published one.
    return respond(caller, request, flymq.TxnDone(transaction.id, epoch=transaction.epoch if transaction.name else -1))


async def txn_commit(caller: Caller, request: flymq.TxnCommit) -> Answer:
    with ExitStack() as notes:
        for group, places in _offsets(caller.broker, request.id).items():
            notes.enter_context(NotedCommit(caller, group, places, "transaction"))
        await caller.broker.transactions.commit(request.id)
    note(caller, "txn.commit", request.id, "commit")
    return respond(caller, request, flymq.TxnDone(request.id))


def _offsets(broker: Broker, transaction_id: str) -> dict[str, list[Place]]:
    """The offsets that are committed with a transaction, by group; none where it has been committed before."""
    try:
        transaction = broker.transactions.get(transaction_id)
    except BraidError:
        return {}
    found: dict[str, list[Place]] = {}
    for (topic_id, group, partition), offset in transaction.offsets.items():
        topic = broker.topics.by_id(topic_id)
        if topic is not None:
            found.setdefault(group, []).append((topic.name, partition, offset))
    return found


def note_abort(broker: Broker, transaction: Transaction, why: str) -> None:
    """Write down that a transaction came to an end that its owner did not ask for."""
    # The owner is a connection, which knows where it came from also when it is gone.
    address: str = getattr(transaction.owner, "ip", "")
    broker.security.note("txn.abort", owner_of(transaction.user), address, transaction.id, why)


async def txn_rollback(caller: Caller, request: flymq.TxnRollback) -> Answer:
    await caller.broker.transactions.abort(request.id)
    note(caller, "txn.abort", request.id, "abort")
    return respond(caller, request, flymq.TxnDone(request.id))


async def txn_produce(caller: Caller, request: flymq.TxnProduce) -> Answer:
    timestamp = await caller.broker.admission.produce_in_transaction(
        request.id, request.topic, request.partition, request.key, request.data, partitions_of_new(caller), account(caller)
    )
    # It has no offset yet; published clients are told partition 0 where nobody asked for another.
    answer = flymq.RecordMetadata(
        request.topic, max(request.partition, 0), 0, timestamp, len(request.key) or -1, len(request.data)
    )
    return respond(caller, request, answer)


def txn_offsets(caller: Caller, request: flymq.TxnOffsets) -> Answer:
    places = [(place.topic, place.partition, place.offset) for place in request.offsets]
    caller.broker.transactions.add_offsets(request.id, request.group, places)
    return respond(caller, request, flymq.Ok())


def txn_list(caller: Caller, request: flymq.TxnList) -> Answer:
    rows = (
        flymq.Transaction(each.id, owner_of(each.user).name, each.state, each.started_ms, len(each.records))
        for each in caller.broker.transactions.open_transactions()
    )
    return respond(caller, request, flymq.Transactions(tuple(rows)))
