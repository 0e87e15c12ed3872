"""Responses and ERROR frames: they survive the wire in both dialects, and foreign or broken ones are told apart."""

from __future__ import annotations

import pytest
from flymq_cases import BOTH, quick
from flymq_cases_own import OWN, Own
from flymq_cases_strategies import DOCUMENTED, RESPONSE_OPS, RESPONSES, V126, may_grow, response_may_end_at
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import BraidError
from braidmq.base.limits import ERROR_TEXT_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX
from braidmq.wire.flymq import (
    HEADER_BYTES,
    AuditEvent,
    AuditEvents,
    Authenticated,
    Dialect,
    DlqReplayed,
    ErrorReply,
    Fetched,
    FetchedItem,
    FrameReader,
    GroupDetail,
    GroupInfo,
    GroupOffset,
    Identity,
    Message,
    Offset,
    Op,
    Response,
    SchemaDefinition,
    answer_op,
    decode_response,
    encode_error,
    encode_response,
)
from braidmq.wire.flymq.layout import BOOL, STR, STR8, Many, Source
from braidmq.wire.flymq.responses import RESPONSES as RESPONSE_TABLE


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
    assert (frame.op, frame.flags) == (answer_op(op), 1)
    assert decode_response(op, frame.op, frame.payload, dialect) == response
    if may_grow(op, response):
        assert decode_response(op, frame.op, bytes(frame.payload) + b"later fields", dialect) == response


@pytest.mark.parametrize("dialect", BOTH)
@quick
@given(case=RESPONSES, data=st.data())
def test_every_cut_of_a_response_is_unexpected(dialect: Dialect, case: tuple[Op, Response], data: st.DataObject) -> None:
    op, response = case
    payload = encode_response(op, response, dialect)[HEADER_BYTES:]
    if not payload:
        return  # An exported document without a byte.
    ends = response_may_end_at(op, response, dialect)
    cuts = st.integers(0, len(payload) - 1)
    kept = data.draw(st.one_of(cuts, st.sampled_from(sorted(ends))) if ends else cuts)
    if kept in ends:
        assert type(decode_response(op, answer_op(op), payload[:kept], dialect)) is type(response)
        return
    with pytest.raises(BraidError) as caught:
        decode_response(op, answer_op(op), payload[:kept], dialect)
    assert caught.value.code == "UNEXPECTED_REPLY"


def test_strategies_have_every_response() -> None:
    assert set(RESPONSE_OPS) == RESPONSE_TABLE.keys()


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("own", OWN, ids=lambda own: type(own.request).__name__)
def test_our_own_layouts(own: Own, dialect: Dialect) -> None:
    payload = bytes.fromhex(own.response_hex.replace(".", ""))
    op = own.request.op
    assert encode_response(op, own.response, dialect)[HEADER_BYTES:].hex() == payload.hex()
    assert decode_response(op, op, payload, dialect, type(own.response)) == own.response


def test_what_other_servers_leave_out() -> None:
    assert decode_response(Op.REPLAY_DLQ, Op.REPLAY_DLQ, b"\x01", V126) == DlqReplayed(True, "", 1)
    schema = bytes.fromhex("00000001" "000173" "046a736f6e" "00000002")
    assert decode_response(Op.GET_SCHEMA, Op.GET_SCHEMA, schema, V126) == SchemaDefinition("s", "json", 2)
    with pytest.raises(BraidError, match="2 schemas where one was asked for"):
        decode_response(Op.GET_SCHEMA, Op.GET_SCHEMA, b"\0\0\0\x02" + schema[4:], V126)


def test_auth_is_answered_under_another_opcode() -> None:
    frame = encode_response(Op.AUTH, Authenticated(True, "u"), DOCUMENTED)
    assert frame[2] == Op.AUTH_RESPONSE
    with pytest.raises(BraidError, match="opcode 70 to a request of opcode 70"):
        decode_response(Op.AUTH, Op.AUTH, frame[HEADER_BYTES:], DOCUMENTED)


