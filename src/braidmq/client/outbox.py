"""What a producer still owes: records on their way to an acknowledgement. No I/O, no waiting, no clock.

Each partition has a lane. Records join the lane's open batch; a sealed batch waits, is handed out to be sent, and is in
flight until its answer arrives:

    open --seal--> waiting --take--> in flight --acknowledged--> settled
                      ^                  |  \\--refused for good--> settled (with an error)
                      |                  |
                      +---- held <-------+  refused for now, or the connection broke

What this promises:

- Order. A lane's batches are sent in order, and from the oldest one without an outcome to the newest one sent it is never
  more than `IN_FLIGHT_MAX` batches, as many as the broker remembers of a producer. After a
  setback nothing new is sent until every batch in flight has been answered or lost; then all go again in order.
- No duplicate and no loss with a server that knows producers. A batch keeps its bytes, and with them its producer id and
  sequence, for as long as its outcome may be unknown. It gets a new identity only after the server itself said
  (OUT_OF_ORDER_SEQUENCE) that it did not write it and misses something earlier, which is so after an earlier batch was given up.
- Nothing is dropped silently: every batch is settled, with an offset or with an error.

Every method except `PendingBatch.outcome` is called with `Outbox.mutex` held.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from braidmq.base.errors import BraidError
from braidmq.base.limits import PRODUCER_BATCHES_KEPT
from braidmq.client.models import RecordMetadata

IN_FLIGHT_MAX: Final = PRODUCER_BATCHES_KEPT
SEQUENCE_MASK: Final = 0x7FFFFFFF
"""Sequences are 31 bits and begin again at zero."""
IDENTITIES_MAX: Final = 3
"""How often a batch may begin again under a new producer id before its producer gives up on it."""


class Wakeable(Protocol):
    def set(self) -> None: ...


class Way(Protocol):
    """Where a lane's batches are sent: one server."""

    @property
    def connected(self) -> bool: ...


class PendingBatch:
    """Records of one partition that are sent, and settled, together."""

    __slots__ = (
        "_mutex", "_settled", "attrs", "base_offset", "created_s", "done", "due_s", "error", "frame", "identities", "keys", "lane",
        "number", "offsets", "partition", "seen", "sent", "sequence", "size_bytes", "timestamp", "ttls_ms", "values",
    )  # fmt: skip

    def __init__(self, lane: Lane, mutex: threading.Lock, now_s: float, due_s: float) -> None:
        self.lane = lane
        self.partition = lane.partition
        self.keys: list[bytes | None] = []
        self.values: list[bytes] = []
        self.attrs: list[bytes] | None = None
        self.ttls_ms: list[int] | None = None
        self.size_bytes = 0
        self.created_s = now_s
        self.due_s = due_s
        self.sequence = -1
        self.number = 0
        """Counts the batches of a lane in the order they were first sent, from 1."""
        self.identities = 0
        self.frame: bytes | None = None
        self.sent = False
        """Whether a server may have got it."""
        self.done = False
        self.seen = False
        """Whether somebody looked at the outcome."""
        self.error: BraidError | None = None
        self.base_offset = -1
        self.timestamp = -1
        self.offsets: list[RecordMetadata | BraidError] | None = None
        """Outcomes one by one, from a server that takes no batches."""
        self._settled: Wakeable | None = None
        self._mutex = mutex

    @classmethod
    def written(cls, lane: Lane, offset: int, timestamp: int) -> PendingBatch:
        """A batch of one record that is stored already."""
        batch = cls(lane, threading.Lock(), 0.0, 0.0)
        batch.base_offset = offset
        batch.timestamp = timestamp
        batch.done = True
        return batch

    @property
    def size(self) -> int:
        return len(self.values)

    def add_attrs(self, attrs: bytes) -> None:
        """Attributes of the record added last. Batches whose records have none do without the list."""
        if self.attrs is None:
            self.attrs = [b""] * (len(self.values) - 1)
        self.attrs.append(attrs)

    def add_ttl(self, ttl_ms: int) -> None:
        """Time to live of the record added last. Batches whose records have none of their own do without the list."""
        if self.ttls_ms is None:
            self.ttls_ms = [0] * (len(self.values) - 1)
        self.ttls_ms.append(ttl_ms)

    def settled(self, make: Callable[[], Wakeable]) -> Wakeable:
        """What is set when the outcome is known. Made by the first who asks; most batches are never asked."""
        with self._mutex:
            if self._settled is None:
                self._settled = make()
                if self.done:
                    self._settled.set()
            return self._settled

    def settle(self) -> None:
        self.done = True
        self.keys = []
        self.values = []
        self.attrs = None
        self.ttls_ms = None
        self.frame = None
        if self._settled is not None:
            self._settled.set()

    def first_error(self) -> BraidError:
        """What went wrong, for a batch of which something did."""
        if self.error is not None:
            return self.error
        return next(outcome for outcome in self.offsets or [] if isinstance(outcome, BraidError))

    def outcome(self, index: int) -> RecordMetadata:
        """Where record `index` went. Raises what kept it from being stored."""
        self.seen = True
        if self.error is not None:
            raise self.error
        if self.offsets is not None:
            found = self.offsets[index]
            if isinstance(found, BraidError):
                raise found
            return found
        return RecordMetadata(self.lane.topic, self.partition, self.base_offset + index, self.timestamp)


