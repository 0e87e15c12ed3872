"""fq's readers on hostile bytes: any split gives the same, mutants end in values or a BraidError, and a canary must fail."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from fq_cases import each_byte, outcome, streams

from braidmq.wire.fq.messages import Message, MessageReader, encode_message

Make = Callable[[], Callable[[bytes], list[Any]]]
STREAMS = streams()
LIES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF)


def cut(rng: random.Random, raw: bytes) -> list[bytes]:
    pieces, at = [], 0
    while at < len(raw):
        size = rng.choice((1, 1, 2, 5, 40, len(raw)))
        pieces.append(raw[at : at + size])
        at += size
    return pieces


def mutant(rng: random.Random, raw: bytes) -> bytes:
    broken = bytearray(raw * rng.choice((1, 1, 3)))
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(broken))
        match rng.randrange(5):
            case 0:
                broken[at] ^= 1 << rng.randrange(8)
            case 1:
                broken[at] = rng.choice(LIES) & 0xFF
            case 2:
                broken[at : at + 2] = struct.pack(">H", rng.choice(LIES))
            case 3:
                broken[at : at + 4] = struct.pack(">I", rng.choice((*LIES, 0x7FFFFFFF, 0xFFFFFFFF)))
            case _:
                del broken[at : at + rng.choice((1, 2, 9))]
        if not broken:
            return b""
    return bytes(broken)


def split_matters(found: list[tuple[str, Make, bytes]], rounds: int) -> str | None:
    """The first bytes that a reader understands differently when they come in other pieces, or None."""
    for turn in range(rounds):
        rng = random.Random(turn)
        name, make, raw = rng.choice(found)
        data = mutant(rng, raw) if turn % 4 else raw * rng.randint(1, 3)
        whole, parts, bytewise = outcome(make, [data]), outcome(make, cut(rng, data)), outcome(make, each_byte(data))
        if not whole == parts == bytewise:
            return f"turn {turn}, {name}: {whole} or {parts} or {bytewise} for {data.hex()}"
    return None


def test_any_split_of_any_bytes_is_read_alike(rounds: Callable[[int, int], int]) -> None:
    assert split_matters(STREAMS, rounds(1500, 60_000)) is None


def test_a_reader_that_minds_the_split_is_caught() -> None:
    """The canary: a reader that looks only at what came in one piece."""

    def forgetful() -> Callable[[bytes], list[Any]]:
        return lambda piece: MessageReader(True, 1000).receive(piece)

    wrong = [(name, forgetful, raw) for name, _, raw in STREAMS if name == "msg_deliver"]
    assert wrong and split_matters(wrong, 20) is not None


def test_noise_is_refused_or_waits(rounds: Callable[[int, int], int]) -> None:
    for turn in range(rounds(1500, 20_000)):
        rng = random.Random(turn)
        name, make, _ = rng.choice(STREAMS)
        found, fault = outcome(make, [rng.randbytes(rng.choice((1, 4, 40, 400)))])
        assert isinstance(found, list), (name, fault)


def test_a_truncated_vector_waits() -> None:
    for name, make, raw in STREAMS:
        if name.startswith("err_") and name.endswith(("user_len_req", "not_auth_req", "auth_method_req")):
            continue
        whole, fault = outcome(make, [raw])
        assert whole and not fault, name
        # The stray bytes of one client mean nothing, so its request is whole without them.
        short, fault = outcome(make, [raw[:1] if name == "real_node_status_req" else raw[:-1]])
        assert not fault and short == whole[: len(short)] and len(short) < len(whole), name


def test_a_length_that_lies_costs_nothing() -> None:
    """Memory grows with what came; nothing is set aside for four gigabytes that were only announced."""
    reader = MessageReader(False, 0xFFFFFFFF)
    head = b"\x02ex\x01r" + bytes(16) + b"\xff\xff\xff\xff"
    assert reader.receive(head + b"some") == []
    assert reader.buffered_bytes == len(head) + 4


@pytest.mark.parametrize("full", [False, True])
def test_what_is_too_large_is_passed_over_without_being_kept(full: bool) -> None:
    def message(size: int) -> Message:
        return Message(b"ex", b"r", bytes(16), b"p" * size, *((b"s", (bytes(4),)) if full else ()))

    small = message(100)
    raw = b"".join(encode_message(message(size), full) for size in (100, 101, 100_000, 0, 101))
    for pieces in ([raw], each_byte(raw), [raw[at : at + 777] for at in range(0, len(raw), 777)]):
        reader = MessageReader(full, 100)
        found = []
        for piece in pieces:
            found += reader.receive(piece)
            assert reader.buffered_bytes <= len(encode_message(small, full))
        assert found == [small, message(0)]
        assert (reader.size_dropped, reader.octets) == (3, len(raw))
