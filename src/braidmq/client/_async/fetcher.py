"""Keeps a consumer's inbox filled: one connection, some partitions.

A server answers in order, so a fetch that waits holds up everything behind it. A connection with one partition waits at the
server for as long as the settings allow. One that several partitions share asks for all of them at once and lets only the
last question wait, briefly and for another partition each time.

A lost connection is replaced for as long as the consumer lives; the application hears of it when no server has answered for
the whole time-out. A server that knows only the documented opcodes is polled instead. In a cluster a fetcher belongs to a node;
partitions that it does not lead any more go to another fetcher (`fetching`), and so do all of them when it does not answer. Where
replicas are read from, the same happens when one refuses, and now and then it is looked at which one is right by now.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from braidmq import hot
from braidmq.base.errors import BraidError
from braidmq.client._backend import asyncio as backend
from braidmq.client.addresses import Address
from braidmq.client.faults import ServerError, lacks_opcode, passes
from braidmq.client.inbox import Chunk, Inbox, PartitionState
from braidmq.client.reading import read_items
from braidmq.client.settings import ClientSettings
from braidmq.client.tracing import log
from braidmq.hot.layout import read_header
from braidmq.wire.flymq import Fetch, FetchBatches, Fetched, FetchedBatches, Frame, Metadata, Op, Request, TopicMetadata

from .connection import Connection, decode, encode
from .dialer import Dialer
from .leaders import Leaders

SHARED_WAIT_MS_MAX: Final = 100
"""Longest wait of a fetch that others stand behind; it is how late a record of a quiet partition may be noticed."""
POLL_SECONDS_FIRST: Final = 0.002
POLL_SECONDS_MAX: Final = 0.1
"""Pause between questions to a server that cannot wait by itself; it doubles while nothing comes."""
IDLE_SECONDS: Final = 1.0
"""How often a fetcher without anything to do looks again, should it have missed a signal."""
SILENCE_SECONDS: Final = 2.0
"""A node of a cluster that is late by so much with an answer may have hung: another one is asked who leads."""
RECONSIDER_SECONDS: Final = 10.0
"""How often somebody who reads from replicas asks which of them are in sync."""
PASSING_SECONDS_MAX: Final = 0.5
"""Longest pause before a partition that nobody leads is asked for again."""


class Fetcher:
    def __init__(
        self,
        dialer: Dialer,
        leaders: Leaders,
        inbox: Inbox,
        parts: Iterable[PartitionState],
        settings: ClientSettings,
        arrived: backend.Signal,
        server: Address | None,
        move: Callable[[PartitionState, Fetcher], None],
    ) -> None:
        self.room = backend.Signal()
        """Set when something was taken from the inbox."""
        self.server = server
        """The only one to fetch from; None where any will do."""
        self.parts = list(parts)
        """Changed with the inbox's mutex held."""
        self._leaders = leaders
        self._move = move
        self._held: dict[PartitionState, tuple[int, float]] = {}
        """Partitions that nobody leads for the moment: how often that was so, and when they are asked for again."""
        self._nearest = settings.read_from == "nearest"
        self._reconsider_s = time.monotonic() + RECONSIDER_SECONDS
        self._dialer = dialer
        self._inbox = inbox
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
                parts = self._inbox.wanting(self.parts)
                idle = not self.parts
            parts, pause_s = self._due(parts)
            if not parts:
                if idle:
                    await self._disconnect()
                await self.room.wait(pause_s)
                continue
            if self._nearest and time.monotonic() >= self._reconsider_s:
                await self._reconsider()
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
                if self.server is not None and fault.code in ("CONNECTION_LOST", "UNREACHABLE", "TIMED_OUT"):
                    await self._find_leaders(self.server)
                    await self._stop.wait(min(backoff.next(), PASSING_SECONDS_MAX))
                    continue
                if fault.code != "CONNECTION_LOST":
                    self._report(None, 0, fault)
                await self._stop.wait(backoff.next())
        await self._disconnect()

    def _due(self, parts: list[PartitionState]) -> tuple[list[PartitionState], float]:
        """Those of `parts` that may be asked for now, and how long to wait where there are none."""
        if not self._held:
            return parts, IDLE_SECONDS
        now_s = time.monotonic()
        due = [part for part in parts if part not in self._held or self._held[part][1] <= now_s]
        return due, max(0.001, min([IDLE_SECONDS, *(until_s - now_s for _, until_s in self._held.values() if until_s > now_s)]))

    # --- the leaders of a cluster

    async def _find_leaders(self, server: Address) -> None:
        """This node is lost: let its partitions be fetched from whoever leads them now."""
        self._leaders.set_aside(server)
        self._leaders.forget(server)
        with self._inbox.mutex:
            parts = list(self.parts)
        await self._leaders.refresh({part.topic for part in parts}, self._settings.timeout_s, self._stop)
        for part in parts:
            self._move(part, self)

    async def _reconsider(self) -> None:
        """Look where these partitions are to be read by now."""
        with self._inbox.mutex:
            parts = list(self.parts)
        await self._leaders.refresh(
            {part.topic for part in parts}, self._settings.timeout_s, self._stop, age_s=RECONSIDER_SECONDS / 2
        )
        self._reconsider_s = time.monotonic() + RECONSIDER_SECONDS
        for part in parts:
            self._move(part, self)

    async def _follow(self, server: Address, part: PartitionState, fault: BraidError) -> None:
        """A node does not lead a partition, or not with enough others: find out who does, and ask again later."""
        if self._nearest and fault.code == "NOT_LEADER":
            self._leaders.set_aside(server, part.topic, part.partition)
        told = self._leaders.told(part.topic, part.partition, fault) if fault.code == "NOT_LEADER" else None
        times, _ = self._held.get(part, (0, 0.0))
        if told is None or times:
            await self._leaders.refresh([part.topic], self._settings.timeout_s, self._stop)
            pause_s = min(self._settings.backoff_first_s * 2**times, PASSING_SECONDS_MAX)
            self._held[part] = times + 1, time.monotonic() + pause_s
            log.info("%s/%d is asked for again: %s", part.topic, part.partition, fault)
        else:
            self._held[part] = 1, 0.0
        self._move(part, self)

    async def _check_still_leads(self, connection: Connection, parts: Iterable[PartitionState]) -> None:
        """A node that is silent may have hung: then nothing that it would say is worth waiting for."""
        parts = list(parts)
        await self._leaders.refresh({part.topic for part in parts}, self._settings.timeout_s, self._stop)
        for part in parts:
            leader = self._leaders.of(part.topic, part.partition)
            if leader is not None and leader.place != connection.server.place:
                raise BraidError("CONNECTION_LOST", server=connection.server, reason=f"it is silent, and {leader} leads")

    # --- from outside

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

    async def _dial(self) -> Connection:
        if self.server is None:
            return await self._dialer.dial(self._settings.timeout_s, self._stop)
        return await self._dialer.dial_to(self.server, self._settings.timeout_s)

    async def _round(self, parts: list[PartitionState]) -> None:
        """Ask for all of `parts` once."""
        connection = self._connection
        if connection is None:
            connection = self._connection = await self._dial()
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
                requests.append(FetchBatches(part.topic, part.partition, offset, max_bytes, 1, wait_ms, self._nearest))
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
        astray: list[tuple[PartitionState, BraidError]] = []
        for request, (part, generation, offset) in zip(requests, asked, strict=True):
            frame = await self._read(connection, timeout_s, asked)
            try:
                found |= self._take_answer(request, frame, part, generation, offset)
                if self._held:
                    self._held.pop(part, None)
            except BraidError as fault:
                if request.op == Op.FETCH_BATCHES and lacks_opcode(fault):
                    log.info("%s has no FETCH_BATCHES; using FETCH", connection.server)
                    self._dialer.without_batches.add(connection.server)
                elif fault.code == "OFFSET_OUT_OF_RANGE":
                    out_of_range.append((part, generation, offset))
                elif passes(fault):
                    astray.append((part, fault))
                elif fault.retriable:
                    log.warning("fetching %s/%d will be tried again: %s", part.topic, part.partition, fault)
                    await self._stop.wait(self._settings.backoff_first_s)
                else:
                    self._report(part, generation, fault)
        for part, generation, offset in out_of_range:
            await self._clamp(connection, part, generation, offset)
        for part, setback in astray:
            await self._follow(connection.server, part, setback)
        return found

    async def _read(self, connection: Connection, timeout_s: float, asked: list[tuple[PartitionState, int, int]]) -> Frame:
        """The next answer. A node of a cluster that is silent for long is looked after."""
        frame: Frame | None = None
        left_s = timeout_s
        if self._leaders.clustered:
            step_s = SILENCE_SECONDS + self._settings.fetch_wait_ms / 1000
            while frame is None and left_s > step_s:
                frame = await connection.read(step_s)
                left_s -= step_s
                if frame is None:
                    await self._check_still_leads(connection, [part for part, _, _ in asked])
        frame = frame or await connection.read(left_s)
        if frame is None:
            raise BraidError("TIMED_OUT", what=f"a fetch from {connection.server}", seconds=timeout_s)
        return frame

    def _wait_ms(self, sharing: int) -> int:
        if sharing == 1:
            return int(self._settings.fetch_wait_ms)
        return min(self._shared_wait_ms, int(self._settings.fetch_wait_ms))

    async def _rest(self, found: bool, batches: bool, sharing: int) -> None:
        """Adapt to how much comes: ask at once after a find, more patiently the longer nothing does."""
        if sharing > 1:
            with self._inbox.mutex:
                self.parts[:] = self.parts[1:] + self.parts[:1]
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

