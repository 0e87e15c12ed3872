"""What the layers tell whoever makes spans. Where nobody does, there is None in its place, and one look at that is all it costs.

A span is about what happens together: a run of requests whose answers wait together, the writes of a commit, a sync, an answer
that delivers records. What one caused in another, across the log, is a link: from the writes to the requests, from a delivery to
the context that the producer put into the headers of a record (`traceparent`, as W3C has it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from braidmq.base.disk import Buffer


class Traced(Protocol):
    """A span that has begun."""

    context: Any

    def end(self, error: str = "", **figures: int) -> None: ...


class Tracing(Protocol):
    def produce(self, protocol: str, peer: str, batch: Buffer | None = None) -> Traced:
        """Records were taken in, whose answers wait for the disk. A `batch` may bring the contexts of its records along."""
        ...

    def append(self, seconds: float, records: int, partitions: int, causes: Sequence[Any]) -> Any:
        """A commit was written, which took so long; `causes` are contexts of what it was for. Returns its own."""
        ...

    def fsync(self, seconds: float, files: int, append: Any) -> None:
        """What was written is on the disk."""
        ...

    def deliver(self, protocol: str, peer: str, topic: str, partition: int, batches: Iterable[Buffer]) -> None:
        """Records went out."""
        ...
