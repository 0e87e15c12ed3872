"""Dead letters: what `braid dlq` does."""

from __future__ import annotations

from typing import Final

from braidmq.base.errors import BraidError
from braidmq.client.models import Provenance, Record
from braidmq.client.provenance import provenance
from braidmq.client.reading import read_batches, record_maker
from braidmq.wire import flymq

from .asking import Asker

LIST_MAX: Final = 1000
SUFFIX: Final = ".dlq"
"""What a topic's dead letters are called, unless the broker is told otherwise."""


class DeadLetters:
    """`client.dlq`. Topics are those that the records came from."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def ls(self, topic: str, max_count: int = LIST_MAX) -> list[flymq.DeadLetter]:
        """The letters that were neither replayed nor purged, the oldest first."""
        return list((await self._asker.ask(flymq.FetchDlq(topic, max_count), flymq.DeadLetters)).items)

    async def show(self, topic: str, letter_id: str) -> tuple[Record, Provenance | None]:
        """One letter as it lies in the dead-letter topic, with where it came from and why it is there."""
        letter = next((letter for letter in await self.ls(topic) if letter.id == letter_id), None)
        parts = letter_id.rsplit("-", 2)
        if letter is not None and len(parts) == 3 and parts[1].isascii() and parts[1].isdigit():
            offset = int(parts[1])
            name = topic if topic.endswith(SUFFIX) else topic + SUFFIX
            info = await self._asker.ask(flymq.Metadata(name), flymq.TopicMetadata)
            for part in info.partitions:
                if part.oldest <= offset < part.newest:
                    record = await self._record(name, part.id, offset)
                    if record is not None and record.value == letter.data:
                        return record, provenance(record)
        raise BraidError("MESSAGE_NOT_FOUND", id=letter_id)

    async def _record(self, topic: str, partition: int, offset: int) -> Record | None:
        request = flymq.FetchBatches(topic, partition, offset, 1, 1, 0)
        found = await self._asker.ask(request, flymq.FetchedBatches)
        records, _ = read_batches(found.batches, offset, record_maker(topic, partition, None), 1)
        return records[0] if records and records[0].offset == offset else None

    async def retry(
        self, topic: str, *letter_ids: str, matching: str = "", everything: bool = False, max_count: int = 0
    ) -> int:
        """Send letters back to their topic, each once; returns how many.

        Those with the given ids, or those in which `matching` occurs (reason, error, key or value), or all of them.
        """
        if letter_ids and (matching or everything or max_count):
            raise BraidError("INVALID_ARGUMENT", reason="ids name the letters, so nothing else can")
        if letter_ids:
            for letter_id in letter_ids:
                await self._asker.ask(flymq.ReplayDlq(topic, letter_id), flymq.DlqReplayed, again=False)
            return len(letter_ids)
        if not matching and not everything:
            raise BraidError("INVALID_ARGUMENT", reason="name letters, say what they match, or ask for all")
        request = flymq.ReplayDlq(topic, "", None, matching, everything and not matching, max_count)
        return (await self._asker.ask(request, flymq.DlqReplayed, again=False)).count

    async def purge(self, topic: str) -> None:
        """Delete all letters of a topic."""
        await self._asker.ask(flymq.PurgeDlq(topic), flymq.Ok)
