"""Records on several nodes: leaders that say what is committed, and followers that copy what leaders stored."""

from __future__ import annotations

from braidmq.cluster.replication.replication import Replication
from braidmq.cluster.replication.settings import ReplicationSettings

__all__ = ["Replication", "ReplicationSettings"]
