"""Which leader wrote what: the first offset of every leader epoch in a partition.

Every batch carries the epoch of the leader that wrote it, and epochs never fall along a log. So where two logs part is found
without comparing them: for the last epoch of one, the other tells where its own part of that epoch ends. The table holds nothing
but what the headers say. It is kept with the partition's checkpoint so that a start need not read them, and made again from them
where there is none.

A log that was never replicated is all of epoch 0, and has an empty table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from braidmq.hot import layout


class EpochTable:
    """Epochs in the order of the log, each with its first offset."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def latest(self) -> int:
        """The epoch of the newest batch; 0 where nobody ever led."""
        return self._epochs[-1] if self._epochs else 0

    def note(self, epoch: int, start: int) -> None:
        """A batch of `epoch` begins at `start`, behind everything noted before."""
        if epoch > self.latest:
            self._epochs.append(epoch)
            self._starts.append(start)

    def end_of(self, epoch: int, log_start: int, log_end: int) -> tuple[int, int]:
        """The latest epoch that is not behind `epoch`, and the offset after its last record.

        What lies before the first noted epoch is of epoch 0. Where nothing does, `epoch` itself ends where the first begins: nobody
        can say any more what was there.
        """
        following = bisect_right(self._epochs, epoch)
        end = self._starts[following] if following < len(self._starts) else log_end
        if following:
            return self._epochs[following - 1], end
        return (0 if not self._starts or self._starts[0] > log_start else epoch), end

    def forget_from(self, offset: int) -> None:
        """What lay at `offset` and behind it is gone."""
        while self._starts and self._starts[-1] >= offset:
            self._starts.pop()
            self._epochs.pop()

    def forget_below(self, offset: int) -> None:
        """Nothing before `offset` is left."""
        while len(self._starts) > 1 and self._starts[1] <= offset:
            del self._starts[0], self._epochs[0]

    def clear(self) -> None:
        self._starts.clear()
        self._epochs.clear()

    def dump(self, below: int) -> list[list[int]]:
        """The table as plain lists, for the checkpoint; without what begins at offset `below` and later."""
        rows = zip(self._epochs, self._starts, strict=True)
        return [[epoch, start] for epoch, start in rows if start < below]

    def load(self, dumped: Sequence[Sequence[int]]) -> None:
        self.clear()
        for epoch, start in dumped:
            self.note(epoch, start)


def epochs_between(view: memoryview, start: int, stop: int, places: Sequence[int], latest: int) -> list[tuple[int, int]]:
    """(epoch, first offset) of the epochs that begin in the whole batches from `start` to `stop`; `latest` is what goes before.

    At some of the batches (`places`, in order) the search may begin. It looks at few: where the first and the last of a run are of
    one epoch, so is everything between.
    """
    found: list[tuple[int, int]] = []

    def look(at: int) -> int:
        """The epoch at `at`, noted if it is another one."""
        head = layout.read_header(view, at)
        if head.leader_epoch != (found[-1][0] if found else latest):
            found.append((head.leader_epoch, head.base_offset))
        return at + head.length

    marks = [start, *(place for place in places if start < place < stop)]
    number = 0
    while start < stop and number < len(marks):
        look(marks[number])
        number = _last(marks, number, lambda at: layout.read_header(view, at).leader_epoch == (found[-1][0] if found else latest))
        at, end = marks[number], (marks[number + 1] if number + 1 < len(marks) else stop)
        while at < end:
            at = look(at)
        number += 1
    return found


def _last(places: list[int], low: int, holds: Callable[[int], bool]) -> int:
    """The last of `places` from `low` on for which `holds`, which is true of the first and never again after it was false."""
    high = len(places) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if holds(places[middle]):
            low = middle
        else:
            high = middle - 1
    return low
