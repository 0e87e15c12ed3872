"""Places in the log that outlive a connection and the broker: how far durable subscribers and queues have come.

A position is the committed offset of a consumer group, one for each partition, so the same list shows FlyMQ's groups, BlipMQ's
durable clients and fq's disk queues, each with its lag. Whoever has positions is a `Positioned`: it has the name of its group and
says where it would go on.

The first position of a partition is made durable before the peer is told anything (`commit`). After that `moved` is enough: within
a second, and when the broker stops, everything that moved is written with one command. A crash therefore repeats about a second of
what was delivered; it never skips anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.group_offsets import GroupOffsets
from braidmq.broker.groups import OffsetRow

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.broker.push.feed import Feed

_COMMIT_SECONDS: Final = 1.0

logger = logging.getLogger("braidmq.push")


class Positioned(Protocol):
    """Whoever would go on where it was."""

    @property
    def group(self) -> str:
        """The consumer group that keeps its places."""

    def positions(self) -> Iterable[tuple[Feed, int]]:
        """Each partition, and the first offset that is not done with."""


class Positions:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._moved: dict[Positioned, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._stopped = False

    def at(self, group: str, feed: Feed) -> int | None:
        """The committed position of a group in a partition; None where it has none."""
        return self._broker.groups.committed(feed.topic.id, group, feed.partition)

    # --- committing

    async def commit(self, owner: Positioned) -> None:
        """Make the positions durable, now."""
        await self._commit([owner])

    def moved(self, owner: Positioned) -> None:
        """Its positions are not those that were committed any more; within a second they are."""
        self._moved[owner] = None
        if self._stopped:
            return
        if self._timer is None and self._writing is None:
            self._timer = asyncio.get_running_loop().call_later(_COMMIT_SECONDS, self._write)

    def forget(self, owner: Positioned) -> None:
        """Its positions are of no interest any more."""
        self._moved.pop(owner, None)

    async def remove(self, group: str, topic: str = "") -> None:
        """Delete the positions of a group on a topic, or on every one."""
        try:
            await self._broker.coordinator.delete(topic, group)
        except BraidError as error:
            if error.code != "GROUP_NOT_FOUND":
                raise

    async def stop(self) -> None:
        """Write everything that moved; from then on nothing is written by itself."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            await self._writing
        await self._write_moved()

    def _write(self) -> None:
        self._timer = None
        self._writing = asyncio.get_running_loop().create_task(self._write_moved())
        self._writing.add_done_callback(self._written)

    def _written(self, _task: asyncio.Task[None]) -> None:
        self._writing = None
        for owner in self._moved:
            # Some moved while this was written, or could not be written and come again.
            self.moved(owner)
            break

    async def _write_moved(self) -> None:
        owners, self._moved = self._moved, {}
        try:
            await self._commit(owners)
        except BraidError as error:
            # A restart would repeat more than a second, and that is all: whoever runs the broker has to see to the disk.
            logger.error("positions of %d subscribers are not written: %s", len(owners), error)
            self._moved = owners | self._moved

    async def _commit(self, owners: Iterable[Positioned]) -> None:
        rows: list[OffsetRow] = []
        for owner in owners:
            for feed, offset in owner.positions():
                # A topic that is on its way out has no positions; one that takes its name has other partitions.
                live = self._broker.topics.by_id(feed.topic.id) is not None
                if live and self.at(owner.group, feed) != offset:
                    rows.append(self._broker.coordinator.row(feed.topic.name, owner.group, feed.partition, offset))
        serving = self._broker.push.serving
        if not serving.alone:
            # Of what others serve nothing counts that is said here, and a node that has left serves nothing: a command without rows
            # would only wait for whoever leads the journals then.
            rows = [row for row in rows if serving.term(row[1]) is not None]
        most = limits.GROUP_COMMIT_OFFSETS_MAX
        written = [self._broker.post_offsets(self._command(rows[at : at + most])) for at in range(0, len(rows), most)]
        if written:
            await asyncio.gather(*written)

    def _command(self, rows: list[OffsetRow]) -> list[Any]:
        """In a cluster a position says in which term it was reached: it counts if that lasts (`serving.py`)."""
        serving = self._broker.push.serving
        if serving.alone:
            return GroupOffsets.commit_many(rows)
        terms = {group: term for group in {row[1] for row in rows} if (term := serving.term(group)) is not None}
        return GroupOffsets.commit_served(rows, terms)
