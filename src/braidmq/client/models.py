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
    timestamp: int


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
