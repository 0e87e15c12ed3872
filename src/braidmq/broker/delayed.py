"""Messages that come later: kept out of sight until they are due, then appended to their topic as any record is.

A message is staged (`staging.py`) and noted in the journal of the work (`delayed_table.py`); its id is answered when both are
durable. When it is due, a decision takes it, with everything else that is due, from those who wait to those that go into
partitions, and `work.py` puts it there once. Whoever cancels in that moment is either before the decision in the journal or
too late.

Time is the steady clock's, so a machine whose clock is set delivers nothing early or late. What was due while the broker was
down comes at its start. A message that cannot be delivered (its partition is not there, its topic cannot be made) is tried
three times and then becomes a dead letter; for nodes that are away it waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.features import BROKER
from braidmq.broker.names import check_topic
from braidmq.broker.staging import Staged
from braidmq.broker.work_table import number_in
from braidmq.security.accounts import Caller

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

_PREFIX: Final = "delayed-"
_ATTEMPTS_MAX: Final = 3
_RETRY_MS: Final = 1000
_PASSING: Final = frozenset({"NOT_ENOUGH_REPLICAS", "NOT_LEADER", "LEADER_MOVED", "COORDINATOR_MOVED", "NODE_UNREACHABLE"})
"""What other nodes are missing for: it says nothing about the message, which waits until they are back."""
_SLEEP_SECONDS_MAX: Final = 60.0
"""The steady clock may run a little faster or slower than the timers of the loop; looking again now and then corrects it."""
_LIST_STEP: Final = 1000
_STAGED_BYTES: Final = 128
"""What a staged record takes on the disk besides what it holds; more where it is alone in its batch."""

logger = logging.getLogger("braidmq.delayed")


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of a message: waiting under an id, or stored at once."""

    id: str
    due_ms: int
    partition: int
    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Waiting:
    id: str
    topic: str
    due_ms: int
    size: int


