"""Hostile bytes against BlipMQ's decoders, and canaries that prove the fuzzer can fail.

The fuzzer feeds random bytes, mutated vectors, lying lengths and offsets that lead outside, onto each other or round in circles.
A decoder holds when

- nothing but a `WireFault` ever leaves it,
- what it accepts, encoded and decoded again, is the same,
- generated code, where it gets through, finds the same in what it accepts,
- it takes no more memory than a small multiple of the input.

Inputs come from a fixed seed, so that a failure is one that everybody has.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from blipmq_cases import SOUND, VECTORS
from blipmq_oracle import read

from braidmq.wire.blipmq import Envelope, FrameReader, TooLarge, WireFault, binary1, decode, encode, legacy

SEED = 0xB11B
ROUNDS = 20_000
MEMORY_BYTES_SPARE = 64 * 1024
LIES = [0, 1, 2, 3, 4, 5, 8, 12, 16, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x00FFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF]

Decode = Callable[[bytes], object]


def mutated(rng: random.Random, data: bytes) -> bytes:
    """`data` with a few of the changes that break decoders of FlatBuffers."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(8):
            case 0:
                out[at : at + 1] = rng.randbytes(1)
            case 1:
                del out[at:]
            case 2:
                out += rng.randbytes(rng.randrange(20))
            case 3:
                # An offset or a length that lies; they stand at multiples of four.
                at -= at % 4
                out[at : at + 4] = struct.pack("<I", rng.choice(LIES))
            case 4:
                # An entry of a vtable that lies.
                at -= at % 2
                out[at : at + 2] = struct.pack("<H", rng.choice([0, 1, 3, 4, 5, 8, 12, 24, 28, 64, 0xFFFE, 0xFFFF]))
            case 5:
                # An offset that leads to another place of the same buffer: overlaps and circles.
                at -= at % 4
                out[at : at + 4] = struct.pack("<I", rng.randrange(len(out) + 8))
            case 6:
                at -= at % 4
                out[at : at + 4] = struct.pack("<i", -rng.randrange(len(out) + 8))
            case _:
                other = rng.randrange(len(out) + 1)
                out[at : at + 4] = out[other : other + 4]
    return bytes(out)


def bodies(rng: random.Random, rounds: int) -> Iterator[bytes]:
    sound = [vector.data[4:] for vector in SOUND]
    for turn in range(rounds):
        if turn % 20 == 0:
            yield rng.randbytes(rng.randrange(120))
        else:
            yield mutated(rng, rng.choice(sound))


def first_fault(decoder: Callable[[bytes], Envelope], rounds: int) -> str | None:
    """What is wrong with a decoder of envelopes, for the first input that shows it."""
    rng = random.Random(SEED)
    for body in bodies(rng, rounds):
        try:
            envelope = decoder(body)
        except WireFault:
            continue
        except Exception as error:
            return f"{type(error).__name__} for {body.hex()}"
        try:
            again = decode(encode(envelope)[4:])
        except WireFault as fault:
            return f"what was accepted is refused: {fault} for {body.hex()}"
        if again != envelope:
            return f"{again} is not {envelope} for {body.hex()}"
        try:
            theirs = read(body)
        except Exception as error:
            return f"{type(error).__name__} in the generated code for {body.hex()}"
        if theirs != envelope:
            return f"{theirs} is not {envelope} for {body.hex()}"
    return None


def test_no_bytes_break_the_decoder(rounds: Callable[[int, int], int]) -> None:
    assert first_fault(decode, rounds(ROUNDS, 20 * ROUNDS)) is None


def test_a_decoder_that_errs_is_caught() -> None:
    """The canaries: decoders with one mistake each, of the kind that hands and runtimes make."""

    def shortens(body: bytes) -> Envelope:
        # What a runtime without a verifier does: a payload past the end comes back shorter, and nobody is told.
        return decode(body + bytes(64))

    def lets_struct_errors_out(body: bytes) -> Envelope:
        struct.unpack_from("<I", body, struct.unpack_from("<I", body)[0])
        return decode(body)

    def invents(body: bytes) -> Envelope:
        envelope = decode(body)
        return Envelope(envelope.message, envelope.sequence, envelope.timestamp, (*envelope.metadata, ("x-new", "")))

    for wrong in (shortens, lets_struct_errors_out, invents, read):
        assert first_fault(wrong, ROUNDS) is not None, wrong.__name__


def test_offsets_that_go_round_end() -> None:
    """Every word of a buffer leads to every other once; reading ends, and only with a fault of the wire or a message."""
    body = bytearray(next(vector for vector in SOUND if vector.name == "subscribe_filter_meta").data[4:])
    outcomes = set()
    for at in range(0, len(body) - 3, 4):
        for target in range(0, len(body), 4):
            changed = bytearray(body)
            struct.pack_into("<i", changed, at, target - at)
            try:
                decode(bytes(changed))
                outcomes.add("read")
            except WireFault as fault:
                outcomes.add(fault.code)
    assert outcomes >= {"read", "MALFORMED_MESSAGE"}


def test_a_hostile_frame_takes_little_memory() -> None:
    rng = random.Random(SEED)
    inputs = list(bodies(rng, 300))
    tracemalloc.start()
    try:
        for body in inputs:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            try:
                decode(body)
            except WireFault as fault:
                assert fault.text
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 8 * len(body) + MEMORY_BYTES_SPARE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("framing", "decoder"),
    [("binary1", binary1.decode), ("legacy", legacy.decode_command), ("legacy", legacy.decode_reply)],
    ids=["binary1", "legacy_command", "legacy_reply"],
)
def test_no_bytes_break_the_other_framings(framing: str, decoder: Decode) -> None:
    rng = random.Random(SEED)
    sound = [vector.data[4:] for vector in VECTORS if vector.framing == framing]
    outcomes = set()
    for _ in range(4000):
        body = mutated(rng, rng.choice(sound))
        if len(body) < 9:
            continue
        try:
            decoder(body)
            outcomes.add("read")
        except WireFault as fault:
            outcomes.add(type(fault).__name__)
    assert "read" in outcomes and "Malformed" in outcomes


def test_streams_of_hostile_bytes_end_or_go_on() -> None:
    rng = random.Random(SEED)
    ended = 0
    for _ in range(500):
        stream = mutated(rng, b"".join(rng.choice(SOUND).data for _ in range(4)))
        whole, pieces = FrameReader(), FrameReader()
        expected = outcome(whole, [stream])
        cuts = sorted(rng.randrange(len(stream) + 1) for _ in range(6))
        assert outcome(pieces, [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]) == expected
        ended += whole.failure is not None
    assert ended > 20


def outcome(reader: FrameReader, pieces: list[bytes]) -> tuple[list[object], str | None]:
    found: list[object] = []
    for piece in pieces:
        if reader.failure is not None:
            break
        try:
            found += [item.code if isinstance(item, TooLarge) else bytes(item) for item in reader.receive(piece)]
        except WireFault as fault:
            assert fault is reader.failure
    return found, None if reader.failure is None else str(reader.failure)
