"""Reading over batches that lie compressed or encrypted: decode, then read as any other.

A few small ones are decoded where the read runs, on the loop. What would hold the loop up is handed back, to be decoded beside
it and found in the codec's cache by the next try. A read that has something to answer with answers at once: a short answer is
better than one that everybody else waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.hot import layout
from braidmq.log.batch_codec import BatchCodec, opaque_length

Walk = Callable[[memoryview, int], tuple[int, int]]
_BATCH_COST_BYTES: Final = 1024
"""What a batch costs besides decoding it, as so many bytes of decoding."""


class Answer(Protocol):
    """What a read has so far."""

    size: int
    next_offset: int


def walk_opaque(
    answer: Answer, codec: BatchCodec, path: str, view: memoryview, at: int, position: int, likely_bytes: int, walk: Walk,
    may_decode: bool,
) -> tuple[int, int, Callable[[], None] | None]:
    """Lead `walk` over compressed and encrypted batches from `at` of `view` on, which is `position` of the segment `path`.

    Returns where it stopped, why, and what has to be done beside the loop before it can go on, if it may not decode here.
    """
    left = limits.DECODED_BYTES_AT_ONCE_MAX
    status = hot.SPECIAL
    while length := opaque_length(view, at):
        head = layout.read_header(view, at)
        if head.next_offset > answer.next_offset:
            batch = codec.known(path, position)
            left -= _BATCH_COST_BYTES if batch is not None else _BATCH_COST_BYTES + head.plain_length
            if left < 0 and answer.size:
                return at, hot.LIMITED, None
            if batch is None and left < 0 and not may_decode:
                # No more than stays in the cache until it is read, beside what others read.
                plain_bytes = min(likely_bytes, limits.DECODED_BYTES_MAX // 4)
                return at, status, partial(codec.decode_ahead, view[at:], path, position, plain_bytes)
            try:
                plain = memoryview(codec.decoded(view[at : at + length], path, position) if batch is None else batch)
            except BraidError:
                if answer.size:
                    return at, hot.LIMITED, None
                raise
            end, status = walk(plain, 0)
            if status == hot.LIMITED or end < len(plain):
                return at, status, None
        status = hot.COLLECTED
        at += length
        position += length
    return at, status, None
