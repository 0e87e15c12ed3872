"""Dead letters: showing, replaying and purging them, and a consumer that could not process a record."""

from __future__ import annotations

from braidmq.base.errors import BraidError
from braidmq.server.operations.calling import Answer, Caller, note, respond
from braidmq.wire import flymq


async def fetch_dlq(caller: Caller, request: flymq.FetchDlq) -> Answer:
    letters = await caller.broker.dead_letters.letters(request.topic, request.max, start=request.start)
    items = (flymq.DeadLetter(letter.id, letter.value, letter.error, letter.attempts) for letter in letters)
    return respond(caller, request, flymq.DeadLetters(tuple(items)))


async def replay_dlq(caller: Caller, request: flymq.ReplayDlq) -> Answer:
    letters = caller.broker.dead_letters
    count = 1
    if request.many:
        if not request.filter and not request.all:
            raise BraidError("INVALID_ARGUMENT", reason="a replay of many names a filter, or says that it means all")
        count = await letters.replay_matching(request.topic, request.filter, request.max)
    elif request.offset is not None:
        await letters.replay_offset(request.topic, request.offset)
    else:
        await letters.replay_id(request.topic, request.id)
    note(caller, "config.change", request.topic, "replay dead letters", count=str(count))
    return respond(caller, request, flymq.DlqReplayed(count=count))


async def purge_dlq(caller: Caller, request: flymq.PurgeDlq) -> Answer:
    count = await caller.broker.dead_letters.purge(request.topic)
    note(caller, "config.change", request.topic, "purge dead letters", count=str(count))
    return respond(caller, request, flymq.Ok())


async def dlq_discard(caller: Caller, request: flymq.DlqDiscard) -> Answer:
    await caller.broker.dead_letters.discard(request.topic, request.id)
    note(caller, "config.change", request.topic, "discard dead letter", letter=request.id)
    return respond(caller, request, flymq.Ok())


async def dlq_fail(caller: Caller, request: flymq.DlqFail) -> Answer:
    failed = await caller.broker.dead_letters.fail(
        request.topic, request.partition, request.offset, request.group, request.reason, request.error, request.token
    )
    return respond(caller, request, flymq.FailureRecorded(failed.dead_lettered, failed.attempts, failed.retry_at_ms))
