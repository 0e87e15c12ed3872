"""What a topic's rules make of a record on its way in.

A topic that is bound to a schema (properties `schema` and `schema_rule`) takes no record that does not fit, whichever protocol and
whichever request brings it: it is refused, or becomes a dead letter of the topic. A binding whose schema is gone refuses
everything; nothing gets in unchecked because somebody deleted too much.

Of a batch under the rule `dead-letter` the records that fit are stored and the others become letters. In place of those an empty
record that nobody sees keeps the offset. So the stored batch counts as many records as were sent: the offsets that a producer
reckons from its answer are right, and a batch that comes again is known from the log itself, also after a crash.

The letters of a batch are decided before its records are stored. A crash in between makes a producer send the batch again; the
journal knows how far its letters came, so an idempotent producer makes each of them once. What has no producer id is a new batch
each time, with letters of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.features import BROKER
from braidmq.broker.staging import Staged
from braidmq.broker.topics import Topic
from braidmq.hot import layout
from braidmq.hot.expiring import has_times_to_live, split_times_to_live, with_times_to_live
from braidmq.security.accounts import Caller

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

REASON: Final = "validation_failed"
_ERRORS_OF_BATCH_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a record is; `topic` is that of the dead letters when it is one."""

    topic: str
    partition: int
    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class StoredBatch:
    partition: int
    base_offset: int
    timestamp: int
    records: int
    duplicate: bool


_Record = tuple[bytes | None, bytes, bytes]
"""Key, value, attributes."""


def is_open(topic: Topic) -> bool:
    """Whether the topic takes whatever comes."""
    return "schema" not in topic.properties


