"""What the client hands to an application.

`Record` is made once for every message read, so it is a tuple underneath: nothing that can be written in Python is
cheaper to build, and its headers are decoded only when somebody asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from braidmq.log.attrs import decode_headers

NO_TIMESTAMP: Final = -1
"""Timestamp of a record from a server whose answers carry none."""


class Record(NamedTuple):
    """One record as read from a partition."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since the epoch at which the broker wrote it; -1 when the server does not tell."""
    key: bytes | None
    value: bytes
    attrs: bytes = b""
    """Encoded extras; `headers` is the readable form."""

    @property
    def headers(self) -> dict[str, bytes]:
        return decode_headers(self.attrs) if self.attrs else {}


class RecordMetadata(NamedTuple):
    """Where a produced record went."""

    topic: str
    partition: int
    offset: int
    """0 for a record that has no place yet: a delayed one, or one in a transaction."""
    timestamp: int
    delayed_id: str = ""
    """What cancels a delayed record."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition of a topic. `newest` is the next offset to be written."""

    partition: int
    leader: int
    oldest: int
    newest: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    topic: str
    partitions: tuple[PartitionInfo, ...]

    @property
    def records(self) -> int:
        """How many records the topic holds at the moment."""
        return sum(part.newest - part.oldest for part in self.partitions)


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """One read of a partition: the records, and the offset to ask for next."""

    records: list[Record]
    next_offset: int


@dataclass(frozen=True, slots=True)
class FetchedBytes:
    """Whole batches as the broker stores them. The first may begin before the offset that was asked for."""

    topic: str
    partition: int
    batches: bytes
    high_watermark: int
    log_start: int


@dataclass(frozen=True, slots=True)
class Failure:
    """What becomes of a record that could not be processed."""

    dead_lettered: bool
    attempts: int
    retry_at_ms: int
    """When it comes again, in milliseconds since the Unix epoch by the broker's clock; 0 for a dead letter."""


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A group in one partition of a topic."""

    topic: str
    partition: int
    committed: int
    """The next offset the group will read."""
    latest: int
    """The next offset to be written."""
    lag: int
    lag_ms: int
    """Age of the oldest record that the group has not read; 0 without one."""


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group on all its topics."""

    group: str
    state: str
    members: tuple[str, ...]
    partitions: tuple[GroupPartition, ...]

    @property
    def lag(self) -> int:
        return sum(part.lag for part in self.partitions)


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """What moving a group does to one partition, or would do."""

    topic: str
    partition: int
    before: int
    """0 when the group has committed nothing here."""
    after: int


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a dead letter came from, and its story."""

    topic: str
    partition: int
    """-1 for a record that never got into its topic, as its offset."""
    offset: int
    reason: str
    error: str
    attempts: int
    first_failure_ms: int
    last_failure_ms: int
