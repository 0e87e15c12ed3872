"""Transactions: records for any topics and partitions, and consumer offsets, that appear together or not at all.

A transaction belongs to a connection and lives in memory until it is committed; its records are staged (`staging.py`). Commit
writes one decision that names them, and `work.py` does what was decided. So the states are few:

    active --commit--> committing --decision durable--> committed      readers see everything at one moment
      |                    | refused: active again
      |--abort, time-out, end of the connection, restart of the broker--> aborted
      |--a newer producer of the same name--------------------------> fenced

Nothing that was not committed ever enters a partition, so readers need no filter. A record is acknowledged when it is staged,
before it is durable: a crash ends the transaction either way, and commit waits for all of its records. One that could not be
written fails the commit.

A producer may have a name, its *transactional id*. Beginning under a name without an epoch takes the name over: what an
earlier instance has open is aborted, and whatever that instance tries from then on is refused, also after a restart. The
epoch that `begin` returns lets the new instance go on under its name without taking it over again: one that was replaced and
does not know it yet is refused when it begins, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.features import BROKER
from braidmq.broker.names import check_group, check_topic
from braidmq.broker.topics import Topic
from braidmq.broker.work import Draft
from braidmq.broker.work_table import Work, number_in
from braidmq.security.accounts import Caller

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

State = Literal["active", "committing", "committed", "aborted", "fenced", "in doubt"]

_PREFIX: Final = "txn-"
_KEYLESS: Final = -1

logger = logging.getLogger("braidmq.transactions")


@dataclass(slots=True, eq=False)
class Transaction:
    draft: Draft
    owner: object
    """The connection it ends with; None for one that only its time-out ends."""
    user: str
    """Who began it, for those who decide who may touch it."""
    name: str
    """Transactional id, empty without one."""
    epoch: int
    started_ms: int
    deadline_s: float
    state: State = "active"
    records: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Topic, partition (-1 for any), hash of the key, ref."""
    size_bytes: int = 0
    offsets: dict[tuple[int, str, int], int] = field(default_factory=dict)
    """(topic id, group, partition) to offset."""
    in_doubt: BraidError | None = None
    """Why nobody knows whether the decision is on the disk."""
    work: Work | None = None
    committing: asyncio.Task[None] | None = None
    abandoned: bool = False
    """Whether its owner went away while it was being committed."""

    @property
    def number(self) -> int:
        return self.draft.number

    @property
    def id(self) -> str:
        return f"{_PREFIX}{self.number}"