class Lane:
    """One partition's way out."""

    __slots__ = (
        "established", "held", "in_flight", "launched", "not_before_s", "open", "partition", "producer_id", "renew", "sequence",
        "setbacks", "topic", "waiting", "way",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, producer_id: int) -> None:
        self.topic = topic
        self.partition = partition
        self.open: PendingBatch | None = None
        self.waiting: deque[PendingBatch] = deque()
        self.in_flight: deque[PendingBatch] = deque()
        self.held: list[PendingBatch] = []
        self.established = False
        """Whether the server has stored a batch of this identity. It takes any sequence from a producer it does not know, so
        until then a batch goes alone: were it refused, those behind it would be stored in its place."""
        self.renew = False
        self.not_before_s = 0.0
        self.producer_id = producer_id
        self.sequence = 0
        self.launched = 0
        self.way: Way | None = None
        self.setbacks = 0
        """How often in a row a cluster was not ready for it."""

    def next_to_launch(self, now_s: float) -> PendingBatch | None:
        """The batch that may go now, if there is one and the server's memory of this producer reaches far enough for it."""
        batch = self.waiting[0] if self.waiting else self.open
        if batch is None or (batch is self.open and batch.due_s > now_s) or not self.reaches(batch):
            return None
        return batch

    def reaches(self, batch: PendingBatch) -> bool:
        """Whether `batch` and the oldest one without an outcome are both among the last that the server remembers."""
        if not self.in_flight:
            return True
        return self.established and (batch.number or self.launched + 1) - self.in_flight[0].number < IN_FLIGHT_MAX

    @property
    def idle(self) -> bool:
        return self.open is None and not self.waiting and not self.in_flight and not self.held


