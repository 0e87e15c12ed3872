"""Responses and ERROR frames: they survive the wire in both dialects, and foreign or broken ones are told apart."""

from __future__ import annotations

import pytest
from flymq_cases import BOTH, DOCUMENTED, RESPONSE_OPS, RESPONSES, V126, quick
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import BraidError
from braidmq.base.limits import ERROR_TEXT_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX
from braidmq.wire.flymq import (
    HEADER_BYTES,
    Dialect,
    ErrorReply,
    Fetched,
    FetchedItem,
    FrameReader,
    Message,
    Offset,
    Ok,
    Op,
    Response,
    decode_response,
    encode_error,
    encode_response,
)


def error_payload(text: str | BraidError, dialect: Dialect) -> bytes:
    (frame,) = FrameReader().receive(encode_error(text, dialect))
    assert (frame.op, frame.flags) == (Op.ERROR, 1)
    return bytes(frame.payload)


@pytest.mark.parametrize("dialect", BOTH)
@quick
@given(case=RESPONSES)
def test_round_trip(dialect: Dialect, case: tuple[Op, Response]) -> None:
    op, response = case
    (frame,) = FrameReader().receive(encode_response(op, response, dialect))
    assert (frame.op, frame.flags) == (op, 1)
    assert decode_response(op, frame.op, frame.payload, dialect) == response
    assert decode_response(op, frame.op, bytes(frame.payload) + b"later fields", dialect) == response


@pytest.mark.parametrize("dialect", BOTH)
@quick
@given(case=RESPONSES, data=st.data())
def test_every_cut_of_a_response_is_unexpected(dialect: Dialect, case: tuple[Op, Response], data: st.DataObject) -> None:
    op, response = case
    payload = encode_response(op, response, dialect)[HEADER_BYTES:]
    kept = data.draw(st.integers(0, len(payload) - 1))
    if isinstance(response, Ok) and kept == 1:
        # What the published server sends: the success byte alone.
        assert decode_response(op, op, payload[:1], dialect) == Ok(response.success, "")
        return
    with pytest.raises(BraidError) as caught:
        decode_response(op, op, payload[:kept], dialect)
    assert caught.value.code == "UNEXPECTED_REPLY"


def test_fetch_differs_between_dialects() -> None:
    response = Fetched((FetchedItem(b"k", b"v", 5),), 6)
    documented = encode_response(Op.FETCH, response, DOCUMENTED)
    v126 = encode_response(Op.FETCH, response, V126)
    assert documented[HEADER_BYTES:].hex() == "00000001" "000000016b" "0000000176" "0000000000000005" "0000000000000006"
    assert v126[HEADER_BYTES:].hex() == "00000001" "0000000000000006" "0000000000000005" "000000016b" "0000000176"


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("op", [Op.METADATA, Op.LIST_TOPICS, Op.FETCH, Op.FETCH_BINARY])
def test_count_beyond_the_bytes_is_refused(op: Op, dialect: Dialect) -> None:
    name = b"\0\0" if op == Op.METADATA else b""
    with pytest.raises(BraidError, match="4294967295 items cannot lie in the"):
        decode_response(op, op, name + b"\xff\xff\xff\xff" + bytes(40), dialect)


def test_answer_of_another_opcode_is_unexpected() -> None:
    with pytest.raises(BraidError, match=r"^UNEXPECTED_REPLY: the server answered opcode 02 to a request of opcode 01$"):
        decode_response(Op.PRODUCE, Op.CONSUME, b"", DOCUMENTED)


def test_bad_value_in_a_response_names_its_field() -> None:
    with pytest.raises(BraidError, match="next_offset must be an unsigned 64-bit integer, not -1"):
        encode_response(Op.FETCH, Fetched((), -1), V126)
    with pytest.raises(BraidError, match="offset must be an unsigned 64-bit integer, not -1"):
        encode_response(Op.SUBSCRIBE, Offset(-1), DOCUMENTED)


