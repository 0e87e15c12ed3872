"""Requests: they survive the wire in both dialects, tell the dialect of their sender, and refuse what cannot be."""

from __future__ import annotations

import dataclasses
import struct

import pytest
from flymq_cases import BOTH, DOCUMENTED, REQUESTS_OF, V126, quick
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import BraidError
from braidmq.base.limits import FRAME_PAYLOAD_BYTES_MAX
from braidmq.wire.flymq import (
    HEADER_BYTES,
    Commit,
    Consume,
    CreateTopic,
    Dialect,
    Fetch,
    FetchBatches,
    FrameReader,
    ListTopics,
    Metadata,
    Op,
    Produce,
    ProduceBatch,
    Request,
    Subscribe,
    decode_request,
    encode_request,
    only_v126,
)
from braidmq.wire.flymq.requests import REQUESTS
from braidmq.wire.flymq.responses import RESPONSES


def payload_of(request: Request, dialect: Dialect) -> bytes:
    return encode_request(request, dialect)[HEADER_BYTES:]


def code_of(op: int, payload: bytes, dialect: Dialect = DOCUMENTED) -> str:
    with pytest.raises(BraidError) as caught:
        decode_request(op, payload, dialect)
    return caught.value.code


@pytest.mark.parametrize("dialect", BOTH)
@quick
@given(data=st.data())
def test_round_trip(dialect: Dialect, data: st.DataObject) -> None:
    request = data.draw(REQUESTS_OF[dialect])
    (frame,) = FrameReader().receive(encode_request(request, dialect))
    assert frame.op == request.op
    assert frame.flags == 1
    decoded, after = decode_request(frame.op, frame.payload, dialect)
    assert decoded == request
    assert after is dialect
    assert decode_request(frame.op, bytes(frame.payload), dialect) == (request, dialect)


@pytest.mark.parametrize("dialect", BOTH)
@quick
@given(data=st.data())
def test_every_cut_of_a_request_is_malformed(dialect: Dialect, data: st.DataObject) -> None:
    request = data.draw(REQUESTS_OF[dialect].filter(lambda request: not isinstance(request, ListTopics)))
    payload = payload_of(request, dialect)
    kept = data.draw(st.integers(0, len(payload) - 1))
    # The filter is the one field that may be missing, so a cut just before it is a whole request.
    if isinstance(request, Fetch) and dialect is V126:
        bare = dataclasses.replace(request, filter="")
        if kept == len(payload_of(bare, DOCUMENTED)):
            assert decode_request(request.op, payload[:kept], dialect) == (bare, dialect)
            return
    # Half of a documented mode length is a whole v126 mode, the empty one.
    if isinstance(request, Subscribe) and dialect is DOCUMENTED:
        bare_mode = dataclasses.replace(request, mode="")
        if payload[:kept] == payload_of(bare_mode, V126):
            assert decode_request(request.op, payload[:kept], dialect) == (bare_mode, V126)
            return
    assert code_of(request.op, payload[:kept], dialect) == "MALFORMED_PAYLOAD"


@pytest.mark.parametrize("dialect", BOTH)
@quick
@given(data=st.data())
def test_bytes_after_the_last_field_are_ignored(dialect: Dialect, data: st.DataObject) -> None:
    request = data.draw(REQUESTS_OF[dialect].filter(lambda request: not isinstance(request, Subscribe)))
    if isinstance(request, Fetch) and dialect is DOCUMENTED:
        return  # There the next bytes are a filter.
    extra = data.draw(st.binary(min_size=1, max_size=12))
    assert decode_request(request.op, payload_of(request, dialect) + extra, dialect) == (request, dialect)


@quick
@given(data=st.data())
def test_dialect_is_detected_only_where_it_shows(data: st.DataObject) -> None:
    request = data.draw(REQUESTS_OF[V126])
    decoded, after = decode_request(request.op, payload_of(request, V126), DOCUMENTED)
    assert decoded == request
    assert after is (V126 if isinstance(request, (Subscribe, Fetch)) else DOCUMENTED)


@quick
@given(data=st.data())
def test_v126_connection_reads_documented_requests_and_stays(data: st.DataObject) -> None:
    request = data.draw(REQUESTS_OF[DOCUMENTED])
    assert decode_request(request.op, payload_of(request, DOCUMENTED), V126) == (request, V126)


@pytest.mark.parametrize("op", [Op.FETCH, Op.FETCH_BINARY])
@pytest.mark.parametrize(
    ("tail", "filter_text", "after"), [("", "", DOCUMENTED), ("0000", "", V126), ("00024243", "BC", V126), ("0000ff", "", V126)]
)
def test_fetch_filter_field_shows_v126_even_when_empty(op: Op, tail: str, filter_text: str, after: Dialect) -> None:
    head = struct.pack(">H1siQi", 1, b"t", 0, 7, 10)
    request = Fetch("t", 0, 7, 10, filter_text, binary=op == Op.FETCH_BINARY)
    assert decode_request(op, head + bytes.fromhex(tail), DOCUMENTED) == (request, after)


@pytest.mark.parametrize("tail", ["00", "0003ab41", "0001ff"], ids=["half a length", "too long", "not UTF-8"])
def test_bad_fetch_filter_is_malformed(tail: str) -> None:
    assert code_of(Op.FETCH, struct.pack(">H1siQi", 1, b"t", 0, 7, 10) + bytes.fromhex(tail)) == "MALFORMED_PAYLOAD"


