"""Hostile bytes against the FlyMQ decoders, and canaries that prove the fuzzer can fail.

The fuzzer feeds random bytes, mutated vectors and lying lengths. A decoder holds when

- nothing but a `BraidError` ever leaves it,
- what it accepts encodes to bytes the input begins with: nothing invented, cut or moved; where one value has several
  forms on the wire, it encodes to another form of the same value,
- it takes no more memory than a small multiple of the input.

Inputs come from a fixed seed, so that a failure is one that everybody has.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from flymq_cases import BOTH, VECTORS
from flymq_cases_own import OWN_REQUESTS, OWN_RESPONSES
from flymq_cases_strategies import DOCUMENTED

from braidmq.base.errors import BraidError
from braidmq.wire.flymq import (
    HEADER_BYTES,
    Dialect,
    FrameReader,
    Metadata,
    Op,
    Request,
    answer_op,
    decode_request,
    decode_response,
    encode_frame,
    encode_request,
    encode_response,
    unpack_payload,
)
from braidmq.wire.flymq.requests import REQUESTS
from braidmq.wire.flymq.responses import RESPONSES

DecodeRequest = Callable[[int, bytes | memoryview, Dialect], tuple[Request, Dialect]]

SEED = 0xAF01
ROUNDS = 24_000
MEMORY_BYTES_SPARE = 64 * 1024
SEVERAL_FORMS = {
    # Any byte but 0 is true.
    Op.USER_CREATE,
    Op.USER_UPDATE,
    Op.PASSWORD_CHANGE,
    Op.ACL_SET,
    Op.REPLAY_DLQ,
    Op.PIPELINE_START,
    Op.FETCH_BATCHES,
    Op.CLUSTER_MAP,
    # A name that is left out is an empty one.
    Op.LIST_SCHEMAS,
    Op.CLUSTER_METADATA,
    Op.CANCEL_DELAYED,
    Op.DELETE_GROUP,
    Op.SEEK_TO_TIMESTAMP,
    # A mode's length has one byte or two.
    Op.RESET_OFFSET,
    # Unknown fields lie inside a length, not at the end.
    Op.AUDIT_EXPORT,
    Op.AUDIT_DOCUMENT,
}
LIES = [struct.pack(form, value) for form in (">H", ">I") for value in (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF)] + [
    struct.pack(">I", value) for value in (0x00FFFFFF, 0x02000000, 0x02000001, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
]


def mutated(rng: random.Random, data: bytes) -> bytes:
    """`data` with a few of the changes that break decoders."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(6):
            case 0:
                out[at : at + 1] = rng.randbytes(1)
            case 1:
                lie = rng.choice(LIES)
                out[at : at + len(lie)] = lie
            case 2:
                del out[at:]
            case 3:
                out[at:at] = rng.randbytes(rng.randint(1, 8))
            case 4:
                del out[at : at + rng.randint(1, 8)]
            case _:
                out[at:] += out[:at]
    return bytes(out)


def payloads(corpus: list[tuple[int, bytes]], known: list[int], rounds: int) -> Iterator[tuple[int, bytes]]:
    """Opcode and payload pairs: a third random, the rest mutated from the corpus, sometimes under the wrong opcode."""
    rng = random.Random(SEED)
    for turn in range(rounds):
        op, payload = rng.choice(corpus)
        if turn % 3 == 0:
            yield rng.choice(known), rng.randbytes(rng.randint(0, 48))
        elif rng.random() < 0.1:
            yield rng.randrange(256), mutated(rng, payload)
        else:
            yield op, mutated(rng, payload)


REQUEST_CORPUS = [(vector.op, vector.request[HEADER_BYTES:]) for vector in VECTORS if vector.op in REQUESTS] + [
    (request.op, encode_request(request, DOCUMENTED)[HEADER_BYTES:]) for request in OWN_REQUESTS
]
RESPONSE_CORPUS = [(vector.op, vector.response[HEADER_BYTES:]) for vector in VECTORS if vector.op in RESPONSES] + [
    (op, encode_response(op, response, DOCUMENTED)[HEADER_BYTES:]) for op, response in OWN_RESPONSES
]


def test_the_corpus_has_every_operation() -> None:
    assert {op for op, _ in REQUEST_CORPUS} == REQUESTS.keys()
    assert {op for op, _ in RESPONSE_CORPUS} == RESPONSES.keys()


def fuzz_requests(decode: DecodeRequest, rounds: int = ROUNDS) -> tuple[int, int]:
    """How many inputs `decode` accepted and refused; AssertionError with the input when it breaks a promise."""
    accepted = refused = 0
    for op, payload in payloads(REQUEST_CORPUS, sorted(REQUESTS), rounds):
        where = f"opcode {op:02X}, payload {payload.hex()}"
        try:
            request, dialect = decode(op, payload, DOCUMENTED)
        except BraidError:
            refused += 1
            continue
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} left the decoder: {where}") from error
        accepted += 1
        try:
            written = encode_request(request, dialect)
        except BraidError as error:
            raise AssertionError(f"{request} cannot have come from a {dialect.value} client: {where}") from error
        assert written[2] == op, f"another opcode: {where}"
        if op in SEVERAL_FORMS:
            assert decode_request(op, written[HEADER_BYTES:], dialect) == (request, dialect), f"{request} changed: {where}"
        else:
            assert payload.startswith(written[HEADER_BYTES:]), f"{request} is not what the bytes say: {where}"
    return accepted, refused


