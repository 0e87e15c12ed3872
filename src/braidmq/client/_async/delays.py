"""Delayed records: what `braid delayed` does."""

from __future__ import annotations

from typing import Final

from braidmq.wire import flymq

from .asking import Asker

LIST_MAX: Final = 1000


class DelayedRecords:
    """`client.delayed`."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def ls(self, topic: str = "", max_count: int = LIST_MAX) -> list[flymq.DelayedMessage]:
        """What waits for its time, the soonest first: of one topic, or of all."""
        return list((await self._asker.ask(flymq.DelayedList(topic, max_count), flymq.DelayedMessages)).messages)

    async def cancel(self, delayed_id: str) -> None:
        """Drop a record that was not delivered yet; MESSAGE_NOT_FOUND when it is too late."""
        await self._asker.ask(flymq.CancelDelayed(delayed_id), flymq.Ok, again=False)
