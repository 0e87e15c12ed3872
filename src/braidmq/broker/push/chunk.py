"""A run of records as they lie in the log, and what was made of it.

Every subscriber at the same place of a partition gets the same chunk, so a frame is encoded once however many receive it. What is
made of a chunk is kept under a key that says all it depends on: the protocol, the QoS, the filter.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

from braidmq import hot
from braidmq.base.disk import Buffer
from braidmq.hot import layout

_Made = TypeVar("_Made")
OBJECT_BYTES: Final = 200
"""What a small object in a list takes, with what it refers to."""


class PushRecord(NamedTuple):
    """A record for code that looks at single ones: filters, and encoders of what is out of the ordinary."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes
    attrs: bytes


class Chunk:
    """Records of one partition from `first` up to `next_offset`; batches in `batches` may hold others around them."""

    __slots__ = ("_made", "batches", "expires", "first", "grew", "next_offset", "passed", "read_at_ms", "size")

    def __init__(self, first: int, next_offset: int, batches: Sequence[Buffer], size: int, read_at_ms: int) -> None:
        self.first = first
        self.next_offset = next_offset
        self.batches = batches
        self.size = size
        self.read_at_ms = read_at_ms
        self.passed = 0
        """How many readers are done with it."""
        self.grew: Callable[[int], None] | None = None
        """Told how many bytes what was made of it takes."""
        self.expires = any(may_expire(data) for data in batches)
        self._made: dict[Hashable, Any] = {}

    def made(self, key: Hashable, make: Callable[[Chunk], _Made]) -> _Made:
        """What `make` makes of this chunk, made once for `key`."""
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = make(self)
            if self.grew is not None:
                self.grew(_weight(found))
        return cast(_Made, found)

    def records(self) -> list[PushRecord]:
        """The living records, one by one."""
        return self.made("records", _records)

    def mask(self, key: Hashable, matches: Callable[[PushRecord], bool]) -> tuple[bytes, int]:
        """One byte an offset from `first` on, 1 where there is a record that matches, and how many there are."""

        def make(chunk: Chunk) -> tuple[bytes, int]:
            mask = bytearray(chunk.next_offset - chunk.first)
            count = 0
            for record in chunk.records():
                if matches(record):
                    mask[record.offset - chunk.first] = 1
                    count += 1
            return bytes(mask), count

        return self.made(("mask", key), make)


def _records(chunk: Chunk) -> list[PushRecord]:
    found: list[PushRecord] = []
    limit = chunk.next_offset - chunk.first
    for data in chunk.batches:
        records, _ = hot.decode_records(data, chunk.first, limit, PushRecord)
        found += records
    # The last batch may go on past the chunk.
    while found and found[-1].offset >= chunk.next_offset:
        found.pop()
    return found


def _weight(made: object) -> int:
    """About how many bytes something takes that was made of a chunk."""
    if isinstance(made, bytes):
        return len(made)
    if isinstance(made, tuple):
        return sum(map(_weight, made))
    if isinstance(made, list | dict):
        return len(made) * OBJECT_BYTES
    return int(getattr(made, "weight_bytes", 0))


def may_expire(data: Buffer) -> bool:
    """Whether a slice of whole batches holds records with an end to their life."""
    at = 0
    while at < len(data):
        head = layout.read_header(data, at)
        if head.flags & layout.FLAG_EXPIRY:
            return True
        at += head.length
    return False
