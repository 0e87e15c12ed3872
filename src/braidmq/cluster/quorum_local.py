"""The metadata quorum of one machine: a fsynced command log in the data directory, and no other process.

A change is answered when it is on the disk, so what was acknowledged survives kill -9 and the loss of power, by the same
journal that keeps all other state of the broker. Sessions belong to the process that opened them: those of a process before are
ended by opening. Nothing is ever unknown here, but for a disk that fails: then the outcome is decided by the next start, which
reads what is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Final

from braidmq.base import limits
from braidmq.base.clock import Clock
from braidmq.base.disk import Disk, Lock
from braidmq.base.errors import BraidError
from braidmq.broker.journal import Journal
from braidmq.cluster.quorum import Event, Guard, Op, Reading, TxnResult, Unknown
from braidmq.cluster.quorum_session import LeasedQuorum
from braidmq.cluster.quorum_store import QuorumStore, end_command, grant_command, txn_command
from braidmq.log.commit import GroupCommit, Syncer, ThreadSyncer
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings, PartitionLog
from braidmq.log.recovery import recover

_SEGMENT_BYTES: Final = 4 * limits.MIB


class LocalQuorum(LeasedQuorum):
    def __init__(self, disk: Disk, directory: str, clock: Clock, syncer: Syncer | None = None) -> None:
        super().__init__(clock)
        self._disk = disk
        self._directory = directory
        self._store = QuorumStore()
        self._loop = asyncio.get_running_loop()
        self._syncer = syncer
        self._expiries: dict[int, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._lock: Lock | None = None
        self._journal: Journal
        self._commit: GroupCommit
        self._log: PartitionLog

    async def open(self) -> None:
        """Read what is there; raises DATA_DIR_LOCKED, or CORRUPT_LOG."""
        self._disk.make_directory(self._directory)
        try:
            self._lock = self._disk.lock(f"{self._directory}/LOCK")
        except BlockingIOError:
            raise BraidError("DATA_DIR_LOCKED", path=self._directory) from None
        post = self._loop.call_soon_threadsafe
        syncer = self._syncer or ThreadSyncer(self._disk, post)
        self._commit = GroupCommit(self.clock, syncer, self._loop.call_soon)
        settings = LogSettings(Level.FSYNC, _SEGMENT_BYTES, retention_bytes=0, gapless=True)
        self._log = PartitionLog(self._disk, f"{self._directory}/commands", "__quorum", 0, settings)
        try:
            recover(self._disk, self._log, None)
            self._journal = Journal(self._disk, self._log, self._commit, self._store)
            self._journal.replay()
            for lease in sorted(self._store.leases):
                await self._journal.submit(end_command(lease))
        except BaseException:
            await self.close()
            raise
        self._store.forget_changes()

    async def close(self) -> None:
        await self.abandon_sessions()
        for timer in self._expiries.values():
            timer.cancel()
        self._expiries.clear()
        if self._ending:
            await asyncio.gather(*self._ending)
        self._commit.flush()
        await self._loop.run_in_executor(None, self._commit.close)
        self._log.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # --- keys

    async def txn(self, guards: Sequence[Guard], ops: Sequence[Op]) -> TxnResult:
        try:
            result: TxnResult = await self._submit(txn_command(guards, ops))
        except BraidError as fault:
            return Unknown(str(fault))
        return result

    async def read(self, prefix: str, *, linearizable: bool = True) -> Reading:
        return self._store.read(prefix)

    def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Event]:
        return self._store.watch(prefix, after_revision)

    async def _submit(self, command: list[Any]) -> Any:
        result = await self._journal.submit(command)
        if self._journal.snapshot_due:
            await self._journal.save_snapshot_beside(self._beside)
        return result

    async def _beside(self, work: Any) -> None:
        await self._loop.run_in_executor(None, work)

    # --- leases

    async def grant_lease(self, ttl_s: float) -> int:
        lease: int = await self._asked(grant_command(ttl_s))
        self._expire_later(lease, ttl_s)
        return lease

    async def renew_lease(self, lease: int) -> bool:
        ttl_s = self._store.leases.get(lease)
        if ttl_s is None:
            return False
        self._expire_later(lease, ttl_s)
        return True

    async def end_lease(self, lease: int) -> None:
        timer = self._expiries.pop(lease, None)
        if timer is not None:
            timer.cancel()
        await self._asked(end_command(lease))

    async def _asked(self, command: list[Any]) -> Any:
        try:
            return await self._submit(command)
        except BraidError as fault:
            raise BraidError("QUORUM_UNAVAILABLE", reason=fault.text) from fault

    def _expire_later(self, lease: int, ttl_s: float) -> None:
        timer = self._expiries.pop(lease, None)
        if timer is not None:
            timer.cancel()
        self._expiries[lease] = self._loop.call_later(ttl_s, partial(self._expire, lease))

    def _expire(self, lease: int) -> None:
        self._expiries.pop(lease, None)
        task = self._loop.create_task(self._end_expired(lease))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_expired(self, lease: int) -> None:
        # A renewal may have come between.
        if lease not in self._expiries:
            await self._submit(end_command(lease))
