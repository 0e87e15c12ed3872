"""The published byte vectors of fq, what each means, and ways to feed a reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from braidmq.base.errors import BraidError
from braidmq.wire.fq.auth import Auth
from braidmq.wire.fq.commands import (
    STATUS_KEYS,
    AuthAccepted,
    Bind,
    Bound,
    CommandReader,
    ErrorReply,
    Heartbeat,
    HeartbeatRequest,
    ReplyReader,
    Status,
    StatusRequest,
    Unbind,
    Unbound,
)
from braidmq.wire.fq.http import HttpReader
from braidmq.wire.fq.messages import Message, MessageReader
from braidmq.wire.fq.modes import Mode, Opening, read_opening


@dataclass(frozen=True)
class Vector:
    name: str
    raw: bytes
    from_client: bool
    reply_to: str | None


VECTORS = {
    row["name"]: Vector(row["name"], bytes.fromhex(row["hex"]), row["direction"] == "c2s", row.get("reply_to"))
    for row in json.loads((Path(__file__).parent / "fq_vectors.json").read_text())
}


def key_of(name: str) -> bytes:
    """The key in a preamble; random, so it is not worth writing down."""
    raw = VECTORS[name].raw
    at = 10 if raw[:4] == b"\xcc\x50\xfe\xed" else 6
    return raw[at : at + 127]


COUNTER = bytes(range(16))


def numbered(number: int) -> bytes:
    return bytes((number,)) + bytes(15)


OWN, HOST = bytes((10, 254, 254, 1)), bytes((127, 0, 0, 1))


def _auth(user: str, queue: bytes, password: str) -> Auth:
    return Auth(user.encode(), queue, password.encode())


COMMANDS: dict[str, list[Any]] = {
    "auth_plain_full": [_auth("alice", b"qa\0mem:public,drop,backlog=100", "secret")],
    "bind_flags0": [Bind(0, b"ex", b'prefix:"a."')],
    "bind_trans": [Bind(0x100, b"ex", b'exact:"a.b" (payload_prefix("M") && route_contains("b"))')],
    "bind_same_again": [Bind(0, b"ex", b'prefix:"a."')],
    "bind_bad_program": [Bind(0, b"ex", b"nonsense")],
    "unbind": [Unbind(2, b"ex")],
    "unbind_unknown": [Unbind(2, b"ex")],
    "status_req": [StatusRequest()],
    "hb_request_300ms": [HeartbeatRequest(300)],
    "hb_from_client": [Heartbeat()],
    "err_private_in_use_req": [_auth("u", b"priv\0mem", "p")],
    "err_private_vs_public_req": [_auth("u", b"pub\0mem", "p")],
    "err_policy_req": [_auth("u", b"pub\0mem:public,block", "p")],
    "err_type_req": [_auth("u", b"pub\0disk:public", "p")],
    "err_bad_type_req": [_auth("u", b"x\0tape", "p")],
    "err_bad_param_req": [_auth("u", b"x\0mem:loud", "p")],
    "auth_empty_queue": [_auth("bob", b"", "")],
    "auth_no_nul": [_auth("bob", b"plainq", "pw")],
    "real_node_status_req": [StatusRequest()],
}
"""What clients send on command connections, without the mode word."""

BROKEN_COMMANDS = {
    "err_user_len_req": "user name is too long",
    "err_not_auth_req": "auth command expected",
    "err_auth_method_req": "unsupported auth method",
}

FIRST_COMMANDS = {
    "real_fq_rcvr_cmd": [
        _auth("rcv", b"rq\0mem:public,drop,backlog=100", "pw"), Bind(0x100, b"maryland", b'prefix:"test."'), Heartbeat(),
    ],
    "real_fq_sndr_cmd": [_auth("snd", b"sq\0mem", "pw"), Heartbeat()],
    "real_fqs_cmd": [_auth("usr", b"fqsq\0mem", "pw"), Heartbeat()],
    "real_fqreal_perm_cmd": [
        _auth("nobody", b"toolq\0mem:permanent,public,backlog=50", "nopass"),
        Bind(0x110, b"maryland", b'prefix:"test."'), Heartbeat(),
    ],
    "real_fqreal_trans_cmd": [
        _auth("nobody", b"toolq\0mem:transient,public,backlog=-1", "nopass"),
        Bind(0x100, b"maryland", b'prefix:"test."'), Heartbeat(),
    ],
    "real_java_cmd": [
        _auth("jrcv", b"jq\0mem", "pw"), StatusRequest(), HeartbeatRequest(10_000), HeartbeatRequest(500),
        Bind(0, b"maryland", b'prefix:"test.prefix." sample(1)'), Heartbeat(), Heartbeat(), StatusRequest(), Heartbeat(),
        StatusRequest(), Heartbeat(), Heartbeat(),
    ],
    "real_node_cmd": [
        _auth("nodeu", b"70ccce37-4f17-4629-821d-c15c87b8c4f9\0mem", "pass"), HeartbeatRequest(1000),
        Bind(0x100, b"nx", b'prefix:"n." sample(1)'), StatusRequest(), Unbind(7, b"nx"), *[Heartbeat()] * 4,
    ],
    "peer_cmd": [
        _auth("fqd-peerb", b"peerq\0mem:drop,private,backlog=4096", "none"), Bind(1, b"logging", b'prefix:"a."'), Heartbeat(),
    ],
}  # fmt: skip
"""Whole command connections, mode word included."""

OPENINGS = {
    "cmd_magic": Opening(Mode.COMMAND, 4),
    "data_magic_and_key": Opening(Mode.DATA, 133, key_of("data_magic_and_key")),
    "real_fqreal_perm_data": Opening(Mode.DATA, 133, key_of("real_fqreal_perm_data")),
    "real_fqreal_trans_data": Opening(Mode.DATA, 133, key_of("real_fqreal_trans_data")),
    "peer_data_preamble": Opening(Mode.PEER, 137, key_of("peer_data_preamble"), bytes((10, 0, 0, 2))),
    "peer_old_preamble": Opening(Mode.OLD_PEER, 133, bytes(range(127))),
}

REPLIES: dict[str, list[Any]] = {
    "auth_ok": [AuthAccepted(VECTORS["auth_ok"].raw[4:])],
    "hb_after_auth": [Heartbeat()],
    "hb_from_broker": [Heartbeat()],
    "bind_ok_1": [Bound(1)],
    "bind_ok_2": [Bound(2)],
    "bind_same_id": [Bound(1)],
    "bind_illegal": [Bound(0xFFFFFFFF)],
    "unbind_ok": [Unbound(2)],
    "unbind_fail": [Unbound(0xFFFFFFFF)],
    "status_reply_zero": [Status(tuple((key, 0) for key in STATUS_KEYS))],
    "status_reply_counts": [Status(tuple(zip(STATUS_KEYS, (0, 1, 2, 2, 0, 0, 4, 2, 115, 89), strict=True)))],
    "error_heartbeat": [ErrorReply(b"client heartbeat failed")],
    "err_private_in_use": [ErrorReply(b"requested queue is private and in use\n")],
    "err_private_vs_public": [ErrorReply(b"requested private, queue is public")],
    "err_policy": [ErrorReply(b"request block, queue is drop")],
    "err_type": [ErrorReply(b"requested type disk, queue is mem")],
    "err_bad_type": [ErrorReply(b"invalid queue type: tape")],
    "err_bad_param": [ErrorReply(b"invalid queue param: loud")],
    "err_user_len": [ErrorReply(b"user name is too long")],
    "err_not_auth": [ErrorReply(b"auth command expected")],
    "err_auth_method": [ErrorReply(b"unsupported auth method")],
}

PUBLISHED = {
    "msg_publish": [Message(b"ex", b"a.b", COUNTER, b"hello")],
    "msg_publish_empty": [Message(b"ex", b"a.z", COUNTER, b"")],
    "msg_no_exchange": [Message(b"nosuch", b"r", COUNTER, b"x")],
    "msg_no_route": [Message(b"ex", b"z", COUNTER, b"x")],
}
"""Short frames."""

FIRST_PUBLISHED = {
    "real_fq_sndr_data": [Message(b"maryland", b"test.prefix.boo", numbered(number), bytes(10)) for number in (1, 2)],
    "real_fqs_data": [Message(b"maryland", b"test.fqs", numbered(1), b"hello fqs\n")],
}
"""Whole data connections, mode word and key included."""

FULL = {
    "msg_deliver": [Message(b"ex", b"a.b", COUNTER, b"hello", b"alice", (OWN, HOST))],
    "msg_deliver_empty": [Message(b"ex", b"a.z", COUNTER, b"", b"alice", (OWN, HOST))],
    "msg_deliver_http": [Message(b"hx", b"a.h", numbered(2), b"TEST", b"_web", ())],
    "real_fq_rcvr_deliver": [
        Message(b"maryland", b"test.prefix.boo", numbered(number), bytes(10), b"snd", (OWN, HOST)) for number in (1, 2)
    ],
    "peer_deliver": [Message(b"logging", b"a.1", COUNTER, b"from A", b"alice", (bytes((10, 0, 0, 1)), HOST))],
    "peer_publish": [Message(b"logging", b"a.1", COUNTER, b"from P", b"alice", (bytes((10, 0, 0, 9)), HOST))],
}

HTTP = {
    "http_submit", "http_submit_reply", "http_submit_missing_route", "http_submit_missing_route_reply", "http_404",
    "http_404_reply",
}  # fmt: skip

KNOWN = [COMMANDS, BROKEN_COMMANDS, FIRST_COMMANDS, OPENINGS, REPLIES, PUBLISHED, FIRST_PUBLISHED, FULL, dict.fromkeys(HTTP)]


def signed_in() -> CommandReader:
    """A reader whose client has said who it is."""
    reader = CommandReader()
    reader.receive(bytes.fromhex("aaaa0000 0000 0000 0000"))
    return reader


T = TypeVar("T")


def each_byte(raw: bytes) -> list[bytes]:
    return [raw[at : at + 1] for at in range(len(raw))]


def fed(receive: Callable[[bytes], Iterable[T]], pieces: Iterable[bytes]) -> list[T]:
    return [item for piece in pieces for item in receive(piece)]


def streams() -> list[tuple[str, Callable[[], Callable[[bytes], list[Any]]], bytes]]:
    """Every reader with a stream for it: what it is, how to make one, and the bytes."""

    def opened() -> Callable[[bytes], list[Any]]:
        seen = bytearray()
        done: list[Opening] = []

        def receive(piece: bytes) -> list[Any]:
            seen.extend(piece)
            found = None if done else read_opening(seen)
            if found is not None:
                done.append(found)
            return [] if found is None else [found]

        return receive

    found: list[tuple[str, Callable[[], Callable[[bytes], list[Any]]], bytes]] = []
    for name, vector in VECTORS.items():
        raw = vector.raw
        if name in FIRST_COMMANDS:
            found.append((name, lambda: CommandReader().receive, raw[4:]))
        elif name in COMMANDS or name in BROKEN_COMMANDS:
            first = raw[:2] == b"\xaa\xaa" or name == "err_not_auth_req"
            found.append((name, (lambda: CommandReader().receive) if first else (lambda: signed_in().receive), raw))
        elif name in REPLIES:
            found.append((name, lambda: ReplyReader().receive, raw))
        elif name in PUBLISHED or name in FIRST_PUBLISHED:
            found.append((name, lambda: MessageReader(False, 1000).receive, raw[133:] if name in FIRST_PUBLISHED else raw))
        elif name in FULL:
            found.append((name, lambda: MessageReader(True, 1000).receive, raw))
        elif name in OPENINGS:
            found.append((name, opened, raw))
        elif vector.from_client:
            found.append((name, lambda: HttpReader(1000).receive, raw))
    return found


def outcome(make: Callable[[], Callable[[bytes], list[Any]]], pieces: Iterable[bytes]) -> tuple[list[Any], str]:
    """What a reader made of the pieces, and how it failed. Only a BraidError may end it."""
    receive = make()
    found: list[Any] = []
    try:
        for piece in pieces:
            found += receive(piece)
        # A fault behind something whole is told by the next call.
        found += receive(b"")
    except BraidError as fault:
        return found, str(fault)
    return found, ""
