"""Being seen as a member of a group that divides nothing: for readers that divide their work themselves, as Spark does.

The broker counts a connection as a member from its SUBSCRIBE until it closes. So a connection of its own is kept for that, and
when the process dies the member is gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from braidmq.client.settings import ClientSettings
from braidmq.wire import flymq

from .asking import expect
from .connection import Connection, encode
from .dialer import Dialer


class Presence:
    def __init__(self, dialer: Dialer, settings: ClientSettings, group: str) -> None:
        self._dialer = dialer
        self._settings = settings
        self._group = group
        self._connection: Connection | None = None
        self._announced: set[str] = set()
        self.closed = False

    async def announce(self, topics: Iterable[str]) -> None:
        """Be a member of the group on these topics, and stay so; to be called now and then, as it mends what broke."""
        connection = self._connection
        if connection is None or not connection.usable():
            await self._hang_up()
            connection = self._connection = await self._dialer.dial(self._settings.timeout_s)
        for topic in topics:
            if topic not in self._announced:
                request = flymq.Subscribe(topic, self._group, 0, "commit")
                expect(request, (await connection.call([encode(request)], self._settings.timeout_s))[0], flymq.Offset)
                self._announced.add(topic)

    async def close(self) -> None:
        """Be a member no more."""
        self.closed = True
        await self._hang_up()

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        self._announced.clear()
        if connection is not None:
            await connection.close()
