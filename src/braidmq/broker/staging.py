"""Records that are written but not yet anywhere: staged for a decision, or for their time.

A staged record lies in an internal log like any other record, so it is as durable as they are, and what waits for it keeps
only its offset, the *ref*. It carries the number of whoever staged it. A ref that leads to somebody else's record, or
nowhere, is a trace of a request that failed or was cut off by a crash before it was acknowledged; the number tells.

Whole segments are let go when nothing before the next one is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.log.attrs import STAGING_TAGS, TAG_TARGET, TAG_WORK, decode_attrs, encode_attrs
from braidmq.log.commit import GroupCommit
from braidmq.log.partition import PartitionLog
from braidmq.log.partition_reads import Cold
from braidmq.log.segment import Segment

SEGMENT_BYTES: Final = 64 * limits.MIB
_READ_BYTES: Final = 1 * limits.MIB
_CLOSE_FROM_BYTES: Final = 1 * limits.MIB
_NUMBER = struct.Struct("<q")
_TARGET = struct.Struct("<i")


class Staged(NamedTuple):
    """A staged record as it was given."""

    key: bytes | None
    value: bytes
    attrs: bytes = b""
    topic: str = ""
    """Where it will go; empty where its work says so."""
    partition: int = -1
    number: int = -1
    """Who staged it. A ref that leads to somebody else's record leads nowhere."""

    @property
    def size(self) -> int:
        return len(self.key or b"") + len(self.value) + len(self.attrs)


class Staging:
    def __init__(self, log: PartitionLog, commit: GroupCommit, warm: Callable[[Cold], Awaitable[None]]) -> None:
        self.log = log
        self._commit = commit
        self._warm = warm

    def add(self, number: int, key: bytes | None, value: bytes, attrs: bytes = b"", topic: str = "", partition: int = -1) -> int:
        """Stage a record for `number`; returns its ref. It is durable when the log shows it."""
        size = len(key or b"") + len(value) + len(attrs)
        if size > limits.RECORD_BYTES_MAX:
            raise BraidError("RECORD_TOO_LARGE", size=size, limit=limits.RECORD_BYTES_MAX)
        log = self.log
        log.check_writable()
        entries = [(TAG_WORK, _NUMBER.pack(number))]
        if topic:
            entries.append((TAG_TARGET, _TARGET.pack(partition) + topic.encode()))
        if attrs:
            entries += [(tag, data) for tag, data in decode_attrs(attrs) if tag not in STAGING_TAGS]
        if log.pending_bytes + size > limits.FLUSH_BYTES_TARGET:
            self._commit.flush()
        self._commit.now_ms()
        ref = log.accumulator.append(key or None, value, 0, encode_attrs(entries))
        self._commit.touch(log)
        return int(ref)

    async def read(self, refs: Iterable[int]) -> dict[int, Staged]:
        """The records at `refs`, as far as there are any."""
        found: dict[int, Staged] = {}

        def make(offset: int, key: bytes | None, value: bytes, attrs: bytes) -> None:
            found[offset] = _staged(key, value, attrs)

        await read_records(self.log, refs, make, self._warm)
        return found

    def release(self, below: int) -> list[Segment]:
        """Let go of segments that only hold records below `below`; their files are the caller's to remove."""
        return self.log.let_go_below(below, _CLOSE_FROM_BYTES)


async def read_records(
    log: PartitionLog, offsets: Iterable[int], make: Callable[[int, bytes | None, bytes, bytes], None],
    warm: Callable[[Cold], Awaitable[None]],
) -> None:
    """Call `make(offset, key, value, attrs)` for each of `offsets` that is there, expired or not, in order."""
    wanted = sorted(offsets)
    asked = set(wanted)

    def take(offset: int, _timestamp: int, key: bytes | None, value: bytes, attrs: bytes) -> None:
        if offset in asked:
            make(offset, key, value, attrs)

    at = 0
    while at < len(wanted):
        offset = wanted[at]
        if not log.log_start <= offset < log.high_watermark:
            at += 1
            continue
        read = log.read_batches(offset, _READ_BYTES, raw=True)
        if isinstance(read, Cold):
            await warm(read)
            if offset < log.log_start:
                continue
            read = log.read_batches(offset, _READ_BYTES, warmed=True, raw=True)
            assert not isinstance(read, Cold)
        _, following = hot.decode_records(b"".join(read.slices), offset, limits.BATCH_RECORDS_MAX, take)
        while at < len(wanted) and wanted[at] < following:
            at += 1


def _staged(key: bytes | None, value: bytes, attrs: bytes) -> Staged:
    number, topic, partition = -1, "", -1
    kept: list[tuple[int, bytes]] = []
    for tag, data in decode_attrs(attrs):
        if tag == TAG_WORK:
            (number,) = _NUMBER.unpack(data)
        elif tag == TAG_TARGET:
            partition, topic = _TARGET.unpack_from(data)[0], data[_TARGET.size :].decode()
        else:
            kept.append((tag, data))
    return Staged(key, value, encode_attrs(kept), topic, partition, number)
