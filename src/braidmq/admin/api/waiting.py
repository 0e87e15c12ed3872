"""What is under way: delayed messages and open transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from braidmq.admin.call import Call, Nothing
from braidmq.admin.shapes import Bounds
from braidmq.admin.times import rfc3339
from braidmq.base.errors import BraidError
from braidmq.broker.work_table import number_in
from braidmq.security.rules import Rule
from braidmq.server.authorization import owner_of


@dataclass(frozen=True, slots=True)
class DelayedRow:
    """A message that waits for its time."""

    id: str
    topic: str
    due_at: str
    due_ms: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DelayedQuery:
    """Which delayed messages."""

    topic: Annotated[str, "only those for this topic"] = ""
    limit: Annotated[int, Bounds(1, 1000), "how many at most, the soonest first"] = 100


@dataclass(frozen=True, slots=True)
class DelayedPage:
    """Delayed messages, the soonest first."""

    total: Annotated[int, "how many wait, of all topics"]
    messages: list[DelayedRow]


@dataclass(frozen=True, slots=True)
class TransactionRow:
    """A transaction that is open."""

    id: str
    user: str
    transactional_id: str
    state: str
    started_at: str
    records: int
    size_bytes: int
    offsets: Annotated[int, "offsets that would be committed with it"]


async def list_delayed(call: Call[DelayedQuery, Nothing]) -> DelayedPage:
    """Messages that wait for their time."""
    waiting = await call.broker.delayed.waiting(call.query.topic, call.query.limit)
    rows = [DelayedRow(each.id, each.topic, rfc3339(each.due_ms), each.due_ms, each.size) for each in waiting]
    return DelayedPage(len(call.broker.delayed), rows)


async def cancel_delayed(call: Call[Nothing, Nothing]) -> None:
    """Cancel a delayed message. That needs the right to write to the topic it would have gone to."""
    name = call.path["id"]
    number = number_in(name, "delayed-")
    message = (await call.broker.delayed.staged([number])).get(number)
    if message is None:
        raise BraidError("MESSAGE_NOT_FOUND", id=name)
    call.require(Rule.WRITE_TOPIC, message.topic, what="cancel_delayed")
    await call.broker.delayed.cancel(name)


def list_transactions(call: Call[Nothing, Nothing]) -> list[TransactionRow]:
    """Transactions that are open, the oldest first."""
    return [
        TransactionRow(
            each.id, owner_of(each.user).name if each.user else "", each.name, each.state, rfc3339(each.started_ms),
            len(each.records), each.size_bytes, len(each.offsets),
        )
        for each in call.broker.transactions.open_transactions()
    ]  # fmt: skip


async def abort_transaction(call: Call[Nothing, Nothing]) -> None:
    """Abort a transaction that is open; its records appear nowhere."""
    name = call.path["id"]
    call.broker.transactions.get(name)
    await call.broker.transactions.abort(name)
    call.note("txn.abort", name, "abort")
