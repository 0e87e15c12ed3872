"""The consumer: records out of one or more topics, in order within each partition, from memory as long as there are any.

Fetchers (`fetcher`) fill an inbox in the background; `poll` and iteration take from it. A step of the iteration is a step
through a list: no task, no lock and no wait a record.

Positions and commits. A record counts as processed when the application comes back for the next one (or polls again), so
the automatic commit never runs ahead of the application: after a crash records may come twice, never not at all. `commit()`
commits everything handed out, the record in hand included: call it after processing. `close` does the same, unless an
exception is on its way through the `with` block: then the record in hand counts as not processed.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Final, Literal

from braidmq.base.errors import BraidError
from braidmq.client._backend import asyncio as backend
from braidmq.client.cipher import ValueCipher
from braidmq.client.inbox import Chunk, Inbox, PartitionState
from braidmq.client.models import Record, TopicPartition
from braidmq.client.reading import record_maker
from braidmq.client.settings import ClientSettings
from braidmq.client.tracing import log
from braidmq.wire import flymq

from .connection import Connection, answers, encode
from .dialer import Dialer
from .fetcher import Fetcher
from .pool import MOMENT_S

Start = Literal["earliest", "latest", "committed"]
_MODES: Final[dict[str, str]] = {"earliest": "earliest", "latest": "latest", "committed": "commit"}
_NOTHING: Final[list[Record]] = []
JOIN_SECONDS_MAX: Final = 5.0
"""How long `close` waits for the background tasks, which end at once unless something is wrong."""


class Consumer:
    """Reads topics. Made by `Client.consumer`; use it as a context manager, or `close` it. Not for several tasks at once."""

    def __init__(
        self,
        dialer: Dialer,
        settings: ClientSettings,
        cipher: ValueCipher | None,
        topics: Mapping[str, Sequence[int] | None],
        group: str,
        start: Start,
    ) -> None:
        if start not in _MODES:
            raise BraidError("INVALID_ARGUMENT", reason=f"start is earliest, latest or committed, not {start}")
        if start == "committed" and not group:
            raise BraidError("INVALID_ARGUMENT", reason="start=committed needs a group")
        if not topics:
            raise BraidError("INVALID_ARGUMENT", reason="a consumer needs at least one topic")
        self.closed = False
        self.group = group
        self._dialer = dialer
        self._settings = settings
        self._cipher = cipher
        self._topics = topics
        self._mode = _MODES[start]
        self._inbox = Inbox(settings.prefetch_bytes, settings.fetch_bytes)
        self._arrived = backend.Signal()
        self._stop = backend.Signal()
        self._starting = backend.Lock()
        self._started = False
        self._control: Connection | None = None
        self._control_lock = backend.Lock()
        self._fetchers: list[Fetcher] = []
        self._fetcher_of: dict[PartitionState, Fetcher] = {}
        self._tasks: list[backend.Task] = []
        self._chunk: Chunk | None = None
        self._records = iter(_NOTHING)
        self._current: Record | None = None
        """The record in hand, while iterating."""
        self._handed: dict[TopicPartition, int] = {}
        """Where the records of the last `poll` begin, which count as processed with the next one."""

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._end(in_hand=kind is None)

    async def start(self) -> None:
        """Find the partitions and positions, and begin to fetch. Reading does it by itself."""
        async with self._starting:
            if self._started:
                return
            if self.closed:
                raise BraidError("CLIENT_CLOSED", what="consumer")
            assigned = await self._assignment()
            wanted = [flymq.Subscribe(part.topic, self.group, part.partition, self._mode) for part in assigned]
            for part, answer in zip(assigned, await self._ask(wanted), strict=True):
                assert isinstance(answer, flymq.Offset)
                state = PartitionState(
                    part.topic, part.partition, answer.offset, record_maker(part.topic, part.partition, self._cipher)
                )
                if self._mode == "commit":
                    state.committed = answer.offset
                with self._inbox.mutex:
                    self._inbox.add(state)
            self._start_fetching()
            self._started = True

    async def _assignment(self) -> list[TopicPartition]:
        """Which partitions this consumer reads: all of them, as the only member, or those it was told."""
        questions = [flymq.Metadata(topic) for topic in self._topics]
        assigned: list[TopicPartition] = []
        for question, answer in zip(questions, await self._ask(questions), strict=True):
            assert isinstance(answer, flymq.TopicMetadata)
            chosen = self._topics[question.topic]
            for partition in range(len(answer.partitions)) if chosen is None else chosen:
                if not 0 <= partition < len(answer.partitions):
                    raise BraidError("PARTITION_NOT_FOUND", partition=partition)
                assigned.append(TopicPartition(question.topic, partition))
        return assigned

    def _start_fetching(self) -> None:
        states = list(self._inbox.parts.values())
        count = min(len(states), self._settings.fetch_connections)
        for number in range(count):
            fetcher = Fetcher(self._dialer, self._inbox, states[number::count], self._settings, self._arrived)
            for state in states[number::count]:
                self._fetcher_of[state] = fetcher
            self._fetchers.append(fetcher)
            self._tasks.append(backend.spawn(fetcher.run, f"braidmq fetcher {number}"))
        if self.group and self._settings.auto_commit:
            self._tasks.append(backend.spawn(self._commit_regularly, "braidmq auto-commit"))

    # --- reading

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Records, for ever. Leave the loop with `break`; a later loop goes on after the last record."""
        await self.start()
        self._handed.clear()
        while True:
            for record in self._records:
                self._current = record
                yield record
            self._finish_piece()
            await self._next_piece(None)

    async def poll(self, max_records: int | None = None, timeout_s: float = 1.0) -> list[Record]:
        """Up to `max_records` records; it waits for the first one, and returns an empty list when none comes in time."""
        await self.start()
        limit = self._settings.max_poll_records if max_records is None else max_records
        deadline_s = time.monotonic() + timeout_s
        self._handed.clear()
        found: list[Record] = []
        while len(found) < limit:
            taken = list(islice(self._records, limit - len(found)))
            if taken:
                self._hand_out(taken)
                found += taken
                continue
            self._finish_piece()
            try:
                if not await self._next_piece(0.0 if found else max(0.0, deadline_s - time.monotonic())):
                    break
            except BraidError as fault:
                if not found:
                    raise
                # What is in hand goes out first; the error stays where it is, and the next call meets it.
                with self._inbox.mutex:
                    self._inbox.put_back(fault)
                break
        return found

    def _hand_out(self, taken: list[Record]) -> None:
        chunk = self._chunk
        assert chunk is not None
        self._current = None
        if chunk.current:
            self._handed.setdefault(chunk.part.key, taken[0].offset)
            chunk.part.position = taken[-1].offset + 1

    def _finish_piece(self) -> None:
        """All records of the piece are processed: the application came back for more."""
        chunk = self._chunk
        if chunk is not None:
            with self._inbox.mutex:
                if chunk.current:
                    chunk.part.position = chunk.offset
            self._current = None

    async def _next_piece(self, timeout_s: float | None) -> bool:
        """Make the next records the current ones; False when none came in time."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self.closed:
                raise BraidError("CLIENT_CLOSED", what="consumer")
            if self._chunk is not None and self._read_piece(self._chunk):
                await backend.checkpoint()
                return True
            self._arrived.clear()
            with self._inbox.mutex:
                chunk = self._chunk = self._inbox.take()
            if chunk is not None:
                self._fetcher_of[chunk.part].room.set()
            elif not await self._arrived.wait(None if deadline_s is None else deadline_s - time.monotonic()):
                return False

    def _read_piece(self, chunk: Chunk) -> bool:
        """Whether the chunk has records left, which are the current ones then."""
        if not chunk.current:
            return False
        try:
            records = chunk.read()
        except BraidError:
            # Fetched again, it is met again: whoever wants to go on has to seek past it.
            self._chunk = None
            with self._inbox.mutex:
                self._inbox.seek(chunk.part, chunk.part.position)
            self._fetcher_of[chunk.part].room.set()
            raise
        self._records = iter(records)
        if not records:
            self._finish_piece()
        return bool(records)

    # --- positions

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions this consumer reads."""
        return list(self._inbox.parts)

    def position(self, topic: str, partition: int) -> int:
        """The offset of the next record of a partition."""
        part = self._part(topic, partition)
        current, chunk = self._current, self._chunk
        if current is not None and chunk is not None and chunk.part is part and chunk.current:
            return current.offset + 1
        return part.position

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on at `offset`, whatever was read or fetched before."""
        if offset < 0:
            raise BraidError("INVALID_ARGUMENT", reason=f"offset {offset} is negative")
        part = self._part(topic, partition)
        with self._inbox.mutex:
            self._inbox.seek(part, offset)
        self._handed.pop(part.key, None)
        if self._chunk is not None and self._chunk.part is part:
            # The iterator is shared with a loop that may be running: emptied here, that loop moves on by itself.
            for _ in self._records:
                pass
            self._current = None
        self._fetcher_of[part].interrupt()

    async def seek_to_beginning(self, topic: str | None = None, partition: int | None = None) -> None:
        """Go on at the oldest record: of one partition, one topic, or everything."""
        await self._seek_to(topic, partition, end=False)

    async def seek_to_end(self, topic: str | None = None, partition: int | None = None) -> None:
        """Go on at what is written next: to one partition, one topic, or anything."""
        await self._seek_to(topic, partition, end=True)

    async def _seek_to(self, topic: str | None, partition: int | None, *, end: bool) -> None:
        await self.start()
        questions = [flymq.Metadata(name) for name in self._topics if topic in (None, name)]
        if not questions:
            raise BraidError("INVALID_ARGUMENT", reason=f"this consumer does not read {topic}")
        for answer in await self._ask(questions):
            assert isinstance(answer, flymq.TopicMetadata)
            for part in answer.partitions:
                if partition in (None, part.id) and TopicPartition(answer.topic, part.id) in self._inbox.parts:
                    self.seek(answer.topic, part.id, part.newest if end else part.oldest)

    def _part(self, topic: str, partition: int) -> PartitionState:
        part = self._inbox.parts.get(TopicPartition(topic, partition))
        if part is None:
            reason = f"{topic}/{partition} is not read by this consumer" if self._started else "the consumer has not started yet"
            raise BraidError("INVALID_ARGUMENT", reason=reason)
        return part

    # --- commits

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Store the group's positions: after everything handed out so far, or as given."""
        if not self.group:
            raise BraidError("INVALID_ARGUMENT", reason="only a consumer with a group can commit")
        await self.start()
        if offsets is None:
            offsets = {part.key: self.position(*part.key) for part in self._inbox.parts.values()}
        await self._store(offsets)

    async def committed(self, topic: str, partition: int) -> int:
        """The next offset the group will read: what it has committed, else the oldest."""
        answer = (await self._ask([flymq.Subscribe(topic, self.group, partition, "commit")]))[0]
        assert isinstance(answer, flymq.Offset)
        return answer.offset

    async def _store(self, offsets: Mapping[TopicPartition, int]) -> None:
        changed = {
            key: offset
            for key, offset in offsets.items()
            if (part := self._inbox.parts.get(TopicPartition(*key))) is None or part.committed != offset
        }
        if not changed:
            return
        await self._ask([flymq.Commit(topic, self.group, partition, offset) for (topic, partition), offset in changed.items()])
        for key, offset in changed.items():
            part = self._inbox.parts.get(TopicPartition(*key))
            if part is not None:
                part.committed = offset

    def _processed(self) -> dict[TopicPartition, int]:
        """How far each partition has been processed for certain. Called while the application reads on, also in another thread."""
        # Read in this order each value can only be too old, which is the safe side.
        positions = {part.key: part.position for part in self._inbox.parts.values()}
        positions |= self._handed
        current = self._current
        if current is not None:
            positions[TopicPartition(current.topic, current.partition)] = current.offset
        return positions

    async def _commit_regularly(self) -> None:
        while not await self._stop.wait(self._settings.auto_commit_interval_s):
            try:
                await self._store(self._processed())
            except BraidError as fault:
                if not self._stop.is_set():
                    log.warning("the positions of group %s were not committed and will be tried again: %s", self.group, fault)

    # --- requests of this consumer

    async def _ask(self, requests: Sequence[flymq.Request]) -> list[flymq.Response]:
        """Requests on the consumer's own connection, which is what makes it a member of its group."""
        deadline_s = time.monotonic() + self._settings.timeout_s
        frames = [encode(request) for request in requests]
        backoff = self._dialer.backoff()
        while True:
            try:
                connection = await self._connect(deadline_s)
                return answers(requests, await connection.call(frames, max(MOMENT_S, deadline_s - time.monotonic())))
            except BraidError as fault:
                pause_s = min(backoff.next(), deadline_s - time.monotonic())
                if fault.code != "CONNECTION_LOST" or self.closed or pause_s <= 0:
                    raise
            await backend.sleep(pause_s)

    async def _connect(self, deadline_s: float) -> Connection:
        async with self._control_lock:
            connection = self._control
            if connection is not None:
                if connection.usable():
                    return connection
                await connection.close()
            self._control = None
            connection = await self._dialer.dial(max(MOMENT_S, deadline_s - time.monotonic()), self._stop)
            if self.group and self._started:
                # A new connection is a new member until it says which group it belongs to.
                joins = [flymq.Subscribe(*part, "commit") for part in self._members()]
                await connection.call([encode(join) for join in joins], max(MOMENT_S, deadline_s - time.monotonic()))
            self._control = connection
            return connection

    def _members(self) -> list[tuple[str, str, int]]:
        return [(part.topic, self.group, part.partition) for part in self._inbox.parts]

    # --- the end

    async def close(self) -> None:
        """Commit (unless that is left to the application) and end."""
        await self._end(in_hand=True)

    async def _end(self, in_hand: bool) -> None:
        if self.closed:
            return
        self._stop.set()
        try:
            if self.group and self._settings.auto_commit and self._started:
                if in_hand:
                    await self.commit()
                else:
                    await self._store(self._processed())
        finally:
            self.closed = True
            for fetcher in self._fetchers:
                fetcher.stop()
            self._arrived.set()
            for task in self._tasks:
                await task.join(JOIN_SECONDS_MAX)
            if self._control is not None:
                await self._control.close()