def fuzz_memory(decode: Callable[[bytes], object], rounds: int = 300) -> int:
    """Lying lengths and counts in short inputs, and how many were refused.

    AssertionError when one of them is believed before it is checked.
    """
    rng = random.Random(SEED)
    refused = 0
    tracemalloc.start()
    try:
        for _ in range(rounds):
            data = rng.randbytes(rng.randint(0, 4)) + rng.choice(LIES) + bytes(rng.randint(0, 40))
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            try:
                decode(data)
            except BraidError:
                refused += 1
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < MEMORY_BYTES_SPARE, f"{peak - before} bytes for {data.hex()}"
    finally:
        tracemalloc.stop()
    return refused


def test_requests_hold() -> None:
    accepted, refused = fuzz_requests(decode_request)
    # A fuzzer whose inputs are all refused, or all accepted, would prove nothing.
    assert accepted > ROUNDS // 20
    assert refused > ROUNDS // 20


def test_requests_hold_as_views() -> None:
    fuzz_requests(lambda op, payload, dialect: decode_request(op, memoryview(payload), dialect), ROUNDS // 3)


@pytest.mark.parametrize("dialect", BOTH)
def test_responses_hold(dialect: Dialect) -> None:
    accepted = 0
    for op, payload in payloads(RESPONSE_CORPUS, sorted(RESPONSES), ROUNDS // 2):
        if op not in RESPONSES:
            continue
        try:
            response = decode_response(op, answer_op(op), payload, dialect)
        except BraidError as error:
            assert error.code == "UNEXPECTED_REPLY"
            continue
        accepted += 1
        again = encode_response(op, response, dialect)
        assert decode_response(op, answer_op(op), again[HEADER_BYTES:], dialect) == response
    assert accepted > ROUNDS // 40


@pytest.mark.parametrize("dialect", BOTH)
def test_error_frames_always_give_a_text(dialect: Dialect) -> None:
    corpus = [(vector.op, vector.response[HEADER_BYTES:]) for vector in VECTORS if vector.response[2] == Op.ERROR]
    for op, payload in payloads(corpus, [Op.PRODUCE], 2000):
        decode_response(op, Op.ERROR, payload, dialect)


def test_frames_hold_whole_and_byte_by_byte() -> None:
    rng = random.Random(SEED)
    failed = 0
    for _ in range(1500):
        frames = b"".join(rng.choice(VECTORS).request for _ in range(rng.randint(1, 4)))
        stream = mutated(rng, frames) if rng.random() < 0.8 else rng.randbytes(rng.randint(0, 40))
        whole, single = FrameReader(), FrameReader()
        try:
            expected = whole.receive(stream)
        except BraidError:
            expected = []
        seen = []
        for at in range(len(stream)):
            try:
                seen += single.receive(stream[at : at + 1])
            except BraidError as error:
                failed += 1
                assert error.code in ("MALFORMED_FRAME", "FRAME_TOO_LARGE")
                break
        assert seen == expected, stream.hex()
        for frame in seen:
            try:
                unpack_payload(frame.flags, frame.payload)
            except BraidError as error:
                assert error.code in ("MALFORMED_PAYLOAD", "UNSUPPORTED_COMPRESSION", "FRAME_TOO_LARGE")
    assert failed > 100


@pytest.mark.parametrize("op", sorted(REQUESTS))
def test_requests_take_no_memory_for_lies(op: int) -> None:
    fuzz_memory(lambda data: decode_request(op, data, DOCUMENTED))


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("op", sorted(RESPONSES))
def test_responses_take_no_memory_for_lies(op: int, dialect: Dialect) -> None:
    fuzz_memory(lambda data: decode_response(op, answer_op(op), data, dialect))


def test_frames_take_no_memory_for_lies() -> None:
    header = encode_frame(Op.PRODUCE, b"")[:4]
    fuzz_memory(lambda data: FrameReader().receive(header + data))


# --- canaries: decoders with the classic mistakes. Each has to be caught.


def _forgets_to_check(op: int, payload: bytes | memoryview, dialect: Dialect) -> tuple[Request, Dialect]:
    """Unpacks a length that may not be there: `struct.error` leaves it."""
    if op == Op.METADATA:
        (size,) = struct.unpack_from(">H", payload)
        return Metadata(bytes(payload[2 : 2 + size]).decode(errors="replace")), dialect
    return decode_request(op, payload, dialect)


def _trusts_slices(op: int, payload: bytes | memoryview, dialect: Dialect) -> tuple[Request, Dialect]:
    """Takes a slice past the end, which Python shortens in silence."""
    if op == Op.METADATA and len(payload) >= 2:
        (size,) = struct.unpack_from(">H", payload)
        try:
            return Metadata(bytes(payload[2 : 2 + size]).decode()), dialect
        except UnicodeDecodeError:
            raise BraidError("MALFORMED_PAYLOAD", reason="not UTF-8") from None
    return decode_request(op, payload, dialect)


def _leaks_unicode_errors(op: int, payload: bytes | memoryview, dialect: Dialect) -> tuple[Request, Dialect]:
    request, after = decode_request(op, payload, dialect)
    bytes(payload).decode()
    return request, after


def _misses_the_dialect(op: int, payload: bytes | memoryview, dialect: Dialect) -> tuple[Request, Dialect]:
    request, _ = decode_request(op, payload, dialect)
    return request, dialect


@pytest.mark.parametrize("broken", [_forgets_to_check, _trusts_slices, _leaks_unicode_errors, _misses_the_dialect])
def test_canary_is_caught(broken: DecodeRequest) -> None:
    with pytest.raises(AssertionError):
        fuzz_requests(broken)


def _allocates_first(data: bytes) -> object:
    """Believes a count, up to what this machine can bear in a test."""
    if len(data) < 4:
        return None
    (count,) = struct.unpack_from(">I", data)
    return [None] * min(count, 1_000_000)


def test_memory_canary_is_caught() -> None:
    with pytest.raises(AssertionError):
        fuzz_memory(_allocates_first)
