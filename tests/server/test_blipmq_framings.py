"""One port, three framings told apart by their first bytes; and frames that are none."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blipmq_peer import BlipMQBroker, BlipMQPeer, delivered, new_name

from braidmq.base import limits
from braidmq.wire import blipmq
from braidmq.wire.blipmq import Ack, Envelope, ErrorMessage, Ping, Pong, Publish
from braidmq.wire.blipmq.binary1 import Ack as Binary1Ack
from braidmq.wire.blipmq.binary1 import Frame, Hello
from braidmq.wire.blipmq.binary1 import encode as encode_binary1

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "wire" / "blipmq_vectors.json").read_text())
BY_NAME = {vector["name"]: vector for vector in VECTORS}
CODES = {name.title().replace("_", ""): code for name, code in blipmq.ErrorCode.__members__.items()}
_FLAT = [vector["name"] for vector in VECTORS if vector["fields"]["framing"] == "flatbuffers"]


@pytest.fixture(scope="module")
def broker() -> Iterator[BlipMQBroker]:
    with BlipMQBroker(blipmq_framings=("flatbuffers", "binary1", "legacy")) as running:
        yield running


def _bytes(name: str) -> bytes:
    return bytes.fromhex(BY_NAME[name]["hex"])


@pytest.mark.parametrize("name", _FLAT)
def test_every_vector_is_answered_and_closes_the_connection_if_it_must(broker: BlipMQBroker, name: str) -> None:
    fields = BY_NAME[name]["fields"]
    with broker.peer() as peer:
        peer.send_bytes(_bytes(name))
        if fields.get("expect_close"):
            answers = peer.closed()
            assert [answer.message.error_code for answer in answers if isinstance(answer.message, ErrorMessage)] == [
                CODES.get(fields["expect_error"], CODES.get(fields["expect_error"].replace("TTL", "Ttl")))
            ]
            return
        if name == "bad_length_oversize":
            # Only its beginning is in the vector: the rest is read past.
            peer.send_bytes(bytes(4 + int.from_bytes(_bytes(name)[:4], "little") - len(_bytes(name))))
        peer.send(Ping(77), 4242)
        answers = [peer.receive()]
        while answers[-1].sequence != 4242:
            answers.append(peer.receive())
        assert answers[-1].message == Pong(77)
        if "expect_error" in fields:
            error = answers[0].message
            assert isinstance(error, ErrorMessage) and error.error_code == CODES[fields["expect_error"]], answers


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("name", ["binary1_hello", "legacy_sub", "documented_subscribe", "tls"])
def test_the_first_bytes_choose_the_framing(broker: BlipMQBroker, name: str, one_by_one: bool) -> None:
    first = b"\x16\x03\x01\x00\xf4\x01" if name == "tls" else _bytes(name)
    with broker.peer() as peer:
        for at in range(0, len(first), 1 if one_by_one else len(first)):
            peer.send_bytes(first[at : at + (1 if one_by_one else len(first))])
        match name:
            case "binary1_hello":
                expected = encode_binary1(Frame(Binary1Ack(), int.from_bytes(first[5:13])))
                assert _exactly(peer.socket, len(expected)) == expected == _bytes("binary1_ack_hello")
            case "legacy_sub":
                expected = _bytes("legacy_suback")
                got = _exactly(peer.socket, len(expected))
                assert blipmq.legacy.decode_reply(got[4:]) == blipmq.legacy.decode_reply(expected[4:])
            case "documented_subscribe":
                assert isinstance(peer.receive().message, Ack)
            case "tls":
                assert peer.socket.recv(100) == b"", "TLS has its own port"


def _exactly(stream: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = stream.recv(size - len(data))
        assert piece
        data += piece
    return data


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", blipmq.ErrorCode.MESSAGE_TOO_LARGE),
        (b"\0\0\0\x0c\x01" + bytes(20), blipmq.ErrorCode.PROTOCOL_ERROR),
        (b"\xff" * 20, blipmq.ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_what_no_framing_begins_with_is_refused(broker: BlipMQBroker, first: bytes, code: int) -> None:
    with broker.peer() as peer:
        peer.send_bytes(first)
        (answer,) = peer.closed()
        assert isinstance(answer.message, ErrorMessage) and answer.message.error_code == code


def test_a_framing_that_is_not_served_is_refused() -> None:
    with BlipMQBroker(blipmq_framings=("flatbuffers",)) as broker:
        for name in ("binary1_hello", "legacy_sub"):
            with broker.peer() as peer:
                peer.send_bytes(_bytes(name))
                (answer,) = peer.closed()
                assert isinstance(answer.message, ErrorMessage)
        with broker.peer() as peer:
            assert peer.ask(Ping(1)).message == Pong(1)


def test_a_frame_over_the_limit_is_read_past(broker: BlipMQBroker) -> None:
    topic = new_name()
    largest = b"x" * limits.BLIPMQ_PAYLOAD_BYTES_MAX
    with broker.peer() as peer:
        peer.subscribe(topic, 1)
        peer.send_bytes(blipmq.encode(Envelope(Publish(topic, largest, 1, 0, "fits"), 1)))
        got = peer.receive_many(2)
        assert {type(envelope.message) for envelope in got} == {Ack, blipmq.Message}
        assert len(delivered(next(each for each in got if isinstance(each.message, blipmq.Message))).payload) == len(largest)
        # One byte more: the frame is still taken in, the message is not.
        assert peer.refused(Publish(topic, largest + b"x", 1, 0, "large")) == blipmq.ErrorCode.MESSAGE_TOO_LARGE
        # Past what a frame may be it is not even kept.
        peer.send_bytes(blipmq.encode(Envelope(Publish(topic, bytes(3 * limits.MIB), 1, 0, "huge"), 8)))
        refusal = peer.receive()
        assert isinstance(refusal.message, ErrorMessage) and refusal.message.error_code == blipmq.ErrorCode.MESSAGE_TOO_LARGE
        assert refusal.sequence == 0, "its sequence number was never looked at"
        assert peer.ask(Ping(3)).message == Pong(3)


def test_a_frame_of_many_pieces_is_not_copied_for_each_of_them(broker: BlipMQBroker) -> None:
    topic = new_name()
    frame = blipmq.encode(Envelope(Publish(topic, bytes(limits.BLIPMQ_PAYLOAD_BYTES_MAX), 1, 0, "m"), 9))
    with broker.peer() as peer:
        for at in range(0, len(frame), 5000):
            peer.send_bytes(frame[at : at + 5000])
        assert peer.receive().message == Ack("m")


def test_the_hello_of_the_published_clients_never_changes() -> None:
    for correlation in itertools.islice(itertools.count(1, 10**15), 5):
        assert encode_binary1(Frame(Hello(), correlation)).startswith(b"\0\0\0\x0b\x01")


def test_what_follows_the_framing_is_that_framing(broker: BlipMQBroker) -> None:
    """A HELLO in the middle of another framing is a length out of range there, and nothing else."""
    with broker.peer() as peer:
        assert peer.ask(Ping(1)).message == Pong(1)
        peer.send_bytes(_bytes("binary1_hello"))
        (answer,) = peer.closed()
        assert isinstance(answer.message, ErrorMessage) and answer.message.error_code == blipmq.ErrorCode.MESSAGE_TOO_LARGE


def test_peers_of_different_framings_meet(broker: BlipMQBroker) -> None:
    topic = new_name()
    legacy = blipmq.legacy
    with broker.peer() as flat, BlipMQPeer(broker.blipmq) as old:
        flat.subscribe(topic)
        old.send_bytes(legacy.encode_command(legacy.Command(legacy.Action.SUB, topic)))
        reader = legacy.Reader()
        frames: list[Any] = []

        def next_reply() -> Any:
            while not frames:
                frames.extend(legacy.decode_reply(frame) for frame in reader.receive(old.socket.recv(65536)))
            return frames.pop(0)

        assert next_reply() == legacy.SubAck(topic)
        old.send_bytes(legacy.encode_command(legacy.Command(legacy.Action.PUB, topic, b"from the past", 60_000)))
        message = flat.receive()
        assert (delivered(message).payload, delivered(message).qos) == (b"from the past", 0)
        echo = next_reply()
        assert (echo.payload, echo.id) == (b"from the past", message.sequence)
        flat.publish(topic, b"hello", "m")
        assert next_reply().payload == b"hello"
        flat.receive()
        # What it cannot do it drops, and goes on.
        old.send_bytes(legacy.encode_command(legacy.Command(legacy.Action.PUB, "a/+", b"x")))
        old.send_bytes(legacy.encode_command(legacy.Command(legacy.Action.UNSUB, topic)))
        old.send_bytes(legacy.encode_command(legacy.Command(legacy.Action.PUB, topic, b"last")))
        assert delivered(flat.receive()).payload == b"last"
        old.send_bytes(legacy.encode_command(legacy.Command(legacy.Action.QUIT, "x")))
        assert old.socket.recv(100) == b""
