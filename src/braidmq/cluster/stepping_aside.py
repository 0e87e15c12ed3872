"""A node whose disk takes no more lets others lead.

A leader that cannot write would keep its partitions from everybody: it is here, so nobody is elected in its place. So when a
write to a log that it leads fails, because the disk is full or broken, it has others that are in sync lead all that it leads,
the journals first: while these cannot be written, nothing else can be moved. It stays a replica, falls out of sync like any
that lacks records, and comes back when it can write again.

It is tried once for every failure, and not more often than once a second: where no other node can lead, or every disk is full,
leaders stay or go round, nothing is lost, and the first node that has space again is the one that stays.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.log.partition import PartitionLog

if TYPE_CHECKING:
    from braidmq.cluster.node import ClusterNode

_AGAIN_S: Final = 1.0

logger = logging.getLogger("braidmq.cluster")


class SteppingAside:
    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        self._told = node.broker.commit.on_failure
        self._under_way = False
        node.broker.commit.on_failure = self._write_failed

    def _write_failed(self, log: PartitionLog, error: BraidError) -> None:
        if self._told is not None:
            self._told(log, error)
        if not self._under_way and self._node.replication.leads(log):
            self._under_way = True
            self._node.keep(self._step_aside(error))

    async def _step_aside(self, why: BraidError) -> None:
        node = self._node
        logger.warning("this node cannot write, others are to lead: %s", why)
        try:
            if node.coordinates:
                await node.journals.hand_over(node.live(), stays=True)
            else:
                await node.step_down()
        except BraidError as error:
            logger.warning("nobody else leads yet: %s", error)
        finally:
            # Whoever wants to write tries again, and fails again while this node leads: that is when to go on.
            await asyncio.sleep(_AGAIN_S)
            self._under_way = False
