"""How the lag of groups went lately. The log does not tell, so somebody has to look now and then.

Looking begins when the first page of the console is opened and ends an hour after the last one. Everything here is in memory and in
the HTTP thread; the broker is asked as by any request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

from braidmq.admin.site import Site
from braidmq.base.errors import BraidError
from braidmq.broker.group_lag import GroupLag

_EVERY_SECONDS: Final = 5.0
_KEPT: Final = 720
_UNWATCHED_SECONDS: Final = 3600.0
GROUPS_MAX: Final = 1000
"""Groups that are remembered; where there are more, those furthest behind."""

Sample = tuple[float, int, float]
"""When, in seconds since the epoch; records; seconds behind."""

logger = logging.getLogger("braidmq.admin")


class LagTrend:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._samples: dict[tuple[str, str], deque[Sample]] = {}
        self._task: asyncio.Task[None] | None = None
        self._wanted_at = 0.0

    def keep_watching(self) -> None:
        """Called with each page that somebody opens."""
        self._wanted_at = self._site.server.clock.monotonic()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())

    async def of(self, topic: str, group: str) -> list[Sample]:
        """Samples of a group, the oldest first, with one of now."""
        broker = self._site.server.broker
        self._add(await self._site.gate.ask(lambda: broker.coordinator.group_lag(topic, group)))
        return list(self._samples.get((topic, group), ()))

    async def _watch(self) -> None:
        site = self._site
        while not site.stopping.is_set() and site.server.clock.monotonic() - self._wanted_at < _UNWATCHED_SECONDS:
            try:
                self._take(await site.gate.ask(site.server.broker.coordinator.lags))
            except BraidError as fault:
                # It is asked again in a moment; meanwhile there is a gap in a plot.
                logger.debug("the lag of groups cannot be told: %s", fault)
            try:
                async with asyncio.timeout(_EVERY_SECONDS):
                    await site.stopping.wait()
            except TimeoutError:
                continue

    def _take(self, lags: list[GroupLag]) -> None:
        lags = sorted(lags, key=lambda lag: -lag.records)[:GROUPS_MAX]
        for lag in lags:
            self._add(lag)
        for gone in self._samples.keys() - {(lag.topic, lag.group) for lag in lags}:
            del self._samples[gone]

    def _add(self, lag: GroupLag) -> None:
        if lag.unknown:
            # A gap in the plot says so.
            return
        kept = self._samples.setdefault((lag.topic, lag.group), deque(maxlen=_KEPT))
        now = self._site.server.clock.now_ms() / 1000
        if not kept or now - kept[-1][0] >= _EVERY_SECONDS / 2:
            kept.append((now, lag.records, lag.ms / 1000))