class Admission:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # --- single records

    async def fault(self, topic: Topic, value: bytes, checked: str = "") -> str | None:
        """Why a record becomes a dead letter, None when it may come in; raises where it is refused.

        `checked` names a schema that it is known to fit.
        """
        name = topic.properties.get("schema")
        if name is None or name == checked:
            return None
        schemas = self._broker.schemas
        errors = await schemas.errors(await schemas.require(name), value)
        if not errors:
            return None
        text = ", ".join(errors)
        if topic.properties.get("schema_rule") != "dead-letter":
            raise BraidError("SCHEMA_VALIDATION_FAILED", errors=text)
        return text

    async def produce(
        self, topic: Topic, partition: int, key: bytes, value: bytes, *, ttl_ms: int = 0, attrs: bytes = b"", checked: str = ""
    ) -> Stored:
        """Store a record, or make a dead letter of it; durable when this returns."""
        fault = None if is_open(topic) else await self.fault(topic, value, checked)
        if fault is not None:
            return await self.bury(topic, partition, key, value, fault, attrs)
        stored = await self._broker.append(topic, partition, key, value, ttl_ms=ttl_ms, attrs=attrs)
        return Stored(topic.name, *stored)

    async def bury(self, topic: Topic, partition: int, key: bytes, value: bytes, fault: str, attrs: bytes = b"") -> Stored:
        """Make a dead letter of a record that does not fit; `partition` is the one it was meant for, negative for any."""
        letters = self._broker.dead_letters
        timestamp = self._broker.commit.now_ms()
        place = await letters.dead_letter(topic.name, key, value, REASON, fault, attrs=attrs, partition=partition)
        return Stored(letters.topic_name(topic.name), *place, timestamp)

    async def produce_in_transaction(
        self, transaction_id: str, name: str, partition: int, key: bytes, value: bytes, partitions_of_new: int | None = None,
        by: Caller = BROKER,
    ) -> int:
        """Add a record to a transaction, or the dead letter that it becomes; returns the time."""
        broker = self._broker
        topic = broker.topics.get(name)
        fault = None if topic is None or is_open(topic) else await self.fault(topic, value)
        if topic is None or fault is None:
            return await broker.transactions.produce(
                transaction_id, name, key, value, partition=partition, partitions_of_new=partitions_of_new, by=by
            )
        letters = broker.dead_letters
        letter = self._letter(topic, partition, key, value, fault, b"")
        dead = await letters.topic_for(name)
        return await broker.transactions.produce(transaction_id, dead.name, key, value, attrs=letter.attrs)

    def fits_at_once(self, topic: Topic, value: bytes) -> bool:
        """Whether a record is known to fit without waiting for anything; False where that takes longer to tell."""
        schema = self._broker.schemas.ready(topic.properties.get("schema", ""))
        return schema is not None and len(value) <= limits.SCHEMA_LIGHT_BYTES_MAX and not schema.check(value)

    # --- batches

    async def produce_batch(self, topic: Topic, partition: int, batch: bytes | memoryview) -> StoredBatch:
        """Store what fits of a batch for a topic that is bound to a schema; durable when this returns."""
        broker = self._broker
        if partition < 0:
            partition = broker.choose_partition(broker.route(topic), b"", -1)
        elif partition >= topic.partitions:
            raise BraidError("PARTITION_NOT_FOUND", partition=partition)
        log = broker.log_of(topic, partition)
        elsewhere = broker.led_elsewhere(topic, partition)
        ttls_ms = None
        if has_times_to_live(batch):
            batch, ttls_ms = split_times_to_live(batch)
        # What is checked here has to be what readers get later: rows and columns that disagree end it.
        batch = bytes(hot.stamp_batch(batch, 0, 0, 0))
        head = layout.read_header(batch)
        known = None if elsewhere else log.stored_before(head)
        if known is not None:
            # Before it is checked: what is stored is stored, whatever the schema says by now.
            await broker.durable(log, known[0] + head.records)
            return StoredBatch(partition, known[0], known[1], head.records, duplicate=True)
        records: list[_Record] = []

        def take(_offset: int, _timestamp: int, key: bytes | None, value: bytes, attrs: bytes) -> None:
            records.append((key, value, attrs))

        hot.decode_records(batch, 0, limits.BATCH_RECORDS_MAX, take)
        faults = await self._faults(topic, records)
        if faults:
            await self._bury_all(topic, partition, head, [(number, records[number], text) for number, text in faults.items()])
            batch = _emptied(records, faults, head)
        if ttls_ms is not None:
            batch = with_times_to_live(batch, ttls_ms)
        if elsewhere:
            assert broker.peers is not None
            return StoredBatch(partition, *_in_order(*await broker.peers.produce(topic, partition, batch, faults)))
        staged = broker.stage_batch(topic, partition, batch, faults)
        await staged.durability()
        return StoredBatch(partition, staged.base_offset, staged.timestamp, staged.records, staged.duplicate)

    async def divide_batch(self, topic: Topic, partition: int, batch: bytes) -> tuple[bytes, bytes]:
        """What of a whole batch fits the topic's schema, and the dead letters that the rest becomes.

        Two batches, each empty where it holds nothing. Raises where the topic refuses the rest.
        """
        records: list[_Record] = []

        def take(_offset: int, _timestamp: int, key: bytes | None, value: bytes, attrs: bytes) -> None:
            records.append((key, value, attrs))

        hot.decode_records(batch, 0, limits.BATCH_RECORDS_MAX, take)
        faults = await self._faults(topic, records)
        if not faults:
            return batch, b""
        kept = [record for number, record in enumerate(records) if number not in faults]
        unfit = [(*records[number], text) for number, text in faults.items()]
        letters = [self._letter(topic, partition, key, value, text, attrs) for key, value, attrs, text in unfit]
        return _batch_of(kept), _batch_of([(letter.key, letter.value, letter.attrs) for letter in letters])

    async def _bury_all(
        self, topic: Topic, partition: int, head: layout.BatchHeader, unfit: Sequence[tuple[int, _Record, str]]
    ) -> None:
        """Make dead letters of a batch's records that do not fit, each with its number and fault; those of an earlier attempt
        are there already."""
        identity = (topic.id, partition, head.producer_id, head.producer_epoch, head.base_sequence)
        done = self._broker.work.table.letters.refused_of(*identity)
        chosen: list[Staged] = []
        size = 0
        for at, (number, (key, value, attrs), fault) in enumerate(unfit):
            if number >= done:
                chosen.append(self._letter(topic, partition, key, value, fault, attrs))
                size += chosen[-1].size
            last = at == len(unfit) - 1
            if chosen and (last or len(chosen) >= limits.DELIVERY_RECORDS_MAX or size >= limits.DELIVERY_BYTES_TARGET):
                await self._broker.dead_letters.send(topic.name, chosen, partial(_refusal, identity, number + 1))
                chosen, size = [], 0

    def _letter(self, topic: Topic, partition: int, key: bytes | None, value: bytes, fault: str, attrs: bytes) -> Staged:
        record = Staged(key or None, value, attrs)
        return self._broker.dead_letters.letter_of(record, topic.name, partition, -1, REASON, fault)

    async def _faults(self, topic: Topic, records: Sequence[_Record]) -> dict[int, str]:
        """Why records become dead letters, by their number in the batch; raises where the batch is refused."""
        schemas = self._broker.schemas
        schema = await schemas.require(topic.properties["schema"])
        found = await schemas.faults(schema, [value for _, value, _ in records])
        faults = {number: ", ".join(errors) for number, errors in found.items()}
        if faults and topic.properties.get("schema_rule") != "dead-letter":
            shown = [f"record {number}: {text}" for number, text in list(faults.items())[:_ERRORS_OF_BATCH_MAX]]
            if len(faults) > len(shown):
                shown.append(f"and {len(faults) - len(shown)} more records")
            raise BraidError("SCHEMA_VALIDATION_FAILED", errors="; ".join(shown))
        return faults


def _in_order(offset: int, records: int, timestamp: int, duplicate: bool) -> tuple[int, int, int, bool]:
    return offset, timestamp, records, duplicate


def _refusal(identity: tuple[int, ...], records: int, number: int, targets: list[list[Any]]) -> list[Any]:
    return ["refuse", number, *identity, records, targets]


def _batch_of(records: Sequence[_Record]) -> bytes:
    if not records:
        return b""
    keys, values, attrs = zip(*records, strict=True)
    return hot.encode_batch(list(keys), list(values), list(attrs) if any(attrs) else None)


def _emptied(records: Sequence[_Record], faults: Collection[int], head: layout.BatchHeader) -> bytes:
    """The batch with nothing in the place of records that do not fit: what is a letter need not be kept twice."""
    kept = [(None, b"", b"") if number in faults else record for number, record in enumerate(records)]
    keys, values, attrs = zip(*kept, strict=True)
    return hot.encode_batch(
        list(keys), list(values), list(attrs) if any(attrs) else None, head.producer_id, head.producer_epoch, head.base_sequence
    )
