"""What the layers tell whoever makes spans. Where nobody does, there is None in its place, and one look at that is all it costs.

A span is about what happens together: a run of requests whose answers wait together, the writes of a commit, a sync, an answer
or a push that delivers records. What one caused in another, across the log, is a link: from the writes to the requests, from a
delivery to the writes that brought its records, and to the contexts that producers put into the headers of records
(`traceparent`, as W3C has it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from braidmq.base.disk import Buffer


class Traced(Protocol):
    """A span that has begun."""

    context: Any

    def end(self, error: str = "", **figures: int) -> None: ...


class Place(Protocol):
    """A partition, as far as spans name it."""

    topic: str
    partition: int


class Tracing(Protocol):
    def produce(
        self, protocol: str, peer: str, batch: Buffer | None = None, headers: Mapping[str, bytes | str] | None = None
    ) -> Traced:
        """Records were taken in, whose answers wait for the disk. A `batch`, or `headers`, may bring contexts along."""
        ...

    def append(self, seconds: float, records: int, written: Sequence[tuple[Place, int, int]], causes: Sequence[Any]) -> Any:
        """A commit was written, which took so long: places with the first offset and the one behind the last. `causes` are
        contexts of what it was for. Returns its own."""
        ...

    def fsync(self, seconds: float, files: int, append: Any) -> None:
        """What was written is on the disk."""
        ...

    def deliver(
        self, protocol: str, peer: str, place: Place, first: int, stop: int, records: int, batches: Iterable[Buffer],
        chosen: Callable[[int], bool] | None = None,
    ) -> None:
        """Records of `place` from `first` up to `stop` went out: all of them, or those that are `chosen`.

        They lie in `batches`, which may hold others.
        """
        ...