class Outbox:
    """All lanes of a producer."""

    def __init__(
        self,
        *,
        linger_s: float,
        delivery_timeout_s: float,
        retries_may_duplicate: bool,
        new_producer_id: Callable[[], int],
    ) -> None:
        self.mutex = threading.Lock()
        self.buffered_bytes = 0
        self.failures: deque[PendingBatch] = deque(maxlen=1000)
        """Batches that failed, for `flush` to complain about those nobody looked at."""
        self._linger_s = linger_s
        self._delivery_timeout_s = delivery_timeout_s
        self._retries_may_duplicate = retries_may_duplicate
        self._new_producer_id = new_producer_id
        self._busy: dict[Lane, None] = {}

    # --- records in

    def begin(self, lane: Lane, now_s: float) -> PendingBatch:
        """A new open batch for `lane`."""
        batch = PendingBatch(lane, self.mutex, now_s, now_s + self._linger_s)
        lane.open = batch
        self._busy[lane] = None
        return batch

    def seal(self, lane: Lane) -> None:
        """Close the open batch: it takes no more records."""
        if lane.open is not None:
            lane.waiting.append(lane.open)
            lane.open = None

    def seal_all(self) -> None:
        for lane in self._busy:
            self.seal(lane)

    def unsettled(self) -> list[PendingBatch]:
        """Every batch whose outcome is not known yet."""
        found: list[PendingBatch] = []
        for lane in self._busy:
            found += lane.in_flight
            found += lane.held
            found += lane.waiting
            if lane.open is not None:
                found.append(lane.open)
        return found

    @property
    def empty(self) -> bool:
        return not self._busy

    def busy(self) -> list[Lane]:
        """Lanes that have something without an outcome."""
        return list(self._busy)

    # --- batches out

    def take(self, now_s: float, way: Way | None = None) -> list[PendingBatch]:
        """The batches to send now on this way, in order. They count as in flight from here on."""
        taken: list[PendingBatch] = []
        for lane in self._busy:
            if lane.way is not way:
                continue
            if lane.held:
                if lane.in_flight or now_s < lane.not_before_s:
                    continue
                self._resume(lane)
            while (batch := lane.next_to_launch(now_s)) is not None:
                if batch is lane.open:
                    lane.open = None
                else:
                    lane.waiting.popleft()
                taken.append(self._launch(lane, batch))
        return taken

    def deadline_s(self) -> float | None:
        """When `take` should be asked again if nothing else happens."""
        earliest: float | None = None
        for lane in self._busy:
            if lane.way is not None and not lane.way.connected:
                continue  # A connection comes first.
            following = lane.waiting[0] if lane.waiting else lane.open
            if lane.held:
                if lane.in_flight:
                    continue  # An answer comes first.
                when = lane.not_before_s
            elif following is None or not lane.reaches(following):
                continue
            else:
                when = following.due_s if following is lane.open else 0.0
            if earliest is None or when < earliest:
                earliest = when
        return earliest

    def _launch(self, lane: Lane, batch: PendingBatch) -> PendingBatch:
        if not batch.number:
            lane.launched += 1
            batch.number = lane.launched
        if batch.sequence < 0:
            batch.sequence = lane.sequence
            lane.sequence = (lane.sequence + len(batch.values)) & SEQUENCE_MASK
        lane.in_flight.append(batch)
        return batch

    def _resume(self, lane: Lane) -> None:
        """Everything that was held goes again, before what was waiting."""
        lane.waiting.extendleft(reversed(lane.held))
        lane.held.clear()
        if lane.renew:
            lane.renew = False
            lane.established = False
            lane.producer_id = self._new_producer_id()
            lane.sequence = 0
            for batch in lane.waiting:
                batch.sequence = -1
                batch.frame = None

    def move(self, lane: Lane, way: Way) -> None:
        """Send a lane's batches elsewhere from now on. Nothing may be in flight: two ways at once could turn their order around."""
        assert not lane.in_flight, "a lane moves when all that it sent has been answered or lost"
        if lane.way is not way:
            lane.way = way
            # Whoever leads now may not know this producer.
            lane.established = False

    # --- answers

    def acknowledged(self, batch: PendingBatch, base_offset: int, timestamp: int) -> None:
        batch.base_offset = base_offset
        batch.timestamp = timestamp
        batch.lane.established = True
        batch.lane.setbacks = 0
        self._settle(batch)

    def answered_one_by_one(self, batch: PendingBatch, outcomes: list[RecordMetadata | BraidError]) -> None:
        """From a server without batches: each record has its own outcome."""
        batch.offsets = outcomes
        batch.lane.established = True
        if any(isinstance(outcome, BraidError) for outcome in outcomes):
            self.failures.append(batch)
        self._settle(batch)

    def refused(self, batch: PendingBatch, fault: BraidError, retry_at_s: float) -> None:
        """The server answered with an error: it did not write the batch, or in a cluster cannot tell."""
        lane = batch.lane
        if fault.code == "OUT_OF_ORDER_SEQUENCE":
            if not lane.held:
                # Nothing earlier is on its way to fill the gap: it was given up. The rest begins a sequence of its own.
                batch.identities += 1
                if batch.identities > IDENTITIES_MAX:
                    self.fail(batch, fault)
                    return
                lane.renew = True
                lane.not_before_s = 0.0
        elif fault.retriable:
            lane.not_before_s = retry_at_s
        else:
            self.fail(batch, fault)
            return
        lane.in_flight.remove(batch)
        lane.held.append(batch)

    def not_accepted(self, batch: PendingBatch) -> None:
        """The server takes no batches at all, so nothing was written: it goes again in the other form."""
        batch.sent = False
        batch.lane.in_flight.remove(batch)
        batch.lane.held.append(batch)

    def lost(self, batches: Iterable[PendingBatch], fault: BraidError, recognises_duplicates: bool) -> None:
        """The connection broke before `batches` were answered: each may have been written, or not."""
        for batch in batches:
            if batch.done:
                # It was given up before, as all are when a producer ends.
                continue
            if recognises_duplicates or self._retries_may_duplicate or not batch.sent:
                batch.lane.in_flight.remove(batch)
                batch.lane.held.append(batch)
                batch.lane.not_before_s = 0.0
            else:
                self.fail(batch, fault)

    def expire(self, now_s: float, reason: BraidError) -> None:
        """Give up what has waited for too long and is not on the wire."""
        for lane in list(self._busy):
            if lane.open is not None and self._expired(lane.open, now_s):
                self.seal(lane)
            for queue in (lane.held, lane.waiting):
                for batch in [batch for batch in queue if self._expired(batch, now_s)]:
                    self.fail(batch, reason)

    def _expired(self, batch: PendingBatch, now_s: float) -> bool:
        return now_s - batch.created_s >= self._delivery_timeout_s

    def fail(self, batch: PendingBatch, fault: BraidError) -> None:
        batch.error = fault
        self.failures.append(batch)
        self._settle(batch)

    def fail_all(self, fault: BraidError) -> None:
        for batch in self.unsettled():
            self.fail(batch, fault)

    def _settle(self, batch: PendingBatch) -> None:
        lane = batch.lane
        if lane.open is batch:
            lane.open = None
        else:
            for queue in (lane.in_flight, lane.held, lane.waiting):
                if batch in queue:
                    queue.remove(batch)
                    break
        self.buffered_bytes -= batch.size_bytes
        batch.settle()
        if lane.idle:
            del self._busy[lane]
