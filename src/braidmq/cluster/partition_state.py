"""Who has a partition, who leads it, and who may: as a value, with every way it can change as a pure function.

A state changes one step at a time. `version` grows with every step and `epoch` with every change of the leader (a leader that
was restarted counts as another one), and whoever writes a step says which epoch and version it was made from: a step
that was made from an older state is refused, so two nodes can never each believe in a change of their own.

    isr   replicas that have everything readers may see; an acknowledgement waits for all of them
    elr   replicas that left the isr when it was at its smallest allowed size, and so still have everything readers may see:
          the watermark does not move without enough replicas. They may lead when nobody of the isr lives (KIP-966)

Rules: a leader is always of the isr. An isr is never empty. A partition whose isr and elr are all dead is offline, and nobody
else is elected: what was acknowledged is worth more than an early start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

LogKey = tuple[int, int]
"""A topic's id and the partition; of the broker's own logs 0 and their number in `journals.INTERNAL`."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    leader: str
    """Empty while nobody may lead."""
    epoch: int
    replicas: tuple[str, ...]
    """In the order of preference: the first one should lead."""
    isr: tuple[str, ...]
    elr: tuple[str, ...]
    version: int

    def document(self) -> list[Any]:
        """As JSON can hold it."""
        return [self.leader, self.epoch, list(self.replicas), list(self.isr), list(self.elr), self.version]

    @classmethod
    def of(cls, document: list[Any]) -> PartitionState:
        leader, epoch, replicas, isr, elr, version = document
        return cls(leader, epoch, tuple(replicas), tuple(isr), tuple(elr), version)

    @property
    def name(self) -> str:
        """How it is called towards clients."""
        if not self.leader:
            return "offline"
        return "online" if set(self.replicas) <= set(self.isr) else "syncing"


def created(replicas: Iterable[str], live: Collection[str]) -> PartitionState:
    """A new, empty partition: every replica that lives has all of it."""
    chosen = tuple(replicas)
    isr = tuple(node for node in chosen if node in live) or chosen[:1]
    leader = isr[0] if isr[0] in live else ""
    return PartitionState(leader, 1, chosen, isr, (), 1)


def successors(state: PartitionState, live: Collection[str]) -> list[str]:
    """Who may lead, in the order of the replicas."""
    able = [node for node in state.replicas if node in state.isr and node in live]
    # Observers of a move are in the isr before they are replicas of right.
    return able or [node for node in state.isr if node in live] or [node for node in state.elr if node in live]


def elected(state: PartitionState, live: Collection[str], preferred: str = "") -> PartitionState | None:
    """A new leader: `preferred` if it may, else the first replica in order that may; None when nobody may lead."""
    able = successors(state, live)
    if not able:
        return None
    leader = preferred if preferred in able else able[0]
    if leader in state.isr:
        return replace(state, leader=leader, epoch=state.epoch + 1, version=state.version + 1)
    # It has all that readers saw. So have those that were in the isr: the watermark has not moved since, and will not before the
    # isr, which begins anew, is large enough again.
    rest = tuple(node for node in dict.fromkeys((*state.elr, *state.isr)) if node != leader)
    return replace(state, leader=leader, epoch=state.epoch + 1, isr=(leader,), elr=rest, version=state.version + 1)


def offline(state: PartitionState) -> PartitionState | None:
    """Nobody leads; None when it is so already."""
    if not state.leader:
        return None
    return replace(state, leader="", epoch=state.epoch + 1, version=state.version + 1)


def with_isr(state: PartitionState, isr: Iterable[str], min_insync: int) -> PartitionState | None:
    """The leader's word on who has everything; None when it is what is known already.

    Whoever leaves an isr that falls below `min_insync` is eligible: from then on the watermark stands still, so it misses nothing.
    """
    wanted = tuple(isr)
    if state.leader not in wanted:
        raise ValueError("a leader is of its own isr")
    if wanted == state.isr:
        return None
    elr: tuple[str, ...] = ()
    if len(wanted) < min_insync:
        known = tuple(node for node in state.elr if node not in wanted)
        elr = known + tuple(node for node in state.isr if node not in wanted and node not in known)
    return replace(state, isr=wanted, elr=elr, version=state.version + 1)


def moved(state: PartitionState, replicas: Iterable[str], live: Collection[str] = ()) -> PartitionState | None:
    """Other replicas. Who is no replica any more leaves isr and elr, and the lead; None when nothing changes or nobody would be
    left."""
    wanted = tuple(replicas)
    isr = tuple(node for node in state.isr if node in wanted)
    if wanted == state.replicas or not isr:
        return None
    elr = tuple(node for node in state.elr if node in wanted)
    after = replace(state, replicas=wanted, isr=isr, elr=elr, version=state.version + 1)
    if state.leader in wanted or not state.leader:
        return after
    chosen = elected(replace(after, version=state.version), live or isr)
    return chosen or replace(after, leader="", epoch=state.epoch + 1)
