"""A producer's way to one server: a connection, kept while there is something to send, and the batches on it.

To a broker that runs alone there is one. In a cluster there is one for each node that leads something, and each lane (`outbox`)
takes the one of its partition's leader. What a node refuses because it does not lead, or does not answer because it is gone, is
held until all that the lane has in flight has an outcome; then the lane moves, and everything goes again in order under the same
identity: stored once, whichever node had it before.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from braidmq import hot
from braidmq.base.errors import BraidError
from braidmq.client._backend import asyncio as backend
from braidmq.client.addresses import Address
from braidmq.client.faults import ServerError, lacks_opcode, passes
from braidmq.client.models import RecordMetadata
from braidmq.client.outbox import Lane, Outbox, PendingBatch
from braidmq.client.settings import ClientSettings
from braidmq.client.tracing import log
from braidmq.wire import flymq

from .connection import Connection, decode, encode
from .dialer import Dialer
from .leaders import Leaders

TICK_SECONDS: Final = 0.25
"""How often time-outs are looked after while nothing else happens."""
RETRY_SECONDS: Final = 0.1
"""Pause before a batch that the server refused for the moment goes again."""
SETBACKS_COUNTED_MAX: Final = 2
"""The pause doubles so often while a cluster is not ready: it must not last longer than what it waits for."""
SILENCE_SECONDS: Final = 2.0
"""A node of a cluster that has not answered for so long may have hung: another one is asked who leads."""
_monotonic: Final = time.monotonic


class _Flight:
    """A batch on the wire: how many answers it still gets, and those it got."""

    __slots__ = ("answers_left", "batch", "op", "outcomes", "sent_s")

    def __init__(self, batch: PendingBatch, op: int, answers_left: int, sent_s: float) -> None:
        self.batch = batch
        self.op = op
        self.answers_left = answers_left
        self.sent_s = sent_s
        self.outcomes: list[RecordMetadata | BraidError] = []


class Sending:
    """What a producer and its links share."""

    def __init__(self, dialer: Dialer, leaders: Leaders, settings: ClientSettings, outbox: Outbox) -> None:
        self.dialer = dialer
        self.leaders = leaders
        self.settings = settings
        self.outbox = outbox
        self.mutex = outbox.mutex
        self.room = backend.Signal()
        self.timer = backend.Signal()
        self.stop = backend.Signal()
        self.timer_due_s: float | None = None
        """When the timer looks for batches that have lingered long enough; None when it does not expect any."""
        self.topic_gone: Callable[[str], None] = lambda topic: None
        self.astray: Callable[[Lane], None] = lambda lane: None
        """A lane had a setback, and may have to go elsewhere. Called with `mutex` held."""
        self.given_up: Callable[[Exception], None] = lambda fault: None


class Link:
    def __init__(self, sending: Sending, server: Address | None) -> None:
        self.server = server
        """The only one to connect to; None where any will do."""
        self.connection: Connection | None = None
        self.work = backend.Signal()
        """Set while lanes that go this way have something to send."""
        self._sending = sending
        self._dialer = sending.dialer
        self._settings = sending.settings
        self._outbox = sending.outbox
        self._mutex = sending.mutex
        self._stop = sending.stop
        self._flights: deque[_Flight] = deque()
        self._pumping = False

    @property
    def connected(self) -> bool:
        return self.connection is not None

    # --- sending

    async def pump(self) -> None:
        """Send everything that may be sent now. One caller at a time does it, for all."""
        with self._mutex:
            if self._pumping or self.connection is None:
                return
            self._pumping = True
        try:
            while True:
                with self._mutex:
                    connection = self.connection
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
        for batch in self._outbox.take(now_s, self):
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

    # --- the connection and its answers

    async def run(self) -> None:
        try:
            await self._keep_connection()
        except Exception as fault:
            self._sending.given_up(fault)
            raise

    async def _keep_connection(self) -> None:
        """Connect whenever there is something to send, and read answers until the connection breaks."""
        backoff = self._dialer.backoff()
        while not self._stop.is_set():
            await self.work.wait()
            if self._stop.is_set():
                return
            try:
                connection = await self._dial()
            except BraidError as fault:
                if self.server is not None:
                    log.info("the producer looks for another leader: %s", fault)
                elif not self._stop.is_set():
                    log.warning("the producer waits for a server: %s", fault)
                self._not_reached(fault)
                await self._stop.wait(backoff.next())
                continue
            with self._mutex:
                self.connection = connection
            self._sending.timer.set()
            answered = False
            try:
                await self.pump()
                answered = await self._read_answers(connection)
            except BraidError as fault:
                connection.abort()
                self._requeue(connection, fault)
            await connection.close()
            if answered:
                backoff.reset()
            await self._stop.wait(backoff.next())

    async def _dial(self) -> Connection:
        if self.server is None:
            return await self._dialer.dial(self._settings.timeout_s, self._stop)
        return await self._dialer.dial_to(self.server, self._settings.timeout_s)

    def _not_reached(self, fault: BraidError) -> None:
        if not fault.retriable:
            # A refused login: asking again with the same password only makes it worse.
            with self._mutex:
                self._outbox.fail_all(fault)
                self.work.clear()
            self._sending.room.set()
        elif self.server is not None:
            self._sending.leaders.forget(self.server)
            with self._mutex:
                for lane in self._lanes():
                    self._sending.astray(lane)
                if not self._lanes():
                    self.work.clear()
            self._sending.timer.set()

    def _lanes(self) -> list[Lane]:
        """Those with something to send that go this way."""
        return [lane for lane in self._outbox.busy() if lane.way is self]

    def _requeue(self, connection: Connection, fault: BraidError) -> None:
        with self._mutex:
            self.connection = None
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
            lanes = self._lanes()
            for lane in lanes:
                self._sending.astray(lane)
            if not lanes:
                self.work.clear()
        self._sending.room.set()

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
            self._sending.room.set()
            batches = connection.server not in self._dialer.without_batches
            if batches:
                await self.pump()
            if not batches or (self._sending.timer_due_s is None and not self._outbox.empty):
                # Without batches many small answers may be on their way, and whoever reads them must not get stuck in
                # a send; and a lane that was full when the timer last looked may have a batch to watch now.
                self._sending.timer.set()

    def _check_answer_time(self, connection: Connection) -> None:
        with self._mutex:
            if not self._flights:
                return
            waited_s = _monotonic() - self._flights[0].sent_s
            lane = self._flights[0].batch.lane
            if waited_s > SILENCE_SECONDS and self._sending.leaders.clustered:
                self._check_still_leads(connection, lane)
        if waited_s > self._settings.timeout_s:
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
            self._refused(batch, fault)

    def _refused(self, batch: PendingBatch, fault: BraidError) -> None:
        lane = batch.lane
        pause_s = RETRY_SECONDS
        if fault.code == "TOPIC_NOT_FOUND":
            self._sending.topic_gone(lane.topic)
        elif passes(fault):
            pause_s *= 2 ** min(lane.setbacks, SETBACKS_COUNTED_MAX)
            if fault.code == "NOT_LEADER":
                told = self._sending.leaders.told(lane.topic, lane.partition, fault)
                if told is not None and not lane.setbacks:
                    # Whoever has just been named is asked at once; where nodes disagree they get time to agree.
                    pause_s = 0.0
            lane.setbacks += not lane.held
        self._outbox.refused(batch, fault, _monotonic() + pause_s)
        if passes(fault):
            self._sending.astray(lane)

    def _check_still_leads(self, connection: Connection, lane: Lane) -> None:
        """A node that is silent may not lead any more; then nothing that it would say is worth waiting for."""
        leader = self._sending.leaders.of(lane.topic, lane.partition)
        if leader is not None and leader.place != connection.server.place:
            raise BraidError("CONNECTION_LOST", server=connection.server, reason=f"it is silent, and {leader} leads now")
        # Another one is asked who leads: this one would be waited for once more.
        self._dialer.avoid(connection.server)
        self._sending.astray(lane)
