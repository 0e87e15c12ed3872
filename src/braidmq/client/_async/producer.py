"""The producer: records in, batches out, an outcome for each record.

`send` puts a record into its partition's open batch and returns at once. A batch leaves when it is full, or when its oldest
record has waited `linger_ms`; whoever fills a batch sends it, so a busy producer needs no other task. One task keeps the
connection and reads the answers (`producer_link`; in a cluster one for each node that leads something), another one keeps the time.

What this promises: see `outbox`. In short, with a server that takes batches every record that was acknowledged is stored
once and in order within its partition, through lost connections and restarts of the broker; with a server that knows only the
documented opcodes the same holds until a connection breaks, and the records in flight then fail with CONNECTION_LOST, because
nothing can tell whether they were stored (or, with `retries_may_duplicate`, are sent again).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.base.limits import BATCH_RECORDS_MAX, KIB
from braidmq.client._backend import asyncio as backend
from braidmq.client.addresses import Address
from braidmq.client.cipher import ValueCipher
from braidmq.client.outbox import Lane, Outbox, PendingBatch
from braidmq.client.settings import ClientSettings
from braidmq.log.attrs import encode_headers
from braidmq.wire import flymq

from .asking import Asker
from .dialer import Dialer
from .pool import MOMENT_S
from .producer_link import TICK_SECONDS, Link, Sending
from .topics import create_as_producer, partition_count

RECORD_OVERHEAD_BYTES: Final = 40
"""What a record adds to a batch beside its key and value, counted generously."""
RECORD_BYTES_MAX: Final = limits.RECORD_BYTES_MAX - KIB
"""A record that is within the limit together with the batch around it."""
LEADERS_SECONDS: Final = 0.25
"""How often it is asked who leads, while partitions that are written to have nobody known."""
JOIN_SECONDS_MAX: Final = 5.0
"""How long `close` waits for the background tasks, which end at once unless something is wrong."""
_monotonic: Final = time.monotonic
_fnv1a: Final = hot.fnv1a
_Delivery: Final = backend.Delivery


class _Topic:
    """A topic's lanes, and the one that records without a key go to at the moment."""

    __slots__ = ("count", "current", "lanes")

    def __init__(self, lanes: list[Lane]) -> None:
        self.lanes = lanes
        self.count = len(lanes)
        self.current = 0

    def at(self, partition: int) -> Lane:
        if not 0 <= partition < self.count:
            raise BraidError("PARTITION_NOT_FOUND", partition=partition)
        return self.lanes[partition]

    def turn(self, lane: Lane) -> None:
        """A batch of `lane` is full: records without a key go to the next partition now."""
        if self.lanes[self.current] is lane:
            self.current = (self.current + 1) % self.count


