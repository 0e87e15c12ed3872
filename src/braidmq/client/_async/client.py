"""The client: single requests, and the way to producers and consumers."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Unpack

from braidmq import hot
from braidmq.base.errors import BraidError
from braidmq.client.addresses import Address
from braidmq.client.cipher import ValueCipher
from braidmq.client.faults import lacks_opcode
from braidmq.client.models import NO_TIMESTAMP, FetchedBytes, FetchedRecords, PartitionInfo, Record, RecordMetadata, TopicInfo
from braidmq.client.reading import read_batches, read_items, record_maker
from braidmq.client.settings import Assignment, ClientSettings, ReadFrom, SettingArguments, load_settings, override
from braidmq.log.attrs import encode_headers
from braidmq.wire import flymq

from .accounts import Acls, Roles, Users
from .asking import Asker, expect
from .audit import Audit
from .cluster import Cluster
from .connection import encode
from .consumer import Consumer, Start
from .dead_letters import DeadLetters
from .delays import DelayedRecords
from .dialer import Dialer
from .groups import Groups
from .leaders import Leaders
from .pipelines import Pipelines
from .pool import Pools
from .presence import Presence
from .producer import Producer
from .schemas import Schemas
from .stages import Stages
from .topics import create_as_producer, partition_count
from .transactions import Transaction, Transactions
from .upkeep import Upkeep


def connect(
    servers: str | Sequence[str | Address] | None = None,
    *,
    settings_file: str | None = None,
    environ: Mapping[str, str] | None = None,
    **arguments: Unpack[SettingArguments],
) -> Client:
    """A client of the broker at `servers`, to be used as a context manager.

    Settings come from the arguments, then from the environment, then from `settings_file`, then from the defaults.
    """
    given = {"servers": list(servers) if servers is not None and not isinstance(servers, str) else servers, **arguments}
    return Client(load_settings(given, os.environ if environ is None else environ, settings_file))


class Client:
    """Talks to a broker, or to the nodes of a cluster, over as many connections as that needs.

    `group`, `schema`, `dlq`, `delayed`, `txn`, `user`, `role`, `acl`, `audit` and `pipeline` do what the commands with these
    names do; `upkeep` and `cluster` are for those who run it, `stage` for writers that are many processes.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._cipher = ValueCipher(settings.encryption_key) if settings.encryption_key else None
        self._dialer = Dialer(settings)
        self._pools = Pools(self._dialer, settings.pool_size)
        self._leaders = Leaders(self._dialer)
        self._asker = Asker(self._pools, self._leaders, settings)
        self._ask = self._asker.ask
        self.group = Groups(self._asker)
        self.schema = Schemas(self._asker)
        self.dlq = DeadLetters(self._asker)
        self.delayed = DelayedRecords(self._asker)
        self.txn = Transactions(self._asker)
        self.stage = Stages(self._asker)
        self.user = Users(self._asker)
        self.role = Roles(self._asker)
        self.acl = Acls(self._asker)
        self.audit = Audit(self._asker)
        self.pipeline = Pipelines(self._asker)
        self.upkeep = Upkeep(self._asker)
        self.cluster = Cluster(self._asker)
        self._epochs: dict[str, int] = {}
        self._keyless = itertools.count()
        self._children: list[Producer | Consumer | Transaction | Presence] = []

    async def open(self) -> Client:
        """Make sure that a server answers. Without it, the first request finds out."""
        await self._pools.any.server(self.settings.timeout_s)
        return self

    async def close(self) -> None:
        """Close producers (which flush), consumers (which commit), transactions (which are dropped) and connections."""
        children, self._children = self._children, []
        faults: list[BraidError] = []
        for child in children:
            try:
                await child.close()
            except BraidError as fault:
                faults.append(fault)
        await self._pools.close()
        if faults:
            raise faults[0]

    async def __aenter__(self) -> Client:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # --- topics

    async def create_topic(self, topic: str, partitions: int = 1, properties: Mapping[str, str] | None = None) -> None:
        """Create a topic; one that exists stays as it is. `properties` such as `durability` are the topic's own settings."""
        await self._ask(flymq.CreateTopic(topic, partitions, properties or {}), flymq.Ok)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its data and its groups' offsets; one that is not there is no error."""
        await self._ask(flymq.DeleteTopic(topic), flymq.Ok)

    async def list_topics(self) -> list[str]:
        return list((await self._ask(flymq.ListTopics(), flymq.TopicList)).topics)

    async def metadata(self, topic: str) -> TopicInfo:
        """The partitions of a topic and which offsets each holds."""
        found = await self._ask(flymq.Metadata(topic), flymq.TopicMetadata)
        parts = tuple(PartitionInfo(part.id, part.leader, part.oldest, part.newest) for part in found.partitions)
        return TopicInfo(found.topic, parts)

    async def places(self, topics: Sequence[str]) -> dict[str, flymq.TopicPlace]:
        """Id, ends and sizes of many topics in one request; those that do not exist are left out."""
        found = await self._ask(flymq.TopicPlaces(tuple(topics)), flymq.Places)
        return {place.topic: place for place in found.topics}

    async def topic_config(self, topic: str, properties: Mapping[str, str] | None = None) -> dict[str, str]:
        """Change a topic's properties, where an empty value is the broker's default again; returns all it has of its own."""
        request = flymq.TopicConfig(topic, tuple((properties or {}).items()))
        return dict((await self._ask(request, flymq.TopicProperties)).properties)

    # --- one record

    async def produce(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        schema: str | None = None,
        delay_ms: int | None = None,
        ttl_ms: int | None = None,
    ) -> RecordMetadata:
        """Append one record and wait for its acknowledgement. The topic is created when it is missing.

        With a `schema` it is refused unless it fits the latest version; with `delay_ms` it comes later, and `delayed_id` of the
        answer cancels it; with `ttl_ms` it is gone after that time. One of these at a time, and only the last with headers.

        It is sent once: when the connection breaks before the answer the outcome is unknown, and CONNECTION_LOST says so.
        A `Producer` retries without duplicates, and is much faster for many records.
        """
        given = [name for name, what in (("schema", schema), ("delay_ms", delay_ms), ("ttl_ms", ttl_ms)) if what is not None]
        if len(given) + bool(headers) > 1 and not (headers and given == ["ttl_ms"]):
            raise BraidError("INVALID_ARGUMENT", reason=f"{' and '.join(given + ['headers'] * bool(headers))} exclude each other")
        if self._cipher is not None:
            if schema is not None:
                raise BraidError("INVALID_ARGUMENT", reason="the broker cannot check an encrypted value against a schema")
            value = self._cipher.encrypt(value)
        if headers:
            return await self._produce_with_headers(topic, key, value, headers, partition, max(ttl_ms or 0, 0))
        if given:
            number = -1 if partition is None else partition
            return await self._produce_with(topic, value, key or b"", number, schema, delay_ms, ttl_ms)
        request = flymq.Produce(topic, key or b"", value, -1 if partition is None else partition)
        written = await self._ask(request, flymq.RecordMetadata, again=False)
        return RecordMetadata(written.topic, written.partition, written.offset, written.timestamp)

    async def _produce_with(
        self, topic: str, value: bytes, key: bytes, partition: int, schema: str | None, delay_ms: int | None, ttl_ms: int | None
    ) -> RecordMetadata:
        if delay_ms is not None:
            later = flymq.ProduceDelayed(topic, value, delay_ms, key, partition)
            taken = await self._ask(later, flymq.Delayed, again=False)
            return RecordMetadata(taken.topic, taken.partition, taken.offset, taken.timestamp, taken.id)
        request: flymq.Request
        if schema is not None:
            request = flymq.ProduceWithSchema(topic, schema, value, key, partition)
        else:
            request = flymq.ProduceWithTtl(topic, value, ttl_ms or 0, key, partition)
        written = await self._ask(request, flymq.RecordMetadata, again=False)
        return RecordMetadata(written.topic, written.partition, written.offset, written.timestamp)

    async def _produce_with_headers(
        self, topic: str, key: bytes | None, value: bytes, headers: Mapping[str, bytes], partition: int | None, ttl_ms: int
    ) -> RecordMetadata:
        if partition is None:
            count = await self.partitions_for_writing(topic)
            partition = (hot.fnv1a(key) if key else next(self._keyless)) % count
        batch = hot.encode_batch([key or None], [value], [encode_headers(headers)])
        if ttl_ms:
            # Imported here: it needs numpy, which takes longer to load than all of the client, and few records have one.
            from braidmq.hot.expiring import with_times_to_live

            batch = with_times_to_live(batch, [ttl_ms])
        request = flymq.ProduceBatch(topic, partition, batch)
        try:
            written = await self._ask(request, flymq.BatchProduced, again=False)
        except BraidError as fault:
            raise headers_refused(fault) from None
        return RecordMetadata(written.topic, written.partition, written.base_offset, written.timestamp)

    async def partitions_for_writing(self, topic: str) -> int:
        """How many partitions a topic has; one that is missing is created as for any producer, where that is allowed."""
        count = await partition_count(self._asker, topic)
        if count == 0 and await create_as_producer(self._asker, topic):
            count = await partition_count(self._asker, topic)
        if count == 0:
            raise BraidError("TOPIC_NOT_FOUND", topic=topic)
        return count

    async def produce_batch(self, topic: str, partition: int, batch: bytes) -> RecordMetadata:
        """Append a whole batch that `hot.encode_batch` or `hot.encode_columns` made; the place of its first record is returned.

        It is sent once, as by `produce`.
        """
        written = await self._ask(flymq.ProduceBatch(topic, partition, batch), flymq.BatchProduced, again=False)
        return RecordMetadata(written.topic, written.partition, written.base_offset, written.timestamp)

    async def consume(self, topic: str, partition: int, offset: int) -> Record:
        """The record at an offset. Its answer carries no timestamp and no headers; `fetch` has both."""
        found = await self._ask(flymq.Consume(topic, partition, offset), flymq.Message)
        make = record_maker(topic, partition, self._cipher)
        return make(offset, NO_TIMESTAMP, found.key or None, found.value, b"")

    # --- many records

    async def fetch(
        self, topic: str, partition: int, offset: int, *, max_records: int | None = None, max_wait_ms: int = 0
    ) -> FetchedRecords:
        """Records from an offset on: as many as one answer holds, none at the end of the partition."""
        limit = self.settings.max_poll_records if max_records is None else max_records
        make = record_maker(topic, partition, self._cipher)
        try:
            found = await self.fetch_batches(topic, partition, offset, max_wait_ms=max_wait_ms)
        except BraidError as fault:
            if not lacks_opcode(fault):
                raise
            items = await self._ask(flymq.Fetch(topic, partition, offset, limit), flymq.Fetched)
            return FetchedRecords(read_items(items.items, make), items.next_offset)
        return FetchedRecords(*read_batches(found.batches, offset, make, limit))

    async def fetch_batches(
        self, topic: str, partition: int, offset: int, *, max_bytes: int | None = None, min_bytes: int = 1, max_wait_ms: int = 0
    ) -> FetchedBytes:
        """Whole batches as the broker stores them. It waits up to `max_wait_ms` for `min_bytes` of them."""
        size = self.settings.fetch_bytes if max_bytes is None else max_bytes
        request = flymq.FetchBatches(topic, partition, offset, size, min_bytes, max_wait_ms)
        found = await self._ask(
            request, flymq.FetchedBatches, timeout_s=self.settings.timeout_s + max_wait_ms / 1000, alone=max_wait_ms > 0
        )
        return FetchedBytes(found.topic, found.partition, found.batches, found.high_watermark, found.log_start)

    async def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """The first offset written at or after a time; the next one to be written when there is none.

        It is found by bisection over the broker's timestamps, in a few small reads.
        """
        parts = (await self.metadata(topic)).partitions
        if not 0 <= partition < len(parts):
            raise BraidError("PARTITION_NOT_FOUND", partition=partition)
        low, high = parts[partition].oldest, parts[partition].newest
        while low < high:
            middle = (low + high) // 2
            found = await self.fetch_batches(topic, partition, middle, max_bytes=1)
            records, _ = read_batches(found.batches, middle, record_maker(topic, partition, None), 1)
            if not records or records[0].timestamp >= timestamp_ms:
                high = middle
            else:
                low = records[0].offset + 1
        return low

    async def offsets_since(self, topic: str, partitions: Sequence[int], timestamp_ms: int) -> list[int]:
        """Of each partition the first offset written at or after a time, as the broker finds it; the end where there is none."""
        requests = [flymq.SeekToTimestamp(topic, "", number, timestamp_ms) for number in partitions]
        return [found.offset for found in await self._asker.ask_all(requests, flymq.Offset)]

    # --- groups

    def presence(self, group: str) -> Presence:
        """A way to be seen as a member of a group that divides nothing."""
        presence = Presence(self._dialer, self.settings, group)
        self._adopt(presence)
        return presence

    async def subscribe(self, topic: str, group: str, partition: int, mode: str = "commit") -> int:
        """Where a group would start to read: `earliest`, `latest`, or what it has committed (else the oldest)."""
        # Subscribing makes the connection a member of the group for as long as it lives, so it must not go back to the pool.
        connection = await self._dialer.dial(self.settings.timeout_s)
        try:
            request = flymq.Subscribe(topic, group, partition, mode)
            frames = await connection.call([encode(request)], self.settings.timeout_s)
        finally:
            await connection.close()
        return expect(request, frames[0], flymq.Offset).offset

    async def committed(self, topic: str, group: str, partition: int) -> int:
        """The next offset a group will read: what it has committed, else the oldest."""
        return await self.subscribe(topic, group, partition)

    async def commit(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Store the next offset that a group will read."""
        await self._ask(flymq.Commit(topic, group, partition, offset), flymq.Ok)

    # --- who is asking

    async def whoami(self) -> flymq.Identity:
        """The user of this client's connections, and its roles."""
        return await self._ask(flymq.WhoAmI(), flymq.Identity)

    # --- producers, consumers and transactions

    def transaction(self, transactional_id: str | None = None, *, timeout_s: float | None = None) -> Transaction:
        """Records and offsets that appear together or not at all; to be used as a context manager.

        A transactional id names a producer over its restarts: the first transaction of a client under it shuts earlier clients
        out. Without a commit within `timeout_s` (or the broker's own time-out) the broker drops it.
        """
        transaction = Transaction(self._dialer, self.settings, self._cipher, self._epochs, transactional_id or "", timeout_s)
        self._adopt(transaction)
        return transaction

    def producer(
        self,
        *,
        linger_ms: float | None = None,
        batch_bytes: int | None = None,
        buffer_bytes: int | None = None,
        delivery_timeout_s: float | None = None,
        retries_may_duplicate: bool | None = None,
    ) -> Producer:
        """A producer with a connection of its own. What is not given comes from the client's settings."""
        given = {
            "linger_ms": linger_ms, "batch_bytes": batch_bytes, "buffer_bytes": buffer_bytes,
            "delivery_timeout_s": delivery_timeout_s, "retries_may_duplicate": retries_may_duplicate,
        }  # fmt: skip
        settings = override(self.settings, given)
        producer = Producer(self._dialer, self._asker, settings, self._cipher, lambda: random.getrandbits(63))
        self._adopt(producer)
        return producer

    def consumer(
        self,
        topics: str | Sequence[str] | Mapping[str, Sequence[int]],
        *,
        group: str = "",
        start: Start | None = None,
        auto_commit: bool | None = None,
        auto_commit_interval_s: float | None = None,
        max_poll_records: int | None = None,
        prefetch_bytes: int | None = None,
        fetch_bytes: int | None = None,
        fetch_wait_ms: float | None = None,
        fetch_connections: int | None = None,
        assignment: Assignment | None = None,
        session_timeout_s: float | None = None,
        read_from: ReadFrom | None = None,
    ) -> Consumer:
        """A consumer of all partitions of `topics`, or of the partitions that a mapping names.

        With a group it starts where the group has committed, without one at the earliest record; `start` says otherwise.
        With a group and no partitions named it shares them with the group's other members, unless `assignment` is `all`.
        """
        given = {
            "auto_commit": auto_commit, "auto_commit_interval_s": auto_commit_interval_s,
            "max_poll_records": max_poll_records, "prefetch_bytes": prefetch_bytes, "fetch_bytes": fetch_bytes,
            "fetch_wait_ms": fetch_wait_ms, "fetch_connections": fetch_connections, "assignment": assignment,
            "session_timeout_s": session_timeout_s, "read_from": read_from,
        }  # fmt: skip
        names = [topics] if isinstance(topics, str) else topics
        wanted: dict[str, Sequence[int] | None] = dict(names) if isinstance(names, Mapping) else dict.fromkeys(names)
        settings = override(self.settings, given)
        begin = start or ("committed" if group else "earliest")
        consumer = Consumer(self._dialer, self._leaders, settings, self._cipher, wanted, group, begin)
        self._adopt(consumer)
        return consumer

    def _adopt(self, child: Producer | Consumer | Transaction | Presence) -> None:
        self._children = [other for other in self._children if not other.closed]
        self._children.append(child)


def headers_refused(fault: BraidError) -> BraidError:
    """What a server without batches means for a record with headers."""
    if lacks_opcode(fault):
        return BraidError("INVALID_ARGUMENT", reason="headers need a server that takes batches, and this one does not")
    return fault
