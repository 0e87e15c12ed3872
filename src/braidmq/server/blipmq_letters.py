"""Dead letters of BlipMQ subscribers: what nobody could use becomes a letter of its topic, which BlipMQ reads as `$DLQ/<topic>`.

A letter has payload, message_id and metadata of the message, and says why it is one:

| reason | code | when |
|---|---|---|
| `max_attempts` | 7 | the last attempt was not acknowledged |
| `rejected` | that of the Ack | a subscriber refused it |
| `expired` | 9 | its time to live was over before somebody got it |
| `overflow` | 4 | too much was waiting for a subscriber that is away |

Letters are durable before what they came from counts as done. A crash in between makes a letter twice; none is lost. A dead letter
that nobody can use is let go: there are no letters of letters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from braidmq import hot
from braidmq.base.errors import BraidError
from braidmq.broker.push import Feed, PushRecord
from braidmq.broker.push.inflight import Place
from braidmq.broker.staging import Staged
from braidmq.broker.topics import Topic
from braidmq.log.attrs import decode_attrs, encode_attrs
from braidmq.server.blipmq_records import describe, entries, refusal_entry

if TYPE_CHECKING:
    from braidmq.broker.push.distant_log import Source
    from braidmq.server.blipmq_queue import Queue
    from braidmq.server.blipmq_service import BlipMQService

_TEXTS: Final = {
    "max_attempts": "not acknowledged",
    "rejected": "refused by a subscriber",
    "expired": "time to live is over",
    "overflow": "too much was waiting for a subscriber that is away",
}
_STORED: Final = {"max_attempts": "max_retries_exceeded", "rejected": "processing_error"}
"""What all protocols call the reasons."""
_READ_BYTES: Final = 256 * 1024


class Letters:
    def __init__(self, service: BlipMQService) -> None:
        self._service = service
        self._broker = service.broker
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()
        """Letters come in the order in which they were asked for."""

    def bury(self, queue: Queue, places: Sequence[Place], reason: str, code: int) -> None:
        """Make letters of deliveries, beside everything else; the queue is told."""
        task = asyncio.get_running_loop().create_task(self._bury(queue, places, reason, code))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bury(self, queue: Queue, places: Sequence[Place], reason: str, code: int) -> None:
        by_feed: dict[Feed, list[Place]] = {}
        for place in places:
            by_feed.setdefault(place.feed, []).append(place)
        for feed, own in by_feed.items():
            attempts = {place.offset: place.flight.attempt for place in own}
            try:
                await self.make(feed, sorted(attempts), reason, code, attempts)
            except (BraidError, OSError) as fault:
                self._service.logger.error("dead letters of %s: %s", feed.topic.name, fault)
                queue.not_buried(own)
                continue
            for place in own:
                queue.buried(feed, place.offset)
        queue.settled_some()

    async def bury_run(self, feed: Feed, first: int, stop: int, wanted: bytes | None) -> bool:
        """Make letters of what waited for too long in a queue; False when that failed."""
        offsets = [offset for offset in range(first, stop) if wanted is None or wanted[offset - first]]
        try:
            await self.make(feed, offsets, "overflow", 4, {})
        except (BraidError, OSError) as fault:
            self._service.logger.error("dead letters of %s: %s", feed.topic.name, fault)
            return False
        return True

    async def make(self, feed: Feed, offsets: Sequence[int], reason: str, code: int, attempts: dict[int, int]) -> None:
        """Letters of records at some offsets, in their order; durable when this returns."""
        letters, origin = self._broker.dead_letters, feed.topic.name
        if self._service.holds_letters(feed.topic) or self._broker.topics.by_id(feed.topic.id) is None:
            return
        async with self._writing:
            topic = await letters.topic_for(origin)
            # QoS 0 has no letters.
            records = [record for record in await self._records(feed.log, offsets) if describe(record, 0).qos]
            written = [self._write(feed, record, topic, reason, code, attempts.get(record.offset, 0)) for record in records]
        if written:
            await asyncio.gather(*written)

    def _write(self, feed: Feed, record: PushRecord, topic: Topic, reason: str, code: int, tried: int) -> asyncio.Future[None]:
        """Take one letter into this turn's commit; what to wait for."""
        letter = self._broker.dead_letters.letter_of(
            Staged(record.key, record.value, encode_attrs(entries(record.attrs))), feed.topic.name, feed.partition, record.offset,
            _STORED.get(reason, reason), _TEXTS[reason], tried,
        )  # fmt: skip
        block = encode_attrs([refusal_entry(code, record.timestamp), *decode_attrs(letter.attrs)])
        staged = self._broker.stage(topic, -1, record.key or b"", record.value, attrs=block)
        return staged.durability()

    async def _records(self, log: Source, offsets: Sequence[int]) -> list[PushRecord]:
        """Records as they lie in the log, expired or not, as far as they are still there."""
        found: list[PushRecord] = []
        wanted = set(offsets)
        position = offsets[0] if offsets else 0
        while offsets and position <= offsets[-1]:
            if position < log.log_start:
                position = log.log_start
                continue
            read = await self._broker.read_whole(log, position, _READ_BYTES, raw=True)
            if read.next_offset <= position:
                break
            for data in read.slices:
                records, _ = hot.decode_records(data, position, offsets[-1] + 1 - position, PushRecord)
                found += [record for record in records if record.offset in wanted]
            position = next((offset for offset in offsets if offset >= read.next_offset), offsets[-1] + 1)
        return found

    async def stop(self, also: Iterable[asyncio.Task[None]] = ()) -> None:
        """Wait for the letters that are being made."""
        await asyncio.gather(*self._tasks, *also, return_exceptions=True)
