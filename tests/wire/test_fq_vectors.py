"""Every published byte vector of fq: whole, byte by byte, in both directions, and against values written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from fq_cases import (
    BROKEN_COMMANDS,
    COMMANDS,
    FIRST_COMMANDS,
    FIRST_PUBLISHED,
    FULL,
    HTTP,
    KNOWN,
    OPENINGS,
    PUBLISHED,
    REPLIES,
    VECTORS,
    each_byte,
    fed,
    signed_in,
)

from braidmq.base.errors import BraidError
from braidmq.wire.fq.auth import Auth, QueueDetail, check_same_queue, name_queue
from braidmq.wire.fq.commands import CommandReader, ReplyReader, encode_command, encode_error, encode_reply
from braidmq.wire.fq.http import NOT_FOUND, HttpReader, HttpRequest, read_submission, submit_refusal, submit_reply
from braidmq.wire.fq.messages import MessageReader, encode_message
from braidmq.wire.fq.modes import Mode, encode_opening, read_mode, read_opening
from braidmq.wire.fq.program import parse_program


def named(table: Any) -> Any:
    return pytest.mark.parametrize("name", sorted(table))


def test_every_vector_has_a_meaning() -> None:
    assert sorted(VECTORS) == sorted(name for table in KNOWN for name in table)


@named(COMMANDS)
def test_a_command(name: str) -> None:
    raw = VECTORS[name].raw
    for pieces in ([raw], each_byte(raw)):
        reader = CommandReader() if isinstance(COMMANDS[name][0], Auth) else signed_in()
        assert fed(reader.receive, pieces) == COMMANDS[name]
        assert reader.buffered_bytes == 0
    written = b"".join(map(encode_command, COMMANDS[name]))
    assert written == (raw.removesuffix(b"\0\0") if name == "real_node_status_req" else raw)


@named(BROKEN_COMMANDS)
def test_a_command_that_is_refused(name: str) -> None:
    for pieces in ([VECTORS[name].raw], each_byte(VECTORS[name].raw)):
        with pytest.raises(BraidError) as caught:
            fed(CommandReader().receive, pieces)
        assert caught.value.text == BROKEN_COMMANDS[name]
        reply = next(vector for vector in VECTORS.values() if vector.reply_to == name)
        assert encode_error(caught.value) == reply.raw


@named(FIRST_COMMANDS)
def test_a_whole_command_connection(name: str) -> None:
    raw = VECTORS[name].raw
    opening = read_opening(raw)
    assert opening is not None and opening.mode is Mode.COMMAND
    for pieces in ([raw[4:]], each_byte(raw[4:])):
        assert fed(CommandReader().receive, pieces) == FIRST_COMMANDS[name]
    # All commands behind one another; the stray bytes of one client are the only ones that we do not send.
    written = encode_opening(Mode.COMMAND) + b"".join(map(encode_command, FIRST_COMMANDS[name]))
    assert written == raw.replace(b"\xc7\xa7\0\0", b"\xc7\xa7")


@named(OPENINGS)
def test_how_a_connection_begins(name: str) -> None:
    raw, opening = VECTORS[name].raw, OPENINGS[name]
    for size in range(len(raw)):
        assert read_opening(raw[:size]) is None
    assert read_opening(raw) == opening == read_opening(raw + b"more")
    assert encode_opening(opening.mode, opening.key, opening.node_id or b"") == raw


@named(REPLIES)
def test_a_reply(name: str) -> None:
    raw = VECTORS[name].raw
    for pieces in ([raw], each_byte(raw)):
        assert fed(ReplyReader().receive, pieces) == REPLIES[name]
    assert b"".join(map(encode_reply, REPLIES[name])) == raw


@named(PUBLISHED | FULL)
def test_messages(name: str) -> None:
    raw, full = VECTORS[name].raw, name in FULL
    messages = FULL[name] if full else PUBLISHED[name]
    for pieces in ([raw], each_byte(raw)):
        reader = MessageReader(full, 100)
        assert fed(reader.receive, pieces) == messages
        assert (reader.buffered_bytes, reader.octets, reader.size_dropped) == (0, len(raw), 0)
    assert b"".join(encode_message(message, full) for message in messages) == raw


@named(FIRST_PUBLISHED)
def test_a_whole_data_connection(name: str) -> None:
    raw = VECTORS[name].raw
    opening = read_opening(raw)
    assert opening is not None and (opening.mode, opening.size, len(opening.key)) == (Mode.DATA, 133, 127)
    for pieces in ([raw[133:]], each_byte(raw[133:])):
        assert fed(MessageReader(False, 100).receive, pieces) == FIRST_PUBLISHED[name]


def test_everything_in_one_piece() -> None:
    """All vectors of one kind behind one another, as a busy client's bytes arrive."""
    names = [name for name in COMMANDS if not isinstance(COMMANDS[name][0], Auth)]
    raw = b"".join(VECTORS[name].raw for name in names)
    assert signed_in().receive(raw) == [command for name in names for command in COMMANDS[name]]
    raw = b"".join(VECTORS[name].raw for name in FULL)
    assert MessageReader(True, 100).receive(raw) == [message for name in FULL for message in FULL[name]]


