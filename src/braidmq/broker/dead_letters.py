"""Dead letters: records that nobody could use, kept with their story until somebody looks.

A letter of topic `x` is a record of topic `x.dlq`: key and value as they were, and in its attributes where it came from, why
it is there, how often it was tried and when. It is an ordinary topic, so anything can read it; what is here adds a list,
replay, discard and purge. A letter that was replayed, discarded or purged is not listed any more.

Letters come from

* `fail`: a consumer could not process a record. It is told when to try again, 1 s later, then 2 s, 4 s ... up to a minute; at
  the third failure the record becomes a letter. Counts survive a restart.
* `dead_letter`: a record that was refused on its way in, such as one that does not fit its schema.
* expiry, for topics with the property `dlq_expired` (`expired_letters.py`), and delayed messages that cannot be delivered.

In a cluster letters are read from the leaders of the topic that they lie in (`letter_reads.py`).

Replay sends letters to their origin, each once, whatever happens meanwhile: what is on its way in or out is a piece of work
(`work.py`).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.letter_reads import LetterReads
from braidmq.broker.letter_table import BURIED, Failure
from braidmq.broker.peers import PartitionReading
from braidmq.broker.record_filter import compile_filter
from braidmq.broker.staging import Staged, read_records
from braidmq.broker.topics import Topic
from braidmq.log.attrs import (
    DEAD_LETTER_TAGS,
    TAG_ERROR,
    TAG_FAILURES,
    TAG_ORIGIN_PLACE,
    TAG_ORIGIN_TOPIC,
    TAG_REASON,
    decode_attrs,
    encode_attrs,
    without,
)
from braidmq.log.letter_id import letter_id, place_in
from braidmq.log.partition import PartitionLog

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

REASONS: Final = ("max_retries_exceeded", "validation_failed", "processing_error", "expired", "manual")
LIST_DEFAULT: Final = 10
_PLACE = struct.Struct("<iq")
_FAILURES = struct.Struct("<Iqq")
_READ_BYTES: Final = 1 * limits.MIB
_LISTED_BYTES: Final = 1024
"""What a letter in a list takes besides its value and its error: the id with a topic's name, and its place in memory."""
_ERROR_BYTES_MAX: Final = limits.ERROR_TEXT_BYTES_MAX
_RETRY_MS_MAX: Final = 60_000


@dataclass(frozen=True, slots=True)
class Letter:
    id: str
    partition: int
    """Of the dead-letter topic, as `offset` is."""
    offset: int
    key: bytes | None
    value: bytes
    attrs: bytes
    """What the record had besides, without what makes it a letter."""
    origin_topic: str
    origin_partition: int
    origin_offset: int
    reason: str
    error: str
    attempts: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Failed:
    """What became of a record that could not be processed."""

    attempts: int
    retry_at_ms: int
    """When to try again; 0 for a dead letter."""

    @property
    def dead_lettered(self) -> bool:
        return self.retry_at_ms == 0


