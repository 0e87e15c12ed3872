"""Whole conversations with an fq port, each a table of steps: what is sent, and what comes back, byte for byte."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from fq_peer import NODE, PATIENCE_S, FqBroker, FqPeer, closed, connect, eventually, new_name

from braidmq.base import limits
from braidmq.server.fq_listener import FqListener
from braidmq.wire.fq.auth import Auth, queue_field
from braidmq.wire.fq.commands import (
    REFUSED,
    STATUS_KEYS,
    AuthAccepted,
    Bind,
    Bound,
    Heartbeat,
    HeartbeatRequest,
    Status,
    StatusRequest,
    Unbind,
    Unbound,
    encode_command,
    encode_reply,
)
from braidmq.wire.fq.messages import Message, encode_message
from braidmq.wire.fq.modes import Mode, encode_opening

MODE = encode_opening(Mode.COMMAND)
HEARTBEAT = encode_command(Heartbeat())


@pytest.fixture(scope="module")
def broker() -> Iterator[FqBroker]:
    with FqBroker(default_partitions=2, fq_key_grace_s=0.5) as running:
        yield running


def receive(raw: socket.socket, size: int) -> bytes:
    came = b""
    while len(came) < size:
        data = raw.recv(size - len(came))
        assert data, came
        came += data
    return came


@dataclass
class Talk:
    """The sockets of a client, by name, and its key once it has one."""

    address: str
    sockets: dict[str, socket.socket] = field(default_factory=dict)
    key: bytes = b""

    def open(self, name: str) -> socket.socket:
        if name not in self.sockets:
            self.sockets[name] = connect(self.address)
        return self.sockets[name]


Step = tuple[str, str, bytes]
"""Socket, what happens (`>` is sent, `<` comes, `key` comes with a key in it, `opens` sends a preamble, `end` is closed), bytes."""

EMPTY_STATUS = encode_reply(Status(tuple((key, 0) for key in STATUS_KEYS)))
LETTER = Message(b"ex", b"a.b", bytes(range(16)), b"hello")
DELIVERED = encode_message(Message(b"ex", b"a.b", bytes(range(16)), b"hello", b"alice", (NODE, bytes((127, 0, 0, 1)))), True)


def auth(queue: bytes, kind: str = "mem:public", user: bytes = b"alice") -> bytes:
    return encode_command(Auth(user, queue_field(queue, kind), b"secret"))


CONVERSATIONS: dict[str, list[Step]] = {
    "a client binds, publishes, receives and leaves": [
        ("cmd", ">", MODE + auth(b"c1")),
        ("cmd", "key", b""),
        ("data", "opens", encode_opening(Mode.DATA, bytes(127))),
        ("cmd", ">", encode_command(Bind(0, b"ex", b"prefix:a."))),
        ("cmd", "bound", b""),
        ("data", ">", encode_message(LETTER, False)),
        ("data", "<", DELIVERED),
    ],
    "commands may be sent before the first is answered": [
        ("cmd", ">", MODE + auth(b"c2") + encode_command(Unbind(99, b"no")) + encode_command(Bind(0, b"no", b"bad"))),
        ("cmd", "key", b""),
        ("cmd", "<", encode_reply(Unbound(REFUSED)) + encode_reply(Bound(REFUSED))),
        ("cmd", ">", encode_command(StatusRequest())),
        ("cmd", "<", encode_reply(Status((("dropped_in", 0),)))),
    ],
    "a status request with two stray zeros behind it": [
        ("cmd", ">", MODE + auth(b"c3")),
        ("cmd", "key", b""),
        ("cmd", ">", bytes.fromhex("c7a70000c7a70000")),
        ("cmd", "<", encode_reply(Status((("dropped_in", 0),))) * 2),
    ],
    "with a data connection there are ten figures": [
        ("cmd", ">", MODE + auth(b"c4")),
        ("cmd", "key", b""),
        ("data", "opens", encode_opening(Mode.DATA, bytes(127))),
        ("cmd", "status", EMPTY_STATUS),
    ],
    "both peer modes send and take full frames": [
        ("cmd", ">", MODE + auth(b"c5")),
        ("cmd", "key", b""),
        ("data", "opens", encode_opening(Mode.OLD_PEER, bytes(127))),
        ("cmd", ">", encode_command(Bind(1, b"px", b"prefix:"))),
        ("cmd", "bound", b""),
        ("data", ">", encode_message(Message(b"px", b"r", bytes(16), b"p", b"bob", (b"\1\2\3\4",)), True)),
        ("data", "<", encode_message(Message(b"px", b"r", bytes(16), b"p", b"bob", (NODE, b"\1\2\3\4")), True)),
    ],
    "an unknown command closes": [
        ("cmd", ">", MODE + auth(b"c6")),
        ("cmd", "key", b""),
        ("cmd", ">", b"\x12\x34"),
        ("cmd", "end", b""),
    ],
    "an exchange that is too long closes": [
        ("cmd", ">", MODE + auth(b"c7")),
        ("cmd", "key", b""),
        ("cmd", ">", bytes.fromhex("b1700000") + (limits.FQ_NAME_BYTES_MAX + 1).to_bytes(2, "big") + bytes(200)),
        ("cmd", "end", b""),
    ],
    "not the right first command": [
        ("cmd", ">", MODE + HEARTBEAT),
        ("cmd", "end", bytes.fromhex("eeee0015") + b"auth command expected"),
    ],
    "another method": [
        ("cmd", ">", MODE + bytes.fromhex("aaaa0001")),
        ("cmd", "end", bytes.fromhex("eeee0017") + b"unsupported auth method"),
    ],
    "a key that nobody has": [("data", ">", encode_opening(Mode.DATA, b"nobody's")), ("data", "end", b"")],
    "a key that is too long": [("data", ">", bytes.fromhex("cc50face0080") + bytes(128)), ("data", "end", b"")],
    "something else": [("cmd", ">", b"SSH-2.0-x\r\n"), ("cmd", "end", b"")],
    "a frame with a name that is too long": [
        ("cmd", ">", MODE + auth(b"c8")),
        ("cmd", "key", b""),
        ("data", "opens", encode_opening(Mode.DATA, bytes(127))),
        ("data", ">", b"\x80" + bytes(300)),
        ("data", "end", b""),
        ("cmd", "status", encode_reply(Status((("dropped_in", 0),)))),
    ],
    "a frame with too many hops": [
        ("cmd", ">", MODE + auth(b"c9")),
        ("cmd", "key", b""),
        ("data", "opens", encode_opening(Mode.PEER, bytes(127), b"\1\1\1\1")),
        ("data", ">", b"\2ex\1r" + bytes(16) + b"\1s" + bytes((limits.FQ_HOPS_MAX + 1,)) + bytes(400)),
        ("data", "end", b""),
    ],
}  # fmt: skip


def run_step(talk: Talk, step: Step) -> None:
    name, verb, raw = step
    connection = talk.open(name)
    match verb:
        case ">":
            connection.sendall(raw)
        case "<":
            assert receive(connection, len(raw)) == raw
        case "key":
            head = encode_reply(AuthAccepted(bytes(127)))[:4]
            came = receive(connection, 4 + 127 + 2)
            assert came[:4] == head and came[131:] == HEARTBEAT
            talk.key = came[4:131]
        case "opens":
            connection.sendall(raw.removesuffix(bytes(127)) + talk.key)
        case "bound":
            came = receive(connection, 6)
            assert came[:2] == bytes.fromhex("b171") and came[2:] != b"\xff" * 4
        case "status":
            # The two connections have no common order, so it is asked until it is so.
            def status() -> bytes:
                connection.sendall(encode_command(StatusRequest()))
                connection.settimeout(0.05)
                try:
                    return connection.recv(1000)
                finally:
                    connection.settimeout(PATIENCE_S)

            eventually(status, raw)
        case "end":
            assert closed(connection) == raw
        case _:
            raise AssertionError(verb)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation(broker: FqBroker, name: str) -> None:
    talk = Talk(broker.fq)
    try:
        for step in CONVERSATIONS[name]:
            run_step(talk, step)
    finally:
        for opened in talk.sockets.values():
            opened.close()


# --- keys and connections


def test_a_second_data_connection_is_closed_and_the_first_stays(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as peer:
        peer.bind(exchange)
        first = peer.data()
        first.publish(exchange, b"", b"one")
        assert first.payloads(1) == [b"one"]
        assert closed(peer.data().socket) == b""
        first.publish(exchange, b"", b"two")
        assert first.payloads(1) == [b"two"]


def test_a_lost_data_connection_can_be_opened_again(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as peer, FqPeer(broker.fq) as other:
        peer.bind(exchange)
        first = peer.data()
        eventually(lambda: len(peer.status()), len(STATUS_KEYS))
        first.close()
        eventually(lambda: len(peer.status()), 1)
        other.data().publish(exchange, b"", b"meanwhile")
        again = peer.data()
        assert again.payloads(1) == [b"meanwhile"]
        assert peer.figures("msgs_out", "msgs_in") == (1, 0), "figures begin anew with each data connection"


def test_what_was_written_before_both_connections_closed_arrives(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as reader:
        reader.bind(exchange)
        data = reader.data()
        for number in range(100):
            writer = FqPeer(broker.fq)
            writer.data().publish(exchange, b"", b"%d\n" % number)
            writer.close()
        assert sorted(data.payloads(100)) == sorted(b"%d\n" % number for number in range(100))


def test_a_key_is_good_for_a_moment_after_the_command_connection_closed(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as reader:
        reader.bind(exchange)
        data = reader.data()
        writer = FqPeer(broker.fq)
        writer.socket.close()
        eventually(lambda: broker.server.broker.fq.get(writer.queue), None)
        late = writer.data()
        late.publish(exchange, b"", b"late")
        assert data.payloads(1) == [b"late"]
        assert closed(late.socket) == b"", "it is closed when the moment is over"
        assert closed(writer.data().socket) == b"", "and the key is no key any more"


def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FQ_HANDSHAKE_SECONDS_MAX", 0.2)
    with FqBroker() as broker:
        halves = [b"", b"\xcc\x50", MODE, MODE + auth(b"q")[:9], b"GET / HTTP/1.0\r\n"]
        sockets = [connect(broker.fq) for _ in halves]
        for raw, half in zip(sockets, halves, strict=True):
            raw.sendall(half)
        with FqPeer(broker.fq) as peer:
            data = peer.data()
            for raw in sockets:
                assert closed(raw) == b""
            peer.bind(b"ex")
            data.publish(b"ex", b"", b"still here")
            assert data.payloads(1) == [b"still here"]


def test_too_many_connections_are_closed_without_a_word() -> None:
    with FqBroker(max_connections=2) as broker, FqPeer(broker.fq) as peer:
        peer.data()
        eventually(lambda: len(peer.status()), 10)
        assert closed(connect(broker.fq)) == b""
        assert peer.bind(b"ex") != REFUSED


# --- heartbeats


def test_heartbeats_come_at_their_interval_and_silence_ends_the_client(broker: FqBroker) -> None:
    with FqPeer(broker.fq) as peer:
        peer.send(HeartbeatRequest(100))
        beats = 0
        while isinstance(reply := peer.next_reply(), Heartbeat):
            beats += 1
        assert beats in (3, 4), "one at once, then every 100 ms until 300 ms of silence are over"
        assert encode_reply(reply) == bytes.fromhex("eeee0017") + b"client heartbeat failed"
        assert closed(peer.socket) == b""


def test_whatever_a_client_sends_is_a_sign_of_life_and_zero_ends_it_all(broker: FqBroker) -> None:
    with FqPeer(broker.fq) as peer:
        peer.send(HeartbeatRequest(60))
        for _ in range(8):
            assert peer.next_reply() == Heartbeat()
            peer.socket.sendall(HEARTBEAT)
        peer.send(HeartbeatRequest(0))
        peer.send(StatusRequest())
        while peer.next_reply() == Heartbeat():
            continue
        peer.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            peer.socket.recv(1)


def test_messages_are_no_sign_of_life(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as peer:
        data = peer.data()
        peer.send(HeartbeatRequest(50))
        while isinstance(peer.next_reply(), Heartbeat):
            data.publish(exchange, b"", b"x")


# --- limits


def test_a_payload_over_the_limit_is_passed_over_and_counted() -> None:
    with FqBroker(fq_payload_bytes_max=128 * 1024) as broker, FqPeer(broker.fq) as peer:
        peer.bind(b"ex")
        data = peer.data()
        data.publish(b"ex", b"r", b"a", bytes(128 * 1024), bytes(128 * 1024 + 1), bytes(3_000_000), b"z")
        assert [len(payload) for payload in data.payloads(3)] == [1, 128 * 1024, 1]
        sizes = [1, 128 * 1024, 128 * 1024 + 1, 3_000_000, 1]
        octets = sum(1 + 2 + 1 + 1 + 16 + 4 + size for size in sizes)
        eventually(lambda: peer.figures("size_dropped", "msgs_in", "octets_in", "routed"), (2, 5, octets, 3))


def test_the_largest_payload_comes_through() -> None:
    with FqBroker() as broker, FqPeer(broker.fq) as peer:
        size = broker.server.config.fq_payload_bytes_max
        peer.bind(b"ex")
        data = peer.data()
        data.publish(b"ex", b"r", bytes(size), b"next")
        assert [len(payload) for payload in data.payloads(2)] == [size, 4]


def test_a_listener_gives_connections_the_time_that_is_documented(broker: FqBroker) -> None:
    found = [listener for listener in broker.server.listeners if isinstance(listener, FqListener)]
    assert found[0].handshake_s == limits.FQ_HANDSHAKE_SECONDS_MAX
