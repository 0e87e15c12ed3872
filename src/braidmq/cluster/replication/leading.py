"""A partition that this node leads: how far its replicas are, who of them is in sync, and how far readers see.

The rules, on which everything rests (see docs/architecture.md):

* What a follower has is what it says in a fetch of this epoch, and only if its log continues in ours. What it said to an earlier
  leader, or to this one before it was elected anew, counts for nothing.
* Readers see up to the least of what is durable here and at every replica that is in sync. This does not move while fewer than
  `min_insync` are.
* Who is in sync changes by a guarded write elsewhere. One that is to come in counts at once; one that is to go counts until the
  write is known to have happened; where the outcome is unknown, both count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from braidmq.base.errors import BraidError
from braidmq.cluster.partition_state import LogKey, PartitionState
from braidmq.cluster.replication.fetching import EMPTY, Part, Place, Verdict
from braidmq.log.level import Level
from braidmq.log.partition import PartitionLog

if TYPE_CHECKING:
    from braidmq.cluster.replication.replication import Replication


@dataclass(slots=True)
class Progress:
    """How far a replica is, as it said in this epoch."""

    end: int
    caught_up_s: float
    """When it last had everything that was there a fetch before."""
    heard_s: float
    log_end_then: int
    """Where our log ended when it was last heard."""


class LedPartition:
    """The gate of a log that this node leads."""

    def __init__(self, replication: Replication, key: LogKey, log: PartitionLog, state: PartitionState) -> None:
        self._replication = replication
        self.key = key
        self.log = log
        self.state = state
        self.epoch_start = log.log_end
        self.began_s = replication.clock.monotonic()
        self.followers: dict[str, Progress] = {}
        self.proposed: tuple[str, ...] = ()
        """Replicas that are to be in sync, as far as is known."""
        self.unsure = False
        """Whether the outcome of a proposal is unknown."""
        self.altering = False
        self.setbacks = 0
        """How often in a row an outcome stayed unknown."""
        self._left_s: dict[str, float] = {}
        """When replicas left the isr."""

    # --- what the log tells

    def written(self, log: PartitionLog) -> None:
        self._replication.tell_followers(self.key)

    def flushed(self, log: PartitionLog) -> None:
        self.advance()

    # --- states

    def update(self, state: PartitionState) -> None:
        """The same epoch, with other replicas or another isr."""
        if state.version != self.state.version:
            # Whatever was proposed was proposed for the version before, and is refused now if it did not happen.
            self.proposed, self.unsure, self.setbacks = (), False, 0
        now_s = self._replication.clock.monotonic()
        self._left_s.update((node, now_s) for node in self.state.isr if node not in state.isr)
        self.state = state
        self._check_replicas(self._replication.min_insync(self.key))
        self.advance()

    def _check_replicas(self, min_insync: int) -> None:
        """Refuse records that were to be on more replicas than are in sync."""
        found = len(self.state.isr)
        if found >= min_insync or self.log.settings.level < Level.QUORUM:
            self.log.accept()
            return
        error = BraidError(
            "NOT_ENOUGH_REPLICAS", topic=self.log.topic, partition=self.log.partition, found=found, needed=min_insync
        )
        self.log.refuse(error, error)

    def counted(self) -> tuple[str, ...]:
        """The replicas that have to have what readers see."""
        return (*self.state.isr, *(node for node in self.proposed if node not in self.state.isr))

    def advance(self) -> None:
        """Let readers see what every replica in sync has."""
        if len(self.state.isr) < self._replication.min_insync(self.key):
            return
        end = self.log.flushed_end
        for node in self.counted():
            if node != self._replication.node:
                progress = self.followers.get(node)
                if progress is None:
                    return
                end = min(end, progress.end)
        if end > self.log.high_watermark:
            self.log.advance_to(end)
            self._replication.tell_followers(self.key)

    # --- followers

    def judge(self, place: Place) -> Part | None:
        """What keeps a follower at `place` from being sent more; None when its log is the beginning of ours."""
        log, epoch = self.log, self.state.epoch
        if place.epoch != epoch:
            return Part(place.key, Verdict.FENCED, epoch, log.high_watermark, log.log_start)
        if place.end < log.log_start:
            return Part(place.key, Verdict.BEHIND, epoch, log.high_watermark, log.log_start)
        if place.last_epoch == EMPTY:
            if place.end > log.log_end:
                return Part(place.key, Verdict.BEHIND, epoch, log.high_watermark, log.log_start)
            return None
        known, end = log.epochs.end_of(place.last_epoch, log.log_start, log.log_end)
        if known != place.last_epoch or end < place.end:
            return Part(place.key, Verdict.DIVERGED, epoch, log.high_watermark, log.log_start, known, end)
        return None

    def heard(self, node: str, place: Place, now_s: float) -> None:
        """A follower whose log continues in ours says where it stands: that is its acknowledgement."""
        log_end = self.log.log_end
        progress = self.followers.get(node)
        if progress is None:
            caught_up_s = now_s if place.end >= log_end else self.began_s
            self.followers[node] = Progress(place.end, caught_up_s, now_s, log_end)
        else:
            if place.end >= log_end:
                progress.caught_up_s = now_s
            elif place.end >= progress.log_end_then:
                progress.caught_up_s = max(progress.caught_up_s, progress.heard_s)
            progress.end = max(progress.end, place.end)
            progress.heard_s, progress.log_end_then = now_s, log_end
        self.advance()

    def misses(self, node: str) -> bool:
        """Whether the partition takes nothing for want of replicas, and this one may help: nobody waits for the next look then."""
        return node not in self.state.isr and len(self.state.isr) < self._replication.min_insync(self.key) and not self.unsure

    @property
    def _needed_end(self) -> int:
        """What a replica must have to come in: all that readers see, and all that was there when this epoch began."""
        return max(self.log.high_watermark, self.epoch_start)

    @property
    def knows_end(self) -> bool:
        """Whether readers see all that they may have seen under an earlier leader: what was there when this epoch began."""
        return self.log.high_watermark >= self.epoch_start

    def wanted_isr(self, now_s: float, lag_s: float) -> tuple[str, ...]:
        """Who is in sync, judged by what was heard. `heard_s` of a follower without news is that of its last fetch."""
        me = self._replication.node
        wanted = []
        for node in (*self.state.isr, *(node for node in self.state.replicas if node not in self.state.isr)):
            progress = self.followers.get(node)
            if node == me:
                wanted.append(node)
            elif node in self.state.isr:
                if now_s - (self.began_s if progress is None else progress.caught_up_s) <= lag_s:
                    wanted.append(node)
            elif progress is not None and now_s - progress.caught_up_s <= lag_s and progress.end >= self._needed_end:
                # Whoever left has to be heard again: one that is dead had everything a moment ago.
                wanted += [node] if progress.caught_up_s > self._left_s.get(node, -1.0) else []
        return tuple(wanted)
