"""The twins against each other on hostile input, and a canary that proves the comparison can fail.

Whatever bytes come, both implementations return the same or refuse with the same words; nothing but a `BraidError` leaves
either of them. Mutants are mostly sealed anew, since a checksum would hide the checks behind it. Inputs come from fixed
seeds, so that a failure is one that everybody has.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hot_cases import LIES, Outcome, mutated, outcome_of, produce_frame, random_log
from hypothesis import given
from hypothesis import strategies as st
from toolchain import compiler_exists

from braidmq import hot
from braidmq.hot import layout, pure

try:
    from braidmq.hot import _native as native
except ModuleNotFoundError:
    if compiler_exists():
        raise
    pytest.skip("no C compiler, so there is one implementation only", allow_module_level=True)

TOPICS = {b"one": (1, 0), b"three": (3, 1), "é/ü".encode(): (2, 2), b"": (1, 0), b"closed": (2, 1), b"x" * 255: (7, 2)}


def take(offset: int, timestamp: int, key: bytes | None, value: bytes, attrs: bytes) -> tuple[object, ...]:
    return offset, timestamp, key, value, attrs


def outcomes(twin: ModuleType, log: bytes, rng: random.Random) -> list[Outcome]:
    """What one implementation makes of `log` in every function that reads batches. The same `rng` asks both the same."""
    size = len(log)
    start = rng.choice([0, 0, 0, *likely_starts(log)])
    stop = rng.choice((size, size, size + 9, rng.randrange(size + 1)))
    offset, limit, records, room = rng.randrange(90), rng.randrange(6), rng.randrange(1, 30), rng.choice((-5, 0, 30, 400, 1 << 20))
    found = [
        outcome_of(twin.scan_batches, log, start, stop, rng.choice((-1, 0, 0, offset)), rng.choice((1, 300, 4096))),
        outcome_of(twin.verify_batches, log, start, stop),
        outcome_of(twin.verify_batches, log, start, stop, rng.randrange(size + 1)),
        outcome_of(twin.collect_rows, log, start, stop, offset, records, room),
        outcome_of(twin.span_batches, log, start, stop, offset, room),
        outcome_of(twin.decode_records, log, offset, limit, take),
        outcome_of(twin.decode_records, log, 0, 1 << 40, take),
        outcome_of(twin.stamp_batch, log, 7, 8, 9),
        outcome_of(twin.stamp_batch, log[: batch_length(log)], 7, 8, 9),
        outcome_of(twin.crc32c, log, offset),
    ]
    kind, collected = found[3]
    assert kind == "returned" and isinstance(collected, tuple)
    slices, taken = collected[0], collected[1]
    found.append(outcome_of(twin.reorder_rows, list(slices), taken + rng.choice((0, 0, 0, 1, -1)) if taken else 0))
    found.append(outcome_of(twin.reorder_rows, [log[rng.randrange(size + 1) :]], rng.randrange(300)))
    return found


def likely_starts(log: bytes) -> list[int]:
    """Where batches seem to begin, as far as lengths can be followed."""
    starts, at = [], 0
    while len(log) - at >= layout.HEADER_BYTES and len(starts) < 5:
        starts.append(at)
        at += max(8, batch_length(log[at:]))
    return starts


def batch_length(log: bytes) -> int:
    return int.from_bytes(log[4:8], "little")


def disagreement(one: ModuleType, other: ModuleType, rounds: int, seed: int = 0xB0A7) -> str | None:
    """The first input that the two read differently, or None."""
    for turn in range(rounds):
        rng = random.Random(seed + turn)
        log = random_log(rng, pure, rng.randint(1, 4), rng.choice((0, 0, 3, 1 << 40)))
        if turn % 4:
            log = mutated(rng, log)
        if turn % 50 == 0:
            log = rng.randbytes(rng.randrange(200))
        ours, theirs = outcomes(one, log, random.Random(turn)), outcomes(other, log, random.Random(turn))
        for number, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            if left != right:
                return f"turn {turn}, call {number}: {left!r} is not {right!r} for {log.hex()}"
    return None


def test_the_twins_read_any_bytes_alike(rounds: Callable[[int, int], int]) -> None:
    assert disagreement(pure, native, rounds(1000, 60_000)) is None


def test_a_twin_that_errs_is_caught() -> None:
    """The canary: implementations with one small mistake each, of the kind that a hand makes."""

    class Twin:
        def __init__(self, **changed: Callable[..., Any]) -> None:
            self.changed = changed

        def __getattr__(self, name: str) -> Any:
            return self.changed.get(name) or getattr(native, name)

    def forgets_the_column_check(data: bytes, *stamps: int) -> bytearray:
        head = layout.read_header(data) if len(data) >= 80 else None
        if head is not None and head.records > 1 and pure.verify_batches(data, 0, len(data)) == (len(data), ""):
            return bytearray(data)
        return bytearray(native.stamp_batch(data, *stamps))

    def takes_one_row_too_many(buffer: bytes, start: int, stop: int, offset: int, records: int, room: int) -> Any:
        return native.collect_rows(buffer, start, stop, offset, records + 1, room)

    def ends_one_byte_late(buffer: bytes, start: int, stop: int, until: int = 1 << 60) -> Any:
        return native.verify_batches(buffer, start, stop, until + 1)

    for wrong in (
        {"stamp_batch": forgets_the_column_check},
        {"collect_rows": takes_one_row_too_many},
        {"verify_batches": ends_one_byte_late},
        {"crc32c": lambda data, value=0: native.crc32c(data, value) ^ (len(data) > 3000)},
    ):
        assert disagreement(pure, Twin(**wrong), 2500) is not None, wrong  # type: ignore[arg-type]


def test_a_function_that_lets_a_foreign_error_out_is_caught() -> None:
    def fragile(data: bytes) -> int:
        return int(struct.unpack_from("<I", data)[0])

    with pytest.raises(struct.error):
        outcome_of(fragile, b"")


# --- building


blobs = st.binary(max_size=60)
records = st.lists(st.tuples(st.none() | blobs, blobs, st.sampled_from([b"", b"\x01\0\0\0x", b"\0\0\0\0"])), max_size=30)


@given(records, st.booleans(), st.integers(-3, 1 << 63), st.integers(-3, 1 << 16), st.integers(-3, 1 << 32))
def test_the_twins_build_the_same_batch(
    rows: list[tuple[bytes | None, bytes, bytes]], with_attrs: bool, producer: int, epoch: int, sequence: int
) -> None:
    keys, values, attrs = ([row[column] for row in rows] for column in range(3))
    if producer >= 1 << 63:
        producer = -1
    arguments = (keys, values, attrs if with_attrs else None, producer, epoch, sequence)
    ours, theirs = outcome_of(pure.encode_batch, *arguments), outcome_of(native.encode_batch, *arguments)
    assert ours == theirs
    if ours[0] == "returned":
        for twin in (pure, native):
            stamped = twin.stamp_batch(ours[1], 1000, 2, 3)
            found, following = twin.decode_records(stamped, 0, 99, take)
            assert following == 1000 + len(rows)
            assert [(key or b"", value) for _, _, key, value, _ in found] == [(key or b"", value) for key, value, _ in rows]


@given(
    st.lists(
        st.tuples(st.none() | blobs, blobs, st.sampled_from([0, 0, 9]), st.sampled_from([None, b"", b"\x01\0\0\0x"])), max_size=80
    )
)
def test_the_twins_accumulate_the_same_batch(rows: list[tuple[bytes | None, bytes, int, bytes | None]]) -> None:
    ours, theirs = pure.Accumulator(None, 40), native.Accumulator(None, 40)
    for _ in range(2):
        for row in rows:
            assert ours.append(*row) == theirs.append(*row)
            assert (ours.count, ours.rows_bytes, ours.next_offset) == (theirs.count, theirs.rows_bytes, theirs.next_offset)
        if rows:
            assert ours.take(77, 5) == theirs.take(77, 5)


# --- parsing


class Parser:
    """One implementation with routes of its own, fed piece by piece as a session does."""

    def __init__(self, twin: ModuleType) -> None:
        self.twin = twin
        self.table = twin.RouteTable()
        self.accumulators: list[Any] = []
        self.out = twin.ByteBuffer()
        self.dirty: list[Any] = []
        self.held = b""
        self.stopped = False
        self.taken = 0
        for name, (partitions, level) in TOPICS.items():
            mine = [twin.Accumulator(None, 1 << (4 * number)) for number in range(partitions)]
            if name == b"closed":
                mine[1].writable = False
            if name == b"three":
                mine[2].append(b"k", b"v", 55, b"\x01\0\0\0x")
            self.accumulators += mine
            self.table.add(twin.Route(name, mine, level))

    def feed(self, piece: bytes) -> None:
        self.held += piece
        if self.stopped:
            return
        data = b"before" + self.held + b"after"
        position, count, status = self.twin.parse_produce(
            memoryview(data), 6, 6 + len(self.held), self.table, -3, self.dirty, self.out
        )
        self.held = self.held[position - 6 :]
        self.taken += count
        self.stopped = status != hot.NEED_MORE

    def state(self) -> tuple[object, ...]:
        return (
            self.taken, self.stopped, self.held, self.out.level, self.out.frames, bytes(self.out.take()),
            [self.accumulators.index(dirty) for dirty in self.dirty],
            [self.table.get(name).counter for name in TOPICS],
            [(a.count, a.rows_bytes, a.next_offset, a.dirty, bytes(a.take(1, 2)) if a.count else b"") for a in self.accumulators],
        )  # fmt: skip


frames = st.builds(
    produce_frame, st.sampled_from([*TOPICS, b"three", b"one", b"unknown"]), st.sampled_from([b"", b"", b"k", b"other key"]), blobs,
    st.sampled_from([-1, -1, -1, 0, 0, 1, 2, -2, 7, -(1 << 31)]),
)  # fmt: skip
other_frames = st.sampled_from(
    [
        b"\xaf\x01\x07\x01\0\0\0\2{}",
        b"\xaf\x01\x01\x03\0\0\0\4gzip",
        b"\xaf\x02\x01\x01\0\0\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xaf\x01\x01\x01\xff\xff\xff\xff",
    ]
)
lies = st.builds(
    lambda frame, at, lie: frame[:at] + struct.pack(">I", lie) + frame[at + 4 :], frames, st.integers(4, 40), st.sampled_from(LIES)
)
streams = st.lists(st.one_of(frames, frames, frames, frames, lies, other_frames, st.binary(max_size=20)), max_size=12).map(b"".join)


@given(streams, st.lists(st.integers(1, 60), max_size=12))
def test_the_twins_parse_any_stream_alike_wherever_it_is_cut(stream: bytes, cuts: list[int]) -> None:
    whole = Parser(pure)
    whole.feed(stream)
    wanted = whole.state()
    for twin in (native, pure):
        parser = Parser(twin)
        rest = stream
        for cut in cuts:
            parser.feed(rest[:cut])
            rest = rest[cut:]
        parser.feed(rest)
        assert parser.state() == wanted
    uncut = Parser(native)
    uncut.feed(stream)
    assert uncut.state() == wanted


def test_the_twins_parse_a_long_run_alike_at_every_cut() -> None:
    rng = random.Random(3)
    names = [name for name in TOPICS if name != b"closed"]
    run = b"".join(
        produce_frame(rng.choice(names), rng.choice((b"", b"key")), rng.randbytes(rng.randrange(9)), -1) for _ in range(12)
    )
    whole = Parser(pure)
    whole.feed(run)
    wanted = whole.state()
    for cut in range(len(run)):
        for twin in (native, pure):
            parser = Parser(twin)
            parser.feed(run[:cut])
            parser.feed(run[cut:])
            assert parser.state() == wanted
