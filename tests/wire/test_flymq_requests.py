"""Requests: they survive the wire in both dialects, tell the dialect of their sender, and refuse what cannot be."""

from __future__ import annotations

import dataclasses
import struct

import pytest
from flymq_cases import BOTH, quick
from flymq_cases_own import OWN, Own
from flymq_cases_strategies import (
    DOCUMENTED,
    EXTENDED,
    FETCHES,
    REQUESTS_OF,
    V126,
    bare,
    has_exact_end,
    request_may_end_at,
    tells_v126,
)
from hypothesis import assume, given
from hypothesis import strategies as st

from braidmq.base.errors import BraidError
from braidmq.base.limits import FRAME_PAYLOAD_BYTES_MAX, REQUEST_LIST_ITEMS_MAX
from braidmq.wire.flymq import (
    HEADER_BYTES,
    AuditFilter,
    AuditQuery,
    Auth,
    CancelDelayed,
    ClusterMetadata,
    Commit,
    Consume,
    CreateTopic,
    DeleteGroup,
    DescribeGroup,
    Dialect,
    Fetch,
    FetchBatches,
    FrameReader,
    GroupJoin,
    ListSchemas,
    Metadata,
    Op,
    PasswordChange,
    Produce,
    ProduceBatch,
    ProduceWithSchema,
    ReplayDlq,
    Request,
    ResetOffset,
    SchemaOrder,
    SeekToTimestamp,
    Subscribe,
    TxnBegin,
    UserCreate,
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
    request = data.draw(REQUESTS_OF[dialect])
    payload = payload_of(request, dialect)
    assume(payload)
    ends = request_may_end_at(request, dialect)
    cuts = st.integers(0, len(payload) - 1)
    kept = data.draw(st.one_of(cuts, st.sampled_from(sorted(ends))) if ends else cuts)
    if kept in ends:
        try:
            shorter, _ = decode_request(request.op, payload[:kept], dialect)
        except BraidError as error:
            # Where texts are cut and read as another form, they may not be texts any more.
            assert error.code == "MALFORMED_PAYLOAD"
        else:
            assert type(shorter) is type(request)
    else:
        assert code_of(request.op, payload[:kept], dialect) == "MALFORMED_PAYLOAD"


@pytest.mark.parametrize("dialect", BOTH)
@quick
@given(data=st.data())
def test_fetch_without_its_filter_is_whole(dialect: Dialect, data: st.DataObject) -> None:
    request = data.draw(FETCHES)
    bare_request = dataclasses.replace(request, filter="")
    assert decode_request(request.op, payload_of(bare_request, DOCUMENTED), dialect) == (bare_request, dialect)


@pytest.mark.parametrize("dialect", BOTH)
@quick
@given(data=st.data())
def test_our_own_fields_may_be_missing(dialect: Dialect, data: st.DataObject) -> None:
    request = data.draw(EXTENDED)
    assume(bare(request) != request)
    payload = payload_of(request, dialect)
    short = payload_of(bare(request), dialect)
    assert payload.startswith(short)
    if isinstance(request, ReplayDlq) and len(short) == 2 + len(request.topic.encode()) + 8 and len(request.id.encode()) != 6:
        return  # Eight bytes after the topic are an offset.
    assert decode_request(request.op, short, dialect) == (bare(request), dialect)


@pytest.mark.parametrize("dialect", BOTH)
@quick
@given(data=st.data())
def test_bytes_after_the_last_field_are_ignored(dialect: Dialect, data: st.DataObject) -> None:
    request = data.draw(REQUESTS_OF[dialect])
    assume(not has_exact_end(request, dialect))
    extra = data.draw(st.binary(min_size=1, max_size=12))
    assert decode_request(request.op, payload_of(request, dialect) + extra, dialect) == (request, dialect)


@quick
@given(data=st.data())
def test_dialect_is_detected_only_where_it_shows(data: st.DataObject) -> None:
    request = data.draw(REQUESTS_OF[V126])
    decoded, after = decode_request(request.op, payload_of(request, V126), DOCUMENTED)
    assert decoded == request
    assert after is (V126 if tells_v126(request) else DOCUMENTED)


@quick
@given(data=st.data())
def test_v126_connection_reads_documented_requests_and_stays(data: st.DataObject) -> None:
    request = data.draw(REQUESTS_OF[DOCUMENTED])
    assert decode_request(request.op, payload_of(request, DOCUMENTED), V126) == (request, V126)


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("own", OWN, ids=lambda own: type(own.request).__name__)
def test_our_own_layouts(own: Own, dialect: Dialect) -> None:
    payload = bytes.fromhex(own.request_hex.replace(".", ""))
    assert payload_of(own.request, dialect).hex() == payload.hex()
    assert decode_request(own.request.op, payload, dialect) == (own.request, dialect)


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
    for op in (op for op in range(256) if only_v126(op)):
        assert code_of(op, b"\xff") == "MALFORMED_PAYLOAD"
    assert decode_request(Op.CLUSTER_METADATA, b"", DOCUMENTED) == (ClusterMetadata(), V126)


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
        (ClusterMetadata("t"), DOCUMENTED, "ClusterMetadata under this opcode exists only in the v126 dialect"),
        (AuditQuery(AuditFilter(), Op.AUDIT_QUERY), DOCUMENTED, "AuditQuery under this opcode exists only in the v126 dialect"),
        (ReplayDlq("t", "m", 5), DOCUMENTED, "offset names one dead letter, so nothing else can name any"),
        (ReplayDlq("t", offset=5, all=True), DOCUMENTED, "offset names one dead letter, so nothing else can name any"),
        (ReplayDlq("t", offset=6 << 48), V126, "offset 1688849860263936 would be read as an id"),
        (ResetOffset("t", "g", 0, "offset"), V126, "mode `offset` needs an offset"),
        (ResetOffset("t", "g", 0, "m" * 256), V126, "mode takes 256 bytes, 255 at most"),
        (DescribeGroup("t", "g", True), V126, "group_only with a topic"),
        (ProduceWithSchema("t", "s", b"", b"k", order=SchemaOrder.DATA_FIRST), V126, "no key or partition in data first order"),
        (
            AuditQuery(AuditFilter(types=("",) * 65_536), Op.AUDIT_QUERY_SDK),
            V126,
            "the length of types must be an unsigned 16-bit integer, not 65536",
        ),
        (GroupJoin("g", "", ("",) * 100_001, "range", 1), V126, "topics has 100001 items, 100000 at most"),
    ],
)
def test_values_that_do_not_fit_name_their_field(request_: Request, dialect: Dialect, reason: str) -> None:
    with pytest.raises(BraidError) as caught:
        encode_request(request_, dialect)
    assert str(caught.value) == f"INVALID_ARGUMENT: invalid argument: {reason}"


