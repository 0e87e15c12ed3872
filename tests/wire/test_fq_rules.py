"""fq's small rules: openings, queue details, commands, names, limits."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from fq_cases import signed_in
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.names import check_topic
from braidmq.wire.fq.auth import (
    BACKLOG_UNLIMITED,
    Auth,
    QueueDetail,
    check_same_queue,
    parse_queue_detail,
    parse_queue_type,
    queue_field,
)
from braidmq.wire.fq.commands import (
    REFUSED,
    Bind,
    Bound,
    Command,
    CommandReader,
    ErrorReply,
    Heartbeat,
    HeartbeatRequest,
    ReplyReader,
    Status,
    StatusRequest,
    Unbind,
    encode_command,
    encode_error,
    encode_reply,
    encode_status,
)
from braidmq.wire.fq.messages import (
    Message,
    MessageReader,
    decode_origin,
    encode_message,
    encode_origin,
    encode_tail,
)
from braidmq.wire.fq.modes import Mode, encode_opening, read_mode, read_opening
from braidmq.wire.fq.naming import exchange_topic, topic_exchange

# --- openings


@pytest.mark.parametrize(
    ("first", "mode"),
    [
        (b"", None), (b"\xcc", None), (b"\xcc\x50\xfa", None), (b"GE", None), (b"P", None), (b"PUT", None), (b"HEA", None),
        (b"GET ", Mode.HTTP), (b"POST", Mode.HTTP), (b"PUT ", Mode.HTTP), (b"HEAD", Mode.HTTP),
        (b"\xcc\x50\xca\xfe", Mode.COMMAND), (b"\xcc\x50\xfa\xce", Mode.DATA), (b"\xcc\x50\xfe\xed", Mode.PEER),
        (b"\xcc\x50\xfa\xde", Mode.OLD_PEER),
        (b"\0", Mode.OTHER), (b"\xcc\x51", Mode.OTHER), (b"GETX", Mode.OTHER), (b"get ", Mode.OTHER), (b"\xaf\x01", Mode.OTHER),
        (b"DELE", Mode.OTHER), (b"\xca\xfe\x50\xcc", Mode.OTHER),
    ],
)  # fmt: skip
def test_the_first_bytes(first: bytes, mode: Mode | None) -> None:
    assert read_mode(first) is mode
    assert read_mode(first[:1]) in (None, mode)
    if mode in (Mode.HTTP, Mode.OTHER):
        opening = read_opening(first + b"more")
        assert opening is not None and (opening.mode, opening.size) == (mode, 0)


def test_a_key_may_be_short_but_not_long() -> None:
    for size in (0, 1, limits.FQ_KEY_BYTES_MAX):
        opening = read_opening(encode_opening(Mode.DATA, b"k" * size))
        assert opening is not None and opening.key == b"k" * size
    with pytest.raises(BraidError, match="MALFORMED_FQ"):
        read_opening(b"\xcc\x50\xfa\xce\x00\x80")
    with pytest.raises(BraidError, match="MALFORMED_FQ"):
        read_opening(b"\xcc\x50\xfe\xed\x0a\x00\x00\x02\xff\xff")
    wrong = (Mode.DATA, b"k" * 128, b""), (Mode.DATA, b"k", b"1234"), (Mode.PEER, b"k", b""), (Mode.HTTP, b"", b"")
    for mode, key, node in wrong:
        with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
            encode_opening(mode, key, node)


# --- queues


@pytest.mark.parametrize(
    ("field", "detail"),
    [
        (b"q\0mem:public,drop", QueueDetail(b"q", private=False)),
        (b"q\0", QueueDetail(b"q")),
        (b"q", QueueDetail(b"q")),
        (b"q\0disk", QueueDetail(b"q", "disk")),
        (b"q\0disk:", QueueDetail(b"q", "disk")),
        (b"q\0mem:,,public,,private,", QueueDetail(b"q")),
        (b"q\0mem:drop,block", QueueDetail(b"q", policy="block")),
        (b"q\0mem:permanent", QueueDetail(b"q", permanent=True)),
        (b"q\0mem:permanent,transient", QueueDetail(b"q", permanent=False)),
        (b"q\0mem:backlog=50", QueueDetail(b"q", backlog=50)),
        (b"q\0mem:backlog= +7x", QueueDetail(b"q", backlog=7)),
        (b"q\0mem:backlog=", QueueDetail(b"q", backlog=0)),
        (b"q\0mem:backlog=many", QueueDetail(b"q", backlog=0)),
        (b"q\0mem:backlog=-1", QueueDetail(b"q", backlog=BACKLOG_UNLIMITED)),
        (b"q\0mem:backlog=-99", QueueDetail(b"q", backlog=BACKLOG_UNLIMITED)),
        (b"q\0mem:backlog=" + b"9" * 900, QueueDetail(b"q", backlog=0x7FFFFFFF)),
        (b"\xff\xfe\0mem", QueueDetail(b"\xff\xfe")),
        (b"", QueueDetail(b"", permanent=False)),
        (b"\0", QueueDetail(b"", permanent=False)),
        (b"\0disk:public,permanent,block", QueueDetail(b"", "disk", True, "block", permanent=False)),
    ],
)
def test_queue_details(field: bytes, detail: QueueDetail) -> None:
    assert parse_queue_detail(field) == detail
    assert Auth(b"u", field, b"").detail == detail
    assert parse_queue_detail(queue_field(detail.name, detail.type_text)) == detail
    if detail.name:
        kept = parse_queue_type(detail.name, f"{detail.kind}:{detail.attributes}".encode())
        assert (kept.private, kept.policy, kept.backlog) == (detail.private, detail.policy, detail.backlog)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (b"q\0tape", "invalid queue type: tape"),
        (b"q\0MEM", "invalid queue type: MEM"),
        (b"q\0:public", "invalid queue type: "),
        (b"q\0mem\0", "invalid queue type: mem\0"),
        (b"q\0t\xff", "invalid queue type: t\\xff"),
        (b"q\0mem:loud,louder", "invalid queue param: loud"),
        (b"q\0mem:Public", "invalid queue param: Public"),
        (b"q\0mem:public ", "invalid queue param: public "),
        (b"q\0mem:backlog", "invalid queue param: backlog"),
        (b"q" * (limits.FQ_NAME_BYTES_MAX + 1), "queue name is too long"),
        (b"q" * 200 + b"\0mem", "queue name is too long"),
        (b"q\0" + b"x" * limits.FQ_QUEUE_DETAIL_BYTES_MAX, "queue detail is too long"),
    ],
)
def test_queue_details_that_are_refused(field: bytes, text: str) -> None:
    with pytest.raises(BraidError) as caught:
        parse_queue_detail(field)
    assert caught.value.fq_text == text


def test_an_existing_queue_is_compared_in_a_fixed_order() -> None:
    existing = QueueDetail(b"q", "disk", private=True, policy="block", backlog=5)
    other = QueueDetail(b"q", "mem", private=False, policy="drop")
    for asked, clients, text in (
        (other, 1, "requested queue is private and in use\n"),
        (other, 0, "requested type mem, queue is disk"),
        (QueueDetail(b"q", "disk", private=False, policy="drop"), 0, "requested public, queue is private"),
        (QueueDetail(b"q", "disk", private=True, policy="drop"), 0, "request drop, queue is block"),
    ):
        with pytest.raises(BraidError) as caught:
            check_same_queue(asked, existing, clients)
        assert caught.value.fq_text == text
    check_same_queue(QueueDetail(b"q", "disk", private=True, policy="block", backlog=99), existing, 0)
    check_same_queue(QueueDetail(b"q", private=False), QueueDetail(b"q", private=False), 15)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("aaaa0000 0080", "user name is too long"),
        ("aaaa0000 0000 0400", "queue detail is too long"),
        ("aaaa0000 0000 0000 2801", "password is too long"),
        ("0000", "auth command expected"),
        ("aaaa0001", "unsupported auth method"),
    ],
)
def test_auth_is_refused_as_soon_as_it_can_be(raw: str, text: str) -> None:
    assert int("2801", 16) == limits.FQ_PASSWORD_BYTES_MAX + 1
    data = bytes.fromhex(raw)
    reader = CommandReader()
    assert reader.receive(data[:-1]) == []
    with pytest.raises(BraidError) as caught:
        reader.receive(data[-1:])
    assert encode_error(caught.value)[4:].decode() == text
    with pytest.raises(BraidError, match=text):
        reader.receive(b"more")


def test_the_largest_auth_is_read() -> None:
    auth = Auth(b"u" * 127, b"q" * 127 + b"\0mem:" + b"," * 891, b"p" * 10240)
    assert len(auth.queue) == limits.FQ_QUEUE_DETAIL_BYTES_MAX
    assert CommandReader().receive(encode_command(auth)) == [auth]
    for wrong in (Auth(b"u" * 128, b"", b""), Auth(b"", b"q" * 1024, b""), Auth(b"", b"", b"p" * 10241)):
        with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
            encode_command(wrong)


# --- commands


def test_what_came_before_a_fault_is_not_lost() -> None:
    reader = signed_in()
    commands = [Heartbeat(), StatusRequest(), Bind(0, b"", b"prefix:")]
    assert reader.receive(b"".join(map(encode_command, commands)) + b"\xde\xad") == commands
    assert reader.failure is not None and "unknown command dead" in str(reader.failure)
    with pytest.raises(BraidError, match="MALFORMED_FQ"):
        reader.receive(b"")


def test_commands_one_at_a_time() -> None:
    """For whoever keeps the bytes: each command with its size, however much of the next one is there."""
    commands: list[Command] = [Auth(b"u", b"q", b"p"), Bind(0, b"ex", b"prefix:"), StatusRequest()]
    raw = b"".join(map(encode_command, commands)) + b"\0\0"
    for step in (1, len(raw)):
        reader = CommandReader()
        found: list[Command | None] = []
        at = 0
        for stop in range(step, len(raw) + 1, step):
            while (first := reader.first(raw[at:stop])) is not None:
                found.append(first[0])
                at += first[1]
        assert found == [*commands, None] and at == len(raw)
    with pytest.raises(BraidError, match="auth command expected"):
        CommandReader().first(b"\xb1\x70")


@pytest.mark.parametrize("raw", ["aaaa", "eeee", "b1700000 0080", "071b00000001 0080", "ffff", "0001"])
def test_commands_that_end_the_connection(raw: str) -> None:
    with pytest.raises(BraidError, match="MALFORMED_FQ"):
        signed_in().receive(bytes.fromhex(raw))


def test_a_long_program_is_read_so_that_it_can_be_refused() -> None:
    bind = Bind(0, b"e" * 127, b"p" * 0xFFFF)
    assert signed_in().receive(encode_command(bind)) == [bind]
    with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
        encode_command(Bind(0, b"e", b"p" * 0x10000))


@pytest.mark.parametrize(
    ("flags", "peer", "permanent"),
    [
        (0, False, None),
        (1, True, None),
        (0x110, False, True),
        (0x111, True, True),
        (0x100, False, False),
        (0x10, False, None),
        (0x101, True, False),
    ],
)
def test_bind_flags(flags: int, peer: bool, permanent: bool | None) -> None:
    bind = Bind(flags, b"", b"")
    assert (bind.peer, bind.permanent) == (peer, permanent)


def test_replies() -> None:
    assert ReplyReader().receive(encode_reply(Bound(REFUSED))) == [Bound(REFUSED)]
    assert ReplyReader().receive(encode_status([("msgs_in", 1 << 32 | 5)])) == [Status((("msgs_in", 5),))]
    long = BraidError("INTERNAL", reason="x" * 10_000)
    (reply,) = ReplyReader().receive(encode_error(long))
    assert isinstance(reply, ErrorReply) and len(reply.text) == limits.ERROR_TEXT_BYTES_MAX
    with pytest.raises(BraidError, match="without an end"):
        ReplyReader().receive(b"\x57\xa7" + b"\0\x01k\0\0\0\0" * 101)
    for raw in (b"\x00\x00", b"\xaa\x00\x00\x80", b"\x57\xa7\x00\x80"):
        with pytest.raises(BraidError, match="MALFORMED_FQ"):
            ReplyReader().receive(raw)
    wrong = HeartbeatRequest(0x10000), HeartbeatRequest(-1), Unbind(-1, b""), Unbind(1, b"e" * 128), Bind(0x10000, b"", b"")
    for command in wrong:
        with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
            encode_command(command)


# --- messages


@pytest.mark.parametrize(
    ("raw", "full"),
    [
        (b"\x80", False),
        (b"\x00\x80", False),
        (b"\xff", True),
        (b"\x00\x00" + bytes(16) + b"\x80", True),
        (b"\x00\x00" + bytes(16) + b"\x00\x21", True),
    ],
)
def test_an_impossible_length_ends_the_connection_at_once(raw: bytes, full: bool) -> None:
    with pytest.raises(BraidError, match="MALFORMED_FQ"):
        MessageReader(full, 10).receive(raw)
    good = Message(b"", b"", bytes(16), b"x")
    reader = MessageReader(full, 10)
    assert reader.receive(encode_message(good, full) + raw) == [good]
    with pytest.raises(BraidError, match="MALFORMED_FQ"):
        reader.receive(b"")


def test_a_message_at_every_limit() -> None:
    hops = tuple(bytes((1, 2, 3, number)) for number in range(limits.FQ_HOPS_MAX))
    largest = Message(b"e" * 127, b"r" * 127, b"i" * 16, b"p" * 50, b"s" * 127, hops)
    assert MessageReader(True, 50).receive(encode_message(largest, True)) == [largest]
    assert encode_tail(b"s" * 127, (*hops, b"last")) == encode_tail(b"s" * 127, hops), "the oldest falls off"
    for wrong in (
        Message(b"e" * 128, b"", bytes(16), b""),
        Message(b"", b"r" * 128, bytes(16), b""),
        Message(b"", b"", bytes(15), b""),
        Message(b"", b"", bytes(16), b"", b"s" * 128),
        Message(b"", b"", bytes(16), b"", b"", (b"123",)),
    ):
        with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
            encode_message(wrong, True)
    with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
        encode_origin(b"short", b"\0\0")
    origin = decode_origin(encode_origin(b"i" * 16, encode_tail(b"s" * 127, hops)))
    assert origin is not None and (origin.message_id, origin.sender, origin.hops) == (b"i" * 16, b"s" * 127, hops)


# --- names


@pytest.mark.parametrize(
    ("exchange", "topic"),
    [
        (b"logging", "logging"),
        (b"a/b.c d", "a/b.c d"),
        ("é/ü".encode(), "é/ü"),
        (b"100%", "100%"),
        (b"%00", "%00"),
        (b"", "fq-bytes:"),
        (b".", "fq-bytes:."),
        (b"..", "fq-bytes:.."),
        (b"__offsets", "fq-bytes:__offsets"),
        (b"a\0b", "fq-bytes:a%00b"),
        (b"\xff%", "fq-bytes:%FF%25"),
        ("\x85".encode(), "fq-bytes:%C2%85"),
        (b"fq-bytes:", "fq-bytes:fq-bytes:"),
        (b"fq-bytes:a%00b", "fq-bytes:fq-bytes:a%2500b"),
        (b"fq-bytes:plain", "fq-bytes:plain"),
        (b"fq-bytes:%41", "fq-bytes:%41"),
        (b"fq-bytes:%0a", "fq-bytes:%0a"),
    ],
)
def test_exchanges_are_topics(exchange: bytes, topic: str) -> None:
    assert exchange_topic(exchange) == topic
    assert topic_exchange(topic) == exchange


@given(st.binary(max_size=127) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")[:127]))
def test_any_exchange_has_a_topic_of_its_own(exchange: bytes) -> None:
    topic = exchange_topic(exchange)
    assert topic_exchange(topic) == exchange
    check_topic(topic)


@given(st.text(max_size=60) | st.text("fq-bytes:%0A.", max_size=20).map(lambda text: "fq-bytes:" + text))
def test_any_topic_has_an_exchange_of_its_own(topic: str) -> None:
    try:
        check_topic(topic)
    except BraidError:
        return
    assert exchange_topic(topic_exchange(topic)) == topic


def test_the_longest_exchange_fits_a_topic(rounds: Callable[[int, int], int]) -> None:
    for turn in range(rounds(200, 5000)):
        topic = exchange_topic(b"\xff" + random.Random(turn).randbytes(limits.FQ_NAME_BYTES_MAX - 1))
        assert len(topic.encode()) <= 390 <= limits.TOPIC_NAME_BYTES_MAX
        check_topic(topic)
