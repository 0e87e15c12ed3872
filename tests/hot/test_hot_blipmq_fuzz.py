"""The BlipMQ twins against each other on any bytes, and canaries that prove the comparison can fail.

The parser also has to agree with the codec: what it takes is exactly what the codec reads as a Publish that follows the rules.
Inputs come from fixed seeds, so that a failure is one that everybody has.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hot_blipmq_cases import PAYLOAD_MAX, TOPIC, Bench, random_batches, random_frame
from hot_cases import LIES, mutated
from toolchain import compiler_exists

from braidmq import hot
from braidmq.hot import pure
from braidmq.wire.blipmq import Publish, WireFault, check_request, decode

try:
    from braidmq.hot import _native as native
except ModuleNotFoundError:
    if compiler_exists():
        raise
    pytest.skip("no C compiler, so there is one implementation only", allow_module_level=True)


class Twin:
    """The compiled implementation with something else in place of one function."""

    def __init__(self, **changed: Callable[..., Any]) -> None:
        self.changed = changed

    def __getattr__(self, name: str) -> Any:
        return self.changed.get(name) or getattr(native, name)


def broken(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(out))
        match rng.randrange(6):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                at -= at % 4
                out[at : at + 4] = struct.pack("<I", rng.choice(LIES))
            case 2:
                at -= at % 4
                out[at : at + 4] = struct.pack("<i", rng.randrange(-60, 200))
            case 3:
                at -= at % 2
                out[at : at + 2] = struct.pack("<H", rng.choice((0, 2, 3, 4, 5, 8, 12, 16, 20, 24, 28, 0xFFFF)))
            case 4:
                out[at : at + 4] = out[:4]
            case _:
                del out[at:]
                return bytes(out) or b"\0"
    return bytes(out)


def stream_of(turn: int) -> bytes:
    rng = random.Random(turn)
    stream = b"".join(random_frame(rng) for _ in range(rng.randint(1, 5)))
    if turn % 3:
        stream = broken(rng, stream)
    return stream if turn % 40 else rng.randbytes(rng.randrange(1, 200))


def parsed(twin: ModuleType, stream: bytes, turn: int) -> tuple[Any, ...]:
    rng = random.Random(turn)
    bench = Bench(twin, partitions=rng.choice((1, 3)))
    lane, payload_max = rng.randrange(5), rng.choice((PAYLOAD_MAX, PAYLOAD_MAX, 50, 1 << 20))
    result = bench.parse(stream, lane, payload_max)
    return result, bench.state()


def parse_disagreement(one: ModuleType, other: ModuleType, rounds: int) -> str | None:
    for turn in range(rounds):
        stream = stream_of(turn)
        left, right = parsed(one, stream, turn), parsed(other, stream, turn)
        if left != right:
            return f"turn {turn}: {left!r} is not {right!r} for {stream.hex()}"
    return None


def test_the_twins_parse_any_bytes_alike(rounds: Callable[[int, int], int]) -> None:
    assert parse_disagreement(pure, native, rounds(4000, 300_000)) is None


def test_a_parser_that_errs_is_caught() -> None:
    def forgets_the_limit(buffer: bytes, start: int, stop: int, routes: Any, lane: int, payload_max: int, *rest: Any) -> Any:
        return native.parse_publish(buffer, start, stop, routes, lane, payload_max + 1, *rest)

    def forgets_the_lane(buffer: bytes, start: int, stop: int, routes: Any, lane: int, *rest: Any) -> Any:
        return native.parse_publish(buffer, start, stop, routes, 0, *rest)

    def acks_late(*arguments: Any) -> Any:
        return native.parse_publish(*arguments[:7], arguments[7] + 1, *arguments[8:])

    for wrong in (forgets_the_limit, forgets_the_lane, acks_late):
        assert parse_disagreement(pure, Twin(parse_publish=wrong), 3000) is not None, wrong.__name__  # type: ignore[arg-type]


@pytest.mark.parametrize("twin", [pure, native], ids=["pure", "compiled"])
def test_the_parser_takes_what_the_codec_reads(twin: ModuleType, rounds: Callable[[int, int], int]) -> None:
    taken = refused = 0
    for turn in range(rounds(2000, 100_000)):
        rng = random.Random(turn)
        frame = random_frame(rng)
        if turn % 2:
            frame = frame[:4] + broken(rng, frame[4:])
            frame = struct.pack("<I", len(frame) - 4) + frame[4:]
        bench = Bench(twin)
        _, count, status = bench.parse(frame)
        try:
            envelope = decode(frame[4:])
            check_request(envelope, PAYLOAD_MAX)
        except WireFault:
            assert count == 0 and status == hot.OTHER_FRAME, frame.hex()
            refused += 1
            continue
        message = envelope.message
        plain = isinstance(message, Publish) and message.topic.encode() == TOPIC and (message.message_id or "").isascii()
        if not turn % 2:
            assert count == (plain and not envelope.metadata), frame.hex()
        if count:
            assert plain and not envelope.metadata and isinstance(message, Publish)
            (_, _, _), _, _, (batch,) = bench.state()
            (record,) = native.decode_records(batch, 0, 9, lambda *fields: fields)[0]
            assert record[3] == message.payload
            assert record[4][10:] == bytes((message.qos,)) + (message.message_id or "").encode()
            taken += 1
    assert taken > 150 and refused > 150


def encoded(twin: ModuleType, log: bytes, turn: int) -> tuple[Any, ...]:
    rng = random.Random(turn)
    base = int.from_bytes(log[16:24], "little") if len(log) >= 24 else 0
    start = max(0, min(base, 1 << 40) + rng.choice((0, 0, 1, 7, -1)))
    stop = start + rng.choice((1, 5, 1000))
    cut = rng.choice((0, len(log), rng.randrange(len(log) + 1)))
    wanted = rng.choice((None, None, rng.randbytes(12), bytes(rng.randrange(2) for _ in range(1000))))
    out = twin.ByteBuffer()
    ids: list[Any] | None = rng.choice(([], None))
    result = twin.encode_messages(
        [log[:cut], log[cut:]] if cut and turn % 5 == 0 else [log], start, stop, rng.choice((TOPIC, b"", b"a", b"ab", b"abc")),
        rng.choice((0, 1, 5 << 40, (1 << 64) - 3)), rng.choice((0, 1)), rng.choice((1, 1000, 10**6, 10**9)), wanted, out, ids,
    )  # fmt: skip
    return result, out.frames, out.take(), ids


def encode_disagreement(one: ModuleType, other: ModuleType, rounds: int) -> str | None:
    for turn in range(rounds):
        rng = random.Random(turn)
        log = random_batches(rng, native)
        if turn % 2:
            log = mutated(rng, log)
        left, right = encoded(one, log, turn), encoded(other, log, turn)
        if left != right:
            return f"turn {turn}: {left!r} is not {right!r} for {log.hex()}"
    return None


def test_the_twins_encode_any_batches_alike(rounds: Callable[[int, int], int]) -> None:
    assert encode_disagreement(pure, native, rounds(1000, 100_000)) is None


def test_an_encoder_that_errs_is_caught() -> None:
    def forgets_the_mask(*arguments: Any) -> Any:
        return native.encode_messages(*arguments[:7], None, *arguments[8:])

    def goes_too_far(batches: Any, start: int, stop: int, *rest: Any) -> Any:
        return native.encode_messages(batches, start, stop + 1, *rest)

    def always_asks_for_acks(*arguments: Any) -> Any:
        return native.encode_messages(*arguments[:5], 1, *arguments[6:])

    for wrong in (forgets_the_mask, goes_too_far, always_asks_for_acks):
        assert encode_disagreement(pure, Twin(encode_messages=wrong), 1500) is not None, wrong.__name__  # type: ignore[arg-type]
