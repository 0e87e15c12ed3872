"""Whether a node that has announced itself is there: what is taken for a sign that it is not, and what follows from it.

The session of a node that died ends seconds later, for it must not end whenever the node is only slow. Waiting for that would
cost every failover those seconds. So there are hints, and each of them starts a check, and nothing else:

    its connection broke         what happens at once when its process dies
    gossip does not hear it      what happens after a moment when its host is gone, or its process hangs

The check asks it for its status. It is a *suspect* when it gave no answer for `suspect_s`, or when its host said for a while that
nobody listens at its address. The second is the surer sign and comes the sooner: a machine that is merely busy refuses nobody.

A suspect counts as away: others lead what it led, and nobody waits for it. If it is there after all, nothing is lost. Who
leads in its place does so in a higher epoch, by a guarded write or by a command of whoever may write the journals; what the suspect
still takes in reaches no replica in sync and is never acknowledged. It loses its leaders for a moment, and comes back with its
first answer.

The session of a suspect is left to end by itself. To revoke it would be no safer, since safety never came from it, and no faster,
since nobody waits for it; but a node that is there would have to announce itself anew and be fenced once more for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.cluster.messages import pack
from braidmq.cluster.transport import ClusterOp

if TYPE_CHECKING:
    from braidmq.cluster.node import ClusterNode

_ASK_AGAIN_S: Final = 0.1
_REFUSED_SHARE: Final = 0.2
"""Of `suspect_s`: so long a node's host has to refuse before the node counts as gone. A service that is restarted by its host
refuses too, and has ended as much as one that is not."""

logger = logging.getLogger("braidmq.cluster")


class Suspicion:
    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        self.suspects: set[str] = set()
        """Nodes with a session that do not answer."""
        self.refusing: set[str] = set()
        """Those of them whose host says that nobody is there."""
        node.transport.watch(self._connection_changed)

    def _connection_changed(self, name: str, up: bool) -> None:
        if up:
            self.clear(name)
        else:
            self.check(name)

    def clear(self, name: str) -> None:
        """There is a sign of life."""
        if name in self.suspects:
            self.suspects.discard(name)
            self.refusing.discard(name)
            self._node.pulse()

    def check(self, name: str) -> None:
        """There is a hint that a node is not there: find out."""
        node = self._node
        if name in node.sessions and name != node.node and not node.stopping:
            # Each hint has a check of its own: one that is under way may have had its answer before the hint came.
            node.keep(self._find_out(name))

    async def _find_out(self, name: str) -> None:
        if await self._is_gone(name) and name not in self.suspects:
            logger.warning("node %s does not answer", name)
            self.suspects.add(name)
            self._node.pulse()
            await self._until_it_answers(name)

    async def _is_gone(self, name: str) -> bool:
        node = self._node
        suspect_s = node.settings.suspect_s
        began_s = node.clock.monotonic()
        answered_s = began_s
        """When its host last did not refuse."""
        while True:
            refused = False
            try:
                await node.transport.call(name, ClusterOp.NODE_STATUS, pack({}), suspect_s)
                return False
            except BraidError as error:
                if error.code != "NODE_UNREACHABLE" or name not in node.sessions:
                    return False
                refused = bool(error.fields.get("refused"))
            now_s = node.clock.monotonic()
            if not refused:
                answered_s = now_s
            if now_s - answered_s >= suspect_s * _REFUSED_SHARE:
                self.refusing.add(name)
                return True
            if now_s - began_s >= suspect_s:
                return True
            await asyncio.sleep(min(_ASK_AGAIN_S, suspect_s * _REFUSED_SHARE))

    async def _until_it_answers(self, name: str) -> None:
        """A connection may have come back while this was found out, and nobody tells of it again."""
        suspect_s = self._node.settings.suspect_s
        while name in self.suspects:
            await asyncio.sleep(suspect_s)
            with contextlib.suppress(BraidError):
                await self._node.transport.call(name, ClusterOp.NODE_STATUS, pack({}), suspect_s)
                self.clear(name)
