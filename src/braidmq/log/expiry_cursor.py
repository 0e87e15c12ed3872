"""How far a partition was looked through for records that expire, and where there are some that have not yet.

Looking through a log takes reading it, so what was found is kept with the partition's checkpoint: a start goes on where the last
run was. Neighbouring batches are one *piece* of about a megabyte, for which only the next expiry is known; a piece is looked at
again when that time comes. So a gigabyte of log is a thousand rows.

What is kept here is never ahead of what was done: a piece moves on to its next expiry after what expired before is dealt with.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, Final

from braidmq.base import limits

PIECE_BYTES: Final = 1 * limits.MIB


@dataclass(slots=True)
class _Piece:
    end: int
    """Offset after its last record."""
    expiry_ms: int
    """When the next of its records expires."""
    size: int


class ExpiryCursor:
    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        """Everything before this was looked at."""
        self._pieces: dict[int, _Piece] = {}
        """By their first offset, in order."""
        self._newest: int | None = None
        """The piece that may still grow."""
        self._heap: list[tuple[int, int]] = []
        """(next expiry, first offset); what does not agree with its piece any more is passed over."""

    def __len__(self) -> int:
        return len(self._pieces)

    def look(self, start: int, end: int, expiry_ms: int | None, size: int) -> None:
        """Batches from `start` to before `end` were looked at; the first of their records expires at `expiry_ms`, or none does."""
        self.offset = end
        newest = self._pieces.get(self._newest) if self._newest is not None else None
        if newest is not None and newest.end == start and newest.size + size <= PIECE_BYTES:
            newest.end = end
            newest.size += size
            start = self._newest if self._newest is not None else start
            if expiry_ms is not None and expiry_ms < newest.expiry_ms:
                newest.expiry_ms = expiry_ms
                heapq.heappush(self._heap, (expiry_ms, start))
        elif expiry_ms is not None:
            self._newest = start
            self._pieces[start] = _Piece(end, expiry_ms, size)
            heapq.heappush(self._heap, (expiry_ms, start))

    def forget_below(self, offset: int) -> None:
        """Retention took everything before `offset`."""
        self.offset = max(self.offset, offset)
        while self._pieces and self._pieces[first := next(iter(self._pieces))].end <= offset:
            del self._pieces[first]

    def due(self, now_ms: int) -> list[tuple[int, int]]:
        """(first offset, offset after the last) of pieces of which something has expired. They stay until `settle`."""
        found: dict[int, int] = {}
        while self._heap and self._heap[0][0] <= now_ms:
            expiry_ms, start = heapq.heappop(self._heap)
            piece = self._pieces.get(start)
            if piece is not None and piece.expiry_ms == expiry_ms:
                found[start] = piece.end
        for start in found:
            heapq.heappush(self._heap, (self._pieces[start].expiry_ms, start))
        return list(found.items())

    def settle(self, start: int, expiry_ms: int | None) -> None:
        """What expired of a piece is dealt with; the next of its records expires at `expiry_ms`, or none does."""
        if expiry_ms is None:
            self._pieces.pop(start, None)
        elif start in self._pieces:
            self._pieces[start].expiry_ms = expiry_ms
            heapq.heappush(self._heap, (expiry_ms, start))

    def dump(self) -> list[Any]:
        """The cursor as plain lists, for the checkpoint."""
        return [self.offset, [[start, piece.end, piece.expiry_ms, piece.size] for start, piece in self._pieces.items()]]

    @classmethod
    def load(cls, dumped: list[Any]) -> ExpiryCursor:
        offset, pieces = dumped
        cursor = cls(offset)
        cursor._pieces = {start: _Piece(*piece) for start, *piece in pieces}
        cursor._newest = next(reversed(cursor._pieces), None)
        cursor._heap = [(piece.expiry_ms, start) for start, piece in cursor._pieces.items()]
        heapq.heapify(cursor._heap)
        return cursor
