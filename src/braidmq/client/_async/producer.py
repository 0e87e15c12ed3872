"""The producer: records in, batches out, an outcome for each record.

`send` puts a record into its partition's open batch and returns at once. A batch leaves when it is full, or when its oldest
record has waited `linger_ms`; whoever fills a batch sends it, so a busy producer needs no other task. One task keeps the
connection and reads the answers, another one keeps the time.

What this promises: see `outbox`. In short, with a server that takes batches every record that was acknowledged is stored
once and in order within its partition, through lost connections and restarts of the broker; with a server that knows only the
documented opcodes the same holds until a connection breaks, and the records in flight then fail with CONNECTION_LOST, because
nothing can tell whether they were stored (or, with `retries_may_duplicate`, are sent again).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.base.limits import BATCH_RECORDS_MAX, KIB
from braidmq.client._backend import asyncio as backend
from braidmq.client.cipher import ValueCipher
from braidmq.client.faults import ServerError, lacks_opcode
from braidmq.client.models import RecordMetadata
from braidmq.client.outbox import Lane, Outbox, PendingBatch
from braidmq.client.settings import ClientSettings
from braidmq.client.tracing import log
from braidmq.log.attrs import encode_headers
from braidmq.wire import flymq

from .connection import Connection, answers, decode, encode
from .dialer import Dialer
from .pool import MOMENT_S, Pool
from .topics import create_as_producer, partition_count

RECORD_OVERHEAD_BYTES: Final = 40
"""What a record adds to a batch beside its key and value, counted generously."""
RECORD_BYTES_MAX: Final = limits.RECORD_BYTES_MAX - KIB
"""A record that is within the limit together with the batch around it."""
TICK_SECONDS: Final = 0.25
"""How often time-outs are looked after while nothing else happens."""
RETRY_SECONDS: Final = 0.1
"""Pause before a batch that the server refused for the moment goes again."""
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


class _Flight:
    """A batch on the wire: how many answers it still gets, and those it got."""

    __slots__ = ("answers_left", "batch", "op", "outcomes", "sent_s")

    def __init__(self, batch: PendingBatch, op: int, answers_left: int, sent_s: float) -> None:
        self.batch = batch
        self.op = op
        self.answers_left = answers_left
        self.sent_s = sent_s
        self.outcomes: list[RecordMetadata | BraidError] = []


class Producer:
    """Sends records in batches. Made by `Client.producer`; use it as a context manager, or `close` it."""

    def __init__(
        self, dialer: Dialer, pool: Pool, settings: ClientSettings, cipher: ValueCipher | None, new_producer_id: Callable[[], int]
    ) -> None:
        self.closed = False
        self._dialer = dialer
        self._pool = pool
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
        self._connection: Connection | None = None
        self._flights: deque[_Flight] = deque()
        self._pumping = False
        self._room = backend.Signal()
        self._work = backend.Signal()
        self._timer = backend.Signal()
        self._timer_due_s: float | None = None
        """When the timer looks for batches that have lingered long enough; None when it does not expect any."""
        self._timer_idle = False
        self._stop = backend.Signal()
        self._tasks: list[backend.Task] = []

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
            self._work.set()
            self._timer.set()
            self._room.set()
            with self._mutex:
                connection = self._connection
                self._outbox.fail_all(BraidError("CLIENT_CLOSED", what="producer"))
            if connection is not None:
                connection.abort()
            for task in self._tasks:
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
                    backend.spawn(self._run_connection, "braidmq producer connection"),
                    backend.spawn(self._run_timer, "braidmq producer timer"),
                ]
            timeout_s = self._settings.timeout_s
            count = await partition_count(self._pool, topic, timeout_s)
            written: flymq.RecordMetadata | None = None
            if count == 0:
                if not await create_as_producer(self._pool, topic, timeout_s):
                    written = await self._produce_alone(topic, key, value, attrs, ttl_ms, partition)
                count = await partition_count(self._pool, topic, timeout_s)
                if count == 0:
                    raise BraidError("TOPIC_NOT_FOUND", topic=topic)
            lanes = [Lane(topic, number, self._new_producer_id()) for number in range(count)]
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
        answer = answers([request], await self._pool.call([encode(request)], self._settings.timeout_s, again=False))[0]
        assert isinstance(answer, flymq.RecordMetadata)
        return answer

    # --- the buffer

    def _begin(self, lane: Lane) -> PendingBatch:
        self._outbox.seal(lane)
        batch = self._outbox.begin(lane, _monotonic())
        if not self._work.is_set():
            self._work.set()
        if self._timer_idle or (self._lingers and self._timer_due_s is None):
            self._timer_idle = False
            self._timer_due_s = batch.due_s
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

    # --- sending

    async def _pump(self) -> None:
        """Send everything that may be sent now. One caller at a time does it, for all."""
        with self._mutex:
            if self._pumping or self._connection is None:
                return
            self._pumping = True
        try:
            while True:
                with self._mutex:
                    connection = self._connection
                    frames = self._load(connection) if connection is not None else []
                    if connection is None or not frames:
                        self._pumping = False
                        return
                await connection.send(frames, self._settings.timeout_s)
        except BraidError as fault:
            # Whoever reads this connection's answers notices as well, and sees to it that everything is sent again.
            log.debug("sending failed: %s", fault)
            self._pumping = False
        except BaseException:
            self._pumping = False
            raise

    def _load(self, connection: Connection) -> list[bytes]:
        """The frames of all batches that may be sent; they are in flight from here on."""
        now_s = _monotonic()
        frames: list[bytes] = []
        batches = connection.server not in self._dialer.without_batches
        for batch in self._outbox.take(now_s):
            if batches:
                try:
                    batch.frame = batch.frame or self._encode(batch)
                except BraidError as fault:
                    self._outbox.fail(batch, fault)
                    continue
                frames.append(batch.frame)
                self._flights.append(_Flight(batch, flymq.Op.PRODUCE_BATCH, 1, now_s))
            elif (unfit := self._unfit(batch, connection)) is not None:
                self._outbox.fail(batch, unfit)
                continue
            else:
                frames += self._encode_one_by_one(batch)
                self._flights.append(_Flight(batch, flymq.Op.PRODUCE, len(batch.values), now_s))
            batch.sent = True
        return frames

    def _encode(self, batch: PendingBatch) -> bytes:
        lane = batch.lane
        data = hot.encode_batch(batch.keys, batch.values, batch.attrs, lane.producer_id, 0, batch.sequence)
        if batch.ttls_ms is not None:
            # Imported here: it needs numpy, which takes longer to load than all of the client, and few records have one.
            from braidmq.hot.expiring import with_times_to_live

            data = with_times_to_live(data, batch.ttls_ms)
        return encode(flymq.ProduceBatch(lane.topic, lane.partition, data))

    def _encode_one_by_one(self, batch: PendingBatch) -> list[bytes]:
        topic, partition = batch.lane.topic, batch.lane.partition
        return [
            encode(flymq.Produce(topic, key or b"", value, partition)) for key, value in zip(batch.keys, batch.values, strict=True)
        ]

    def _unfit(self, batch: PendingBatch, connection: Connection) -> BraidError | None:
        """Why a batch cannot go to a server that takes only single records."""
        if batch.attrs is not None or batch.ttls_ms is not None:
            what = "headers need" if batch.attrs is not None else "a time to live needs"
            reason = f"{what} a server that takes batches, and {connection.server} does not"
            return BraidError("INVALID_ARGUMENT", reason=reason)
        if batch.sent and not self._settings.retries_may_duplicate:
            return BraidError("CONNECTION_LOST", server=connection.server, reason="it replaced one that may have stored the record")
        return None

    # --- background tasks

    async def _run_connection(self) -> None:
        try:
            await self._keep_connection()
        except Exception as fault:
            self._give_up(fault)
            raise

    async def _run_timer(self) -> None:
        try:
            await self._keep_time()
        except Exception as fault:
            self._give_up(fault)
            raise

    def _give_up(self, fault: Exception) -> None:
        """A bug of ours must not leave anybody waiting for ever."""
        with self._mutex:
            self.closed = True
            self._outbox.fail_all(BraidError("INTERNAL", reason=repr(fault)))
        self._stop.set()
        self._room.set()

    # --- the connection and its answers

    async def _keep_connection(self) -> None:
        """Connect whenever there is something to send, and read answers until the connection breaks."""
        backoff = self._dialer.backoff()
        while not self._stop.is_set():
            await self._work.wait()
            if self._stop.is_set():
                return
            try:
                connection = await self._dialer.dial(self._settings.timeout_s, self._stop)
            except BraidError as fault:
                if not self._stop.is_set():
                    log.warning("the producer waits for a server: %s", fault)
                if not fault.retriable:
                    # A refused login: asking again with the same password only makes it worse.
                    with self._mutex:
                        self._outbox.fail_all(fault)
                        self._work.clear()
                    self._room.set()
                await self._stop.wait(backoff.next())
                continue
            with self._mutex:
                self._connection = connection
            self._timer.set()
            answered = False
            try:
                await self._pump()
                answered = await self._read_answers(connection)
            except BraidError as fault:
                connection.abort()
                self._requeue(connection, fault)
            await connection.close()
            if answered:
                backoff.reset()
            await self._stop.wait(backoff.next())

    def _requeue(self, connection: Connection, fault: BraidError) -> None:
        with self._mutex:
            self._connection = None
            flights = list(self._flights)
            self._flights.clear()
            if flights:
                log.info("%d batches in flight: %s", len(flights), fault)
            for flight in flights:
                recognises_duplicates = flight.op == flymq.Op.PRODUCE_BATCH
                if flight.outcomes:
                    # Some of its records are stored for certain, so the batch as a whole must not go again.
                    missing = flight.batch.size - len(flight.outcomes)
                    self._outbox.answered_one_by_one(flight.batch, flight.outcomes + [fault] * missing)
                else:
                    self._outbox.lost([flight.batch], fault, recognises_duplicates)
            if self._outbox.empty:
                self._work.clear()
        self._room.set()

    async def _read_answers(self, connection: Connection) -> bool:
        """Read until the connection breaks, which raises."""
        while True:
            frame = await connection.read(TICK_SECONDS)
            if frame is None:
                self._check_answer_time(connection)
                continue
            with self._mutex:
                while frame is not None:
                    self._take_answer(connection, frame)
                    frame = connection.next_buffered()
            self._room.set()
            batches = connection.server not in self._dialer.without_batches
            if batches:
                await self._pump()
            if not batches or (self._timer_due_s is None and not self._outbox.empty):
                # Without batches many small answers may be on their way, and whoever reads them must not get stuck in
                # a send; and a lane that was full when the timer last looked may have a batch to watch now.
                self._timer.set()

    def _check_answer_time(self, connection: Connection) -> None:
        with self._mutex:
            late = bool(self._flights) and _monotonic() - self._flights[0].sent_s > self._settings.timeout_s
        if late:
            raise BraidError("TIMED_OUT", what=f"an acknowledgement of {connection.server}", seconds=self._settings.timeout_s)

    def _take_answer(self, connection: Connection, frame: flymq.Frame) -> None:
        if not self._flights:
            raise BraidError("UNEXPECTED_REPLY", reason="more than it was asked")
        flight = self._flights[0]
        fault: BraidError | None = None
        answer: flymq.Response | None = None
        try:
            answer = decode(flight.op, frame)
        except ServerError as refusal:
            fault = refusal
        flight.answers_left -= 1
        if flight.answers_left == 0:
            self._flights.popleft()
        batch = flight.batch
        if flight.op == flymq.Op.PRODUCE:
            if isinstance(answer, flymq.RecordMetadata):
                flight.outcomes.append(RecordMetadata(answer.topic, answer.partition, answer.offset, answer.timestamp))
            elif fault is not None:
                flight.outcomes.append(fault)
            if flight.answers_left == 0 and not batch.done:
                self._outbox.answered_one_by_one(batch, flight.outcomes)
        elif batch.done:
            return
        elif isinstance(answer, flymq.BatchProduced):
            self._outbox.acknowledged(batch, answer.base_offset, answer.timestamp)
        elif fault is not None and lacks_opcode(fault):
            if connection.server not in self._dialer.without_batches:
                log.info("%s has no PRODUCE_BATCH; using PRODUCE", connection.server)
                self._dialer.without_batches.add(connection.server)
            self._outbox.not_accepted(batch)
        elif fault is not None:
            if fault.code == "TOPIC_NOT_FOUND":
                self._topics.pop(batch.lane.topic, None)
            self._outbox.refused(batch, fault, _monotonic() + RETRY_SECONDS)

    # --- time

    async def _keep_time(self) -> None:
        """Send batches that have lingered long enough, and give up what has waited for too long."""
        while not self._stop.is_set():
            self._timer.clear()
            with self._mutex:
                due_s = self._outbox.deadline_s() if self._connection is not None else None
                self._timer_due_s = due_s
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
