"""What replication may be told."""

from __future__ import annotations

from dataclasses import dataclass

from braidmq.base import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    lag_s: float = 10.0
    """How long a replica may lack something that the leader has before it is not in sync any more."""
    fresh_s: float = 2.0
    """How long ago a follower may have heard from its leader for readers to be served here: a copy that stands still tells them
    nothing new, and they would not notice."""
    wait_s: float = 0.1
    """How long a leader holds a fetch back that it has nothing for."""
    answer_s: float = 3.0
    """How long a follower waits for an answer, beyond that."""
    retry_s: float = 0.05
    """When a follower asks again after a leader could not be reached, or did not know yet that it leads."""
    settle_s: float = 0.2
    """When a leader asks again what came of its word on who is in sync; each time later, up to a quarter of `lag_s`."""
    partition_bytes: int = 1 * limits.MIB
    """Most that a fetch brings of one partition, but at least a batch."""
    fetch_bytes: int = 8 * limits.MIB
    """Most that it brings of all."""
    fetch_places: int = 500
    """Most partitions of which one fetch says where they stand; the next one goes on at once."""
    catch_up_bytes_per_s: int = 100 * limits.MIB
    """How fast a node copies what it lacks of partitions in which it is not in sync: a new replica must not starve clients."""
