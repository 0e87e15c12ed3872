"""Staged writes: batches that many processes prepare and one request publishes, all at one moment and once.

A writer has a name and numbers what it writes, its epochs. Every request here may be repeated: the broker knows what it has.
"""

from __future__ import annotations

from collections.abc import Sequence

from braidmq.wire import flymq

from .asking import Asker


class Stages:
    """`client.stage`."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def batch(
        self, writer: str, epoch: int, task: int, attempt: int, sequence: int, topic: str, partition: int, batch: bytes
    ) -> flymq.StageState:
        """Stage a whole batch, the one after `sequence` others of an attempt of a task; durable when this returns.

        An attempt is any number that no other attempt of the task ever has. Where the answer says `published`, the epoch was
        published before and nothing was staged.
        """
        request = flymq.StageBatch(writer, epoch, task, attempt, sequence, topic, partition, batch)
        return await self._asker.ask(request, flymq.StageState)

    async def publish(
        self,
        writer: str,
        epoch: int,
        tasks: Sequence[tuple[int, int, int]],
        *,
        group: str = "",
        offsets: Sequence[tuple[str, int, int]] = (),
    ) -> bool:
        """Let readers see what the attempts in `tasks` (task, attempt, how many batches) have staged, and commit `offsets` (topic,
        partition, next offset) of a group with it. Returns whether this was the request that did it.
        """
        request = flymq.StagePublish(
            writer, epoch, tuple(flymq.StageChoice(*task) for task in tasks), group,
            tuple(flymq.TopicOffset(*offset) for offset in offsets),
        )  # fmt: skip
        return (await self._asker.ask(request, flymq.StagePublished)).first

    async def abort(self, writer: str, epoch: int) -> flymq.StageState:
        """Give up what was staged for an epoch. One that was published stays so, and the answer says it."""
        return await self._asker.ask(flymq.StageAbort(writer, epoch), flymq.StageState)

    async def status(self, writer: str, epoch: int) -> flymq.StageState:
        """Whether an epoch was published, and what is staged for it."""
        return await self._asker.ask(flymq.StageStatus(writer, epoch), flymq.StageState)

    async def ls(self) -> list[flymq.StagedEpoch]:
        """What all writers have staged and not published."""
        return list((await self._asker.ask(flymq.StageList(), flymq.StagedEpochs)).epochs)
