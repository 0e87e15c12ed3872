"""A state machine whose commands live in the log: the one way broker state is made durable and recovered.

A command is appended to an internal partition like any record, and applied when it is durable; commands apply in log order,
so a restart that replays them ends in the same state. From time to time the state is written as a snapshot, and the log
before it is let go. The newest snapshot that is whole wins; the one before is kept in case it is not.

In a cluster the log of a journal is replicated, and every node has the machine: one node appends, all apply what lies below the
high watermark, in the same order (`follow`). What others appended is read from the log, what this node appended it knows.

Faults: a crash before the command is durable leaves no trace; after it, the command is replayed. A torn snapshot is
ignored for the one before it. A log that begins after the snapshot is an error, never a silent gap.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from typing import Any, Final, Protocol

from braidmq import hot
from braidmq.base import limits
from braidmq.base.disk import AppendFile, Disk
from braidmq.base.errors import BraidError
from braidmq.base.json_pieces import json_pieces
from braidmq.log.commit import GroupCommit
from braidmq.log.partition import PartitionLog
from braidmq.log.partition_reads import Cold

_SNAPSHOT_PREFIX: Final = "snapshot-"
_SNAPSHOT_SUFFIX: Final = ".json"
SNAPSHOT_AFTER_COMMANDS: Final = 20_000
_READ_BYTES: Final = 4 * limits.MIB

logger = logging.getLogger("braidmq.journal")


RunBeside = Callable[[Callable[[], None]], Awaitable[None]]


class StateMachine(Protocol):
    def apply(self, command: list[Any]) -> Any: ...

    def snapshot(self) -> Any:
        """The state as something that JSON can hold, and that no later command changes. It is made on the loop: parts that take
        long to write out may be `Deferred`."""
        ...

    def restore(self, document: Any) -> None: ...


class Journal:
    def __init__(
        self, disk: Disk, log: PartitionLog, commit: GroupCommit, machine: StateMachine,
        snapshot_after: int = SNAPSHOT_AFTER_COMMANDS,
    ) -> None:
        """A snapshot is due after `snapshot_after` commands."""
        self._disk = disk
        self._log = log
        self._commit = commit
        self._machine = machine
        self._applied = 0
        """Offset after the last applied command."""
        self._snapshot_at = 0
        self._snapshot_after = snapshot_after
        self._saving: asyncio.Task[None] | None = None
        self._posted: dict[int, tuple[list[Any], asyncio.Future[Any]]] = {}
        """Offset to the command that was appended there by this process, and who waits for its outcome."""
        self._awaited: dict[int, asyncio.Future[Any]] = {}
        """Offset to who waits for what another node appended there."""
        self._recent: dict[int, Any] = {}
        """Outcomes of others' commands, kept while somebody may still ask for them."""
        self._asking = 0
        self._lookouts: list[tuple[int, asyncio.Future[None]]] = []
        """Who waits until everything below an offset is applied."""
        self._left: BraidError | None = None
        """Why nothing more will be applied."""
        self.on_applied: Callable[[list[Any], Any], None] | None = None
        """Told of every command that was applied since the start, and of what the machine answered; not of refused ones."""

    async def submit(self, command: list[Any]) -> Any:
        """Make `command` durable, apply it, and return what the state machine answers (or raise what it raises)."""
        return await self.post(command)

    def post(self, command: list[Any]) -> asyncio.Future[Any]:
        """As `submit`, for commands that must be in the same write as something else of this turn."""
        return self.append(command)[1]

    def append(self, command: list[Any]) -> tuple[int, asyncio.Future[Any]]:
        """As `post`, with the offset of the command."""
        self._log.check_writable()
        payload = json.dumps(command, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(payload) > limits.RECORD_BYTES_MAX and self._log.gate is not None:
            # It could not be replicated, and nothing behind it either.
            raise BraidError("RECORD_TOO_LARGE", size=len(payload), limit=limits.RECORD_BYTES_MAX)
        if self._log.pending_bytes + len(payload) > limits.FLUSH_BYTES_TARGET:
            self._commit.flush()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        offset = self._log.accumulator.append(None, payload)
        self._posted[offset] = (command, answer)
        self._commit.touch(self._log)

        def durable(error: BraidError | None) -> None:
            if error is None:
                self._apply_below(offset + 1)
            elif self._posted.get(offset, (None, None))[1] is answer:
                del self._posted[offset]
                _settle(answer, error=error)

        self._log.when_visible(offset + 1, durable)
        return offset, answer

    @property
    def log(self) -> PartitionLog:
        return self._log

    @property
    def applied(self) -> int:
        """The offset after the last command that was applied."""
        return self._applied

    def _apply_below(self, end: int) -> None:
        """Apply what is below `end`, which readers see, in log order."""
        while self._applied < end:
            offset = self._applied
            posted = self._posted.pop(offset, None)
            if posted is None:
                self._apply_others(end)
                continue
            self._applied = offset + 1
            self._apply(offset, *posted)
        if self._lookouts:
            for lookout in [lookout for lookout in self._lookouts if lookout[0] <= self._applied]:
                self._lookouts.remove(lookout)
                _settle(lookout[1])

    def _apply(self, offset: int, command: list[Any], answer: asyncio.Future[Any] | None) -> None:
        outcome: Any
        try:
            outcome = self._machine.apply(command)
            if self.on_applied is not None:
                self.on_applied(command, outcome)
        except BraidError as refused:
            outcome = refused
        answer = answer or self._awaited.pop(offset, None)
        if answer is None:
            if self._asking:
                self._recent[offset] = outcome
        elif isinstance(outcome, BraidError):
            _settle(answer, error=outcome)
        else:
            _settle(answer, result=outcome)

    # --- what others append

    def follow(self) -> None:
        """Apply from now on whatever comes below the high watermark, whoever appended it."""
        self._log.watch_tail(self, lambda: self._apply_below(self._log.high_watermark))
        self._apply_below(self._log.high_watermark)

    def give_up_posted(self, error: BraidError) -> None:
        """This node does not append any more. What it appended may still be applied, but nobody here can wait for it: the place
        in the log may get another command."""
        posted, self._posted = self._posted, {}
        for _, answer in posted.values():
            _settle(answer, error=error)

    def give_up(self, error: BraidError) -> None:
        """Nothing more will be applied here: nobody is to wait for it."""
        self._left = error
        self.give_up_posted(error)
        for answer in (*self._awaited.values(), *(reached for _, reached in self._lookouts)):
            _settle(answer, error=error)
        self._awaited.clear()
        self._lookouts.clear()

    async def submitted(self, append: Callable[[], Awaitable[int]]) -> Any:
        """What the machine here answers to a command that `append` has another node append, which gives its offset."""
        self._asking += 1
        try:
            offset = await append()
            if self._left is not None:
                raise self._left
            if offset < self._applied:
                outcome = self._recent.get(offset)
                if isinstance(outcome, BraidError):
                    raise outcome
                return outcome
            answer = self._awaited.setdefault(offset, asyncio.get_running_loop().create_future())
        finally:
            self._asking -= 1
            if not self._asking:
                self._recent.clear()
        return await answer

    async def caught_up(self, offset: int) -> None:
        """Wait until everything below `offset` is applied."""
        if self._applied < offset:
            if self._left is not None:
                raise self._left
            reached = asyncio.get_running_loop().create_future()
            self._lookouts.append((offset, reached))
            await reached

    def _apply_others(self, end: int) -> None:
        """Apply commands that lie in the log and were not posted here, up to the next one that was."""
        for payload in self._read():
            offset = self._applied
            if offset >= end or offset in self._posted:
                return
            self._applied = offset + 1
            self._apply(offset, json.loads(payload.decode("utf-8", "surrogatepass")), None)

    def _read(self) -> list[bytes]:
        """The next commands as they lie in the log."""
        log = self._log
        if not log.log_start <= self._applied:
            raise BraidError(
                "CORRUPT_LOG", path=log.directory, position=0, offset=self._applied,
                reason=f"the journal begins at {log.log_start}, after what is known of it",
            )
        read = log.read_batches(self._applied, _READ_BYTES, warmed=True)
        assert not isinstance(read, Cold)
        payloads, following = hot.decode_records(
            b"".join(read.slices), self._applied, limits.BATCH_RECORDS_MAX, lambda _offset, _time, _key, value, _attrs: value
        )
        if following == self._applied:
            raise BraidError(
                "CORRUPT_LOG", path=log.directory, position=0, offset=self._applied,
                reason="commands are missing from the journal",
            )
        return list(payloads)

    # --- recovery

    def replay(self) -> int:
        """Rebuild the state from the newest whole snapshot and the commands after it; returns how many commands."""
        self._load_snapshot()
        log = self._log
        if log.log_start > self._applied:
            raise BraidError(
                "CORRUPT_LOG", path=log.directory, position=0, offset=self._applied,
                reason=f"the journal begins at {log.log_start}, after its snapshot",
            )
        if log.high_watermark < self._applied:
            raise BraidError(
                "CORRUPT_LOG", path=log.directory, position=0, offset=self._applied,
                reason=f"the journal ends at {log.high_watermark}, before its snapshot",
            )
        began = self._applied
        while self._applied < log.high_watermark:
            for payload in self._read():
                self._applied += 1
                try:
                    self._machine.apply(json.loads(payload.decode("utf-8", "surrogatepass")))
                except BraidError:
                    # It was refused when it was first applied, and is refused again for the same reason.
                    logger.debug("a refused command was replayed")
        return self._applied - began

    def load(self) -> None:
        """Rebuild the state from the newest whole snapshot alone: what of the log after it counts is for others to say."""
        self._load_snapshot()

    def _load_snapshot(self) -> None:
        found = self.newest_snapshot()
        if found is not None:
            document = json.loads(found[1].decode("utf-8", "surrogatepass"))
            self._machine.restore(document["state"])
            self._applied = self._snapshot_at = found[0]

    def newest_snapshot(self) -> tuple[int, bytes] | None:
        """The newest snapshot that is whole: its offset, and the JSON that it is. Blocks."""
        for name in reversed(self._disk.list_directory(self._log.directory)):
            if not (name.startswith(_SNAPSHOT_PREFIX) and name.endswith(_SNAPSHOT_SUFFIX)):
                continue
            path = f"{self._log.directory}/{name}"
            head, _, body = self._disk.read_file(path).partition(b"\n")
            if not body or head != b"%08x" % hot.crc32c(body):
                logger.warning("snapshot %s is damaged, trying the one before", path)
                continue
            if self._log.codec is not None:
                body = self._log.codec.unseal(body, name, path)
            return int(name.removeprefix(_SNAPSHOT_PREFIX).removesuffix(_SNAPSHOT_SUFFIX)), body
        return None

    # --- snapshots

    def keep_snapshot(self, offset: int, body: bytes) -> Any:
        """Put the snapshot of another node beside those of this one; returns its state. Blocks, and changes nothing else: it is the
        newest when this node starts the next time."""
        document = json.loads(body.decode("utf-8", "surrogatepass"))
        self._write_body(offset, body, [])
        return document["state"]

    def install(self, offset: int, state: Any) -> None:
        """Begin with the state of another node, which is kept as a snapshot; only where nothing was applied yet."""
        assert not self._applied, "what was applied has led to more than the state"
        self._machine.restore(state)
        self._applied = self._snapshot_at = offset

    @property
    def snapshot_due(self) -> bool:
        return self._applied - self._snapshot_at >= self._snapshot_after

    def save_snapshot(self) -> None:
        """Write the state as it is now, and let go of what it replaces."""
        if self._applied != self._snapshot_at:
            offset = self._applied
            self._write_snapshot(offset, self._machine.snapshot(), self._log.unsynced_files())
            self._let_go(offset)

    async def save_snapshot_beside(self, run: RunBeside) -> None:
        """As `save_snapshot`, while clients are served: encoding and writing happen where `run` runs them, beside the loop."""
        if self._saving is None:
            self._saving = asyncio.create_task(self._save_beside(run))
            self._saving.add_done_callback(self._saved)
        # Whoever waits may go away; what is being written must not meet another one that is written.
        await asyncio.shield(self._saving)

    def _saved(self, task: asyncio.Task[None]) -> None:
        self._saving = None
        if not task.cancelled() and task.exception() is not None:
            logger.info("a snapshot was not written: %s", task.exception())

    async def _save_beside(self, run: RunBeside) -> None:
        if self._applied != self._snapshot_at:
            offset = self._applied
            await run(partial(self._write_snapshot, offset, self._machine.snapshot(), self._log.unsynced_files()))
            self._let_go(offset)

    def _write_snapshot(self, offset: int, state: Any, files: list[AppendFile]) -> None:
        document = {"offset": offset, "state": state}
        self._write_body(offset, b"".join(piece.encode("utf-8", "surrogatepass") for piece in json_pieces(document)), files)

    def _write_body(self, offset: int, body: bytes, files: list[AppendFile]) -> None:
        directory = self._log.directory
        self._disk.make_directory(directory)
        # A snapshot must not know more than the log: offsets would begin below it after a loss of power.
        self._disk.sync_files(files)
        self._disk.sync_directory(directory)
        name = f"{_SNAPSHOT_PREFIX}{offset:020d}{_SNAPSHOT_SUFFIX}"
        if self._log.codec is not None:
            # It holds what the encrypted log held.
            body = self._log.codec.seal(body, name)
        self._disk.replace_file(f"{directory}/{name}", b"%08x\n" % hot.crc32c(body) + body)

    def _let_go(self, offset: int) -> None:
        """Remove what the snapshot at `offset` replaces, but keep the one before it."""
        directory = self._log.directory
        previous, self._snapshot_at = self._snapshot_at, offset
        for name in self._disk.list_directory(directory):
            if name.startswith(_SNAPSHOT_PREFIX) and name < f"{_SNAPSHOT_PREFIX}{previous:020d}.json":
                self._disk.remove_file(f"{directory}/{name}")
        log = self._log
        segments = log.segments
        replaced = [segment for segment, following in pairwise(segments) if following.base_offset <= previous]
        log.drop_segments(replaced)
        for segment in replaced:
            segment.remove()


def _settle(answer: asyncio.Future[Any], result: Any = None, error: BraidError | None = None) -> None:
    if answer.done():
        # Whoever asked went away; the command stands all the same.
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)
