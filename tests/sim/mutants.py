"""Ways to break replication, each the mistake of a system that lost records by it. A checker that lets one pass proves nothing.

They are patches of the running code, put on by tests: the product has no switch for any of this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from braidmq.base.errors import BraidError
from braidmq.cluster import replica_table
from braidmq.cluster.partition_state import LogKey, PartitionState, elected
from braidmq.cluster.replication import Replication
from braidmq.cluster.replication.fetching import Part, Place, Verdict
from braidmq.cluster.replication.following import Followed, Follower
from braidmq.cluster.replication.leading import LedPartition
from braidmq.cluster.replication.replication import FetchSession
from braidmq.log.commit import SyncJob
from braidmq.log.partition_replica import PartitionReplica, Truncation
from braidmq.sim import replicas

Patch = Callable[[pytest.MonkeyPatch], None]


def no_truncation(patch: pytest.MonkeyPatch) -> None:
    """A follower keeps what the leader does not have, and goes on behind it."""
    judge = LedPartition.judge

    def lenient(self: LedPartition, place: Place) -> Part | None:
        found = judge(self, place)
        if found is not None and found.verdict is Verdict.DIVERGED and place.end <= self.log.log_end:
            return None
        return found

    patch.setattr(LedPartition, "judge", lenient)


def ack_before_fsync(patch: pytest.MonkeyPatch) -> None:
    """Records count as durable when they are written, and are synced some other time."""
    patch.setattr(SyncJob, "run", lambda self, disk: None)


def watermark_before_the_guarded_write(patch: pytest.MonkeyPatch) -> None:
    """A replica that is to leave the isr is not waited for any more, before anybody agreed to it."""

    def hasty(self: LedPartition) -> tuple[str, ...]:
        return self._hasty if self.altering else self.state.isr  # type: ignore[attr-defined]

    propose = Replication._propose

    def proposing(self: Replication, together: list[LedPartition], isr: tuple[str, ...]) -> None:
        for led in together:
            led._hasty = isr  # type: ignore[attr-defined]
        propose(self, together, isr)
        for led in together:
            led.advance()

    patch.setattr(LedPartition, "counted", hasty)
    patch.setattr(Replication, "_propose", proposing)


def unclean_election(patch: pytest.MonkeyPatch) -> None:
    """Whoever is there leads, in sync or not."""

    def anybody(state: PartitionState, live: Collection[str], preferred: str = "") -> PartitionState | None:
        found = elected(state, live, preferred)
        there = [node for node in state.replicas if node in live]
        if found is not None or not there:
            return found
        return replace(state, leader=there[0], isr=(there[0],), elr=(), epoch=state.epoch + 1, version=state.version + 1)

    patch.setattr(replicas.partition_state, "elected", anybody)

    def first(state: PartitionState, live: Collection[str]) -> list[str]:
        return [node for node in state.replicas if node in live]

    def led(state: PartitionState, live: Collection[str], preferred: str = "") -> PartitionState | None:
        able = first(state, live)
        if not able:
            return None
        leader = preferred if preferred in able else able[0]
        isr = tuple(dict.fromkeys((leader, *(node for node in state.isr if node in live))))
        return replace(state, leader=leader, isr=isr, elr=(), epoch=state.epoch + 1, version=state.version + 1)

    patch.setattr(replica_table, "successors", first)
    patch.setattr(replica_table, "elected", led)


def truncation_to_the_watermark(patch: pytest.MonkeyPatch) -> None:
    """A follower of a new leader cuts off everything behind its own watermark, which may be behind that of others (KIP-101)."""
    follow = Follower.follow

    def cutting(self: Follower, key: LogKey, part: Followed) -> None:
        if part.log.log_end > part.log.high_watermark and part.log.failure is None:
            cut = Truncation(part.log, part.log.high_watermark)
            cut.copy()
            cut.finish()
        follow(self, key, part)

    patch.setattr(Follower, "follow", cutting)
    no_truncation(patch)


def stale_progress(patch: pytest.MonkeyPatch) -> None:
    """What a follower said in an earlier epoch, or of a log that does not continue in ours, counts as what it has."""
    gathered = Replication._gathered

    async def gathering(self: Replication, session: FetchSession, bytes_max: int) -> list[Part]:
        for place in session.places.values():
            led = self._led.get(place.key)
            if led is not None:
                led.heard(session.node, place, self.clock.monotonic())
        return await gathered(self, session, bytes_max)

    patch.setattr(Replication, "_gathered", gathering)


def no_fencing(patch: pytest.MonkeyPatch) -> None:
    """Epochs are not compared: whoever led is followed on, and believes whoever fetches from it."""
    judge, stage = LedPartition.judge, PartitionReplica.stage_replica

    def trusting(self: LedPartition, place: Place) -> Part | None:
        return judge(self, replace(place, epoch=self.state.epoch))

    def staging(self: PartitionReplica, data: Any) -> int:
        if self.pending_bytes:
            raise BraidError("INVALID_BATCH", reason="not now")
        before, self.leader_epoch = self.leader_epoch, 1 << 31
        try:
            return stage(self, data)
        finally:
            self.leader_epoch = before

    patch.setattr(LedPartition, "judge", trusting)
    patch.setattr(PartitionReplica, "stage_replica", staging)
    patch.setattr(Replication, "_unfollow", lambda self, key: self._followed.pop(key, None))


MUTANTS: dict[str, Patch] = {
    "no truncation": no_truncation,
    "ack before fsync": ack_before_fsync,
    "watermark before the guarded write": watermark_before_the_guarded_write,
    "unclean election": unclean_election,
    "truncation to the watermark": truncation_to_the_watermark,
    "stale progress": stale_progress,
    "no fencing": no_fencing,
}

WHOLE_NODE_MUTANTS = {name: patch for name, patch in MUTANTS.items() if name != "no fencing"}
"""Those that seeds of whole nodes notice. A leader there that nobody fences is found out by what its log lacks: who follows another
one has batches of an epoch that it does not know."""
