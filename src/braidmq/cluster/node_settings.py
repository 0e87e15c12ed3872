"""What a node of a cluster is told when it starts, by its settings or by a simulation."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    node: str
    cluster_id: str
    about: dict[str, str] = field(default_factory=dict)
    """What others are told: `client` and `cluster` addresses, `rack`, `admin`."""
    replication_factor: int = 3
    min_insync: int = 2
    placement: str = "round-robin"
    session_s: float = 6.0
    suspect_s: float = 1.0
    """How long a node that was heard of before may fail to answer before others lead in its place."""
    forget_s: float = 60.0
    """How long a node that was emptied may be gone before the others forget it: it may only have been restarted."""
    rebalance_interval_s: float = 300.0
    """0 moves no leader unless somebody asks."""
    rebalance_threshold: float = 0.2
    follower_reads: bool = False
    """Whether clients may read from replicas here."""