class Delayed:
    def __init__(self, broker: Broker, delay_ms_max: int) -> None:
        self._broker = broker
        self._delay_ms_max = delay_ms_max
        self._attempts: dict[int, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_for_ms = 0
        self._delivering: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._stopped = False

    def __len__(self) -> int:
        return len(self._broker.work.table.delayed)

    # --- start and stop

    def start(self) -> None:
        self._stopped = False
        self._arm()

    async def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._delivering is not None:
            await asyncio.gather(self._delivering, return_exceptions=True)

    # --- taking messages in

    async def produce(
        self, topic: str, key: bytes, value: bytes, delay_ms: int, *, partition: int = -1, attrs: bytes = b"",
        partitions_of_new: int | None = None, by: Caller = BROKER,
    ) -> Accepted:
        """Keep a message until it is due; a delay of 0 or less stores it at once. `by` makes the topic where it is missing."""
        broker = self._broker
        if delay_ms > self._delay_ms_max:
            raise BraidError("DELAY_TOO_LONG", delay_ms=delay_ms, limit_ms=self._delay_ms_max)
        check_topic(topic)
        known = await broker.auto_create(topic, partitions_of_new, by)
        if partition >= known.partitions:
            raise BraidError("PARTITION_NOT_FOUND", partition=partition)
        if delay_ms <= 0:
            stored = await broker.append(known, partition, key, value, attrs=attrs)
            return Accepted("", 0, *stored)
        if len(self) >= limits.DELAYED_MESSAGES_MAX:
            raise BraidError("DELAYED_LIMIT", limit=limits.DELAYED_MESSAGES_MAX)
        work = broker.work
        number = await work.number()
        timestamp = broker.commit.now_ms()
        due_ms = broker.steady.now_ms() + delay_ms
        ref = work.delayed.add(number, key, value, attrs, topic, partition)
        staged = broker.durability(work.delayed.log, ref + 1)
        size = len(key) + len(value) + len(attrs) + len(topic.encode()) + _STAGED_BYTES
        # Where only the note reaches the disk, it leads nowhere; that is found out when its time comes.
        await asyncio.gather(staged, work.journal.post(["delay", number, due_ms, ref, size]))
        self._arm()
        return Accepted(f"{_PREFIX}{number}", due_ms, 0, 0, timestamp)

    async def cancel(self, message_id: str) -> None:
        """Let a message never be delivered; MESSAGE_NOT_FOUND when it is too late for that."""
        number = number_in(message_id, _PREFIX)
        table = self._broker.work.table.delayed
        if table.get(number) is None or not await self._broker.work.journal.submit(["cancel", number]):
            raise BraidError("MESSAGE_NOT_FOUND", id=message_id)

    async def staged(self, numbers: Iterable[int]) -> dict[int, Staged]:
        """The records of messages that wait, by their numbers; those that are not there are left out."""
        table = self._broker.work.table.delayed
        places = {number: place[1] for number in numbers if (place := table.get(number)) is not None}
        found: dict[int, Staged] = {}
        while places:
            staged = await self._broker.work.delayed.read(set(places.values()))
            moved = {}
            for number, ref in places.items():
                record, now = staged.get(ref), table.get(number)
                if record is not None and record.number == number:
                    found[number] = record
                elif now is not None and now[1] != ref:
                    # It was staged somewhere else while it was looked for.
                    moved[number] = now[1]
            places = moved
        return found

    async def waiting(self, topic: str = "", most: int = 100) -> list[Waiting]:
        """What waits for its time, the soonest first; of one topic, or of all."""
        found: list[Waiting] = []
        rows = self._broker.work.table.delayed.soonest()
        while step := list(islice(rows, _LIST_STEP)):
            staged = await self.staged([number for number, _, _ in step])
            for number, due_ms, _ in step:
                record = staged.get(number)
                if record is not None and topic in ("", record.topic):
                    found.append(Waiting(f"{_PREFIX}{number}", record.topic, due_ms, len(record.value)))
                    if len(found) >= most:
                        return found
        return found

    # --- delivering

    def _arm(self) -> None:
        """See to it that somebody looks when the next message is due."""
        due_ms = self._broker.work.table.delayed.next_due_ms
        if due_ms is None or self._stopped or self._delivering is not None:
            return
        if self._timer is not None:
            if self._timer_for_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_for_ms = due_ms
        wait_s = max(0.001, (due_ms - self._broker.steady.now_ms()) / 1000)
        self._timer = asyncio.get_running_loop().call_later(min(wait_s, _SLEEP_SECONDS_MAX), self._wake)

    def _wake(self) -> None:
        self._timer = None
        if self._delivering is None:
            self._delivering = asyncio.create_task(self.deliver_due())
            self._delivering.add_done_callback(self._delivered)

    def _delivered(self, task: asyncio.Task[None]) -> None:
        self._delivering = None
        if not task.cancelled() and isinstance(task.exception(), Exception):
            logger.error("delayed messages could not be looked at", exc_info=task.exception())
        self._arm()

    async def deliver_due(self) -> None:
        """Deliver everything that is due by now."""
        async with self._one_at_a_time:
            await self._deliver_due()

    async def _deliver_due(self) -> None:
        table = self._broker.work.table.delayed
        while not self._stopped:
            numbers = table.take_due(self._broker.steady.now_ms(), limits.DELIVERY_RECORDS_MAX)
            if not numbers:
                return
            try:
                await self._deliver(numbers)
            except BraidError as error:
                logger.error("delayed messages could not be delivered yet: %s", error)
                at_ms = self._broker.steady.now_ms() + _RETRY_MS
                for number in numbers:
                    if table.get(number) is not None:
                        table.name_again(number, at_ms)

    async def _deliver(self, numbers: list[int]) -> None:
        work = self._broker.work
        staged = await self.staged(numbers)
        targets: dict[tuple[int, int], list[int]] = {}
        size = 0
        for number in numbers:
            waiting = work.table.delayed.get(number)
            if waiting is None:
                continue
            record = staged.get(number)
            if record is None:
                # It was never acknowledged: its staged record did not reach the disk.
                logger.warning("delayed message %d is not there", number)
                await work.journal.submit(["cancel", number])
                continue
            if size > limits.DELIVERY_BYTES_TARGET:
                work.table.delayed.name_again(number, waiting[0])
                continue
            try:
                place = await self._place(record)
            except BraidError as error:
                await self._failed(number, record, error)
            else:
                targets.setdefault(place, []).append(number)
                size += record.size
        if targets:
            await self._decide(targets, staged)

    async def _decide(self, targets: dict[tuple[int, int], list[int]], staged: dict[int, Staged]) -> None:
        work = self._broker.work
        number = await work.number()
        decided = await work.decide(["deliver", number, [[*place, messages] for place, messages in targets.items()]])
        for messages in targets.values():
            for message in messages:
                self._attempts.pop(message, None)
        if decided is not None:
            try:
                # Where each of them is staged is what the decision found; it may have been moved since it was read.
                await work.do(decided, {ref: staged[message] for ref, message in decided.owners.items()})
            except BraidError as error:
                # Decided is decided: the work is tried again until it is done.
                logger.error("%d delayed messages are held up: %s", sum(map(len, targets.values())), error)

    async def _place(self, record: Staged) -> tuple[int, int]:
        """Topic and partition a message goes to; the topic is made where it is missing."""
        broker = self._broker
        topic = broker.topics.get(record.topic) or await broker.create_topic(record.topic, broker.settings.default_partitions)
        partition = broker.choose_partition(broker.route(topic), record.key or b"", record.partition)
        if not broker.led_elsewhere(topic, partition):
            broker.log_of(topic, partition).check_writable()
        return topic.id, partition

    async def _failed(self, number: int, record: Staged, error: BraidError) -> None:
        work = self._broker.work
        if error.code in _PASSING:
            work.table.delayed.name_again(number, self._broker.steady.now_ms() + _RETRY_MS)
            return
        attempts = self._attempts[number] = self._attempts.get(number, 0) + 1
        if attempts >= _ATTEMPTS_MAX:
            self._attempts.pop(number)
            logger.warning("delayed message %d becomes a dead letter: %s", number, error)
            letter = self._broker.dead_letters.letter_of(
                record, record.topic, record.partition, -1, "processing_error", str(error), attempts
            )

            def give_up(work_number: int, targets: list[list[Any]]) -> list[Any]:
                return ["give_up", work_number, number, targets]

            await self._broker.dead_letters.send(record.topic, [letter], give_up)
            return
        work.table.delayed.name_again(number, self._broker.steady.now_ms() + (_RETRY_MS << attempts - 1))