def test_auth_differs_between_dialects() -> None:
    response = Authenticated(False, "u", ("r",), "e")
    assert encode_response(Op.AUTH, response, DOCUMENTED)[HEADER_BYTES:].hex() == "00" "000165" "000175" "00000001" "000172"
    assert encode_response(Op.AUTH, response, V126)[HEADER_BYTES:].hex() == "00" "000175" "00000001" "0172" "000165"


@quick
@given(
    user=st.text(max_size=9),
    roles=st.lists(st.text(min_size=1, max_size=9), max_size=4).map(tuple),
    permissions=st.lists(st.text(max_size=9), max_size=4).map(tuple),
)
def test_v126_identity_reads_to_both_families_of_clients(user: str, roles: tuple[str, ...], permissions: tuple[str, ...]) -> None:
    identity = Identity(True, user, roles, permissions)
    payload = encode_response(Op.WHOAMI, identity, V126)[HEADER_BYTES:]
    assert decode_response(Op.WHOAMI, Op.WHOAMI, payload, V126) == identity
    # The Python and Java clients: texts with lengths of two bytes, all to the end.
    wide = Source(payload, V126)
    assert (BOOL.read(wide), STR.read(wide), Many(STR).read(wide), Many(STR).read(wide)) == (True, user, roles * 2, permissions)
    assert not wide.left
    # The Go client: role lengths of one byte, then an error text.
    narrow = Source(payload, V126)
    assert (BOOL.read(narrow), STR.read(narrow)) == (True, user)
    seen = Many(STR8).read(narrow)
    assert seen[::2] == ("",) * len(roles)
    assert seen[1::2] == roles
    STR.read(narrow)


@pytest.mark.parametrize("role", ["", "r" * 256])
def test_v126_identity_needs_role_names_that_both_can_read(role: str) -> None:
    with pytest.raises(BraidError, match="has not 1 to 255 bytes"):
        encode_response(Op.WHOAMI, Identity(True, "u", (role,)), V126)


def test_documented_identity_carries_no_permissions() -> None:
    payload = encode_response(Op.WHOAMI, Identity(True, "u", ("r",), ("read",)), DOCUMENTED)[HEADER_BYTES:]
    assert decode_response(Op.WHOAMI, Op.WHOAMI, payload, DOCUMENTED) == Identity(True, "u", ("r",))


@pytest.mark.parametrize("dialect", BOTH)
def test_a_group_is_described_in_the_form_that_was_asked_for(dialect: Dialect) -> None:
    info = GroupInfo("t", "g", 1, (GroupOffset(0, 2),))
    detail = GroupDetail("g", "active", ("a", "b"), ("t",), "c")
    for response in (info, detail):
        payload = encode_response(Op.DESCRIBE_GROUP, response, dialect)[HEADER_BYTES:]
        assert decode_response(Op.DESCRIBE_GROUP, Op.DESCRIBE_GROUP, payload, dialect, expect=type(response)) == response
    payload = encode_response(Op.DESCRIBE_GROUP, info, dialect)[HEADER_BYTES:]
    assert decode_response(Op.DESCRIBE_GROUP, Op.DESCRIBE_GROUP, payload, dialect) == info


@quick
@given(extra=st.binary(max_size=12))
def test_an_audit_event_may_have_fields_that_are_not_known(extra: bytes) -> None:
    event = AuditEvent("i", 1, "t", "u", "c", "r", "a", "s", "n")
    payload = encode_response(Op.AUDIT_QUERY, AuditEvents((event,), 1, True), V126)[HEADER_BYTES:]
    inner = payload[8:-5]
    grown = payload[:4] + (len(inner) + len(extra)).to_bytes(4) + inner + extra + payload[-5:]
    assert decode_response(Op.AUDIT_QUERY, Op.AUDIT_QUERY, grown, V126) == AuditEvents((event,), 1, True)


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