class Transactions:
    def __init__(self, broker: Broker, timeout_s: float) -> None:
        self._broker = broker
        self._timeout_s = timeout_s
        self._open: dict[int, Transaction] = {}
        self._ended: dict[int, Transaction] = {}
        """The last that did not commit here; those that did are in the table of the work, which survives."""
        self._by_name: dict[str, Transaction] = {}
        self._by_owner: dict[object, set[Transaction]] = {}
        self.on_abort: Callable[[Transaction, str], None] = lambda transaction, why: None
        """Told of every transaction that ends although its owner did not ask for it, and why."""

    def __len__(self) -> int:
        return len(self._open)

    def open_transactions(self) -> list[Transaction]:
        return list(self._open.values())

    # --- begin

    async def begin(
        self, owner: object, *, user: str = "", name: str = "", epoch: int | None = None, timeout_s: float | None = None
    ) -> Transaction:
        """Begin a transaction. With a `name` and no `epoch` earlier producers of the name are fenced."""
        wanted_s = timeout_s if timeout_s else self._timeout_s
        if not 0 < wanted_s <= limits.TRANSACTION_TIMEOUT_S_MAX:
            raise BraidError("INVALID_ARGUMENT", reason=f"a time-out is up to {limits.TRANSACTION_TIMEOUT_S_MAX:g} s")
        if len(self._open) >= limits.TRANSACTIONS_OPEN_MAX:
            raise BraidError("TRANSACTION_LIMIT", what="the broker", limit=limits.TRANSACTIONS_OPEN_MAX, things="open transactions")
        size = len(name.encode("utf-8", "surrogatepass"))
        if size > limits.TRANSACTIONAL_ID_BYTES_MAX:
            raise BraidError("INVALID_ARGUMENT", reason=f"a transactional id has up to {limits.TRANSACTIONAL_ID_BYTES_MAX} bytes")
        clock = self._broker.clock
        draft = await self._broker.work.draft()
        if name:
            try:
                epoch = await self._claim(name, draft.number, epoch)
            except BaseException:
                self._broker.work.let_go(draft.number)
                raise
        transaction = Transaction(draft, owner, user, name, epoch or 0, clock.now_ms(), clock.monotonic() + wanted_s)
        self._open[draft.number] = transaction
        self._by_owner.setdefault(owner, set()).add(transaction)
        if name:
            self._by_name[name] = transaction
        return transaction

    async def _claim(self, name: str, number: int, epoch: int | None) -> int:
        """Make sure that nobody newer has the name, and end what it has open; returns the epoch."""
        table = self._broker.work.table
        if epoch is not None and epoch >= number:
            # It would fence everybody for ever who comes by the next numbers.
            raise BraidError("INVALID_ARGUMENT", reason=f"epoch {epoch} was never given to a producer")
        epoch = number if epoch is None else epoch
        if table.producers.get(name, -1) < epoch:
            # A take-over, or a name that was forgotten meanwhile.
            await self._broker.work.journal.submit(["producer", name, epoch])
        while True:
            current = table.producers.get(name, epoch)
            if current != epoch:
                raise BraidError("FENCED_PRODUCER", producer=name, epoch=epoch, current=current)
            earlier = self._by_name.get(name)
            if earlier is None or earlier.committing is None:
                break
            # What is being decided comes to its end first.
            await asyncio.wait([earlier.committing])
        if earlier is not None and self.get(earlier.id).state == "active":
            self._end(earlier, "aborted" if earlier.epoch == epoch else "fenced", "fenced")
        return epoch

    # --- while it is active

    def get(self, transaction_id: str) -> Transaction:
        """The transaction, ended or not, as far as it is remembered; otherwise TRANSACTION_NOT_FOUND."""
        number = _number_of(transaction_id)
        transaction = self._open.get(number) or self._ended.get(number)
        if transaction is None:
            raise BraidError("TRANSACTION_NOT_FOUND", id=transaction_id)
        if transaction.state == "active" and self._broker.clock.monotonic() >= transaction.deadline_s:
            logger.info("%s timed out", transaction.id)
            self._end(transaction, "aborted", "time-out")
        return transaction

    def _active(self, transaction_id: str) -> Transaction:
        if _number_of(transaction_id) in self._broker.work.table.committed:
            raise BraidError("TRANSACTION_NOT_ACTIVE", state="committed")
        transaction = self.get(transaction_id)
        if transaction.state == "fenced":
            raise self._fenced(transaction)
        if transaction.state != "active":
            raise BraidError("TRANSACTION_NOT_ACTIVE", state=transaction.state)
        return transaction

    def _fenced(self, transaction: Transaction) -> BraidError:
        current = self._broker.work.table.producers.get(transaction.name, transaction.epoch)
        return BraidError("FENCED_PRODUCER", producer=transaction.name, epoch=transaction.epoch, current=current)

    async def produce(
        self, transaction_id: str, topic: str, key: bytes, value: bytes, *, partition: int = -1, attrs: bytes = b"",
        partitions_of_new: int | None = None, by: Caller = BROKER,
    ) -> int:
        """Add a record; returns the time. Nobody sees it before the commit. `by` makes the topic where it is missing."""
        self._active(transaction_id)
        check_topic(topic)
        known = await self._broker.auto_create(topic, partitions_of_new, by)
        if partition >= known.partitions:
            raise BraidError("PARTITION_NOT_FOUND", partition=partition)
        transaction = self._active(transaction_id)
        size = len(key) + len(value) + len(attrs)
        if len(transaction.records) >= limits.TRANSACTION_RECORDS_MAX:
            raise BraidError("TRANSACTION_LIMIT", what="the transaction", limit=limits.TRANSACTION_RECORDS_MAX, things="records")
        if transaction.size_bytes + size > limits.TRANSACTION_BYTES_MAX:
            raise BraidError("TRANSACTION_LIMIT", what="the transaction", limit=limits.TRANSACTION_BYTES_MAX, things="bytes")
        ref = transaction.draft.add(key, value, attrs)
        transaction.records.append((topic, max(partition, -1), hot.fnv1a(key) if key else _KEYLESS, ref))
        transaction.size_bytes += size
        return self._broker.commit.now_ms()

    def add_offsets(self, transaction_id: str, group: str, offsets: Iterable[tuple[str, int, int]]) -> None:
        """Let (topic, partition, offset) be committed for `group` with the transaction."""
        transaction = self._active(transaction_id)
        check_group(group)
        checked = {}
        for name, partition, offset in offsets:
            topic = self._broker.topic(name)
            if not 0 <= partition < topic.partitions:
                raise BraidError("PARTITION_NOT_FOUND", partition=partition)
            if not 0 <= offset < 1 << 63:
                raise BraidError("INVALID_ARGUMENT", reason=f"offset {offset}")
            checked[topic.id, group, partition] = offset
        if len(transaction.offsets) + len(checked) > limits.TRANSACTION_RECORDS_MAX:
            raise BraidError("TRANSACTION_LIMIT", what="the transaction", limit=limits.TRANSACTION_RECORDS_MAX, things="offsets")
        transaction.offsets.update(checked)

    # --- commit

    async def commit(self, transaction_id: str) -> None:
        """Commit; returns when readers see everything. Doing so again changes nothing and succeeds.

        An error before the decision leaves the transaction active; one after it says that it is committed, but not all of it is
        written yet.
        """
        number = _number_of(transaction_id)
        table = self._broker.work.table
        if number in table.committed:
            work = table.work.get(number)
            if work is not None:
                await self._broker.work.do(work)
            return
        transaction = self.get(transaction_id)
        if transaction.state == "in doubt":
            assert transaction.in_doubt is not None
            raise transaction.in_doubt
        if transaction.state != "committing":
            self._active(transaction_id)
            transaction.state = "committing"
            transaction.committing = asyncio.create_task(self._commit(transaction))
            transaction.committing.add_done_callback(lambda task: self._committed(transaction, task))
        assert transaction.committing is not None
        await asyncio.shield(transaction.committing)

    async def _commit(self, transaction: Transaction) -> None:
        await transaction.draft.written()
        topics = {name: await self._broker.auto_create(name) for name in {record[0] for record in transaction.records}}
        targets = self._targets(transaction, topics)
        offsets = [[*place, offset] for place, offset in transaction.offsets.items()]
        command = ["commit", transaction.number, transaction.name, transaction.epoch, targets, offsets]
        transaction.work = await self._decide(transaction, command)
        await self._broker.work.do(transaction.work)

    async def _decide(self, transaction: Transaction, command: list[Any]) -> Work:
        try:
            decided = await self._broker.work.decide(command)
        except BraidError as error:
            if error.code in ("STORAGE_FAILED", "COORDINATOR_MOVED"):
                # Nobody can say what the disk holds. The next start, or the next coordinator, will find the decision there, or not.
                transaction.state, transaction.in_doubt = "in doubt", error
            raise
        assert decided is not None
        transaction.state = "committed"
        return decided

    def _targets(self, transaction: Transaction, topics: dict[str, Topic]) -> list[list[Any]]:
        """Where each record goes: as asked, else by its key, else in turn. From here on this is fixed."""
        targets: dict[tuple[int, int], list[int]] = {}
        for name, partition, key_hash, ref in transaction.records:
            topic = topics[name]
            if partition >= topic.partitions:
                raise BraidError("PARTITION_NOT_FOUND", partition=partition)
            if partition < 0:
                route = self._broker.route(topic)
                if key_hash == _KEYLESS:
                    partition = route.counter % topic.partitions
                    route.counter += 1
                else:
                    partition = key_hash % topic.partitions
            targets.setdefault((topic.id, partition), []).append(ref)
        return [[topic_id, partition, refs] for (topic_id, partition), refs in targets.items()]

    def _committed(self, transaction: Transaction, task: asyncio.Task[None]) -> None:
        """The commit came to its end, well or not."""
        transaction.committing = None
        error = task.exception() if not task.cancelled() else None
        if transaction.state == "committed":
            self._forget(transaction)
        elif isinstance(error, BraidError) and error.code == "FENCED_PRODUCER":
            self._end(transaction, "fenced", "fenced")
        elif transaction.state == "committing":
            transaction.state = "active"
            if transaction.abandoned or transaction.draft.fault is not None:
                self._end(transaction, "aborted", "disconnect" if transaction.abandoned else "storage")

    # --- abort

    async def abort(self, transaction_id: str) -> None:
        """Abort; fine when it is unknown or aborted already, TRANSACTION_COMMITTED when it is too late."""
        number = _number_of(transaction_id)
        transaction = self._open.get(number)
        if transaction is not None and transaction.committing is not None:
            await asyncio.wait([transaction.committing])
        if number in self._broker.work.table.committed:
            raise BraidError("TRANSACTION_COMMITTED", id=transaction_id)
        if transaction is None:
            return
        if transaction.state == "in doubt":
            assert transaction.in_doubt is not None
            raise transaction.in_doubt
        if transaction.state == "active":
            self._end(transaction, "aborted")

    def abort_owner(self, owner: object) -> None:
        """Abort what a connection has open: it is gone."""
        for transaction in list(self._by_owner.get(owner, ())):
            if transaction.state == "active":
                self._end(transaction, "aborted", "disconnect")
            else:
                transaction.abandoned = True

    def abort_overdue(self) -> None:
        """Abort what was not committed in time."""
        now_s = self._broker.clock.monotonic()
        for transaction in [known for known in self._open.values() if known.state == "active" and now_s >= known.deadline_s]:
            logger.info("%s timed out", transaction.id)
            self._end(transaction, "aborted", "time-out")

    def _end(self, transaction: Transaction, state: State, why: str = "") -> None:
        """`why` is empty for what its owner, or an administrator, asked for."""
        transaction.state = state
        if why:
            self.on_abort(transaction, why)
        self._broker.work.let_go(transaction.number)
        self._forget(transaction)
        transaction.records = []
        transaction.offsets = {}
        self._ended[transaction.number] = transaction
        if len(self._ended) > limits.TRANSACTIONS_REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def _forget(self, transaction: Transaction) -> None:
        if self._open.pop(transaction.number, None) is not None:
            of_owner = self._by_owner[transaction.owner]
            of_owner.discard(transaction)
            if not of_owner:
                del self._by_owner[transaction.owner]
        if self._by_name.get(transaction.name) is transaction:
            del self._by_name[transaction.name]

    def resign(self) -> None:
        """Another broker coordinates from now on: what is open ends, as with a restart."""
        for transaction in list(self._open.values()):
            if transaction.state == "active":
                self._end(transaction, "aborted", "coordinator moved")
            else:
                transaction.abandoned = True

    async def stop(self) -> None:
        """Wait for commits that are on their way."""
        await asyncio.gather(*(known.committing for known in self._open.values() if known.committing), return_exceptions=True)


def _number_of(transaction_id: str) -> int:
    """The number in an id; one that no transaction has where there is none."""
    return number_in(transaction_id, _PREFIX)