# --- what the broker answers


EXISTING = {b"priv": (QueueDetail(b"priv"), 1), b"pub": (QueueDetail(b"pub", private=False), 1)}


@pytest.mark.parametrize("name", sorted(name for name in VECTORS if f"{name}_req" in COMMANDS and name.startswith("err_")))
def test_a_queue_that_is_refused(name: str) -> None:
    (auth,) = COMMANDS[f"{name}_req"]
    with pytest.raises(BraidError) as caught:
        detail = auth.detail
        check_same_queue(detail, *EXISTING[detail.name])
    assert encode_error(caught.value) == VECTORS[name].raw


def test_the_queues_that_clients_ask_for() -> None:
    unique = "70CCCE37-4f17-4629-821d-c15c87b8c4f9"
    (empty,), (plain,) = COMMANDS["auth_empty_queue"], COMMANDS["auth_no_nul"]
    invented = name_queue(empty.detail, unique)
    assert invented == QueueDetail(b"auto-70ccce37-4f17-4629-821d-c15c87b8c4f9", "mem", True, "drop", 16384, False)
    assert len(invented.name) == 41
    assert name_queue(plain.detail, unique) == QueueDetail(b"plainq", "mem", True, "drop", 16384, None)


@named({"bind_flags0": 0, "bind_trans": 0, "real_java_cmd": 0, "real_node_cmd": 0})
def test_programs_from_the_field_compile(name: str) -> None:
    for command in (COMMANDS | FIRST_COMMANDS)[name]:
        if hasattr(command, "program"):
            assert parse_program(command.program).text == command.program


# --- http


def request(name: str) -> HttpRequest:
    whole = HttpReader(100).receive(VECTORS[name].raw)
    assert fed(HttpReader(100).receive, each_byte(VECTORS[name].raw)) == whole
    (found,) = whole
    assert isinstance(found, HttpRequest)
    assert read_mode(VECTORS[name].raw) is Mode.HTTP
    return found


def test_http_submit() -> None:
    submit = request("http_submit")
    message = read_submission(submit)
    assert (message.exchange, message.route, message.sender, message.payload) == (b"nosuch", b"a.h", b"web", b"TEST")
    assert submit_reply(submit, 0, 0, 1, 1) == VECTORS["http_submit_reply"].raw


def test_http_refusals() -> None:
    submit = request("http_submit_missing_route")
    with pytest.raises(BraidError) as caught:
        read_submission(submit)
    assert submit_refusal(submit, caught.value.text) == VECTORS["http_submit_missing_route_reply"].raw
    assert not request("http_404").keep_alive
    assert VECTORS["http_404_reply"].raw == NOT_FOUND
    assert all(name.startswith("http_") for name in HTTP)