# --- requests that come in several forms


@pytest.mark.parametrize(
    ("tail", "request_", "after"),
    [
        ("000173" "0000000176", ProduceWithSchema("t", "s", b"v", order=SchemaOrder.SCHEMA_FIRST), V126),
        ("0000000176" "000173", ProduceWithSchema("t", "s", b"v", order=SchemaOrder.DATA_FIRST), V126),
        ("000173" "00000000", ProduceWithSchema("t", "s", b"", order=SchemaOrder.SCHEMA_FIRST), V126),
        # Both orders fit: a schema without a name is none, and nothing shows who sent it.
        ("0000" "0000000173", ProduceWithSchema("t", "s", b"", order=SchemaOrder.DATA_FIRST), DOCUMENTED),
        ("00000000" "000173", ProduceWithSchema("t", "s", b"", order=SchemaOrder.DATA_FIRST), DOCUMENTED),
        ("000173" "0000000176" "00000000" "ffffffff", ProduceWithSchema("t", "s", b"v"), DOCUMENTED),
        ("0000" "0000000176" "00000000" "ffffffff", ProduceWithSchema("t", "", b"v"), DOCUMENTED),
    ],
)
def test_orders_of_schema_and_data(tail: str, request_: Request, after: Dialect) -> None:
    assert decode_request(Op.PRODUCE_WITH_SCHEMA, b"\0\x01t" + bytes.fromhex(tail), DOCUMENTED) == (request_, after)


def test_both_orders_of_schema_and_data_fit_with_a_schema_name() -> None:
    # The length and the text of the schema `s`, with one byte more, read as the length of data that leaves room for an empty name.
    data_size = 0x00017300
    tail = b"\0\x01s" + (data_size - 1).to_bytes(4) + bytes(data_size - 3) + b"\0\0"
    assert 4 + data_size + 2 == len(tail)
    request = ProduceWithSchema("t", "s", tail[7:], order=SchemaOrder.SCHEMA_FIRST)
    assert decode_request(Op.PRODUCE_WITH_SCHEMA, b"\0\x01t" + tail, DOCUMENTED) == (request, DOCUMENTED)


@pytest.mark.parametrize("tail", ["", "00", "000173", "000173" "0000000176" "00", "0000000276" "0000", "0001ff" "00000000"])
def test_no_order_of_schema_and_data(tail: str) -> None:
    assert code_of(Op.PRODUCE_WITH_SCHEMA, b"\0\x01t" + bytes.fromhex(tail)) == "MALFORMED_PAYLOAD"


