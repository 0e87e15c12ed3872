"""All fetchers of a consumer, and which partition is with which.

With a broker that runs alone the partitions are spread over as many connections as the settings allow. In a cluster each is with a
fetcher of the node that leads it, or of one that has a replica where the settings say so, and moves to another when that changes:
what was fetched stays, and the next fetch is asked of whoever it is then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from braidmq.client._backend import asyncio as backend
from braidmq.client.addresses import Address
from braidmq.client.inbox import Inbox, PartitionState
from braidmq.client.settings import ClientSettings

from .dialer import Dialer
from .fetcher import Fetcher
from .leaders import Leaders

JOIN_SECONDS_MAX: Final = 5.0
"""How long the end waits for the background tasks, which end at once unless something is wrong."""


class Fetching:
    def __init__(
        self, dialer: Dialer, leaders: Leaders, inbox: Inbox, settings: ClientSettings, arrived: backend.Signal
    ) -> None:
        self._dialer = dialer
        self._leaders = leaders
        self._inbox = inbox
        self._settings = settings
        self._arrived = arrived
        self._fetchers: list[Fetcher] = []
        self._tasks: list[backend.Task] = []
        self._of: dict[PartitionState, Fetcher] = {}

    @property
    def running(self) -> bool:
        return bool(self._fetchers)

    def of(self, part: PartitionState) -> Fetcher:
        return self._of[part]

    def begin(self, states: Sequence[PartitionState]) -> None:
        """Fetch these partitions from now on."""
        by_server: dict[Address | None, list[PartitionState]] = {}
        for state in states:
            by_server.setdefault(self._leaders.reader(state.topic, state.partition, self._settings), []).append(state)
        share = max(1, self._settings.fetch_connections // max(1, len(by_server)))
        for server, parts in by_server.items():
            count = min(len(parts), share)
            for number in range(count):
                self._add(server, parts[number::count])

    def _add(self, server: Address | None, parts: Iterable[PartitionState]) -> Fetcher:
        fetcher = Fetcher(self._dialer, self._leaders, self._inbox, parts, self._settings, self._arrived, server, self._move)
        for part in fetcher.parts:
            self._of[part] = fetcher
        self._fetchers.append(fetcher)
        self._tasks.append(backend.spawn(fetcher.run, f"braidmq fetcher {len(self._fetchers)}"))
        return fetcher

    def _move(self, part: PartitionState, fetcher: Fetcher) -> None:
        """Let a partition be fetched from where it is to be, as far as that is known; else from any server, which may say."""
        server = self._leaders.reader(part.topic, part.partition, self._settings)
        with self._inbox.mutex:
            if server == fetcher.server or part not in fetcher.parts or fetcher not in self._fetchers:
                return
            fetcher.parts.remove(part)
            able = [other for other in self._fetchers if other.server == server]
            if able:
                chosen = min(able, key=lambda other: len(other.parts))
                chosen.parts.append(part)
                self._of[part] = chosen
            else:
                chosen = self._add(server, [part])
        chosen.room.set()

    async def end(self) -> None:
        with self._inbox.mutex:
            fetchers, self._fetchers = self._fetchers, []
            tasks, self._tasks = self._tasks, []
        for fetcher in fetchers:
            fetcher.stop()
        for task in tasks:
            await task.join(JOIN_SECONDS_MAX)

    def forget(self) -> None:
        """There are no partitions any more."""
        self._of = {}
