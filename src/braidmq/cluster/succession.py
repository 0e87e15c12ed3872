"""Who leads the journals when a node that had a part in them is not here any more.

    their leader is away          whoever may leads instead, the first in order first: by a guarded write, so only one of them does
    a follower in sync is away    their leader waits for it no longer

Both go before everything else, and on a task of their own. Whatever the coordinator decides is a command in the journals, and a
command is agreed to when every replica in sync has it: one that says who leads in the place of a lost node would wait for the
lost node itself, until it has lagged behind for so long that it is not in sync any more.

Suspicion says when to do this, never who wins (`suspicion.py`). If it was a mistake, the old leader finds out by its next write,
and a follower that was dropped comes back when it has caught up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from braidmq.base.errors import BraidError

if TYPE_CHECKING:
    from braidmq.cluster.node import ClusterNode

logger = logging.getLogger("braidmq.cluster")


class Succession:
    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        self._led = False
        self._replaced_s = float("-inf")
        """When another node came to lead in place of this one."""

    async def run(self) -> None:
        node = self._node
        while True:
            # Whatever changes from here on is looked at in the next round.
            moved = node.moved
            try:
                await self._look()
            except BraidError as error:
                logger.warning("the journals stay as they are for now: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(node.settings.suspect_s):
                    await moved.wait()

    async def _look(self) -> None:
        node = self._node
        journals, live = node.journals, node.live()
        state = journals.state
        assert state is not None
        now_s = node.clock.monotonic()
        leads = state.leader == node.node
        if self._led and not leads:
            self._replaced_s = now_s
        self._led = leads
        if leads:
            away = {name for name in state.isr if name not in live}
            if away:
                await journals.drop(away)
        elif state.leader not in live and not node.stopping and not self._owes_time(state.leader):
            able = [name for name in (*state.isr, *state.elr) if name in live]
            if node.node in able:
                # The first of them goes first; if it does not, the others follow.
                await asyncio.sleep(able.index(node.node) * node.settings.suspect_s / 2)
                if journals.state == state and state.leader not in node.live():
                    await journals.take_over(node.live())

    def _owes_time(self, leader: str) -> bool:
        """Two nodes that do not hear each other would take the journals from each other for ever, and neither would have the time
        to bring a third one in sync. So whoever was replaced leaves the other one be for as long as a session lasts, unless that
        one is gone for certain."""
        node = self._node
        certain = leader not in node.sessions or leader in node.suspicion.refusing
        return not certain and node.clock.monotonic() - self._replaced_s < node.settings.session_s
