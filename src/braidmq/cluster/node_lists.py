"""Lists of what each node has for itself, put together: whom it pushes to, which queues it serves.

A node that lists something asks all others at once, with a short limit, and gets of each its part of the page that was asked for.
Whoever is away or does not answer in time is named with the reason: what it has is missing, and that must be seen. A node that
was taken out of the cluster and is gone has nothing, and is not named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.cluster.messages import pack, unpack
from braidmq.cluster.transport import ClusterOp

if TYPE_CHECKING:
    from braidmq.cluster.node import ClusterNode

_ANSWER_S: Final = 2.0


class NodeLists:
    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        node.transport.serve(ClusterOp.NODE_LIST, self._asked)

    async def of_others(self, name: str, after: Sequence[str], limit: int) -> tuple[dict[str, list[Any]], dict[str, str]]:
        """Rows of a list by the node that has them, and why those of other nodes are missing."""
        node = self._node
        rows: dict[str, list[Any]] = {}
        missing: dict[str, str] = {}

        async def ask(other: str) -> None:
            try:
                answer = await node.transport.call(other, ClusterOp.NODE_LIST, pack([name, list(after), limit]), _ANSWER_S)
                rows[other] = unpack(answer)[0]
            except BraidError as error:
                missing[other] = error.text

        asked = []
        for other, record in sorted(node.table.brokers.items()):
            if other == node.node or (record.retired and not record.live):
                continue
            if other in node.live():
                asked.append(ask(other))
            else:
                missing[other] = "it is away"
        await asyncio.gather(*asked)
        return rows, missing

    async def _asked(self, other: str, payload: memoryview) -> Sequence[Buffer]:
        name, after, limit = unpack(payload)[0]
        make = self._node.broker.lists.get(name)
        if make is None:
            raise BraidError("INVALID_ARGUMENT", reason=f"there is no list `{name}`")
        return pack(make(tuple(after), limit))