@pytest.mark.parametrize(
    ("tail", "request_"),
    [
        ("00026d31", ReplayDlq("t", "m1")),
        ("0006616263646566", ReplayDlq("t", "abcdef")),
        ("0000000000000007", ReplayDlq("t", offset=7)),
        ("0000", ReplayDlq("t")),
        ("0000" "0000" "01" "00000000", ReplayDlq("t", all=True)),
        ("0000" "000166" "00" "00000003", ReplayDlq("t", filter="f", max=3)),
        ("0000" "000166" "00" "00000003" "ffff", ReplayDlq("t", filter="f", max=3)),
    ],
)
def test_forms_of_replay(tail: str, request_: Request) -> None:
    assert decode_request(Op.REPLAY_DLQ, b"\0\x01t" + bytes.fromhex(tail), DOCUMENTED) == (request_, DOCUMENTED)


@pytest.mark.parametrize("tail", ["", "00", "0006ff6364656667", "00016d" "ff", "0000" "0000" "01" "0000"])
def test_bad_replay_is_malformed(tail: str) -> None:
    assert code_of(Op.REPLAY_DLQ, b"\0\x01t" + bytes.fromhex(tail)) == "MALFORMED_PAYLOAD"


@pytest.mark.parametrize(
    ("tail", "mode", "offset"),
    [
        ("066c6174657374", "latest", None),
        ("00066c6174657374", "latest", None),
        ("066f6666736574" "0000000000000005", "offset", 5),
        ("00066f6666736574" "0000000000000005", "offset", 5),
        ("086561726c69657374" "0000000000000000", "earliest", 0),
        ("00086561726c69657374", "earliest", None),
        ("00", "", None),
        ("0000", "", None),
    ],
)
def test_forms_of_reset(tail: str, mode: str, offset: int | None) -> None:
    payload = struct.pack(">H1sH1si", 1, b"t", 1, b"g", 0) + bytes.fromhex(tail)
    assert decode_request(Op.RESET_OFFSET, payload, DOCUMENTED) == (ResetOffset("t", "g", 0, mode, offset), DOCUMENTED)


@pytest.mark.parametrize("tail", ["", "076c6174657374", "066f6666736574", "066c6174657374" "00", "01ff"])
def test_bad_reset_is_malformed(tail: str) -> None:
    payload = struct.pack(">H1sH1si", 1, b"t", 1, b"g", 0) + bytes.fromhex(tail)
    assert code_of(Op.RESET_OFFSET, payload) == "MALFORMED_PAYLOAD"


@pytest.mark.parametrize(
    ("op", "payload", "request_"),
    [
        (Op.LIST_SCHEMAS, "", ListSchemas("")),
        (Op.CLUSTER_METADATA, "", ClusterMetadata("")),
        (Op.CANCEL_DELAYED, "000174" "00026d31", CancelDelayed("m1", "t")),
        (Op.DELETE_GROUP, "000167", DeleteGroup("", "g")),
        (Op.DELETE_GROUP, "0000" "000167", DeleteGroup("", "g")),
        (Op.SEEK_TO_TIMESTAMP, "000174" "00000002" "0000000000000009", SeekToTimestamp("t", "", 2, 9)),
        (Op.SEEK_TO_TIMESTAMP, "000174" "0000" "00000002" "0000000000000009", SeekToTimestamp("t", "", 2, 9)),
        (Op.USER_CREATE, "000162" "000170" "0000" "00000000", UserCreate("b", "p", enabled=False)),
        (Op.TXN_BEGIN, "", TxnBegin("", 0)),
    ],
)
def test_shorter_forms(op: Op, payload: str, request_: Request) -> None:
    assert decode_request(op, bytes.fromhex(payload), V126) == (request_, V126)


@pytest.mark.parametrize("op", [Op.USER_CREATE, Op.AUDIT_EVENTS, Op.CREATE_TOPIC])
def test_list_over_the_limit_is_refused_before_it_is_read(op: Op) -> None:
    count = REQUEST_LIST_ITEMS_MAX + 1
    head = {Op.USER_CREATE: bytes(6), Op.AUDIT_EVENTS: bytes(16), Op.CREATE_TOPIC: bytes(6)}[op]
    payload = head + count.to_bytes(4) + bytes(4 * count)
    if op is Op.CREATE_TOPIC:
        # There bytes that are no properties are another client's business.
        assert decode_request(op, payload, DOCUMENTED) == (CreateTopic("", 0), DOCUMENTED)
    else:
        with pytest.raises(BraidError, match="a list of 100001 items, 100000 at most"):
            decode_request(op, payload, DOCUMENTED)


def test_passwords_are_not_shown() -> None:
    for request in (Auth("bob", "hunter2"), UserCreate("bob", "hunter2"), PasswordChange("bob", "hunter2", "hunter1")):
        assert "bob" in repr(request)
        assert "hunter" not in repr(request)


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