class Producer:
    """Sends records in batches. Made by `Client.producer`; use it as a context manager, or `close` it."""

    def __init__(
        self, dialer: Dialer, asker: Asker, settings: ClientSettings, cipher: ValueCipher | None, new_producer_id: Callable[[], int]
    ) -> None:
        self.closed = False
        self._asker = asker
        self._leaders = asker.leaders
        self._settings = settings
        self._cipher = cipher
        self._new_producer_id = new_producer_id
        self._outbox = Outbox(
            linger_s=settings.linger_ms / 1000,
            delivery_timeout_s=settings.delivery_timeout_s,
            retries_may_duplicate=settings.retries_may_duplicate,
            new_producer_id=new_producer_id,
        )
        self._mutex = self._outbox.mutex
        self._batch_bytes = settings.batch_bytes
        self._buffer_bytes = settings.buffer_bytes
        self._record_bytes_max = min(RECORD_BYTES_MAX, settings.buffer_bytes)
        self._lingers = settings.linger_ms > 0
        self._topics: dict[str, _Topic] = {}
        self._opening = backend.Lock()
        self._sending = Sending(dialer, asker.leaders, settings, self._outbox)
        self._sending.topic_gone = self._forget_topic
        self._sending.astray = self._route
        self._sending.given_up = self._give_up
        self._room, self._timer, self._stop = self._sending.room, self._sending.timer, self._sending.stop
        self._main = Link(self._sending, None)
        """To whichever server answers: the only one there is, or in a cluster one that says who leads."""
        self._links: dict[Address | None, Link] = {None: self._main}
        self._timer_idle = False
        self._tasks: list[backend.Task] = []
        self._routing: backend.Signal | None = None
        """Set while it is not known who leads what is to be sent; there is none with a broker that runs alone."""

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # --- for the application

    async def send(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        ttl_ms: int = 0,
    ) -> backend.Delivery:
        """Take a record to be sent, and return its outcome-to-be. With `ttl_ms` it is gone so long after the broker got it.

        It waits only while the buffer is full (TIMED_OUT after `delivery_timeout_s`), or for the partitions of a topic that
        is used for the first time. Records with a key go to the partition of its FNV-1a hash. Records without one fill
        a batch of one partition, then one of the next.
        """
        if type(value) is not bytes:
            value = bytes(memoryview(value))
        if self._cipher is not None:
            value = self._cipher.encrypt(value)
        attrs = encode_headers(headers) if headers else b""
        size_bytes = len(value) + len(attrs) + RECORD_OVERHEAD_BYTES
        if key:
            if type(key) is not bytes:
                key = bytes(memoryview(key))
            size_bytes += len(key)
        else:
            key = None
        if ttl_ms < 0:
            raise BraidError("INVALID_ARGUMENT", reason=f"ttl_ms {ttl_ms} is negative")
        if size_bytes > self._record_bytes_max:
            raise BraidError("RECORD_TOO_LARGE", size=size_bytes, limit=self._record_bytes_max)
        known = self._topics.get(topic)
        if known is None:
            known, done = await self._open_topic(topic, key, value, attrs, ttl_ms, partition)
            if done is not None:
                return done
        outbox = self._outbox
        deadline_s = 0.0
        while True:
            with self._mutex:
                if outbox.buffered_bytes + size_bytes <= self._buffer_bytes:
                    if self.closed:
                        raise BraidError("CLIENT_CLOSED", what="producer")
                    if partition is not None:
                        lane = known.at(partition)
                    elif key is None:
                        lane = known.lanes[known.current]
                    else:
                        lane = known.lanes[_fnv1a(key) % known.count]
                    batch = lane.open
                    if batch is None or size_bytes > self._batch_bytes:
                        batch = self._begin(lane)
                    values = batch.values
                    delivery = _Delivery(batch, len(values))
                    values.append(value)
                    batch.keys.append(key)
                    if attrs or batch.attrs is not None:
                        batch.add_attrs(attrs)
                    if ttl_ms or batch.ttls_ms is not None:
                        batch.add_ttl(ttl_ms)
                    batch.size_bytes += size_bytes
                    outbox.buffered_bytes += size_bytes
                    if batch.size_bytes >= self._batch_bytes or len(values) >= BATCH_RECORDS_MAX:
                        outbox.seal(lane)
                    elif self._lingers:
                        return delivery
                    known.turn(lane)
                    break
                self._room.clear()
            deadline_s = deadline_s or _monotonic() + self._settings.delivery_timeout_s
            await self._wait_for_room(deadline_s)
        await self._pump()
        await backend.checkpoint()
        return delivery

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every record sent so far has an outcome; raises one that failed and that nobody has looked at."""
        deadline_s = _monotonic() + (self._settings.delivery_timeout_s * 2 if timeout_s is None else timeout_s)
        with self._mutex:
            self._outbox.seal_all()
            pending = self._outbox.unsettled()
        await self._pump()
        for batch in pending:
            if not await _Delivery(batch, 0).wait(max(0.0, deadline_s - _monotonic())):
                raise BraidError("TIMED_OUT", what="flushing the producer", seconds=timeout_s or 0)
        with self._mutex:
            failures = list(self._outbox.failures)
            self._outbox.failures.clear()
        for batch in failures:
            if not batch.seen:
                raise batch.first_error()

    async def close(self) -> None:
        """Flush, then end. It raises as `flush` does, and the producer is closed all the same."""
        if self.closed:
            return
        with self._mutex:
            self.closed = True
        try:
            await self.flush()
        finally:
            self._stop.set()
            self._timer.set()
            self._room.set()
            with self._mutex:
                links = list(self._links.values())
                self._outbox.fail_all(BraidError("CLIENT_CLOSED", what="producer"))
                tasks = list(self._tasks)
            if self._routing is not None:
                self._routing.set()
            for link in links:
                link.work.set()
                connection = link.connection
                if connection is not None:
                    connection.abort()
            for task in tasks:
                await task.join(JOIN_SECONDS_MAX)

    # --- topics

    async def _open_topic(
        self, topic: str, key: bytes | None, value: bytes, attrs: bytes, ttl_ms: int, partition: int | None
    ) -> tuple[_Topic, backend.Delivery | None]:
        """The lanes of a topic that is used for the first time.

        With a server that knows only the documented opcodes a missing topic can only be created by its first record, sent
        alone: then the record's outcome is known already.
        """
        done: backend.Delivery | None = None
        async with self._opening:
            known = self._topics.get(topic)
            if known is not None:
                return known, None
            if self.closed:
                raise BraidError("CLIENT_CLOSED", what="producer")
            if not self._tasks:
                self._tasks = [
                    backend.spawn(self._main.run, "braidmq producer connection"),
                    backend.spawn(self._run_timer, "braidmq producer timer"),
                ]
            count = await partition_count(self._asker, topic)
            written: flymq.RecordMetadata | None = None
            if count == 0:
                if not await create_as_producer(self._asker, topic):
                    written = await self._produce_alone(topic, key, value, attrs, ttl_ms, partition)
                count = await partition_count(self._asker, topic)
                if count == 0:
                    raise BraidError("TOPIC_NOT_FOUND", topic=topic)
            lanes = [Lane(topic, number, self._new_producer_id()) for number in range(count)]
            with self._mutex:
                for lane in lanes:
                    lane.way = self._link(self._leaders.of(topic, lane.partition))
            known = self._topics[topic] = _Topic(lanes)
            if written is not None:
                done = _Delivery(PendingBatch.written(known.at(written.partition), written.offset, written.timestamp), 0)
        return known, done

    async def _produce_alone(
        self, topic: str, key: bytes | None, value: bytes, attrs: bytes, ttl_ms: int, partition: int | None
    ) -> flymq.RecordMetadata:
        if attrs or ttl_ms:
            what = "headers need" if attrs else "a time to live needs"
            raise BraidError("INVALID_ARGUMENT", reason=f"{what} a server that takes batches")
        request = flymq.Produce(topic, key or b"", value, -1 if partition is None else partition)
        return await self._asker.ask(request, flymq.RecordMetadata, again=False)

    def _forget_topic(self, topic: str) -> None:
        self._topics.pop(topic, None)

    # --- the buffer

    def _begin(self, lane: Lane) -> PendingBatch:
        self._outbox.seal(lane)
        batch = self._outbox.begin(lane, _monotonic())
        link = lane.way
        assert isinstance(link, Link)
        if not link.work.is_set():
            link.work.set()
        if self._timer_idle or (self._lingers and self._sending.timer_due_s is None):
            self._timer_idle = False
            self._sending.timer_due_s = batch.due_s
            self._timer.set()
        return batch

    async def _wait_for_room(self, deadline_s: float) -> None:
        with self._mutex:
            if self.closed:
                raise BraidError("CLIENT_CLOSED", what="producer")
            self._outbox.seal_all()
        await self._pump()
        if not await self._room.wait(deadline_s - _monotonic()):
            raise BraidError(
                "TIMED_OUT", what="waiting for room in the producer's buffer", seconds=self._settings.delivery_timeout_s
            )

    async def _pump(self) -> None:
        """Send everything that may be sent now."""
        if len(self._links) == 1:
            await self._main.pump()
            return
        for link in list(self._links.values()):
            await link.pump()

    def _give_up(self, fault: Exception) -> None:
        """A bug of ours must not leave anybody waiting for ever."""
        with self._mutex:
            self.closed = True
            self._outbox.fail_all(BraidError("INTERNAL", reason=repr(fault)))
        self._stop.set()
        self._room.set()

    # --- which way

    def _link(self, server: Address | None) -> Link:
        """The way to a node, made by the first who needs it. Called with the mutex held."""
        connection = self._main.connection
        if server is None or (connection is not None and connection.server.place == server.place):
            return self._main
        link = self._links.get(server)
        if link is None:
            link = self._links[server] = Link(self._sending, server)
            self._tasks.append(backend.spawn(link.run, f"braidmq producer connection to {server}"))
        return link

    def _route(self, lane: Lane) -> None:
        """Let a lane go to whoever leads its partition, as soon as nothing of it is in flight. Called with the mutex held."""
        if not self._leaders.clustered:
            return
        leader = self._leaders.of(lane.topic, lane.partition)
        link = self._link(leader)
        if not lane.in_flight and not self._stop.is_set():
            self._outbox.move(lane, link)
            link.work.set()
            self._timer.set()
        if self._routing is None:
            self._routing = backend.Signal()
            self._tasks.append(backend.spawn(self._run_routing, "braidmq producer leaders"))
        if leader is None or lane.in_flight or not link.connected:
            self._routing.set()

    async def _run_routing(self) -> None:
        try:
            await self._keep_routing()
        except Exception as fault:
            self._give_up(fault)
            raise

    async def _keep_routing(self) -> None:
        """Find out who leads, while that is not known of something that is to be sent."""
        assert self._routing is not None
        while not self._stop.is_set():
            await self._routing.wait()
            self._routing.clear()
            if self._stop.is_set():
                return
            with self._mutex:
                topics = list(dict.fromkeys(lane.topic for lane in self._outbox.busy()))
            await self._leaders.refresh(topics, self._settings.timeout_s, self._stop)
            with self._mutex:
                for lane in self._outbox.busy():
                    leader = self._leaders.of(lane.topic, lane.partition)
                    if leader is not None and not lane.in_flight:
                        # One that is named and not reached may be gone, and the others may not know it yet: then it is asked again.
                        self._route(lane)
            await self._stop.wait(LEADERS_SECONDS)

    # --- time

    async def _run_timer(self) -> None:
        try:
            await self._keep_time()
        except Exception as fault:
            self._give_up(fault)
            raise

    async def _keep_time(self) -> None:
        """Send batches that have lingered long enough, and give up what has waited for too long."""
        while not self._stop.is_set():
            self._timer.clear()
            with self._mutex:
                due_s = self._outbox.deadline_s()
                self._sending.timer_due_s = due_s
                idle = self._timer_idle = self._outbox.empty
            if due_s is not None:
                await self._timer.wait(min(max(MOMENT_S, due_s - _monotonic()), TICK_SECONDS))
            else:
                await self._timer.wait(None if idle else TICK_SECONDS)
            reason = BraidError("TIMED_OUT", what="delivering a record", seconds=self._settings.delivery_timeout_s)
            with self._mutex:
                self._outbox.expire(_monotonic(), reason)
                if self._outbox.failures:
                    self._room.set()
            await self._pump()
