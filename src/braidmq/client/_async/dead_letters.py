"""Dead letters: what `braid dlq` does."""

from __future__ import annotations

from typing import Final

from braidmq.base.errors import BraidError
from braidmq.base.naming import DEAD_LETTER_ENDING
from braidmq.client.models import Provenance, Record
from braidmq.client.provenance import provenance
from braidmq.client.reading import read_batches, record_maker
from braidmq.log.letter_id import place_in
from braidmq.wire import flymq

from .asking import Asker

LIST_MAX: Final = 1000


class DeadLetters:
    """`client.dlq`. Topics are those that the records came from."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def ls(self, topic: str, max_count: int = LIST_MAX, after: str = "") -> list[flymq.DeadLetter]:
        """The letters that were neither replayed nor purged, the oldest first; those after the one with the id `after`."""
        found: list[flymq.DeadLetter] = []
        while len(found) < max_count:
            # Each answer holds what fits it. The next one begins with the last letter of this one, unless that is gone by then.
            last = found[-1].id if found else after
            request = flymq.FetchDlq(topic, max_count - len(found) + bool(last), last)
            page = (await self._asker.ask(request, flymq.DeadLetters)).items
            fresh = page[1:] if page and page[0].id == last else page
            if not fresh:
                break
            found += fresh
        return found

    async def find(self, topic: str, letter_id: str) -> flymq.DeadLetter:
        """One letter by its id; MESSAGE_NOT_FOUND when it is not there, or not any more."""
        if place_in(letter_id) is not None:
            page = await self._asker.ask(flymq.FetchDlq(topic, 1, letter_id), flymq.DeadLetters)
            if page.items and page.items[0].id == letter_id:
                return page.items[0]
        raise BraidError("MESSAGE_NOT_FOUND", id=letter_id)

    async def show(self, topic: str, letter_id: str) -> tuple[Record, Provenance | None]:
        """One letter as it lies in the dead-letter topic, with where it came from and why it is there."""
        place = place_in((await self.find(topic, letter_id)).id)
        name = topic if topic.endswith(DEAD_LETTER_ENDING) else topic + DEAD_LETTER_ENDING
        record = await self._record(name, *place) if place is not None else None
        if record is None:
            raise BraidError("MESSAGE_NOT_FOUND", id=letter_id)
        return record, provenance(record)

    async def _record(self, topic: str, partition: int, offset: int) -> Record | None:
        request = flymq.FetchBatches(topic, partition, offset, 1, 1, 0)
        found = await self._asker.ask(request, flymq.FetchedBatches)
        records, _ = read_batches(found.batches, offset, record_maker(topic, partition, None), 1)
        return records[0] if records and records[0].offset == offset else None

    async def retry(
        self, topic: str, *letter_ids: str, matching: str = "", everything: bool = False, max_count: int = 0
    ) -> int:
        """Send letters back to their topic, each once; returns how many.

        Those with the given ids, or those that `matching` fits, or all of them. `matching` is a filter as FETCH has it: a part of
        the text, a regular expression or a JSON path. It is tried on key, value, reason and error.
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

    async def discard(self, topic: str, *letter_ids: str) -> int:
        """Delete some letters of a topic for good; returns how many."""
        for letter_id in letter_ids:
            await self._asker.ask(flymq.DlqDiscard(topic, letter_id), flymq.Ok, again=False)
        return len(letter_ids)

    async def purge(self, topic: str) -> None:
        """Delete all letters of a topic."""
        await self._asker.ask(flymq.PurgeDlq(topic), flymq.Ok)
