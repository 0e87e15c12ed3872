"""Keeps a consumer's inbox filled: one connection, some partitions.

A server answers in order, so a fetch that waits holds up everything behind it. A connection with one partition waits at the
server for as long as the settings allow. One that several partitions share asks for all of them at once and lets only the
last question wait, briefly and for another partition each time.

A lost connection is replaced for as long as the consumer lives; the application hears of it when no server has answered for
the whole time-out. A server that knows only the documented opcodes is polled instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from braidmq import hot
from braidmq.base.errors import BraidError
from braidmq.client._backend import asyncio as backend
from braidmq.client.faults import ServerError, lacks_opcode
from braidmq.client.inbox import Chunk, Inbox, PartitionState
from braidmq.client.reading import read_items
from braidmq.client.settings import ClientSettings
from braidmq.client.tracing import log
from braidmq.hot.layout import read_header
from braidmq.wire.flymq import Fetch, FetchBatches, Fetched, FetchedBatches, Frame, Metadata, Op, Request, TopicMetadata

from .connection import Connection, decode, encode
from .dialer import Dialer

SHARED_WAIT_MS_MAX: Final = 100
"""Longest wait of a fetch that others stand behind; it is how late a record of a quiet partition may be noticed."""
POLL_SECONDS_FIRST: Final = 0.002
POLL_SECONDS_MAX: Final = 0.1
"""Pause between questions to a server that cannot wait by itself; it doubles while nothing comes."""
IDLE_SECONDS: Final = 1.0
"""How often a fetcher without anything to do looks again, should it have missed a signal."""


class Fetcher:
    def __init__(
        self, dialer: Dialer, inbox: Inbox, parts: Sequence[PartitionState], settings: ClientSettings, arrived: backend.Signal
    ) -> None:
        self.room = backend.Signal()
        """Set when something was taken from the inbox."""
        self._dialer = dialer
        self._inbox = inbox
        self._parts = list(parts)
        self._settings = settings
        self._arrived = arrived
        self._stop = backend.Signal()
        self._connection: Connection | None = None
        self._asking = False
        self._interrupted = False
        self._shared_wait_ms = 1
        self._pause_s = POLL_SECONDS_FIRST

    async def run(self) -> None:
        backoff = self._dialer.backoff()
        while not self._stop.is_set():
            self.room.clear()
            with self._inbox.mutex:
                parts = self._inbox.wanting(self._parts)
            if not parts:
                await self.room.wait(IDLE_SECONDS)
                continue
            try:
                await self._round(parts)
                backoff.reset()
            except BraidError as fault:
                await self._disconnect()
                if self._stop.is_set():
                    break
                if self._interrupted:
                    self._interrupted = False
                    continue
                log.debug("fetching failed: %s", fault)
                if fault.code != "CONNECTION_LOST":
                    self._report(None, 0, fault)
                await self._stop.wait(backoff.next())
        await self._disconnect()

    def interrupt(self) -> None:
        """A position changed: an answer that is waited for at the server is not wanted any more, and a new connection is sooner."""
        self.room.set()
        connection = self._connection
        if self._asking and connection is not None:
            self._interrupted = True
            connection.abort()

    def stop(self) -> None:
        """End soon; a waiting fetch is cut off."""
        self._stop.set()
        self.room.set()
        connection = self._connection
        if connection is not None:
            connection.abort()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _round(self, parts: list[PartitionState]) -> None:
        """Ask for all of `parts` once."""
        connection = self._connection
        if connection is None:
            connection = self._connection = await self._dialer.dial(self._settings.timeout_s, self._stop)
            if self._stop.is_set():
                return
        batches = connection.server not in self._dialer.without_batches
        with self._inbox.mutex:
            asked = [(part, part.generation, part.fetch_offset) for part in parts]
            max_bytes = self._inbox.fetch_bytes
        requests: list[Request] = []
        wait_ms = 0
        for number, (part, _, offset) in enumerate(asked, 1):
            if batches:
                wait_ms = self._wait_ms(len(asked)) if number == len(asked) else 0
                requests.append(FetchBatches(part.topic, part.partition, offset, max_bytes, 1, wait_ms))
            else:
                requests.append(Fetch(part.topic, part.partition, offset, self._settings.max_poll_records))
        timeout_s = self._settings.timeout_s + wait_ms / 1000
        self._asking = True
        try:
            found = await self._exchange(connection, requests, asked, timeout_s)
        finally:
            self._asking = False
        await self._rest(found, batches, len(asked))

    async def _exchange(
        self,
        connection: Connection,
        requests: list[Request],
        asked: list[tuple[PartitionState, int, int]],
        timeout_s: float,
    ) -> bool:
        """Send the questions, take the answers; whether anything came."""
        await connection.send([encode(request) for request in requests], timeout_s)
        found = False
        out_of_range: list[tuple[PartitionState, int, int]] = []
        for request, (part, generation, offset) in zip(requests, asked, strict=True):
            frame = await connection.read(timeout_s)
            if frame is None:
                raise BraidError("TIMED_OUT", what=f"a fetch from {connection.server}", seconds=timeout_s)
            try:
                found |= self._take_answer(request, frame, part, generation, offset)
            except BraidError as fault:
                if request.op == Op.FETCH_BATCHES and lacks_opcode(fault):
                    log.info("%s has no FETCH_BATCHES; using FETCH", connection.server)
                    self._dialer.without_batches.add(connection.server)
                elif fault.code == "OFFSET_OUT_OF_RANGE":
                    out_of_range.append((part, generation, offset))
                elif fault.retriable:
                    log.warning("fetching %s/%d will be tried again: %s", part.topic, part.partition, fault)
                    await self._stop.wait(self._settings.backoff_first_s)
                else:
                    self._report(part, generation, fault)
        for part, generation, offset in out_of_range:
            await self._clamp(connection, part, generation, offset)
        return found

    def _wait_ms(self, sharing: int) -> int:
        if sharing == 1:
            return int(self._settings.fetch_wait_ms)
        return min(self._shared_wait_ms, int(self._settings.fetch_wait_ms))

    async def _rest(self, found: bool, batches: bool, sharing: int) -> None:
        """Adapt to how much comes: ask at once after a find, more patiently the longer nothing does."""
        if sharing > 1:
            self._parts.append(self._parts.pop(0))
        if found:
            self._shared_wait_ms = 1
            self._pause_s = POLL_SECONDS_FIRST
        elif batches:
            self._shared_wait_ms = min(2 * self._shared_wait_ms, SHARED_WAIT_MS_MAX)
        else:
            await self._stop.wait(self._pause_s)
            self._pause_s = min(2 * self._pause_s, POLL_SECONDS_MAX)

    def _take_answer(self, request: Request, frame: Frame, part: PartitionState, generation: int, offset: int) -> bool:
        """Put what came into the inbox; whether there was anything. Raises what the server, or the data, is at fault for."""
        answer = decode(request.op, frame)
        if isinstance(answer, FetchedBatches):
            data = answer.batches
            begin, _, next_offset, status = hot.span_batches(data, 0, len(data), offset, len(data))
            if status == hot.DAMAGED:
                raise BraidError("INVALID_BATCH", reason=f"the answer to a fetch of {part.topic}/{part.partition} at {offset}")
            chunk = Chunk(part, generation, offset, next_offset, data=data)
            first = offset if next_offset == offset else read_header(data, begin).base_offset
        elif isinstance(answer, Fetched):
            next_offset = answer.next_offset
            records = read_items(answer.items, part.make)
            chunk = Chunk(part, generation, offset, next_offset, records=records, size_bytes=len(frame.payload))
            first = answer.items[0].offset if answer.items else offset
        else:
            raise BraidError("UNEXPECTED_REPLY", reason=f"a fetch with {type(answer).__name__}")
        if next_offset == offset:
            return False
        if first > offset:
            log.warning("%s/%d: offsets %d to %d are gone", part.topic, part.partition, offset, first - 1)
        with self._inbox.mutex:
            self._inbox.deliver(chunk)
        self._arrived.set()
        return True

    async def _clamp(self, connection: Connection, part: PartitionState, generation: int, offset: int) -> None:
        """The offset is not there: retention removed it, or the topic was made anew. Go on at the nearest end."""
        try:
            frames = await connection.call([encode(Metadata(part.topic))], self._settings.timeout_s)
            answer = decode(Op.METADATA, frames[0])
        except ServerError as fault:
            self._report(part, generation, fault)
            return
        if not isinstance(answer, TopicMetadata) or part.partition >= len(answer.partitions):
            self._report(part, generation, BraidError("PARTITION_NOT_FOUND", partition=part.partition))
            return
        kept = answer.partitions[part.partition]
        nearest = min(max(offset, kept.oldest), kept.newest)
        log.warning("%s/%d has no offset %d; going on at %d", part.topic, part.partition, offset, nearest)
        with self._inbox.mutex:
            if part.generation == generation:
                self._inbox.seek(part, nearest)

    def _report(self, part: PartitionState | None, generation: int, fault: BraidError) -> None:
        with self._inbox.mutex:
            self._inbox.fail(part, generation, fault)
        self._arrived.set()

