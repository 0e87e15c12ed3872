"""What joins a queue to an exchange: a route program, and the range of the log for which it holds.

A binding holds from the records that come after it was made to those that came before it was taken back, whenever they are looked
at. A queue with several bindings on one exchange gets a record once, if any of them chooses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import starmap

from braidmq import hot
from braidmq.broker.fq_table import Places, StoredBinding
from braidmq.broker.push import Chunk, Feed
from braidmq.wire.fq.naming import exchange_topic
from braidmq.wire.fq.program import Program

Monotonic = Callable[[], float]
"""Reads a clock, in seconds."""


class Binding:
    __slots__ = (
        "begins", "ends", "exchange", "invocations", "peer", "permanent", "program", "route_id", "spent_s", "topic_name",
    )  # fmt: skip

    def __init__(
        self, route_id: int, exchange: bytes, program: Program, *, peer: bool, permanent: bool, begins: Places | None = None,
        ends: Places | None = None,
    ) -> None:
        self.route_id = route_id
        self.exchange = exchange
        self.topic_name = exchange_topic(exchange)
        self.program = program
        self.peer = peer
        self.permanent = permanent
        self.begins = begins
        self.ends = ends
        self.invocations = 0
        """Messages that it was asked about."""
        self.spent_s = 0.0
        """How long that took."""

    @property
    def stored(self) -> StoredBinding:
        return StoredBinding(self.exchange, self.program.text, self.peer, self.permanent, self.begins, self.ends)

    # --- the range it holds for

    def first(self, feed: Feed) -> int:
        """The first offset of a partition that it is about."""
        return _offset(self.begins, feed, 0)

    def holds_from(self, feed: Feed, offset: int) -> bool:
        """Whether it holds for everything from `offset` on."""
        return offset >= self.first(feed) and self.ends is None

    def is_past(self, feed: Feed, offset: int) -> bool:
        """Whether it has nothing to say about `offset` and what follows."""
        return self.ends is not None and offset >= _offset(self.ends, feed, 0)

    # --- choosing

    def choose(self, feed: Feed, chunk: Chunk, clock: Monotonic) -> tuple[bytes | None, int]:
        """Which records of a chunk it chooses: a mask, or None for all, and how many."""
        first, after = chunk.first, chunk.next_offset
        begin = min(max(first, self.first(feed)), after)
        end = after if self.ends is None else max(begin, min(after, _offset(self.ends, feed, 0)))
        self.invocations += end - begin
        whole = (begin, end) == (first, after)
        program = self.program
        if program.matches_all:
            return (None, after - first) if whole else (_cut(b"\1" * (after - first), first, begin, end), end - begin)
        if begin == end:
            return bytes(after - first), 0
        # A sample is drawn for each binding; everything else is the same whoever asks.
        key = (program.text, self.route_id) if b"sample" in program.text else program.text
        began = clock()
        mask, count = chunk.made(("fq", key), lambda chunk: _mask(chunk, program))
        self.spent_s += clock() - began
        if whole:
            return mask, count
        mask = _cut(mask, first, begin, end)
        return mask, mask.count(1)


def choose_any(bindings: Sequence[Binding], feed: Feed, chunk: Chunk, clock: Monotonic) -> tuple[bytes | None, int]:
    """Which records at least one of the bindings chooses: a mask, or None for all, and how many."""
    if len(bindings) == 1:
        return bindings[0].choose(feed, chunk, clock)
    union = 0
    for binding in bindings:
        mask, count = binding.choose(feed, chunk, clock)
        if mask is None:
            return None, count
        union |= int.from_bytes(mask, "little")
    chosen = union.to_bytes(chunk.next_offset - chunk.first, "little")
    return chosen, chosen.count(1)


def _mask(chunk: Chunk, program: Program) -> tuple[bytes, int]:
    """One byte an offset, 1 where the program chooses the record, and how many it chooses."""
    messages = chunk.made("fq messages", _messages)
    if messages is not None:
        mask = bytes(starmap(program.matches, messages))
        return mask, mask.count(1)
    found = bytearray(chunk.next_offset - chunk.first)
    for record in chunk.records():
        if program.matches(record.key or b"", record.value):
            found[record.offset - chunk.first] = 1
    return bytes(found), found.count(1)


def _messages(chunk: Chunk) -> list[tuple[bytes, bytes]] | None:
    """Route and payload of each record; None where one is missing, so that their order does not tell the offset."""
    size = chunk.next_offset - chunk.first
    found: list[tuple[bytes, bytes]] = []
    for data in chunk.batches:
        # Tuples of nothing else are by far the cheapest that a record can become.
        pairs, _ = hot.decode_records(data, chunk.first, size, lambda _offset, _time, key, value, _attrs: (key or b"", value))
        found += pairs
    return found if len(found) == size else None


def _offset(places: Places | None, feed: Feed, default: int) -> int:
    """What is said about a partition. Of a topic that took another's name nothing is."""
    if places is None or places.topic_id != feed.topic.id:
        return default
    return places.offsets.get(feed.partition, default)


def _cut(mask: bytes, first: int, begin: int, end: int) -> bytes:
    """The mask with nothing chosen outside `begin` to `end`."""
    return bytes(begin - first) + mask[begin - first : end - first] + bytes(len(mask) - (end - first))
