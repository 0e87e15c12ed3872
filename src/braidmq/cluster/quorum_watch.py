"""Whether the metadata quorum answers, and how fast: asked now and then, because in quiet times nobody else would notice.

While it is lost records are served as before; what waits are changes of leaders and members. So it is told, by `/ready` and by a
metric, and nothing is decided by it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.base.figures import Histogram
from braidmq.cluster.journals import STATE_KEY

if TYPE_CHECKING:
    from braidmq.cluster.node import ClusterNode

INTERVAL_S: Final = 2.0
ANSWER_S: Final = 3.0


class QuorumWatch:
    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        self._task: asyncio.Task[None] | None = None
        self.seconds = Histogram()
        """How long the quorum took to answer."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL_S)

    async def look(self) -> None:
        """Ask once."""
        node = self._node
        began_s = node.clock.monotonic()
        try:
            async with asyncio.timeout(ANSWER_S):
                await node.quorum.read(STATE_KEY)
        except BraidError as fault:
            node.quorum_fault = fault.text
        except TimeoutError:
            node.quorum_fault = f"no answer for {ANSWER_S:g} s"
        else:
            node.quorum_fault = ""
            self.seconds.observe(node.clock.monotonic() - began_s)
