"""What a follower asks its leader, and what it is told: REPLICA_FETCH.

One fetch is for all partitions that a node follows of another. So that ten thousand of them are no large message each time, both
sides remember the last one: a *session* begins with a fetch of everything, and the fetches after it name only what changed. Each
has the next number; anything else ends the session, and the follower begins another.

    request   u64 generation, u64 session (0: begin one), u32 number, u32 wait ms, u32 bytes, u32 places, u32 forgotten
              places     x (i64 topic, u32 partition, u32 epoch, u64 end, i64 last epoch, u64 watermark, u32 bytes)
              forgotten  x (i64 topic, u32 partition)
    answer    u64 session (0: there is none, begin another), u32 parts
              parts x (i64 topic, u32 partition, u8 verdict, u32 epoch, u64 watermark, u64 log start, i64 last epoch, u64 end, u32
              bytes) the batches of all parts, in their order

All integers are big-endian. A place says: up to `end` it is durable here, and the last batch before it is of `last epoch` (-1:
the log is empty). That is the follower's acknowledgement.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from braidmq.base import limits
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.cluster.partition_state import LogKey

_REQUEST: Final = struct.Struct(">QQIIIII")
_PLACE: Final = struct.Struct(">qIIQqQI")
_KEY: Final = struct.Struct(">qI")
_ANSWER: Final = struct.Struct(">QI")
_PART: Final = struct.Struct(">qIBIQQqQI")

PART_BYTES: Final = _PART.size
"""What a part takes beside its batches."""
ANSWER_ROOM_BYTES: Final = limits.FRAME_PAYLOAD_BYTES_MAX - 64
"""What parts and batches may take together: an answer is one frame. The largest legal record fits, with its batch and its part."""

EMPTY: Final = -1
"""The last epoch of a log that has no batch."""


class Verdict(IntEnum):
    DATA = 0
    """The follower's log continues: here is more, and how far readers may see."""
    DIVERGED = 1
    """It does not: the leader's log has `last epoch` up to `end`, and the follower must not have more of it."""
    BEHIND = 2
    """What would continue it is not kept any more: begin anew at `log start`."""
    FENCED = 3
    """The follower goes by an older epoch than the leader, or by a newer one that the leader does not know yet."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a follower stands in one partition."""

    key: LogKey
    epoch: int
    end: int
    last_epoch: int
    watermark: int
    bytes_max: int
    """How much it may be sent; 0 for nothing at the moment."""


@dataclass(frozen=True, slots=True)
class FetchRequest:
    generation: int
    session: int
    number: int
    wait_ms: int
    bytes_max: int
    places: Sequence[Place]
    forgotten: Sequence[LogKey] = ()

    def encode(self) -> bytes:
        parts = [
            _REQUEST.pack(
                self.generation, self.session, self.number, self.wait_ms, self.bytes_max, len(self.places), len(self.forgotten)
            )
        ]
        for place in self.places:
            parts.append(_PLACE.pack(*place.key, place.epoch, place.end, place.last_epoch, place.watermark, place.bytes_max))
        parts += [_KEY.pack(*key) for key in self.forgotten]
        return b"".join(parts)

    @classmethod
    def decode(cls, payload: memoryview) -> FetchRequest:
        try:
            generation, session, number, wait_ms, bytes_max, places, forgotten = _REQUEST.unpack_from(payload)
            at = _REQUEST.size
            rest = at + places * _PLACE.size
            if len(payload) != rest + forgotten * _KEY.size:
                raise struct.error
            found = [Place((topic, partition), *more) for topic, partition, *more in _PLACE.iter_unpack(payload[at:rest])]
            keys = [(topic, partition) for topic, partition in _KEY.iter_unpack(payload[rest:])]
        except struct.error:
            raise BraidError("MALFORMED_PAYLOAD", reason="a fetch of a replica of the wrong length") from None
        return cls(generation, session, number, wait_ms, bytes_max, found, keys)


@dataclass(slots=True)
class Part:
    """What a leader says of one partition."""

    key: LogKey
    verdict: Verdict
    epoch: int
    watermark: int
    log_start: int
    last_epoch: int = 0
    end: int = 0
    data: list[Buffer] = field(default_factory=list)
    size: int = 0


def encode_answer(session: int, parts: Sequence[Part]) -> list[Buffer]:
    head = [_ANSWER.pack(session, len(parts))]
    data: list[Buffer] = []
    for part in parts:
        head.append(
            _PART.pack(
                *part.key, part.verdict, part.epoch, part.watermark, part.log_start, part.last_epoch, part.end, part.size
            )
        )
        data += part.data
    return [b"".join(head), *data]


def decode_answer(payload: memoryview) -> tuple[int, list[Part]]:
    """The session, and what is said; the data of a part are slices of `payload`."""
    try:
        session, count = _ANSWER.unpack_from(payload)
        at = _ANSWER.size
        data_at = at + count * _PART.size
        parts = []
        for topic, partition, verdict, epoch, watermark, log_start, last_epoch, end, size in _PART.iter_unpack(payload[at:data_at]):
            data: list[Buffer] = [payload[data_at : data_at + size]] if size else []
            parts.append(
                Part((topic, partition), Verdict(verdict), epoch, watermark, log_start, last_epoch, end, data, size)
            )
            data_at += size
        if data_at != len(payload) or len(parts) != count:
            raise struct.error
    except (struct.error, ValueError):
        raise BraidError("MALFORMED_PAYLOAD", reason="an answer to a replica of the wrong length") from None
    return session, parts