class DeadLetters:
    def __init__(self, broker: Broker, suffix: str, attempts_max: int, retry_ms: int) -> None:
        self._broker = broker
        self._suffix = suffix
        self._attempts_max = attempts_max
        self._retry_ms = retry_ms
        self._replaying: dict[str, asyncio.Lock] = {}
        self.reads = LetterReads(broker)

    def origin_of(self, topic: str) -> str:
        """The topic whose letters are meant, also by the name of its dead-letter topic."""
        return topic.removesuffix(self._suffix) or topic

    def topic_name(self, topic: str) -> str:
        """Where letters of a topic go; letters of letters stay where they are."""
        return self.origin_of(topic) + self._suffix

    async def topic_for(self, origin: str) -> Topic:
        """The topic for letters of `origin`, made where it is missing."""
        name = self.topic_name(origin)
        return self._broker.topics.get(name) or await self._broker.create_topic(name, 1, {"ttl_ms": "0"})

    # --- letters come in

    def letter_of(
        self, record: Staged, topic: str, partition: int, offset: int, reason: str, error: str, attempts: int = 1,
        first_ms: int | None = None,
    ) -> Staged:
        """A record as a letter."""
        now_ms = self._broker.clock.now_ms()
        entries = [
            (TAG_ORIGIN_TOPIC, topic.encode()),
            (TAG_ORIGIN_PLACE, _PLACE.pack(partition, offset)),
            (TAG_REASON, reason.encode()),
            (TAG_ERROR, error.encode("utf-8", "replace")[:_ERROR_BYTES_MAX]),
            (TAG_FAILURES, _FAILURES.pack(attempts, now_ms if first_ms is None else first_ms, now_ms)),
        ]
        kept = decode_attrs(without(record.attrs, DEAD_LETTER_TAGS))
        return record._replace(attrs=encode_attrs([*entries, *kept]))

    async def dead_letter(
        self, topic: str, key: bytes, value: bytes, reason: str, error: str, *, attrs: bytes = b"", partition: int = -1
    ) -> tuple[int, int]:
        """Keep a record that never got into its topic; returns partition and offset of the letter once it is durable.

        `partition` is where the record should have gone, negative where nobody said: a replay sends it there.
        """
        letters = await self.topic_for(topic)
        letter = self.letter_of(Staged(key or None, value, attrs), topic, partition, -1, reason, error)
        stored_in, offset, _ = await self._broker.append(letters, -1, key, value, attrs=letter.attrs)
        return stored_in, offset

    async def send(self, origin: str, letters: list[Staged], command: Callable[[int, list[list[Any]]], list[Any]]) -> bool:
        """Make letters, once: `command` is the decision that uses up what they came from; False when it came too late."""
        broker, work = self._broker, self._broker.work
        topic = await self.topic_for(origin)
        draft = await work.draft()
        try:
            targets: dict[int, list[int]] = {}
            route = broker.route(topic)
            for letter in letters:
                ref = draft.add(letter.key, letter.value, letter.attrs)
                targets.setdefault(broker.choose_partition(route, letter.key or b"", -1), []).append(ref)
            await draft.written()
            decided = await work.decide(command(draft.number, [[topic.id, partition, refs] for partition, refs in targets.items()]))
        except BaseException:
            work.let_go(draft.number)
            raise
        if decided is None:
            work.let_go(draft.number)
            return False
        await work.do(decided)
        return True

    # --- a consumer could not process a record

    async def fail(self, topic: str, partition: int, offset: int, group: str, reason: str, error: str, token: int = 0) -> Failed:
        """Count a failure: when to try again, or, at the last attempt, that the record is a dead letter now.

        With the `token` of the last one it is the same failure, reported again: it is answered, and not counted.
        """
        broker = self._broker
        if reason not in REASONS:
            raise BraidError("INVALID_ARGUMENT", reason=f"reason {reason!r} is not one of {', '.join(REASONS)}")
        origin = broker.topic(topic)
        if not 0 <= partition < origin.partitions:
            raise BraidError("PARTITION_NOT_FOUND", partition=partition)
        record = await self._record(origin, partition, offset)
        topic_id = origin.id
        command = ["fail", topic_id, group, partition, offset, broker.clock.now_ms(), token]
        failure: Failure = await broker.work.journal.submit(command)
        if failure.attempts == BURIED:
            return Failed(self._attempts_max, 0)
        if failure.attempts < self._attempts_max:
            delay_ms = min(self._retry_ms << failure.attempts - 1, _RETRY_MS_MAX)
            return Failed(failure.attempts, failure.last_ms + delay_ms)
        letter = self.letter_of(record, topic, partition, offset, reason, error, failure.attempts, failure.first_ms)
        await self.send(topic, [letter], lambda number, targets: ["bury", number, topic_id, group, partition, offset, targets])
        return Failed(failure.attempts, 0)

    async def _record(self, topic: Topic, partition: int, offset: int) -> Staged:
        """A record as it lies in its topic, expired or not; its leader is asked where that is another node."""
        peers = self._broker.peers
        place: PartitionLog | PartitionReading
        if peers is None or peers.leads(topic.id, partition):
            place = self._broker.log_of(topic, partition)
        else:
            place = await peers.read(topic, partition, offset, 1, 0.0, raw=True)
        if not place.log_start <= offset < place.high_watermark:
            raise BraidError(
                "OFFSET_OUT_OF_RANGE", offset=offset, topic=topic.name, partition=partition, oldest=place.log_start,
                newest=place.high_watermark,
            )
        if isinstance(place, PartitionReading):
            found: list[tuple[int, Staged]] = hot.decode_records(bytes(place.batches), offset, 1, _as_staged)[0]
            return found[0][1]
        return (await self.records(place, [offset]))[offset]

    async def records(self, log: PartitionLog, offsets: list[int]) -> dict[int, Staged]:
        """Records as they lie in their topic, expired or not."""
        found: dict[int, Staged] = {}

        def make(offset: int, key: bytes | None, value: bytes, attrs: bytes) -> None:
            found[offset] = Staged(key, value, attrs)

        await read_records(log, offsets, make, self._broker.warm)
        return found

    # --- looking at letters

    async def letters(self, origin: str, most: int = 0, *, matching: str = "", start: str = "") -> list[Letter]:
        """Letters of a topic that were neither replayed nor purged, the oldest of each partition first.

        With the id `start` they begin with that letter, or with the next one where it is gone. There are fewer than `most` also
        where more would not fit an answer: ask again from the last one on.
        """
        place = place_in(start) if start else (0, 0)
        if place is None:
            raise BraidError("MESSAGE_NOT_FOUND", id=start)
        found: list[Letter] = []
        size = 0
        async for letter in self._all(origin, matching, place):
            size += _LISTED_BYTES + len(letter.value) + len(letter.error)
            if found and size > limits.FETCH_BYTES_TARGET:
                break
            found.append(letter)
            if len(found) >= (most if most > 0 else LIST_DEFAULT):
                break
        return found

    async def _all(self, origin: str, matching: str = "", start: tuple[int, int] = (0, 0)) -> AsyncIterator[Letter]:
        """Every letter there is now that matches a filter, from a partition and offset on; an empty filter lets all pass."""
        choose = _choosing(matching)
        topic = self._broker.topics.get(self.topic_name(origin))
        if topic is None:
            return
        table = self._broker.work.table.letters
        # What comes later is not of this list: what fails again while letters are sent back is not sent round and round.
        partitions = range(start[0], topic.partitions)
        for partition, (log_start, end) in zip(partitions, await self.reads.bounds(topic, partitions), strict=True):
            first = max(log_start, start[1] if partition == start[0] else 0)
            offset = table.first_from(topic.id, partition, first)
            while offset < end:
                data, begins = await self.reads.read(topic, partition, offset, _READ_BYTES)
                records, following = hot.decode_records(data, offset, limits.BATCH_RECORDS_MAX, _as_staged)
                letters = [_letter(self.origin_of(origin), partition, at, record) for at, record in records if at < end]
                if matching:
                    # A filter comes from a stranger, and a letter may be large: nobody else waits for it.
                    letters = await self._broker.compute(partial(choose, letters))
                for letter in letters:
                    if not table.is_gone(topic.id, partition, letter.offset):
                        yield letter
                offset = table.first_from(topic.id, partition, max(following, begins))

    async def _one(self, origin: str, partition: int, offset: int) -> Letter | None:
        topic = self._broker.topics.get(self.topic_name(origin))
        if topic is None or not 0 <= partition < topic.partitions:
            return None
        if self._broker.work.table.letters.is_gone(topic.id, partition, offset):
            return None
        ((log_start, end),) = await self.reads.bounds(topic, (partition,))
        if not log_start <= offset < end:
            return None
        data, _ = await self.reads.read(topic, partition, offset, 1)
        records, _ = hot.decode_records(data, offset, 1, _as_staged)
        there = records and records[0][0] == offset
        return _letter(self.origin_of(origin), partition, offset, records[0][1]) if there else None

    # --- replay

    async def replay_id(self, origin: str, name: str, value: bytes | None = None) -> None:
        """Send the letter with this id back to its origin, with another value where one is given; MESSAGE_NOT_FOUND when there is
        none."""
        place = place_in(name)
        async with self._lock(origin):
            letter = await self._one(origin, *place) if place is not None else None
            if letter is not None and value is not None:
                letter = replace(letter, value=value)
            if letter is None or letter.id != name or not await self._replay(origin, [letter], alone=True):
                raise BraidError("MESSAGE_NOT_FOUND", id=name)

    async def replay_offset(self, origin: str, offset: int, partition: int = 0) -> None:
        """Send the letter at an offset of the dead-letter topic back to its origin."""
        async with self._lock(origin):
            letter = await self._one(origin, partition, offset)
            if letter is None or not await self._replay(origin, [letter], alone=True):
                raise BraidError("MESSAGE_NOT_FOUND", id=f"offset {offset}")

    async def replay_matching(self, origin: str, matching: str = "", most: int = 0) -> int:
        """Send letters that match, or all of them, back to their origin; returns how many. `most` of 0 is no limit."""
        count = 0
        async with self._lock(origin):
            chosen: list[Letter] = []
            size = 0
            try:
                async for letter in self._all(origin, matching):
                    chosen.append(letter)
                    size += len(letter.value)
                    full = most and count + len(chosen) >= most
                    if full or len(chosen) >= limits.DELIVERY_RECORDS_MAX or size >= limits.DELIVERY_BYTES_TARGET:
                        count += await self._replay(origin, chosen)
                        chosen, size = [], 0
                    if full:
                        break
                if chosen:
                    count += await self._replay(origin, chosen)
            except BraidError as fault:
                if not count or fault.code != "NOT_LEADER":
                    raise
                # Whoever hears that may take it that nothing was done.
                reason = f"{count} letters were sent back before: {fault.text}"
                raise BraidError("NODE_UNREACHABLE", node=f"that leads {self.topic_name(origin)}", reason=reason) from fault
        return count

    async def _replay(self, origin: str, letters: list[Letter], *, alone: bool = False) -> int:
        """Send letters back to where they came from, once; returns how many.

        That is the topic whose dead letters they are. What a letter says of itself may have been written by anyone. A
        letter that still does not fit its topic's schema stays; one that was asked for `alone` is refused with the reason.
        """
        broker, work = self._broker, self._broker.work
        topic = await broker.auto_create(self.origin_of(origin))
        letters = [letter for letter in letters if await self._fits(topic, letter, alone)]
        if not letters:
            return 0
        dead = broker.topic(self.topic_name(origin))
        draft = await work.draft()
        rows = []
        try:
            for letter in letters:
                asked = letter.origin_partition if letter.origin_partition < topic.partitions else -1
                partition = broker.choose_partition(broker.route(topic), letter.key or b"", asked)
                ref = draft.add(letter.key, letter.value, letter.attrs)
                rows.append([letter.partition, letter.offset, topic.id, partition, ref])
            await draft.written()
            decided = await work.decide(["replay", draft.number, dead.id, rows])
        except BaseException:
            work.let_go(draft.number)
            raise
        if decided is None:
            work.let_go(draft.number)
            return 0
        await work.do(decided)
        return sum(len(target.refs) for target in decided.targets)

    async def _fits(self, topic: Topic, letter: Letter, alone: bool) -> bool:
        try:
            fault = await self._broker.admission.fault(topic, letter.value)
        except BraidError as refused:
            if alone or refused.code != "SCHEMA_VALIDATION_FAILED":
                raise
            return False
        if fault is not None and alone:
            raise BraidError("SCHEMA_VALIDATION_FAILED", errors=fault)
        return fault is None

    def _lock(self, origin: str) -> asyncio.Lock:
        return self._replaying.setdefault(self.origin_of(origin), asyncio.Lock())

    # --- discard and purge

    async def discard(self, origin: str, name: str) -> None:
        """Let the letter with this id go, for good; MESSAGE_NOT_FOUND when there is none."""
        place = place_in(name)
        letter = await self._one(origin, *place) if place is not None else None
        topic = self._broker.topics.get(self.topic_name(origin))
        if letter is None or letter.id != name or topic is None:
            raise BraidError("MESSAGE_NOT_FOUND", id=name)
        # Whoever sends it back at the same time is first or second in the journal, and the second one finds it gone.
        if not await self._broker.submit("work", ["discard", topic.id, letter.partition, letter.offset]):
            raise BraidError("MESSAGE_NOT_FOUND", id=name)

    async def purge(self, origin: str) -> int:
        """Let every letter there is now go; returns how many offsets that were. What they took on disk is given back."""
        topic = self._broker.topics.get(self.topic_name(origin))
        count = 0
        if topic is None:
            return count
        table = self._broker.work.table.letters
        partitions = range(topic.partitions)
        for partition, (log_start, end) in zip(partitions, await self.reads.bounds(topic, partitions), strict=True):
            first = table.first_from(topic.id, partition, log_start)
            if first >= end:
                continue
            await self._broker.submit("work", ["purge", topic.id, partition, end])
            count += end - first
            await self.reads.let_go(topic, partition, end)
        return count