@pytest.mark.parametrize(
    ("tail", "mode", "after"),
    [
        (b"\x00", "", V126),
        (b"\x00\x00", "", DOCUMENTED),
        (b"\x01a", "a", V126),
        (b"\x00\x01a", "a", DOCUMENTED),
        (b"\xff" + b"m" * 255, "m" * 255, V126),
        (b"\x00\xff" + b"m" * 255, "m" * 255, DOCUMENTED),
        (b"\x01\x00" + b"m" * 256, "m" * 256, DOCUMENTED),
    ],
)
def test_subscribe_mode_length_of_one_or_two_bytes(tail: bytes, mode: str, after: Dialect) -> None:
    head = struct.pack(">H1sH1si", 1, b"t", 1, b"g", 0)
    assert decode_request(Op.SUBSCRIBE, head + tail, DOCUMENTED) == (Subscribe("t", "g", 0, mode), after)


@pytest.mark.parametrize("tail", ["", "01", "0261", "000261", "00016162", "0661626364656600", "01ff", "0001ff"])
def test_bad_subscribe_mode_is_malformed(tail: str) -> None:
    head = struct.pack(">H1sH1si", 1, b"t", 1, b"g", 0)
    assert code_of(Op.SUBSCRIBE, head + bytes.fromhex(tail)) == "MALFORMED_PAYLOAD"


@pytest.mark.parametrize("data", ["ff", "c080", "eda080", "f4908080", "c3"])
def test_names_must_be_utf8(data: str) -> None:
    name = bytes.fromhex(data)
    assert code_of(Op.METADATA, len(name).to_bytes(2) + name) == "MALFORMED_PAYLOAD"


def test_every_other_opcode_is_unknown() -> None:
    for op in range(256):
        if op not in REQUESTS:
            assert code_of(op, b"\0" * 64) == "UNKNOWN_OPCODE"
    with pytest.raises(BraidError, match=r"^UNKNOWN_OPCODE: unknown opcode: 113$"):
        decode_request(Op.AUTH_RESPONSE, b"", DOCUMENTED)


def test_every_request_has_an_answer() -> None:
    assert REQUESTS.keys() == RESPONSES.keys()


def test_opcodes_that_only_published_clients_know() -> None:
    assert [op for op in range(256) if only_v126(op)] == [0x53, 0x80, 0x81, 0xA0, 0xA1]
    assert all(only_v126(op) is False for op in REQUESTS)


def test_decoded_request_owns_its_bytes_except_a_batch() -> None:
    produce = bytearray(payload_of(Produce("t", b"k", b"v"), DOCUMENTED))
    batch = bytearray(payload_of(ProduceBatch("t", 0, b"abc"), DOCUMENTED))
    owned, _ = decode_request(Op.PRODUCE, memoryview(produce), DOCUMENTED)
    viewed, _ = decode_request(Op.PRODUCE_BATCH, memoryview(batch), DOCUMENTED)
    produce[:] = bytes(len(produce))
    batch[:] = bytes(len(batch))
    assert owned == Produce("t", b"k", b"v")
    assert isinstance(viewed, ProduceBatch)
    assert bytes(viewed.batch) == bytes(3)


@pytest.mark.parametrize(
    ("request_", "dialect", "reason"),
    [
        (Consume("t", 0, -1), DOCUMENTED, "offset must be an unsigned 64-bit integer, not -1"),
        (Consume("t", 2**31, 0), DOCUMENTED, "partition must be a signed 32-bit integer, not 2147483648"),
        (CreateTopic("t", -(2**31) - 1), V126, "partitions must be a signed 32-bit integer, not -2147483649"),
        (Commit("t", "g", 0, 2**64), V126, "offset must be an unsigned 64-bit integer, not 18446744073709551616"),
        (FetchBatches("t", 0, 0, 2**32, 0, 0), V126, "max_bytes must be an unsigned 32-bit integer, not 4294967296"),
        (Metadata("x" * 65_536), DOCUMENTED, "topic takes 65536 bytes, 65535 at most"),
        (Metadata("\ud800"), DOCUMENTED, "topic cannot be written as UTF-8"),
        (Subscribe("t", "g", 0, "m" * 256), V126, "mode takes 256 bytes, 255 at most"),
        (Fetch("t", 0, 0, 1, "f"), DOCUMENTED, "filter exists only in the v126 dialect"),
    ],
)
def test_values_that_do_not_fit_name_their_field(request_: Request, dialect: Dialect, reason: str) -> None:
    with pytest.raises(BraidError) as caught:
        encode_request(request_, dialect)
    assert str(caught.value) == f"INVALID_ARGUMENT: invalid argument: {reason}"


def test_longest_texts_pass() -> None:
    assert decode_request(Op.METADATA, payload_of(Metadata("é" * 32_767), V126), V126)[0] == Metadata("é" * 32_767)
    request = Subscribe("t", "g", 0, "m" * 255)
    assert decode_request(Op.SUBSCRIBE, payload_of(request, V126), V126)[0] == request


def test_request_over_the_frame_limit_is_refused() -> None:
    fixed = len(payload_of(Produce("t", b"", b""), DOCUMENTED))
    assert len(payload_of(Produce("t", b"", bytes(FRAME_PAYLOAD_BYTES_MAX - fixed)), DOCUMENTED)) == FRAME_PAYLOAD_BYTES_MAX
    with pytest.raises(BraidError) as caught:
        encode_request(Produce("t", b"", bytes(FRAME_PAYLOAD_BYTES_MAX - fixed + 1)), DOCUMENTED)
    assert caught.value.code == "FRAME_TOO_LARGE"
