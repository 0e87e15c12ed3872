"""What a partition remembers of idempotent producers, so that a repeated batch is stored once.

A producer numbers its records; a batch carries the number of its first. The partition keeps each producer's epoch and its
last few batches. A batch seen before is answered with the offset it got then; a gap is refused, because it means that an
earlier batch is missing; an old epoch is refused, because a newer instance of the producer took over. The table is rebuilt
from batch headers, so it survives whatever the log survives.

The broker's own work (committed transactions, delayed messages that are due, replays) numbers its batches too: the number of the
work as producer, no epoch, and as sequence how many of its records came before. There is a new number for each piece of work, so
those are kept apart: they never push a producer out, and are forgotten when the work is known to be done.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

from braidmq.base import limits
from braidmq.base.errors import BraidError

_SEQUENCES: Final = 1 << 31
"""Sequence numbers are 31 bits and begin anew at 0."""


class _Batch(NamedTuple):
    base_sequence: int
    records: int
    base_offset: int
    timestamp: int


class _Producer:
    __slots__ = ("batches", "epoch")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[_Batch] = deque(maxlen=limits.PRODUCER_BATCHES_KEPT)


class ProducerTable:
    """Producers of one partition, the one silent for longest first."""

    __slots__ = ("_producers", "_work")

    def __init__(self) -> None:
        self._producers: OrderedDict[int, _Producer] = OrderedDict()
        self._work: dict[int, list[_Batch]] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def find_duplicate(self, producer_id: int, epoch: int, base_sequence: int, count: int) -> tuple[int, int] | None:
        """(base offset, timestamp) of the same batch stored before, None for a new one; raises when it may not be stored."""
        producer = self._producers.get(producer_id)
        if producer is None or epoch > producer.epoch:
            return None
        if epoch < producer.epoch:
            raise BraidError("FENCED_PRODUCER", producer=producer_id, epoch=epoch, current=producer.epoch)
        for batch in producer.batches:
            if batch.base_sequence == base_sequence and batch.records == count:
                return batch.base_offset, batch.timestamp
        if producer.batches:
            last = producer.batches[-1]
            expected = (last.base_sequence + last.records) % _SEQUENCES
            if base_sequence != expected:
                raise BraidError("OUT_OF_ORDER_SEQUENCE", producer=producer_id, sequence=base_sequence, expected=expected)
        return None

    def record(self, producer_id: int, epoch: int, base_sequence: int, count: int, base_offset: int, timestamp: int) -> None:
        """Remember a batch that was stored."""
        if epoch < 0:
            self._work.setdefault(producer_id, []).append(_Batch(base_sequence, count, base_offset, timestamp))
            return
        producer = self._producers.get(producer_id)
        if producer is None or epoch > producer.epoch:
            producer = self._producers[producer_id] = _Producer(epoch)
        elif epoch < producer.epoch:
            # Recovery walks over batches that are older than what the checkpoint remembers.
            return
        self._producers.move_to_end(producer_id)
        producer.batches.append(_Batch(base_sequence, count, base_offset, timestamp))
        if len(self._producers) > limits.PRODUCERS_PER_PARTITION_MAX:
            self._producers.popitem(last=False)

    def work_records(self, number: int) -> int:
        """How many records of a piece of work are in the log."""
        batches = self._work.get(number)
        return batches[-1].base_sequence + batches[-1].records if batches else 0

    def work_numbers(self) -> list[int]:
        return list(self._work)

    def forget_work(self, number: int) -> None:
        """The work is known to be done, so it is never begun again."""
        self._work.pop(number, None)

    def forget_from(self, offset: int) -> None:
        """Take back batches at `offset` and later: they did not reach the log."""
        for number, batches in list(self._work.items()):
            while batches and batches[-1].base_offset >= offset:
                batches.pop()
            if not batches:
                del self._work[number]
        for producer in self._producers.values():
            # A producer without batches stays: its epoch still fences those before it.
            while producer.batches and producer.batches[-1].base_offset >= offset:
                producer.batches.pop()

    def only_from(self, offset: int) -> set[int]:
        """Producers of which nothing before `offset` is remembered."""
        known = self._producers.items()
        return {number for number, producer in known if producer.batches and producer.batches[0].base_offset >= offset}

    def clear(self) -> None:
        self._producers.clear()
        self._work.clear()

    def dump(self, below: int) -> list[list[object]]:
        """The table as plain lists, for the checkpoint; without batches at offset `below` and later."""
        rows: list[list[object]] = []
        for producer_id, producer in self._producers.items():
            batches = [list(batch) for batch in producer.batches if batch.base_offset < below]
            if batches:
                rows.append([producer_id, producer.epoch, batches])
        for number, known in self._work.items():
            batches = [list(batch) for batch in known if batch.base_offset < below]
            if batches:
                rows.append([number, -1, batches])
        return rows

    def load(self, dumped: list[list[object]]) -> None:
        for producer_id, epoch, batches in dumped:
            assert isinstance(producer_id, int) and isinstance(epoch, int) and isinstance(batches, list)
            for batch in batches:
                self.record(producer_id, epoch, *batch)