def test_response_over_the_frame_limit_is_refused() -> None:
    with pytest.raises(BraidError) as caught:
        encode_response(Op.CONSUME, Message(b"", bytes(FRAME_PAYLOAD_BYTES_MAX)), DOCUMENTED)
    assert caught.value.code == "FRAME_TOO_LARGE"


# --- ERROR frames


@pytest.mark.parametrize("dialect", BOTH)
@quick
@given(op=st.sampled_from(RESPONSE_OPS), text=st.text(max_size=300))
def test_error_round_trip(dialect: Dialect, op: Op, text: str) -> None:
    (frame,) = FrameReader().receive(encode_error(text, dialect))
    expected = text.rstrip(" ") if dialect is V126 else text
    assert decode_response(op, frame.op, frame.payload, dialect) == ErrorReply(expected)
    assert encode_response(op, ErrorReply(text), dialect) == encode_error(text, dialect)


def test_error_carries_its_code_in_the_documented_dialect_only() -> None:
    error = BraidError("TOPIC_NOT_FOUND", topic="nope")
    assert error_payload(error, DOCUMENTED) == b"\0\0\x26TOPIC_NOT_FOUND: topic not found: nope"
    assert error_payload(error, V126) == b"\0\0\x18\x20\0\x15topic not found: nope"


@pytest.mark.parametrize("size", [0, 1, 0x7F, 0x80, 0xFF, 0x100, 0x17F, 0x180, 4095, 4096, 4097, 70_000])
def test_v126_error_reads_the_same_to_both_kinds_of_decoder(size: int) -> None:
    payload = error_payload("e" * size, V126)
    inner = int.from_bytes(payload[4:6])
    assert inner & 0x80 == 0
    assert inner <= ERROR_TEXT_BYTES_MAX
    text = payload[6:]
    assert len(text) == inner
    assert text.rstrip(b" ") == b"e" * min(size, ERROR_TEXT_BYTES_MAX)
    # To a documented decoder the same bytes are `bool false, str`, and the str is UTF-8.
    assert payload[0] == 0
    assert int.from_bytes(payload[1:3]) == len(payload) - 3
    assert payload[3:6] == b"\x20" + inner.to_bytes(2)
    assert payload[3:].decode()


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("character", ["é", "€", "😀"])
@pytest.mark.parametrize("lead", range(4))
def test_long_error_text_is_cut_between_characters(dialect: Dialect, character: str, lead: int) -> None:
    whole = "x" * lead + character * ERROR_TEXT_BYTES_MAX
    payload = error_payload(whole, dialect)
    text = payload[6 if dialect is V126 else 3 :].decode().rstrip(" ")
    assert whole.startswith(text)
    size = len(text.encode())
    assert ERROR_TEXT_BYTES_MAX - len(character.encode()) < size <= ERROR_TEXT_BYTES_MAX


@pytest.mark.parametrize("dialect", BOTH)
def test_error_text_that_is_not_utf8_is_escaped(dialect: Dialect) -> None:
    assert b"bad \\udcff name" in error_payload("bad \udcff name", dialect)


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize(
    ("payload", "text"),
    [(b"", ""), (b"EOF", "EOF"), (b"unknown opcode: 4", "unknown opcode: 4"), (b"\xff", "\ufffd")],
    ids=["empty", "short", "bare text", "not UTF-8"],
)
def test_error_in_no_known_layout_is_shown_whole(dialect: Dialect, payload: bytes, text: str) -> None:
    assert decode_response(Op.PRODUCE, Op.ERROR, payload, dialect) == ErrorReply(text)


def test_error_with_a_code_as_some_servers_send_it() -> None:
    payload = b"\0\0\0\x01" + b"\0\x10auth is required"
    assert decode_response(Op.PRODUCE, Op.ERROR, payload, V126) == ErrorReply("auth is required")
