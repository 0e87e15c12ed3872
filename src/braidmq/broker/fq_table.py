"""fq's permanent queues and what is bound to them, as a state machine: what comes back after a restart.

A transient queue is not here, and neither is a binding that dies with the broker, with one exception: what a `disk` queue holds is
not copied anywhere, it is whatever its bindings chose of the log. So each binding of such a queue is kept with the range of
offsets for which it holds, one that was taken back until everything it chose is delivered, and a transient one until the next
start takes it back. However often the broker is killed, the queue holds what it held.

Names are any bytes. In commands and snapshots each byte is the character of that number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.wire.fq.auth import QueueDetail


@dataclass(frozen=True, slots=True)
class Places:
    """Offsets of a topic's partitions, at some moment."""

    topic_id: int
    offsets: Mapping[int, int]

    def row(self) -> list[Any]:
        return [self.topic_id, [list(place) for place in self.offsets.items()]]


def _places(row: Any) -> Places | None:
    return None if row is None else Places(row[0], {partition: offset for partition, offset in row[1]})


def _row(places: Places | None) -> Any:
    return None if places is None else places.row()


@dataclass(slots=True)
class StoredBinding:
    exchange: bytes
    program: bytes
    peer: bool
    permanent: bool
    begins: Places | None
    """The first offsets it holds for; None where the topic came later, or where it does not matter."""
    ends: Places | None = None
    """Where it ends, when it was taken back."""

    def row(self) -> list[Any]:
        return [
            _text(self.exchange), _text(self.program), self.peer, self.permanent, _row(self.begins), _row(self.ends),
        ]  # fmt: skip


@dataclass(slots=True)
class StoredQueue:
    detail: QueueDetail
    bindings: list[StoredBinding] = field(default_factory=list)
    checkpoints: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    """Named positions: topic id, partition, offset."""

    def live(self, exchange: bytes, program: bytes) -> StoredBinding | None:
        """The binding that was not taken back."""
        return next((b for b in self.bindings if b.ends is None and (b.exchange, b.program) == (exchange, program)), None)

    def row(self) -> list[Any]:
        detail = self.detail
        return [_text(detail.name), detail.kind, detail.private, detail.policy, detail.backlog]


class QueueTable:
    def __init__(self, queues_max: int = limits.FQ_QUEUES_KEPT_MAX) -> None:
        self._queues: dict[bytes, StoredQueue] = {}
        self._queues_max = queues_max

    def __len__(self) -> int:
        return len(self._queues)

    def get(self, name: bytes) -> StoredQueue | None:
        return self._queues.get(name)

    def all(self) -> list[StoredQueue]:
        return list(self._queues.values())

    # --- commands

    def keep(self, detail: QueueDetail, bindings: Iterable[StoredBinding]) -> list[Any]:
        """Make a queue permanent, with what is bound to it; one that is permanent stays as it is."""
        return ["keep", StoredQueue(detail).row(), [binding.row() for binding in bindings], self._queues_max]

    @staticmethod
    def forget(name: bytes) -> list[Any]:
        """Make a queue transient."""
        return ["forget", _text(name)]

    @staticmethod
    def bind(queue: bytes, binding: StoredBinding) -> list[Any]:
        """Keep a binding; of one that is kept the flags change, and nothing else."""
        return ["bind", _text(queue), binding.row()]

    @staticmethod
    def unbind(queue: bytes, exchange: bytes, program: bytes, ends: Places | None) -> list[Any]:
        """Forget a binding, or remember where it ended."""
        return ["unbind", _text(queue), _text(exchange), _text(program), _row(ends)]

    @staticmethod
    def drained(queue: bytes, exchange: bytes, program: bytes) -> list[Any]:
        """Forget bindings that ended and have nothing left to deliver."""
        return ["drained", _text(queue), _text(exchange), _text(program)]

    @staticmethod
    def set_checkpoint(queue: bytes, name: str, places: Iterable[tuple[int, int, int]] | None) -> list[Any]:
        """Name a position, or with None take the name away."""
        return ["checkpoint", _text(queue), name, None if places is None else [list(place) for place in places]]

    def apply(self, command: list[Any]) -> Any:
        """Carry out one command. What concerns a queue that is not kept leads to nothing.

        `checkpoint` returns whether the queue has, or had, the name.
        """
        match command:
            case ["keep", [str(name), str(kind), bool(private), str(policy), int(backlog)], list(bindings), int(most)]:
                detail = QueueDetail(_raw(name), kind, private, policy, backlog, True)
                if detail.name not in self._queues:
                    if len(self._queues) >= most:
                        raise BraidError("QUEUE_LIMIT", what="the broker", limit=most, things="permanent queues")
                    self._queues[detail.name] = StoredQueue(detail, [_binding(row) for row in bindings])
                return None
            case ["forget", str(name)]:
                self._queues.pop(_raw(name), None)
                return None
            case ["bind" | "unbind" | "drained" | "checkpoint", str(name), *_]:
                queue = self._queues.get(_raw(name))
                return None if queue is None else _apply(queue, command[0], command[2:])
        raise AssertionError(f"unknown queue command {command[:1]}")

    # --- snapshots

    def snapshot(self) -> Any:
        return [
            [queue.row(), [binding.row() for binding in queue.bindings], {name: list(at) for name, at in queue.checkpoints.items()}]
            for queue in self._queues.values()
        ]

    def restore(self, document: Any) -> None:
        for (name, kind, private, policy, backlog), bindings, checkpoints in document:
            detail = QueueDetail(_raw(name), kind, private, policy, backlog, True)
            kept = {name: [(place[0], place[1], place[2]) for place in places] for name, places in checkpoints.items()}
            self._queues[detail.name] = StoredQueue(detail, [_binding(row) for row in bindings], kept)


def _apply(queue: StoredQueue, verb: str, arguments: list[Any]) -> Any:
    match [verb, *arguments]:
        case ["bind", list(row)]:
            new = _binding(row)
            known = queue.live(new.exchange, new.program)
            if known is None:
                queue.bindings.append(new)
            else:
                known.peer, known.permanent = new.peer, new.permanent
            return None
        case ["unbind", str(exchange), str(program), ends]:
            known = queue.live(_raw(exchange), _raw(program))
            if known is not None and ends is None:
                queue.bindings.remove(known)
            elif known is not None:
                known.ends = _places(ends)
            return None
        case ["drained", str(exchange), str(program)]:
            which = (_raw(exchange), _raw(program))
            queue.bindings = [b for b in queue.bindings if b.ends is None or (b.exchange, b.program) != which]
            return None
        case ["checkpoint", str(name), None]:
            return queue.checkpoints.pop(name, None) is not None
        case ["checkpoint", str(name), list(places)]:
            queue.checkpoints[name] = [(place[0], place[1], place[2]) for place in places]
            return True
    raise AssertionError(f"unknown queue command {verb}")


def _binding(row: list[Any]) -> StoredBinding:
    exchange, program, peer, permanent, begins, ends = row
    return StoredBinding(_raw(exchange), _raw(program), peer, permanent, _places(begins), _places(ends))


def _text(raw: bytes) -> str:
    return raw.decode("latin-1")


def _raw(text: str) -> bytes:
    return text.encode("latin-1")
