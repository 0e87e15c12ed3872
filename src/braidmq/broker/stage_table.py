"""What writers have staged and published, as a part of the state machine of work (`work_table.py`).

A *writer* writes numbered batches, its *epochs*, one after the other: a Spark query and its micro-batches. Each task of an epoch
stages what it has, every attempt for itself. Publishing names the attempts that count; the rest of the epoch is void, and so is
whatever the writer has staged for epochs before it.

    stage NUMBER WRITER EPOCH TASK ATTEMPT SEQUENCE USER TIME ROWS   rows are [ref, topic id, partition, records, bytes]
    publish NUMBER WRITER EPOCH [TASK ATTEMPT BATCHES]... OFFSETS     the decision; from then on it will happen, once
    unstage WRITER EPOCH                                             what was staged for it is void
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from braidmq.base import limits
from braidmq.base.errors import BraidError


class StageRow(NamedTuple):
    """A staged batch: where it lies, and where it will go."""

    ref: int
    topic_id: int
    partition: int
    records: int
    size: int


@dataclass(slots=True)
class Attempt:
    """What one attempt of a task has staged: for each batch that came, its number and rows."""

    batches: list[tuple[int, list[StageRow]]] = field(default_factory=list)
    size: int = 0


@dataclass(slots=True)
class Epoch:
    user: str
    """Who staged it, and may go on."""
    touched_ms: int = 0
    attempts: dict[tuple[int, int], Attempt] = field(default_factory=dict)
    """By task and attempt."""
    size: int = 0
    batches: int = 0
    largest: dict[int, int] = field(default_factory=dict)
    """By task, the bytes of its largest attempt."""
    countable: int = 0
    """Bytes of the largest attempts: of each task one is published, and the others are what dead ones left."""

    def size_with(self, task: int, attempt: int) -> int:
        """Most bytes that can be published when this attempt is the one of its task."""
        known = self.attempts.get((task, attempt))
        return self.countable - self.largest.get(task, 0) + (0 if known is None else known.size)

    def rows(self, chosen: Collection[tuple[int, int]] | None = None) -> Iterator[StageRow]:
        """Of all attempts, or of some by task and attempt."""
        for place, attempt in self.attempts.items():
            if chosen is None or place in chosen:
                for _, rows in attempt.batches:
                    yield from rows


class StageTable:
    def __init__(self) -> None:
        self.epochs: dict[tuple[str, int], Epoch] = {}
        self.published: dict[str, tuple[int, int]] = {}
        """Writer to the last epoch that it published and the number of that work; the one silent for longest first."""
        self.size = 0

    def is_published(self, writer: str, epoch: int) -> bool:
        return self.published.get(writer, (-1, 0))[0] >= epoch

    def lowest_ref(self) -> int | None:
        return min((row.ref for epoch in self.epochs.values() for row in epoch.rows()), default=None)

    def known(self, writer: str, epoch: int, task: int, attempt: int) -> int:
        """How many batches an attempt has staged."""
        found = self.epochs.get((writer, epoch))
        stage = None if found is None else found.attempts.get((task, attempt))
        return 0 if stage is None else len(stage.batches)

    # --- commands

    def stage(
        self, number: int, writer: str, epoch: int, task: int, attempt: int, sequence: int, user: str, now_ms: int,
        rows: list[list[int]],
    ) -> bool:  # fmt: skip
        """Note a staged batch; False for one that was there, or comes too late."""
        if self.is_published(writer, epoch):
            return False
        found = self.epochs.get((writer, epoch))
        if found is None:
            found = self.epochs[writer, epoch] = Epoch(user)
        stage = found.attempts.setdefault((task, attempt), Attempt())
        if sequence != len(stage.batches):
            return False
        added = [StageRow(*row) for row in rows]
        stage.batches.append((number, added))
        found.touched_ms = now_ms
        size = sum(row.size for row in added)
        found.size += size
        stage.size += size
        largest = max(found.largest.get(task, 0), stage.size)
        found.countable += largest - found.largest.get(task, 0)
        found.largest[task] = largest
        found.batches += 1
        self.size += size
        return True

    def publish(
        self, number: int, writer: str, epoch: int, tasks: list[list[int]]
    ) -> tuple[list[list[Any]], dict[int, int]] | None:
        """The targets of the decision and who staged each ref; None when it was made before."""
        if self.is_published(writer, epoch):
            return None
        found = self.epochs.get((writer, epoch), Epoch(""))
        targets: dict[tuple[int, int], list[int]] = {}
        owners: dict[int, int] = {}
        for task, attempt, batches in sorted(tasks):
            stage = found.attempts.get((task, attempt), Attempt())
            if len(stage.batches) != batches:
                raise BraidError(
                    "STAGE_NOT_FOUND", writer=writer, epoch=epoch, task=task, found=len(stage.batches), wanted=batches
                )
            for staged_by, rows in stage.batches:
                for row in rows:
                    targets.setdefault((row.topic_id, row.partition), []).append(row.ref)
                    owners[row.ref] = staged_by
        self.published.pop(writer, None)
        self.published[writer] = (epoch, number)
        if len(self.published) > limits.STAGE_WRITERS_REMEMBERED:
            del self.published[next(iter(self.published))]
        for known in [place for place in self.epochs if place[0] == writer and place[1] <= epoch]:
            self.drop(*known)
        return [[*place, refs] for place, refs in targets.items()], owners

    def drop(self, writer: str, epoch: int) -> None:
        gone = self.epochs.pop((writer, epoch), None)
        if gone is not None:
            self.size -= gone.size

    # --- snapshots

    def snapshot(self) -> Any:
        epochs = [
            [writer, epoch, found.user, found.touched_ms, [
                [task, attempt, [[number, [list(row) for row in rows]] for number, rows in stage.batches]]
                for (task, attempt), stage in found.attempts.items()
            ]]
            for (writer, epoch), found in self.epochs.items()
        ]  # fmt: skip
        return {"epochs": epochs, "published": [[writer, *last] for writer, last in self.published.items()]}

    def restore(self, document: Any) -> None:
        for writer, epoch, user, touched_ms, attempts in document["epochs"]:
            for task, attempt, batches in attempts:
                for sequence, (number, rows) in enumerate(batches):
                    self.stage(number, writer, epoch, task, attempt, sequence, user, touched_ms, rows)
        self.published = {writer: (epoch, number) for writer, epoch, number in document["published"]}
