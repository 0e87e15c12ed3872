"""Following one leader node: one fetch after the other, for all the partitions that it leads and this node has.

What a fetch brings is staged in all its partitions in one turn, so it is one group commit and one sync. Only when that is done
the next fetch goes out, and its ends are the acknowledgement. An answer counts only for the epoch that it was asked in, and only
where the log is still as it was then: whatever was assigned meanwhile goes first.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.cluster.partition_state import LogKey
from braidmq.cluster.replication.fetching import EMPTY, FetchRequest, Part, Place, Verdict, decode_answer
from braidmq.cluster.transport import ClusterOp
from braidmq.log.commit import Outcome
from braidmq.log.level import Level
from braidmq.log.partition import PartitionLog
from braidmq.log.partition_replica import Truncation

if TYPE_CHECKING:
    from braidmq.cluster.replication.replication import Replication

_PATIENCE_MAX: Final = 8
_BEGIN_AGAIN_S: Final = 1.0

logger = logging.getLogger("braidmq.replication")


@dataclass(slots=True, eq=False)
class Followed:
    """A partition that this node has and another leads."""

    log: PartitionLog
    epoch: int
    in_sync: bool
    """Whether its records are waited for."""
    is_journal: bool = False
    """Whether it holds commands, without which this node knows nothing of what the cluster decides."""
    current: bool = False
    """Whether the leader said, when it was last heard, that this log continues in its own and that readers see as much here."""
    said_s: float = float("-inf")
    """When that was asked which the leader last answered with a word about this partition."""

    @property
    def throttled(self) -> bool:
        """Whether it is copied no faster than the throttle allows."""
        return not self.in_sync and not self.is_journal


class Follower:
    """Follows one node."""

    def __init__(self, replication: Replication, leader: str) -> None:
        self._replication = replication
        self._leader = leader
        self._parts: dict[LogKey, Followed] = {}
        self._changed: dict[LogKey, None] = {}
        """Partitions of which the leader does not know where they stand, in order."""
        self._forgotten: dict[LogKey, None] = {}
        self._places: dict[LogKey, tuple[Followed, Place]] = {}
        """What the leader was told last."""
        self._lacking: dict[LogKey, int] = {}
        """Records that a partition lacks which catches up."""
        self._session = 0
        self._number = 0
        self._patience = 1
        """How many times as long as usual an answer is waited for."""
        self._asked_s = self._all_said_s = float("-inf")
        """When that was asked which the leader answered last, and last with all that it had to say: that was true then."""
        self._beginning: dict[LogKey, asyncio.Task[None]] = {}
        """Partitions that begin anew, which may take long. Meanwhile nothing that the leader says of them counts."""
        self._work = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            logger.error("following %s ended", self._leader, exc_info=task.exception())

    # --- what to follow

    def follow(self, key: LogKey, part: Followed) -> None:
        self._parts[key] = part
        self._forgotten.pop(key, None)
        self._again(key)

    def forget(self, key: LogKey) -> None:
        if self._parts.pop(key, None) is not None:
            self._changed.pop(key, None)
            self._places.pop(key, None)
            self._lacks(key, 0)
            self._forgotten[key] = None

    def goes_on(self, key: LogKey, log: PartitionLog, epoch: int) -> bool:
        """Whether it follows a partition in `epoch` already."""
        part = self._parts.get(key)
        return part is not None and part.log is log and part.epoch == epoch

    def in_sync(self, key: LogKey, in_sync: bool) -> None:
        self._parts[key].in_sync = in_sync
        if in_sync:
            self._lacks(key, 0)

    def is_fresh(self, key: LogKey) -> bool:
        """Whether readers see here what they saw at the leader a moment ago."""
        part = self._parts.get(key)
        if part is None or not part.current or not part.in_sync or part.log.failure is not None:
            return False
        known_s = max(self._all_said_s, part.said_s)
        return self._replication.clock.monotonic() - known_s <= self._replication.settings.fresh_s

    def _lacks(self, key: LogKey, records: int) -> None:
        """Let the throttle know how far a partition is behind."""
        if records > 0:
            self._lacking[key] = records
        elif self._lacking.pop(key, None) is None:
            return
        self._replication.throttle.lacks(self._leader, sum(self._lacking.values()))

    def stop(self) -> None:
        for key in list(self._lacking):
            self._lacks(key, 0)
        for task in (self._task, *self._beginning.values()):
            task.cancel()

    def _again(self, key: LogKey) -> None:
        """Say in the next fetch where a partition stands."""
        if key in self._parts:
            self._changed[key] = None
            self._work.set()

    def _again_later(self, key: LogKey, after_s: float | None = None) -> None:
        pause_s = self._replication.settings.retry_s if after_s is None else after_s
        asyncio.get_running_loop().call_later(pause_s, self._again, key)

    # --- fetching

    async def _run(self) -> None:
        while True:
            if not self._parts:
                self._work.clear()
                await self._work.wait()
            try:
                await self._fetch()
            except BraidError as error:
                away = error.code in ("NODE_UNREACHABLE", "NOT_READY", "UNKNOWN_OPCODE")
                logger.log(logging.DEBUG if away else logging.WARNING, "fetching from %s: %s", self._leader, error)
                # The largest record takes long on a slow network, and would take as long the next time.
                self._patience = min(2 * self._patience, _PATIENCE_MAX)
                self._begin_again()
                await asyncio.sleep(self._replication.settings.retry_s)

    def _begin_again(self) -> None:
        """Tell the leader everything with the next fetch."""
        self._session = self._number = 0
        self._forgotten.clear()
        self._places.clear()
        self._changed = dict.fromkeys(self._parts)
        for part in self._parts.values():
            part.current = False

    async def _fetch(self) -> None:
        settings = self._replication.settings
        if not self._session:
            self._begin_again()
        asked: dict[LogKey, tuple[Followed, Place]] = {}
        left = self._replication.throttle.allowed()
        # Of ten thousand partitions not all in one request: leader and follower would be at it for longer than an answer may take,
        # and would begin again with all of them for ever. The journals are assigned first, so they are told first.
        telling = list(islice(self._changed, settings.fetch_places))
        more = len(self._changed) > len(telling)
        # What may be copied goes to the broker's own logs first.
        telling.sort(key=lambda key: key[0] != 0)
        for key in telling:
            del self._changed[key]
        for key in telling:
            part = self._parts[key]
            if part.log.failure is not None:
                # Its disk takes nothing more; the leader will not count it any longer.
                self.forget(key)
                continue
            if part.log.flushed_end != part.log.log_end:
                # It led until now, and its last records are not durable yet: nothing may be said of them.
                self._again_later(key)
                continue
            bytes_max = settings.partition_bytes
            if part.throttled:
                bytes_max = min(bytes_max, left)
                left -= bytes_max
                if not bytes_max:
                    # Its place is told all the same; it is told again when there is something to spend.
                    self._again_later(key)
            asked[key] = part, place_of(key, part.log, part.epoch, bytes_max)
        forgotten = list(self._forgotten)
        self._forgotten.clear()
        wait_ms = 0 if more else round(settings.wait_s * 1000)
        request = FetchRequest(
            self._replication.generation(), self._session, self._number, wait_ms, settings.fetch_bytes,
            [place for _, place in asked.values()], forgotten,
        )  # fmt: skip
        timeout_s = settings.wait_s + settings.answer_s * self._patience
        asked_s = self._replication.clock.monotonic()
        payload = await self._replication.transport.call(self._leader, ClusterOp.REPLICA_FETCH, [request.encode()], timeout_s)
        self._patience = max(1, self._patience // 2)
        session, parts = decode_answer(payload)
        if not session or (self._session and session != self._session):
            self._session = 0
            return
        self._session = session
        self._number += 1
        self._asked_s = asked_s
        self._places.update(asked)
        if sum(said.size for said in parts) < settings.fetch_bytes:
            # The leader looked at all of them, and has nothing to add to those that it does not name.
            self._all_said_s = asked_s
            for part, _ in asked.values():
                part.current = True
        await self._take(parts)

    async def _take(self, parts: list[Part]) -> None:
        """Do what the leader says."""
        staged: list[tuple[Followed, Part]] = []
        for said in parts:
            known = self._places.get(said.key)
            part = self._parts.get(said.key)
            if known is None or part is not known[0] or said.key in self._beginning:
                # Something else was assigned meanwhile, and will be asked for.
                continue
            _, place = known
            part.current = said.verdict is Verdict.DATA and part.current
            if part.log.removed or (part.log.log_end, part.epoch) != (place.end, place.epoch):
                # What the leader has said is not taken in.
                part.current = False
                self._again(said.key)
            elif said.verdict is Verdict.FENCED:
                self._again_later(said.key)
            elif said.verdict is Verdict.BEHIND:
                task = self._beginning[said.key] = asyncio.get_running_loop().create_task(self._begin_anew(said, part))
                task.add_done_callback(self._ended)
            elif said.verdict is not Verdict.DATA:
                await self._correct(said, part)
            elif self._stage(said, part):
                staged.append((part, said))
            else:
                self._see(said, part)
        if staged:
            outcome = await self._committed()
            for part, said in staged:
                if part.log in outcome.failures:
                    part.current = False
                    self._again_later(said.key)
                elif self._parts.get(said.key) is part:
                    self._see(said, part)
                    self._again(said.key)

    def _stage(self, said: Part, part: Followed) -> bool:
        """Take in what came; False when nothing did."""
        if not said.size:
            return False
        if part.throttled:
            self._replication.throttle.spend(said.size)
        try:
            part.log.stage_replica(b"".join(said.data))
        except BraidError as error:
            logger.error("%s/%d cannot be copied from %s: %s", part.log.topic, part.log.partition, self._leader, error)
            part.current = False
            self._again_later(said.key)
            return False
        self._replication.commit.touch(part.log)
        return True

    async def _committed(self) -> Outcome:
        """Wait until what was staged is written and synced. A log that failed is as it was before, and is asked for again."""
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def told(outcome: Outcome) -> None:
            if not done.done():
                done.set_result(outcome)

        self._replication.commit.join(Level.FSYNC, told)
        return await done

    def _see(self, said: Part, part: Followed) -> None:
        if part.throttled:
            self._lacks(said.key, said.watermark - part.log.log_end)
        part.log.advance_to(said.watermark)
        part.current = part.log.high_watermark >= said.watermark
        part.said_s = self._asked_s
        self._replication.started_at(said.key, said.log_start)

    async def _begin_anew(self, said: Part, part: Followed) -> None:
        """The leader has nothing any more of what would continue this log. Others go on meanwhile."""
        key, log = said.key, part.log
        retry_s = 0.0
        try:
            finish = await self._replication.begin_anew(key, log, said.log_start)
            if finish is None:
                # The whole node begins anew, and until then nothing more is to be said.
                return
            if self._parts.get(key) is part and not log.removed:
                logger.warning("%s/%d begins anew at offset %d", log.topic, log.partition, said.log_start)
                finish()
        except (BraidError, OSError) as error:
            logger.warning("%s/%d cannot begin anew, and tries again: %s", log.topic, log.partition, error)
            retry_s = _BEGIN_AGAIN_S
        del self._beginning[key]
        self._again_later(key, retry_s)

    async def _correct(self, said: Part, part: Followed) -> None:
        """The log is no beginning of the leader's: cut off what is too much."""
        log = part.log
        try:
            offset = min(log.epochs.end_of(said.last_epoch, log.log_start, log.log_end)[1], said.end)
            logger.info("%s/%d: cut at offset %d of %d", log.topic, log.partition, offset, log.log_end)
            cut = Truncation(log, offset)
            try:
                await self._replication.beside(cut.copy)
            except OSError as fault:
                # Nothing has changed yet, and a disk that is full may have space again.
                logger.error("%s/%d cannot be cut: %s", log.topic, log.partition, fault)
                self._again_later(said.key)
                return
            if self._parts.get(said.key) is not part:
                return
            cut.finish()
        except BraidError as error:
            logger.error("%s/%d cannot follow %s: %s", log.topic, log.partition, self._leader, error)
            # Asking again would change nothing, until another one leads.
            self.forget(said.key)
            return
        self._again(said.key)


def place_of(key: LogKey, log: PartitionLog, epoch: int, bytes_max: int) -> Place:
    """Where a follower's log stands."""
    last_epoch = log.epochs.latest if log.log_end > log.log_start else EMPTY
    return Place(key, epoch, log.log_end, last_epoch, log.high_watermark, bytes_max)
