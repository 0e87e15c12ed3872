"""The consumer: records out of one or more topics, in order within each partition, from memory as long as there are any.

Fetchers (`fetcher`) fill an inbox in the background; `poll` and iteration take from it. A step of the iteration is a step
through a list: no task, no lock and no wait a record.

Positions and commits. A record counts as processed when the application comes back for the next one (or polls again), so
the automatic commit never runs ahead of the application: after a crash records may come twice, never not at all. `commit()`
commits everything handed out, the record in hand included: call it after processing. `close` does the same, unless an
exception is on its way through the `with` block: then the record in hand counts as not processed.

A consumer with a group shares the partitions of its topics with the group's other members (`membership`). When they are divided
anew it commits what was processed, gives its partitions up the next time the application comes for records, and goes on with
its new share. A record that `fail`ed comes again (`retries`), and holds back the commits of its partition until it is settled.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Final, Literal, cast

from braidmq.base.errors import BraidError
from braidmq.client._backend import asyncio as backend
from braidmq.client.cipher import ValueCipher
from braidmq.client.faults import lacks_opcode, lost_membership
from braidmq.client.inbox import Chunk, Inbox, PartitionState
from braidmq.client.models import Failure, TopicPartition
from braidmq.client.reading import record_maker
from braidmq.client.retries import Retries, retry_delay_s
from braidmq.client.settings import ClientSettings
from braidmq.client.tracing import log
from braidmq.wire import flymq

from .consumed import ConsumedRecord, kind_for
from .control import Control
from .dialer import Dialer
from .fetching import Fetching
from .leaders import Leaders
from .membership import Membership

Start = Literal["earliest", "latest", "committed"]
_MODES: Final[dict[str, str]] = {"earliest": "earliest", "latest": "latest", "committed": "commit"}
_NOTHING: Final[list[ConsumedRecord]] = []
JOIN_SECONDS_MAX: Final = 5.0
"""How long `close` waits for the background tasks, which end at once unless something is wrong."""


class Consumer:
    """Reads topics. Made by `Client.consumer`; use it as a context manager, or `close` it. Not for several tasks at once."""

    def __init__(
        self,
        dialer: Dialer,
        leaders: Leaders,
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
        self._control = Control(dialer, settings, self._stop, self._greeting)
        self._leaders = leaders
        self._fetching = Fetching(dialer, leaders, self._inbox, settings, self._arrived)
        self._committing: backend.Task | None = None
        self._kind = kind_for(self)
        self._chunk: Chunk | None = None
        self._records = iter(_NOTHING)
        self._current: ConsumedRecord | None = None
        """The record in hand, while iterating."""
        self._handed: dict[TopicPartition, int] = {}
        """Where the records of the last `poll` begin, which count as processed with the next one."""
        self._retries: Retries[ConsumedRecord] = Retries()
        self._retrying = False
        """Whether the current piece is a record that comes again."""
        # --- only for a member of a group that divides its partitions
        self._membership: Membership | None = None
        self._ticket: tuple[str, int] | None = None
        """Member and generation that the partitions were given to."""
        self._recalled = False
        """Whether the group divides anew, or has done so."""
        self._share: flymq.GroupAssignment | None = None
        """A new share that is not in use yet."""
        self._kept: dict[TopicPartition, int] | None = None
        """While there are no partitions between two shares: how far the former ones were read."""
        self._unstored: dict[TopicPartition, int] = {}
        """The same, if it could not be committed when they were given up: it can be with the next share."""

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
            assigned = await self._everything()
            if self.group and self._settings.assignment != "all" and all(chosen is None for chosen in self._topics.values()):
                share = await self._join()
                assigned = assigned if share is None else share
            try:
                offsets = await self._offsets(assigned, self._mode)
                self._begin(assigned, offsets, offsets if self._mode == "commit" else {})
            except BaseException:
                await self._leave()
                raise
            if self.group and self._settings.auto_commit:
                self._committing = backend.spawn(self._commit_regularly, "braidmq auto-commit")
            self._started = True

    async def _everything(self) -> list[TopicPartition]:
        """All partitions of the topics, or those this consumer was told."""
        questions = [flymq.Metadata(topic) for topic in self._topics]
        assigned: list[TopicPartition] = []
        for question, answer in zip(questions, await self._control.ask(questions), strict=True):
            assert isinstance(answer, flymq.TopicMetadata)
            await self._leaders.learn(answer, self._settings.timeout_s)
            chosen = self._topics[question.topic]
            for partition in range(len(answer.partitions)) if chosen is None else chosen:
                if not 0 <= partition < len(answer.partitions):
                    raise BraidError("PARTITION_NOT_FOUND", partition=partition)
                assigned.append(TopicPartition(question.topic, partition))
        return assigned

    async def _offsets(self, parts: Sequence[TopicPartition], mode: str) -> dict[TopicPartition, int]:
        """Where to begin to read."""
        wanted = [flymq.Subscribe(part.topic, self.group, part.partition, mode) for part in parts]
        found = await self._control.ask_apart(wanted) if self._membership is not None else await self._control.ask(wanted)
        return {part: answer.offset for part, answer in zip(parts, found, strict=True) if isinstance(answer, flymq.Offset)}

    def _begin(
        self, parts: Sequence[TopicPartition], offsets: Mapping[TopicPartition, int], committed: Mapping[TopicPartition, int]
    ) -> None:
        """Read these partitions from now on."""
        states = []
        for part in parts:
            make = record_maker(part.topic, part.partition, self._cipher, self._kind)
            state = PartitionState(part.topic, part.partition, offsets[part], make)
            state.committed = committed.get(part, -1)
            states.append(state)
        with self._inbox.mutex:
            self._inbox.replace(states)
        self._fetching.begin(states)

    # --- sharing partitions with the group

    async def _join(self) -> list[TopicPartition] | None:
        """The first share; None from a server that divides nothing."""
        membership = Membership(self._dialer, self._settings, self.group, list(self._topics), self._told)
        try:
            share = await membership.join()
        except BaseException as fault:
            await membership.leave(JOIN_SECONDS_MAX)
            if isinstance(fault, BraidError) and lacks_opcode(fault):
                log.info("the server divides no partitions; this member of %s reads them all", self.group)
                return None
            raise
        self._membership = membership
        self._ticket = share.member, share.generation
        return [TopicPartition(part.topic, part.partition) for part in share.partitions]

    def _told(self, fault: BraidError | None) -> None:
        """The membership has news."""
        if fault is None:
            self._recalled = True
        elif not fault.retriable or not self._fetching.running:
            # What may pass is told by the fetchers, which meet it too.
            with self._inbox.mutex:
                self._inbox.fail(None, 0, fault)
        self._arrived.set()

    async def _follow_group(self) -> None:
        """Give the partitions up, or take the new ones, as the group wants it. Called in the application's turn."""
        membership = self._membership
        assert membership is not None
        self._share = membership.take() or self._share
        if self._kept is None:
            await self._give_up()
            if self._share is None:
                membership.release()
        share = self._share
        if share is None:
            return
        kept = self._kept
        assert kept is not None
        parts = [TopicPartition(part.topic, part.partition) for part in share.partitions]
        committed = await self._offsets(parts, "commit")
        # What this member has read of a partition it still has does not come again, committed or not.
        self._begin(parts, {part: max(offset, kept.get(part, 0)) for part, offset in committed.items()}, committed)
        self._ticket = share.member, share.generation
        self._share = self._kept = None
        self._unstored = {}
        self._recalled = membership.recalled

    async def _give_up(self) -> None:
        """Commit what was processed, which is everything handed out, and forget the partitions."""
        kept = self.positions()
        if self._settings.auto_commit:
            try:
                await self._store(kept, self._ticket)
            except BraidError as fault:
                self._unstored = kept
                log.info("group %s: positions not committed before partitions were given up: %s", self.group, fault)
        await self._fetching.end()
        with self._inbox.mutex:
            self._inbox.replace([])
        self._fetching.forget()
        self._chunk, self._records, self._current = None, iter(_NOTHING), None
        self._handed.clear()
        self._retries = Retries()
        self._kept = kept

    async def _leave(self) -> None:
        membership, self._membership = self._membership, None
        if membership is not None:
            await membership.leave(JOIN_SECONDS_MAX)

    # --- reading

    async def __aiter__(self) -> AsyncIterator[ConsumedRecord]:
        """Records, for ever. Leave the loop with `break`; a later loop goes on after the last record."""
        await self.start()
        self._handed.clear()
        while True:
            for record in iter(_NOTHING) if self._recalled else self._records:
                self._current = record
                yield record
                if self._recalled:
                    break
            if not self._recalled:
                self._finish_piece()
            self._retries.settle_handed()
            await self._next_piece(None)

    async def poll(self, max_records: int | None = None, timeout_s: float = 1.0) -> list[ConsumedRecord]:
        """Up to `max_records` records; it waits for the first one, and returns an empty list when none comes in time."""
        await self.start()
        limit = self._settings.max_poll_records if max_records is None else max_records
        deadline_s = time.monotonic() + timeout_s
        self._handed.clear()
        self._retries.settle_handed()
        found: list[ConsumedRecord] = []
        while len(found) < limit:
            taken = [] if self._recalled else list(islice(self._records, limit - len(found)))
            if taken:
                self._hand_out(taken)
                found += taken
                continue
            if not self._recalled:
                self._finish_piece()
            try:
                if not await self._next_piece(max(0.0, deadline_s - time.monotonic()), in_hand=bool(found)):
                    break
            except BraidError as fault:
                if not found:
                    raise
                # What is in hand goes out first; the error stays where it is, and the next call meets it.
                with self._inbox.mutex:
                    self._inbox.put_back(fault)
                break
        return found

    def _hand_out(self, taken: list[ConsumedRecord]) -> None:
        self._current = None
        if self._retrying:
            return
        chunk = self._chunk
        assert chunk is not None
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

    async def _next_piece(self, timeout_s: float | None, in_hand: bool = False) -> bool:
        """Make the next records the current ones; False when none came in time. With some `in_hand` nothing is waited for."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s * (not in_hand)
        while True:
            if self.closed:
                raise BraidError("CLIENT_CLOSED", what="consumer")
            self._arrived.clear()
            if self._recalled:
                if in_hand:
                    # The application processes these first, and gives its partitions up with its next call.
                    return False
                await self._follow_group()
            again = self._retries.take_due(time.monotonic())
            self._retrying = again is not None
            if again is not None:
                self._records = iter((again,))
                return True
            if self._chunk is not None and self._read_piece(self._chunk):
                await backend.checkpoint()
                return True
            with self._inbox.mutex:
                chunk = self._chunk = self._inbox.take()
            if chunk is not None:
                self._fetching.of(chunk.part).room.set()
            elif not await self._wait(deadline_s):
                return False

    async def _wait(self, deadline_s: float | None) -> bool:
        """Wait until something has come; False at the deadline. A record that is due again is something."""
        due_s = self._retries.next_due_s()
        until = min((moment for moment in (deadline_s, due_s) if moment is not None), default=None)
        arrived = await self._arrived.wait(None if until is None else until - time.monotonic())
        return arrived or deadline_s is None or time.monotonic() < deadline_s

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
            self._fetching.of(chunk.part).room.set()
            raise
        # They are of the kind that `_begin` asked for.
        self._records = iter(cast("list[ConsumedRecord]", records))
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
        if current is not None and not self._retrying and chunk is not None and chunk.part is part and chunk.current:
            return current.offset + 1
        return part.position

    def positions(self) -> dict[TopicPartition, int]:
        """What may be committed: after everything handed out so far, but not past a record that failed and comes again."""
        self._retries.settle_handed()
        return self._retries.hold({key: self.position(*key) for key in self._inbox.parts})

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on at `offset`, whatever was read or fetched before."""
        if offset < 0:
            raise BraidError("INVALID_ARGUMENT", reason=f"offset {offset} is negative")
        part = self._part(topic, partition)
        with self._inbox.mutex:
            self._inbox.seek(part, offset)
        self._handed.pop(part.key, None)
        self._retries.drop(part.key)
        if self._chunk is not None and self._chunk.part is part:
            # The iterator is shared with a loop that may be running: emptied here, that loop moves on by itself.
            for _ in self._records:
                pass
            self._current = None
        self._fetching.of(part).interrupt()

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
        for answer in await self._control.ask(questions):
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
        """Store the group's positions: after everything handed out so far, or as given.

        FENCED_MEMBER says that the partitions belong to another member by now, which reads on from what was committed before.
        """
        if not self.group:
            raise BraidError("INVALID_ARGUMENT", reason="only a consumer with a group can commit")
        await self.start()
        await self._store(self.positions() if offsets is None else offsets, self._ticket)

    async def committed(self, topic: str, partition: int) -> int:
        """The next offset the group will read: what it has committed, else the oldest."""
        place = TopicPartition(topic, partition)
        return (await self._offsets([place], "commit"))[place]

    async def _store(self, offsets: Mapping[TopicPartition, int], ticket: tuple[str, int] | None) -> None:
        """Store positions of partitions that were given to the member and generation of `ticket`."""
        changed = {
            key: offset
            for key, offset in offsets.items()
            if (part := self._inbox.parts.get(TopicPartition(*key))) is None or part.committed != offset
        }
        if not changed:
            return
        if ticket is None:
            commits = [flymq.Commit(topic, self.group, number, offset) for (topic, number), offset in changed.items()]
            await self._control.ask(commits)
        else:
            await self._store_as_member(changed, *ticket)
        for key, offset in changed.items():
            part = self._inbox.parts.get(TopicPartition(*key))
            if part is not None:
                part.committed = offset

    async def _store_as_member(self, offsets: Mapping[TopicPartition, int], member: str, generation: int) -> None:
        foreign = next((key for key in offsets if TopicPartition(*key) not in self._inbox.parts), None)
        if foreign is not None:
            raise BraidError("INVALID_ARGUMENT", reason=f"{foreign[0]}/{foreign[1]} is not read by this consumer")
        await self._ask_to_commit(offsets, member, generation)

    async def _ask_to_commit(self, offsets: Mapping[TopicPartition, int], member: str, generation: int) -> None:
        rows = tuple(flymq.TopicOffset(topic, number, offset) for (topic, number), offset in offsets.items())
        try:
            await self._control.ask([flymq.GroupCommit(self.group, member, generation, rows)])
        except BraidError as fault:
            if lost_membership(fault) and self._membership is not None:
                self._membership.lost(generation)
            raise

    async def _store_at_last(self, offsets: dict[TopicPartition, int]) -> None:
        """Store positions on close. A member that the broker forgot, as it does in a restart, joins once more to do so."""
        membership = self._membership
        if self._kept is None:
            try:
                await self._store(offsets, self._ticket)
                return
            except BraidError as fault:
                if not lost_membership(fault) or membership is None:
                    raise
        elif not offsets:
            return
        assert membership is not None, "only a member gives partitions up"
        deadline_s = time.monotonic() + JOIN_SECONDS_MAX
        # Where the group settles anew between the share and its commit, the next share is on its way.
        while not await self._store_rejoined(membership, offsets, deadline_s):
            log.debug("group %s: the last commit of this member is tried with its next share", self.group)

    async def _store_rejoined(self, membership: Membership, offsets: dict[TopicPartition, int], deadline_s: float) -> bool:
        """Wait for the member's next share and store what of it is ahead; False when that share was void again."""
        while True:
            self._arrived.clear()
            share = membership.take() or self._share
            self._share = None
            if share is not None:
                break
            if not await self._arrived.wait(max(0.0, deadline_s - time.monotonic())):
                log.warning("group %s: what was read since the last commit comes again: this member was left behind", self.group)
                return True
        owned = [TopicPartition(part.topic, part.partition) for part in share.partitions]
        committed = await self._offsets([part for part in owned if part in offsets], "commit")
        # Others may have read on meanwhile; nobody is set back.
        ahead = {part: offsets[part] for part, offset in committed.items() if offsets[part] > offset}
        if not ahead:
            return True
        try:
            await self._ask_to_commit(ahead, share.member, share.generation)
        except BraidError as fault:
            if not lost_membership(fault):
                raise
            return False
        return True

    def _processed(self) -> dict[TopicPartition, int]:
        """How far each partition has been processed for certain. Called while the application reads on, also in another thread."""
        # Read in this order each value can only be too old, which is the safe side.
        parts = self._inbox.parts
        positions = {part.key: part.position for part in parts.values()}
        positions |= {key: offset for key, offset in self._handed.copy().items() if key in parts}
        current = self._current
        if current is not None and not self._retrying and (current.topic, current.partition) in parts:
            positions[TopicPartition(current.topic, current.partition)] = current.offset
        return self._retries.hold(positions)

    async def _commit_regularly(self) -> None:
        while not await self._stop.wait(self._settings.auto_commit_interval_s):
            # Taken first: positions that a later share made void are refused, with the generation they belong to.
            ticket = self._ticket
            try:
                await self._store(self._processed(), ticket)
            except BraidError as fault:
                if not self._stop.is_set():
                    log.warning("the positions of group %s were not committed and will be tried again: %s", self.group, fault)

    # --- records that could not be processed

    async def fail(self, record: ConsumedRecord, reason: str = "processing_error", error: str = "") -> Failure:
        """Say that a record could not be processed; `record.fail()` is the same.

        The broker counts the attempts. Until the last one the record comes again, later each time; then it is a dead letter. A call
        that raised because no answer came may be made again: the failure is counted once.
        """
        if not self.group:
            raise BraidError("INVALID_ARGUMENT", reason="only a consumer with a group can report failures")
        token = self._retries.report(record)
        request = flymq.DlqFail(record.topic, record.partition, record.offset, self.group, reason, error, token)
        answer = (await self._control.ask([request]))[0]
        assert isinstance(answer, flymq.FailureRecorded)
        self._retries.answered(record)
        if answer.dead_lettered:
            self._retries.settle(record)
        elif TopicPartition(record.topic, record.partition) in self._inbox.parts:
            delay_s = retry_delay_s(answer.retry_at_ms, round(time.time() * 1000), answer.attempts)
            self._retries.add(record, time.monotonic() + delay_s)
        return Failure(answer.dead_lettered, answer.attempts, answer.retry_at_ms)

    def _greeting(self) -> list[flymq.Subscribe]:
        """A new connection belongs to no group until it subscribes; a member that shares has another connection for that."""
        if not self.group or not self._started or self._membership is not None:
            return []
        return [flymq.Subscribe(part.topic, self.group, part.partition, "commit") for part in self._inbox.parts]

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
                read = self.positions() if in_hand else self._processed()
                await self._store_at_last(read if self._kept is None else self._unstored)
        finally:
            self.closed = True
            await self._fetching.end()
            self._arrived.set()
            if self._committing is not None:
                await self._committing.join(JOIN_SECONDS_MAX)
            await self._leave()
            await self._control.close()
