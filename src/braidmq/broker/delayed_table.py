"""Delayed messages that wait for their time: a million of them in little memory.

A message is a row of three columns: its number, when it is due, where it is staged. Numbers only grow, so a row is found by
bisection; a message that was delivered or cancelled leaves an empty row until there are enough of them to move together. What
is due next is the top of a heap of single integers.

This is part of a state machine: nothing here depends on time or chance.
"""

from __future__ import annotations

import base64
import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

_GONE: Final = -1
_COMPACT_ROWS_MIN: Final = 4096
_NUMBER_BITS: Final = 63
_NUMBER_MASK: Final = (1 << _NUMBER_BITS) - 1


class DelayedTable:
    def __init__(self) -> None:
        self._numbers = array("q")
        self._due = array("q")
        self._refs = array("q")
        self._live = 0
        self._first = 0
        """No message that waits is in a row before this one."""
        self._heap: list[int] = []
        """`due << 63 | number`; what is gone meanwhile stays until it is met."""

    def __len__(self) -> int:
        return self._live

    # --- rows

    def _row(self, number: int) -> int | None:
        row = bisect_left(self._numbers, number)
        if row < len(self._numbers) and self._numbers[row] == number and self._due[row] != _GONE:
            return row
        return None

    def add(self, number: int, due_ms: int, ref: int) -> None:
        row = bisect_left(self._numbers, number)
        if row == len(self._numbers):
            self._numbers.append(number)
            self._due.append(due_ms)
            self._refs.append(ref)
        elif self._numbers[row] != number:
            self._numbers.insert(row, number)
            self._due.insert(row, due_ms)
            self._refs.insert(row, ref)
            self._first = min(self._first, row)
        else:
            return
        self._live += 1
        heapq.heappush(self._heap, due_ms << _NUMBER_BITS | number)

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
        while self._first < len(self._due) and self._due[self._first] == _GONE:
            self._first += 1
        if len(self._numbers) - self._live > max(_COMPACT_ROWS_MIN, self._live):
            self._compact()
        return ref

    def _compact(self) -> None:
        kept = np.frombuffer(self._due, np.int64) != _GONE
        self._numbers, self._due, self._refs = (
            array("q", np.frombuffer(column, np.int64)[kept].tobytes()) for column in (self._numbers, self._due, self._refs)
        )
        self._first = 0

    @property
    def lowest_ref(self) -> int | None:
        """Nothing that is staged before this is needed any more; None when nothing waits."""
        return self._refs[self._first] if self._live else None

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
        return _Packed(self._numbers.tobytes(), self._due.tobytes(), self._refs.tobytes())

    def restore(self, document: Any) -> None:
        self._numbers, self._due, self._refs = (_unpacked(text) for text in str(document).split("."))
        self._live, self._first = len(self._numbers), 0
        self._heap = [due << _NUMBER_BITS | number for due, number in zip(self._due, self._numbers, strict=True)]
        heapq.heapify(self._heap)


class _Packed:
    """Columns as one text. Making it takes a while, so it is made where it is written: beside the loop."""

    def __init__(self, *columns: bytes) -> None:
        self._columns = columns

    def __str__(self) -> str:
        numbers, due, refs = (np.frombuffer(column, np.int64) for column in self._columns)
        waiting = due != _GONE
        return ".".join(base64.b64encode(column[waiting].astype("<i8").tobytes()).decode() for column in (numbers, due, refs))


def _unpacked(text: str) -> array[int]:
    return array("q", np.frombuffer(base64.b64decode(text), "<i8").astype(np.int64).tobytes())