def _as_staged(offset: int, _timestamp: int, key: bytes | None, value: bytes, attrs: bytes) -> tuple[int, Staged]:
    return offset, Staged(key, value, attrs)


def _choosing(text: str) -> Callable[[list[Letter]], list[Letter]]:
    """What keeps the letters that a filter of FETCH matches, in their key and value, or in what is said about them."""
    matches = compile_filter(text)

    def fits(letter: Letter) -> bool:
        return matches(letter.key, letter.value) or matches(letter.reason.encode(), letter.error.encode())

    return lambda letters: [letter for letter in letters if fits(letter)]


def _letter(origin: str, partition: int, offset: int, record: Staged) -> Letter:
    """A record of a dead-letter topic as a letter; one that somebody wrote there by hand is a letter too."""
    found = dict(decode_attrs(record.attrs))
    origin_partition, origin_offset = _unpacked(_PLACE, found.get(TAG_ORIGIN_PLACE), (-1, -1))
    attempts, first_ms, last_ms = _unpacked(_FAILURES, found.get(TAG_FAILURES), (0, 0, 0))
    topic, reason, error = (
        found.get(tag, missing).decode("utf-8", "replace")
        for tag, missing in ((TAG_ORIGIN_TOPIC, origin.encode()), (TAG_REASON, b"manual"), (TAG_ERROR, b""))
    )
    attrs = without(record.attrs, DEAD_LETTER_TAGS)
    return Letter(
        letter_id(origin, partition, offset, last_ms), partition, offset, record.key, record.value, attrs, topic, origin_partition,
        origin_offset, reason, error, attempts, first_ms, last_ms,
    )


def _unpacked(form: struct.Struct, data: bytes | None, missing: tuple[int, ...]) -> tuple[int, ...]:
    return form.unpack(data) if data is not None and len(data) == form.size else missing
