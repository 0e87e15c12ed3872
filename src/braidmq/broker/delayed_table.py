"""Delayed messages that wait for their time: a million of them in little memory.

A message is a row of four columns: its number, when it is due, where it is staged, how large it is. Numbers only grow, so a row is
found by bisection; a message that was delivered or cancelled leaves an empty row until there are enough of them to move together.
What is due next is the top of a heap of single integers. Where the staged records begin that somebody still needs is the top of
another, of groups of neighbouring places: a place does not grow with the number for messages that were moved, and may be
named twice, by one whose record did not reach the disk.

This is part of a state machine: nothing here depends on time or chance.
"""

from __future__ import annotations

import base64
import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np

from braidmq.base.json_pieces import Deferred

_GONE: Final = -1
_COMPACT_ROWS_MIN: Final = 4096
_NUMBER_BITS: Final = 63
_NUMBER_MASK: Final = (1 << _NUMBER_BITS) - 1
_PLACES_BITS: Final = 6
"""So many neighbouring places, as a power of two, are kept together: a byte each, where a number each would take a hundred."""
_PLACES_MASK: Final = (1 << _PLACES_BITS) - 1


class DelayedTable:
    def __init__(self) -> None:
        self._numbers = array("q")
        self._due = array("q")
        self._refs = array("q")
        self._sizes = array("I")
        self._live = 0
        self.size_bytes = 0
        """Of everything that waits."""
        self._heap: list[int] = []
        """`due << 63 | number`; what is gone meanwhile stays until it is met."""
        self._places: dict[int, bytearray] = {}
        """Group of neighbouring places to those in it that messages wait at."""
        self._lowest: list[int] = []
        """A heap of the groups; what is empty meanwhile stays until it is met."""

    def __len__(self) -> int:
        return self._live

    # --- rows

    def _row(self, number: int) -> int | None:
        row = bisect_left(self._numbers, number)
        if row < len(self._numbers) and self._numbers[row] == number and self._due[row] != _GONE:
            return row
        return None

    def add(self, number: int, due_ms: int, ref: int, size: int = 0) -> None:
        row = bisect_left(self._numbers, number)
        if row == len(self._numbers):
            self._numbers.append(number)
            self._due.append(due_ms)
            self._refs.append(ref)
            self._sizes.append(size)
        elif self._numbers[row] != number:
            self._numbers.insert(row, number)
            self._due.insert(row, due_ms)
            self._refs.insert(row, ref)
            self._sizes.insert(row, size)
        else:
            return
        self._live += 1
        self.size_bytes += size
        self._enter(ref)
        heapq.heappush(self._heap, due_ms << _NUMBER_BITS | number)

    def move(self, number: int, ref: int) -> bool:
        """A message is staged somewhere else now; False when it does not wait any more."""
        row = self._row(number)
        if row is None:
            return False
        self._leave(self._refs[row])
        self._enter(ref)
        self._refs[row] = ref
        return True

    def get(self, number: int) -> tuple[int, int] | None:
        """(due, where it is staged), None when it does not wait any more."""
        row = self._row(number)
        return None if row is None else (self._due[row], self._refs[row])

    def remove(self, number: int) -> int | None:
        """Take a message out; where it is staged, None when it does not wait any more."""
        row = self._row(number)
        if row is None:
            return None
        ref = self._refs[row]
        self._due[row] = _GONE
        self._live -= 1
        self.size_bytes -= self._sizes[row]
        self._leave(ref)
        if len(self._numbers) - self._live > max(_COMPACT_ROWS_MIN, self._live):
            self._compact()
        return ref

    def _compact(self) -> None:
        kept = np.frombuffer(self._due, np.int64) != _GONE
        self._numbers, self._due, self._refs = (
            array("q", np.frombuffer(column, np.int64)[kept].tobytes()) for column in (self._numbers, self._due, self._refs)
        )
        self._sizes = array("I", np.frombuffer(self._sizes, np.uint32)[kept].tobytes())

    # --- where they are staged

    def _enter(self, ref: int) -> None:
        group = ref >> _PLACES_BITS
        places = self._places.get(group)
        if places is None:
            places = self._places[group] = bytearray()
            heapq.heappush(self._lowest, group)
        places.append(ref & _PLACES_MASK)

    def _leave(self, ref: int) -> None:
        group = ref >> _PLACES_BITS
        places = self._places[group]
        places.remove(ref & _PLACES_MASK)
        if not places:
            del self._places[group]

    @property
    def lowest_ref(self) -> int | None:
        """Nothing that is staged before this is needed any more; None when nothing waits."""
        while self._lowest and self._lowest[0] not in self._places:
            heapq.heappop(self._lowest)
        return self._lowest[0] << _PLACES_BITS | min(self._places[self._lowest[0]]) if self._lowest else None

    def waiting_below(self, ref: int) -> list[int]:
        """Numbers of the messages that are staged before `ref`."""
        if not self._live:
            return []
        numbers, due, refs = (np.frombuffer(column, np.int64) for column in (self._numbers, self._due, self._refs))
        found: list[int] = numbers[(refs < ref) & (due != _GONE)].tolist()
        return found

    # --- what is due

    @property
    def next_due_ms(self) -> int | None:
        """When the next message is due, None without any."""
        self._drop_gone()
        return self._heap[0] >> _NUMBER_BITS if self._heap else None

    def take_due(self, now_ms: int, most: int) -> list[int]:
        """Numbers of messages that are due, the soonest first. They stay in the table, but are not named again."""
        taken: list[int] = []
        while len(taken) < most:
            self._drop_gone()
            if not self._heap or self._heap[0] >> _NUMBER_BITS > now_ms:
                break
            taken.append(heapq.heappop(self._heap) & _NUMBER_MASK)
        return taken

    def name_again(self, number: int, at_ms: int) -> None:
        """Let `take_due` name a message once more, at some time."""
        heapq.heappush(self._heap, at_ms << _NUMBER_BITS | number)

    def _drop_gone(self) -> None:
        heap = self._heap
        while heap and self._row(heap[0] & _NUMBER_MASK) is None:
            heapq.heappop(heap)

    def soonest(self) -> Iterator[tuple[int, int, int]]:
        """(number, due, where it is staged) of everything that waits, the soonest first."""
        numbers, due, refs = (np.array(column, np.int64) for column in (self._numbers, self._due, self._refs))
        for row in np.argsort(due, kind="stable"):
            if due[row] != _GONE:
                yield int(numbers[row]), int(due[row]), int(refs[row])

    # --- snapshots

    def snapshot(self) -> Any:
        columns = (self._numbers.tobytes(), self._due.tobytes(), self._refs.tobytes())
        return Deferred(partial(_packed, *columns, self._sizes.tobytes()))

    def restore(self, document: Any) -> None:
        self._numbers, self._due, self._refs, sizes = (_unpacked(text) for text in str(document).split("."))
        self._sizes = array("I", sizes)
        self._live, self.size_bytes = len(self._numbers), sum(self._sizes)
        places = np.sort(np.frombuffer(self._refs, np.int64))
        groups, starts = np.unique(places >> _PLACES_BITS, return_index=True)
        within = (places & _PLACES_MASK).astype(np.uint8).tobytes()
        edges = pairwise([*starts.tolist(), len(places)])
        self._places = {group: bytearray(within[start:end]) for group, (start, end) in zip(groups.tolist(), edges, strict=True)}
        self._lowest = groups.tolist()
        self._heap = [due << _NUMBER_BITS | number for due, number in zip(self._due, self._numbers, strict=True)]
        heapq.heapify(self._heap)


def _packed(*columns: bytes) -> str:
    """Columns as one text, without the rows that are empty."""
    numbers, due, refs = (np.frombuffer(column, np.int64) for column in columns[:3])
    waiting = due != _GONE
    kept = (numbers, due, refs, np.frombuffer(columns[3], np.uint32))
    return ".".join(base64.b64encode(column[waiting].astype("<i8").tobytes()).decode() for column in kept)


def _unpacked(text: str) -> array[int]:
    return array("q", np.frombuffer(base64.b64decode(text), "<i8").astype(np.int64).tobytes())
